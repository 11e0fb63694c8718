"""Exact sums of doubles and variance against fractions and the statistics module."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elf.cbt import aggregates as agg
from elf.cbt._sketch import exact_parts, exact_squares_parts
from elf.cbt.exact import exact_value, rounded, variance, variance_of_doubles

MOST = settings(derandomize=True, max_examples=80, deadline=None)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def merged(
    parts: list[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]],
) -> tuple[list[int], list[int]]:
    """Bins and totals as the rows of a family would hold them."""
    totals: dict[int, int] = {}
    for bins, low, high in parts:
        for at, value in zip(bins.tolist(), agg.wide_total(low, high), strict=True):
            totals[at] = totals.get(at, 0) + value
    return list(totals), list(totals.values())


def nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@MOST
@given(st.lists(FINITE | st.sampled_from([1e308, -1e308, 5e-324, 0.1, -0.1, 1e16]), max_size=40))
def test_sums_of_doubles_are_exact(values: list[float]) -> None:
    exact = sum(map(Fraction, values), Fraction(0))
    bins, totals = merged([exact_parts(np.array(values, dtype=np.float64))])
    assert exact_value(bins, totals) == exact
    assert rounded(exact_value(bins, totals)) == nearest(exact)


@MOST
@given(st.lists(FINITE | st.sampled_from([1e200, 5e-324, 0.1]), max_size=40))
def test_sums_of_squares_are_exact(values: list[float]) -> None:
    exact = sum((Fraction(value) ** 2 for value in values), Fraction(0))
    bins, totals = merged(list(exact_squares_parts(np.array(values, dtype=np.float64))))
    assert exact_value(bins, totals) == exact
    assert rounded(exact_value(bins, totals)) == nearest(exact)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1.0], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([], 0.0),
    ],
)
def test_sums_that_are_not_finite(values: list[float], total: float) -> None:
    bins, totals = merged([exact_parts(np.array(values, dtype=np.float64))])
    assert repr(rounded(exact_value(bins, totals))) == repr(total)


def test_squares_that_are_not_finite() -> None:
    for value, total in ((math.inf, math.inf), (-math.inf, math.inf), (math.nan, math.nan)):
        bins, totals = merged(list(exact_squares_parts(np.array([value, 2.0]))))
        assert repr(rounded(exact_value(bins, totals))) == repr(total)


# ---- variance ------------------------------------------------------------------------------------------------


@MOST
@given(st.lists(st.integers(-(10**15), 10**15), max_size=30), st.booleans(), st.sampled_from([1, 1_000_000]))
def test_variance_is_exact(values: list[int], sample: bool, unit: int) -> None:
    totals = (len(values), sum(values), sum(value * value for value in values))
    got = variance(*totals, sample=sample, unit=unit)
    deviation = variance(*totals, sample=sample, unit=unit, root=True)
    exact = [Fraction(value, unit) for value in values]
    if len(values) <= sample:
        assert got is None
        assert deviation is None
        return
    expected = statistics.variance(exact) if sample else statistics.pvariance(exact)
    assert got == float(expected)
    assert deviation is not None
    # The nearest double: no neighbour's square is nearer, judged at the midpoints.
    below, above = (math.nextafter(deviation, to) for to in (-math.inf, math.inf))
    assert ((Fraction(deviation) + Fraction(below)) / 2) ** 2 <= expected or deviation == 0
    assert expected <= ((Fraction(deviation) + Fraction(above)) / 2) ** 2


@MOST
@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30))
def test_variance_of_doubles_is_exact(values: list[float]) -> None:
    array = np.array(values)
    total = exact_value(*merged([exact_parts(array)]))
    squares = exact_value(*merged(list(exact_squares_parts(array))))
    got = variance_of_doubles(len(values), total, squares)
    assert got == float(statistics.pvariance(list(map(Fraction, values))))


def test_variance_of_too_few_or_infinite_doubles() -> None:
    assert variance_of_doubles(0, 0.0, 0.0) is None
    assert variance_of_doubles(1, 2.0, 4.0, sample=True) is None
    assert variance_of_doubles(1, 2.0, 4.0) == 0.0
    assert math.isnan(variance_of_doubles(2, math.inf, math.inf) or 0.0)
    assert variance_of_doubles(2, 4.0, 10.0, root=True) == 1.0
