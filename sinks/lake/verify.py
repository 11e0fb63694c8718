"""Compares the Delta logs of a lake with its files, and makes them again. Imports pyarrow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elf.errors import ElfError
from elf.sinks.lake import delta, layout
from elf.sinks.lake.index import Index


class Verified(msgspec.Struct, frozen=True):
    """One table. folder: within the lake. version, files: of its log, -1 and 0 without one. problems: what is wrong, or was.
    is_mended: that it is not any more."""

    job: str
    folder: str
    version: int
    files: int
    problems: tuple[str, ...] = ()
    is_mended: bool = False


def verify(directory: Path, repair: bool = False) -> Iterator[Verified]:
    """The tables of a lake. repair: let each log show what the files hold; one that cannot be read is made anew, which ends the
    travel in time. Raises UsageError if there is no lake, ElfError if it cannot be read or written."""
    for table in layout.existing_tables(directory):
        try:
            yield _verified(directory, table, repair)
        except OSError as error:
            raise ElfError(f"{error.filename or table}: {error.strerror or error}") from error


def _verified(directory: Path, table: Path, repair: bool) -> Verified:
    index, folders = Index(table), layout.day_folders(table)
    try:
        problems = index.problems(folders)
        if problems and repair:
            index.update([*folders, *index.lost_folders()])
    except delta.LogError as error:
        problems = [f"the log is damaged: {error}"]
        if repair:
            shutil.rmtree(index.folder)
            index = Index(table)
            index.update(folders)
    left = index.problems(folders) if problems and repair else problems
    state, name = index.state, str(table.relative_to(directory))
    return Verified(
        layout.job_of(table),
        name,
        state.version,
        len(state.shown),
        tuple(problems),
        bool(problems) and not left,
    )
