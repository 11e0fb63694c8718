"""Names and types of result columns, against Spark itself (ANSI mode off)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from elf.errors import QueryError
from elf.jobmaster.compile import query
from tests.jobmaster.compile.query_cases import AGGREGATES, COLUMNS, SCALARS, SOURCES

GROUPED = "GROUP BY " + ", ".join(COLUMNS)
COMMON = "count(*) AS n"


@pytest.fixture(scope="module")
def access(spark: Any) -> Any:
    schema = ", ".join(f"`{name}` {type}" for name, type in COLUMNS.items())
    spark.createDataFrame([], schema).createOrReplaceTempView("access")
    return spark


def ours(expressions: list[str], clauses: str) -> list[tuple[str, str]]:
    plan = query.compile(f"SELECT {', '.join(expressions)}, {COMMON} FROM access {clauses}", SOURCES)
    return [(output.name, str(output.type)) for output in plan.select]


def spark_says(spark: Any, expressions: list[str], clauses: str) -> list[tuple[str, str]]:
    schema = spark.sql(f"SELECT {', '.join(expressions)}, {COMMON} FROM access {clauses}").schema
    return [(field.name, field.dataType.simpleString()) for field in schema]


def batches(expressions: list[str], clauses: str) -> Iterator[list[str]]:
    """Lists without two columns of one name, which only Spark takes."""
    rest = expressions
    while rest:
        names: set[str] = set()
        batch: list[str] = []
        later: list[str] = []
        for expression in rest:
            name = ours([expression], clauses)[0][0].lower()
            (later if name in names else batch).append(expression)
            names.add(name)
        yield batch
        rest = later


@pytest.mark.spark
@pytest.mark.parametrize("theme", SCALARS)
def test_scalars_have_the_names_and_types_of_spark(access: Any, theme: str) -> None:
    for batch in batches(SCALARS[theme], GROUPED):
        assert ours(batch, GROUPED) == spark_says(access, batch, GROUPED)


@pytest.mark.spark
@pytest.mark.parametrize("theme", AGGREGATES)
def test_aggregates_have_the_names_and_types_of_spark(access: Any, theme: str) -> None:
    for batch in batches(AGGREGATES[theme], ""):
        assert ours(batch, "") == spark_says(access, batch, "")


@pytest.mark.spark
def test_names_are_resolved_as_in_spark(access: Any) -> None:
    """Both accept, with the same columns."""
    for sql in (
        "SELECT path, sum(bytes) AS bytes FROM access GROUP BY path HAVING bytes > 5 ORDER BY bytes DESC",
        "SELECT path, count(*) AS n, n * 2 AS m FROM access GROUP BY path ORDER BY m",
        "SELECT upper(path) AS path, count(*) AS n FROM access GROUP BY path ORDER BY path",
        "SELECT -status AS status, count(*) AS n FROM access GROUP BY status HAVING status > 200",
        "SELECT a.path, count(*) FROM access a GROUP BY PATH ORDER BY count(*) DESC, 1 NULLS LAST",
        "SELECT window, window.start, window.end AS e, count(*) FROM access GROUP BY window(time, '10 seconds')",
        "SELECT window(time, '1 minute 30 seconds') AS w, w.start, count(*) FROM access GROUP BY 1",
        "SELECT window(time, '1 hour', '7 minutes') AS w, path, count(*) FROM access GROUP BY ALL ORDER BY ALL",
        "SELECT 1 AS x FROM access HAVING count(*) > 1",
        "SELECT hour(window.start) AS h, count(*) FROM access GROUP BY window(time, 'interval 1 day')",
        "SELECT CASE WHEN status > 1 THEN 'a' END AS k, count(*) FROM access GROUP BY k LIMIT ALL",
    ):
        schema = access.sql(sql).schema
        plan = query.compile(sql, SOURCES)
        expected = [(field.name, field.dataType.simpleString()) for field in schema]
        assert [(output.name, str(output.type)) for output in plan.select] == expected, sql


@pytest.mark.spark
@pytest.mark.usefixtures("generated_code")
def test_what_spark_refuses_is_refused(access: Any) -> None:
    for sql in (
        "SELECT path, count(*) FROM access",
        "SELECT count(*) FROM access WHERE status",
        "SELECT count(*) FROM access WHERE time = 5",
        "SELECT count(*) FROM access WHERE path AND flag",
        "SELECT CASE WHEN flag THEN time ELSE 1 END, count(*) FROM access GROUP BY 1",
        "SELECT count(*) FROM access WHERE count(*) > 1",
        "SELECT access.path, count(*) FROM access a GROUP BY a.path",
        "SELECT count(*) FROM access WHERE path LIKE 'a\\\\b' AND path LIKE 'a\\\\'",
        "SELECT window, count(*) FROM access GROUP BY window(time, '10seconds')",
        "SELECT path, count(*) AS n FROM access GROUP BY path HAVING sum(n) > 1",
    ):
        with pytest.raises(QueryError):
            query.compile(sql, SOURCES)
        with pytest.raises(Exception):  # noqa: B017, PT011 - Spark's errors have many classes
            access.sql(sql).collect()
