"""Stored windows of a minute in longer ones are those of the same query over the raw logs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import elf
from elf.agent.run.engine import RunOptions, run
from elf.errors import UsageError
from elf.sinks.lake.parquet import ParquetSink
from elf.spark import merge_sql, outputs_sql, rollup
from tests.rigs.lines import lines

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.process

AGGREGATES = (
    "count(*) AS n, sum(bytes) AS s, avg(bytes) AS a, min(bytes) AS lo, max(request_time) AS hi, sum(request_time) AS t, "
    "avg(request_time) AS ta, count(DISTINCT path) AS p, approx_percentile(bytes, array(0.5, 0.99)) AS ps, "
    "approx_percentile(request_time, 0.9) AS p90, min(path) AS first, max_by(path, bytes) AS biggest"
)
QUERIES = {
    "all": f"SELECT window, status, {AGGREGATES} FROM access GROUP BY window(time, '{{window}}'), status",
    "best": "SELECT window.start AS since, path, user, count(*) AS n FROM access WHERE method = 'GET' "
    "GROUP BY window(time, '{window}'), path, user HAVING n > 1 ORDER BY n DESC, path, user LIMIT 4",
    "sliding": "SELECT window, method, count(*) AS n, sum(bytes) AS b FROM access "
    "GROUP BY window(time, '2 minutes', '1 minute'), method",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "access.log"
    path.write_text("\n".join(lines(1200, 5, seconds=1500)) + "\n")
    return path


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    for job, query in QUERIES.items():
        sink = ParquetSink(folder)
        run(RunOptions(query.format(window="1 minute"), (str(logs),), job=job), [sink])
        sink.close()
    return folder


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, tuple):
        return {"start": plain(value[0]), "end": plain(value[1])}
    return value


@pytest.mark.parametrize(("job", "every"), [("all", "10 minutes"), ("best", "1 hour"), ("sliding", None)])
def test_longer_windows_are_those_of_the_raw_logs(
    spark: Any, lake: Path, logs: Path, job: str, every: str | None
) -> None:
    frame = spark.read.format("elf").option("job", job).load(str(lake))
    found = rollup(frame, every)
    expected = [tuple(row.values()) for row in elf.run(QUERIES[job].format(window=every), logs).rows()]
    assert [tuple(plain(value) for value in row) for row in found.collect()] == expected
    assert len(expected) > 3


def test_a_read_of_longer_windows_is_theirs(spark: Any, lake: Path) -> None:
    plain = spark.read.format("elf").option("job", "all").load(str(lake))
    longer = spark.read.format("elf").option("job", "all").option("every", "5 minutes").load(str(lake))
    assert 0 < longer.count() < plain.count()
    for every in ("5 minutes", "10 minutes"):
        assert rollup(longer, every).collect() == rollup(plain, every).collect()
    with pytest.raises(
        UsageError, match=r"every must be a multiple of 300 s, the length of its panes before \d"
    ):
        rollup(longer, "1 minute")
    since = "2015-05-17 10:10:00"
    assert (
        longer.where(f"_pane_start = '{since}'").count()
        == rollup(longer, "5 minutes").where(f"window.start = '{since}'").count()
    )


def test_state_merges_in_a_group_by_of_ones_own(spark: Any, lake: Path, logs: Path) -> None:
    from pyspark.sql import functions as f

    frame = spark.read.format("elf").option("job", "all").load(str(lake))
    merged = [f.expr(sql).alias(name) for name, sql in merge_sql(frame).items()]
    outputs = {name: sql for name, sql in outputs_sql(frame).items() if name in ("n", "a", "p", "p90")}
    found = (
        frame.groupBy("status")
        .agg(*merged)
        .selectExpr("status", *(f"{sql} AS {name}" for name, sql in outputs.items()))
    )
    query = (
        "SELECT status, count(*) AS n, avg(bytes) AS a, count(DISTINCT path) AS p, approx_percentile(request_time, 0.9) AS p90 "
        "FROM access GROUP BY status"
    )
    expected = [tuple(row.values()) for row in elf.run(query, logs).rows()]
    assert sorted(tuple(row) for row in found.collect()) == sorted(expected)


def test_what_cannot_be_merged_is_refused(spark: Any, lake: Path) -> None:
    reader = spark.read.format("elf").option("job", "all")
    frame = reader.load(str(lake))
    with pytest.raises(
        UsageError, match="job all: every must be a multiple of 60 s, the length of its panes"
    ):
        rollup(frame, "90 seconds")
    with pytest.raises(UsageError, match="every='soon' is no length"):
        rollup(frame, "soon")
    with pytest.raises(UsageError, match="the option columns must have _empty, version, status, _acc1"):
        rollup(reader.option("columns", "_pane_start,_acc0").load(str(lake)), "1 hour")
    with pytest.raises(UsageError, match=r"not of spark\.read\.format"):
        rollup(spark.range(1), "1 hour")
