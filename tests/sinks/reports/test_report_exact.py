"""SQL of the recipes over merged state against exact arithmetic: sums, variance and quantiles of doubles, and mode."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from elf.cbt import aggregates
from elf.cbt._sketch import exact_parts, exact_squares_parts
from elf.cbt.exact import exact_value, rounded, variance_of_doubles
from elf.jobmaster.plan.spark_exact import sum_sql, variance_sql
from elf.jobmaster.plan.spark_sketch import mode_sql
from elf.jobmaster.values.spark_quantile import quantile_sql
from elf.jobmaster.values.sql_types import DOUBLE, STRING

pytestmark = pytest.mark.spark

Bins = list[tuple[int, int]]
INF, NAN = float("inf"), float("nan")
EXTREMES = [
    [1.0],
    [-0.0],
    [5e-324],
    [5e-324, -5e-324],
    [-5e-324, 2.2250738585072014e-308],
    [2.2250738585072014e-308, -5e-324],
    [1.7976931348623157e308],
    [1.7976931348623157e308, 9.979201547673599e291],
    [1.7976931348623157e308] * 2,
    [-1.7976931348623157e308] * 2,
    [1e308, 1.0, -1e308],
    [1.0, 2.0**-53],
    [1.0, 2.0**-53, 2.0**-1074],
    [-1.0, -(2.0**-53), -(2.0**-1074)],
    [1.0 + 2.0**-52, 2.0**-53],
    [1.0, -(2.0**-54)],
    [2.0**64, -1.0],
    [-(2.0**64), 1.0],
    [-(2.0**32)],
    [2.0**-1022, 2.0**-1074, -(2.0**-1022)],
    [0.1] * 10,
    [3e-200, 7e-200, -1e-200],
    [INF, 1.0],
    [-INF, 1.0],
    [INF, -INF],
    [NAN, 1.0],
]


def drawn(count: int) -> list[list[float]]:
    chance = random.Random(5)
    out = []
    for _ in range(count):
        spread = chance.choice([1, 40, 900])
        values = [
            chance.choice([-1, 1, 1]) * chance.random() * 2.0 ** chance.randint(-spread, spread)
            for _ in range(chance.randint(1, 12))
        ]
        out.append(values)
    for _ in range(count // 4):
        bits = [chance.randrange(2**63) & ~(1 << 62) for _ in range(4)]
        out.append([struct.unpack("<d", struct.pack("<q", each))[0] for each in bits])
    return out


def of_panes(parts: Sequence[Any]) -> Bins:
    """Bins as two panes had them: each pane's totals by bin."""
    out: Bins = []
    for bins, lows, highs in parts:
        half = len(bins) // 2
        for part in (slice(0, half), slice(half, None)):
            totals: dict[int, int] = {}
            wide = aggregates.wide_total(lows[part], highs[part])
            for at, total in zip(bins[part].tolist(), wide, strict=True):
                totals[at] = totals.get(at, 0) + total
            out += totals.items()
    return out


def value_of(bins: Bins) -> Fraction | float:
    totals: dict[int, int] = {}
    for at, total in bins:
        totals[at] = totals.get(at, 0) + total
    return exact_value(list(totals), list(totals.values()))


def test_sums_and_variance_of_doubles(spark: Any) -> None:
    cases = [*EXTREMES, *drawn(120)]
    arrays = [np.array(values) for values in cases]
    sums = [of_panes([exact_parts(values)]) for values in arrays]
    squares = [of_panes(exact_squares_parts(values)) for values in arrays]
    rows = [
        (i, len(c), *(_text(b) for b in both))
        for i, (c, *both) in enumerate(zip(cases, sums, squares, strict=True))
    ]
    kind = "array<struct<key:int,value:string>>"
    typed = "transform({0}, e -> named_struct('key', e.key, 'value', CAST(e.value AS decimal(38,0)))) AS {0}"
    frame = spark.createDataFrame(rows, f"i int, _acc0 bigint, _fam0 {kind}, _fam1 {kind}")
    frame = frame.selectExpr("i", "_acc0", typed.format("_fam0"), typed.format("_fam1")).orderBy("i")
    found = frame.selectExpr(sum_sql("_fam0"), variance_sql("_acc0", "_fam0", "_fam1", "_acc0")).collect()
    for case, row, bins, more in zip(cases, found, sums, squares, strict=True):
        assert _bits(row[0]) == _bits(rounded(value_of(bins))), case
        right = variance_of_doubles(len(case), value_of(bins), value_of(more))
        assert row[1] == pytest.approx(right, rel=3e-16, abs=5e-324, nan_ok=True), case


def test_quantiles_of_doubles(spark: Any) -> None:
    """Each bucket alone, then several with their bounds."""
    cases = [[value] for values in [*EXTREMES, *drawn(100)] for value in values[:2]]
    cases += [*EXTREMES, *drawn(30)]
    rows, expected = [], []
    fraction = Fraction("0.5")
    for case in cases:
        values = aggregates.canonical(np.array(case))
        buckets = aggregates.bucket(values)
        low, high = (
            sorted(aggregates.order_double(values))[:: len(case) - 1 or 1][:2]
            if len(case) > 1
            else [aggregates.order_double(values)[0]] * 2
        )
        bounds = aggregates.undo_order_double(np.array([low, high]))
        rows.append(([(int(b), 1) for b in buckets], len(case), float(bounds[0]), float(bounds[1])))
        order = np.sort(buckets)
        raw = aggregates.quantiles(
            np.array([0, len(case)]), order, np.ones(len(case), np.int64), fraction, integer=False
        )
        edges = [-INF if np.isnan(bounds[0]) else bounds[0], INF if np.isnan(bounds[1]) else bounds[1]]
        expected.append(float(np.clip(raw, edges[0], edges[1])[0]))
    frame = spark.createDataFrame(
        rows, "_fam0 array<struct<key:int,value:bigint>>, _acc0 bigint, _acc1 double, _acc2 double"
    )
    found = [
        row[0]
        for row in frame.selectExpr(
            quantile_sql("_fam0", "_acc0", "_acc1", "_acc2", fraction, DOUBLE)
        ).collect()
    ]
    assert [_bits(each) for each in found] == [_bits(each) for each in expected]


def test_mode(spark: Any) -> None:
    texts = [
        ([], None),
        ([("b", 2), ("a", 1), ("a", 1)], "a"),
        ([("é", 1), ("z", 1)], "z"),
        ([("a", 1), ("b", 3), ("a", 1), ("c", 2), ("c", 1)], "b"),
    ]
    frame = spark.createDataFrame([(case,) for case, _ in texts], "c array<struct<key:string,value:bigint>>")
    assert [row[0] for row in frame.selectExpr(mode_sql("c", STRING)).collect()] == [
        right for _, right in texts
    ]
    numbers = [([(NAN, 1), (NAN, 1), (0.5, 1)], NAN), ([(NAN, 2), (0.5, 1), (0.5, 1)], 0.5)]
    frame = spark.createDataFrame(
        [(case,) for case, _ in numbers], "c array<struct<key:double,value:bigint>>"
    )
    found = [row[0] for row in frame.selectExpr(mode_sql("c", DOUBLE)).collect()]
    assert list(map(_bits, found)) == [_bits(right) for _, right in numbers]


def _text(bins: Bins) -> list[tuple[int, str]]:
    return [(at, str(total)) for at, total in bins]


def _bits(value: float) -> str:
    return "nan" if math.isnan(value) else (value + 0.0).hex()
