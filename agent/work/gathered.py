"""Small batches of one job that follow one another, to be reduced as one.

Reducing a batch of ten lines costs a job nearly as much as one of a thousand. Where lines are few, they are parsed once a
second, or five times while some job is watched; but a job needs its rows only when it is cut. So they wait here, as what was
parsed: 100 jobs hold the same arrays. As one they are the batch that a longer block would have been, so rows do not depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.batch import Batch
from elf.jobmaster.values.vector import Vector

FEW = 256
"""Lines of a batch that waits; one with more is reduced at once."""
BATCHES_MAX, ROWS_MAX = 64, 4_096


class Gathered:
    """Batches with the columns `names`. first_before: the event time of the line before the first one."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._empty()

    def _empty(self) -> None:
        self._batches: list[Batch] = []
        self.first_before: int | None = None
        self._last: int | None = None  # event time of the last line
        self.rows = self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: Batch, before: int | None) -> bool:
        """Add a batch. before: the event time of the line before it. False: it does not fit; it does after `take`, unless it is
        no small one. O(columns)."""
        if before is None or not 0 < batch.rows <= FEW:
            return False
        if self._batches and not self._continues(batch, before):
            return False
        if not self._batches:
            self.first_before = before
        self._batches.append(batch)
        self._last = int(batch.columns["time"].values[-1])
        self.rows += batch.rows
        self.nbytes += batch.rows * 8 * len(self._names)
        return True

    def _continues(self, batch: Batch, before: int) -> bool:
        """Whether both may be one: a rejected line takes the time of the line before it, and codes mean nothing without their
        dictionary."""
        if len(self._batches) >= BATCHES_MAX or self.rows + batch.rows > ROWS_MAX or before != self._last:
            return False
        mine, theirs = self._batches[-1].columns, batch.columns
        return mine.keys() == theirs.keys() and all(
            mine[name].strings is theirs[name].strings and mine[name].type == theirs[name].type
            for name in self._names & mine.keys()
        )

    def take(self) -> Batch:
        """All of them as one, which has what rows are made of: columns, rejected and lost values. O(rows)."""
        batches = self._batches
        self._empty()
        return batches[0] if len(batches) == 1 else _joined(batches, self._names)


def _joined(batches: Sequence[Batch], names: Collection[str]) -> Batch:
    starts = np.cumsum([0, *(batch.rows for batch in batches)])
    rejects = [batch.reject_rows + start for batch, start in zip(batches, starts, strict=False)]
    lost = {name for batch in batches for name in batch.lost}
    return Batch(
        rows=int(starts[-1]),
        columns={
            name: _column([batch.columns[name] for batch in batches], [batch.rows for batch in batches])
            for name in batches[0].columns
            if name in names
        },
        lines=sum(batch.lines for batch in batches),
        rejects={},
        reject_rows=np.concatenate(rejects).astype(np.int32),
        lost={name: _lost([batch.lost for batch in batches], starts.tolist(), name) for name in lost},
    )


def _column(parts: Sequence[Vector], rows: Sequence[int]) -> Vector:
    first = parts[0]
    if all(part is first for part in parts):  # a constant
        return first
    parts = [part.full(count) for part, count in zip(parts, rows, strict=True)]
    valid = None
    if any(part.valid is not None for part in parts):
        valid = np.concatenate([part.is_valid() for part in parts])
    return Vector(first.type, np.concatenate([part.values for part in parts]), valid, first.strings)


def _lost(
    each: Sequence[Mapping[str, NDArray[np.int64]]], starts: Sequence[int], name: str
) -> NDArray[np.int64]:
    return np.concatenate(
        [lost[name] + start for lost, start in zip(each, starts, strict=False) if name in lost]
    )
