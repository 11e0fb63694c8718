"""ELF: exact windows from live web server logs. The front door: `elf.run(query, files)`."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elf.agent.api import Result, run
    from elf.errors import ElfError

try:
    __version__ = version("elf-mesh")
except PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["ElfError", "Result", "__version__", "run"]


def __getattr__(name: str) -> Any:
    # Late, so that `elf --help` does not wait for numpy.
    if name in ("run", "Result"):
        from elf.agent import api

        return getattr(api, name)
    if name == "ElfError":
        from elf.errors import ElfError

        return ElfError
    raise AttributeError(f"module 'elf' has no attribute {name!r}")
