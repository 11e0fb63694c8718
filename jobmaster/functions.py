"""Scalar functions: an `Expression` over the columns of a block, to a `Vector`.

What costs the most, text, is done the least: a subtree that reads one string column (and literals) runs once per distinct
value of that column's dictionary, whatever it computes, and a block then only takes its rows' results by code. A
function of several columns, one of them text, runs once per distinct combination in the block. All else is numpy.

Semantics are Spark's with ANSI off and session time zone UTC, except that an overflow is NULL and counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elf.cbt._strings import Strings
from elf.errors import InternalError
from elf.jobmaster.functions_frame import Frame, Program, constant
from elf.jobmaster.functions_table import Evaluate, Table
from elf.jobmaster.plan import Column, Expression, Literal
from elf.jobmaster.vector import SqlType, Vector

FUNCTIONS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("+", "-", "*", "/", "%", "div"), (2, 2)),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), (2, 2)),
    **dict.fromkeys(("negate", "abs", "not", "is_null", "floor", "ceil", "cast", "try_cast"), (1, 1)),
    **dict.fromkeys(("lower", "upper", "length", "unix_timestamp"), (1, 1)),
    **dict.fromkeys(("hour", "minute", "second", "dayofweek", "day", "month", "year"), (1, 1)),
    **dict.fromkeys(("and", "or", "in"), (2, None)),
    **dict.fromkeys(("coalesce", "concat"), (1, None)),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), (1, 2)),
    **dict.fromkeys(("like", "ilike"), (2, 3)),
    **dict.fromkeys(("substring", "replace", "parse_url"), (2, 3)),
    **dict.fromkeys(("split_part", "regexp_extract", "regexp_replace"), (3, 3)),
    "rlike": (2, 2),
    "round": (1, 2),
    "date_trunc": (2, 2),
    "case": (3, None),
}
"""Every function there is, by its canonical name: the least and the most arguments (None: no bound)."""


class Cache:
    """What one job keeps between blocks: compiled expressions, results by dictionary code, and derived dictionaries.

    overflows: results made NULL by overflow so far. nbytes: memory held by results and derived dictionaries. Codes of a derived
    dictionary stay what they are until `clear`; the caller clears when it clears the source dictionaries, or when
    `nbytes` passes its bound, after everything that holds codes has been settled (`generation` counts the times).
    """

    def __init__(self) -> None:
        self.overflows = 0
        self.generation = 0
        self._programs: dict[int, tuple[Expression, Program]] = {}
        self._shared: dict[Expression, Program] = {}
        self._tables: list[Table] = []
        self._derived: list[Strings] = []

    def program(self, expression: Expression) -> Program:
        """The compiled expression; equal subtrees over text share their results."""
        known = self._programs.get(id(expression))
        if known is None or known[0] is not expression:
            known = self._programs[id(expression)] = (expression, self.compile(expression))
        return known[1]

    def compile(self, expression: Expression) -> Program:
        program = self._shared.get(expression)
        if program is None:
            program = self._shared[expression] = self._compiled(expression)
        return program

    def _compiled(self, expression: Expression) -> Program:
        if isinstance(expression, Literal):
            value = constant(expression.type, expression.value)
            return lambda frame: value
        if isinstance(expression, Column):
            return column(expression.name)
        # Late: many queries only group columns, and the functions take as long to import as all else of elf.
        from elf.jobmaster.functions_compile import compile_block

        return compile_block(expression, self)

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


def evaluate(expression: Expression, columns: Mapping[str, Vector], rows: int, cache: Cache) -> Vector:
    """The value of `expression` for each of `rows` rows: a vector of `rows` values, or a constant of one.

    Raises InternalError for a column or a function that does not exist (validated plans have none).
    """
    program = cache.program(expression)
    frame = Frame(columns, rows)
    with np.errstate(all="ignore"):
        out = program(frame)
    if frame.lost is not None:
        cache.overflows += int(frame.lost.sum())
    return out


def column(name: str) -> Program:
    """A column of the frame by its name."""

    def run(frame: Frame) -> Vector:
        try:
            return frame.columns[name]
        except KeyError:
            raise InternalError(f"plan: the source gives no column {name!r}") from None

    return run
