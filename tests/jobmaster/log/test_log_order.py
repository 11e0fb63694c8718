"""A state in pieces is valid when it is complete, wherever a crash truncates the records, and makes all earlier ones obsolete."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import StateError
from elf.jobmaster.log.job_log import Base, More, Rows, Whole
from elf.jobmaster.log.log_order import BASE, InOrder, part_of

B = (1, b"M" * 16)


def base(number: int, index: int) -> Base:
    return Base(B, B, index, None, (), number)


def more(index: int) -> More:
    return More(B, B, index)


def order(records: list[Any]) -> InOrder[Any]:
    found = InOrder[Any]()
    for record in records:
        replaces = isinstance(record, Base) and not record.number
        found.note(part_of(record), record, replaces)
    return found


def kinds_of(records: list[Any]) -> list[str]:
    """Kinds and places."""
    names = []
    for record in records:
        name = type(record).__name__
        about = {"Base": "index", "More": "first", "Rows": "at", "Whole": "count"}[name]
        names.append(f"{name}{getattr(record, about)}")
    return names


def test_a_cut_among_entries() -> None:
    records = [base(0, 1), more(2), base(1, 2), Rows(1, 0, "a"), more(3), Rows(1, 1, "b"), more(4)]
    before = order(records)
    assert kinds_of(before.counting()) == ["Base1", "More2", "More3", "More4"]
    assert len(before.needed()) == len(records)
    records += [Whole(1, 2), more(5)]
    after = order(records)
    assert kinds_of(after.counting()) == ["Base2", "Rows0", "Rows1", "Whole2", "More3", "More4", "More5"]
    assert after.needed() == after.counting()
    assert order(sorted(after.needed(), key=records.index)).counting() == after.counting()


def test_an_installed_state_comes_before_its_base() -> None:
    records = [base(0, 1), Rows(1, 0, "a"), more(2), Rows(1, 1, "b"), base(1, 9), Whole(1, 2)]
    assert kinds_of(order(records[:-1]).counting()) == ["Base1", "More2"]
    assert kinds_of(order(records).counting()) == ["Base9", "Rows0", "Rows1", "Whole2"]


def test_an_incomplete_state_stays_when_another_is_complete() -> None:
    """A replica compacts its own log while a master sends one; then that is complete, too."""
    records = [base(0, 1), Rows(2, 0, "x"), base(1, 5), Rows(1, 0, "a"), Rows(2, 1, "y"), Whole(1, 1)]
    assert kinds_of(order(records).counting()) == ["Base5", "Rows0", "Whole1"]
    records += [base(2, 7), Whole(2, 2)]
    assert kinds_of(order(records).counting()) == ["Base7", "Rows0", "Rows1", "Whole2"]
    assert [record.piece for record in order(records).counting()[1:3]] == ["x", "y"]


def test_numbers_begin_again_with_each_life() -> None:
    records = [base(1, 5), Rows(1, 0, "a"), Whole(1, 1), base(1, 6), Rows(1, 0, "old"), Rows(1, 1, "old")]
    records += [more(6), base(1, 8), Rows(1, 0, "new")]
    assert kinds_of(order(records).counting()) == ["Base5", "Rows0", "Whole1", "More6"]
    records += [Whole(1, 1)]
    assert [getattr(each, "piece", None) for each in order(records).counting()] == [None, "new", None]


def test_an_incomplete_state_is_damage() -> None:
    with pytest.raises(StateError, match="1 of 2 pieces"):
        order([base(1, 5), Rows(1, 0, "a"), Whole(1, 2)])


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 20), lives=st.integers(1, 4))
def test_after_a_crash_anywhere_the_last_complete_state_and_all_after_it_are_read(
    seed: int, lives: int
) -> None:
    """Against a model that searches the last complete state from the end; obsolete records may be dropped at any time."""
    rng, index = Random(seed), 1
    records: list[Any] = [base(0, 1)]
    kept = order(records)
    for _ in range(lives):
        made: list[Any] = []
        for number in range(1, 1 + rng.randrange(3)):
            pieces = [Rows(number, at, f"{index}.{at}") for at in range(1 + rng.randrange(3))]
            state: list[Any] = [base(number, index), *pieces, Whole(number, len(pieces))]
            for record in state:
                index += 1
                made += [record, more(index)]
        written = made[: rng.randrange(len(made) + 1)]
        records += written
        for record in written:
            kept.note(part_of(record), record)
        kept = order(kept.needed()) if rng.random() < 0.5 else kept
    whole = max((at for at, each in enumerate(records) if isinstance(each, Whole)), default=None)
    begin = 0
    if whole is not None:
        number = records[whole].number
        begin = max(at for at in range(whole) if part_of(records[at]) == (BASE, number, 0))
    expected = [each for each in records[begin:] if isinstance(each, More)]
    assert [each for each in kept.counting() if isinstance(each, More)] == expected
    if whole is not None:
        rows = [each for each in records[begin:whole] if isinstance(each, Rows)]
        assert kept.counting()[: len(rows) + 2] == [records[begin], *rows, records[whole]]
