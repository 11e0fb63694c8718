"""One query, two horizons: the same SQL text over the same lines in ELF and in Spark gives the same answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import elf
from tests.rigs import agreement
from tests.rigs.lines import NGINX_FORMAT, lines, records

pytestmark = pytest.mark.spark

SCHEMA = (
    "client_ip string, user string, time timestamp, method string, path string, query string, protocol string, "
    "status bigint, bytes bigint, referer string, user_agent string, request_time decimal(18,6)"
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agreement") / "access.log"
    path.write_text("\n".join(lines(600, seed=11)) + "\n")
    return path


@pytest.fixture(scope="module")
def view(spark: Any, log: Path) -> Iterator[Any]:
    """The view `access` over the same lines, read by a regular expression."""
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    rows = []
    for record in records(log.read_text().splitlines()):
        record["time"] = datetime.fromtimestamp(record["time"] // 1_000_000, UTC)
        if record["request_time"] is not None:
            record["request_time"] = Decimal(record["request_time"])
        rows.append(tuple(record[name] for name in names))
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1).cache()
    frame.createOrReplaceTempView("access")
    yield spark
    spark.catalog.dropTempView("access")


def plain(value: Any) -> Any:
    """A value in a form in which both sides compare: windows and times as text."""
    if isinstance(value, dict):
        return (plain(value["start"]), plain(value["end"]))
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-12) or (
            math.isnan(mine) and math.isnan(theirs)
        )
    return type(mine) is type(theirs) and bool(mine == theirs)


def rank(row: tuple[Any, ...]) -> list[Any]:
    """Sorts rows of either side alike; floats by a few digits, since sums of doubles may differ in the last."""
    return [(value is not None, f"{value:.6g}" if isinstance(value, float) else str(value)) for value in row]


def mine(query: str, log: Path) -> list[tuple[Any, ...]]:
    result = elf.run(query, log, format=NGINX_FORMAT)
    return [tuple(plain(value) for value in row.values()) for row in result.rows()]


def theirs(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return [tuple(plain(value) for value in row) for row in spark.sql(query).collect()]


def assert_same(query: str, ours: list[tuple[Any, ...]], spark_rows: list[tuple[Any, ...]]) -> None:
    assert len(ours) == len(spark_rows), query
    for row, other in zip(ours, spark_rows, strict=True):
        assert all(map(same, row, other)), f"{query}\n  elf   {row}\n  spark {other}"


def grouped(parts: list[str], size: int) -> list[list[str]]:
    return [parts[i : i + size] for i in range(0, len(parts), size)]


@pytest.fixture(scope="module")
def scalars(view: Any) -> list[list[Any]]:
    """Every scalar over every line, by Spark, in one query."""
    items = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate(agreement.SCALARS))
    rows = theirs(view, f"SELECT {items} FROM access")
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("number", range(len(agreement.SCALARS)), ids=agreement.SCALARS)
def test_scalar(scalars: list[list[Any]], log: Path, number: int) -> None:
    """Grouping by the expression shows its values, their NULLs and their type."""
    expression = agreement.SCALARS[number]
    query = f"SELECT {expression} AS x, count(*) AS n FROM access GROUP BY {expression}"
    expected = [(value, count) for value, count in Counter(scalars[number]).items()]
    assert_same(query, sorted(mine(query, log), key=rank), sorted(expected, key=rank))


@pytest.mark.parametrize("several", grouped(agreement.AGGREGATES, 6), ids=lambda several: several[0])
def test_aggregates(view: Any, log: Path, several: list[str]) -> None:
    items = ", ".join(f"{aggregate} AS a{i}" for i, aggregate in enumerate(several))
    for query in (
        f"SELECT {items} FROM access",
        f"SELECT method, {items} FROM access GROUP BY method",
        f"SELECT window, user, {items} FROM access GROUP BY window(time, '30 seconds', '15 seconds'), user",
    ):
        assert_same(query, sorted(mine(query, log), key=rank), sorted(theirs(view, query), key=rank))


def test_aggregates_whose_ties_go_to_the_smallest_value(view: Any, log: Path) -> None:
    for end in ("", "GROUP BY method", "GROUP BY window(time, '30 seconds', '15 seconds'), user"):
        keys = end.removeprefix("GROUP BY ").replace("window(time, '30 seconds', '15 seconds')", "window")
        sides = []
        for side in zip(*agreement.EQUIVALENT, strict=True):
            items = ", ".join(f"{aggregate} AS a{i}" for i, aggregate in enumerate(side))
            sides.append(f"SELECT {f'{keys}, ' if keys else ''}{items} FROM access {end}")
        ours, other = sides
        assert_same(ours, sorted(mine(ours, log), key=rank), sorted(theirs(view, other), key=rank))


@pytest.mark.parametrize("query", agreement.WHOLE)
def test_whole_query(view: Any, log: Path, query: str) -> None:
    assert_same(query, sorted(mine(query, log), key=rank), sorted(theirs(view, query), key=rank))


@pytest.mark.parametrize(("query", "partition", "order", "limit"), agreement.ORDERED)
def test_order_and_limit_within_each_window(
    view: Any, log: Path, query: str, partition: str, order: str, limit: int
) -> None:
    by = f"PARTITION BY {partition} ORDER BY {order}" if partition else f"ORDER BY {order}"
    ranked = f"SELECT *, row_number() OVER ({by}) AS rn FROM ({query})"
    outer = f"SELECT * FROM ({ranked}) WHERE rn <= {limit} ORDER BY {partition + ', ' if partition else ''}rn"
    expected = [row[:-1] for row in theirs(view, outer)]
    text = f"{query} ORDER BY {order} LIMIT {limit}"
    assert_same(text, mine(text, log), expected)
