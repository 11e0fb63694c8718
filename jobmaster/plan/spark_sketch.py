"""approx_count_distinct and mode from merged state as Spark SQL: bit for bit as `cbt.aggregates` and `windows.best`.

A merged sketch is an HLL_8 binary of Apache DataSketches: 40 bytes, then a byte for each register. One of no values has 8 bytes.
"""

from __future__ import annotations

from elf.cbt.aggregates import ALPHA, REGISTERS, RHO_MAX
from elf.jobmaster.plan.spark_sql import let
from elf.jobmaster.values.sql_types import SqlType

HEAD_BYTES = 40
_STEPS = 60
"""After that many steps sigma and tau have long converged: each further step adds nothing to a double."""


def distinct_sql(sketch: str) -> str:
    """The estimate of the number of distinct values, a bigint: Ertl's improved raw estimator, as `cbt.aggregates.estimates`.

    The registers are a text whose characters are their values, so that counting a value is removing it: 62 steps over a text that
    gets shorter, instead of one for each register.
    """
    text = f"replace(CAST(substring({sketch}, {HEAD_BYTES + 1}) AS string), CAST(X'00' AS string), '')"
    shorter = "replace(s.text, chr(v), '')"
    count = "CAST(length(s.text) - length(t) AS double)"
    counted = f"named_struct('text', t, 'counts', concat(s.counts, array({count})))"
    start = f"named_struct('text', {text}, 'counts', CAST(array() AS array<double>))"
    counts = (
        f"aggregate(sequence(1, {RHO_MAX}), {start}, (s, v) -> {let('t', shorter, counted)}, s -> s.counts)"
    )
    return f"coalesce({let('c', counts, _estimate())}, 0L)"


def _estimate() -> str:
    """From `c`, the number of registers with each value from 1 on."""
    full = f"element_at(c, {RHO_MAX})"
    used = "aggregate(c, 0D, (s, n) -> s + n)"
    halves = f"aggregate(reverse(slice(c, 1, {RHO_MAX - 1})), {REGISTERS}D * {_tau(full)}, (s, n) -> 0.5D * (s + n))"
    z = f"({halves} + {REGISTERS}D * {_sigma('u')})"
    raw = f"{ALPHA * REGISTERS * REGISTERS!r}D / greatest({z}, 1e-18D)"
    most = float(2**63 - 1024)
    found = f"if(u = 0D, 0L, CAST(rint(least({raw}, {most!r}D)) AS bigint))"
    return let("u", used, found)


def _sigma(used: str) -> str:
    share = f"({REGISTERS}D - {used}) / {REGISTERS}D"
    start = f"named_struct('x', {share}, 'y', 1D, 'z', {share})"
    step = "named_struct('x', s.x * s.x, 'y', s.y + s.y, 'z', s.z + s.x * s.x * s.y)"
    return f"aggregate(sequence(1, {_STEPS}), {start}, (s, i) -> {step}, s -> s.z)"


def _tau(full: str) -> str:
    rest = f"(1D - {full} / {REGISTERS}D)"
    start = f"named_struct('x', {rest}, 'y', 1D, 'z', 1D - {rest})"
    less = "(1D - sqrt(s.x)) * (1D - sqrt(s.x)) * (s.y * 0.5D)"
    step = f"named_struct('x', sqrt(s.x), 'y', s.y * 0.5D, 'z', s.z - {less})"
    value = f"aggregate(sequence(1, {_STEPS}), {start}, (s, i) -> {step}, s -> s.z / 3D)"
    return f"if({full} IN (0D, {REGISTERS}D), 0D, {value})"


def mode_sql(counts: str, type: SqlType) -> str:
    """The most frequent value, of several the smallest. counts: an array of (key, value), a value once for each pane that had it.
    O(n log n)."""
    none = f"CAST(NULL AS {type})"
    start = f"named_struct('key', {none}, 'n', 0L, 'best', {none}, 'most', 0L)"
    n = "(if(e.key <=> s.key, s.n, 0L) + e.value)"
    step = f"named_struct('key', e.key, 'n', {n}, 'best', if({n} > s.most, e.key, s.best), 'most', greatest(s.most, {n}))"
    return f"aggregate(array_sort({counts}), {start}, (s, e) -> {step}, s -> s.best)"
