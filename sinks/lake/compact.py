"""Compaction of one day folder, within the writer process: many small files into one, with only the highest revisions."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from elf.sinks.lake import delta, layout
from elf.sinks.lake.files import read_panes, sync_folder
from elf.sinks.lake.index import Index
from elf.sinks.lake.merge import merge

SMALL_BYTES = 128 << 20
"""A file of this size or more is left as it is: merging it gains nothing."""


def compact_table(table: Path, older_than: int) -> int:
    """Compact the folders of a table, and let its log show all that the files hold. Returns the number of files removed."""
    index = Index(table)
    folders = layout.day_folders(table)
    with suppress(delta.LogError):
        index.update(folders)
    return sum(compact_folder(folder, older_than, index) for folder in folders)


def compact_folder(folder: Path, older_than: int, index: Index) -> int:
    """Compact one folder. Returns the number of files removed. Does nothing while another process compacts the folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    else:
        layout.remove_abandoned(folder)
        return sum(_compact(folder, part, index) for part in layout.ripe(layout.files(folder), older_than))
    finally:
        os.close(fd)


def _compact(folder: Path, files: list[layout.LakeFile], index: Index) -> int:
    small = [file for file in files if file.path.stat().st_size < SMALL_BYTES]
    if len(small) < 2:
        return 0
    best = _highest([file.path for file in layout.files(folder)])
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
    return len(removed)


def _highest(paths: Iterable[Path]) -> dict[int, tuple[layout.Pane, Path]]:
    """Pane start -> the highest entry of that pane, and the file that contains it."""
    best: dict[int, tuple[layout.Pane, Path]] = {}
    for path in paths:
        for pane in read_panes(path):
            best[pane.start] = max((pane, path), best.get(pane.start, (pane, path)))
    return best
