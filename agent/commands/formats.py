"""`elf formats`: the log formats there are, or the columns of one."""

from __future__ import annotations

from elf.agent.formats import describe


def formats_command(name: str | None) -> None:
    """Print the list, or the table of one format. Raises `FormatError`."""
    print(describe(name))
