"""The row `other`, against an oracle over plain numbers: however rows come, and wherever they are capped."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elf.cbt._kernel import first_disorder, make_rows, merge
from elf.cbt._keys import encode_keys, hash64
from elf.cbt.other import TAG, apart, capped, is_other
from elf.cbt.rows import KeyColumn, Op, Rows

OPS = (Op.SUM64, Op.MIN, Op.MAX)
Values = tuple[int, int, int]
Line = tuple[int, int, int]
"""Pane, group, value."""

lines_of = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(-9, 9)), max_size=120)


def rows_of(lines: list[Line]) -> Rows:
    columns = np.array(lines, dtype=np.int64).reshape(len(lines), 3).T
    keys, ends = encode_keys([KeyColumn("int", columns[1])], len(lines))
    return make_rows(columns[0], keys, ends, None, np.ascontiguousarray(columns[[2, 2, 2]]), OPS)


def key_of(group: int) -> bytes:
    return encode_keys([KeyColumn("int", np.array([group]))], 1)[0].tobytes()


def oracle(lines: list[Line], groups_max: int) -> dict[tuple[int, bytes], Values]:
    """The groups of each pane, and their rest under b"other", by sorting hashes as Python integers."""
    values: dict[int, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    for pane, group, value in lines:
        values[pane][key_of(group)].append(value)
    found: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for pane, groups in values.items():
        level = next(k for k in range(65) if sum(hash64(key) < 2**64 >> k for key in groups) <= groups_max)
        for key, each in groups.items():
            stays = hash64(key) < 2**64 >> level
            found[pane, key if stays else b"other"] += each
    return {key: (sum(each), min(each), max(each)) for key, each in found.items()}


def read(rows: Rows) -> dict[tuple[int, bytes], Values]:
    names = [rows.key(i) for i in range(len(rows))]
    keys = [b"other" if name[:1] == bytes([TAG]) else name for name in names]
    found = {
        (int(rows.pane[i]), key): tuple(int(lane) for lane in rows.lanes[:, i]) for i, key in enumerate(keys)
    }
    assert len(found) == len(rows), "a group, or `other`, comes twice"
    return found  # type: ignore[return-value]


@given(lines_of, st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_tree_of_merges_gives_what_one_pass_gives(lines: list[Line], most: int, rng: Random) -> None:
    cuts = sorted(rng.randrange(len(lines) + 1) for _ in range(6))
    parts = [rows_of(lines[low:high]) for low, high in pairwise([0, *cuts, len(lines)])]

    def maybe_capped(rows: Rows) -> Rows:
        return capped(rows, OPS, most) if rng.randrange(2) else rows

    while len(parts) > 1:
        rng.shuffle(parts)
        count = rng.randrange(2, len(parts) + 1)
        parts[:count] = [maybe_capped(merge([maybe_capped(part) for part in parts[:count]], OPS))]
    whole = capped(parts[0], OPS, most)
    assert first_disorder(whole) == len(whole)
    assert read(whole) == oracle(lines, most)
    assert read(capped(whole, OPS, most)) == read(whole)


@given(lines_of, st.integers(1, 12), st.integers(1, 12))
def test_a_lower_limit_of_one_part_holds_for_all(lines: list[Line], low: int, most: int) -> None:
    """What an agent with a lower cap has folded cannot be taken apart, so all fold it; the sums stay exact."""
    half = len(lines) // 2
    one, other = capped(rows_of(lines[:half]), OPS, low), rows_of(lines[half:])
    found, truth = read(capped(merge([one, other], OPS), OPS, most)), oracle(lines, 1 << 30)
    for pane in {pane for pane, _, _ in lines}:
        assert sum(values[0] for (at, _), values in found.items() if at == pane) == sum(
            values[0] for (at, _), values in truth.items() if at == pane
        )
    shown = {key: values for key, values in found.items() if key[1] != b"other"}
    assert shown == {key: truth[key] for key in shown}
    assert all(len([key for key in shown if key[0] == pane]) <= most for pane in range(3))


def test_few_groups_are_left_alone() -> None:
    rows = rows_of([(0, group, 1) for group in range(5)])
    assert capped(rows, OPS, 5) is rows
    assert not is_other(rows).any()
    assert not is_other(rows_of([])).any()
    groups, others = apart(capped(rows, OPS, 2))
    assert len(groups) <= 2
    assert [others.key(i)[0] for i in range(len(others))] == [TAG]
