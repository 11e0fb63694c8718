"""Pane states: the mergeable state of every group, as columns that the lake stores and any reader can merge further."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from elf.cbt import aggregates
from elf.cbt._kernel import take
from elf.cbt.budget import Budget, Fragment
from elf.cbt.rows import Rows, distinct
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.plan import Accumulator, Family, FamilyKind, Plan, Reduce
from elf.jobmaster.plan.recipe import recipe
from elf.jobmaster.windows.best import PRUNED, winners
from elf.jobmaster.windows.counters import lines_of, lines_within
from elf.jobmaster.windows.finish import Members, key_vectors, lane_values
from elf.jobmaster.windows.lanes import group_ops, lane_starts, member_inputs
from elf.jobmaster.windows.panes import Piece
from elf.jobmaster.windows.result import (
    PaneState,
    Revision,
    StateColumn,
    StateValues,
    encode_column,
    encode_part,
)

PART_ROWS = 16_384
"""Groups and members of a part: bounds the Python objects at a time, unless a single group has more members."""

ADD_FACTOR = 8
"""Memory for adding a piece, as a multiple of its size: its members in order, and as Python objects."""


class StateMaker:
    """Makes `PaneState`s of one job version. Their values are held under `budget`, encoded."""

    def __init__(self, job: str, version: str, plan: Plan, budget: Budget) -> None:
        self.job, self.version, self.plan = job, version, plan
        self.columns = tuple(state_columns(plan))
        self._budget = budget
        self._encoded, self._recipe = encode(plan), recipe(plan)

    def states(
        self, pieces: Iterable[Piece], counters: Rows, status: str, revision: Revision
    ) -> Iterator[PaneState]:
        """One state per pane that has a line, in time order; `pieces` hold panes, not merged windows."""
        return filter(None, self.steps(pieces, counters, status, revision))

    def steps(
        self, pieces: Iterable[Piece], counters: Rows, status: str, revision: Revision
    ) -> Iterator[PaneState | None]:
        """Like `states`, with None after a piece of a pane that may have more."""
        found = itertools.groupby(self._by_pane(pieces), key=itemgetter(0))
        following = next(found, None)
        for pane in distinct(counters.pane).tolist():
            values = KeptValues(self.columns, self._budget)
            if following is not None and following[0] == pane:
                for at, (_, piece) in enumerate(following[1]):
                    if at:
                        yield None
                    self._add(values, piece)
                following = next(found, None)
            yield self._state(pane, values, counters, status, revision)

    def _by_pane(self, pieces: Iterable[Piece]) -> Iterator[tuple[int, Piece]]:
        for piece in pieces:
            with self._budget.scratch(ADD_FACTOR * piece.nbytes):
                for pane in np.unique(piece.groups.pane).tolist():
                    families = [_of_pane(rows, pane) for rows in piece.families]
                    yield pane, Piece(_of_pane(piece.groups, pane), families, more=piece.more)

    def _state(
        self, pane: int, values: KeptValues, counters: Rows, status: str, revision: Revision
    ) -> PaneState:
        window = self.plan.window
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

    def _add(self, values: KeptValues, piece: Piece) -> None:
        """Add a pane's groups and their members, in parts."""
        groups = piece.groups
        both = zip(self.plan.families, piece.families, strict=True)
        families = [(family, _members(family, groups, rows, piece.more)) for family, rows in both]
        sizes = sum(
            (np.diff(members.bounds) for _, members in families), np.ones(len(groups), dtype=np.int64)
        )
        ends = np.cumsum(sizes)
        start = 0
        while start < len(groups):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + PART_ROWS, side="right"))
            stop = len(groups) if piece.more else max(stop, start + max(values.open_groups, 1))
            columns = self._group_columns(groups.slice(start, stop))
            cells = [_cells(family, members, start, stop) for family, members in families]
            values.add(columns, cells, piece.more)
            start = stop

    def _group_columns(self, groups: Rows) -> list[bytes]:
        plan = self.plan
        keys = key_vectors(groups, [key.expression.type for key in plan.keys])
        values: list[list[Any]] = [key.to_python() for key in keys]
        starts = lane_starts(group_ops(plan))
        for accumulator, at in zip(plan.accumulators, starts, strict=True):
            values.append(_lane_values(accumulator, groups, at))
        columns = self.columns[: len(values)]
        return [encode_column(column.type, part) for column, part in zip(columns, values, strict=True)]


class _Cells(NamedTuple):
    """A family's column of some groups: encoded; all its members, encoded; and the number of members of each group."""

    column: bytes
    members: bytes
    counts: NDArray[np.int64]


class KeptValues(StateValues):
    """Packed parts, under the budget until this object is deleted.

    open_groups: the number of groups of the last part that continue in the next.
    """

    def __init__(self, columns: Sequence[StateColumn], budget: Budget) -> None:
        self._parts: list[tuple[Fragment, bool]] = []
        self.packed_sizes: list[int] = []
        """Bytes of each part as it is kept: one zstd frame."""
        self._width, self._budget = len(columns), budget
        self._raw_bytes = 0
        self._digests = [hashlib.blake2b(digest_size=8) for _ in (*columns, "counts")]
        self.open_groups = 0
        self._open: list[
            NDArray[np.int64]
        ] = []  # for each family: the number of members so far of each open group

    def add(self, columns: Sequence[bytes], cells: Sequence[_Cells], more: bool) -> None:
        """Add the columns of some groups and of their families; with `more` the next part has more members of the same groups.

        Raises OSError when the disk is full.
        """
        self._digest(columns, cells, more)
        part = encode_part([*columns, *(cell.column for cell in cells)])
        self._raw_bytes += len(part)
        packed = zstandard.ZstdCompressor(level=1).compress(part)
        # A copy: the compressor's result keeps the memory that it allocated for the worst case.
        self._parts.append((self._budget.keep_packed(bytes(memoryview(packed))), more))
        self.packed_sizes.append(len(packed))

    def _digest(self, columns: Sequence[bytes], cells: Sequence[_Cells], more: bool) -> None:
        """Update the digests with array elements but no headers, so that the division into parts does not matter."""
        if not more:
            for digest, column in zip(self._digests, columns, strict=False):
                digest.update(_values_of(column))
        counts = [cell.counts.copy() for cell in cells]
        for digest, cell in zip(self._digests[len(columns) :], cells, strict=False):
            digest.update(_values_of(cell.members))
        for known, now in zip(self._open, counts, strict=False):
            now[: len(known)] += known
        if not more:
            self._digests[-1].update(np.stack(counts, axis=1).tobytes() if counts else b"")
        self._open = counts if more else []
        self.open_groups = len(counts[0]) if more else 0

    @property
    def raw_bytes(self) -> int:
        return self._raw_bytes

    @property
    def digest(self) -> bytes:
        return b"".join(digest.digest() for digest in self._digests)

    def parts(self) -> Iterator[tuple[bytes, bool]]:
        decompress = zstandard.ZstdDecompressor().decompress
        for fragment, more in self._parts:
            yield decompress(self._budget.read_packed(fragment)), more

    def packed(self, number: int) -> tuple[bytes, bool]:
        """A packed part, and whether the next one continues it. Raises OSError."""
        fragment, more = self._parts[number]
        return self._budget.read_packed(fragment), more

    def __len__(self) -> int:
        return self._width

    def __del__(self) -> None:
        for fragment, _ in self._parts:
            self._budget.free(fragment)


def _values_of(column: bytes) -> memoryview:
    """The elements of a MessagePack array, without its header."""
    return memoryview(column)[{0xDC: 3, 0xDD: 5}.get(column[0], 1) :]


_BY = (FamilyKind.MIN_BY, FamilyKind.MAX_BY)
_EXACT = (FamilyKind.EXACT_SUM, FamilyKind.EXACT_SUM_SQUARES)
_MAPS = (FamilyKind.REGISTERS, FamilyKind.BUCKETS, FamilyKind.COUNTS, *_EXACT)
"""Families whose cells are maps from a member to its number; the lake stores the others as sets of values, or of values with what
they are compared by."""


def state_columns(plan: Plan) -> Iterator[StateColumn]:
    for key in plan.keys:
        yield StateColumn(key.name, str(key.expression.type), "key")
    for i, accumulator in enumerate(plan.accumulators):
        yield StateColumn(f"_acc{i}", _lane_type(accumulator), _ROLES[accumulator.reduce])
    for i, family in enumerate(plan.families):
        if family.kind is FamilyKind.REGISTERS:
            yield StateColumn(f"_fam{i}", "binary", "registers")
        elif family.kind is FamilyKind.HASHES:
            yield StateColumn(f"_fam{i}", "binary", "hashes")
        elif family.kind is FamilyKind.BUCKETS:
            yield StateColumn(f"_fam{i}", "map<int,bigint>", "buckets")
        elif family.kind is FamilyKind.COUNTS:
            yield StateColumn(f"_fam{i}", f"map<{family.inputs[0].type},bigint>", "counts")
        elif family.kind in _EXACT:
            yield StateColumn(f"_fam{i}", "map<int,decimal(38,0)>", "exact_sum")
        else:
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
    return lane_values(type, lane, lane != empty).to_python()


def _decimal(unscaled: int, scale: int) -> Decimal | None:
    """The exact value, or None beyond the 38 digits of Parquet and Spark."""
    if abs(unscaled) >= 10**38:
        return None
    if not scale:  # the usual case, several times as fast
        return Decimal(unscaled)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _members(family: Family, groups: Rows, rows: Rows, more: bool) -> Members:
    """The members of the groups; where only one can be the result, that one. more: the groups have members in a later piece."""
    members = Members(groups, rows)
    if more or family.kind not in PRUNED or len(rows) == len(groups):
        return members
    values = key_vectors(members.rows, [family.inputs[0].type], start=members.rows.split)[0]
    of = np.repeat(np.arange(len(groups)), np.diff(members.bounds))
    chosen = winners(family.kind, of, values, members.rows.lanes[0] if len(members.rows.lanes) else None)
    return Members(groups, take(members.rows, np.sort(chosen)))


def _cells(family: Family, members: Members, start: int, stop: int) -> _Cells:
    """The members of groups [start, stop)."""
    bounds = members.bounds[start : stop + 1]
    low = int(bounds[0])
    values = _member_values(family, members, low, int(bounds[-1]))
    cells: list[Any] = [values[a - low : b - low] for a, b in itertools.pairwise(bounds.tolist())]
    if family.kind in _MAPS:
        cells = [dict(cell) for cell in cells]
    encode = msgspec.msgpack.encode
    return _Cells(encode(cells), encode(values), np.diff(bounds))


def _member_values(family: Family, members: Members, start: int, stop: int) -> list[Any]:
    """Members [start, stop): values, tuples of them, or numbers (registers, buckets, bins) or values with what the lanes say."""
    rows = members.rows.slice(start, stop)
    if family.kind in _EXACT:
        # A value adds less than 2**84 to its bin, so 38 digits are enough for 2**42 of them.
        wide = aggregates.wide_total(rows.lanes[0].view(np.uint64), rows.lanes[1])
        totals = [_decimal(total, 0) for total in wide]
        return list(zip(members.numbers()[start:stop].tolist(), totals, strict=True))
    if family.kind in (FamilyKind.REGISTERS, FamilyKind.BUCKETS):
        return list(zip(members.numbers()[start:stop].tolist(), rows.lanes[0].tolist(), strict=True))
    if family.kind is FamilyKind.HASHES:
        return list(members.numbers()[start:stop].tolist())
    vectors = key_vectors(rows, [each.type for each in member_inputs(family)], start=rows.split)
    columns = [vector.to_python() for vector in vectors]
    if family.kind is FamilyKind.COUNTS:
        columns.append(rows.lanes[0].tolist())
    elif family.kind in _BY:
        lane = rows.lanes[0]
        columns.append(
            lane_values(family.inputs[1].type, lane, np.ones(len(lane), dtype=np.bool_)).to_python()
        )
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _of_pane(rows: Rows, pane: int) -> Rows:
    low, high = np.searchsorted(rows.pane, [pane, pane + 1]).tolist()
    return rows.slice(low, high)
