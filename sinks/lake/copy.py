"""Copies a lake, or one of its jobs, to another folder: the files that hold the newest revisions, whole, compared, and in a log.

Agents may write to the lake meanwhile, and compaction may merge its files: a day is listed again when a file is gone. A copy that
was interrupted goes on where it was, and a later one brings what is new; what it replaces goes, as in compaction, and so do days
that have expired. The copy's log is its own, so travel in time begins with it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedRandom, BufferedReader
from pathlib import Path

import msgspec

from elf.errors import ElfError, UsageError
from elf.sinks.lake import delta, layout
from elf.sinks.lake.expire import expire_table
from elf.sinks.lake.files import DamagedError, make_folder, read_panes, sync_folder
from elf.sinks.lake.index import Index

BLOCK_BYTES = 1 << 20
TRIES_MAX = 100


class Copied(msgspec.Struct, frozen=True):
    """One table: files and bytes that were copied, files that were there already, and files of the copy that were replaced.
    panes: those that the copy holds. damaged: files that cannot be read, and are not copied."""

    job: str
    folder: str
    files: int = 0
    bytes: int = 0
    there: int = 0
    replaced: int = 0
    panes: int = 0
    damaged: int = 0


def copy_lake(directory: Path, to: Path, job: str | None) -> Iterator[Copied]:
    """Copy the tables of a lake, or of a job. Raises UsageError if there is no lake or job, or `to` is in it; ElfError if a file
    cannot be read or written: the next copy goes on."""
    tables = layout.existing_tables(directory, job)
    if to.resolve().is_relative_to(directory.resolve()) or directory.resolve().is_relative_to(to.resolve()):
        raise UsageError(f"cannot copy {directory} to {to}: one is in the other")
    for table in tables:
        try:
            yield _copy_table(table, to / table.relative_to(directory), str(table.relative_to(directory)))
        except OSError as error:
            raise ElfError(f"{error.filename or table}: {error.strerror or error}; run it again") from error


def _copy_table(table: Path, to: Path, name: str) -> Copied:
    make_folder(to)
    layout.set_mark(to.parent, layout.mark(table.parent))
    expire_table(to)
    found = Copied(layout.job_of(table), name)
    index = Index(to)
    try:
        for folder in layout.day_folders(table):
            found = _plus(found, _copy_day(folder, to / folder.relative_to(table), index))
        index.update(layout.day_folders(to))
    except delta.LogError as error:
        raise ElfError(
            f"{to}: its log: {error}; `elf lake verify {to.parents[1]} --repair` makes it again"
        ) from error
    return found


def _plus(a: Copied, b: Copied) -> Copied:
    names = ("files", "bytes", "there", "replaced", "panes", "damaged")
    return msgspec.structs.replace(a, **{name: getattr(a, name) + getattr(b, name) for name in names})


def _copy_day(folder: Path, to: Path, index: Index) -> Copied:
    for _ in range(TRIES_MAX):
        try:
            wanted, damaged = _wanted(folder)
            copied = {file.path.name: _copy_file(file.path, to / file.path.name) for file in wanted}
        except FileNotFoundError:  # compaction has merged it
            if not folder.exists():
                return Copied("", "")
            continue
        size = sum(copied.values())
        new = sum(each > 0 for each in copied.values())
        replaced = _replace(to, set(copied), index)
        panes = len(layout.folder_ledger(to))
        return Copied("", "", new, size, len(copied) - new, replaced, panes, damaged)
    raise ElfError(f"{folder}: its files change without end")


def _wanted(folder: Path) -> tuple[list[layout.LakeFile], int]:
    """The files with a newest revision, and the number of those that cannot be read."""
    files, highest = layout.files(folder), layout.folder_ledger(folder)
    newest = [f for f in files if any(highest.get(start) == found for start, found in f.panes.items())]
    newest.sort(key=lambda file: not file.is_empty)  # longer panes count once their groups are there
    whole = [file for file in newest if _is_whole(file.path)]
    return whole, len(newest) - len(whole)


def _is_whole(path: Path) -> bool:
    """Whether a file's footer holds the panes that its name says."""
    try:
        panes = read_panes(path)
    except FileNotFoundError:
        raise
    except (OSError, DamagedError):
        return False
    table, version = path.parents[2], layout.version_of(path.parent)
    return layout.file_digest(layout.job_of(table), version, panes) in path.name


def _copy_file(path: Path, to: Path) -> int:
    """Returns the bytes copied; 0 if the copy was there. Raises OSError, also if what was written differs from what was read."""
    if to.exists() and to.stat().st_size == path.stat().st_size and _is_whole(to):
        return 0
    make_folder(to.parent)
    layout.remove_abandoned(to.parent)
    unfinished = to.with_name(f".{to.stem[-16:]}.{os.urandom(4).hex()}.tmp")
    try:
        with path.open("rb") as source, unfinished.open("w+b") as target:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.copyfileobj(source, target, BLOCK_BYTES)
            target.flush()
            os.fsync(target.fileno())
            size = target.tell()
            if _digest(source) != _digest(target):
                raise OSError(errno.EIO, "the copy differs from what was read", str(to))
            os.rename(unfinished, to)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(to.parent)
    return size


def _digest(file: BufferedReader | BufferedRandom) -> bytes:
    file.seek(0)
    return hashlib.file_digest(file, "blake2b").digest()


def _replace(to: Path, kept: set[str], index: Index) -> int:
    """Remove the files of a copied day whose panes are all in the files that were copied now, or in longer panes. Returns their
    number."""
    files = layout.all_files(to)
    counted = {file.path for file in layout.counting(files)}
    held = {start: rev for file in files if file.path.name in kept for start, rev in file.panes.items()}
    old = [
        file.path
        for file in files
        if file.path.name not in kept
        and (
            file.path not in counted
            or all(start in held and held[start] >= rev for start, rev in file.panes.items())
        )
    ]
    if old:
        index.update([to], old)
        for path in old:
            with suppress(FileNotFoundError):
                path.unlink()
        sync_folder(to)
    return len(old)
