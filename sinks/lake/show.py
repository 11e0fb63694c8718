"""What a lake holds, by version of a job: from names, footers, and the columns of coverage. Imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.errors import ElfError
from elf.sinks.lake import delta, layout
from elf.sinks.lake.files import DamagedError, decoding, panes_of
from elf.sinks.lake.index import TRIES_MAX, Index

_START, _STATUS, _COVERED, _EXPECTED = "_pane_start", "_status", "_agents_reporting", "_agents_expected"


class Shown(msgspec.Struct):
    """One version of a job in one table. since, until: microseconds UTC, None without windows. windows: panes at their newest
    revision but withdrawn ones, of which `incomplete` lack an agent. superseded: copies of panes that do not count. rows: of
    all files, but those that are `damaged`. log: the version of the table's Delta log, None without one."""

    job: str
    columns: str
    version: str
    log: int | None
    since: int | None = None
    until: int | None = None
    windows: int = 0
    incomplete: int = 0
    withdrawn: int = 0
    superseded: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    damaged: int = 0


def show(directory: Path, job: str | None = None) -> Iterator[Shown]:
    """The versions of the jobs. Raises UsageError if there is no lake or job, ElfError if it cannot be read. O(files), and
    O(rows) of the columns of coverage where agents are missing."""
    for table in layout.existing_tables(directory, job):
        try:
            yield from _versions(table)
        except OSError as error:
            raise ElfError(f"{error.filename or table}: {error.strerror or error}") from error


def _versions(table: Path) -> Iterator[Shown]:
    log = _log_version(table)
    for folder in sorted(table.glob("version=v*")):
        found = Shown(layout.job_of(table), table.name, folder.name.removeprefix("version=v"), log)
        for day in sorted(folder.glob("date=*")):
            _add(found, _day(day))
        yield found


def _log_version(table: Path) -> int | None:
    index = Index(table)
    try:
        index.refresh()
    except delta.LogError:
        return None
    return index.state.version if index.state.version >= 0 else None


class _Day(msgspec.Struct):
    newest: dict[int, layout.LakeFile] = {}
    copies: int = 0
    incomplete: set[int] = set()
    withdrawn: set[int] = set()
    rows: int = 0
    bytes: int = 0
    files: int = 0
    damaged: int = 0


def _day(folder: Path) -> _Day:
    for _ in range(TRIES_MAX):
        try:
            return _looked_at(folder)
        except FileNotFoundError:  # compaction has removed it
            continue
    raise ElfError(f"{folder}: its files change without end")


def _looked_at(folder: Path) -> _Day:
    day, ledger = _Day(), layout.folder_ledger(folder)
    files = layout.all_files(folder)
    counted = {file.path for file in layout.counting(files)}
    for file in files:
        day.files += 1
        day.bytes += file.path.stat().st_size
        starts, newest = set(file.panes), set[int]()
        if file.path in counted:
            newest = {start for start, revision in file.panes.items() if revision == ledger.get(start)}
        try:
            with decoding(file.path), pq.ParquetFile(file.path) as content:
                day.rows += content.metadata.num_rows
                starts = {pane.start for pane in panes_of(content.metadata)}
                newest &= starts
                day.incomplete |= newest.intersection(_incomplete(content))
                if file.is_empty:
                    day.withdrawn |= newest.intersection(_withdrawn(content))
        except DamagedError:
            day.damaged += 1
        day.newest |= dict.fromkeys(newest, file)
        day.copies += len(starts)
    return day


def _incomplete(content: Any) -> Iterator[int]:
    for number in range(content.num_row_groups):
        if not _is_covered(content.metadata.row_group(number)):
            table = content.read_row_group(number, columns=[_START, _COVERED, _EXPECTED])
            yield from _starts(table, pc.less(table.column(_COVERED), table.column(_EXPECTED)))


def _is_covered(group: Any) -> bool:
    """Whether the statistics of a row group say that all its panes have all agents."""
    columns = {
        column.path_in_schema: column.statistics for column in map(group.column, range(group.num_columns))
    }
    covered, expected = columns[_COVERED], columns[_EXPECTED]
    known = all(each is not None and each.has_min_max for each in (covered, expected))
    return known and covered.min >= expected.max


def _withdrawn(content: Any) -> Iterator[int]:
    table = content.read(columns=[_START, _STATUS])
    yield from _starts(table, pc.equal(table.column(_STATUS), "withdrawn"))


def _starts(table: Any, mask: Any) -> Iterator[int]:
    return (start or 0 for start in table.column(_START).filter(mask).cast(pa.int64()).to_pylist())


def _add(shown: Shown, day: _Day) -> None:
    held = {start: file for start, file in day.newest.items() if start not in day.withdrawn and file.pane_us}
    if held:
        since, until = min(held), max(start + file.pane_us for start, file in held.items())
        shown.since = since if shown.since is None else min(since, shown.since)
        shown.until = until if shown.until is None else max(until, shown.until)
    shown.windows += len(day.newest) - len(day.withdrawn)
    shown.incomplete += len(day.incomplete - day.withdrawn)
    shown.withdrawn += len(day.withdrawn)
    shown.superseded += day.copies - len(day.newest)
    shown.rows += day.rows
    shown.files += day.files
    shown.bytes += day.bytes
    shown.damaged += day.damaged
