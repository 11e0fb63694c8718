"""Rows of a window held as columns: readers iterate over tuples, or take the arrays and write them as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.values import _text

CHUNK_ROWS = 16_384
"""Rows turned into tuples at a time."""

Row = tuple[Any, ...]
_WIDE = Context(prec=40)
"""Holds all 38 digits of Spark's widest decimal; the default context rounds to 28."""


class Texts:
    """A dictionary's values, shared by all columns and windows with its codes: value i is text[ends[i - 1]:ends[i]].

    Bytes that are not UTF-8 are read as U+FFFD. forms: all values as encoded by writers, by a name that each writer chooses.
    """

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.uint32]) -> None:
        self.text, self.ends = text, ends
        self.forms: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint32]]] = {}
        self._table: NDArray[Any] | None = None

    def take(self, codes: NDArray[np.int32]) -> list[str | None]:
        """The values of `codes`, None for -1. Each value is decoded once, at the first call."""
        if self._table is None:
            self._table = np.empty(len(self.ends) + 1, dtype=object)  # the last entry, for code -1, is None
            self._table[:-1] = _text.decode_all(self.text, self.ends)
        values: list[str | None] = self._table[codes].tolist()
        return values


class CellColumn(msgspec.Struct, frozen=True):
    """n values of one result column. `type` as in `ColumnInfo`.

    values: int64 for bigint, int, timestamp (microseconds) and decimals of up to 18 digits (unscaled); float64; bool; int32 codes
    into `texts` for string (-1 is NULL); objects for wider decimals (unscaled ints) and arrays (lists); int64 (n, 2) for windows.
    valid: False where a value (of no string) is NULL; None where none is.
    """

    type: str
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    texts: Texts | None = None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> CellColumn:
        """Rows [start, stop), as views."""
        valid = None if self.valid is None else self.valid[start:stop]
        return CellColumn(self.type, self.values[start:stop], valid, self.texts)

    def to_python(self) -> list[Any]:
        """The values, typed as in `Window.rows`."""
        if self.texts is not None:
            return self.texts.take(self.values)
        if self.values.ndim == 2:
            return list(zip(self.values[:, 0].tolist(), self.values[:, 1].tolist(), strict=True))
        values = self.values.tolist()
        if self.type.startswith("decimal"):
            values = decimals(values, int(self.type[:-1].rpartition(",")[2]))
        return with_nulls(values, self.valid)


def decimals(unscaled: Sequence[int], scale: int) -> list[Decimal]:
    """Each integer of at most 38 digits as a Decimal with `scale` digits behind the point, exactly."""
    scaleb = _WIDE.scaleb
    return [scaleb(value, -scale) for value in unscaled]


def with_nulls(values: list[Any], valid: NDArray[np.bool_] | None) -> list[Any]:
    """`values`, None where not `valid`."""
    if valid is None:
        return values
    return [value if ok else None for value, ok in zip(values, valid.tolist(), strict=True)]


class ColumnRows(Sequence[Row]):
    """Rows [start, stop) of columns of equal length. Tuples are made on demand; slices share the columns."""

    def __init__(self, columns: Sequence[CellColumn], start: int, stop: int) -> None:
        self._columns, self._start, self._stop = columns, start, max(start, stop)

    @property
    def nbytes(self) -> int:
        """Memory of the whole columns and their texts, shared or not."""
        texts = {
            id(column.texts): column.texts.text.nbytes + column.texts.ends.nbytes
            for column in self._columns
            if column.texts is not None
        }
        valid = sum(column.valid.nbytes for column in self._columns if column.valid is not None)
        return sum(column.values.nbytes for column in self._columns) + valid + sum(texts.values())

    @property
    def cells(self) -> list[CellColumn]:
        """The columns of these rows, as views."""
        return [column.slice(self._start, self._stop) for column in self._columns]

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[ColumnRows]:
        """These rows, `rows` at a time."""
        for start in range(self._start, self._stop, rows):
            yield ColumnRows(self._columns, start, min(start + rows, self._stop))

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        """A row; or rows, as a view if the slice has no step. Raises IndexError."""
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return list(self)[at]
            return ColumnRows(self._columns, self._start + start, self._start + stop)
        index = range(self._start, self._stop)[at]
        return next(iter(ColumnRows(self._columns, index, index + 1)))

    def __iter__(self) -> Iterator[Row]:
        for part in self.chunks():
            yield from zip(*(column.to_python() for column in part.cells), strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"ColumnRows({len(self)} rows of {len(self._columns)} columns)"
