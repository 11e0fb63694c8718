"""Theta sketches in the lake against Apache DataSketches: its package, and Spark's functions, in both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt import aggregates
from elf.cbt._sketch import hashes_of_strings
from elf.cbt._strings import Strings
from elf.sinks.lake.sketch import ENTRIES, theta_sketch
from elf.sinks.lake.theta import common, estimate, hashes_of, united

datasketches: Any = pytest.importorskip("datasketches", reason="pip install datasketches")

Value = str | int | float
VALUES = st.text(min_size=1, max_size=20) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


def hashes(values: Iterable[Value]) -> list[int]:
    """Those of the agents' rows."""
    every = list(values)
    strings = Strings()
    strings.intern_all([value for value in every if isinstance(value, str)])
    doubles = np.array([value for value in every if isinstance(value, float)], dtype=np.float64)
    numbers = np.array([value for value in every if isinstance(value, int)], dtype=np.int64)
    found = (
        hashes_of_strings(strings),
        aggregates.hashes_of_doubles(doubles),
        aggregates.hashes_of_ints(numbers),
    )
    return [hash for each in found for hash in each.tolist()]


def packages(values: Iterable[Value]) -> Any:
    made = datasketches.update_theta_sketch(12)
    for value in values:
        made.update(value)
    return made.compact()


def union(*parts: Any) -> bytes:
    merged = datasketches.theta_union(12)
    for part in parts:
        merged.update(part)
    made: bytes = merged.get_result(True).serialize()
    return made


@given(st.lists(VALUES, max_size=30), st.lists(VALUES, max_size=30))
def test_the_bytes_are_those_of_the_package(ours: list[Value], theirs: list[Value]) -> None:
    made = theta_sketch(hashes(ours))
    assert made == union(packages(ours))
    both = united(hashes_of(made), hashes_of(packages(theirs).serialize()))
    assert (
        theta_sketch(both.tolist())
        == union(packages(ours), packages(theirs))
        == union(packages(ours + theirs))
    )


@pytest.mark.parametrize("count", [0, 1, ENTRIES - 1, ENTRIES, ENTRIES + 1, 8_000, 100_000])
def test_of_many_values_the_least_hashes_stay(count: int) -> None:
    """Whichever way they are divided into parts."""
    chance = np.random.default_rng(count)
    values = chance.integers(0, 2**63, count, dtype=np.int64)
    made = theta_sketch(aggregates.hashes_of_ints(values).tolist())
    whole = datasketches.theta_union(12)
    parts = [packages(values[n::7].tolist()) for n in range(7)]
    for part in parts:
        whole.update(part)
    result = whole.get_result(True)
    assert made == result.serialize()
    ours = united(
        *(hashes_of(theta_sketch(aggregates.hashes_of_ints(values[n::7]).tolist())) for n in range(7))
    )
    assert np.array_equal(ours, hashes_of(made))
    assert estimate(ours) == round(result.get_estimate())
    bounds = np.array([0, len(ours)], dtype=np.int64)
    assert aggregates.set_estimates(bounds, chance.permutation(ours)).tolist() == [estimate(ours)]


@pytest.mark.parametrize(
    ("one", "other"), [(100, 50), (9_000, 50), (9_000, 70_000), (0, 9_000), (3_000, 4_000)]
)
def test_what_two_sets_have_in_common(one: int, other: int) -> None:
    first, second = range(one), range(one // 2, one // 2 + other)
    both = datasketches.theta_intersection()
    for values in (first, second):
        both.update(packages(values))
    ours = [hashes_of(theta_sketch(hashes(values))) for values in (first, second)]
    exact = len(set(first) & set(second))
    found = common(*ours)
    assert found == common(*reversed(ours))
    if max(one, other) <= ENTRIES:
        assert found == exact
    assert found == pytest.approx(both.get_result().get_estimate(), rel=0.06, abs=1)
    assert found == pytest.approx(exact, rel=0.15, abs=0.03 * (one + other))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=60),
    st.integers(1, 5),
)
@settings(max_examples=50)
def test_each_group_keeps_its_least_hashes(members: list[tuple[int, int]], most: int) -> None:
    groups, found = (
        np.array(column, dtype=np.int64) for column in (zip(*members, strict=True) if members else ([], []))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregates, "SET_SIZE", most)
        chosen = aggregates.least_hashes(groups, found)
    kept = [(int(groups[at]), int(found[at])) for at in chosen]
    expected = [
        pair
        for group in range(4)
        for pair in sorted(each for each in members if each[0] == group)[: most + 1]
    ]
    assert kept == expected


@pytest.mark.parametrize("other", [b"", bytes(8), theta_sketch(range(1, 9))[:5], b"\x01\x03\x04" + bytes(20)])
def test_other_bytes_are_refused(other: bytes) -> None:
    with pytest.raises(ValueError, match="no compact theta sketch"):
        hashes_of(other)
    few = datasketches.update_theta_sketch(5)
    for value in range(1_000):
        few.update(value)
    with pytest.raises(ValueError, match="other than 4,096 entries"):
        hashes_of(few.compact().serialize())


@pytest.mark.spark
def test_spark_reads_ours_and_we_read_sparks(spark: Any) -> None:
    """Spark's functions make sketches of the same values, packed; their union with ours is ours."""
    sets = [[value * 7_919 for value in range(count)] for count in (0, 1, 3, 100, ENTRIES + 1, 30_000)]
    rows = [(n, theta_sketch(hashes(values))) for n, values in enumerate(sets)]
    ours = spark.createDataFrame([(n, bytearray(made)) for n, made in rows], "n int, s binary")
    longs = spark.createDataFrame(
        [(n, value) for n, values in enumerate(sets) for value in (values or (None,))], "n int, x bigint"
    )
    theirs = longs.groupBy("n").agg({"x": "theta_sketch_agg"}).toDF("n", "s")
    ours.union(theirs).createOrReplaceTempView("sets")
    found = spark.sql(
        "SELECT n, theta_union_agg(s) AS s, theta_sketch_estimate(theta_union_agg(s)) AS size FROM sets GROUP BY n ORDER BY n"
    )
    for row, values, (_, made) in zip(found.collect(), sets, rows, strict=True):
        assert np.array_equal(hashes_of(bytes(row.s)), hashes_of(made))
        assert row["size"] == estimate(hashes_of(made))
        assert row["size"] == len(values) or len(values) > ENTRIES
    every = spark.sql("SELECT theta_union_agg(s) AS s FROM sets").first().s
    assert np.array_equal(hashes_of(bytes(every)), hashes_of(rows[-1][1]))
