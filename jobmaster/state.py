"""Pane states: the mergeable state of every group, as columns that the lake stores and any reader can merge again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np

from elf.cbt import aggregates
from elf.cbt.rows import Rows, concat
from elf.jobmaster.finish import Members, key_vectors
from elf.jobmaster.lanes import family_ops, group_ops, lane_count, lane_starts
from elf.jobmaster.panes import Piece
from elf.jobmaster.plan import Accumulator, Family, FamilyKind, Plan, Reduce, encode
from elf.jobmaster.recipe import recipe
from elf.jobmaster.vector import Kind, SqlType, Vector
from elf.jobmaster.windows import lines_of, lines_within
from elf.sinks.result import PaneState, Revision, StateColumn


class StateMaker:
    """Makes `PaneState`s of one job version."""

    def __init__(self, job: str, version: str, plan: Plan) -> None:
        self.job, self.version, self.plan = job, version, plan
        self.columns = tuple(_state_columns(plan))
        self._encoded, self._recipe = encode(plan), recipe(plan)

    def states(
        self, pieces: Iterable[Piece], counters: Rows, status: str, revision: Revision
    ) -> Iterator[PaneState]:
        """One state per pane that has a line, in time order; `pieces` hold panes, not merged windows."""
        found = self._by_pane(pieces)
        following = next(found, None)
        for pane in counters.pane.tolist():
            groups: Rows | None = None
            families: list[Rows] = []
            if following is not None and following[0] == pane:
                _, groups, families = following
                following = next(found, None)
            yield self._state(pane, groups, families, counters, status, revision)

    def _by_pane(self, pieces: Iterable[Piece]) -> Iterator[tuple[int, Rows, list[Rows]]]:
        held: list[Piece] = []
        for piece in pieces:
            held.append(piece)
            if piece.whole:
                yield from self._split(held)
                held = []
        if held:
            yield from self._split(held)

    def _split(self, pieces: list[Piece]) -> Iterator[tuple[int, Rows, list[Rows]]]:
        groups = concat([piece.groups for piece in pieces], lane_count(group_ops(self.plan)))
        families = [
            concat([piece.families[i] for piece in pieces], lane_count(family_ops(family)))
            for i, family in enumerate(self.plan.families)
        ]
        for pane in np.unique(groups.pane).tolist():
            yield pane, _of_pane(groups, pane), [_of_pane(rows, pane) for rows in families]

    def _state(
        self,
        pane: int,
        groups: Rows | None,
        families: list[Rows],
        counters: Rows,
        status: str,
        revision: Revision,
    ) -> PaneState:
        window = self.plan.window
        values: list[list[Any]] = [[] for _ in self.columns]
        if groups is not None:
            values = self._values(groups, families)
        return PaneState(
            self.job,
            self.version,
            pane,
            pane + window.pane_us if window else 0,
            status,
            revision,
            lines_within(counters, pane, pane + 1) if window else lines_of(counters),
            self.columns,
            values,
            self._encoded,
            recipe=self._recipe,
        )

    def _values(self, groups: Rows, families: list[Rows]) -> list[list[Any]]:
        plan = self.plan
        keys = key_vectors(groups, [key.expression.type for key in plan.keys])
        values: list[list[Any]] = [key.to_python() for key in keys]
        starts = lane_starts(group_ops(plan))
        for accumulator, at in zip(plan.accumulators, starts, strict=True):
            values.append(_lane_values(accumulator, groups, at))
        for family, rows in zip(plan.families, families, strict=True):
            if family.kind in _STORED:
                values.append(_member_values(family, groups, rows))
        return values


_STORED = (FamilyKind.DISTINCT, FamilyKind.BUCKETS)
"""Families that the lake holds today; registers and exact sums have no portable form there yet."""


def _state_columns(plan: Plan) -> Iterator[StateColumn]:
    for key in plan.keys:
        yield StateColumn(key.name, str(key.expression.type), "key")
    for i, accumulator in enumerate(plan.accumulators):
        yield StateColumn(f"_acc{i}", _lane_type(accumulator), _ROLES[accumulator.reduce])
    for i, family in enumerate(plan.families):
        if family.kind is FamilyKind.BUCKETS:
            yield StateColumn(f"_fam{i}", "map<int,bigint>", "buckets")
        elif family.kind is FamilyKind.DISTINCT:
            yield StateColumn(f"_fam{i}", _members_type(family), "distinct")


_ROLES = {
    Reduce.COUNT: "sum",
    Reduce.SUM: "sum",
    Reduce.SUM_SQUARES: "sum",
    Reduce.MIN: "min",
    Reduce.MAX: "max",
}


def _members_type(family: Family) -> str:
    types = [str(each.type) for each in family.inputs]
    if len(types) == 1:
        return f"array<{types[0]}>"
    return "array<struct<" + ",".join(f"_{i}:{type}" for i, type in enumerate(types)) + ">>"


def _lane_type(accumulator: Accumulator) -> str:
    if accumulator.reduce is Reduce.COUNT:
        return "bigint"
    assert accumulator.input is not None
    type = accumulator.input.type
    if accumulator.reduce is Reduce.SUM:
        return f"decimal(38,{type.scale})"
    if accumulator.reduce is Reduce.SUM_SQUARES:
        return f"decimal(38,{2 * type.scale})"
    return str(type)


def _lane_values(accumulator: Accumulator, groups: Rows, at: int) -> list[Any]:
    lane = groups.lanes[at]
    if accumulator.reduce is Reduce.COUNT:
        return list(lane.tolist())
    assert accumulator.input is not None
    type = accumulator.input.type
    if accumulator.reduce in (Reduce.SUM, Reduce.SUM_SQUARES):
        scale = type.scale * (2 if accumulator.reduce is Reduce.SUM_SQUARES else 1)
        totals = aggregates.wide_total(lane.view(np.uint64), groups.lanes[at + 1])
        return [_decimal(total, scale) for total in totals]
    empty = np.iinfo(np.int64).max if accumulator.reduce is Reduce.MIN else np.iinfo(np.int64).min
    return _typed(type, lane, lane != empty).to_python()


def _decimal(unscaled: int, scale: int) -> Decimal | None:
    """Exactly, or None beyond the 38 digits that Parquet and Spark hold."""
    if abs(unscaled) >= 10**38:
        return None
    if not scale:  # nearly always, and several times as fast
        return Decimal(unscaled)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _typed(type: SqlType, lane: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> Vector:
    if type.kind is Kind.DOUBLE:
        return Vector(type, aggregates.undo_order_double(lane), valid)
    return Vector(type, lane > 0 if type.kind is Kind.BOOLEAN else lane, valid)


def _member_values(family: Family, groups: Rows, rows: Rows) -> list[Any]:
    members = Members(groups, rows)
    rows, index = members.rows, members.index().tolist()
    out: list[Any]
    if family.kind is FamilyKind.BUCKETS:
        out = [{} for _ in range(len(groups))]
        for group, bucket, count in zip(
            index, members.numbers().tolist(), rows.lanes[0].tolist(), strict=True
        ):
            out[group][bucket] = count
        return out
    out = [[] for _ in range(len(groups))]
    columns = [
        vector.to_python()
        for vector in key_vectors(rows, [each.type for each in family.inputs], start=rows.split)
    ]
    for group, value in zip(index, zip(*columns, strict=True), strict=True):
        out[group].append(value[0] if len(value) == 1 else value)
    return out


def _of_pane(rows: Rows, pane: int) -> Rows:
    low, high = np.searchsorted(rows.pane, [pane, pane + 1]).tolist()
    return rows.slice(low, high)
