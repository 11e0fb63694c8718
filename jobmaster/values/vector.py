"""Typed columns: the tokenizer fills them, functions compute on them, and windows consist of them.

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

`valid` is None if no value is NULL. In `values` a NULL is 0 / False / 0.0: never garbage. A vector of length 1 is also a constant
that broadcasts against any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.jobmaster.values._text import decode
from elf.jobmaster.values.columns import decimals, with_nulls
from elf.jobmaster.values.sql_types import Kind, SqlType


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
        """The rows at the given indices, in that order; a constant stays a constant."""
        if len(self.values) == 1:
            return self
        return Vector(
            self.type, self.values[rows], None if self.valid is None else self.valid[rows], self.strings
        )

    def full(self, rows: int) -> Vector:
        """These values, or a constant repeated, in as many rows. O(rows)."""
        if len(self) == rows:
            return self
        valid = None if self.valid is None else self.valid.repeat(rows)
        return Vector(self.type, self.values.repeat(rows, axis=0), valid, self.strings)

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
        if size > len(self.values):  # decode only the values needed
            return list(decode(self.strings, np.ascontiguousarray(self.values, dtype=np.int32)))
        table = np.empty(size + 1, dtype=object)  # the last entry, for code -1, is None
        table[:-1] = self.strings.values()
        texts: list[Any] = table[self.values].tolist()
        return texts
