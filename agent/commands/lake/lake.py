"""`elf lake …`: what is in a lake, and its care."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec

from elf.agent.commands.arguments import duration
from elf.agent.config import units
from elf.errors import ElfError, UsageError
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.frames import Level
from elf.sinks.lake.view import READERS, views
from elf.sinks.lake.writer import do_without_numpy


def view_command(lake: Path, job: str, reader: str) -> str:
    """The queries of the job's tables, a line for each. Raises UsageError."""
    if reader not in READERS:
        raise UsageError(f"--for {reader!r} is none of {', '.join(READERS)}")
    return "\n".join(views(lake, job, reader))


_TYPES = {
    "job": "string",
    "columns": "string",
    "version": "string",
    "since": "timestamp",
    "until": "timestamp",
}


def show_command(lake: Path, job: str | None, output: str | None) -> None:
    """Write what the lake holds to stdout, a row for each version of a job. Raises ElfError."""
    form = output or ("table" if sys.stdout.isatty() else "json")
    if form not in ("table", "json", "csv"):
        raise UsageError(f"--output {form!r} is none of table, json and csv")
    _need_pyarrow("show")
    from elf.sinks.lake.show import Shown, show
    from elf.sinks.report.output import write
    from elf.sinks.report.rows import Section

    names = Shown.__struct_fields__
    columns = tuple(ColumnInfo(name, _TYPES.get(name, "bigint")) for name in names)
    rows = [msgspec.structs.astuple(version) for version in show(lake, job)]
    write([Section("lake", "Lake", columns, rows)], form, sys.stdout.buffer, single=True)


def compact_command(lake: Path, job: str | None, after: str, coarsen: Sequence[str] = ()) -> int:
    """Merge the files of the hours and days that ended so long ago, and print a line for each table; before it one for each table
    whose windows became longer. Returns 0; 1 if a file could not be read. Raises ElfError."""
    age_us, now_us = duration("--after", after), time.time_ns() // 1000
    levels = [_level(text, now_us) for text in coarsen]
    _need_pyarrow("compact")
    if not levels:
        do_without_numpy()
    from elf.sinks.lake.compact import compact_lake

    damaged: set[tuple[str, str, str]] = set()
    if levels:
        from elf.sinks.lake.trees.coarsen import coarsen_lake

        for merged in coarsen_lake(lake, job, levels):
            damaged.update((merged.job, merged.folder, path) for path in merged.damaged)
            if not merged.days:
                continue
            days = f"{merged.days:,} day{'s' if merged.days != 1 else ''}"
            print(
                f"{merged.job}  {merged.folder}  {days}: {merged.before:,} windows  ->  {merged.after:,} windows"
            )
    for table in compact_lake(lake, job, now_us - (age_us or 0)):
        (files, size), (files_left, size_left) = table.before, table.after
        print(
            f"{table.job}  {table.folder}  {files:,} files, {size:,} bytes  ->  {files_left:,} files, {size_left:,} bytes"
        )
        damaged.update((table.job, table.folder, path) for path in table.damaged)
    for name, folder, path in sorted(damaged):
        print(f"{name}  {folder}  {path} cannot be read: the files of its day stay as they are")
    if damaged:
        print(
            "put copies of these files back, or move them out of the lake, without their windows, and run it again"
        )
    return 1 if damaged else 0


def _level(text: str, now_us: int) -> Level:
    """Raises UsageError."""
    try:
        found = units.coarser(text)
    except ValueError as error:
        raise UsageError(f"--coarsen: expected {error}, found {text!r}") from error
    return Level(found.pane_us, found.after.before(now_us), found.job)


def expire_command(lake: Path, job: str | None, older_than: str) -> None:
    """Remove the days whose windows ended so long ago, and print a line for each table. Raises ElfError."""
    try:
        before_us = units.age(older_than).before(time.time_ns() // 1000)
    except ValueError as error:
        raise UsageError(f"--older-than: expected {error}, found {older_than!r}") from error
    _need_pyarrow("expire")
    from elf.sinks.lake.expire import expire_lake

    nothing = True
    for table in expire_lake(lake, job, before_us):
        nothing = False
        until = datetime.fromtimestamp(table.until // 1_000_000, UTC)
        log = f"; its log's versions before {table.ended} lack them" if table.ended > 0 else ""
        print(
            f"{table.job}  {table.folder}  days before {until:%Y-%m-%d} removed: {table.days:,}, with "
            f"{table.files:,} files, {table.bytes:,} bytes{log}"
        )
    if nothing:
        print(f"{lake} has no day that old")


def copy_command(lake: Path, to: Path, job: str | None) -> int:
    """Copy the newest revisions, and print a line for each table. Returns 0; 1 if a file could not be read. Raises ElfError."""
    _need_pyarrow("copy")
    from elf.sinks.lake.copy import copy_lake

    damaged = 0
    for table in copy_lake(lake, to, job):
        damaged += table.damaged
        more = f"; {table.damaged} cannot be read, and are not copied" if table.damaged else ""
        print(
            f"{table.job}  {table.folder}  {table.files:,} files, {table.bytes:,} bytes copied, {table.there:,} were there, "
            f"{table.replaced:,} replaced  ->  {table.panes:,} windows{more}"
        )
    return 1 if damaged else 0


def _need_pyarrow(command: str) -> None:
    if find_spec("pyarrow") is None:
        raise ElfError(
            f"elf lake {command} needs pyarrow, which is not installed; pip install 'elf-mesh[lake]'"
        )


def verify_command(lake: Path, repair: bool) -> int:
    """Print a line for each table. Returns 0 if all logs show what the files hold, or do so now, else 1. Raises ElfError."""
    _need_pyarrow("verify")
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
