"""The recipe of a plan: what a reader of the lake does, in plain Spark SQL, to get the query's results from stored state.

It is in the metadata of every file of the lake, as JSON, so that a reader needs neither the plan's code nor this package:

    source    the FROM name                     filtered   whether the query has a WHERE
    window    {size_us, slide_us} or null       pane_us    length of the stored panes
    keys      [{name, type, source}]            source: the column of the log, where the key is a plain column
    aggregates [{function, input, filtered, columns, sql, refused}]   input: the log's column, "*" for count(*), or null
    outputs   [{name, type, function, columns, sql, refused}]
    having      SQL text or null                limit      a number or null
    order       [{sql, descending, nulls_first}], including the keys that break ties

`sql` is over the merged state: each state column merged by its role (sum, min, max, distinct, buckets, counts, exact_sum,
registers, hashes: see `elf.sinks.lake.spark_read`) under its own name, and `#k0`, … for the keys, `#window_start`, `#window_end`.
`columns` are the state columns that `sql` needs. All state merges; in lakes of earlier versions of elf, `sql` is null where it
could not, and `refused` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec

from elf.jobmaster.plan.plan import Aggregate, Call, Column, Expression, FamilyKind, Plan
from elf.jobmaster.plan.spark_exact import sum_sql, variance_sql
from elf.jobmaster.plan.spark_sketch import distinct_sql, mode_sql
from elf.jobmaster.plan.spark_sql import identifier, spark_sql, unscaled
from elf.jobmaster.values.spark_quantile import quantile_sql
from elf.jobmaster.values.sql_types import Kind, SqlType


class Merged(msgspec.Struct, frozen=True):
    """An aggregate, or an expression over aggregates, as SQL over merged state; or the reason why it has none."""

    sql: str | None
    columns: tuple[str, ...] = ()
    refused: str | None = None


def recipe(plan: Plan) -> bytes:
    """The recipe as JSON, UTF-8. Deterministic."""
    return msgspec.json.encode(_recipe(plan))


def _recipe(plan: Plan) -> dict[str, Any]:
    aggregates = [aggregate_sql(plan, aggregate) for aggregate in plan.aggregates]
    names = _names(plan, aggregates)
    having = _expression(plan.having, aggregates, names) if plan.having is not None else Merged(None)
    order = [_expression(item.expression, aggregates, names) for item in plan.order]
    refused = [f"HAVING: {having.refused}"] if having.refused else []
    refused += [f"ORDER BY: {item.refused}" for item in order if item.refused]
    window = plan.window
    return {
        "layout": 1,
        "source": plan.source,
        "filtered": plan.where is not None,
        "window": {"size_us": window.size_us, "slide_us": window.slide_us} if window else None,
        "pane_us": window.pane_us if window else None,
        "keys": [
            {"name": key.name, "type": str(key.expression.type), "source": _column(key.expression)}
            for key in plan.keys
        ],
        "aggregates": [_described(plan, *pair) for pair in zip(plan.aggregates, aggregates, strict=True)],
        "outputs": [
            {
                "name": output.name,
                "type": str(output.type),
                "function": _function(plan, output.expression),
                **_fields(_expression(output.expression, aggregates, names)),
            }
            for output in plan.select
        ],
        "having": having.sql,
        "order": [
            {"sql": merged.sql, "descending": item.descending, "nulls_first": item.nulls_first}
            for item, merged in zip(plan.order, order, strict=True)
        ],
        "limit": plan.limit,
        "refused": "; ".join(refused) or None,
    }


def _names(plan: Plan, aggregates: list[Merged]) -> dict[str, str]:
    start, end = identifier("#window_start"), identifier("#window_end")
    names = {f"#k{i}": identifier(f"#k{i}") for i in range(len(plan.keys))}
    names |= {f"#a{i}": f"({merged.sql})" for i, merged in enumerate(aggregates)}
    return names | {
        "#window_start": start,
        "#window_end": end,
        "#window": f"named_struct('start', {start}, 'end', {end})",
    }


def _fields(merged: Merged) -> dict[str, Any]:
    return {"columns": list(merged.columns), "sql": merged.sql, "refused": merged.refused}


def _described(plan: Plan, aggregate: Aggregate, merged: Merged) -> dict[str, Any]:
    parts = [plan.accumulators[i] for i in aggregate.accumulators]
    inputs = [part.input for part in parts] + [i for f in aggregate.families for i in plan.families[f].inputs]
    whole = aggregate.function == "count" and inputs == [None]
    given = [each for each in inputs if each is not None]
    conditions = [part.filter for part in parts] + [plan.families[f].filter for f in aggregate.families]
    return {
        "function": aggregate.function,
        "input": "*" if whole else _column(given[0]) if given else None,
        "filtered": any(condition is not None for condition in conditions),
        **_fields(merged),
    }


def _column(expression: Expression) -> str | None:
    return expression.name if isinstance(expression, Column) else None


def _function(plan: Plan, expression: Expression) -> str:
    if isinstance(expression, Column):
        if expression.name.startswith("#a"):
            return plan.aggregates[int(expression.name[2:])].function
        return "window" if expression.name.startswith("#window") else "key"
    return "expression"


def _expression(expression: Expression, aggregates: list[Merged], names: dict[str, str]) -> Merged:
    """The expression with its aggregates written out; refused with the reason of the first aggregate that is refused."""
    used = [aggregates[int(name[2:])] for name in _references(expression) if name.startswith("#a")]
    for merged in used:
        if merged.sql is None:
            return merged
    columns = tuple(sorted({column for merged in used for column in merged.columns}))
    return Merged(spark_sql(expression, names), columns)


def _references(expression: Expression) -> list[str]:
    if isinstance(expression, Column):
        return [expression.name]
    if isinstance(expression, Call):
        return [name for argument in expression.arguments for name in _references(argument)]
    return []


# Aggregates over merged accumulators. Counts are bigint, sums decimal(38, s), sums of squares decimal(38, 2s).


def aggregate_sql(plan: Plan, aggregate: Aggregate) -> Merged:
    """The value of one aggregate from merged state, with NULL and rounding as in `finish`."""
    function = aggregate.function
    columns = tuple(f"_acc{i}" for i in aggregate.accumulators)
    if aggregate.families:
        return _of_families(plan, aggregate)
    if function == "count":
        return Merged(f"coalesce({columns[0]}, 0L)", columns)
    count, *rest = columns
    if function in ("min", "max"):
        return Merged(rest[0], tuple(rest))
    if function == "sum":
        sql = f"TRY_CAST({rest[0]} AS {aggregate.type})"
    elif function == "avg":
        sql = _average(count, rest[0], aggregate)
    else:
        sql = _variance(count, *rest, function=function, type=aggregate.input_type)
    return Merged(f"CASE WHEN {count} > 0 THEN {sql} END", columns)


def _of_families(plan: Plan, aggregate: Aggregate) -> Merged:
    kinds = {plan.families[i].kind for i in aggregate.families}
    column = f"_fam{aggregate.families[0]}"
    if kinds == {FamilyKind.DISTINCT}:
        return Merged(f"CAST(coalesce(array_size({column}), 0) AS bigint)", (column,))
    if aggregate.function == "approx_percentile":
        return _percentile(aggregate)
    if kinds <= {FamilyKind.LEAST, FamilyKind.GREATEST}:
        extreme = "array_min" if kinds == {FamilyKind.LEAST} else "array_max"
        return Merged(f"{extreme}({column})", (column,))
    if kinds <= {FamilyKind.MIN_BY, FamilyKind.MAX_BY}:
        return Merged(_by(column, is_max=kinds == {FamilyKind.MAX_BY}), (column,))
    if kinds == {FamilyKind.COUNTS}:
        return Merged(mode_sql(column, aggregate.type), (column,))
    if kinds == {FamilyKind.REGISTERS}:
        return Merged(distinct_sql(column), (column,))
    if kinds == {FamilyKind.HASHES}:
        return Merged(f"coalesce(theta_sketch_estimate({column}), 0L)", (column,))
    return _of_doubles(aggregate)


def _of_doubles(aggregate: Aggregate) -> Merged:
    """sum, avg, variance and stddev of DOUBLE, from exact bins."""
    count, *bins = f"_acc{aggregate.accumulators[0]}", *(f"_fam{i}" for i in aggregate.families)
    if aggregate.function in ("sum", "avg"):
        total = sum_sql(bins[0])
        sql = total if aggregate.function == "sum" else f"({total}) / CAST({count} AS double)"
    else:
        sums, squares = bins
        sql = _moment(aggregate.function, count, lambda divisor: variance_sql(count, sums, squares, divisor))
    return Merged(f"CASE WHEN {count} > 0 THEN {sql} END", (count, *bins))


def _moment(function: str, count: str, variance: Callable[[str], str]) -> str:
    """Variance or standard deviation, from the variance for a divisor, which is of a population or of a sample."""
    value = variance(count if "pop" in function else f"({count} - 1L)")
    value = f"sqrt({value})" if "stddev" in function else value
    return f"CASE WHEN {count} > 1 THEN {value} END" if "samp" in function else value


def _by(column: str, *, is_max: bool) -> str:
    """The value of the pair (value, by) with the least or greatest `by`; of several the smallest value, NULL last."""
    value = "'n', e.`_0` IS NULL, 'x', e.`_0`"
    if not is_max:
        return f"array_min(transform({column}, e -> named_struct('y', e.`_1`, {value}))).x"
    most = f"array_max(transform({column}, e -> e.`_1`))"
    found = f"filter({column}, e -> e.`_1` = {most})"
    return f"array_min(transform({found}, e -> named_struct({value}))).x"


def _percentile(aggregate: Aggregate) -> Merged:
    """One quantile, or an array of them."""
    count, low, high = columns = [f"_acc{i}" for i in aggregate.accumulators]
    buckets = f"_fam{aggregate.families[0]}"
    one = aggregate.type.element or aggregate.type
    parts = [quantile_sql(buckets, count, low, high, Fraction(text), one) for text in aggregate.fractions]
    sql = f"array({', '.join(parts)})" if aggregate.type.kind is Kind.ARRAY else parts[0]
    return Merged(f"CASE WHEN {count} > 0 THEN {sql} END", (*columns, buckets))


def _average(count: str, total: str, aggregate: Aggregate) -> str:
    """Integers: one division of doubles. Decimals: half up, once, in whole numbers, where Spark's division rounds twice.

    (2 t + n - (2 t + n) mod 2 n) / 2 n divides without a remainder; past 38 digits it is NULL, and Spark's division is used.
    """
    type = aggregate.type
    if type.kind is Kind.DOUBLE:
        return f"CAST({total} AS double) / CAST({count} AS double)"
    n = f"CAST({count} AS decimal(20,0))"
    above = f"CAST(CAST(abs({total}) * {2 * 10**type.scale}BD AS decimal(38,0)) + {n} AS decimal(38,0))"
    below = f"CAST({count} * 2L AS decimal(20,0))"
    whole = f"CAST(CAST({above} - CAST({above} % {below} AS decimal(38,0)) AS decimal(38,0)) / {below} AS decimal(38,0))"
    exact = f"CAST(concat(CAST({whole} AS string), 'E-{type.scale}') AS {type})"
    return f"coalesce(if({total} < 0, - {exact}, {exact}), CAST({total} / {n} AS {type}))"


def _variance(count: str, total: str, squares: str, *, function: str, type: SqlType) -> str:
    """(n * sum(x^2) - sum(x)^2) / (n * d) in whole numbers; only past 38 digits in doubles, which may cancel."""
    n = f"CAST({count} AS decimal(20,0))"
    s, q = unscaled(total, type), unscaled(squares, SqlType(Kind.DECIMAL, 38, 2 * type.scale))
    exact = f"CAST(CAST({n} * {q} AS decimal(38,0)) - CAST({s} * {s} AS decimal(38,0)) AS double)"
    rough = f"(CAST({q} AS double) * {count} - CAST({s} AS double) * CAST({s} AS double))"
    unit = f"CAST('1E{2 * type.scale}' AS double)"
    spread = f"coalesce({exact}, {rough}) / (CAST({count} AS double)"
    return _moment(function, count, lambda divisor: f"{spread} * {divisor}) / {unit}")
