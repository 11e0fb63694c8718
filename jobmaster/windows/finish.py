"""From merged rows to results: the second and third stages of a plan (groups, result), one piece at a time.

Piece (rows of groups and families) -> keys and aggregates as vectors -> HAVING -> ORDER BY -> SELECT -> rows
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.cbt import aggregates
from elf.cbt._kernel import take
from elf.cbt._keys import decode_keys
from elf.cbt.rows import Rows, distinct
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.functions.frame import from_list, nulls
from elf.jobmaster.plan.plan import Aggregate, Column, Expression, Family, Plan
from elf.jobmaster.values.sql_types import BIGINT, DOUBLE, STRING, TIMESTAMP, WINDOW, Kind, SqlType
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows._finish import group_index, sorted_members
from elf.jobmaster.windows._order import join_texts, sorted_index
from elf.jobmaster.windows.best import winners
from elf.jobmaster.windows.lanes import group_ops, is_valued, lane_starts
from elf.jobmaster.windows.panes import Piece

if TYPE_CHECKING:
    from fractions import Fraction


class Finished(msgspec.Struct):
    """n result rows of one or more windows, in window order and within a window by the plan's order.

    starts: window start of each row (n,). order: the vectors of `Plan.order`. columns: a vector of n per select item. Their
    dictionaries may be invalid once the `Finisher` processes the next piece.
    """

    starts: NDArray[np.int64]
    order: list[Vector]
    columns: list[Vector]

    def __len__(self) -> int:
        return len(self.starts)


class Finisher:
    """Finishes pieces of one plan. `overflows` counts results made NULL because they did not fit their type."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._cache = Cache()
        self._starts = lane_starts(group_ops(plan))
        self._valued = {at for at, family in enumerate(plan.families) if is_valued(family)}

    @property
    def overflows(self) -> int:
        return int(self._cache.overflows)

    def finish(self, piece: Piece) -> Finished:
        """All three steps for the groups of a piece. The caller applies LIMIT, since it has the window's other pieces."""
        # The derived dictionaries of the result stage live no longer than their piece.
        self._cache.clear()
        groups = piece.groups
        names = self._names(groups, piece.families, piece.counts)
        starts = groups.pane
        rows = len(groups)
        if self.plan.having is not None:
            truth = evaluate(self.plan.having, names, rows, self._cache)
            keep = np.broadcast_to(truth.values if truth.valid is None else truth.values & truth.valid, rows)
            if not keep.all():
                chosen = np.flatnonzero(keep)
                names = {name: vector.take(chosen) for name, vector in names.items()}
                starts, rows = starts[chosen], len(chosen)
        order = [evaluate(item.expression, names, rows, self._cache).full(rows) for item in self.plan.order]
        ranks = self._ranks(starts, order)
        if ranks is not None:
            starts, order = starts[ranks], [vector.take(ranks) for vector in order]
            names = {name: vector.take(ranks) for name, vector in names.items()}
        return Finished(
            starts, order, [self._select(item.expression, names, rows) for item in self.plan.select]
        )

    def finish_other(self, rows: Rows) -> Finished:
        """The SELECT of rows `other` (`elf.cbt.other`), all of whose keys are NULL. No HAVING, no ORDER BY."""
        self._cache.clear()
        count, width = len(rows), len(self.plan.keys)
        nulls, ends = (
            np.zeros(count * width, np.uint8),
            np.arange(1, count + 1, dtype=np.uint64) * np.uint64(width),
        )
        groups = msgspec.structs.replace(rows, keys=nulls, ends=ends, split=np.full(count, width, np.uint32))
        names = self._names(groups, (), {})
        order = [evaluate(item.expression, names, count, self._cache).full(count) for item in self.plan.order]
        columns = [self._select(item.expression, names, count) for item in self.plan.select]
        return Finished(groups.pane, order, columns)

    def _names(
        self, groups: Rows, families: Sequence[Rows], counts: Mapping[int, NDArray[np.int64]]
    ) -> dict[str, Vector]:
        """`#k…` and `#a…` of every group, before HAVING."""
        plan = self.plan
        types = [key.expression.type for key in plan.keys]
        names = {f"#k{i}": key for i, key in enumerate(key_vectors(groups, types))}
        members = [Members(groups, rows, counts.get(i)) for i, rows in enumerate(families)]
        for i, aggregate in enumerate(plan.aggregates):
            names[f"#a{i}"] = self._aggregate(aggregate, groups, members)
        if plan.window is not None:
            bounds, clock = [groups.pane, groups.pane + plan.window.size_us], plan.window.clock
            start, end = bounds if clock is None else map(clock.utc, bounds)
            names["#window_start"], names["#window_end"] = Vector(TIMESTAMP, start), Vector(TIMESTAMP, end)
        return names

    def _ranks(self, starts: NDArray[np.int64], order: Sequence[Vector]) -> NDArray[np.intp] | None:
        if not order or len(starts) < 2:
            return None
        keys: list[NDArray[Any]] = [np.cumsum(np.diff(starts, prepend=starts[:1]) != 0)]
        for item, vector in zip(self.plan.order, order, strict=True):
            keys += _sort_keys(vector, item.descending, item.nulls_first)
        return _order_of(keys)

    def _select(self, expression: Expression, names: Mapping[str, Vector], rows: int) -> Vector:
        if isinstance(expression, Column) and expression.name == "#window":
            bounds = [names[name].full(rows).values for name in ("#window_start", "#window_end")]
            return Vector(WINDOW, np.stack(bounds).T)
        return evaluate(expression, names, rows, self._cache).full(rows)

    # Aggregates: from lanes and members to one value per group.

    def _aggregate(self, aggregate: Aggregate, groups: Rows, members: Sequence[Members]) -> Vector:
        function = aggregate.function
        if function == "count":
            return Vector(BIGINT, self._lane(groups, aggregate.accumulators[0]))
        if function == "count_distinct":
            return Vector(BIGINT, members[aggregate.families[0]].counts())
        if function == "approx_count_distinct":
            return Vector(BIGINT, members[aggregate.families[0]].distinct_estimates())
        if function == "approx_set":
            return Vector(BIGINT, members[aggregate.families[0]].set_estimates())
        if function == "approx_percentile":
            return self._percentile(aggregate, groups, members[aggregate.families[0]])
        if not aggregate.accumulators and aggregate.families[0] in self._valued:
            return members[aggregate.families[0]].best(self.plan.families[aggregate.families[0]], len(groups))
        counts = self._lane(groups, aggregate.accumulators[0])
        valid = counts > 0
        if function in ("min", "max"):
            return lane_values(aggregate.type, self._lane(groups, aggregate.accumulators[1]), valid)
        if aggregate.input_type.kind is Kind.DOUBLE:
            exact = [members[family].exact_values() for family in aggregate.families]
            return _of_doubles(function, counts, exact, valid)
        low, high = self._wide(groups, aggregate.accumulators[1])
        if function == "sum":
            return self._sum(aggregate.type, low, high, valid)
        if function == "avg":
            return self._average(aggregate, counts, low, high, valid)
        squares = aggregates.wide_total(*self._wide(groups, aggregate.accumulators[2]))
        return self._variance(aggregate, counts, aggregates.wide_total(low, high), squares)

    def _lane(self, groups: Rows, accumulator: int) -> NDArray[np.int64]:
        lane: NDArray[np.int64] = groups.lanes[self._starts[accumulator]]
        return lane

    def _wide(self, groups: Rows, accumulator: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        at = self._starts[accumulator]
        return groups.lanes[at].view(np.uint64), groups.lanes[at + 1]

    def _sum(
        self, type: SqlType, low: NDArray[np.uint64], high: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> Vector:
        narrow = low.view(np.int64)
        fits = high == narrow >> 63
        if type.kind is not Kind.DECIMAL:
            self._cache.overflows += int((~fits).sum())
            return _masked(type, narrow, valid & fits)
        if fits.all():
            values = narrow.astype(object) if type.precision > 18 else narrow
            return _masked(type, values, valid)
        bound = 10**type.precision
        totals = aggregates.wide_total(low, high)
        inside = np.array([abs(total) < bound for total in totals], dtype=np.bool_)
        self._cache.overflows += int((~inside).sum())
        return _masked(type, np.array(totals, dtype=object), valid & inside)

    def _average(
        self,
        aggregate: Aggregate,
        counts: NDArray[np.int64],
        low: NDArray[np.uint64],
        high: NDArray[np.int64],
        valid: NDArray[np.bool_],
    ) -> Vector:
        narrow = low.view(np.int64)
        most = _greatest(narrow) if (high == narrow >> 63).all() else 2**127
        totals = narrow if most < 2**63 else np.array(aggregates.wide_total(low, high), dtype=object)
        some = np.maximum(counts, 1)
        if aggregate.type.kind is Kind.DOUBLE:
            if most <= 2**53:
                return Vector(DOUBLE, totals / some, valid)  # both exact as doubles, and rounded once
            # Python's int / int is also rounded once.
            exact = [t / n for t, n in zip(totals.tolist(), some.tolist(), strict=True)]
            return Vector(DOUBLE, np.array(exact, dtype=np.float64), valid)
        scale = 10 ** (aggregate.type.scale - aggregate.input_type.scale)
        inside = valid
        if 2 * most * scale + _greatest(some) < 2**63:
            out = _half_up(totals * scale, some)
        else:
            out = _half_up(totals.astype(object) * scale, some.astype(object))
            # The sum is a decimal too, of ten more digits; a saturated lane is larger than any decimal.
            sum_bound = 10 ** min(38, aggregate.input_type.precision + 10)
            inside = valid & (abs(totals) < sum_bound) & (abs(out) < 10**aggregate.type.precision)
            self._cache.overflows += int((valid & ~inside).sum())
            out[~inside] = 0
        return _masked(
            aggregate.type, out.astype(object if aggregate.type.precision > 18 else np.int64), inside
        )

    def _variance(
        self, aggregate: Aggregate, counts: NDArray[np.int64], totals: Sequence[int], squares: Sequence[int]
    ) -> Vector:
        from elf.cbt.exact import variance  # late, as all rational numbers: few queries need them

        unit, function = 10**aggregate.input_type.scale, aggregate.function
        kind = {"sample": "samp" in function, "root": "stddev" in function}
        sums = zip(counts.tolist(), totals, squares, strict=True)
        return from_list(DOUBLE, [variance(*each, unit=unit, **kind) for each in sums])

    def _percentile(self, aggregate: Aggregate, groups: Rows, members: Members) -> Vector:
        counts = self._lane(groups, aggregate.accumulators[0])
        low: NDArray[Any] = self._lane(groups, aggregate.accumulators[1])
        high: NDArray[Any] = self._lane(groups, aggregate.accumulators[2])
        is_double = aggregate.input_type.kind is Kind.DOUBLE
        valid = counts > 0
        if is_double:
            low, high = aggregates.undo_order_double(low), aggregates.undo_order_double(high)
            # NaN sorts as the greatest value of a group, but does not bound the others.
            low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        one = SqlType(aggregate.input_type.kind, aggregate.input_type.precision, aggregate.input_type.scale)
        from fractions import Fraction

        columns = []
        for text in aggregate.fractions:
            values = members.quantiles(Fraction(text), integer=not is_double)
            columns.append(_masked(one, np.clip(values, low, high), valid))
        if aggregate.type.kind is not Kind.ARRAY:
            return columns[0]
        lists = np.empty(len(groups), dtype=object)
        for i, row in enumerate(zip(*(column.to_python() for column in columns), strict=True)):
            lists[i] = list(row)
        return Vector(aggregate.type, lists, valid)


class Members:
    """A family's rows, ordered by their groups: those of group g are [bounds[g], bounds[g + 1]). `counts`: the number of rows of
    each group, if the rows were only counted, and `rows` is empty."""

    def __init__(self, groups: Rows, rows: Rows, counts: NDArray[np.int64] | None = None) -> None:
        index, self.bounds, ascending = group_index(groups, rows)
        self.rows = rows if ascending else take(rows, np.argsort(index, kind="stable"))
        self._counts = counts
        self._numbers: NDArray[np.int64] | None = None
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def numbers(self) -> NDArray[np.int64]:
        """Register, bucket, bin or hash of each row."""
        if self._numbers is None:
            _, values, _, _ = decode_keys(self.rows.keys, self.rows.ends, 1, self.rows.split)[0]
            self._numbers = values
        return self._numbers

    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.bounds) if self._counts is None else self._counts

    def best(self, family: Family, groups: int) -> Vector:
        """The value of the member that wins in each group; NULL in a group without members. O(members * log(members))."""
        type = family.inputs[0].type
        values = key_vectors(self.rows, [type], start=self.rows.split)[0]
        index = np.repeat(np.arange(groups), np.diff(self.bounds))
        lane = self.rows.lanes[0] if len(self.rows.lanes) else None
        chosen = winners(family.kind, index, values, lane)
        place = np.full(groups, -1, dtype=np.int64)
        place[index[chosen]] = chosen
        found = place >= 0
        if not len(chosen):
            return nulls(type).full(groups)
        out = values.take(np.where(found, place, 0))
        if type.kind is Kind.STRING:
            return Vector(type, np.where(found, out.values, -1).astype(np.int32), None, out.strings)
        return _masked(type, out.values, found if out.valid is None else found & out.valid)

    def distinct_estimates(self) -> NDArray[np.int64]:
        estimates = aggregates.estimates(self.bounds, self.numbers(), self.rows.lanes[0])
        return np.rint(estimates).astype(np.int64)

    def set_estimates(self) -> NDArray[np.int64]:
        return aggregates.set_estimates(self.bounds, self.numbers())

    def exact_values(self) -> list[Fraction | float]:
        """The exact sum of each group; a float where it is not finite."""
        from elf.cbt.exact import exact_value

        bins = self.numbers().tolist()
        totals = aggregates.wide_total(self.rows.lanes[0].view(np.uint64), self.rows.lanes[1])
        bounds = self.bounds.tolist()
        return [exact_value(bins[a:b], totals[a:b]) for a, b in itertools.pairwise(bounds)]

    def quantiles(self, fraction: Fraction, *, integer: bool) -> NDArray[Any]:
        """For every group, the representative of the bucket with the nearest rank; 0 for a group without members."""
        if self._sorted is None:
            self._sorted = sorted_members(
                self.bounds, self.numbers(), np.ascontiguousarray(self.rows.lanes[0])
            )
        return aggregates.quantiles(self.bounds, *self._sorted, fraction, integer=integer)


def key_vectors(
    groups: Rows, types: Sequence[SqlType], start: NDArray[np.uint32] | None = None
) -> list[Vector]:
    """The key columns of rows, decoded: from the key's beginning, or from `start` in each (a family's member part)."""
    if not types:
        return []
    out = []
    decoded = decode_keys(groups.keys, groups.ends, len(types), start)
    for type, (tags, values, codes, strings) in zip(types, decoded, strict=True):
        valid = tags != 0
        if type.kind is Kind.STRING:
            out.append(Vector(STRING, codes, None, strings))
        elif type.kind is Kind.DOUBLE:
            out.append(_masked(type, values.view(np.float64), valid))
        elif type.kind is Kind.BOOLEAN:
            out.append(_masked(type, values.astype(np.bool_), valid))
        else:
            out.append(_masked(type, values, valid))
    return out


def _masked(type: SqlType, values: NDArray[Any], valid: NDArray[np.bool_]) -> Vector:
    """A vector with 0 under its NULLs."""
    if valid.all():
        return Vector(type, values)
    values = values.copy()
    values[~valid] = 0
    return Vector(type, values, valid)


def lane_values(type: SqlType, lane: NDArray[np.int64], valid: NDArray[np.bool_]) -> Vector:
    """The values of a MIN or MAX lane."""
    if type.kind is Kind.DOUBLE:
        return _masked(type, aggregates.undo_order_double(lane), valid)
    if type.kind is Kind.BOOLEAN:
        return _masked(type, lane > 0, valid)
    return _masked(type, lane, valid)


def _of_doubles(
    function: str,
    counts: NDArray[np.int64],
    exact: Sequence[Sequence[Fraction | float]],
    valid: NDArray[np.bool_],
) -> Vector:
    from elf.cbt.exact import rounded, variance_of_doubles

    if function in ("sum", "avg"):
        sums = np.array([rounded(value) for value in exact[0]], dtype=np.float64)
        return _masked(DOUBLE, sums if function == "sum" else sums / np.maximum(counts, 1), valid)
    kind = {"sample": "samp" in function, "root": "stddev" in function}
    groups = zip(counts.tolist(), *exact, strict=True)
    return from_list(DOUBLE, [variance_of_doubles(*each, **kind) for each in groups])


def _greatest(values: NDArray[np.int64]) -> int:
    """The greatest magnitude."""
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _half_up(numerators: NDArray[Any], denominators: NDArray[Any]) -> NDArray[Any]:
    """Quotients to the nearest integer, halves away from zero (Spark's HALF_UP); of int64 that cannot overflow here, or of
    objects."""
    quotients = (2 * abs(numerators) + denominators) // (2 * denominators)
    return np.asarray(np.where(numerators < 0, -quotients, quotients))


def _order_of(keys: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    """The order of rows by integer keys, most significant first; packed into one key if 63 bits are enough for all."""
    packed = np.zeros(len(keys[0]), dtype=np.int64)
    room = 1
    for key in keys:
        low = int(key.min())
        width = int(key.max()) - low + 1
        room *= width
        if room >= 2**63:
            return np.lexsort(keys[::-1])
        packed = packed * width + (key.astype(np.int64) - low)
    return np.argsort(packed, kind="stable")


def _sort_keys(vector: Vector, descending: bool, nulls_first: bool) -> list[NDArray[Any]]:
    """Ascending integer arrays, most significant first, that order the vector as `descending` and `nulls_first` say."""
    values = vector.values
    valid = vector.is_valid()
    if vector.type.kind is Kind.STRING:
        values = _string_ranks(vector)
    elif values.dtype == np.float64:
        values = aggregates.order_double(values)
    elif values.dtype == object:
        values = _dense_ranks(values.tolist())
    else:
        values = values.astype(np.int64)
    keys: list[NDArray[Any]] = [~values if descending else values]
    if not valid.all():
        keys.insert(0, valid if nulls_first else ~valid)
    return keys


def _string_ranks(vector: Vector) -> NDArray[np.int64]:
    """Rank of each value by its UTF-8 bytes; -1 for NULL."""
    strings = vector.strings
    assert strings is not None
    text, ends = strings.buffers()
    codes = np.arange(len(ends), dtype=np.int32)
    if len(ends) > len(vector):  # the dictionary is larger than the column: sort only its values
        codes = distinct(vector.values).astype(np.int32)
        codes = codes[codes >= 0]
        text, ends = join_texts([(codes, text, ends)])
    ranks = np.full(len(strings) + 1, -1, dtype=np.int64)  # the last one is that of code -1
    ranks[codes[sorted_index(text, ends)]] = np.arange(len(codes))
    return np.asarray(ranks[vector.values], dtype=np.int64)


def _dense_ranks(values: Sequence[Any]) -> NDArray[np.int64]:
    ordered = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.array([ordered[value] for value in values], dtype=np.int64)
