"""Parts of a table in, Arrow batches out: only the columns asked for are read. Imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.errors import ElfError
from elf.sinks.spark.tables import EPOCH, Part, day_of

START = "_pane_start"
FOLDERS = ("version", "date")


def batches(parts: Sequence[Part], schema: Any) -> Iterator[Any]:
    """The rows of the parts, with the columns of `schema`, in its order. Raises ElfError for a file that is gone or damaged."""
    for part in parts:
        if part.gone:
            yield _gone(part, schema)
            continue
        try:
            yield from read(part.path, part, schema)
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
            table = file.read_row_group(number, columns=wanted)
            rows = file.metadata.row_group(number).num_rows
            if part.starts is not None:
                kept = pc.is_in(table.column(START).cast(pa.int64()), pa.array(part.starts, pa.int64()))
                table, rows = table.filter(kept), pc.sum(kept).as_py() or 0
            constants = {"version": part.version, "date": day_of(part)}
            columns = [
                pa.repeat(pa.scalar(constants[field.name], field.type), rows)
                if field.name in FOLDERS
                else table.column(field.name).combine_chunks().cast(field.type)
                for field in schema
            ]
            if rows:
                yield pa.RecordBatch.from_arrays([_flat(column) for column in columns], schema=schema)


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
