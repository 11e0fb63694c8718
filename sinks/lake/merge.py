"""Copies panes from the lake's files into a new one, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.sinks.lake import layout
from elf.sinks.lake.files import ROWS_PER_GROUP, read_about, write_file

BYTES_PER_GROUP = 32 << 20


def merge(folder: Path, kept: Mapping[layout.Pane, Path], is_empty: bool) -> list[Path]:
    """Write these panes, each from its file in `folder`, into as few files as possible, nearly always one."""
    written = []
    job, version = layout.job_of(folder.parent.parent), layout.version_of(folder)
    for name, part in layout.files_of(job, version, kept, is_empty):
        wanted: dict[Path, set[int]] = {}
        for pane in part:
            wanted.setdefault(kept[pane], set()).add(pane.start)
        last = max(wanted)
        write_file(folder / name, read_about(last), part, pq.read_schema(last), _merged(_rows(wanted)))
        written.append(folder / name)
    return written


def _rows(wanted: dict[Path, set[int]]) -> Iterator[Any]:
    """The rows of the wanted panes (by start), one row group at a time, so that memory stays bounded."""
    for path, starts in sorted(wanted.items()):
        values = pa.array(starts, pa.int64())
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                at = table.column("_pane_start").cast(pa.int64())
                mask = pc.or_(pc.is_null(at), pc.is_in(at, value_set=values))
                yield table if pc.all(mask).as_py() else table.filter(mask)


def _merged(tables: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of about `ROWS_PER_GROUP`, of fewer if they are large."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if (
            sum(map(len, waiting)) >= ROWS_PER_GROUP
            or sum(each.nbytes for each in waiting) >= BYTES_PER_GROUP
        ):
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
