"""Days of a lake in longer panes: the states of a day's panes, merged exactly, in one step for every reader.

    day folder -> `valid_rows` -> `LongerPanes` -> files -> the log -> the old files go

Of panes of several lengths in one day folder only the longest that have groups count (`layout.longest_us`). So the file with the
groups comes last, as one file: before its rename readers find the old panes, after it the new ones. The panes that are merged
then count no more, whichever step a crash stops, and the next compaction removes their files. A late revision of one of them is
not stored. Imports pyarrow and numpy.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa

from elf.errors import ElfError, PeerError
from elf.sinks.lake import layout
from elf.sinks.lake.cells.tables import file_schema, has_no_groups
from elf.sinks.lake.compact import remove_merged
from elf.sinks.lake.files import DamagedError, about, read_about, write_file
from elf.sinks.lake.frames import Level
from elf.sinks.lake.index import Index
from elf.sinks.lake.stored import EPOCH_DAY
from elf.sinks.lake.trees.longer import LongerPanes, frame_of
from elf.sinks.lake.trees.valid import valid_rows


class Coarsened(msgspec.Struct, frozen=True):
    """A table: days that have longer panes now, and their panes before and after. removed: files. damaged: files that cannot be
    read, within the folder; their days stay as they are."""

    job: str
    folder: str
    days: int = 0
    before: int = 0
    after: int = 0
    removed: int = 0
    damaged: tuple[str, ...] = ()


def coarsen_lake(directory: Path, job: str | None, levels: Sequence[Level]) -> Iterator[Coarsened]:
    """Merge the panes of the days of a lake, or of a job, that are of such an age. Yields the tables in which there were
    any, or damaged files. Raises UsageError if there is no lake or job, ElfError if a file cannot be read or written: the next
    time goes on."""
    for table in layout.existing_tables(directory, job):
        name = layout.job_of(table)
        found = Coarsened(name, str(table.relative_to(directory)))
        index = Index(table)
        try:
            for folder in layout.day_folders(table):
                try:
                    counts = _coarsen_day(folder, levels_of(name, levels), index)
                except DamagedError as error:
                    path = str(error.path.relative_to(table))
                    found = msgspec.structs.replace(found, damaged=(*found.damaged, path))
                    continue
                if counts is not None:
                    before, after, removed = counts
                    found = Coarsened(
                        name,
                        found.folder,
                        found.days + 1,
                        found.before + before,
                        found.after + after,
                        found.removed + removed,
                        found.damaged,
                    )
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or error
            raise ElfError(
                f"{table}: not merged into longer windows: {reason}; nothing is lost, run it again"
            ) from error
        if found.days or found.damaged:
            yield found


def levels_of(job: str, levels: Sequence[Level]) -> list[Level]:
    """Those of the job: if some name it, these alone. The longest panes first."""
    own = [level for level in levels if level.job == job]
    return sorted(
        own or [level for level in levels if level.job is None], key=lambda each: each.pane_us, reverse=True
    )


def _coarsen_day(folder: Path, levels: Sequence[Level], index: Index) -> tuple[int, int, int] | None:
    """(panes before, panes after, files removed); None if the folder has no such panes, if another process works in it, or
    another version of elf made its panes. Raises DamagedError: that file may hold the newest revision of a pane."""
    until = _end_of(folder)
    ripe = [level.pane_us for level in levels if until is not None and until <= level.before]
    if not ripe or _fitting(folder, ripe) is None:
        return None
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has expired
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    else:
        layout.remove_abandoned(folder)
        pane_us = _fitting(folder, ripe)
        try:
            return None if pane_us is None else _merge(folder, pane_us, index)
        except (PeerError, KeyError):
            return None
    finally:
        os.close(fd)


def _end_of(folder: Path) -> int | None:
    """The end of the day; None for panes without a time."""
    if folder.name == layout.NO_WINDOW:
        return None
    with suppress(ValueError):
        day = date.fromisoformat(folder.name.removeprefix("date=")).toordinal() - EPOCH_DAY
        return (day + 1) * layout.DAY_US
    return None


def _fitting(folder: Path, lengths: Sequence[int]) -> int | None:
    """The first of the lengths, which come down, if the panes of the day make up such panes; None if they are as long already."""
    files = layout.files(folder)
    own = files[0].pane_us if files else 0
    for length in lengths:
        if own >= length:
            return None
        fits = own and length % own == 0 and layout.DAY_US % length == 0
        if fits and not any(start % own for file in files for start in file.panes):
            return length
    return None


def _merge(folder: Path, pane_us: int, index: Index) -> tuple[int, int, int] | None:
    files = layout.files(folder)
    newest = max(files, key=lambda file: (file.until, file.path.name))
    had_groups = any(not file.is_empty for file in files)
    with LongerPanes(read_about(newest.path), str(folder.parents[3]), pane_us) as longer:
        for table in valid_rows(folder):
            longer.add(table)
        if not _write(folder, longer, had_groups):
            return None
    return longer.before, longer.after, remove_merged(folder, index)


def _write(folder: Path, longer: LongerPanes, had_groups: bool) -> bool:
    """Write the panes without groups, and then those with groups, as one file. Writes nothing if no group counts any more, but
    there are files with some: compaction removes these first."""
    schema, framed = longer.schema, {}
    for each in longer.framed():
        frame = frame_of(each)
        framed[layout.Pane(frame.start, frame.end, frame.revision, frame.digest)] = each
    empty = {place for place, each in framed.items() if has_no_groups(each.parts())}
    full = [place for place in framed if place not in empty]
    if had_groups and not full:
        return False
    named = list(layout.files_of(schema.job, schema.version, empty, True)) if full else []
    last = full or sorted(empty)
    for name, part in [*named, (layout.whole_name(schema.job, schema.version, last, not full), last)]:
        tables = longer.tables(framed[place] for place in part)
        write_file(folder / name, about(schema), part, file_schema(schema.columns), tables)
    return True
