"""The types of columns and expressions: Spark SQL's. Separate from the columns (`vector`), so that compiling or checking a plan
does not load numpy.
"""

from __future__ import annotations

from enum import Enum

import msgspec


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
WINDOW_TYPE = str(WINDOW)
MICROS = SqlType(Kind.DECIMAL, 18, 6)
"""DECIMAL(18,6): durations in seconds, held as int64 micro-units."""


def decimal(precision: int, scale: int) -> SqlType:
    return SqlType(Kind.DECIMAL, precision, scale)


def scale_of(decimal: str) -> int:
    """Of the text of a DECIMAL type."""
    return int(decimal[:-1].rpartition(",")[2])


def array(element: SqlType) -> SqlType:
    return SqlType(Kind.ARRAY, element=element)
