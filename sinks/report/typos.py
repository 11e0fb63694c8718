"""Names in a query of `--sql` that no job has: refused at once, before Spark starts. All else is for Spark to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elf.errors import UsageError
from elf.jobmaster.plan.spark_sql import identifier
from elf.sinks.lake.stored import Stored

_OPEN = (exp.Lambda, exp.Lateral, exp.Unnest, exp.Dot, exp.Subquery, exp.CTE, exp.Values, exp.Command)
"""Queries with one of these have names of their own."""
_VIEW = ("window_start", "window_end", "_date", "_version")


def refuse_typos(sql: str, stored: Sequence[Stored], where: str = "--sql") -> None:
    """Raises UsageError if the query reads a table that is no job, or a column that none of its jobs has."""
    try:
        tree = parse_one(sql, dialect="spark")
    except SqlglotError:
        return
    own = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    tables = [
        each for each in tree.find_all(exp.Table) if isinstance(each.this, exp.Identifier) and not each.db
    ]
    read = {table.name.lower(): table.name for table in tables if table.name.lower() not in own}
    jobs = {each.job.lower() for each in stored}
    for name in sorted(read.keys() - jobs):
        known = ", ".join(sorted({each.job for each in stored}))
        raise UsageError(f"{where}: no job {identifier(read[name])} in the lake; its jobs are {known}")
    if tree.find(*_OPEN) is None and len(tables) == len(read) > 0:
        _refuse_columns(tree, [each for each in stored if each.job.lower() in read], where)


def _refuse_columns(tree: Any, stored: Iterable[Stored], where: str) -> None:
    names = {name: None for each in stored for name in _columns(each)}
    known = {name.lower() for name in names} | {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    for column in tree.find_all(exp.Column):
        parts = {part.name.lower() for part in column.parts}
        if not parts & known and isinstance(column.this, exp.Identifier):
            near = get_close_matches(column.name, list(names), 3) or [
                name for name in names if name[:1] != "_"
            ]
            raise UsageError(f"{where}: no column {identifier(column.name)}; there are {', '.join(near)}")


def _columns(stored: Stored) -> list[str]:
    """Those of the job's view, as `spark_read.view` makes it."""
    outputs = [output["name"] for output in stored.recipe["outputs"]]
    return [*_VIEW[:2], *outputs, *(column["name"] for column in stored.columns), *_VIEW[2:]]
