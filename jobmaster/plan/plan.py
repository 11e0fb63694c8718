"""The plan: a query as a typed, bounded, loop-free program. Agents receive it instead of SQL.

Three stages, each a list of expressions over the names of the stage before:

1. **rows**: `where`, the `keys`, the inputs and filters of `accumulators` and `families`, over the source's columns.
2. **groups**: `aggregates` turn a group's merged lanes and family members into one value each.
3. **result**: `having`, `order`, `select`, over the names `#k0…` (keys), `#a0…` (aggregates), `#window_start`,
   `#window_end` (TIMESTAMP) as `Column` expressions. A select item that is the window itself is `Column("#window")`.

Nodes send plans as `elf.jobmaster.plan.codec` encodes them. A query without groups is a `RowPlan`, which no node sends.
"""

from __future__ import annotations

from enum import Enum
from math import gcd
from typing import TYPE_CHECKING

import msgspec

from elf.jobmaster.values.sql_types import SqlType

if TYPE_CHECKING:
    from elf.jobmaster.values.zones import Zone

CANONICAL = frozenset(
    (
        *(
            "time",
            "client_ip",
            "user",
            "method",
            "path",
            "query",
            "protocol",
            "status",
            "bytes",
            "referer",
            "host",
        ),
        *("user_agent", "request_time", "upstream_response_time", "scheme", "request_length", "agent"),
    )
)
"""Columns that have one name in every format that logs them. Other names of a query may be keys of the lines."""


class Literal(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="node", tag="literal"):
    """A constant. DECIMAL as its unscaled int, TIMESTAMP as microseconds, NULL as None. Ints fit 64 bits: a longer DECIMAL is
    the cast of a STRING.

    parameter: the name of the parameter that has this value, as `t` for `:t`; "" for a constant of the query's text. All literals
    of one parameter are equal, and not NULL. Nothing else of a plan depends on the values of its parameters, so
    `elf.jobmaster.plan.parameters` can replace them.
    """

    value: bool | int | float | str | None
    type: SqlType
    parameter: str = ""


class Column(msgspec.Struct, frozen=True, tag_field="node", tag="column"):
    name: str
    type: SqlType


class Call(msgspec.Struct, frozen=True, tag_field="node", tag="call"):
    """A scalar function or operator of `signatures.SIGNATURES`, by its name there.

    `case` is (when1, then1, when2, then2, …, else); BETWEEN is compiled to two comparisons; `in` is (value, item, …).
    The type of the result is `type`; `cast` and `try_cast` convert their one argument to it. Arguments are not
    implicitly converted: the compiler inserts each necessary cast.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: SqlType


Expression = Literal | Column | Call


class WindowSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Event-time windows [start, start + size), starts at the multiples of slide. Microseconds; slide == size: tumbling.

    zone: windows of whole days by the calendar of that time zone, so that a day may have 23 or 25 hours. Panes and starts are
    then local times; results have UTC. Of `elf run` only: no plan that travels has one.
    """

    size_us: int
    slide_us: int
    zone: str = ""

    @property
    def pane_us(self) -> int:
        return gcd(self.size_us, self.slide_us)

    @property
    def clock(self) -> Zone | None:
        if not self.zone:
            return None
        from elf.jobmaster.values.zones import zone_named

        return zone_named(self.zone)


class Reduce(Enum):
    """How an accumulator reduces its input; its lanes in a row are `elf.cbt.rows.Op`."""

    COUNT = "count"  # rows where the filter is true and the input is not NULL (input None: all rows); 1 lane
    SUM = "sum"  # of INT, BIGINT, DECIMAL (unscaled); 128 bits
    SUM_SQUARES = "sum_squares"  # of INT, BIGINT, DECIMAL; 128 bits
    MIN = "min"  # INT, BIGINT, DECIMAL(<=18), TIMESTAMP, BOOLEAN as they are; DOUBLE by its order-preserving int64
    MAX = "max"


class Accumulator(msgspec.Struct, frozen=True):
    reduce: Reduce
    input: Expression | None = None
    filter: Expression | None = None


class FamilyKind(Enum):
    DISTINCT = "distinct"  # member = the values of `inputs`, rows with any NULL left out; no lanes
    REGISTERS = "registers"  # HyperLogLog lgK 12: member = register, lane = max(rho)
    BUCKETS = "buckets"  # quantiles: member = bucket, lane = count
    EXACT_SUM = "exact_sum"  # sum of DOUBLE: member = exponent bin, lane = 128-bit sum of mantissas
    EXACT_SUM_SQUARES = "exact_sum_squares"
    LEAST = "least"  # min of STRING: member = a value that may be it; no lanes
    GREATEST = "greatest"
    MIN_BY = "min_by"  # member = a value of the first input, NULL too; lane = the least of the second, as in Reduce.MIN
    MAX_BY = "max_by"
    COUNTS = "counts"  # member = value, lane = count
    HASHES = "hashes"  # theta sketch lgK 12: member = hash of 63 bits; no lanes


class Family(msgspec.Struct, frozen=True):
    kind: FamilyKind
    inputs: tuple[Expression, ...]
    filter: Expression | None = None


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate of the query.

    `function`: count, sum, min, max, min_by, max_by, mode, avg, var_pop, var_samp, stddev_pop, stddev_samp, count_distinct,
    approx_count_distinct, approx_set, approx_percentile. `accumulators` and `families` are indices into the plan's lists, in the
    order that the function expects:
    min, max of STRING (; LEAST or GREATEST); min_by, max_by (; MIN_BY or MAX_BY); mode (; COUNTS);
    count (COUNT); sum, avg (COUNT, SUM); min (COUNT, MIN); max (COUNT, MAX); variance (COUNT, SUM, SUM_SQUARES);
    over DOUBLE: sum, avg (COUNT; EXACT_SUM), variance (COUNT; EXACT_SUM, EXACT_SUM_SQUARES);
    count_distinct (; DISTINCT); approx_count_distinct (; REGISTERS); approx_set (; HASHES);
    approx_percentile (COUNT, MIN, MAX; BUCKETS) with the fractions as exact decimal texts in `fractions` (an ARRAY result when
    `type` says so).
    `input_type` is the type of the aggregated expression (decides scale and rounding).
    """

    function: str
    type: SqlType
    input_type: SqlType
    accumulators: tuple[int, ...] = ()
    families: tuple[int, ...] = ()
    fractions: tuple[str, ...] = ()


class Key(msgspec.Struct, frozen=True):
    """A GROUP BY expression other than the window. `name`: its name in results and in the lake."""

    name: str
    expression: Expression


class Output(msgspec.Struct, frozen=True):
    name: str
    expression: Expression
    type: SqlType


class Order(msgspec.Struct, frozen=True):
    expression: Expression
    descending: bool = False
    nulls_first: bool = True


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A compiled query. `columns` are the source's columns it reads, by name and type (`time` is implied by `window`).
    limit_parameter: the parameter whose value `limit` is, an INT; "" for a constant."""

    sql: str
    source: str
    columns: tuple[Column, ...]
    where: Expression | None
    window: WindowSpec | None
    keys: tuple[Key, ...]
    accumulators: tuple[Accumulator, ...]
    families: tuple[Family, ...]
    aggregates: tuple[Aggregate, ...]
    having: Expression | None
    select: tuple[Output, ...]
    order: tuple[Order, ...]
    limit: int | None
    limit_parameter: str = ""

    @property
    def is_single(self) -> bool:
        """Whether each window has one row at most."""
        return not self.keys or self.limit == 1

    def counts_as(self, other: Plan) -> bool:
        """Whether both plans count the same lines in the same groups and show the same columns: they differ at most in which rows
        they show, and in their order (HAVING, ORDER BY, LIMIT)."""
        return _counted(self) == _counted(other)


class RowPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A compiled query whose rows are lines: WHERE, ORDER BY, LIMIT, SELECT over the source's `columns`. Fields as in `Plan`.

    Rows of lines do not merge, so only the process that reads the lines runs it. Rows that are equal in `order` stay in the order
    in which their lines were read.
    """

    sql: str
    source: str
    columns: tuple[Column, ...]
    where: Expression | None
    select: tuple[Output, ...]
    order: tuple[Order, ...] = ()
    limit: int | None = None
    limit_parameter: str = ""

    @property
    def window(self) -> None:
        """Lines are in no window."""
        return None


def _counted(plan: Plan) -> Plan:
    """The plan without what only chooses and orders rows."""
    return msgspec.structs.replace(plan, sql="", having=None, order=(), limit=None, limit_parameter="")
