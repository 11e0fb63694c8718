"""Ordering, folding and merging of rows, against a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._kernel import Merger, first_disorder, fold, lower_bound, make_rows, merge, take
from elf.cbt.rows import Op, Rows, concat, distinct
from tests.cbt.cbt_model import OPS, Record, colliding_key, model_of, read, records, rows_of

lists = st.lists(records, max_size=60)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(lists)
def test_make_rows_orders_and_folds(some: list[Record]) -> None:
    assert read([rows_of(some)]) == model_of(some)


@pytest.mark.slow
@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(lists, max_size=9))
def test_merge_is_one_pass_over_all(parts: list[list[Record]]) -> None:
    everything = model_of(record for part in parts for record in part)
    runs = [rows_of(part) for part in parts]
    assert read([merge(runs, OPS)]) == everything
    assert read([fold(concat(runs, 5), OPS)]) == everything


@settings(derandomize=True, max_examples=100, deadline=None)
@given(lists, st.data())
def test_slice_take_and_lower_bound(some: list[Record], data: st.DataObject) -> None:
    rows = rows_of(some)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part = rows.slice(start, stop)
    assert read([part]) == read([take(rows, np.arange(start, stop))]) == read([part.copy()])
    halves = [rows.slice(0, start), rows.slice(start, len(rows))]
    assert read(halves) == read([rows])
    places = [(int(rows.pane[i]), int(rows.hash[i]), int(rows.sub[i]), rows.key(i)) for i in range(len(rows))]
    for i, place in enumerate(places):
        assert lower_bound(rows, *place) == i
        assert lower_bound(rows, *place[:3], place[3] + b"\0") == i + 1
        assert lower_bound(rows, place[0]) == sum(other[0] < place[0] for other in places)
        assert lower_bound(rows, *place[:2]) == sum(other[:2] < place[:2] for other in places)


@pytest.mark.parametrize("shape", ["spread", "collide", "panes", "members", "same", "long"])
def test_larger_pieces_of_every_shape(shape: str) -> None:
    """Enough rows for every branch of the sort: radix passes, runs of equal words, the merge sort of keys."""
    rng = random.Random(shape)
    n = 5000
    some: list[Record] = []
    for i in range(n):
        pane, key = 0, b"%d" % rng.randrange(n)
        if shape == "collide":
            key = colliding_key(rng.randrange(n // 2))
        elif shape == "panes":
            pane = rng.randrange(-(1 << 62), 1 << 62) if i % 2 else rng.randrange(-3, 3)
        elif shape == "members":
            key = b"\x02" * 3 + b"%03d" % rng.randrange(1000)
        elif shape == "same":
            key = b"x"
        elif shape == "long":
            key = b"y" * 500 + b"%d" % rng.randrange(3000)
        some.append((pane, key, (1, -i, i, i)))
    rows = rows_of(some)
    expected = model_of(some)
    assert read([rows]) == expected
    runs = [rows_of(some[at::7]) for at in range(7)]
    assert read([merge(runs, OPS)]) == expected


@pytest.mark.parametrize("varying", [None, *range(8)])
def test_columns_of_one_value_fold_too(varying: int | None) -> None:
    """All columns hold one value but at most one of them; every other key occurs in two runs."""
    rng = random.Random(varying)
    n = 400

    def record(i: int) -> Record:
        key = b"%04d" % i + (b"+" * rng.randrange(1, 3) if varying == 1 else b"")
        pane = rng.randrange(3) if varying == 0 else 3
        if varying == 2:  # a part for a member or not; the lengths are equal
            key = (b"2" if i % 2 else b"1") + key[1:]
        lanes = [1, 5 << 64, 7, 9]
        if varying is not None and varying >= 4:
            lanes[varying - 4] += i
        return pane, key, (lanes[0], lanes[1], lanes[2], lanes[3])

    some = [record(i * step % n) for step in (1, 3, 7, 9, 11) for i in range(n // 2)]
    expected = model_of(some)
    parts = [some[at : at + n // 2] for at in range(0, len(some), n // 2)]
    assert read([merge([rows_of(part) for part in parts], OPS)]) == expected
    assert read([rows_of(some)]) == expected


def test_more_lanes_than_are_looked_at() -> None:
    keys, ends = np.frombuffer(b"abcabc", np.uint8), np.arange(1, 7, dtype=np.uint64)
    ops = [Op.SUM64] * 70
    lanes = np.repeat(np.arange(70, dtype=np.int64)[:, None], 6, axis=1)
    rows = make_rows(0, keys, ends, None, lanes, ops)
    assert (rows.lanes == 2 * np.arange(70)[:, None]).all()
    assert (merge([rows] * 5, ops).lanes == 10 * np.arange(70)[:, None]).all()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(lists, max_size=6), st.lists(lists, max_size=3), st.data())
def test_a_merger_reads_scattered_rows_from_and_up_to_any_place(
    parts: list[list[Record]], more: list[list[Record]], data: st.DataObject
) -> None:
    everything = merge([rows_of(part) for part in (*parts, *more)], OPS)
    whole = Merger([rows_of(part) for part in parts], OPS).gather()
    assert read([fold(whole, OPS)]) == model_of(record for part in parts for record in part)
    runs = [rows_of(part) for part in more]
    start = data.draw(st.integers(0, len(everything)))
    stop = data.draw(st.integers(start, len(everything)))

    def place(i: int) -> tuple[int, int, int, bytes]:
        if i == len(everything):
            return (1 << 63) - 1, 0, 0, b""
        return int(everything.pane[i]), int(everything.hash[i]), int(everything.sub[i]), everything.key(i)

    merger = Merger(runs, OPS, [whole])
    merger.skip(place(start))
    assert merger.left() >= merger.left(place(stop)) >= stop - start
    assert read([merger.read(place(stop))]) == read([everything.slice(start, stop)])
    assert read([merger.read()]) == read([everything.slice(stop, len(everything))])
    assert merger.left() == 0


def test_wide_sums_stick_when_merged() -> None:
    largest = (1 << 127) - 1
    big = [rows_of([(0, b"k", (1, total, 0, 0))]) for total in (largest - 5, 3, 2, 1, -7)]
    assert read([merge(big[:2], OPS)])[0, b"k"][1] == largest - 2
    assert read([merge(big[:4], OPS)])[0, b"k"][1] == largest
    assert read([merge(big, OPS)])[0, b"k"][1] == largest


def test_no_runs_and_no_lanes() -> None:
    assert len(merge([], OPS)) == 0
    keys, ends = np.frombuffer(b"aba", np.uint8), np.array([1, 2, 3], np.uint64)
    rows = make_rows(7, keys, ends, None, np.empty((0, 3), np.int64), [])
    assert sorted(rows.keys.tobytes()) == list(b"ab")
    assert len(merge([rows, rows], [])) == 2


def test_disorder_is_found() -> None:
    rows = rows_of([(0, b"%d" % i, (1, 1, 1, 1)) for i in range(50)])
    assert first_disorder(rows) == 50
    assert first_disorder(take(rows, np.array([0, 1, 2, 2, 3]))) == 3
    assert first_disorder(take(rows, np.array([5, 4]))) == 1


def test_wrong_use_is_refused() -> None:
    good = rows_of([(0, b"k", (1, 1, 1, 1))])
    with pytest.raises(ValueError, match="lanes"):
        merge([good, good], [Op.SUM64])
    with pytest.raises(ValueError, match="ascend"):
        make_rows(0, np.zeros(3, np.uint8), np.array([2, 1], np.uint64), None, np.empty((0, 2), np.int64), [])
    with pytest.raises(ValueError, match="split"):
        make_rows(
            0,
            np.zeros(1, np.uint8),
            np.array([1], np.uint64),
            np.array([2], np.uint32),
            np.empty((0, 1), np.int64),
            [],
        )
    with pytest.raises(IndexError):
        take(good, np.array([1]))
    short = Rows(good.pane, good.hash, good.sub, good.split, good.ends, good.keys[:0], good.lanes)
    with pytest.raises(ValueError, match="beyond"):
        merge([short, good], OPS)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_distinct_is_the_sorted_set(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))
