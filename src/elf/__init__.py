"""ELF: exact windows from live web server logs. The front door: `elf.run(query, files)`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elf.agent.run.api import Result, run
    from elf.errors import ElfError

    __version__: str

__all__ = ["ElfError", "Result", "__version__", "run"]


def __getattr__(name: str) -> Any:
    # Imported when used: `elf --help` must not wait for numpy, nor `import elf` for the package's metadata.
    if name in ("run", "Result"):
        from elf.agent.run import api

        return getattr(api, name)
    if name == "ElfError":
        from elf.errors import ElfError

        return ElfError
    if name == "__version__":
        from elf.version import version

        return version()
    raise AttributeError(f"module 'elf' has no attribute {name!r}")
