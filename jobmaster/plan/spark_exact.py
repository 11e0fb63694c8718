"""Sums of doubles from merged bins as Spark SQL: exact whole numbers of any length, rounded once, as in `elf.cbt.exact`.

Merged bins are an array of (key, value): the bin and the whole number that it adds, times 2**(32 * bin); a bin occurs once for
each pane that had it. Spark has no whole numbers above 38 digits, so the SQL carries from bin to bin:

    bins -> `_totals`: each bin once -> `_digits`: 32 bits each, above them the sign -> `_top`: the upper 65 to 97 bits, rounded
"""

from __future__ import annotations

from elf.cbt._sketch import INFINITE, MINUS_INFINITE, NOT_A_NUMBER
from elf.cbt.exact import BIN_BITS
from elf.jobmaster.plan.spark_sql import let

_WIDE = "decimal(38,0)"
_BASE = f"{1 << BIN_BITS}BD"
_BINS = f"array<struct<key:int,value:{_WIDE}>>"
_ABOVE = 4
"""Digits above the greatest bin: its total has 127 bits at most."""


def sum_sql(bins: str) -> str:
    """The sum as a double; infinite or NaN where a value is. NULL without bins."""
    nan, above, below = (_has(bins, f"= {mark}") for mark in (NOT_A_NUMBER, INFINITE, MINUS_INFINITE))
    return (
        f"CASE WHEN {nan} OR ({above} AND {below}) THEN CAST('NaN' AS double) "
        f"WHEN {above} THEN CAST('Infinity' AS double) WHEN {below} THEN CAST('-Infinity' AS double) "
        f"ELSE {_top(_finite(bins), '1D')} END"
    )


def variance_sql(count: str, sums: str, squares: str, divisor: str) -> str:
    """(n * sum(x^2) - sum(x)^2) / (n * divisor): the difference is exact, so that nothing cancels; the quotient is rounded again.
    NaN if a value is not finite."""
    n = f"CAST({count} AS {_WIDE})"
    most = f"transform({_numbers('q', squares)}, e -> {_entry('e.key', f'CAST(e.value * {n} AS {_WIDE})')})"
    pair = _entry("a.key + b.key", f"CAST(- (a.value * b.value) AS {_WIDE})")
    less = let("t", _numbers("t", sums), f"flatten(transform(t, a -> transform(t, b -> {pair})))")
    spread = _top(f"concat({most}, {less})", f"(CAST({count} AS double) * {divisor})")
    special = f"{_has(sums, f'>= {INFINITE}')} OR {_has(squares, f'>= {INFINITE}')}"
    return f"CASE WHEN {special} THEN CAST('NaN' AS double) ELSE coalesce({spread}, 0D) END"


def _entry(key: str, value: str) -> str:
    return f"named_struct('key', {key}, 'value', {value})"


def _has(bins: str, is_one: str) -> str:
    return f"exists({bins}, e -> e.key {is_one} AND e.value > 0)"


def _finite(bins: str) -> str:
    return f"filter({bins}, e -> e.key < {INFINITE})"


def _totals(bins: str) -> str:
    """Each bin once, as a map. O(bins log bins)."""
    start = (
        f"named_struct('key', get(z, 0).key, 'value', CAST(0 AS {_WIDE}), 'done', CAST(array() AS {_BINS}))"
    )
    more = f"named_struct('key', s.key, 'value', CAST(s.value + e.value AS {_WIDE}), 'done', s.done)"
    done = f"concat(s.done, array({_entry('s.key', 's.value')}))"
    step = f"if(e.key = s.key, {more}, named_struct('key', e.key, 'value', e.value, 'done', {done}))"
    folded = f"aggregate(z, {start}, (s, e) -> {step}, s -> map_from_entries({done}))"
    return let("z", f"array_sort({bins})", folded)


def _digits(bins: str) -> str:
    """(low, digits, sign): digits from bin `low` up, two below the least bin; sign 0 or -1 is all above them. NULL without
    bins."""
    total = f"s.sign + coalesce(element_at(m, k), CAST(0 AS {_WIDE}))"
    digit = f"CAST(pmod(v, {_BASE}) AS {_WIDE})"
    carry = f"CAST((v - pmod(v, {_BASE})) / {_BASE} AS {_WIDE})"
    step = f"named_struct('sign', {carry}, 'digits', concat(s.digits, array({digit})))"
    start = f"named_struct('sign', CAST(0 AS {_WIDE}), 'digits', CAST(array() AS array<{_WIDE}>))"
    bounds = f"sequence(array_min(map_keys(m)) - 2, array_max(map_keys(m)) + {_ABOVE})"
    found = "named_struct('low', array_min(map_keys(m)) - 2, 'digits', s.digits, 'sign', s.sign)"
    folded = (
        f"aggregate({bounds}, {start}, (s, k) -> {let('v', f'CAST({total} AS {_WIDE})', step)}, s -> {found})"
    )
    return let("bins", bins, f"if(size(bins) > 0, {let('m', _totals('bins'), folded)}, NULL)")


def _numbers(name: str, bins: str) -> str:
    """The digits that are not 0, and the sign, as bins: each below 2**32, so that products of two fit. Empty without bins."""
    digit = _entry(f"d{name}.low + i", "d")
    sign = _entry(f"d{name}.low + size(d{name}.digits)", f"d{name}.sign")
    every = f"concat(transform(d{name}.digits, (d, i) -> {digit}), array({sign}))"
    return let(
        f"d{name}",
        _digits(_finite(bins)),
        f"coalesce(filter({every}, e -> e.value <> 0), CAST(array() AS {_BINS}))",
    )


def _top(bins: str, divisor: str) -> str:
    """The nearest double of the sum of the bins, divided by a double.

    The first digit that is not of the sign, and the two below it, have 65 bits or more. If a lower digit is not 0, their last
    bit is set, which rounds to the same side. 2**(32 * bin) is multiplied in four steps, as no single double may hold it. A sum
    of doubles that is below the normal ones is a double, so that no step rounds.
    """
    sign_digit = f"if(n.sign < 0, {(1 << BIN_BITS) - 1}BD, 0BD)"
    highest = f"greatest(3, array_max(transform(n.digits, (d, i) -> if(d <> {sign_digit}, i + 1, 0))))"
    parts = ["n.sign * 79228162514264337593543950336BD"]
    parts += [f"element_at(n.digits, h - {i}) * {1 << BIN_BITS * (2 - i)}BD" for i in range(3)]
    whole = f"CAST({' + '.join(f'CAST({part} AS {_WIDE})' for part in parts)} AS {_WIDE})"
    sticky = "exists(slice(n.digits, 1, h - 3), d -> d <> 0) AND pmod(w, 2BD) = 0"
    odd = f"CAST(CAST(if({sticky}, w + 1BD, w) AS {_WIDE}) AS double)"
    power = "pow(2D, 8 * (n.low + h - 3))"
    scaled = f"{odd} / {divisor} * {power} * {power} * {power} * {power}"
    return let("n", _digits(bins), let("h", highest, let("w", whole, scaled)))
