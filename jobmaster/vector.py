"""Typed columns: what the tokenizer fills, the functions compute on, and the windows are made of.

A type is one of Spark SQL's. Representation of a `Vector` of n rows:

| type           | values                                             | NULL                |
|----------------|----------------------------------------------------|---------------------|
| STRING         | int32 codes into `strings`                         | code -1, valid None |
| BOOLEAN        | bool                                               | valid[i] is False   |
| INT, BIGINT    | int64 (INT is checked against 32 bits by functions) | valid[i] is False   |
| DOUBLE         | float64                                            | valid[i] is False   |
| DECIMAL(p, s)  | int64 unscaled; object (Python ints) when p > 18   | valid[i] is False   |
| TIMESTAMP      | int64 microseconds since 1970-01-01 UTC            | valid[i] is False   |
| NULL           | bool, all False                                    | valid all False     |
| WINDOW         | int64 (n, 2): start, end                           | never               |
| ARRAY          | object (lists)                                     | valid[i] is False   |

`valid` is None where nothing is NULL. What stands in `values` under a NULL is 0 / False / 0.0: never garbage.
A vector of length 1 is also a constant that broadcasts against any length.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.jobmaster._text import decode
from elf.sinks.columns import decimals, with_nulls


class Kind(Enum):
    NULL = "void"
    BOOLEAN = "boolean"
    INT = "int"
    BIGINT = "bigint"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    TIMESTAMP = "timestamp"
    ARRAY = "array"  # only as a result: approx_percentile with several fractions
    WINDOW = "window"  # only as a result: struct<start: timestamp, end: timestamp>


class SqlType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Spark SQL type. `element` is the type within an ARRAY."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    element: SqlType | None = None

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        if self.kind is Kind.ARRAY:
            return f"array<{self.element}>"
        if self.kind is Kind.WINDOW:
            return "struct<start:timestamp,end:timestamp>"
        return str(self.kind.value)

    @property
    def is_numeric(self) -> bool:
        return self.kind in (Kind.INT, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL)

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.INT, Kind.BIGINT)


NULL = SqlType(Kind.NULL)
BOOLEAN = SqlType(Kind.BOOLEAN)
INT = SqlType(Kind.INT)
BIGINT = SqlType(Kind.BIGINT)
DOUBLE = SqlType(Kind.DOUBLE)
STRING = SqlType(Kind.STRING)
TIMESTAMP = SqlType(Kind.TIMESTAMP)
WINDOW = SqlType(Kind.WINDOW)
MICROS = SqlType(Kind.DECIMAL, 18, 6)
"""DECIMAL(18,6): durations in seconds, held as int64 micro-units."""


def decimal(precision: int, scale: int) -> SqlType:
    return SqlType(Kind.DECIMAL, precision, scale)


def array(element: SqlType) -> SqlType:
    return SqlType(Kind.ARRAY, element=element)


class Vector:
    """One typed column; see the module's table for the representation."""

    __slots__ = ("strings", "type", "valid", "values")

    def __init__(
        self,
        type: SqlType,
        values: NDArray[Any],
        valid: NDArray[np.bool_] | None = None,
        strings: Strings | None = None,
    ) -> None:
        self.type, self.values, self.valid, self.strings = type, values, valid, strings

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Vector({self.type}, {self.to_python()[:8]}{'…' if len(self) > 8 else ''})"

    def is_valid(self) -> NDArray[np.bool_]:
        """A bool mask of the rows that are not NULL (a fresh or shared array: do not write to it)."""
        if self.type.kind is Kind.STRING:
            return np.asarray(self.values >= 0)
        return np.ones(len(self.values), dtype=np.bool_) if self.valid is None else self.valid

    def take(self, rows: NDArray[np.intp]) -> Vector:
        """The rows at the given indices, in that order; a constant stays one."""
        if len(self.values) == 1:
            return self
        return Vector(
            self.type, self.values[rows], None if self.valid is None else self.valid[rows], self.strings
        )

    def to_python(self) -> list[Any]:
        """Row values as Python objects: None, bool, int, float, Decimal, str; timestamps as int microseconds."""
        if self.type.kind is Kind.STRING:
            return self._texts()
        values: list[Any] = self.values.tolist()
        if self.type.kind is Kind.DECIMAL:
            values = list(decimals(values, self.type.scale))
        return with_nulls(values, self.valid)

    def _texts(self) -> list[Any]:
        assert self.strings is not None
        size = len(self.strings)
        if size > len(self.values):  # most of the dictionary is not needed
            return list(decode(self.strings, np.ascontiguousarray(self.values, dtype=np.int32)))
        table = np.empty(size + 1, dtype=object)  # the last one, that of -1, is None
        table[:-1] = self.strings.values()
        texts: list[Any] = table[self.values].tolist()
        return texts
