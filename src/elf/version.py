"""Which version of ELF this is."""

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


@cache
def version() -> str:
    """As it is installed. The first call looks at the installed packages."""
    try:
        return installed("elf-mesh")
    except PackageNotFoundError:  # imported from a source tree that was never installed
        return "0+unknown"
