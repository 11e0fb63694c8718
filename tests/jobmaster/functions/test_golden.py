"""Every scalar function over the table of edge values, against Spark's recorded answers. No Java needed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.plan.plan import Call, Expression
from elf.jobmaster.plan.signatures import SIGNATURES
from elf.jobmaster.values.sql_types import TIMESTAMP
from elf.jobmaster.values.vector import Vector
from tests.jobmaster.functions.cases import ROWS, plain, rows, sql, vectors
from tests.jobmaster.functions.expressions import expressions
from tests.rigs import paths

GOLDEN = paths.GOLDEN / "functions.json"


@pytest.fixture(scope="module")
def golden() -> dict[str, list[Any]]:
    loaded: dict[str, list[Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def columns() -> dict[str, Vector]:
    return vectors(rows())


def values(expression: Expression, columns: dict[str, Vector], count: int = ROWS) -> list[Any]:
    out = [plain(value) for value in evaluate(expression, columns, count, Cache()).to_python()]
    return out if len(out) == count else out * count


def names(expression: Expression) -> set[str]:
    if not isinstance(expression, Call):
        return set()
    return {expression.function}.union(*map(names, expression.arguments))


def test_the_table_asks_for_every_function() -> None:
    assert set().union(*map(names, expressions())) == set(SIGNATURES)


def test_answers_are_sparks(golden: dict[str, list[Any]], columns: dict[str, Vector]) -> None:
    wrong = []
    for expression in expressions():
        got, want = values(expression, columns), golden[sql(expression)]
        wrong += [
            (sql(expression), row, want[row], got[row])
            for row in range(ROWS)
            if (got[row], type(got[row])) != (want[row], type(want[row]))
        ]
    assert not wrong, wrong[:10]


def test_blocks_of_any_size_give_the_same(golden: dict[str, list[Any]], columns: dict[str, Vector]) -> None:
    """One cache over blocks of 0, 1, 5, … rows, with dictionaries that are already whole."""
    import numpy as np

    cache = Cache()
    cuts = [0, 0, 1, 6, 7, 50, ROWS]
    for expression in expressions()[::3]:
        got: list[Any] = []
        for start, stop in pairwise(cuts):
            part = {name: vector.take(np.arange(start, stop)) for name, vector in columns.items()}
            out = [plain(value) for value in evaluate(expression, part, stop - start, cache).to_python()]
            got += out if len(out) == stop - start else out * (stop - start)
        assert got == golden[sql(expression)], sql(expression)


def test_timestamps_are_recorded_as_microseconds(golden: dict[str, list[Any]]) -> None:
    stamps = [golden[sql(expression)] for expression in expressions() if expression.type == TIMESTAMP]
    assert all(value is None or isinstance(value, int) for column in stamps for value in column)
