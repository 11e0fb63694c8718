"""Aggregates: from a call in the query to accumulators, families and an `Aggregate` that reads them.

Equal accumulators and families are shared: `sum(x)` and `avg(x)` use one COUNT and one SUM; two percentiles of a column use one
family of buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TypeVar

from elf.jobmaster.compile import types
from elf.jobmaster.compile.types import Mismatch
from elf.jobmaster.plan import check, signatures
from elf.jobmaster.plan.plan import Accumulator, Aggregate, Call, Column, Expression, Family, Literal, Reduce
from elf.jobmaster.values.sql_types import BIGINT, DOUBLE, INT, TIMESTAMP, Kind

T = TypeVar("T")
FRACTIONS_MAX = 100


class Aggregates:
    """Collects the accumulators, families and aggregates of one query. Each method returns the aggregate as a column."""

    def __init__(self) -> None:
        self.accumulators: list[Accumulator] = []
        self.families: list[Family] = []
        self.aggregates: list[Aggregate] = []

    def _added(
        self,
        function: str,
        inputs: Sequence[Expression],
        where: Expression | None,
        many: bool = False,
        fractions: Sequence[str] = (),
    ) -> Column:
        """The aggregate with the accumulators and families that it reads, in the order of `elf.jobmaster.plan.check.shape`."""
        value = inputs[0] if inputs else None
        input_type = value.type if value else BIGINT
        wanted = check.shape(function, input_type)
        assert wanted is not None
        lanes = [_index(self.accumulators, Accumulator(reduce, value, where)) for reduce in wanted[0]]
        families = [_index(self.families, Family(kind, tuple(inputs), where)) for kind in wanted[1]]
        type = check.aggregate_type(function, input_type, many)
        aggregate = Aggregate(function, type, input_type, tuple(lanes), tuple(families), tuple(fractions))
        return Column(f"#a{_index(self.aggregates, aggregate)}", type)

    def ensure_rows(self) -> None:
        """Count lines where there is no accumulator (only families, or no aggregate): each group needs a row of its own."""
        if not self.accumulators:
            self.accumulators.append(Accumulator(Reduce.COUNT))

    def count(self, values: Sequence[Expression], where: Expression | None) -> Column:
        """count(*) without values, else the rows in which no value is NULL."""
        present = [v for v in values if not (isinstance(v, Literal) and v.value is not None)]
        for extra in present[1:]:
            where = both(where, types.call("not", types.call("is_null", scalar(extra))))
        return self._added("count", [scalar(value) for value in present[:1]], where)

    def count_distinct(self, values: Sequence[Expression], where: Expression | None) -> Column:
        return self._added("count_distinct", [lane(v, "count(DISTINCT …)") for v in values], where)

    def approx_count_distinct(self, value: Expression, where: Expression | None) -> Column:
        return self._added("approx_count_distinct", [scalar(value)], where)

    def approx_set(self, value: Expression, where: Expression | None) -> Column:
        return self._added("approx_set", [scalar(value)], where)

    def extreme(self, function: str, value: Expression, where: Expression | None) -> Column:
        """min or max."""
        return self._added(function, [lane(value, function)], where)

    def extreme_by(
        self, function: str, value: Expression, by: Expression, where: Expression | None
    ) -> Column:
        """min_by or max_by."""
        by = lane(by, function)
        if by.type.kind is Kind.STRING:
            raise Mismatch(f"{function} compares numbers, times and booleans, no strings", "min(x), max(x)")
        return self._added(function, [lane(value, function), by], where)

    def mode(self, value: Expression, where: Expression | None) -> Column:
        return self._added("mode", [lane(value, "mode")], where)

    def sum(self, function: str, value: Expression, where: Expression | None) -> Column:
        """sum or avg."""
        return self._added(function, [types.number(value)], where)

    def variance(self, function: str, value: Expression, where: Expression | None) -> Column:
        """Variance or standard deviation. Squares of more than 18 digits overflow 128 bits: such decimals become DOUBLE."""
        value = types.number(value)
        return self._added(
            function, [value if check.fits_lane(value.type) else types.cast(value, DOUBLE)], where
        )

    def approx_percentile(
        self, value: Expression, fractions: Sequence[str], many: bool, where: Expression | None
    ) -> Column:
        if value.type == TIMESTAMP:
            raise Mismatch("approx_percentile of a timestamp is not supported", "use min(x) or max(x)")
        value = lane(types.number(value), "approx_percentile")
        return self._added("approx_percentile", [value], where, many, fractions)


def _index(known: list[T], item: T) -> int:
    if item not in known:
        known.append(item)
    return known.index(item)


def both(left: Expression | None, right: Expression) -> Expression:
    if left is None:
        return right
    return Call("and", (left, right), right.type)


def scalar(value: Expression) -> Expression:
    """`value`, if it can be an argument of an aggregate; an untyped NULL becomes INT."""
    value = types.typed(value)
    if value.type.kind is Kind.NULL:
        return types.cast(value, INT)
    if value.type.kind not in signatures.SCALARS:
        raise Mismatch(f"a {value.type} cannot be aggregated", "use window.start or window.end")
    return value


def lane(value: Expression, what: str) -> Expression:
    """`value`, if it fits an int64 lane."""
    value = scalar(value)
    if value.type.kind is Kind.DECIMAL and value.type.precision > signatures.LANE_PRECISION_MAX:
        scale = min(value.type.scale, 6)
        raise Mismatch(
            f"{what} takes decimals of at most 18 digits, not {value.type}",
            f"CAST(x AS DECIMAL(18, {scale}))",
        )
    return value


def fraction(value: Expression) -> str:
    """The exact decimal text of a constant fraction within 0..1."""
    if not isinstance(value, Literal) or not value.type.is_numeric or value.value is None:
        raise Mismatch("the fraction must be a constant", "approx_percentile(x, 0.99)")
    number = Decimal(str(value.value))
    if value.type.kind is Kind.DECIMAL:
        number = number.scaleb(-value.type.scale)
    if not 0 <= number <= 1:
        raise Mismatch(f"the fraction {number:f} is outside 0..1", "0.99 is the 99th percentile")
    return f"{number.normalize():f}"
