"""`elf lake …`: what is in a lake, and its care."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from elf.errors import ElfError, UsageError
from elf.sinks.lake.view import READERS, views


def view_command(lake: Path, job: str, reader: str) -> str:
    """The queries of the job's tables, a line for each. Raises UsageError."""
    if reader not in READERS:
        raise UsageError(f"--for {reader!r} is none of {', '.join(READERS)}")
    return "\n".join(views(lake, job, reader))


def verify_command(lake: Path, repair: bool) -> int:
    """Print a line for each table. Returns 0 if all logs show what the files hold, or do so now, else 1. Raises ElfError."""
    if find_spec("pyarrow") is None:
        raise ElfError("elf lake verify needs pyarrow, which is not installed; pip install 'elf-mesh[lake]'")
    from elf.sinks.lake.verify import verify

    is_well = True
    for table in verify(lake, repair):
        how = "mended: " if table.is_mended else "wrong: "
        found = how + "; ".join(table.problems) if table.problems else "as the files"
        log = f"version {table.version}, {table.files} files" if table.version >= 0 else "no log"
        print(f"{table.job}  {table.folder}  {log}  {found}")
        is_well = is_well and (table.is_mended or not table.problems)
    if not is_well and not repair:
        print(f"`elf lake verify {lake} --repair` makes the logs again from the files")
    return 0 if is_well else 1
