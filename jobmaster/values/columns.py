"""Rows of a window, held as columns: readers iterate over tuples, or write the arrays. Also converts tuples to columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal
from itertools import islice
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.values import _text
from elf.jobmaster.values.sql_types import WINDOW_TYPE, scale_of

CHUNK_ROWS = 4096
"""Rows converted to tuples, or from tuples, at a time: enough to amortise calls, and about 2.5 MB."""

Row = tuple[Any, ...]
_WIDE = Context(prec=40)
"""Holds all 38 digits of Spark's widest decimal; the default context rounds to 28."""


class Texts:
    """A dictionary's values, shared by all columns and windows with its codes: value i is text[ends[i - 1]:ends[i]].

    Bytes that are not UTF-8 are read as U+FFFD. forms: what writers cache: all values, encoded, under a
    name that each writer chooses.
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
    into `texts` for string (-1 is NULL); objects for wider decimals (unscaled ints) and arrays (lists); int64 (n, 2) for windows,
    which are NULL in reports only.
    valid: False where a value is NULL; None if no value is NULL, and for strings.
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
        values = self.values.tolist()
        if self.values.ndim == 2:
            values = list(map(tuple, values))
        if self.type.startswith("decimal"):
            values = decimals(values, scale_of(self.type))
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
        """Memory of the whole columns and their texts, even if other rows share them."""
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

    __hash__ = None  # type: ignore[assignment]  # a list may be equal, and lists have no hash

    def __repr__(self) -> str:
        return f"ColumnRows({len(self)} rows of {len(self._columns)} columns)"


def in_columns(rows: Iterable[Row], types: Sequence[str]) -> Iterator[list[CellColumn]]:
    """`rows` as columns of these types, `CHUNK_ROWS` at a time."""
    if isinstance(rows, ColumnRows):
        yield from (part.cells for part in rows.chunks())
        return
    for chunk in chunks(rows):
        yield [column_of(type, values) for type, values in zip(types, zip(*chunk, strict=True), strict=True)]


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """`rows` in lists of at most `CHUNK_ROWS`; one list at a time is in memory."""
    left = iter(rows)
    while chunk := list(islice(left, CHUNK_ROWS)):
        yield chunk


def column_of(type: str, values: Sequence[Any]) -> CellColumn:
    """A column of `values` as `Window.rows` has them."""
    present = [value is not None for value in values]
    if type == "string":
        return _column_of_texts(values, np.array(present))
    if not all(present):
        null: Any = (0, 0) if type == WINDOW_TYPE else Decimal() if type.startswith("decimal") else 0
        values = [null if value is None else value for value in values]
    if type.startswith("decimal"):
        values = [int(value.scaleb(scale_of(type), _WIDE)) for value in values]
    held = np.fromiter(values, object, len(values)) if _is_object(type) else np.array(values, _dtype(type))
    return CellColumn(type, held, None if all(present) else np.array(present))


def _is_object(type: str) -> bool:
    return type.startswith("array") or (type.startswith("decimal") and int(type[8:].partition(",")[0]) > 18)


def _dtype(type: str) -> Any:
    return {"double": np.float64, "float": np.float64, "boolean": np.bool_}.get(type, np.int64)


def _column_of_texts(values: Sequence[str | None], present: NDArray[np.bool_]) -> CellColumn:
    encoded = [(value or "").encode("utf-8", "replace") for value in values]
    texts = Texts(
        np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(list(map(len, encoded)), dtype=np.uint32)
    )
    codes = np.arange(len(values), dtype=np.int32)
    return CellColumn("string", np.where(present, codes, np.int32(-1)), None, texts)
