"""What became of the lines of pieces, as Arrow rows: see `elf.agent.spark.logs.count_lines`. Imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from elf.agent.spark.batches import Task
from elf.agent.spark.pieces import Piece
from elf.agent.work.feed import Totals
from elf.jobmaster.plan.plan import Column

SAMPLES_MAX = 3
_SAMPLE = pa.struct([("reason", pa.string()), ("expected", pa.string()), ("line", pa.string())])
_COUNTS = pa.map_(pa.string(), pa.int64())
_SCHEMA = pa.schema(
    [("path", pa.string()), ("format", pa.string()), ("lines", pa.int64()), ("parsed", pa.int64()),
     ("rejected", pa.int64()), ("reasons", _COUNTS), ("not_converted", _COUNTS), ("samples", pa.list_(_SAMPLE))]
)  # fmt: skip


def counted(columns: tuple[Column, ...], timezone: str, pieces: Sequence[Piece]) -> Iterator[Any]:
    """A row for each piece; of files that are read together, one for all, under the first one's name."""
    task = Task(columns, timezone)
    for piece in pieces:
        for _ in task.rows([piece]):
            pass
        yield pa.RecordBatch.from_pylist([_row(piece, task.totals)], _SCHEMA)


def _row(piece: Piece, totals: Totals) -> dict[str, Any]:
    samples = [
        {"reason": s.reason.value, "expected": s.expected, "line": s.line.decode("utf-8", "backslashreplace")}
        for s in totals.samples[:SAMPLES_MAX]
    ]
    return {
        "path": piece.paths[0],
        "format": piece.formats[0].name,
        "lines": totals.lines,
        "parsed": totals.parsed,
        "rejected": totals.rejected,
        "reasons": [(reason.value, count) for reason, count in totals.rejects.items()],
        "not_converted": list(totals.lost.items()),
        "samples": samples,
    }
