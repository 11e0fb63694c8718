"""The mathematics of the families against brute force: sorted lists, fractions, the statistics module, and DataSketches."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elf.cbt import _sketch
from elf.cbt import aggregates as agg
from elf.cbt._sketch import registers_of_strings
from elf.cbt._strings import Strings

MOST = settings(derandomize=True, max_examples=80, deadline=None)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


def bounds_of(groups: list[list[int]]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, groups)]).astype(np.int64)


def folded(
    registers: NDArray[np.int64], rhos: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The merged family: each register once, with its greatest rho."""
    best = np.zeros(agg.REGISTERS, dtype=np.int64)
    np.maximum.at(best, registers, rhos)
    present = np.flatnonzero(best)
    return present, best[present]


def estimate(registers: NDArray[np.int64], rhos: NDArray[np.int64]) -> float:
    """The estimated number of distinct values of one group."""
    return float(agg.estimates(bounds_of([registers.tolist()]), registers, rhos)[0])


# ---- distinct values ------------------------------------------------------------------------------------------------

# From serialize_compact() of one-value hll_sketch(12) of the PyPI package datasketches 5.2.0: rho << 26 | address.
COUPONS: list[tuple[str | float, int]] = [
    ("a", 0x043B822F),
    ("x" * 0 + "é", 0x05E0FD8C),
    ("x" * 6 + "é", 0x0BD22807),
    ("x" * 7 + "é", 0x056E438F),
    ("x" * 13 + "é", 0x0E500912),
    ("x" * 14 + "é", 0x0ACB4A7B),
    ("x" * 15 + "é", 0x07ED0B7D),
    ("x" * 30 + "é", 0x1867EAE2),
    ("x" * 31 + "é", 0x14E0B9D4),
    ("x" * 62 + "é", 0x06480674),
    (1, 0x06FBF22B),
    (1.0, 0x0F9DA50B),
    (-0.0, 0x04C2D7CB),
    (math.nan, 0x18BD31EB),
]


@pytest.mark.parametrize(("value", "coupon"), COUPONS)
def test_registers_are_those_of_datasketches(value: str | float, coupon: int) -> None:
    if isinstance(value, str):
        strings = Strings()
        strings.intern_all([value])
        register, rho = registers_of_strings(strings, 0)
    elif isinstance(value, int):
        register, rho = agg.registers_of_ints(np.array([value]))
    else:
        register, rho = agg.registers_of_doubles(np.array([value]))
    assert (register.tolist(), rho.tolist()) == ([coupon & 4095], [coupon >> 26])


def plain_murmur(data: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3 x64 128, from its description."""
    full = 2**64 - 1

    def rotate(x: int, r: int) -> int:
        return (x << r | x >> (64 - r)) & full

    def mix(x: int) -> int:
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & full
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & full
        return x ^ x >> 33

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = (int.from_bytes(data[at + part : at + part + 8], "little") for part in (0, 8))
        h1 = rotate(h1 ^ rotate(k1 * c1 & full, 31) * c2 & full, 27) + h2 & full
        h1 = h1 * 5 + 0x52DCE729 & full
        h2 = rotate(h2 ^ rotate(k2 * c2 & full, 33) * c1 & full, 31) + h1 & full
        h2 = h2 * 5 + 0x38495AB5 & full
    k1, k2 = (int.from_bytes(data[whole + part : whole + part + 8], "little") for part in (0, 8))
    h2 ^= rotate(k2 * c2 & full, 33) * c1 & full
    h1 ^= rotate(k1 * c1 & full, 31) * c2 & full
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & full
    h2 = h1 + h2 & full
    h1, h2 = mix(h1), mix(h2)
    h1 = h1 + h2 & full
    return h1, h1 + h2 & full


@MOST
@given(st.binary(max_size=70))
def test_murmur(data: bytes) -> None:
    assert _sketch.murmur(data) == plain_murmur(data, 9001)


@MOST
@given(st.lists(st.text(max_size=20), unique=True, max_size=30), st.data())
def test_registers_of_strings_from_any_start(values: list[str], data: st.DataObject) -> None:
    strings = Strings()
    strings.intern_all(values)
    registers, rhos = registers_of_strings(strings, 0)
    start = data.draw(st.integers(0, len(values)))
    tail = registers_of_strings(strings, start)
    assert (registers[start:].tolist(), rhos[start:].tolist()) == (tail[0].tolist(), tail[1].tolist())
    for value, register, rho in zip(values, registers, rhos, strict=True):
        h1, h2 = plain_murmur(value.encode(), 9001)
        assert (register, rho) == (h1 % 4096, min(64 - h2.bit_length(), 62) + 1)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 1000, 4096, 20_000, 100_000, 1_000_000])
def test_estimates_are_within_the_sketchs_error(count: int) -> None:
    """Over 20 disjoint sets: the mean is unbiased, and the spread is at most 1.6 % (less while registers are empty)."""
    rounds = 20 if count <= 100_000 else 6
    errors = []
    for turn in range(rounds):
        values = np.arange(turn * count, (turn + 1) * count, dtype=np.int64)
        found = estimate(*folded(*agg.registers_of_ints(values)))
        errors.append(found / count - 1 if count else found)
    assert abs(statistics.fmean(errors)) < 3 * 0.0163 / math.sqrt(rounds)
    assert math.sqrt(statistics.fmean(error * error for error in errors)) < 0.0163 * 1.5


def test_few_values_are_counted_exactly() -> None:
    """As long as no two meet in a register, rounding gives the count itself."""
    seen: set[int] = set()
    registers, rhos = agg.registers_of_ints(np.arange(60, dtype=np.int64))
    for count in range(61):
        part = folded(registers[:count], rhos[:count])
        seen = set(registers[:count].tolist())
        assert round(estimate(*part)) == len(seen)


def test_the_estimate_depends_on_the_set_alone() -> None:
    rng = np.random.default_rng(7)
    values = rng.integers(-(2**63), 2**63 - 1, 30_000)
    one = estimate(*folded(*agg.registers_of_ints(values)))
    other = estimate(*folded(*agg.registers_of_ints(rng.permutation(np.repeat(values, 2)))))
    assert one == other
    registers, rhos = folded(*agg.registers_of_ints(values))
    shuffled = rng.permutation(len(registers))
    assert estimate(registers[shuffled], rhos[shuffled]) == one


def test_estimates_of_many_groups_are_each_groups_own() -> None:
    rng = np.random.default_rng(8)
    parts = [
        folded(*agg.registers_of_ints(rng.integers(0, 2**60, size))) for size in rng.integers(0, 40, 5000)
    ]
    parts[17] = folded(*agg.registers_of_ints(np.arange(50_000)))
    bounds = bounds_of([part[0].tolist() for part in parts])
    registers, rhos = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    got = agg.estimates(bounds, registers, rhos)
    assert got[[0, 17, 4095, 4096, 4999]].tolist() == [estimate(*parts[g]) for g in (0, 17, 4095, 4096, 4999)]
    assert len(got) == 5000


def test_full_registers_do_not_break_the_estimator() -> None:
    registers = np.arange(4096)
    assert estimate(registers, np.full(4096, 63)) == 2**63 - 1024  # the greatest double that is a BIGINT
    some = np.full(4096, 40)
    some[:9] = 63
    assert 2**51 < estimate(registers, some) < 2**53


# ---- quantiles ------------------------------------------------------------------------------------------------------


@MOST
@given(st.lists(LONGS, min_size=1, max_size=50), st.fractions(0, 1, max_denominator=1000))
@example([2**63 - 1], Fraction(1))
@example([-(2**63)], Fraction(0))
def test_quantiles_of_integers(values: list[int], fraction: Fraction) -> None:
    buckets, counts = np.unique(agg.bucket(np.array(values, dtype=np.int64)), return_counts=True)
    one = np.array([0, len(buckets)], dtype=np.int64)
    got = agg.quantiles(one, buckets, counts.astype(np.int64), fraction, integer=True)
    exact = sorted(values)[max(1, math.ceil(fraction * len(values))) - 1]
    got = np.clip(got, min(values), max(values))
    assert abs(int(got[0]) - exact) <= abs(exact) / 128 + 1e-9 * abs(exact)
    if abs(exact) < 128:
        assert got[0] == exact


@MOST
@given(
    st.lists(st.floats(-1e300, 1e300).filter(lambda x: x == 0 or abs(x) > 1e-300), min_size=1, max_size=50),
    st.fractions(0, 1, max_denominator=1000),
)
def test_quantiles_of_doubles(values: list[float], fraction: Fraction) -> None:
    buckets, counts = np.unique(agg.bucket(np.array(values)), return_counts=True)
    one = np.array([0, len(buckets)], dtype=np.int64)
    got = agg.quantiles(one, buckets, counts.astype(np.int64), fraction, integer=False)
    exact = sorted(values)[max(1, math.ceil(fraction * len(values))) - 1]
    assert abs(float(got[0]) - exact) <= abs(exact) / 128


def test_quantiles_of_groups() -> None:
    """Ranks never reach into the neighbour; a group without rows gives 0."""
    groups = [[1, 2, 3], [], [100], [], [-5, 5]]
    counts = np.array([1, 1, 2, 7, 3, 3], dtype=np.int64)
    buckets = agg.bucket(np.array([value for group in groups for value in group]))
    for text, expected in (("0", [1, 0, 100, 0, -5]), ("0.5", [2, 0, 100, 0, -5]), ("1", [3, 0, 100, 0, 5])):
        got = agg.quantiles(bounds_of(groups), buckets, counts, Fraction(text), integer=True)
        assert got.tolist() == expected
    empty = np.zeros(0, dtype=np.int64)
    assert agg.quantiles(
        np.zeros(3, dtype=np.int64), empty, empty, Fraction(1, 2), integer=False
    ).tolist() == [0, 0]


def test_ranks_are_exact_where_doubles_are_not() -> None:
    """0.07 * 100 is 7.000000000000001 in doubles: the rank would be 8."""
    counts = np.ones(100, dtype=np.int64)
    buckets = agg.bucket(np.arange(1, 101))
    got = agg.quantiles(np.array([0, 100]), buckets, counts, Fraction("0.07"), integer=True)
    assert got.tolist() == [7]
    huge = np.array([2**61, 2**61], dtype=np.int64)
    got = agg.quantiles(
        np.array([0, 2]), agg.bucket(np.array([1, 2])), huge, Fraction("0.5000001"), integer=True
    )
    assert got.tolist() == [2]


@MOST
@given(st.lists(FINITE, min_size=2, max_size=2), st.lists(LONGS, min_size=2, max_size=2))
def test_buckets_keep_the_order(doubles: list[float], longs: list[int]) -> None:
    for values in (np.array(sorted(doubles)), np.array(sorted(longs), dtype=np.int64)):
        low, high = agg.bucket(values).tolist()
        assert low <= high


def test_buckets_of_what_is_no_number() -> None:
    values = np.array([-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan, -math.nan])
    buckets = agg.bucket(values)
    assert buckets[2] == buckets[3] == 0
    assert buckets[6] == buckets[7]
    assert buckets[:7].tolist() == sorted(buckets[:7].tolist())
    back = agg.bucket_value(buckets, integer=False).tolist()
    assert [back[0], back[2], back[5]] == [-math.inf, 0.0, math.inf]
    assert math.isnan(back[6])


# ---- integers, order ------------------------------------------------------------------------------------------------


@MOST
@given(st.lists(st.integers(-(2**127), 2**127 - 1), max_size=20))
def test_wide_totals(values: list[int]) -> None:
    low = np.array([value % 2**64 for value in values], dtype=np.uint64)
    high = np.array([value >> 64 for value in values], dtype=np.int64)
    assert agg.wide_total(low, high) == values


@MOST
@given(st.lists(st.floats(), min_size=2, max_size=20))
def test_the_order_of_doubles(values: list[float]) -> None:
    lanes = agg.order_double(np.array(values)).tolist()
    ranked = sorted(
        range(len(values)), key=lambda i: (math.isnan(values[i]), 0.0 if math.isnan(values[i]) else values[i])
    )
    assert [lanes[i] for i in ranked] == sorted(lanes)
    back = agg.undo_order_double(np.array(lanes, dtype=np.int64)).tolist()
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(values, back, strict=True))
    assert len({repr(value) for value in agg.canonical(np.array([0.0, -0.0])).tolist()}) == 1
