"""The hash table in front of a tree, against a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._front import KEPT_BYTES, Front
from elf.cbt.rows import MAX_EMPTY, MIN_EMPTY, Op
from tests.cbt.cbt_model import MASK, int64s

OPS = (Op.SUM64, Op.SUM128, Op.SUM128, Op.MIN, Op.MAX, Op.SUM64)
LARGEST = (1 << 127) - 1
small = st.integers(-1, 3) | int64s
columns_of = {
    0: st.tuples(),
    1: st.tuples(st.none() | small),
    2: st.tuples(st.none() | small, st.integers(-1, 2)),
}
columns_of[5] = st.tuples(*[st.none() | st.integers(0, 1)] * 5)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[list[Any]]]:
    """(atoms, blocks of rows (pane, atoms, kept, value or None))."""
    atoms = draw(st.sampled_from(sorted(columns_of)))
    row = st.tuples(st.integers(0, 2), columns_of[atoms], st.booleans(), st.none() | int64s)
    return atoms, draw(st.lists(st.lists(row, max_size=30), min_size=1, max_size=4))


def _arrays(rows: list[Any], atoms: int) -> list[tuple[Any, Any]]:
    out = []
    for i in range(atoms):
        values = [row[1][i] for row in rows]
        valid = np.array([v is not None for v in values], np.bool_)
        fits = all(v is None or abs(v) < 1 << 31 for v in values)
        dtype = np.int32 if fits else np.int64
        out.append((np.array([v or 0 for v in values], dtype), None if valid.all() else valid))
    return out


@settings(derandomize=True, max_examples=150, deadline=None)
@given(blocks())
def test_against_a_dict(case: tuple[int, list[list[Any]]]) -> None:
    atoms, all_blocks = case
    front = Front(atoms, OPS)
    model: dict[tuple[Any, ...], list[int]] = {}
    for rows in all_blocks:
        pane = np.array([row[0] for row in rows], np.int64)
        where = np.array([row[2] for row in rows], np.bool_)
        values = np.array([row[3] or 0 for row in rows], np.int64)
        valid = np.array([row[3] is not None for row in rows], np.bool_)
        slots = front.slots(pane, _arrays(rows, atoms), where, rows=len(rows))
        front.count(0, slots)
        front.add(1, slots, values, valid)
        front.add_squares(2, slots, values, valid)
        front.minimum(3, slots, values, valid)
        front.maximum(4, slots, values, valid)
        front.add(5, slots, np.ones(1, np.int64), valid)
        for slot, (at, key, kept, value) in zip(slots.tolist(), rows, strict=True):
            assert (slot >= 0) == kept
            if not kept:
                continue
            group = model.setdefault((at, *key), [0, 0, 0, MIN_EMPTY, MAX_EMPTY, 0])
            group[0] += 1
            if value is not None:
                group[1] += value
                group[2] = min(group[2] + value * value, LARGEST)
                group[3], group[4] = min(group[3], value), max(group[4], value)
                group[5] += 1
    front.check()
    assert groups(front) == model


def groups(front: Front) -> dict[tuple[Any, ...], list[int]]:
    columns: list[list[int | None]] = []
    for i in range(front.atoms):
        values, valid = front.column(i)
        columns.append([v if valid is None or valid[s] else None for s, v in enumerate(values.tolist())])
    lanes = front.lanes().tolist()
    out = {}
    for slot, pane in enumerate(front.panes().tolist()):
        lane = [row[slot] for row in lanes]
        wide = [(lane[i + 1] << 64) + (lane[i] & MASK) for i in (1, 3)]
        out[(pane, *(column[slot] for column in columns))] = [lane[0], *wide, *lane[5:]]
    assert len(out) == len(front)
    return out


def test_many_groups_and_clear() -> None:
    front = Front(2, [Op.SUM64])
    codes = np.arange(50_000, dtype=np.int32)
    for _ in range(2):
        for _ in range(2):
            slots = front.slots(5, [(codes, None), (codes.astype(np.int64) << 40, None)])
            assert (slots == codes).all()
            front.count(0, slots)
        assert (front.lanes() == 2).all()
        assert front.nbytes > 50_000 * 5 * 8
        front.clear()
        assert len(front) == 0


def test_constants_broadcast() -> None:
    front = Front(2, [Op.SUM64])
    slots = front.slots(np.array([1, 2, 1]), [(np.array([9]), None), (np.array([0]), np.array([False]))])
    assert slots.tolist() == [0, 1, 0]
    assert front.column(0)[0].tolist() == [9, 9]
    valid = front.column(1)[1]
    assert valid is not None
    assert not valid.any()
    assert front.slots(1, [(np.arange(0), None), (np.array([0]), None)]).tolist() == []
    everything = Front(0, [Op.SUM64])
    assert everything.slots(0, [], rows=3).tolist() == [0, 0, 0]


def test_an_emptied_front_needs_nothing_and_holds_little() -> None:
    front = Front(1, [Op.SUM64])
    for n in (10, 50_000, 50_000, 10):
        slots = front.slots(7, [(np.arange(n), None)])
        front.count(0, slots)
        assert front.used_bytes == n * (3 + 1 + 2) * 8
        assert front.used_bytes <= front.nbytes
        assert front.lanes().tolist() == [[1] * n]
        front.check()
        front.clear()
        assert (len(front), front.used_bytes) == (0, 0)
        assert front.nbytes <= KEPT_BYTES


def test_null_is_not_zero() -> None:
    front = Front(1, [])
    slots = front.slots(0, [(np.array([0, 0, -1]), np.array([True, False, True]))])
    assert slots.tolist() == [0, 1, 2]


def test_wide_sums_and_their_end() -> None:
    front = Front(1, [Op.SUM128])
    atoms = [(np.array([0, 1, 2]), None)]
    values = [-(1 << 126), 1 << 126, -5]
    low = np.array([v & MASK for v in values], np.uint64)
    high = np.array([v >> 64 for v in values], np.int64)
    slots = front.slots(0, atoms)
    front.add_wide(0, slots, low, high)

    def sums() -> list[int]:
        lanes = front.lanes().tolist()
        return [(h << 64) + (v & MASK) for v, h in zip(*lanes, strict=True)]

    assert sums() == values
    front.add_wide(0, slots, low, high)
    assert sums() == [-(1 << 127), LARGEST, -10]
    front.add(0, slots, np.array([-1]))  # what has overflowed stays so; now the lowest does
    assert sums() == [LARGEST, LARGEST, -11]
    front.add_squares(0, slots, np.array([3, -3, 4]))
    assert sums() == [LARGEST, LARGEST, 5]


def test_wrong_use_is_refused() -> None:
    front = Front(1, [Op.SUM64, Op.MIN])
    slots = front.slots(0, [(np.arange(3), None)])
    with pytest.raises(ValueError, match="not one of"):
        front.count(1, slots)
    with pytest.raises(ValueError, match="not one of"):
        front.minimum(2, slots, np.arange(3))
    with pytest.raises(IndexError):
        front.count(0, np.array([3], np.int32))
    with pytest.raises(TypeError):
        front.add(0, slots, np.zeros(3))
    with pytest.raises(ValueError, match="rows for"):
        front.add(0, slots, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="columns for"):
        front.slots(0, [])
