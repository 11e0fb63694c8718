"""The same SQL text compiled by ELF and evaluated, and run by Spark: the values of every scalar of the compiler's table."""

from __future__ import annotations

import random
from typing import Any

import pytest

from elf.cbt._strings import Strings
from elf.jobmaster.compile import query
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.functions.frame import from_list
from elf.jobmaster.plan.plan import Column
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector
from tests.jobmaster.compile.query_cases import COLUMNS, SCALARS, SOURCES
from tests.jobmaster.functions.cases import plain, shown

ROWS = 120
GROUPED = "GROUP BY " + ", ".join(COLUMNS)
TEXTS = [
    *("/api/v1", "a", "/a/b?x=1", "5", "1.5", "-2", " 7 ", "2024-01-01 10:00:00", "x", "", "http://h/p?q=1&x=2#f", "true"),
    *("abc", "ÄÖ", "200", "99999", "0", "yxy", "path", None),
]  # fmt: skip
VALUES: dict[Kind, list[Any]] = {
    # Without extremes: there Spark wraps around and ELF says NULL; functions_cases has those.
    Kind.INT: [0, 1, -1, 7, 200, 404, 12345, -25, None],
    Kind.BIGINT: [0, 1, -1, 200, 404, 500, 1500, 10**9, -(10**12), None],
    Kind.DOUBLE: [0.0, -0.0, 1.5, -2.5, 0.125, 1e10, 3.14159, float("nan"), None],
    Kind.BOOLEAN: [True, False, None],
    Kind.TIMESTAMP: [0, 1431857103_123456, 1704067200_000000, None],
}


def edges(type: SqlType) -> list[Any]:
    if type.kind is Kind.DECIMAL:
        unit = 10**type.scale
        return [0, 1, -1, unit, 3 * unit // 2, -5 * unit // 2, 25, 10 ** (type.precision - 2), None]
    return TEXTS if type.kind is Kind.STRING else VALUES[type.kind]


def table() -> dict[str, list[Any]]:
    rng = random.Random(5)
    return {name: [rng.choice(edges(type)) for _ in range(ROWS)] for name, type in COLUMNS.items()}


def vector(type: SqlType, values: list[Any]) -> Vector:
    if type.kind is not Kind.STRING:
        return from_list(type, values)
    strings = Strings()
    return Vector(type, strings.intern_all(values), None, strings)


def compiled(expression: str, values: dict[str, list[Any]]) -> tuple[SqlType, list[Any]]:
    """The expression over the group keys, which here are the columns themselves."""
    plan = query.compile(f"SELECT {expression} AS x, count(*) AS n FROM access {GROUPED}", SOURCES)
    columns = [key.expression for key in plan.keys if isinstance(key.expression, Column)]
    names = {f"#k{at}": vector(column.type, values[column.name]) for at, column in enumerate(columns)}
    out = evaluate(plan.select[0].expression, names, ROWS, Cache()).to_python()
    return plan.select[0].type, [plain(value) for value in (out if len(out) == ROWS else out * ROWS)]


def view(spark: Any, values: dict[str, list[Any]]) -> None:
    cells = [[shown(value, COLUMNS[name]) for value in values[name]] for name in COLUMNS]
    body = ", ".join(f"({row}, {', '.join(each)})" for row, each in enumerate(zip(*cells, strict=True)))
    spark.sql(f"SELECT * FROM VALUES {body} AS t(r, {', '.join(COLUMNS)})").createOrReplaceTempView(
        "edge_access"
    )


@pytest.mark.spark
@pytest.mark.parametrize("theme", SCALARS)
def test_values_of_the_same_text(spark: Any, theme: str) -> None:
    values = table()
    view(spark, values)
    ours = [compiled(expression, values) for expression in SCALARS[theme]]
    items = [
        f"unix_micros({expression}) AS c{at}"
        if ours[at][0].kind is Kind.TIMESTAMP
        else f"{expression} AS c{at}"
        for at, expression in enumerate(SCALARS[theme])
    ]
    rows = spark.sql(f"SELECT r, {', '.join(items)} FROM edge_access ORDER BY r").collect()
    wrong = []
    for at, expression in enumerate(SCALARS[theme]):
        for row, mine in zip(rows, ours[at][1], strict=True):
            theirs = plain(row[f"c{at}"])
            if (theirs, type(theirs)) != (mine, type(mine)):
                wrong.append(
                    (
                        expression,
                        {name: values[name][row["r"]] for name in COLUMNS if name in expression},
                        theirs,
                        mine,
                    )
                )
    assert not wrong, wrong[:10]
