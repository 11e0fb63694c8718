"""Compaction of one day folder, within the writer process: many small files into one, with only the highest revisions."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa

from elf.errors import ElfError
from elf.sinks.lake import delta, layout
from elf.sinks.lake.files import DamagedError, read_panes, sync_folder
from elf.sinks.lake.index import Index
from elf.sinks.lake.merge import merge

SMALL_BYTES = 128 << 20
"""A file of this size or more is left as it is: merging it gains nothing."""


class Compacted(msgspec.Struct, frozen=True):
    """A table, with its (files, bytes) before and after. folder: within the lake. damaged: files that cannot be read, within the
    folder; their days stay as they are."""

    job: str
    folder: str
    before: tuple[int, int]
    after: tuple[int, int]
    damaged: tuple[str, ...] = ()


def compact_lake(directory: Path, job: str | None, before_us: int) -> Iterator[Compacted]:
    """Compact the tables of a lake, or of a job: the hours and days that ended before `before_us`. Raises UsageError if there is
    no lake or job, ElfError if a file cannot be read or written: then nothing is lost, and the next compaction goes on."""
    for table in layout.existing_tables(directory, job):
        try:
            before = _size(table)
            damaged: set[Path] = set()
            compact_table(table, before_us, before_us, damaged)
            damaged.update(_unreadable(table))
            folder = str(table.relative_to(directory))
            names = tuple(sorted(str(path.relative_to(table)) for path in damaged))
            yield Compacted(layout.job_of(table), folder, before, _size(table), names)
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or error
            raise ElfError(f"{table}: not compacted: {reason}; nothing is lost, run it again") from error


def _size(table: Path) -> tuple[int, int]:
    """Files that disappear meanwhile are left out."""
    sizes = []
    for folder in layout.day_folders(table):
        for file in layout.files(folder):
            with suppress(FileNotFoundError):
                sizes.append(file.path.stat().st_size)
    return len(sizes), sum(sizes)


def _unreadable(table: Path) -> Iterator[Path]:
    for folder in layout.day_folders(table):
        for file in layout.all_files(folder):
            try:
                with suppress(FileNotFoundError):
                    read_panes(file.path)
            except DamagedError:
                yield file.path


def compact_table(
    table: Path, older_than: int, days_before: int | None = None, damaged: set[Path] | None = None
) -> int:
    """Compact the folders of a table, and let its log show all that the files hold: the hours that ended before `older_than`
    (microseconds UTC), and the days that ended before `days_before`, else a day earlier. Returns the number of files removed.
    damaged: is told of files that cannot be read; their folders stay as they are."""
    if days_before is None:
        days_before = older_than - layout.DAY_US
    index = Index(table)
    folders = layout.day_folders(table)
    with suppress(delta.LogError):
        index.update(folders)
    removed = 0
    for folder in folders:
        try:
            removed += compact_folder(folder, older_than, days_before, index)
        except DamagedError as error:
            if damaged is not None:
                damaged.add(error.path)
    return removed


def compact_folder(folder: Path, older_than: int, days_before: int, index: Index) -> int:
    """Compact one folder. Returns the number of files removed. Does nothing while another process compacts the folder, nor if one
    of its files cannot be read: that may hold the newest revision of a pane. Raises DamagedError then."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has expired
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    else:
        layout.remove_abandoned(folder)
        removed = remove_merged(folder, index)
        ripe = layout.ripe(layout.files(folder), older_than, days_before)
        return removed + sum(_compact(folder, part, index) for part in ripe)
    finally:
        os.close(fd)


def _compact(folder: Path, files: list[layout.LakeFile], index: Index) -> int:
    small = [file for file in files if file.path.stat().st_size < SMALL_BYTES]
    if len(small) < 2:
        return 0
    best = highest([file.path for file in layout.files(folder)])
    if len({file.is_empty for file in small}) == len(small) and _count(small) == len(best):
        return 0  # one with groups and one without, and nothing in them is superseded
    written: set[Path] = set()
    for is_empty in (False, True):
        own = {file.path for file in small if file.is_empty is is_empty}
        written.update(merge(folder, {pane: path for pane, path in best.values() if path in own}, is_empty))
    removed = [file.path for file in small if file.path not in written]
    if not removed:
        return 0
    with suppress(delta.LogError):  # before they go, so that no reader of a new snapshot looks for them
        index.update([folder], removed)
    for path in removed:
        with suppress(FileNotFoundError):
            path.unlink()
    sync_folder(folder)
    with suppress(
        delta.LogError
    ):  # a writer may meanwhile have shown one of them again, with a revision of another's pane
        index.update([folder])
    return len(removed)


def _count(files: Iterable[layout.LakeFile]) -> int:
    return sum(len(read_panes(file.path)) for file in files)


def remove_merged(folder: Path, index: Index) -> int:
    """Remove the files of a day whose panes are merged in longer ones, once the log shows these. Returns their number."""
    found = layout.all_files(folder)
    counted = {file.path for file in layout.counting(found)}
    old = [file.path for file in found if file.path not in counted]
    if old:
        with suppress(delta.LogError):
            index.update([folder])
        for path in old:
            with suppress(FileNotFoundError):
                path.unlink()
        sync_folder(folder)
    return len(old)


def highest(paths: Iterable[Path]) -> dict[int, tuple[layout.Pane, Path]]:
    """Pane start -> the highest entry of that pane, and the file that contains it."""
    best: dict[int, tuple[layout.Pane, Path]] = {}
    for path in paths:
        for pane in read_panes(path):
            best[pane.start] = max((pane, path), best.get(pane.start, (pane, path)))
    return best
