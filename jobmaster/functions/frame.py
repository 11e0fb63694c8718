"""What all scalar functions share: the block of rows that they run over, and how NULLs and overflows enter their results.

An expression is compiled once to a `Program`, a closure from a `Frame` (a block of rows) to a `Vector`; text inside a string
function is a Python list (`Texts`), so that intermediate values are not interned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.errors import InternalError
from elf.jobmaster.plan.plan import Call, Expression
from elf.jobmaster.values._text import decode, intern
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

Array = NDArray[Any]
Mask = NDArray[np.bool_]
TextList = Sequence[str | None]

DTYPES: dict[Kind, Any] = {
    Kind.NULL: np.bool_,
    Kind.BOOLEAN: np.bool_,
    Kind.INT: np.int64,
    Kind.BIGINT: np.int64,
    Kind.DOUBLE: np.float64,
    Kind.STRING: np.int32,
    Kind.TIMESTAMP: np.int64,
}
LONG_DIGITS = 18
"""Every decimal of this many digits fits int64."""


class Frame:
    """One block of rows under evaluation.

    columns: by name, each of `rows` values or a constant of one. texts: their decoded values, filled on demand.
    live: rows whose overflows count (a CASE branch computes all rows, and its result is used in some); None is all.
    lost: overflows so far, a number per row.
    """

    __slots__ = ("columns", "live", "lost", "rows", "texts")

    def __init__(self, columns: Mapping[str, Vector], rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.texts: dict[str, TextList] = {}
        self.live: Mask | None = None
        self.lost: NDArray[np.int64] | None = None

    def overflow(self, lost: Mask | NDArray[np.int64]) -> None:
        """Count results that became NULL because they do not fit: a mask, or a number per row."""
        if self.live is not None:
            lost = lost * self.live
        if self.lost is None:
            self.lost = np.zeros(self.rows, dtype=np.int64)
        self.lost += lost

    def text(self, name: str) -> TextList:
        """The values of a string column, decoded once per frame."""
        texts = self.texts.get(name)
        if texts is None:
            column = self.columns[name]
            texts = [None] * len(column) if column.strings is None else decode(column.strings, column.values)
            self.texts[name] = texts
        return texts


Program = Callable[[Frame], Vector]
Texts = Callable[[Frame], TextList]
Compile = Callable[[Expression], Program]
Build = Callable[[Call, Compile], Program]


def dtype_of(type: SqlType) -> Any:
    if type.kind is Kind.DECIMAL:
        return np.int64 if type.precision <= LONG_DIGITS else np.object_
    return DTYPES[type.kind]


def from_list(type: SqlType, values: Sequence[Any]) -> Vector:
    """A vector (not STRING) of Python values in the vector's own representation; None is NULL."""
    if None not in values:
        return Vector(type, np.array(values, dtype=dtype_of(type)))
    valid = np.fromiter((value is not None for value in values), dtype=np.bool_, count=len(values))
    out = np.zeros(len(values), dtype=dtype_of(type))
    out[:] = [0 if value is None else value for value in values]
    return Vector(type, out, valid)


def constant(type: SqlType, value: Any) -> Vector:
    """A literal as a vector of one value; a STRING in a dictionary of its own."""
    if type.kind is Kind.STRING:
        strings = Strings()
        return Vector(type, intern(strings, [value]), None, strings)
    return from_list(type, [value])


def nulls(type: SqlType) -> Vector:
    return constant(type, None)


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """Valid where both operands are."""
    if a is None:
        return b
    return a if b is None else a & b


def settle(
    frame: Frame,
    type: SqlType,
    values: Array,
    valid: Mask | None,
    *,
    void: Mask | None = None,
    lost: Mask | None = None,
) -> Vector:
    """The result of a NULL-strict function: NULL where an operand is NULL, where `void` (no result) and where `lost` (overflow).

    Overflows are counted, and the value under a NULL becomes 0. Two to four passes, none when nothing can be NULL.
    """
    if lost is not None:
        lost = lost if valid is None else lost & valid
        frame.overflow(lost)
        void = lost if void is None else void | lost
    if void is not None:
        valid = ~void if valid is None else valid & ~void
    if valid is not None:
        if len(valid) != len(values):
            valid, values = np.broadcast_arrays(valid, values)
        values = np.where(valid, values, dtype_of(type)(0) if values.dtype != object else 0)
    return Vector(type, values, valid)


def bounds(values: Array) -> tuple[int, int]:
    """The least and the greatest of int64 or int values, as Python ints; (0, 0) of none."""
    if len(values) == 1:
        only = int(values[0])
        return only, only
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def column(name: str) -> Program:
    """A column of the frame by its name."""

    def run(frame: Frame) -> Vector:
        try:
            return frame.columns[name]
        except KeyError:
            raise InternalError(f"plan: the source has no column {name!r}") from None

    return run
