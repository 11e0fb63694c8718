"""Exact sums of doubles, and variance: rational numbers, rounded once.

Sums of doubles are integers in bins of 32 binary exponents, added without rounding. Imported late: few queries need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, isqrt, ldexp, nan

from elf.cbt._sketch import INFINITE, MINUS_INFINITE, NOT_A_NUMBER

BIN_BITS = 32


def exact_value(bins: Sequence[int], totals: Sequence[int]) -> Fraction | float:
    """The exact sum of `exact_parts`, merged by bin; a float if it is not finite."""
    known = dict(zip(bins, totals, strict=True))
    special = {mark: known.pop(mark, 0) for mark in (INFINITE, MINUS_INFINITE, NOT_A_NUMBER)}
    if special[NOT_A_NUMBER] or (special[INFINITE] and special[MINUS_INFINITE]):
        return nan
    if special[INFINITE] or special[MINUS_INFINITE]:
        return inf if special[INFINITE] else -inf
    least = min(known, default=0)
    total = sum(value << (BIN_BITS * (at - least)) for at, value in known.items())
    power = BIN_BITS * least
    return Fraction(total << power) if power >= 0 else Fraction(total, 1 << -power)


def rounded(value: Fraction | float) -> float:
    """The nearest double; infinite if the value is larger than every double."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def variance(
    count: int, total: int, squares: int, *, sample: bool = False, unit: int = 1, root: bool = False
) -> float | None:
    """Variance, or with `root` the standard deviation, of `count` integers in units of 1/`unit`; rounded once.

    None if there are too few values: no value, or, for a sample, only one.
    """
    divisor = count - sample
    if divisor <= 0:
        return None
    return _moment(Fraction(count * squares - total * total, count * divisor * unit * unit), root)


def variance_of_doubles(
    count: int,
    total: Fraction | float,
    squares: Fraction | float,
    *,
    sample: bool = False,
    root: bool = False,
) -> float | None:
    """The same of doubles, from `exact_value` of their sum and of their squares. NaN if one of these is not finite."""
    divisor = count - sample
    if divisor <= 0:
        return None
    if not all(isinstance(part, Fraction) or abs(part) < inf for part in (total, squares)):
        return nan
    total, squares = Fraction(total), Fraction(squares)
    spread = (count * squares - total * total) / (count * divisor)
    return _moment(max(spread, Fraction(0)), root)


def _moment(value: Fraction, root: bool) -> float:
    return _root(value) if root else rounded(value)


def _root(value: Fraction) -> float:
    """The square root, rounded once: at least 64 bits of it as an integer, with the last bit set if there is a remainder."""
    if not value:
        return 0.0
    shift = max(0, 130 + value.denominator.bit_length() - value.numerator.bit_length())
    shift += shift % 2
    scaled, left = divmod(value.numerator << shift, value.denominator)
    size = isqrt(scaled)
    return ldexp(float(size << 1 | (left != 0 or size * size != scaled)), -shift // 2 - 1)
