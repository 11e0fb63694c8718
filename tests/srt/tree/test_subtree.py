"""The table of a seat's children, next to a plain count."""

from __future__ import annotations

from random import Random

import pytest

from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import TreeJoin
from elf.srt.tree.subtree import SIZE_MAX, Subtree

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def join(child: bytes, size: int = 1, height: int = 1, incarnation: int = 1) -> TreeJoin:
    return TreeJoin(job_id("visits"), child, incarnation, 1, size, height)


def of(*joins: TreeJoin) -> Subtree:
    made = Subtree()
    for each in joins:
        made.adopt(each)
    made.take_changes()
    return made


@pytest.mark.parametrize("seed", range(5))
def test_size_and_height_are_those_of_the_last_reports(seed: int) -> None:
    rng, made = Random(seed), Subtree()
    model: dict[bytes, tuple[int, int]] = {}
    for _ in range(200):
        node, size, height = rng.choice([A, B, C]), rng.randrange(1, 50), rng.randrange(1, 6)
        if node not in model or rng.random() < 0.3:
            made.adopt(join(node, size, height))
            model[node] = size, height
        elif rng.random() < 0.5:
            made.resize(node, size, height)
            model[node] = size, height
        else:
            made.forget(node)
            del model[node]
        made.check()
        assert list(made.children) == list(model)
        assert made.size == 1 + sum(size for size, _ in model.values())
        assert made.height == 1 + max([height for _, height in model.values()], default=0)


def test_a_child_that_joins_again_is_a_change_only_in_another_life() -> None:
    made = Subtree()
    made.adopt(join(A))
    assert made.take_changes() == ((A,), ())
    made.adopt(join(A, size=5))
    assert made.take_changes() == ((), ())
    made.adopt(join(A, size=2, incarnation=2))
    made.forget(A)
    assert made.take_changes() == ((A,), (A,))
    assert made.take_changes() == ((), ())


def test_joiners_are_sent_to_the_smallest_child_counting_those_sent_before() -> None:
    made = of(join(A, 10), join(B, 11), join(C, 30))
    assert [made.redirect(2) for _ in range(4)] == [A, B, A, B]
    made.resize(A, 10, 1)  # its report counts all that were sent to it
    assert made.redirect(1) == A


def test_a_joiner_replaces_a_much_smaller_child_or_a_lower_one_where_there_is_no_room_below() -> None:
    made = of(join(A, 10, 4), join(B, 20, 3), join(C, 30, 2))
    assert made.to_replace(join(b"d", 20), has_room=True) is None
    assert made.to_replace(join(b"d", 21), has_room=True) == A
    assert made.to_replace(join(b"d", 1, 3), has_room=False) == C
    assert made.to_replace(join(b"d", 99, 2), has_room=False) is None


def test_a_size_is_reported_once_until_it_changes() -> None:
    made = of(join(A, 4, 2))
    assert made.take_report()
    assert made.reported == (5, 3)
    assert not made.take_report()
    made.resize(A, SIZE_MAX + 1, 2)
    assert made.take_report()
    assert made.reported == (SIZE_MAX + 1, 3)
