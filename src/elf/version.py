"""Which version of ELF this is."""

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


@cache
def version() -> str:
    """The installed version. The first call reads the metadata of the package."""
    try:
        return installed("elf-mesh")
    except PackageNotFoundError:  # imported from a source tree that was never installed
        return "0+unknown"
