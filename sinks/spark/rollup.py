"""Stored windows in longer ones: `rollup` gives a query's result, `merge_sql` the SQL by which each column is merged.

Both take what `spark.read.format("elf")` gives, filtered or not: the recipes of its versions are in the metadata of its schema.
No JVM is asked, so they work over Spark Connect too.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from elf.errors import UsageError
from elf.jobmaster.plan.spark_sql import identifier
from elf.sinks.lake.every import UNITS_US, Every
from elf.sinks.lake.spark_read import group_by_job, merge_sql, results, unmerged_sql
from elf.sinks.lake.stored import Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT = "elf"
"""The key in the metadata of the first column under which the versions of the job are."""


def rollup(frame: DataFrame, every: str | None = None, *, timezone: str = "UTC") -> DataFrame:
    """The result of the stored job in windows of length `every` ("1 day", "6h"), or in the job's own: the columns of its query,
    after HAVING, ORDER BY and LIMIT in each window. Whole numbers, decimals, counts, distinct values and percentiles are those of
    the same query over the raw logs.

    frame: of the format `elf`; rows may be filtered by pane (`_pane_start`, `date`, `version`). Its columns must have the state
    that the query needs. timezone: whose days windows of whole days are. Raises UsageError: windows that do not consist of whole
    panes, columns that cannot be merged, versions of the job whose results have other columns.
    """
    longer = None if every is None else Every(length_us(every), timezone)
    frames = []
    for stored in versions(frame):
        _must_merge(stored, longer)
        groups = group_by_job(panes(frame, stored), stored, longer)
        frames.append(results(groups, stored))
    first = frames[-1]
    for other in frames[-2::-1]:
        if other.dtypes != first.dtypes:
            raise UsageError(
                "versions of this job have results with other columns: filter one, as with where(\"version = 'v…'\")"
            )
        first = other.unionByName(first)
    return first


def merge_sql_of(frame: DataFrame) -> dict[str, str]:
    """The SQL aggregate that merges each state column of a frame of the format `elf`, for a GROUP BY of your own:

    frame.where("NOT _empty").groupBy("status").agg(*(expr(sql).alias(name) for name, sql in merge_sql(frame).items()))
    """
    newest = versions(frame)[-1]
    merged = {}
    for column in newest.states:
        sql = merge_sql(column)
        if sql is not None:
            name = identifier(column["name"])
            merged[column["name"]] = sql.replace(name, unmerged_sql(column))
    return merged


def outputs_sql_of(frame: DataFrame) -> dict[str, str]:
    """The SQL that computes each aggregate of the job's query from merged state, by the name of the output."""
    return {
        each["name"]: each["sql"]
        for each in versions(frame)[-1].recipe["outputs"]
        if each["sql"] and each["columns"]
    }


def length_us(text: str) -> int:
    """`1 day`, `15 minutes` or `6h` in microseconds. Raises UsageError."""
    found = re.fullmatch(
        r"\s*([1-9]\d{0,5})\s*(s|m|h|d|w|(?:second|minute|hour|day|week)s?)\s*", text.lower()
    )
    if found is None:
        raise UsageError(f"every={text!r} is no length; give one such as '15 minutes', '6h' or '1 day'")
    return int(found[1]) * UNITS_US[found[2][0]]


def versions(frame: DataFrame) -> list[Stored]:
    """The versions of the job that were stored when the frame was made, oldest first. Raises UsageError for another frame."""
    for field in frame.schema.fields:
        if ABOUT in field.metadata:
            return [_stored(about) for about in json.loads(field.metadata[ABOUT])]
    raise UsageError('this frame is not of spark.read.format("elf"), or its first column was left out')


def _stored(about: dict[str, Any]) -> Stored:
    since, until = about["span"]
    longer = tuple((first, last, pane_us) for first, last, pane_us in about["longer"])
    named = about["job"], about["version"], "", "", about["columns"], about["recipe"], (since, until)
    return Stored(*named, longer=longer)


def _must_merge(stored: Stored, every: Every | None) -> None:
    recipe = stored.recipe
    misfit = stored.misfit(every) if every is not None else stored.own_misfit()
    refused = [output["refused"] for output in recipe["outputs"] if not output["sql"]]
    reason = misfit or recipe["refused"] or (refused[0] if len(refused) == len(recipe["outputs"]) else None)
    if reason:
        raise UsageError(f"job {stored.job}: {_as_options(reason)}")


def _as_options(reason: str) -> str:
    """The command's flags as the options and arguments that they are here."""
    return reason.replace("--every", "every").replace("give --since ", "give the option since ")


def panes(frame: DataFrame, stored: Stored) -> DataFrame:
    """The rows of one version, as `elf.sinks.lake.spark_read.panes` gives them. Raises UsageError for missing columns."""
    there = {name.lower() for name in frame.columns}
    needed = [
        "_pane_start",
        "_empty",
        "version",
        *(column["stored"] for column in stored.columns),
    ]
    if missing := [name for name in needed if name.lower() not in there]:
        raise UsageError(
            f"job {stored.job}: to merge its windows the option columns must have {', '.join(missing)} too"
        )
    keys = [f"{identifier(c['stored'])} AS `#k{i}`" for i, c in enumerate(stored.keys)]
    states = [f"{unmerged_sql(c)} AS {identifier(c['name'])}" for c in stored.states]
    # The folder is `version=v…`, so the column has that letter too.
    mine = frame.where(f"version = 'v{stored.version}'")
    return mine.selectExpr("_pane_start", "_empty", *keys, *states)
