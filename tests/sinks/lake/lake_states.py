"""Pane states made by hand, and an oracle: what a reader of the lake must find, kept as plain dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.plan import (
    Accumulator,
    Aggregate,
    Call,
    Column,
    Expression,
    Key,
    Literal,
    Order,
    Output,
    Plan,
    Reduce,
    WindowSpec,
)
from elf.jobmaster.plan.recipe import recipe
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, WINDOW, SqlType
from elf.jobmaster.windows.result import Lines, PaneState, Revision, StateColumn

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = 1_790_000_000_000_000 // DAY * DAY

Groups = Mapping[tuple[Any, ...], tuple[int, int | None]]
"""Group key -> (hits, sum of bytes)."""

ONE_MINUTE = WindowSpec(MINUTE, MINUTE)
BYTES = Column("bytes", BIGINT)


def traffic_plan(
    keys: tuple[tuple[str, SqlType], ...] = (("path", STRING), ("status", INT)),
    *,
    window: WindowSpec | None = ONE_MINUTE,
    where: Expression | None = None,
    having_above: int | None = None,
    limit: int | None = None,
    names: tuple[str, ...] | None = None,
) -> Plan:
    """SELECT window, keys…, count(*) AS hits, sum(bytes) AS bytes, avg(bytes) AS mean … ORDER BY hits DESC, keys."""
    hits, having = Column("#a0", BIGINT), None
    if having_above is not None:
        having = Call(">", (hits, Literal(having_above, BIGINT)), BOOLEAN)
    named = list(enumerate(keys))
    columns = [Column(f"#k{i}", type) for i, (_, type) in enumerate(keys)]
    outputs = [Output("window", Column("#window", WINDOW), WINDOW)] if window else []
    names = names or tuple(name for name, _ in keys)
    outputs += [Output(name, column, column.type) for name, column in zip(names, columns, strict=True)]
    outputs += [
        Output("hits", hits, BIGINT),
        Output("bytes", Column("#a1", BIGINT), BIGINT),
        Output("mean", Column("#a2", DOUBLE), DOUBLE),
    ]
    return Plan(
        sql="",
        source="access",
        columns=tuple(dict.fromkeys((*(Column(*source) for _, source in named), BYTES))),
        where=where,
        window=window,
        keys=tuple(Key(name, Column(source, type)) for name, (source, type) in zip(names, keys, strict=True)),
        accumulators=(
            Accumulator(Reduce.COUNT),
            Accumulator(Reduce.COUNT, BYTES),
            Accumulator(Reduce.SUM, BYTES),
        ),
        families=(),
        aggregates=(
            Aggregate("count", BIGINT, BIGINT, (0,)),
            Aggregate("sum", BIGINT, BIGINT, (1, 2)),
            Aggregate("avg", DOUBLE, BIGINT, (1, 2)),
        ),
        having=having,
        select=tuple(outputs),
        order=(Order(hits, descending=True, nulls_first=False), *(Order(column) for column in columns)),
        limit=limit,
    )


def columns_of(plan: Plan) -> tuple[StateColumn, ...]:
    return (
        *(StateColumn(key.name, str(key.expression.type), "key") for key in plan.keys),
        StateColumn("_acc0", "bigint", "sum"),
        StateColumn("_acc1", "bigint", "sum"),
        StateColumn("_acc2", "decimal(38,0)", "sum"),
    )


def traffic_state(
    plan: Plan,
    start: int,
    groups: Groups,
    *,
    job: str = "traffic",
    version: str = "0123456789ab",
    revision: Revision = (0, 0, 1),
    lines: Lines | None = None,
) -> PaneState:
    """The state of one pane. A group whose sum is None has seen no bytes."""
    sums = list(groups.values())
    values: list[list[Any]] = [[key[i] for key in groups] for i in range(len(plan.keys))]
    values.append([hits for hits, _ in sums])
    values.append([0 if total is None else hits for hits, total in sums])
    values.append([total or 0 for _, total in sums])
    hits = sum(hits for hits, _ in sums)
    end = start + plan.window.pane_us if plan.window else start
    return PaneState(
        job,
        version,
        start,
        end,
        "final" if revision[2] == 1 else "revised",
        revision,
        lines or Lines(hits + 1, hits, 1, 0),
        columns_of(plan),
        values,
        encode(plan),
        recipe=recipe(plan),
    )


def files(directory: Path) -> list[Path]:
    """Every file of a lake, unfinished ones too, but those of its logs."""
    return sorted(
        path for path in directory.rglob("*") if path.is_file() and path.parent.name != "_delta_log"
    )


def rows(directory: Path) -> list[dict[str, Any]]:
    """What a reader must see: of each pane the rows of the highest (revision, digest, file), whole."""
    best: dict[Any, tuple[tuple[Any, ...], list[dict[str, Any]]]] = {}
    head = ("_revision_epoch", "_revision_node", "_revision_n", "_digest")
    for path in directory.rglob("date=*/*.parquet"):
        panes: dict[Any, list[dict[str, Any]]] = {}
        for row in pq.ParquetFile(path).read().to_pylist():
            panes.setdefault((path.parts[-5:-2], row["_pane_start"]), []).append(row)
        for pane, found in panes.items():
            order = (*(found[0][name] for name in head), path.name)
            if pane not in best or best[pane][0] < order:
                best[pane] = (order, found)
    return [row for _, found in best.values() for row in found]


def groups(directory: Path) -> dict[Any, tuple[int, int]]:
    """{(pane start, path, status): (hits, bytes)} as a reader must see them."""
    return {
        (row["_pane_start"], row["path"], row["status"]): (row["_acc0"], int(row["_acc2"]))
        for row in rows(directory)
        if not row["_empty"]
    }
