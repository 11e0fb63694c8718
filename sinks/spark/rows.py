"""Parts of a table in, Arrow batches out: only the columns asked for are read. Imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.errors import ElfError
from elf.sinks.lake.files import read_about
from elf.sinks.spark.tables import EPOCH, Part, day_of

START = "_pane_start"
FOLDERS = ("version", "date")


def batches(parts: Sequence[Part], schema: Any) -> Iterator[Any]:
    """The rows of the parts, with the columns of `schema`, in its order. Raises ElfError for a file that is gone or damaged."""
    for is_longer, some in groupby(sorted(parts, key=_becomes_longer), _becomes_longer):
        if is_longer:
            for _, day in groupby(sorted(some, key=day_of_version), day_of_version):
                yield from _longer(list(day), schema)
            continue
        for part in some:
            if part.gone:
                yield _gone(part, schema)
                continue
            with _named_errors(part):
                yield from read(part.path, part, schema)


def _becomes_longer(part: Part) -> bool:
    return part.every_us not in (None, part.pane_us)


def day_of_version(part: Part) -> tuple[str, str]:
    return part.version, part.day or ""


def _longer(parts: Sequence[Part], schema: Any) -> Iterator[Any]:
    """The panes of one day of a version, merged into longer ones."""
    from elf.sinks.lake.trees.longer import LongerPanes

    first = parts[0]
    assert first.every_us is not None
    with _named_errors(first):
        known = read_about(Path(first.path))
    with LongerPanes(known, "", first.every_us) as longer:
        for part in parts:
            with _named_errors(part), pq.ParquetFile(part.path) as file:
                for number in range(file.num_row_groups):
                    longer.add(_of_part(file.read_row_group(number), part))
        for table in longer.tables(longer.framed()):
            yield _batch(table, table.num_rows, first, schema)


@contextmanager
def _named_errors(part: Part) -> Iterator[None]:
    """Raise errors of the part's file as an ElfError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise ElfError(
            f"{part.path} is gone: the lake was compacted while it was read; read it again"
        ) from None
    except pa.ArrowException as error:
        raise ElfError(
            f"{part.path} cannot be read: {error}; `elf lake verify LAKE --repair` leaves it out"
        ) from error


def read(source: Any, part: Part, schema: Any) -> Iterator[Any]:
    """The rows of one file, which may be a name or an open file."""
    stored = [name for name in schema.names if name not in FOLDERS]
    wanted = stored if part.starts is None or START in stored else [*stored, START]
    with pq.ParquetFile(source) as file:
        for number in range(file.num_row_groups):
            table, rows = (
                file.read_row_group(number, columns=wanted),
                file.metadata.row_group(number).num_rows,
            )
            if part.starts is not None:
                table = _of_part(table, part)
                rows = table.num_rows
            if rows:
                yield _batch(table, rows, part, schema)


def _of_part(table: Any, part: Part) -> Any:
    """Those of the rows of a file that are of the part's panes."""
    if part.starts is None:
        return table
    return table.filter(pc.is_in(table.column(START).cast(pa.int64()), pa.array(part.starts, pa.int64())))


def _batch(table: Any, rows: int, part: Part, schema: Any) -> Any:
    """With the columns of `schema`. rows: of the table, which may have no column."""
    constants = {"version": part.version, "date": day_of(part)}
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows)
        if field.name in FOLDERS
        else table.column(field.name).combine_chunks().cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays([_flat(column) for column in columns], schema=schema)


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _gone(part: Part, schema: Any) -> Any:
    """One row for each pane that has no groups any more."""
    assert part.starts is not None
    rows = []
    for start in part.starts:
        begin = EPOCH + timedelta(microseconds=start)
        end = begin + timedelta(microseconds=part.pane_us)
        values: dict[str, Any] = {START: begin, "_pane_end": end} if part.pane_us else {}
        values |= {"_status": "revised", "_empty": True}
        rows.append(values | {"version": part.version, "date": day_of(part)})
    return pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema
    )
