"""ELF: exact windows from live web server logs. The front door: `elf.run(query, files)`."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: importlib.metadata costs a third of the time of `elf --help`."""
    if name != "__version__":
        raise AttributeError(f"module 'elf' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("elf-mesh")
    except PackageNotFoundError:  # imported from a source tree that was never installed
        return "0+unknown"
