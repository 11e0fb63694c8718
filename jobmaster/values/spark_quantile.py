"""approx_percentile from merged buckets as Spark SQL: the same nearest rank and the same value for a bucket as `cbt.aggregates`.

Merged buckets are an array of (key, value): bucket and count, with one item for each pane that had the bucket.
"""

from __future__ import annotations

from fractions import Fraction

from elf.cbt.aggregates import BUCKET_SHIFT, INFINITE_BUCKET
from elf.jobmaster.values.sql_types import Kind, SqlType

_MANTISSA = 52 - BUCKET_SHIFT  # bits of the mantissa in a bucket's number
_STEPS = 1 << _MANTISSA
_POINT = 1023 + _MANTISSA
"""The exponent at which a bucket's edge equals its mantissa as a whole number."""
_PAST = 1023 + 63
"""Edges with this exponent or a higher one do not fit int64."""


def quantile_sql(buckets: str, count: str, low: str, high: str, fraction: Fraction, type: SqlType) -> str:
    """The quantile, of `type`, clamped to [low, high]; NULL without values."""
    up, down = fraction.numerator, fraction.denominator
    rank = f"greatest(({up}L * {count} + {down - 1}L) div {down}L, 1L)"
    start = "named_struct('seen', 0L, 'found', CAST(NULL AS int))"
    hit = f"if(s.found IS NULL AND s.seen + e.value >= {rank}, e.key, s.found)"
    step = f"named_struct('seen', s.seen + e.value, 'found', {hit})"
    bucket = f"aggregate(array_sort({buckets}), {start}, (s, e) -> {step}, s -> s.found)"
    bounds = [
        f"CAST({bound} * {10**type.scale}BD AS bigint)" if type.scale else bound for bound in (low, high)
    ]
    if type.kind is Kind.DOUBLE:
        return _clamped(f"element_at(transform(array({bucket}), b -> {_double()}), 1)", low, high)
    value = f"least(greatest({_value(bucket)}, {bounds[0]}), {bounds[1]})"
    if type.kind is Kind.DECIMAL:
        return f"CAST(concat({value}, 'E-{type.scale}') AS {type})"
    return f"CAST({value} AS {type})"


def _double() -> str:
    """The middle of bucket `b`, exactly: its mantissa and half a step times a power of two, in two steps as below the normal ones
    Java's `pow` of them may be rounded."""
    exponent, mantissa = f"CAST(abs(b) div {_STEPS} AS int)", f"abs(b) % {_STEPS} + 0.5D"
    normal = f"(abs(b) >= {_STEPS})"
    power = f"greatest({exponent}, 1) - {_POINT}"
    middle = f"(if({normal}, {_STEPS}D, 0D) + {mantissa}) * pow(2D, ({power}) div 2) * pow(2D, ({power}) - ({power}) div 2)"
    infinite = f"if(abs(b) = {INFINITE_BUCKET}, CAST('Infinity' AS double), {middle})"
    special = f"WHEN b = 0 THEN 0D WHEN abs(b) > {INFINITE_BUCKET} THEN CAST('NaN' AS double)"
    return f"CASE {special} WHEN b < 0 THEN - {infinite} ELSE {infinite} END"


def _clamped(value: str, low: str, high: str) -> str:
    """NaN stays NaN. As a bound it is none."""
    least, most = f"nanvl({low}, CAST('-Infinity' AS double))", f"nanvl({high}, CAST('Infinity' AS double))"
    return (
        f"element_at(transform(array({value}), v -> if(isnan(v), v, least(greatest(v, {least}), {most}))), 1)"
    )


def _value(bucket: str) -> str:
    """The middle of a bucket's whole numbers, rounded up, with its sign. SQL has no `let`: `transform` of one item serves as
    one."""
    middle = (
        f"element_at(transform(array(named_struct('a', {_edge('s')}, 'b', {_edge('s + 1')})), "
        "x -> x.a + (greatest(x.b, x.a + 1L) - x.a) div 2L), 1)"
    )
    signed = f"element_at(transform(array(abs(b)), s -> if(s = 0, 0L, if(b < 0, - {middle}, {middle}))), 1)"
    return f"element_at(transform(array({bucket}), b -> {signed}), 1)"


def _edge(size: str) -> str:
    """The least whole number at or above a bucket's lower edge, for buckets of numbers from 1 on."""
    exponent, mantissa = f"CAST(({size}) div {_STEPS} AS int)", f"({_STEPS}L + ({size}) % {_STEPS})"
    down, up = f"shiftleft(1L, {_POINT} - {exponent})", f"shiftleft({mantissa}, {exponent} - {_POINT})"
    whole = f"if({exponent} < {_POINT}, ({mantissa} + {down} - 1L) div {down}, {up})"
    return f"if({exponent} >= {_PAST}, 9223372036854775807L, {whole})"
