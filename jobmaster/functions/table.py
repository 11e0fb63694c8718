"""Results kept per distinct value of a dictionary, and the distinct combinations of several columns in one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.jobmaster.functions.frame import Array, Frame, Mask, dtype_of
from elf.jobmaster.values.sql_types import STRING, Kind, SqlType
from elf.jobmaster.values.vector import Vector

Counts = NDArray[np.int64]
Evaluate = Callable[[Vector], tuple[Vector, Counts | None]]
"""From a text column to a result for each row, and the number of overflows of each (None: none)."""

NO_VALUES = Strings()
NULL_CODE = np.full(1, -1, dtype=np.int32)
ROOM_MIN = 64
"""Results for which a table has room at first."""


class Table:
    """Results by code of one dictionary, which grow with it. The last slot is for NULL, whose code is -1.

    The results are dropped when the dictionary has been cleared (its generation changed) or another one is given. `derived`
    holds the values of text results; it grows until its owner clears it.
    """

    __slots__ = ("_evaluate", "_generation", "_source", "count", "derived", "lost", "type", "valid", "values")

    def __init__(self, type: SqlType, evaluate: Evaluate, derived: Strings | None) -> None:
        self.type, self._evaluate, self.derived = type, evaluate, derived
        self.clear()

    def clear(self) -> None:
        """Forget all results."""
        self._source: Strings | None = None
        self._generation = -1
        self.count = 0
        self.values: Array = np.zeros(0, dtype=dtype_of(self.type))
        self.valid: Mask | None = None
        self.lost: Counts | None = None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + sum(part.nbytes for part in (self.valid, self.lost) if part is not None)

    def follow(self, strings: Strings) -> None:
        """Compute the results of values that are new in the dictionary. O(new values)."""
        if strings is not self._source or strings.generation != self._generation:
            self.clear()
            self.values = np.zeros(ROOM_MIN, dtype=self.values.dtype)
            self._put(strings, NULL_CODE, slice(-1, None))
            self._source, self._generation = strings, strings.generation
        stop = len(strings)
        if stop > self.count:
            if stop >= len(self.values):
                self._make_room(stop + 1)
            self._put(strings, np.arange(self.count, stop, dtype=np.int32), slice(self.count, stop))
            self.count = stop

    def _put(self, strings: Strings, codes: NDArray[np.int32], place: slice) -> None:
        fresh, lost = self._evaluate(Vector(STRING, codes, None, strings))
        self.values[place] = fresh.values
        if fresh.valid is not None and self.valid is None:
            self.valid = np.ones(len(self.values), dtype=np.bool_)
        if self.valid is not None:
            self.valid[place] = True if fresh.valid is None else fresh.valid
        if lost is not None and self.lost is None:
            self.lost = np.zeros(len(self.values), dtype=np.int64)
        if self.lost is not None:
            self.lost[place] = 0 if lost is None else lost

    def _make_room(self, need: int) -> None:
        size = max(need, 2 * len(self.values))
        self.values = _moved(self.values, self.count, size)
        self.valid = None if self.valid is None else _moved(self.valid, self.count, size)
        self.lost = None if self.lost is None else _moved(self.lost, self.count, size)

    def take(self, frame: Frame, column: Vector) -> Vector:
        """The results of a block's rows."""
        self.follow(NO_VALUES if column.strings is None else column.strings)
        codes = column.values
        if self.lost is not None:
            frame.overflow(self.lost.take(codes))
        valid = None if self.valid is None else self.valid.take(codes)
        if valid is not None and valid.all():
            valid = None
        return Vector(self.type, self.values.take(codes), valid, self.derived)


def _moved(old: Array, count: int, size: int) -> Array:
    """The results in a larger array, the last slot at its end."""
    out = np.zeros(size, dtype=old.dtype)
    out[:count] = old[:count]
    out[-1] = old[-1]
    return out


def distinct(vectors: Sequence[Vector]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of one block: the index of the first row of each distinct combination, and for each row its combination.

    O(n log n) in the rows of the block.
    """
    length = max((len(vector) for vector in vectors if len(vector) != 1), default=min(map(len, vectors)))
    combined, size = np.zeros(length, dtype=np.int64), 1
    for vector in vectors:
        codes, count = _dense(vector)
        if size * count >= 2**63:
            _, combined = np.unique(combined, return_inverse=True)
            size = len(combined) + 1
        combined, size = combined * count + codes, size * count
    _, first, back = np.unique(combined, return_index=True, return_inverse=True)
    return first, back


def _dense(vector: Vector) -> tuple[Counts, int]:
    """Equal values as equal small codes, and a bound above them."""
    if vector.type.kind is Kind.STRING:
        return vector.values.astype(np.int64) + 1, (0 if vector.strings is None else len(vector.strings)) + 1
    if vector.type.kind is Kind.DOUBLE:  # by bits, so that -0.0 and 0.0 remain distinct
        found, codes = np.unique(vector.values.view(np.int64), return_inverse=True)
    else:
        found, codes = np.unique(vector.values, return_inverse=True)
    codes = codes + 1
    if vector.valid is not None:
        codes = np.where(vector.valid, codes, 0)
    return codes, len(found) + 1


class Results:
    """Results by dictionary code, and derived dictionaries, as one job keeps them between blocks.

    overflows: results made NULL by overflow so far. nbytes: memory held by results and derived dictionaries. Codes of a derived
    dictionary are valid until `clear`, which `generation` counts. The caller clears when it clears the source dictionaries, or
    when `nbytes` exceeds its bound, and uses no code of a derived dictionary afterwards.
    """

    def __init__(self) -> None:
        self.overflows = 0
        self.generation = 0
        self._tables: list[Table] = []
        self._derived: list[Strings] = []

    def derive(self) -> Strings:
        """A new dictionary for results, owned here."""
        self._derived.append(Strings())
        return self._derived[-1]

    def table(self, type: SqlType, evaluate: Evaluate, derived: Strings | None) -> Table:
        self._tables.append(Table(type, evaluate, derived))
        return self._tables[-1]

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self._tables) + sum(strings.nbytes for strings in self._derived)

    def clear(self) -> None:
        """Forget all results and derived values; codes of derived dictionaries are void."""
        for table in self._tables:
            table.clear()
        for strings in self._derived:
            strings.clear()
        self.generation += 1
