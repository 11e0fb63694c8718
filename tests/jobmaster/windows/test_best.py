"""min and max of strings, min_by, max_by, first, last and mode: no order of arrival and no division among agents matters."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.parser import Parser
from elf.agent.work.worker import Worker
from elf.cbt._strings import Strings
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.functions.frame import from_list
from elf.jobmaster.plan.plan import FamilyKind, Plan
from elf.jobmaster.values.sql_types import DOUBLE, INT, STRING, SqlType
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows.best import PRUNED, winners
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.windows import Publisher, bounded
from tests.rigs.lines import NGINX_FORMAT, lines, records

FORMAT = resolve(NGINX_FORMAT)
SECOND = 1_000_000
ITEMS = (
    "min(path)", "max(user)", "first(user)", "last(path)", "last(user, true)", "first(user) IGNORE NULLS", "mode(status)",
    "mode(user)", "max_by(path, request_time)", "min_by(bytes, time)", "max_by(request_time, status)", "any_value(path)",
    "max(path) FILTER (WHERE status = 404)", "mode(path) FILTER (WHERE status < 300)", "max_by(path, bytes / 7)",
)  # fmt: skip
Record = dict[str, Any]


def plan_of(size_s: int, slide_s: int) -> Plan:
    items = ", ".join(f"{item} AS a{at}" for at, item in enumerate(ITEMS))
    return compile_query(
        f"SELECT method, {items} FROM access GROUP BY window(time, '{size_s} seconds', '{slide_s} seconds'), method",
        {"access": column_types(FORMAT)},
    )


def by(group: Sequence[Record], value: str, key: Callable[[Record], Any], *, most: bool = False) -> Any:
    """The value at the least or greatest key, of several the smallest, None last."""
    known = [(key(record), record[value]) for record in group if key(record) is not None]
    if not known:
        return None
    best = max(each for each, _ in known) if most else min(each for each, _ in known)
    tied = [value for each, value in known if each == best]
    return min((value for value in tied if value is not None), default=None)


def mode(group: Sequence[Record], name: str) -> Any:
    counts = Counter(record[name] for record in group if record[name] is not None)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else None


def answers(group: Sequence[Record]) -> tuple[Any, ...]:
    time, users = (lambda record: record["time"]), [r for r in group if r["user"] is not None]
    paths = [record["path"] for record in group if record["path"] is not None]
    missing = [record["path"] for record in group if record["path"] is not None and record["status"] == 404]
    return (
        min(paths, default=None),
        max((record["user"] for record in users), default=None),
        by(group, "user", time),
        by(group, "path", time, most=True),
        by(users, "user", time, most=True),
        by(users, "user", time),
        mode(group, "status"),
        mode(group, "user"),
        by(group, "path", lambda record: record["request_time"], most=True),
        by(group, "bytes", time),
        by(group, "request_time", lambda record: record["status"], most=True),
        by(group, "path", time),
        max(missing, default=None),
        mode([record for record in group if record["status"] < 300], "path"),
        by(group, "path", lambda r: None if r["bytes"] is None else r["bytes"] / 7, most=True),
    )


def one_pass(log: Sequence[str], size_s: int, slide_s: int) -> dict[tuple[int, Any], tuple[Any, ...]]:
    groups: dict[tuple[int, Any], list[Record]] = defaultdict(list)
    for record in records(list(log)):
        if record["request_time"] is not None:
            record["request_time"] = Decimal(record["request_time"])
        second = record["time"] // SECOND
        for start in range(second - second % slide_s, second - size_s, -slide_s):
            groups[start * SECOND, record["method"]].append(record)
    return {key: answers(group) for key, group in groups.items()}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    shape=st.sampled_from([(60, 60), (30, 10), (25, 10)]),
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    cap=st.sampled_from([1, 64]),
)
def test_any_division_is_one_pass(shape: tuple[int, int], seed: int, cuts: list[int], cap: int) -> None:
    """Lines in any order go to three agents, which report at any times, and the reports arrive in any order."""
    log, rng = lines(300, seed), random.Random(seed)
    shuffled = rng.sample(log, len(log))
    plan, budget = plan_of(*shape), Budget(cap << 20)
    panes, publisher = Panes(plan, budget), Publisher("test", plan, budget)
    columns = {column.name for column in plan.columns} | {"time"}
    agents = [(Worker(plan), Parser(FORMAT, columns)) for _ in range(3)]
    reports = []
    for start, stop in itertools.pairwise([0, *sorted(cuts), len(log)]):
        worker, parser = rng.choice(agents)
        if stop > start:
            worker.add(parser.parse("".join(f"{line}\n" for line in shuffled[start:stop]).encode()))
        if rng.random() < 0.7:
            reports += [delta.rows for delta in worker.cut()]
    reports += [delta.rows for worker, _ in agents for delta in worker.cut()]
    for rows in rng.sample(reports, len(reports)):
        panes.merge(rows)
    found = {(window.start, row[0]): row[1:] for window in bounded(publisher, panes) for row in window.rows}
    assert found == one_pass(log, *shape)


def vector(type: SqlType, values: list[Any]) -> Vector:
    if type != STRING:
        return from_list(type, values)
    strings = Strings()
    return Vector(STRING, strings.intern_all(values), None, strings)


VALUES: dict[SqlType, list[Any]] = {
    STRING: ["", "a", "b", "é", "\U0001f600", "\uffff", None],
    INT: [0, -1, 5, 2**31 - 1, None],
    DOUBLE: [0.0, 1.5, -1e300, float("nan"), float("inf"), None],
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.sampled_from(sorted(PRUNED, key=lambda kind: kind.value)))
def test_the_winner_of_a_union_is_the_winner_of_winners(data: st.DataObject, kind: FamilyKind) -> None:
    type = (
        STRING
        if kind in (FamilyKind.LEAST, FamilyKind.GREATEST)
        else data.draw(st.sampled_from(list(VALUES)))
    )
    values = [
        value for value in VALUES[type] if value is not None or kind in (FamilyKind.MIN_BY, FamilyKind.MAX_BY)
    ]
    member = st.tuples(
        st.integers(0, 2), st.sampled_from(values), st.sampled_from([-(2**63) + 1, -1, 0, 2**63 - 2])
    )
    members = data.draw(st.lists(member, min_size=1, max_size=12))
    cut = data.draw(st.integers(0, len(members)))

    def best(part: list[Any]) -> list[Any]:
        groups = np.array([group for group, _, _ in part])
        lane = np.array([at for _, _, at in part], dtype=np.int64)
        by = None if type == STRING and kind in (FamilyKind.LEAST, FamilyKind.GREATEST) else lane
        if not part:
            return []
        chosen = winners(kind, groups, vector(type, [value for _, value, _ in part]), by)
        return [part[at] for at in chosen]

    whole, parts = best(members), best([*best(members[:cut]), *best(members[cut:])])
    ignored = kind in (FamilyKind.LEAST, FamilyKind.GREATEST)
    shown = [[(g, repr(v), None if ignored else at) for g, v, at in part] for part in (whole, parts)]
    assert shown[0] == shown[1]
    assert [group for group, _, _ in whole] == sorted({group for group, _, _ in members})


@pytest.mark.parametrize(
    ("kind", "expected"), [(FamilyKind.MIN_BY, "b"), (FamilyKind.MAX_BY, "a"), (FamilyKind.COUNTS, "a")]
)
def test_ties_go_to_the_smallest_value_and_null_is_last(kind: FamilyKind, expected: str) -> None:
    texts = vector(STRING, [None, "b", "c", None, "a"])
    lane = np.array([1, 1, 1, 9, 9], dtype=np.int64)
    (at,) = winners(kind, np.zeros(5, dtype=np.int64), texts, lane).tolist()
    assert texts.to_python()[at] == expected
