"""ELF: exact windows from live web server logs. The front door: `elf.run(query, files)`."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("elf-mesh")
except PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
