"""Expiry: the days of a job that are older than its lake keeps go, and stay away.

    mark -> a commit to each Delta log -> each day's folder is renamed to a hidden name, and deleted

The mark (`layout.mark`) only grows and comes first, so that a pane of an expired day, sent again or revised by late lines, is
acknowledged without being written, and the next expiry goes on where one was interrupted. After each step a reader finds a day
whole, or not at all. A writer that has looked at the mark before it grew looks again when it has written, and removes the day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from elf.errors import ElfError
from elf.sinks.lake import layout
from elf.sinks.lake.delta import LogError
from elf.sinks.lake.index import Index
from elf.sinks.lake.removal import remove_day, remove_hidden


class Expired(msgspec.Struct, frozen=True):
    """What was removed from a table: the days, their files and bytes. until: the mark, microseconds UTC. ended: the first version
    of the log without them, -1 if it did not show them."""

    job: str
    folder: str
    days: int
    files: int
    bytes: int
    until: int
    ended: int = -1


def expire_lake(directory: Path, job: str | None, before_us: int) -> Iterator[Expired]:
    """Expire the days of a lake, or of a job, whose panes all ended before `before_us` (microseconds UTC). Raises UsageError if
    there is no lake or job, ElfError if a file cannot be written or removed: the next expiry goes on."""
    tables = layout.existing_tables(directory, job)
    marks = {name: _mark(directory, name, before_us) for name in {layout.job_of(table) for table in tables}}
    for table in tables:
        try:
            if (found := expire_table(table)) is not None:
                until = marks[layout.job_of(table)]
                yield Expired(
                    layout.job_of(table), str(table.relative_to(directory)), *found[:3], until, found[3]
                )
        except OSError as error:
            raise ElfError(f"{error.filename or table}: {error.strerror or error}; run it again") from error


def _mark(directory: Path, job: str, before_us: int) -> int:
    """Let the job's mark grow to the begin of a day, so early that panes longer than a day have ended too. Returns it."""
    folders = [folder for table in layout.tables(directory, job) for folder in layout.day_folders(table)]
    lengths = [file.pane_us for folder in folders for file in layout.files(folder)[:1]]
    longer = max([layout.DAY_US, *lengths]) - layout.DAY_US
    at = (before_us - longer) // layout.DAY_US * layout.DAY_US
    try:
        return layout.set_mark(layout.job_folder(directory, job), at)
    except OSError as error:
        raise ElfError(f"{error.filename}: {error.strerror or error}") from error


def expire_table(table: Path) -> tuple[int, int, int, int] | None:
    """Remove the days before the mark: (days, files, bytes, version of the log or -1); None if there were none."""
    folders = [folder for folder in layout.day_folders(table) if layout.is_expired(folder)]
    ended = -1
    with suppress(
        LogError
    ):  # a log that is damaged stays so; `elf lake verify --repair` leaves these days out
        index = Index(table)
        if index.update([*folders, *index.lost_folders()]):
            ended = index.state.version
    removed = [remove_day(folder) for folder in folders]
    for version in sorted(table.glob("version=v*")):
        remove_hidden(version)
    if not folders:
        return None
    return len(folders), sum(files for files, _ in removed), sum(size for _, size in removed), ended
