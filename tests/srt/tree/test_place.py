"""What a seat learns from its parent and announces, and how deep it may be."""

from __future__ import annotations

import pytest

from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import NO_BALLOT, Path, TreeJoin
from elf.srt.tree.place import PATH_MAX, Place
from elf.srt.tree.subtree import Subtree

JOB = job_id("visits")


def name(number: int) -> bytes:
    return number.to_bytes(16)


ME, MUM, ROOT = map(name, (1, 2, 3))


def at(depth: int, total: int, children_max: int = 4) -> Place:
    made = Place(JOB, ME, children_max)
    made.follow(Path(JOB, tuple(name(10 + level) for level in range(depth)), total=total))
    made.check()
    return made


def subtree(size: int, height: int) -> Subtree:
    made = Subtree()
    made.adopt(TreeJoin(JOB, MUM, 1, 1, size - 1, height - 1))
    return made


def test_children_hear_at_once_of_paths_and_ballots_and_later_of_a_size_that_allows_the_same_depth() -> None:
    made = Place(JOB, ME, 4)
    assert made.follow(Path(JOB, (MUM, ROOT), total=17))
    assert not made.follow(Path(JOB, (MUM, ROOT), total=64))
    assert made.announcement() == Path(JOB, (ME, MUM, ROOT), total=64)
    assert made.follow(Path(JOB, (MUM, ROOT), total=65)), "one level more"
    assert made.follow(Path(JOB, (MUM, ROOT), (4, ROOT), total=65))
    assert not made.follow(Path(JOB, (MUM, ROOT), (3, ROOT), total=65)), "an older ballot"
    assert made.ballot == (4, ROOT)
    assert made.follow(Path(JOB, (MUM, ROOT), (4, ROOT), rooted=False, total=65))
    made.check()


def test_without_a_parent_the_ballot_stays_and_the_path_goes() -> None:
    made = Place(JOB, ME, 4)
    made.follow(Path(JOB, (MUM, ROOT), (4, ROOT), total=9))
    made.announcement()
    made.detach()
    assert made.announcement() == Path(JOB, (ME,), (4, ROOT), rooted=False, total=9)
    made.detach(is_root=True)
    assert made.count(17)
    assert not made.count(18)
    assert made.announcement() == Path(JOB, (ME,), (4, ROOT), total=18)
    assert not made.raise_ballot(NO_BALLOT)
    assert made.raise_ballot((5, ME))
    assert made.announcement().ballot == (5, ME)


@pytest.mark.parametrize(
    ("path", "sound"),
    [
        ((MUM,), True),
        ((MUM, ROOT), True),
        ((ROOT, MUM), False),
        ((MUM, ME, ROOT), False),
        ((), False),
        ((MUM, *map(name, range(10, 9 + PATH_MAX))), True),
        ((MUM, *map(name, range(10, 10 + PATH_MAX))), False),
    ],
)
def test_a_sound_path_begins_at_the_parent_and_makes_no_loop(path: tuple[bytes, ...], sound: bool) -> None:
    assert Place(JOB, ME, 4).is_sound(MUM, Path(JOB, path)) is sound


def test_a_tree_of_64_nodes_with_four_children_each_is_four_deep_at_most() -> None:
    assert [depth for depth in range(9) if at(depth, 64).is_too_deep()] == [5], "the uppermost one only"
    assert [levels for levels in range(9) if at(2, 64).has_room(levels)] == [0, 1, 2]
    assert at(0, 1).has_room(3), "so far always"
    searching = at(5, 64)
    searching.detach()
    assert not searching.is_too_deep()


def test_a_subtree_is_overweight_if_it_is_too_deep_and_twice_its_share() -> None:
    assert at(1, 64).is_overweight(subtree(33, 5))
    assert not at(1, 64).is_overweight(subtree(32, 5)), "not twice its share of 16"
    assert not at(1, 64).is_overweight(subtree(33, 4)), "not too deep"
    assert not at(0, 64).is_overweight(subtree(64, 9)), "the root"
    assert not at(5, 64).is_overweight(subtree(33, 5)), "too deep itself: its parent repairs"
