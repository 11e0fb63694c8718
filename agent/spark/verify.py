"""Compares what a lake holds of a job with the job's own text, run by Spark over the raw logs: `elf verify`.

    lake -> newest version of the job -> its groups in each window, after HAVING ┐
    its text, without ORDER BY and LIMIT -> Spark, over `read_logs`              ┴> rows that only one side has, by window

LIMIT and ORDER BY only choose among groups, and mean something else in Spark, so all groups are compared. Columns that Spark
computes in another way by definition are left out, and named; doubles are compared to eleven digits.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elf.agent.spark.logs import Paths, read_logs
from elf.errors import UsageError
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.parameters import own_value, parameters, shown
from elf.jobmaster.plan.plan import Plan
from elf.sinks.lake.spark_read import START, group_by_job, results, with_windows
from elf.sinks.lake.stored import Stored
from elf.sinks.spark.rollup import panes, versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN = 20
APPROXIMATE = {
    "approx_count_distinct": "Spark's estimate is another",
    "approx_set": "Spark has no function of that name",
    "approx_percentile": "Spark's estimate is another",
    "first": "Spark takes any of several",
    "last": "Spark takes any of several",
    "mode": "Spark takes any of several",
    "min_by": "Spark takes any of several",
    "max_by": "Spark takes any of several",
}


class Differing(msgspec.Struct, frozen=True):
    """A row that only one side has, `count` times. side: "lake" or "logs". window: its start; None without a window."""

    side: str
    window: Any
    values: tuple[Any, ...]
    count: int


class Verified(msgspec.Struct, frozen=True):
    """windows: of both sides; equal: those of them that agree. since, until: microseconds UTC, of the panes compared. incomplete:
    windows of which a pane lacks an agent. parsed, rejected, late: lines, by the lake's counters. columns: those compared;
    left_out: the others, with the reason. rows: some that differ."""

    job: str
    version: str
    windows: int
    equal: int
    since: int | None
    until: int | None
    incomplete: int
    parsed: int
    rejected: int
    late: int
    columns: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    rows: tuple[Differing, ...]


def verify(
    spark: SparkSession,
    lake: Path,
    job: str,
    logs: Paths,
    *,
    since: int | None = None,
    until: int | None = None,
    format: str = "auto",
    timezone: str = "UTC",
) -> Verified:
    """Compare the newest version of a job, from `since` to `until` (microseconds UTC, to whole panes; None: as far as the lake
    has panes of that version). Raises UsageError for what cannot be compared."""
    frame = spark.read.format("elf").option("job", job).load(str(lake))
    stored = versions(frame)[-1]
    plan = stored_plan(lake, job, stored.version)
    since, until = _bounds(stored, frame, since, until)
    if (misfit := msgspec.structs.replace(stored, bounds=(since, until)).own_misfit()) is not None:
        raise UsageError(f"job {job}: {misfit}")
    frame = frame.where(f"version = 'v{stored.version}'")
    lines = read_logs(spark, logs, format=format, timezone=timezone, columns=_columns(plan))
    if since is not None and until is not None:
        frame = frame.where(f"unix_micros(_pane_start) >= {since} AND unix_micros(_pane_start) < {until}")
        lines = lines.where(f"unix_micros(time) >= {since} AND unix_micros(time) < {until}")
    kept, left_out = _compared(stored)
    both = _side(_of_lake(frame, stored), kept, 1).unionAll(
        _side(_of_logs(spark, lines, plan, stored), kept, -1)
    )
    balance = both.groupBy(*(name for name in both.columns if name != "#side")).agg({"#side": "sum"})
    balance = balance.withColumnRenamed("sum(#side)", "#more").cache()
    windows = (
        balance.selectExpr("`#window`", "`#more` <> 0 AS differs").groupBy("#window").agg({"differs": "max"})
    )
    counts = windows.selectExpr("count(1)", "count_if(NOT `max(differs)`)").first()
    rows = balance.where("`#more` <> 0").orderBy(*balance.columns).limit(ROWS_SHOWN).collect()
    incomplete, parsed, rejected, late = _coverage(frame, stored)
    return Verified(
        job,
        stored.version,
        counts[0] if counts else 0,
        counts[1] if counts else 0,
        since,
        until,
        incomplete,
        parsed,
        rejected,
        late,
        tuple(stored.recipe["outputs"][i]["name"] for i in kept),
        tuple(left_out),
        tuple(_differing(rows)),
    )


def stored_plan(lake: Path, job: str, version: str) -> Plan:
    """The plan of that version, from the metadata of one of its files. Raises UsageError."""
    from elf.sinks.lake import layout
    from elf.sinks.lake.files import read_about

    for table in layout.tables(lake, job):
        for folder in sorted(table.glob(f"version=v{version}/date=*")):
            for file in layout.files(folder):
                return decode(base64.b64decode(read_about(file.path)["plan"]))
    raise UsageError(f"the lake {lake} has no file of version {version} of job {job}")


def without_order(sql: str) -> str:
    """The query without its last clauses, ORDER BY and LIMIT."""
    from sqlglot.dialects.spark import Spark

    depth = 0
    for token in Spark().tokenize(sql):
        kind = token.token_type.name
        depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        if depth == 0 and kind in ("ORDER_BY", "LIMIT", "SEMICOLON"):
            return sql[: token.start]
    return sql


def _columns(plan: Plan) -> list[str]:
    return list(dict.fromkeys(["time", *(column.name for column in plan.columns)]))


def _bounds(
    stored: Stored, frame: DataFrame, since: int | None, until: int | None
) -> tuple[int | None, int | None]:
    """To whole panes, and to the panes that there are."""
    if stored.pane_us is None:
        if since is not None or until is not None:
            raise UsageError(f"job {stored.job} has no windows, so --since and --until choose nothing")
        return None, None
    mine = frame.where(f"version = 'v{stored.version}'")
    ends = mine.selectExpr("unix_micros(min(_pane_start))", "unix_micros(max(_pane_end))").first()
    low, high = (ends[0] or 0, ends[1] or 0) if ends else (0, 0)
    since, until = (
        None if at is None else -(-at // stored.pane_us) * stored.pane_us for at in (since, until)
    )
    return (low if since is None else since), (high if until is None else until)


def _compared(stored: Stored) -> tuple[list[int], list[tuple[str, str]]]:
    """The outputs to compare, by number; and the others, with the reason. Raises UsageError if HAVING depends on such a one."""
    other = {
        column: APPROXIMATE[each["function"]]
        for each in stored.recipe["aggregates"]
        for column in each["columns"]
        if each["function"] in APPROXIMATE and column.startswith("_fam")
    }
    for column, reason in other.items():
        if stored.recipe["having"] and column in stored.recipe["having"]:
            raise UsageError(f"job {stored.job}: HAVING cannot be compared: {reason}")
    kept: list[int] = []
    left_out: list[tuple[str, str]] = []
    for i, output in enumerate(stored.recipe["outputs"]):
        reasons = [output["refused"], *(other.get(column) for column in output["columns"])]
        given = [str(reason) for reason in reasons if reason]
        if given:
            left_out.append((output["name"], given[0]))
        else:
            kept.append(i)
    return kept, left_out


def _of_lake(frame: DataFrame, stored: Stored) -> DataFrame:
    """All groups of each window after HAVING, with the outputs as `#0`, `#1`, …"""
    outputs = [
        {**output, "name": f"#{i}", "sql": output["sql"] or "NULL"}
        for i, output in enumerate(stored.recipe["outputs"])
    ]
    recipe = {**stored.recipe, "order": [], "limit": None, "outputs": outputs}
    every = msgspec.structs.replace(stored, recipe=recipe)
    return results(group_by_job(panes(frame, stored), every, None), every)


def _of_logs(spark: SparkSession, lines: DataFrame, plan: Plan, stored: Stored) -> DataFrame:
    lines.createOrReplaceTempView(plan.source)
    values = {name: own_value(shown(literal)) for name, literal in parameters(plan).items()}
    answer = spark.sql(without_order(plan.sql), args=values)
    if len(answer.columns) != len(stored.recipe["outputs"]):
        raise UsageError(
            f"job {stored.job}: its text gives {len(answer.columns)} columns in Spark, and {len(stored.recipe['outputs'])} here"
        )
    return answer.toDF(*(f"#{i}" for i in range(len(answer.columns))))


def _side(frame: DataFrame, kept: Sequence[int], side: int) -> DataFrame:
    """The columns to compare, as Spark can group by them, and `#window`, the start of the window."""
    types = dict(frame.dtypes)
    starts = [i for i in kept if types[f"#{i}"].startswith("struct<start:")]
    times = [i for i in kept if types[f"#{i}"] == "timestamp"]
    window = f"`#{starts[0]}`.start" if starts else f"`#{times[0]}`" if times else "CAST(NULL AS timestamp)"
    values = (f"{_comparable(f'`#{i}`', types[f'#{i}'])} AS `#{i}`" for i in kept)
    return frame.selectExpr(f"{window} AS `#window`", *values, f"{side} AS `#side`")


def _comparable(name: str, kind: str) -> str:
    """Doubles to eleven digits, and whole numbers and decimals by their value, whatever their type."""
    if kind in ("double", "float"):
        return f"format_string('%.10e', {name} + 0D)"
    if kind.startswith("decimal"):
        return f"CAST({name} AS decimal(38,10))"
    return f"CAST({name} AS bigint)" if kind in ("tinyint", "smallint", "int") else name


def _coverage(frame: DataFrame, stored: Stored) -> tuple[int, int, int, int]:
    """Windows of which a pane lacks an agent; the parsed, rejected and late lines of all panes."""
    once = frame.dropDuplicates(["_pane_start"])
    sums = once.selectExpr(*(f"sum(_lines_{name})" for name in ("parsed", "rejected", "late"))).first()
    parsed, rejected, late = (int(each or 0) for each in sums or (0, 0, 0))
    lacking = with_windows(once.where("_agents_reporting < _agents_expected"), stored, None)
    return lacking.select(START).distinct().count(), parsed, rejected, late


def _differing(rows: Iterable[Any]) -> Iterator[Differing]:
    for window, *values, more in rows:
        yield Differing("lake" if more > 0 else "logs", window, tuple(values), abs(more))
