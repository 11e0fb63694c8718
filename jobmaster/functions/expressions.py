"""Evaluates an `Expression` over the columns of a block to a `Vector`.

Text is the most expensive, so it is evaluated least: a subtree that reads one string column (and literals) runs once per distinct
value of that column's dictionary, and each block then looks up its rows' results by code. A function of several columns, one of
them text, runs once per distinct combination in the block. Everything else runs in numpy.

Semantics are Spark's with ANSI off and session time zone UTC, except that an overflow is NULL and counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elf.jobmaster.functions.frame import Frame, Program, column, constant
from elf.jobmaster.functions.table import Results
from elf.jobmaster.plan.plan import Column, Expression, Literal
from elf.jobmaster.values.vector import Vector


class Cache(Results):
    """The state that one job keeps between blocks: compiled expressions, and their results."""

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[int, tuple[Expression, Program]] = {}
        self._shared: dict[Expression, Program] = {}

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
        # Imported late: many queries only group columns, and the functions take as long to import as the rest of elf.
        from elf.jobmaster.functions.compile import compile_block

        return compile_block(expression, self, self.compile)


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
