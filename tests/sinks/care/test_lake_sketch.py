"""Sketches in the lake against Apache DataSketches: its package, and Spark's functions, in both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt import aggregates
from elf.cbt._sketch import registers_of_strings
from elf.cbt._strings import Strings
from elf.jobmaster.plan.spark_sketch import distinct_sql
from elf.sinks.lake.sketch import EMPTY, SKETCH_BYTES, sketch

datasketches: Any = pytest.importorskip("datasketches", reason="pip install datasketches")

Value = str | int | float
# Of an empty text the package makes nothing.
VALUES = st.text(min_size=1, max_size=20) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)


def registers_of(values: Iterable[Value]) -> dict[int, int]:
    """Those of the agents' rows: each register with its greatest value."""
    all = list(values)
    strings = Strings()
    strings.intern_all([value for value in all if isinstance(value, str)])
    doubles = np.array([value for value in all if isinstance(value, float)], dtype=np.float64)
    numbers = np.array([value for value in all if isinstance(value, int)], dtype=np.int64)
    best: dict[int, int] = {}
    found = (registers_of_strings(strings, 0), aggregates.registers_of_doubles(doubles))
    for registers, rhos in (*found, aggregates.registers_of_ints(numbers)):
        for register, rho in zip(registers.tolist(), rhos.tolist(), strict=True):
            best[register] = max(rho, best.get(register, 0))
    return best


def packages(values: Iterable[Value]) -> Any:
    """The package's sketch of these values."""
    made = datasketches.hll_sketch(12, datasketches.HLL_8)
    for value in values:
        made.update(value)
    return made


def union(*parts: Any) -> Any:
    """The package's union, as a dense HLL_8."""
    merged = datasketches.hll_union(12)
    for part in parts:
        merged.update(part)
    return merged.get_result(datasketches.HLL_8)


def estimate(found: dict[int, int]) -> int:
    """The engine's own."""
    at = np.array(sorted(found), dtype=np.int64)
    rhos = np.array([found[each] for each in sorted(found)], dtype=np.int64)
    return int(np.rint(aggregates.estimates(np.array([0, len(at)]), at, rhos))[0])


def test_a_union_of_two_dense_sketches_has_these_bytes() -> None:
    """The only dense sketches of the package whose bytes depend on the values alone are those of unions."""
    first, second = list(range(6000)), [f"v{i}" for i in range(6000)]
    merged = union(packages(first), packages(second))
    assert merged.serialize_updatable() == sketch(registers_of([*first, *second]))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(VALUES, max_size=40))
def test_the_package_reads_and_writes_these_bytes(values: list[Value]) -> None:
    made = sketch(registers_of(values))
    assert made == EMPTY if not values else len(made) == SKETCH_BYTES
    read = datasketches.hll_sketch.deserialize(made)
    distinct = len({repr(value) for value in values})
    assert read.get_lower_bound(3) <= distinct <= read.get_upper_bound(3)
    again = union(read)
    assert again.serialize_updatable() == made or (not values and again.is_empty())


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=40), st.lists(VALUES, min_size=1, max_size=40), st.booleans())
def test_unions_with_the_packages_sketches(ours: list[Value], theirs: list[Value], first: bool) -> None:
    """Theirs may be lists of coupons, whose registers then are of the same values."""
    parts = [datasketches.hll_sketch.deserialize(sketch(registers_of(ours))), packages(theirs)]
    merged = union(*(parts if first else parts[::-1]))
    assert merged.serialize_updatable() == sketch(registers_of([*ours, *theirs]))


@pytest.mark.spark
def test_spark_merges_them_with_its_own(spark: Any) -> None:
    """Spark's sketches of the same values add nothing; the estimate from the merged bytes is the engine's own, bit for bit."""
    sets: list[list[str]] = [[], ["a"], [f"/{i}" for i in range(300)], [f"/{i}" for i in range(7000)]]
    sets.append([f"x{i}" for i in range(100_000)])
    rows = [(n, bytearray(sketch(registers_of(values)))) for n, values in enumerate(sets)]
    rows += [(len(sets), bytearray(sketch(dict.fromkeys(range(4096), 63))))]
    rows += [(len(sets) + 1, bytearray(sketch({i: i % 64 for i in range(1, 4096) if i % 64})))]
    frame = spark.createDataFrame(rows, "n int, s binary")
    frame.createOrReplaceTempView("ours")
    found = [row[0] for row in frame.orderBy("n").selectExpr(distinct_sql("s")).collect()]
    expected = [estimate(registers_of(values)) for values in sets]
    expected.append(estimate(dict.fromkeys(range(4096), 63)))
    expected.append(estimate({i: i % 64 for i in range(1, 4096) if i % 64}))
    assert found == expected
    query = """
        WITH theirs AS (SELECT hll_sketch_agg(concat('/', id), 12) AS s FROM range(5000, 9000))
        SELECT hll_union_agg(s) AS s, hll_sketch_estimate(hll_union_agg(s)) AS n
        FROM (SELECT s FROM theirs UNION ALL SELECT s FROM ours WHERE n IN (0, 2, 3))
    """
    merged = spark.sql(query).selectExpr("s", "n", f"{distinct_sql('s')} AS own").first()
    expected_registers = registers_of(f"/{i}" for i in range(9000))
    assert bytes(merged.s) == sketch(expected_registers)
    assert merged.own == estimate(expected_registers)
    assert merged.n == pytest.approx(9000, rel=0.04)
