"""Blocks of lines in, Arrow batches out: what a task of Spark does with its pieces. Imports pyarrow.

blocks -> Feed (parser, lines of the future) -> `Batches` -> pyarrow.RecordBatch
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Batch
from elf.agent.formats.fields import Format
from elf.agent.spark.pieces import Piece, blocks
from elf.agent.work.feed import Feed, Totals, columns_for
from elf.jobmaster.plan.plan import Column, RowPlan
from elf.jobmaster.values.vector import Vector
from elf.sinks.results.arrow import arrow_type


class Batches:
    """The reader of a feed (`elf.agent.work.feed.Reader`) whose rows become Arrow batches; `ready` are those not taken yet."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.plan = RowPlan("", "access", columns, None, ())
        self.types = [arrow_type(str(column.type)) for column in columns]
        self.ready: list[Any] = []

    def add(
        self,
        batch: Batch,
        *,
        pane_before: int | None = None,
    ) -> None:
        """Take the rows of a batch. There are no panes here."""
        del pane_before
        if batch.rows:
            vectors = [batch.columns[column.name].full(batch.rows) for column in self.plan.columns]
            arrays = [_array(each, type) for each, type in zip(vectors, self.types, strict=True)]
            self.ready.append(_batch(arrays, [column.name for column in self.plan.columns], batch.rows))

    def take(self) -> list[Any]:
        taken, self.ready = self.ready, []
        return taken

    def count_rejects_at(self, time_us: int, rejects: int) -> None:
        """Does nothing: `Totals` has the counts."""

    def forget(self) -> None:
        """Nothing of the dictionaries is held."""


class Task:
    """Reads pieces, one after the other. columns: those of the rows. totals: of the lines of the present piece."""

    def __init__(self, columns: tuple[Column, ...], timezone: str) -> None:
        self.columns, self.timezone = columns, timezone
        self.totals = Totals()

    def rows(self, pieces: Sequence[Piece]) -> Iterator[Any]:
        """The batches of all pieces. Raises SourceError."""
        reader = Batches(self.columns)
        for piece in pieces:
            formats = dict(zip(piece.paths, piece.formats, strict=True))

            def format_of(block: Block, formats: dict[str, Format] = formats) -> Format:
                return formats[block.path]

            feed = Feed(
                format_of,
                [reader],
                columns=columns_for([reader]),
                settle=lambda: None,
                timezone=self.timezone,
            )
            self.totals = feed.totals
            for block in blocks(piece):
                feed.take(block, now_us=time.time_ns() // 1_000)
                yield from reader.take()


def _batch(arrays: list[Any], names: list[str], rows: int) -> Any:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, names)
    empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(empty)


def _array(vector: Vector, type: Any) -> Any:
    """Without a Python object for each value, and without pandas, whose import takes as long as parsing a million lines."""
    values, rows = vector.values, len(vector)
    if vector.strings is not None:
        text, ends = vector.strings.buffers()
        starts = np.zeros(len(ends) + 1, dtype=np.int32)
        starts[1:] = ends
        texts = pa.StringArray.from_buffers(len(ends), pa.py_buffer(starts), pa.py_buffer(text))
        codes = np.ascontiguousarray(values, dtype=np.int32)
        places = [_bits(codes >= 0), pa.py_buffer(codes)]
        return texts.take(pa.Array.from_buffers(pa.int32(), rows, places))
    valid = None if vector.valid is None else _bits(vector.valid)
    if pa.types.is_boolean(type):
        return pa.Array.from_buffers(type, rows, [valid, _bits(values)])
    if pa.types.is_decimal(type):
        values = np.stack([values, values >> 63], axis=1)  # 128 bits, low half first
    elif pa.types.is_int32(type):
        values = values.astype(np.int32)
    return pa.Array.from_buffers(type, rows, [valid, pa.py_buffer(np.ascontiguousarray(values))])


def _bits(mask: Any) -> Any:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
