"""Ordering a window of many pieces: keys compared with values, sorting with Python's, merging with both."""

from __future__ import annotations

import random
from functools import cmp_to_key
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt.budget import Budget
from elf.jobmaster.plan.plan import Column, Order
from elf.jobmaster.values.columns import CellColumn, Texts
from elf.jobmaster.values.sql_types import BIGINT, DOUBLE, STRING, SqlType, decimal
from elf.jobmaster.windows import order as ordering
from elf.jobmaster.windows._order import join_texts, lower_bound, sorted_index
from elf.jobmaster.windows.order import Layout, Spool, compact, layout_of

WIDE = decimal(38, 0)
Row = tuple[Any, ...]


def packed(texts: list[bytes]) -> tuple[Any, Any]:
    return np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum([len(t) for t in texts], dtype=np.uint64)


prefixes = st.sampled_from([b"", b"a", b"\x00", b"abcdefg", b"abcdefgh", b"abcdefgh\x00", b"p" * 600])
texts = st.builds(bytes.__add__, prefixes, st.binary(max_size=12))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(texts, max_size=120))
def test_texts_are_sorted_as_bytes_and_equal_ones_stay(values: list[bytes]) -> None:
    keys, ends = packed(values)
    expected = sorted(range(len(values)), key=lambda i: (values[i], i))
    assert sorted_index(keys, ends).tolist() == expected


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(texts, max_size=50), texts)
def test_bisection_counts_what_is_before(values: list[bytes], wanted: bytes) -> None:
    keys, ends = packed(sorted(values))
    assert lower_bound(keys, ends, wanted) == sum(value < wanted for value in values)


def test_many_long_texts_with_common_prefixes_take_neither_depth_nor_time() -> None:
    values = [b"x" * 1_000 + bytes([i % 7]) + b"y" * (i % 3) for i in range(2_000)]
    keys, ends = packed(values)
    expected = sorted(range(len(values)), key=lambda i: (values[i], i))
    assert sorted_index(keys, ends).tolist() == expected


def test_joined_texts_are_those_of_the_codes() -> None:
    text, ends = packed([b"one", b"", b"three"])
    codes = np.array([2, -1, 0], dtype=np.int32), np.array([1, 0], dtype=np.int32)
    out, out_ends = join_texts([(each, text, ends.astype(np.uint32)) for each in codes])
    assert (out.tobytes(), out_ends.tolist()) == (b"threeoneone", [5, 5, 8, 8, 11])


def column_of(type: SqlType, values: list[Any]) -> CellColumn:
    if type == STRING:
        text, ends = packed([b"" if value is None else value.encode() for value in values])
        codes = np.array([-1 if v is None else i for i, v in enumerate(values)], dtype=np.int32)
        return compact(CellColumn("string", codes, None, Texts(text, ends.astype(np.uint32))))
    dtype: Any = {BIGINT: np.int64, DOUBLE: np.float64, WIDE: object}[type]
    array = np.array([0 if value is None else value for value in values], dtype=dtype)
    valid = np.array([value is not None for value in values])
    return CellColumn(str(type), array, None if valid.all() else valid)


def before(order: list[Order], a: Row, b: Row) -> int:
    for item, x, y in zip(order, a, b, strict=True):
        if x == y:
            continue
        if x is None or y is None:
            return -1 if (x is None) == item.nulls_first else 1
        x, y = (x.encode(), y.encode()) if isinstance(x, str) else (x, y)
        return -1 if (x < y) != item.descending else 1
    return 0


rows_of = {
    BIGINT: lambda rng: rng.choice([None, -(2**63), 2**63 - 1, *range(-3, 4)]),
    STRING: lambda rng: rng.choice([None, "", "\0", "a", "a\0", "a\0b", "ä", f"x{rng.randrange(400)}"]),
    DOUBLE: lambda rng: rng.choice([None, -1.5, 0.0, 1e300, float(rng.randrange(50)), float("inf")]),
    WIDE: lambda rng: rng.choice([None, 10**37, -(10**37), rng.randrange(100), 2**64]),
}


@pytest.mark.parametrize("limit", [None, 1, 70])
@pytest.mark.parametrize("seed", range(6))
def test_runs_merge_into_one_order(seed: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs at once and small blocks: several levels, many ranges, blocks on disk."""
    monkeypatch.setattr(ordering, "RUNS_MAX", 4)
    monkeypatch.setattr(ordering, "RANGE_BLOCKS", 3)
    monkeypatch.setattr(ordering, "BLOCK_BYTES_MIN", 200)
    rng = random.Random(seed)
    types = rng.sample(list(rows_of), 3)
    order = [
        Order(Column(f"c{i}", type), rng.random() < 0.5, rng.random() < 0.5) for i, type in enumerate(types)
    ]
    layout = Layout(tuple(order), (0, 1, 2), 2 + seed % 2)  # with an odd seed a column only orders

    def compare(a: Row, b: Row) -> int:
        return before(order, a, b)

    key = cmp_to_key(compare)
    budget = Budget(4096)
    spool = Spool(layout, budget, limit)
    everything: list[Row] = []
    for _ in range(rng.randrange(1, 30)):
        run = [tuple(rows_of[type](rng) for type in types) for _ in range(rng.randrange(60))]
        run.sort(key=key)
        everything += run
        columns = [column_of(type, [row[i] for row in run]) for i, type in enumerate(types)]
        spool.add(columns)
    expected = [
        tuple(int(v) if types[i] == WIDE and v is not None else v for i, v in enumerate(row[: layout.width]))
        for row in sorted(everything, key=key)[:limit]
    ]
    assert len(spool) == len(expected)
    assert list(spool) == expected
    assert list(spool[2:5]) == expected[2:5]
    assert [row for part in spool.chunks(7) for row in part] == expected
    assert list(zip(*(cell.to_python() for cell in spool.cells), strict=True)) == expected
    budget.check()
    spool.close()
    assert (budget.used, budget.spilled) == (0, 0)


def test_a_column_that_is_selected_orders_without_a_copy() -> None:
    order = [Order(Column("b", STRING)), Order(Column("c", BIGINT))]
    assert layout_of(order, {Column("a", STRING): 0, Column("b", STRING): 1}, 2).places == (1, 2)
