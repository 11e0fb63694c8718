"""Validation of plans. Bytes from a peer are untrusted until `problem` has checked them.

Types, operands and names are checked against `signatures`, indices against their lists, and all sizes against the bounds
below, so that evaluating a plan takes bounded stack and memory per line. Each check returns the problem as text, "" for none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

from elf.jobmaster.plan import signatures
from elf.jobmaster.plan.plan import (
    Accumulator,
    Aggregate,
    Column,
    Expression,
    Family,
    FamilyKind,
    Literal,
    Plan,
    Reduce,
    RowPlan,
    WindowSpec,
)
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    WINDOW,
    Kind,
    SqlType,
    array,
)

DEPTH_MAX = 100
NODES_MAX = 20_000
"""Nodes of all expressions together: a query of 64 KiB has at most some 30,000 tokens."""
LIST_MAX = 512
"""Keys, accumulators, families, aggregates and outputs: at most so many of each."""
NAME_CHARS_MAX = 4_096
TEXT_CHARS_MAX = 64 * 1024
SIZE_US_MAX = 366 * 86_400_000_000
PANE_US_MIN = 1_000
PANES_MAX = 10_000
"""Panes of one window: each pane has a row for each of its groups."""
PARAMETERS_MAX = 64
VALUE_CHARS_MAX = 4_096
"""Characters of a parameter's value."""
PARAMETER_NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"

_INT64 = 2**63
_REDUCES = {
    "count": (Reduce.COUNT,),
    "sum": (Reduce.COUNT, Reduce.SUM),
    "avg": (Reduce.COUNT, Reduce.SUM),
    "min": (Reduce.COUNT, Reduce.MIN),
    "max": (Reduce.COUNT, Reduce.MAX),
    **dict.fromkeys(
        ("var_pop", "var_samp", "stddev_pop", "stddev_samp"), (Reduce.COUNT, Reduce.SUM, Reduce.SUM_SQUARES)
    ),
    "count_distinct": (),
    "approx_count_distinct": (),
    "approx_set": (),
    "approx_percentile": (Reduce.COUNT, Reduce.MIN, Reduce.MAX),
    **dict.fromkeys(("min_by", "max_by", "mode"), ()),
}
AGGREGATES = frozenset(_REDUCES)
_FAMILIES = {
    "count_distinct": (FamilyKind.DISTINCT,),
    "approx_count_distinct": (FamilyKind.REGISTERS,),
    "approx_set": (FamilyKind.HASHES,),
    "approx_percentile": (FamilyKind.BUCKETS,),
    "min_by": (FamilyKind.MIN_BY,),
    "max_by": (FamilyKind.MAX_BY,),
    "mode": (FamilyKind.COUNTS,),
}
_OF_STRINGS = {"min": (FamilyKind.LEAST,), "max": (FamilyKind.GREATEST,)}
_EXACT = (FamilyKind.EXACT_SUM, FamilyKind.EXACT_SUM_SQUARES)


def shape(function: str, type: SqlType) -> tuple[tuple[Reduce, ...], tuple[FamilyKind, ...]] | None:
    """The accumulators and families that an aggregate over `type` reads, in the order of `Aggregate`; None if unknown."""
    if function not in _REDUCES:
        return None
    if type == STRING and function in _OF_STRINGS:
        return (), _OF_STRINGS[function]
    reduces, kinds = _REDUCES[function], _FAMILIES.get(function, ())
    if type == DOUBLE and Reduce.SUM in reduces:
        return reduces[:1], _EXACT[: len(reduces) - 1]
    return reduces, kinds


def aggregate_type(function: str, type: SqlType, many: bool = False) -> SqlType:
    """Spark's type of `function` over `type`."""
    if function.startswith(("count", "approx_count", "approx_set")):
        return BIGINT
    if function in ("sum", "avg") and type.kind is Kind.DECIMAL:
        more = (10, 0) if function == "sum" else (4, 4)
        return signatures.bounded(type.precision + more[0], type.scale + more[1])
    if function == "sum":
        return BIGINT if type.is_integer else DOUBLE
    if function in ("min", "max", "min_by", "max_by", "mode", "approx_percentile"):
        return array(type) if many else type
    return DOUBLE


def window_problem(window: WindowSpec) -> str:
    if window.size_us <= 0 or window.slide_us <= 0:
        return "a window's size and slide must be above zero"
    if window.zone:
        return "windows by the calendar of a time zone are of elf run only"
    if window.slide_us > window.size_us:
        return "the slide is longer than the window, so lines between windows would be lost"
    if window.size_us > SIZE_US_MAX:
        return "a window may be at most 366 days long"
    if window.pane_us < PANE_US_MIN or window.pane_us % PANE_US_MIN:
        return "windows and slides must be whole milliseconds"
    if window.size_us // window.pane_us > PANES_MAX:
        panes = window.size_us // window.pane_us
        return f"the window has {panes:,} panes of gcd(size, slide); the limit is {PANES_MAX:,}"
    return ""


def fits_lane(type: SqlType) -> bool:
    """Whether a value of `type` (not a STRING) fits one int64."""
    if type.kind is Kind.DECIMAL:
        return type.precision <= signatures.LANE_PRECISION_MAX
    return type.kind in signatures.SCALARS and type.kind is not Kind.STRING


def problem(plan: Plan) -> str:
    """The first thing that makes `plan` unfit to run, "" for none. O(nodes)."""
    for check in (_sizes, _columns, _window, _expressions, _aggregates, _outputs):
        wrong = check(plan)
        if wrong:
            return wrong
    return ""


def row_problem(plan: RowPlan) -> str:
    """As `problem`, of a plan whose rows are lines."""
    if not 1 <= len(plan.select) <= LIST_MAX or len(plan.order) > 2 * LIST_MAX:
        return f"the query selects {len(plan.select):,} columns; 1 to {LIST_MAX} are possible"
    if len({output.name.lower() for output in plan.select}) < len(plan.select):
        return "two outputs have the same name"
    if plan.limit is not None and not 0 <= plan.limit < 2**31:
        return f"LIMIT {plan.limit} is out of range"
    if plan.where is not None and plan.where.type != BOOLEAN:
        return "a condition is not boolean"
    if any(output.type != output.expression.type for output in plan.select):
        return "the type of an output differs from that of its expression"
    expressions = [output.expression for output in plan.select] + [order.expression for order in plan.order]
    walk = _Walk({column.name: column.type for column in plan.columns})
    return walk.all(expressions if plan.where is None else [plan.where, *expressions])


def _sizes(plan: Plan) -> str:
    lists: dict[str, Sequence[object]] = {
        "columns": plan.columns,
        "keys": plan.keys,
        "accumulators": plan.accumulators,
        "families": plan.families,
        "aggregates": plan.aggregates,
        "select": plan.select,
    }
    for name, items in lists.items():
        if len(items) > LIST_MAX:
            return f"the query has {len(items):,} {name}; the limit is {LIST_MAX}"
    if len(plan.order) > 2 * LIST_MAX:
        return f"the query orders by {len(plan.order):,} expressions; the limit is {2 * LIST_MAX}"
    if len(plan.sql) > TEXT_CHARS_MAX or len(plan.source) > NAME_CHARS_MAX:
        return "the text of the query or the name of its source is too long"
    if not plan.select or not plan.accumulators:
        return "the query selects nothing" if not plan.select else "the plan has no accumulator"
    if plan.limit is not None and not 0 <= plan.limit < 2**31:
        return f"LIMIT {plan.limit} is out of range"
    return ""


def _columns(plan: Plan) -> str:
    for what, names in (
        ("columns", [column.name for column in plan.columns]),
        ("keys", [key.name for key in plan.keys]),
        ("outputs", [output.name for output in plan.select]),
    ):
        if len({name.lower() for name in names}) < len(names):
            return f"two {what} have the same name"
        if any(len(name) > NAME_CHARS_MAX for name in names):
            return f"one of the {what} has a name of more than {NAME_CHARS_MAX:,} characters"
    for column in plan.columns:
        if not _is_scalar(column.type) or not column.name or column.name.startswith("#"):
            return f"the column {column.name!r} has an invalid name or type"
    return ""


def _window(plan: Plan) -> str:
    return window_problem(plan.window) if plan.window else ""


def _is_scalar(type: SqlType) -> bool:
    if type.kind is Kind.DECIMAL:
        ok = 1 <= type.precision <= signatures.PRECISION_MAX and 0 <= type.scale <= type.precision
    else:
        ok = type.precision == type.scale == 0
    return ok and type.element is None and type.kind in signatures.SCALARS


class _Walk:
    """Checks expressions over one set of names, counting nodes across them, and those of `before`. values: of parameters."""

    def __init__(self, names: Mapping[str, SqlType], before: _Walk | None = None) -> None:
        self.names = names
        self.nodes: int = before.nodes if before else 0
        self.values: dict[str, Literal] = before.values if before else {}

    def all(self, expressions: Iterable[Expression]) -> str:
        for expression in expressions:
            wrong = self.check(expression)
            if wrong:
                return wrong
        return ""

    def check(self, node: Expression, depth: int = 1) -> str:
        self.nodes += 1
        if depth > DEPTH_MAX:
            return f"an expression is nested more than {DEPTH_MAX} levels deep"
        if self.nodes > NODES_MAX:
            return f"the query has more than {NODES_MAX:,} operations"
        if isinstance(node, Literal):
            if not _is_value(node):
                return f"a literal is not a valid {node.type}"
            return self._parameter(node) if node.parameter else ""
        if isinstance(node, Column):
            known = self.names.get(node.name) == node.type
            return "" if known else f"the column {node.name[:40]!r} does not exist, or has another type"
        for operand in node.arguments:
            wrong = self.check(operand, depth + 1)
            if wrong:
                return wrong
        if not _is_scalar(node.type):
            return f"{node.function[:40]!r} cannot return {node.type}"
        if signatures.result_type(node.function, node.arguments, node.type) != node.type:
            return f"{node.function[:40]!r} is unknown, or does not take these operands"
        return ""

    def _parameter(self, node: Literal) -> str:
        if not re.fullmatch(PARAMETER_NAME, node.parameter):
            return f"{node.parameter[:40]!r} is no name of a parameter"
        if node.value is None or (isinstance(node.value, str) and len(node.value) > VALUE_CHARS_MAX):
            return f"the parameter {node.parameter} has no value, or one of more than {VALUE_CHARS_MAX:,} characters"
        if self.values.setdefault(node.parameter, node) != node:
            return f"the parameter {node.parameter} has two values"
        return (
            ""
            if len(self.values) <= PARAMETERS_MAX
            else f"the query has more than {PARAMETERS_MAX} parameters"
        )


def _is_value(literal: Literal) -> bool:
    value, type = literal.value, literal.type
    if not _is_scalar(type) or value is None:
        return _is_scalar(type)
    if type.kind is Kind.STRING:
        return isinstance(value, str) and len(value) <= TEXT_CHARS_MAX
    if type.kind is Kind.DOUBLE:
        return isinstance(value, float)
    if type.kind is Kind.BOOLEAN or isinstance(value, bool):
        return type.kind is Kind.BOOLEAN and isinstance(value, bool)
    limit = {Kind.INT: 2**31, Kind.DECIMAL: 10**type.precision}.get(type.kind, _INT64)
    return isinstance(value, int) and -min(limit, _INT64) <= value < min(limit, _INT64)


def _expressions(plan: Plan) -> str:
    rows = _Walk({column.name: column.type for column in plan.columns})
    inputs: list[Expression | None] = [plan.where, *(key.expression for key in plan.keys)]
    for accumulator in plan.accumulators:
        inputs.extend((accumulator.input, accumulator.filter))
    for family in plan.families:
        inputs.extend((*family.inputs, family.filter))
    wrong = rows.all(expression for expression in inputs if expression is not None)
    if wrong:
        return wrong
    groups = _Walk(_result_names(plan), rows)
    outputs: list[Expression | None] = [plan.having, *(output.expression for output in plan.select)]
    outputs.extend(order.expression for order in plan.order)
    if plan.limit_parameter:
        outputs.append(Literal(plan.limit, INT, plan.limit_parameter))
    wrong = groups.all(expression for expression in outputs if expression is not None)
    filters = [*(a.filter for a in plan.accumulators), *(f.filter for f in plan.families)]
    conditions = [c for c in (plan.where, plan.having, *filters) if c is not None]
    if not wrong and any(condition.type != BOOLEAN for condition in conditions):
        return "a condition is not boolean"
    return wrong


def _result_names(plan: Plan) -> dict[str, SqlType]:
    names = {f"#k{at}": key.expression.type for at, key in enumerate(plan.keys)}
    names.update({f"#a{at}": aggregate.type for at, aggregate in enumerate(plan.aggregates)})
    if plan.window:
        names.update({"#window": WINDOW, "#window_start": TIMESTAMP, "#window_end": TIMESTAMP})
    return names


def _aggregates(plan: Plan) -> str:
    for accumulator in plan.accumulators:
        if not _is_accumulator(accumulator):
            return f"an accumulator cannot compute {accumulator.reduce.value} of its input"
    for family in plan.families:
        if not _is_family(family):
            return f"a {family.kind.value} family does not take its inputs"
    for aggregate in plan.aggregates:
        if not _is_aggregate(plan, aggregate):
            return f"the aggregate {aggregate.function[:40]!r} does not fit its accumulators"
    return ""


def _is_accumulator(accumulator: Accumulator) -> bool:
    reduce, value = accumulator.reduce, accumulator.input
    if value is None or reduce is Reduce.COUNT:
        return reduce is Reduce.COUNT
    if reduce in (Reduce.MIN, Reduce.MAX):
        return fits_lane(value.type)
    exact = value.type.is_integer or value.type.kind is Kind.DECIMAL
    return exact and (reduce is Reduce.SUM or fits_lane(value.type))


def _is_family(family: Family) -> bool:
    types = [value.type for value in family.inputs]
    if family.kind is FamilyKind.DISTINCT:
        return 1 <= len(types) <= LIST_MAX and all(_is_key(type) for type in types)
    if family.kind in (FamilyKind.MIN_BY, FamilyKind.MAX_BY):
        return len(types) == 2 and _is_key(types[0]) and fits_lane(types[1])
    if len(types) != 1:
        return False
    if family.kind in (FamilyKind.LEAST, FamilyKind.GREATEST):
        return types[0] == STRING
    if family.kind is FamilyKind.COUNTS:
        return _is_key(types[0])
    if family.kind in (FamilyKind.REGISTERS, FamilyKind.HASHES):
        return True
    if family.kind is FamilyKind.BUCKETS:
        return types[0].is_numeric and fits_lane(types[0])
    return types[0] == DOUBLE


def _is_key(type: SqlType) -> bool:
    return type.kind is Kind.STRING or fits_lane(type)


def _is_aggregate(plan: Plan, aggregate: Aggregate) -> bool:
    wanted = shape(aggregate.function, aggregate.input_type)
    lanes, families = aggregate.accumulators, aggregate.families
    if wanted is None or any(not 0 <= at < len(plan.accumulators) for at in lanes):
        return False
    if any(not 0 <= at < len(plan.families) for at in families):
        return False
    used = [plan.accumulators[at] for at in lanes]
    members = [plan.families[at] for at in families]
    if (tuple(a.reduce for a in used), tuple(f.kind for f in members)) != wanted:
        return False
    if len({(a.input, a.filter) for a in used} | {(f.inputs[0], f.filter) for f in members}) != 1:
        return False
    value = members[0].inputs[0] if members else used[0].input
    many = aggregate.type.kind is Kind.ARRAY
    expected = aggregate_type(aggregate.function, aggregate.input_type, many)
    if aggregate.type != expected or aggregate.input_type != (value.type if value else BIGINT):
        return False
    if aggregate.function != "approx_percentile":
        return not aggregate.fractions and not many
    return _are_fractions(aggregate.fractions) and (many or len(aggregate.fractions) == 1)


def _are_fractions(fractions: Sequence[str]) -> bool:
    try:
        numbers = [Decimal(text) for text in fractions if text[:1].isdigit() and len(text) <= 64]
        plain = all(f"{n.normalize():f}" == text for n, text in zip(numbers, fractions, strict=True))
        return bool(numbers) and plain and all(0 <= number <= 1 for number in numbers)
    except (InvalidOperation, ValueError):
        return False


def _outputs(plan: Plan) -> str:
    if any(not _is_key(key.expression.type) for key in plan.keys):
        return "a key does not fit 64 bits"
    if any(output.type != output.expression.type for output in plan.select):
        return "the type of an output differs from that of its expression"
    if any(order.expression.type.kind not in signatures.SCALARS for order in plan.order):
        return "ORDER BY contains an expression without an order"
    ordered = {order.expression for order in plan.order}
    for at, key in enumerate(plan.keys):
        if Column(f"#k{at}", key.expression.type) not in ordered:
            return f"the order is not total: the key {key.name[:40]!r} is missing"
    return ""
