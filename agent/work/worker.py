"""A worker: what one agent does for one job. Batches in, deltas out.

    batch -> WHERE -> pane, keys -> Front (groups) -> lanes
                                      | slot of the group
                                      +-> Front (each family): slot + member

Grouping works on dictionary codes and plain integers; key bytes are made once per group and cut, not once per line.
A delta holds PAO rows per family, ordered, and is what the master merges: `Delta.rows[0]` the groups, `[1]` the line
counters of each pane, `[2:]` the plan's families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.batch import Batch
from elf.cbt import aggregates
from elf.cbt._front import Front
from elf.cbt._kernel import make_rows, merge
from elf.cbt._keys import concat_keys, encode_keys
from elf.cbt._sketch import exact_parts, exact_squares_parts, hashes_of_strings, registers_of_strings
from elf.cbt._strings import Strings
from elf.cbt.rows import Rows
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.plan.plan import Accumulator, Expression, Family, FamilyKind, Plan, Reduce
from elf.jobmaster.values.sql_types import Kind
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows.best import PRUNED, winners
from elf.jobmaster.windows.counters import lost_rows
from elf.jobmaster.windows.lanes import LINE_OPS, family_ops, group_ops, is_valued, member_inputs

Mask = NDArray[np.bool_]

READ, PARSED, REJECTED = range(3)
"""The accumulators of the line counters."""
CUT_FACTOR = 3
"""Memory of a cut, as a multiple of the fronts: key bytes, rows, and the sorted rows."""


class Delta(msgspec.Struct):
    """The rows of a worker since its last cut. overflows: results made NULL because they did not fit their type. lost: values
    of the lines that did not convert to the column's type, by column and pane."""

    rows: list[Rows]
    overflows: int = 0
    lost: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)


class Worker:
    """Reduces the batches of one source for one version of one job.

    Bound: the fronts grow with the groups seen since the last `cut`; the caller cuts when `uncut_bytes` passes its limit.
    `cut` must come before the parser's dictionaries are cleared, since groups are keyed by their codes.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cache = Cache()
        self._pane_us = plan.window.pane_us if plan.window else 0
        self._clock = plan.window.clock if plan.window else None
        self._groups = Front(len(plan.keys), group_ops(plan))
        self._lines = Front(0, LINE_OPS)
        self._families = [_member_front(family) for family in plan.families]
        self._hashed: dict[int, _OfStrings] = {}
        self._key_strings: list[Strings | None] = [None] * len(plan.keys)
        self._member_strings: list[list[Strings | None]] = [[None] * len(f.inputs) for f in plan.families]
        self._settled: list[Delta] = []
        self._wanted = frozenset(column.name for column in plan.columns)
        self._lost = Counter[tuple[str, int]]()

    @property
    def uncut_bytes(self) -> int:
        """Memory of the rows that the next cut has: the fronts', less what they hold in reserve."""
        return sum(front.used_bytes for front in self._fronts)

    @property
    def nbytes(self) -> int:
        """Memory held by the fronts and caches."""
        caches = self.cache.nbytes + sum(known.nbytes for known in self._hashed.values())
        return int(sum(front.nbytes for front in self._fronts) + caches)

    @property
    def _fronts(self) -> tuple[Front, ...]:
        return (self._groups, self._lines, *self._families)

    def add(
        self,
        batch: Batch,
        *,
        pane_before: int | None = None,
    ) -> None:
        """Reduce a batch.

        pane_before: event time (microseconds) of the last line of the same file before this batch: its pane takes the
        rejects that come before the first row; without one, the first row's pane does.
        """
        rows = batch.rows
        columns: Mapping[str, Vector] = batch.columns
        panes = self._panes(batch)
        self._count_lines(batch, panes, pane_before)
        if batch.lost:
            self._count_lost(batch, panes)
        if not rows:
            return
        if self.plan.where is not None:
            keep = truth_of(evaluate(self.plan.where, columns, rows, self.cache), rows)
            if not keep.all():
                chosen = np.flatnonzero(keep)
                if not len(chosen):
                    return
                rows = len(chosen)
                columns = {
                    name: vector.take(chosen) for name, vector in columns.items() if name in self._wanted
                }
                panes = panes[chosen] if isinstance(panes, np.ndarray) else panes
        self._reduce(columns, rows, panes)

    def _panes(self, batch: Batch) -> int | NDArray[np.int64]:
        if not self._pane_us:
            return 0
        times = batch.columns["time"].values
        if self._clock is not None:
            times = self._clock.local(times)
        return np.asarray(times - times % self._pane_us, dtype=np.int64)

    def pane_of(self, time_us: int) -> int:
        if self._clock is not None:
            time_us = self._clock.local_of(time_us)
        return time_us - time_us % self._pane_us if self._pane_us else 0

    def _count_lines(self, batch: Batch, panes: int | NDArray[np.int64], pane_before: int | None) -> None:
        """Count the lines of each pane."""
        if batch.rows:
            slots = self._line_slots(panes, batch.rows)
            self._lines.count(READ, slots)
            self._lines.count(PARSED, slots)
        placed = batch.rows > 0 or pane_before is not None or not self._pane_us
        if len(batch.reject_rows) and placed:
            self._count_rejects(batch, panes, pane_before)

    def _count_lost(self, batch: Batch, panes: int | NDArray[np.int64]) -> None:
        for column, rows in batch.lost.items():
            if column in self._wanted:
                at = panes[rows] if isinstance(panes, np.ndarray) else np.full(len(rows), panes)
                for pane, count in zip(*np.unique(at, return_counts=True), strict=True):
                    self._lost[column, int(pane)] += int(count)

    def _line_slots(self, panes: int | NDArray[np.int64], rows: int) -> NDArray[np.int32]:
        if not isinstance(panes, np.ndarray):
            panes = np.full(rows, panes, dtype=np.int64)
        return self._lines.slots(panes, [])

    def _count_rejects(self, batch: Batch, panes: int | NDArray[np.int64], pane_before: int | None) -> None:
        before = batch.reject_rows.astype(np.int64) - 1
        if not isinstance(panes, np.ndarray):
            where = np.full(len(before), panes, dtype=np.int64)
        elif pane_before is None:
            where = panes[np.maximum(before, 0)]
        else:
            where = np.where(
                before < 0,
                self.pane_of(pane_before),
                panes[np.maximum(before, 0)] if len(panes) else 0,
            )
        slots = self._lines.slots(where, [])
        self._lines.count(READ, slots)
        self._lines.count(REJECTED, slots)

    def count_rejects_at(self, time_us: int, rejects: int) -> None:
        """Count rejects in the pane of that event time, in microseconds."""
        if not rejects:
            return
        slots = self._lines.slots(np.full(rejects, self.pane_of(time_us), dtype=np.int64), [])
        self._lines.count(READ, slots)
        self._lines.count(REJECTED, slots)

    def _reduce(self, columns: Mapping[str, Vector], rows: int, panes: int | NDArray[np.int64]) -> None:
        plan = self.plan
        known: dict[int, Vector] = {}

        def vector(expression: Expression) -> Vector:
            # By identity: the plan's own objects live as long as the worker, and hashing a tree costs more than a look.
            found = known.get(id(expression))
            if found is None:
                found = known[id(expression)] = evaluate(expression, columns, rows, self.cache)
            return found

        keys = [vector(key.expression) for key in plan.keys]
        members = [[vector(each) for each in family.inputs] for family in plan.families]
        self._settle_if_dictionaries_changed(keys, members)
        atoms = [_atom(key, rows) for key in keys]
        pane = panes if isinstance(panes, np.ndarray) else np.full(rows, panes, dtype=np.int64)
        slots = self._groups.slots(pane, atoms)
        for index, accumulator in enumerate(plan.accumulators):
            _accumulate(self._groups, index, accumulator, slots, vector, rows)
        for number, family in enumerate(plan.families):
            self._add_members(number, family, members[number], slots, vector, rows)

    def _settle_if_dictionaries_changed(
        self, keys: Sequence[Vector], members: Sequence[Sequence[Vector]]
    ) -> None:
        """One front must not mix codes of two dictionaries: cut first when a dictionary was replaced."""
        strings = [key.strings for key in keys]
        inner = [[member.strings for member in family] for family in members]
        if strings != self._key_strings or inner != self._member_strings:
            if len(self._groups):
                self._settled.append(self._cut_fronts())
            self._key_strings, self._member_strings = strings, inner

    def _add_members(
        self,
        number: int,
        family: Family,
        inputs: Sequence[Vector],
        slots: NDArray[np.int32],
        vector: Any,
        rows: int,
    ) -> None:
        front = self._families[number]
        by = inputs[1:] if family.kind in _BY else inputs  # min_by and max_by may return NULL
        valid = _all_valid(by, rows)
        if family.filter is not None:
            truth = truth_of(vector(family.filter), rows)
            valid = truth if valid is None else valid & truth
        if family.kind is FamilyKind.DISTINCT:
            front.slots(0, [(slots, None), *(_atom(each, rows) for each in inputs)], valid)
        elif is_valued(family):
            _add_value(
                front, family.kind, front.slots(0, [(slots, None), _atom(inputs[0], rows)], valid), by, rows
            )
        elif family.kind is FamilyKind.REGISTERS:
            registers, rhos = self._register_of(number, inputs[0], rows)
            front.maximum(0, front.slots(0, [(slots, None), (registers, None)], valid), rhos)
        elif family.kind is FamilyKind.HASHES:
            hashes = self._hash_of(number, inputs[0], rows)
            front.slots(0, [(slots, None), (hashes, None)], valid)
        elif family.kind is FamilyKind.BUCKETS:
            buckets = aggregates.bucket(_numbers(inputs[0], rows))
            front.count(0, front.slots(0, [(slots, None), (buckets, None)], valid))
        else:
            _add_exact(front, family.kind, slots, _numbers(inputs[0], rows), valid)

    def _register_of(
        self, number: int, value: Vector, rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if value.type.kind is not Kind.STRING:
            numbers = _numbers(value, rows)
            if value.type.kind is Kind.DOUBLE:
                return aggregates.registers_of_doubles(numbers)
            return aggregates.registers_of_ints(numbers)
        known = self._hashed.setdefault(number, _OfStrings(registers_of_strings))
        registers, rhos = known.of(value.strings)
        codes = np.broadcast_to(value.values, rows)
        return registers[codes], rhos[codes]

    def _hash_of(self, number: int, value: Vector, rows: int) -> NDArray[np.int64]:
        if value.type.kind is not Kind.STRING:
            numbers = _numbers(value, rows)
            is_double = value.type.kind is Kind.DOUBLE
            return aggregates.hashes_of_doubles(numbers) if is_double else aggregates.hashes_of_ints(numbers)
        known = self._hashed.setdefault(number, _OfStrings(lambda *of: (hashes_of_strings(*of),)))
        (hashes,) = known.of(value.strings)
        found: NDArray[np.int64] = hashes[np.broadcast_to(value.values, rows)]
        return found

    def has_rows(self) -> bool:
        """Whether a cut would have rows."""
        return bool(self._settled) or self._holds_rows()

    def _holds_rows(self) -> bool:
        # Either may be empty alone: WHERE kept no row, or the lines were already cut because a dictionary was replaced.
        return len(self._lines) > 0 or len(self._groups) > 0

    def cut(self) -> list[Delta]:
        """Take everything since the last cut: one delta, or several if dictionaries were replaced."""
        out, self._settled = self._settled, []
        if self._holds_rows():
            out.append(self._cut_fronts())
        return out

    def forget(self) -> None:
        """Drop all that depends on the parser's dictionaries, after a `cut` and before they are cleared."""
        self.cache.clear()
        self._hashed.clear()

    def _cut_fronts(self) -> Delta:
        plan, groups = self.plan, self._groups
        columns = [
            _key_column(key.expression, groups.column(i), strings)
            for i, (key, strings) in enumerate(zip(plan.keys, self._key_strings, strict=True))
        ]
        panes = groups.panes()
        keys, ends = _encode(columns, len(groups))
        out = [
            make_rows(panes, keys, ends, _lengths(ends), groups.lanes(), group_ops(plan)),
            self._cut_lines(),
        ]
        for number, family in enumerate(plan.families):
            out.append(self._cut_family(number, family, panes, keys, ends))
        groups.clear()
        overflows, self.cache.overflows = self.cache.overflows, 0
        lost, self._lost = self._lost, Counter()
        return Delta(out, overflows, lost)

    def _cut_lines(self) -> Rows:
        lines = self._lines
        keys, ends = _encode([], len(lines))
        rows = make_rows(lines.panes(), keys, ends, _lengths(ends), lines.lanes(), LINE_OPS)
        lines.clear()
        return merge([rows, lost_rows(self._lost)], LINE_OPS) if self._lost else rows

    def _cut_family(
        self,
        number: int,
        family: Family,
        panes: NDArray[np.int64],
        keys: NDArray[np.uint8],
        ends: NDArray[np.uint64],
    ) -> Rows:
        front = self._families[number]
        slots, _ = front.column(0)
        lanes = front.lanes()
        members = [
            _key_column(each, front.column(i + 1), strings)
            for i, (each, strings) in enumerate(
                zip(member_inputs(family), self._member_strings[number], strict=False)
            )
        ] or [("int", front.column(1)[0], None, None)]
        if family.kind in PRUNED or family.kind is FamilyKind.HASHES:
            chosen = _winners(family, slots, members[0], lanes)
            slots, lanes = slots[chosen], np.ascontiguousarray(lanes[:, chosen])
            members = [_taken(member, chosen) for member in members]
        member_keys, member_ends = _encode(members, len(slots))
        both, both_ends, split = concat_keys(keys, ends, slots.astype(np.int32), member_keys, member_ends)
        rows = make_rows(panes[slots], both, both_ends, split, lanes, family_ops(family))
        front.clear()
        return rows


class _OfStrings:
    """What `hashed` gives for each value of one dictionary, such as register and rho, extended as it grows."""

    def __init__(self, hashed: Callable[[Strings, int], tuple[NDArray[np.int64], ...]]) -> None:
        self._hashed = hashed
        self._strings: Strings | None = None
        self._generation = -1
        self._found: tuple[NDArray[np.int64], ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._found)

    def of(self, strings: Strings | None) -> tuple[NDArray[np.int64], ...]:
        assert strings is not None
        if strings is not self._strings or strings.generation != self._generation:
            self._strings, self._generation = strings, strings.generation
            self._found = self._hashed(strings, len(strings))
        if len(self._found[0]) < len(strings):
            more = self._hashed(strings, len(self._found[0]))
            self._found = tuple(map(np.concatenate, zip(self._found, more, strict=True)))
        if not len(self._found[0]):  # all NULL so far: code -1 needs an element to index
            return tuple(np.zeros(1, dtype=np.int64) for _ in self._found)
        return self._found


def _member_front(family: Family) -> Front:
    return Front(1 + (len(member_inputs(family)) or 1), family_ops(family))


_BY = frozenset({FamilyKind.MIN_BY, FamilyKind.MAX_BY})
_KeyColumn = tuple[str, NDArray[np.int64], Mask | None, Strings | None]


def _add_value(
    front: Front, kind: FamilyKind, slots: NDArray[np.int32], by: Sequence[Vector], rows: int
) -> None:
    """The lane of members whose value may be the result: what they are compared by, or their count; none for LEAST, GREATEST."""
    if kind is FamilyKind.COUNTS:
        front.count(0, slots)
    elif kind in _BY:
        numbers = _numbers(by[0], rows)
        if numbers.dtype == np.float64:
            numbers = aggregates.order_double(numbers)
        (front.minimum if kind is FamilyKind.MIN_BY else front.maximum)(0, slots, numbers)


def _winners(
    family: Family, slots: NDArray[Any], member: _KeyColumn, lanes: NDArray[np.int64]
) -> NDArray[np.intp]:
    """The members that can still be the result of their group."""
    type, (kind, values, valid, strings) = family.inputs[0].type, member
    if family.kind is FamilyKind.HASHES:
        return aggregates.least_hashes(slots, values)
    shown = values.view(np.float64) if kind == "double" else values
    return winners(family.kind, slots, Vector(type, shown, valid, strings), lanes[0] if len(lanes) else None)


def _taken(member: _KeyColumn, chosen: NDArray[np.intp]) -> _KeyColumn:
    kind, values, valid, strings = member
    return kind, values[chosen], None if valid is None else valid[chosen], strings


def truth_of(condition: Vector, rows: int) -> Mask:
    """WHERE and FILTER keep a row only when the condition is TRUE; NULL is not."""
    truth = condition.values if condition.valid is None else condition.values & condition.valid
    return np.asarray(np.broadcast_to(truth, rows), dtype=np.bool_)


def _valid(vector: Vector, rows: int) -> Mask | None:
    if vector.type.kind is Kind.STRING:
        return np.asarray(np.broadcast_to(vector.values >= 0, rows))
    return None if vector.valid is None else np.asarray(np.broadcast_to(vector.valid, rows))


def _all_valid(vectors: Sequence[Vector], rows: int) -> Mask | None:
    out: Mask | None = None
    for vector in vectors:
        valid = _valid(vector, rows)
        if valid is not None:
            out = valid if out is None else out & valid
    return out


def _numbers(vector: Vector, rows: int) -> NDArray[Any]:
    """The values as int64 or float64, one for each row; of decimals beyond 64 bits the lower half."""
    values = vector.values
    if values.dtype == object:
        values = _halves(values)[0].view(np.int64)
    elif values.dtype == np.bool_:
        values = values.astype(np.int64)
    return np.ascontiguousarray(np.broadcast_to(values, rows))


def _halves(wide: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Python's 128-bit integers as lower and upper 64 bits; most fit 64 bits, which numpy converts in one call."""
    try:
        narrow = wide.astype(np.int64)
        return narrow.view(np.uint64), narrow >> 63
    except OverflowError:
        low = [value & 0xFFFF_FFFF_FFFF_FFFF for value in wide.tolist()]
        high = [value >> 64 for value in wide.tolist()]
        return np.array(low, dtype=np.uint64), np.array(high, dtype=np.int64)


def _atom(vector: Vector, rows: int) -> tuple[NDArray[Any], Mask | None]:
    """A key or member column as integers for the front, and where it is not NULL."""
    if vector.type.kind is Kind.STRING:
        return np.ascontiguousarray(np.broadcast_to(vector.values, rows)), None
    values = _numbers(vector, rows)
    if values.dtype == np.float64:
        values = aggregates.canonical(values).view(np.int64)
    valid = None if vector.valid is None else np.ascontiguousarray(np.broadcast_to(vector.valid, rows))
    return values, valid


def _key_column(
    expression: Expression, column: tuple[NDArray[np.int64], Mask | None], strings: Strings | None
) -> tuple[str, NDArray[np.int64], Mask | None, Strings | None]:
    values, valid = column
    if expression.type.kind is Kind.STRING:
        return "string", values, values >= 0, strings
    return ("double" if expression.type.kind is Kind.DOUBLE else "int"), values, valid, None


def _encode(columns: Sequence[Any], rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    if columns:
        return encode_keys(columns)
    return np.empty(0, dtype=np.uint8), np.zeros(rows, dtype=np.uint64)


def _lengths(ends: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return np.diff(ends, prepend=np.uint64(0)).astype(np.uint32)


def _accumulate(
    front: Front, index: int, accumulator: Accumulator, slots: NDArray[np.int32], vector: Any, rows: int
) -> None:
    valid = None
    if accumulator.filter is not None:
        valid = truth_of(vector(accumulator.filter), rows)
    if accumulator.input is None:
        front.count(index, slots, valid)
        return
    value: Vector = vector(accumulator.input)
    present = _valid(value, rows)
    if present is not None:
        valid = present if valid is None else valid & present
    if accumulator.reduce is Reduce.COUNT:
        front.count(index, slots, valid)
        return
    if accumulator.reduce is Reduce.SUM and value.values.dtype == object:
        low, high = _halves(value.values)
        front.add_wide(index, slots, np.broadcast_to(low, rows), np.broadcast_to(high, rows), valid)
        return
    numbers = _numbers(value, rows)
    if accumulator.reduce is Reduce.SUM:
        front.add(index, slots, numbers, valid)
    elif accumulator.reduce is Reduce.SUM_SQUARES:
        front.add_squares(index, slots, numbers, valid)
    else:
        if numbers.dtype == np.float64:
            numbers = aggregates.order_double(numbers)
        reduce = front.minimum if accumulator.reduce is Reduce.MIN else front.maximum
        reduce(index, slots, numbers, valid)


def _add_exact(
    front: Front, kind: FamilyKind, slots: NDArray[np.int32], values: NDArray[np.float64], valid: Mask | None
) -> None:
    parts = [exact_parts(values)]
    if kind is FamilyKind.EXACT_SUM_SQUARES:
        parts = list(exact_squares_parts(values))
    for bins, low, high in parts:
        front.add_wide(0, front.slots(0, [(slots, None), (bins, None)], valid), low, high)
