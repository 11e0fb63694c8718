"""Compaction of one hour folder, within the writer process: many small files into one, with only the highest revisions."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elf.sinks.lake import layout
from elf.sinks.lake.files import ROWS_PER_GROUP, read_about, read_panes, sync_folder, write_file

SMALL_BYTES = 128 << 20
"""A file of this size or more is left as it is: merging it gains nothing."""


def compact_folder(job: str, version: str, folder: Path) -> int:
    """Compact one folder. Returns the number of files removed. Does nothing while another process compacts the folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    else:
        layout.remove_abandoned(folder)
        return _compact(job, version, folder)
    finally:
        os.close(fd)


def _compact(job: str, version: str, folder: Path) -> int:
    paths = [file.path for file in layout.files(folder)]
    small = [path for path in paths if path.stat().st_size < SMALL_BYTES]
    if len(small) < 2:
        return 0
    arrow = pq.read_schema(small[-1])
    small = [path for path in small if pq.read_schema(path).equals(arrow)]
    best = _highest(paths)
    kept = {pane: path for pane, path in best.values() if path in small}
    written = set()
    for name, part in layout.files_of(job, version, kept):
        wanted: dict[Path, set[int]] = {}
        for pane in part:
            wanted.setdefault(kept[pane], set()).add(pane.start)
        write_file(folder / name, read_about(small[-1]), part, arrow, _merged(_rows(wanted)))
        written.add(folder / name)
    removed = [path for path in small if path not in written]
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


def _rows(wanted: dict[Path, set[int]]) -> Iterator[Any]:
    """The rows of the wanted panes (by start), one row group at a time, so that memory stays bounded."""
    for path, starts in sorted(wanted.items()):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                mask = [start is None or start in starts for start in _starts(table)]
                yield table.filter(pa.array(mask, pa.bool_()))


def _starts(table: Any) -> list[int | None]:
    found: list[int | None] = table.column("_pane_start").cast(pa.int64()).to_pylist()
    return found


def _merged(tables: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of about `ROWS_PER_GROUP`."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_PER_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
