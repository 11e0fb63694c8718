"""Copies panes from the lake's files into a new one, with bounded memory. Texts stay the codes of dictionaries on their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elf.sinks.lake import layout
from elf.sinks.lake.cells.tables import CODED, ROWS_PER_GROUP
from elf.sinks.lake.files import decoding, read_about, write_file

BYTES_PER_GROUP = 32 << 20


def merge(folder: Path, kept: Mapping[layout.Pane, Path], is_empty: bool) -> list[Path]:
    """Write these panes, each from its file in `folder`, into as few files as possible, nearly always one. Raises
    DamagedError."""
    written = []
    job, version = layout.job_of(folder.parent.parent), layout.version_of(folder)
    for name, part in layout.files_of(job, version, kept, is_empty):
        wanted: dict[Path, set[int]] = {}
        for pane in part:
            wanted.setdefault(kept[pane], set()).add(pane.start)
        last = max(wanted)
        schema = pq.read_schema(last)
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        tables = _merged(_rows(wanted, texts))
        write_file(folder / name, read_about(last), part, _coded(schema), tables)
        written.append(folder / name)
    return written


def _coded(schema: Any) -> Any:
    """The schema of tables whose texts are codes; that of their files is the same."""
    return pa.schema(
        [field.with_type(CODED) if pa.types.is_string(field.type) else field for field in schema]
    )


def _rows(wanted: dict[Path, set[int]], texts: list[str]) -> Iterator[Any]:
    """The rows of the wanted panes (by start), one row group at a time, so that memory stays bounded. texts: these columns are
    codes."""
    for path, starts in sorted(wanted.items()):
        named = layout.parse(path)
        is_whole = named is not None and named.panes.keys() == starts
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for group in range(file.num_row_groups):
                with decoding(path):
                    table = file.read_row_group(group, use_threads=False)
                yield table if is_whole else _of_panes(table, starts)


def _of_panes(table: Any, starts: set[int]) -> Any:
    import pyarrow.compute as pc  # late: the writer hardly ever needs it

    at = table.column("_pane_start").cast(pa.int64())
    mask = pc.or_(pc.is_null(at), pc.is_in(at, value_set=pa.array(starts, pa.int64())))
    return table if pc.all(mask).as_py() else table.filter(mask)


def _merged(tables: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of about `ROWS_PER_GROUP`, of fewer if they are large."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if (
            sum(map(len, waiting)) >= ROWS_PER_GROUP
            or sum(each.nbytes for each in waiting) >= BYTES_PER_GROUP
        ):
            yield _one(waiting)
            waiting = []
    if waiting:
        yield _one(waiting)


def _one(tables: list[Any]) -> Any:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
