"""The rules of one seat in a job's tree, message by message."""

from __future__ import annotations

from random import Random

import pytest

from elf.srt.messages.effects import Effect, Post, Route, Send
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import Adopt, Leave, Message, Path, Refuse, Size, Stop, TreeJoin
from elf.srt.messages.parameters import Parameters
from elf.srt.tree.tree import Changes, TreeSeat

JOB = job_id("visits")
P = Parameters()


def name(number: int) -> bytes:
    return number.to_bytes(16)


ME, MUM, ROOT, KID, OTHER = map(name, (1, 2, 3, 4, 5))


def seat() -> TreeSeat:
    return TreeSeat(JOB, ME, 1, P, Random(1))


def join(child: bytes, size: int = 1, height: int = 1, attempt: int = 1) -> TreeJoin:
    return TreeJoin(JOB, child, 1, attempt, size, height)


def root() -> TreeSeat:
    made = seat()
    made.enter(0)
    made.root_changed(True, 0)
    return made


def seated(path: tuple[bytes, ...] = (MUM, ROOT), total: int = 100) -> TreeSeat:
    made = seat()
    made.enter(0)
    made.step(MUM, Adopt(JOB, 1, path, total=total), 0)
    made.check()
    return made


def full(made: TreeSeat, size: int = 1) -> TreeSeat:
    for number in range(P.children_max):
        made.passing(join(name(100 + number), size), name(100 + number), 0, made.is_root)
    made.take_changes()
    return made


def posts(effects: list[Effect], to: bytes) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Post) and effect.to == to]


def test_a_join_is_routed_again_until_it_is_answered() -> None:
    made = seat()
    assert made.enter(0) == [Route(JOB, TreeJoin(JOB, ME, 1, 1, 1, 1))]
    due = made.deadline
    assert due is not None
    assert P.tree_retry_us < due <= 2 * P.tree_retry_us
    assert made.tick(due - 1) == []
    assert made.tick(due) == [Route(JOB, TreeJoin(JOB, ME, 1, 2, 1, 1))]
    made.step(MUM, Adopt(JOB, 2, (MUM, ROOT)), due + 1)
    assert (made.parent, made.place.path, made.place.depth, made.place.rooted) == (MUM, (MUM, ROOT), 2, True)
    assert made.take_changes() == Changes(True, (), ())
    assert made.take_changes() is None


def test_an_adopted_node_reports_its_size_at_once_so_that_a_parent_that_forgot_it_answers() -> None:
    made = seat()
    made.enter(0)
    assert made.step(MUM, Adopt(JOB, 1, (MUM,)), 0) == [Post(MUM, Size(JOB, 1, 1))]
    stranger = root()
    assert stranger.step(KID, Size(JOB, 3, 2), 0) == [Post(KID, Refuse(JOB, 0))]


def test_a_second_adoption_is_declined() -> None:
    made = seated()
    assert made.step(OTHER, Adopt(JOB, 1, (OTHER,)), 0) == [Post(OTHER, Leave(JOB))]
    assert made.step(OTHER, Path(JOB, (OTHER,)), 0) == [Post(OTHER, Leave(JOB))]
    assert made.parent == MUM


def test_the_end_of_the_route_is_the_root() -> None:
    made = seat()
    made.enter(0)
    assert made.passing(join(ME), ME, 0, True) == (True, [])
    assert made.is_root
    assert made.deadline is None
    made.check()


def test_a_full_node_hands_the_joiner_to_its_smallest_child_in_turn() -> None:
    made = full(root())
    first = made.passing(join(KID), KID, 0, True)
    second = made.passing(join(OTHER), OTHER, 0, True)
    assert first == (True, [Send(name(100), join(KID))])
    assert second == (True, [Send(name(101), join(OTHER))])
    assert len(made.children) == P.children_max
    made.check()


def test_a_large_subtree_takes_the_place_of_a_small_child() -> None:
    made = full(root())
    done, effects = made.passing(join(KID, size=50, height=3), KID, 0, True)
    assert done
    assert posts(effects, name(100)) == [Refuse(JOB, 0, name(101))]
    assert posts(effects, KID) == [Adopt(JOB, 1, (ME,), total=66)]
    assert made.take_changes() == Changes(False, (KID,), (name(100),))
    assert len(made.children) == P.children_max
    assert (made.subtree.size, made.subtree.height) == (66, 4)
    made.check()


def test_a_tall_subtree_takes_the_place_of_a_low_child_where_it_would_hang_too_deep_below() -> None:
    made = seated((MUM, b"G" * 16, ROOT))  # at depth 3
    for number in range(P.children_max):
        made.passing(join(name(100 + number), size=3), MUM, 0, False)
    _, effects = made.passing(join(b"T" * 16, size=2, height=2), ROOT, 0, False)
    assert posts(effects, name(100)) == [Refuse(JOB, 0, name(101))]
    assert b"T" * 16 in made.children
    _, effects = made.passing(join(b"L" * 16), ROOT, 0, False)  # a single node goes down as before
    assert [type(effect) for effect in effects] == [Send]
    made.check()


@pytest.mark.parametrize("ancestor", [MUM, ROOT])
def test_an_ancestor_is_never_adopted(ancestor: bytes) -> None:
    made = seated()
    assert made.passing(join(ancestor), ancestor, 0, False) == (False, [])
    assert made.passing(join(ancestor), OTHER, 0, False) == (True, [Post(ancestor, Refuse(JOB, 1))])
    assert not made.children


def test_a_path_that_leads_through_me_is_a_loop_and_is_left() -> None:
    made = seated()
    made.passing(join(KID), KID, 0, False)
    effects = made.step(MUM, Path(JOB, (MUM, OTHER, KID, ME, MUM)), 0)
    assert posts(effects, MUM) == [Leave(JOB)]
    assert posts(effects, KID) == [Path(JOB, (ME,), rooted=False, total=100)]
    assert made.parent is None
    due = made.deadline
    assert due is not None
    assert 0 < due <= P.tree_retry_us
    assert made.tick(due) == [Route(JOB, TreeJoin(JOB, ME, 1, 2, 2, 2))]
    made.check()


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_a_ring_of_nodes_that_adopted_each_other_at_the_same_time_comes_apart(count: int) -> None:
    """Each asks the next one while all still search for a parent; the paths then reveal the loop."""
    seats = {name(number): TreeSeat(JOB, name(number), 1, P, Random(number)) for number in range(count)}
    waiting: list[tuple[bytes, Effect]] = []
    for number, made in enumerate(seats.values()):
        (asked,) = made.enter(0)
        assert isinstance(asked, Route)
        waiting.append((made.me, Send(name((number + 1) % count), asked.message)))
    steps = 0
    while waiting:
        source, effect = waiting.pop(0)
        if isinstance(effect, Route):
            continue  # nobody else is there
        assert isinstance(effect, Post | Send)
        made, message = seats[effect.to], effect.message
        if isinstance(message, TreeJoin):
            effects = made.passing(message, source, 0, False)[1]
        else:
            effects = made.step(source, message, 0)
        made.check()
        waiting += [(made.me, each) for each in effects]
        steps += 1
        assert steps < 100 * count, "the paths go round for ever"
    for made in seats.values():
        above = [made]
        while (parent := above[-1].parent) is not None:
            assert len(above) <= count, "still a ring"
            above.append(seats[parent])
        assert above[-1].deadline is not None, "the uppermost asks again"


def test_two_that_adopt_each_other_both_decline() -> None:
    made = seat()
    made.enter(0)
    made.passing(join(KID), KID, 0, False)
    assert made.step(KID, Adopt(JOB, 1, (KID,), rooted=False), 0) == [Post(KID, Leave(JOB))]
    made.step(KID, Leave(JOB), 0)
    assert made.parent is None
    assert not made.children
    made.check()


def test_a_node_below_a_searching_one_adopts_no_node_on_the_way() -> None:
    """The joiner may be the node above it."""
    made = seated()
    made.step(MUM, Path(JOB, (MUM, ROOT), rooted=False), 0)
    assert made.passing(join(KID), KID, 0, False) == (False, [])
    assert made.passing(join(KID), OTHER, 0, False)[0], "but what was handed to it must end here"


def test_a_tall_subtree_is_not_adopted_where_it_would_hang_too_deep() -> None:
    made = seated(total=100)
    assert made.passing(join(KID, 20, 3), KID, 0, False) == (False, [])
    assert made.passing(join(OTHER, 1, 1), OTHER, 0, False)[0]


@pytest.mark.parametrize("how", ["lost", "silent", "leave", "refuse"])
def test_without_its_parent_a_node_keeps_its_children_and_joins_again(how: str) -> None:
    made = seated(total=1_000)
    made.passing(join(KID, 4, 2), KID, 0, False)
    now = 10
    if how == "lost":
        effects = made.lost(MUM, now)
    elif how == "leave":
        effects = made.step(MUM, Leave(JOB), now)
    elif how == "refuse":
        effects = made.step(MUM, Refuse(JOB, 0), now)
    else:
        now = P.parent_timeout_us
        effects = made.tick(now)
    assert Route(JOB, TreeJoin(JOB, ME, 1, 2, 5, 3)) in effects
    assert Path(JOB, (ME,), rooted=False, total=1_000) in posts(effects, KID)
    assert list(made.children) == [KID]
    made.check()


def test_a_refusal_names_where_to_ask() -> None:
    made = seated()
    assert Send(OTHER, TreeJoin(JOB, ME, 1, 2, 1, 1)) in made.step(MUM, Refuse(JOB, 0, OTHER), 10)
    assert made.step(KID, Refuse(JOB, 1, KID), 10) == [], "an answer to an earlier attempt"
    assert made.step(OTHER, Refuse(JOB, 2, KID), 10) == [Send(KID, TreeJoin(JOB, ME, 1, 3, 1, 1))]


def test_any_message_of_the_parent_is_a_sign_of_life_and_a_paused_node_does_not_drop_it() -> None:
    made = seated()
    made.heard(MUM, P.parent_timeout_us - 1)
    assert made.tick(P.parent_timeout_us) == []
    late = 10 * P.parent_timeout_us
    assert made.tick(late) == []
    assert made.parent == MUM
    assert made.tick(late + P.parent_timeout_us) != []
    assert made.parent is None


def test_paths_ballots_and_the_trees_size_travel_down() -> None:
    made = seated()
    made.passing(join(KID), KID, 0, False)
    ballot = (7, OTHER)
    effects = made.step(MUM, Path(JOB, (MUM, OTHER), ballot, True, 120), 5)
    assert effects == [Post(KID, Path(JOB, (ME, MUM, OTHER), ballot, True, 120))]
    assert made.step(MUM, Path(JOB, (MUM, OTHER), (6, OTHER), True, 120), 6) == []
    assert made.place.ballot == ballot
    assert made.raise_ballot((8, ME), 7) == [Post(KID, Path(JOB, (ME, MUM, OTHER), (8, ME), True, 120))]
    assert made.raise_ballot((8, ME), 8) == []
    due = 7 + P.life_us
    assert Post(KID, Path(JOB, (ME, MUM, OTHER), (8, ME), True, 120)) in made.tick(due)


def test_sizes_travel_up_large_changes_soon_and_small_ones_in_time() -> None:
    made = seated(total=1_000)
    made.passing(join(KID, 40, 2), KID, 0, False)
    assert made.tick(P.size_us) == [Post(MUM, Size(JOB, 41, 3))]
    made.step(KID, Size(JOB, 41, 2), P.size_us)
    assert Size(JOB, 42, 3) not in posts(made.tick(2 * P.size_us), MUM)
    assert Size(JOB, 42, 3) in posts(made.tick(P.size_us + P.path_us), MUM)


def test_a_node_that_is_too_deep_asks_at_the_root_and_keeps_its_parent_meanwhile() -> None:
    path = tuple(map(name, (2, 12, 13, 14)))
    made = seated(path, total=100)
    due = made._due.repair
    made.heard(MUM, due)
    assert made.tick(due)[-1] == Send(name(14), TreeJoin(JOB, ME, 1, 2, 1, 1))
    assert made.parent == MUM
    made.step(OTHER, Adopt(JOB, 2, (OTHER, name(14)), total=100), due)
    assert made.parent == OTHER
    assert made.place.depth == 2
    assert made.deadline == due + P.parent_timeout_us
    made.check()


def test_a_node_that_is_too_deep_declines_a_place_that_is_no_better() -> None:
    path = tuple(map(name, (2, 12, 13, 14)))
    made = seated(path, total=100)
    due = made._due.repair
    made.heard(MUM, due)
    made.tick(due)
    assert made.step(OTHER, Adopt(JOB, 2, (OTHER, *path[1:]), total=100), due) == [Post(OTHER, Leave(JOB))]
    assert made.parent == MUM


def test_an_overweight_node_sends_its_largest_children_to_its_parent() -> None:
    """As the old root does below a new one: 16 subtrees of 16 under the only child of the root."""
    made = seated((MUM,), total=258)
    for number in range(16):
        made.passing(join(name(100 + number), 16, 2), MUM, 0, False)
    made.step(name(100), Size(JOB, 16, 4), 0)
    effects = made.tick(P.path_us)
    released = [
        effect.to for effect in effects if isinstance(effect, Post) and isinstance(effect.message, Refuse)
    ]
    assert len(released) == 15
    assert all(Refuse(JOB, 0, MUM) in posts(effects, node) for node in released)
    assert made.subtree.size == 1 + 16 <= 2 * 258 / 16
    made.check()


def test_the_third_join_that_comes_by_makes_an_outsider_combine_and_it_leaves_with_its_last_child() -> None:
    made = seat()
    assert made.passing(join(KID), KID, 0, False) == (False, [])
    assert made.passing(join(OTHER), OTHER, 0, False) == (False, [])
    done, effects = made.passing(join(KID), KID, 0, False)
    assert done
    assert effects[0] == Route(JOB, TreeJoin(JOB, ME, 1, 1, 1, 1))
    made.step(MUM, Adopt(JOB, 1, (MUM,)), 0)
    assert made.step(KID, Leave(JOB), 0) == [Post(MUM, Leave(JOB))]
    assert not made.present
    assert made.deadline is None
    made.check()


def test_a_leaver_sends_its_children_to_its_parent() -> None:
    made = seated()
    made.passing(join(KID), KID, 0, False)
    assert made.leave(0) == [Post(KID, Refuse(JOB, 0, MUM)), Post(MUM, Leave(JOB))]
    assert made.deadline is None
    made.check()


def test_a_wrong_root_joins_with_its_whole_subtree() -> None:
    made = full(root())
    assert Route(JOB, TreeJoin(JOB, ME, 1, 2, 17, 2)) in made.root_changed(False, 0)
    assert len(made.children) == 16
    made.check()


def test_multicast_posts_to_each_child_in_order_of_adoption() -> None:
    made = full(root())
    stop = Stop(JOB, (1, ME))
    assert made.multicast(stop) == [Post(name(100 + number), stop) for number in range(16)]


def test_a_child_that_restarted_is_new_to_the_reducer() -> None:
    made = root()
    made.passing(join(KID), KID, 0, True)
    made.take_changes()
    made.passing(TreeJoin(JOB, KID, 1, 2, 1, 1), KID, 0, True)
    assert made.take_changes() is None
    made.passing(TreeJoin(JOB, KID, 2, 1, 1, 1), KID, 0, True)
    assert made.take_changes() == Changes(False, (KID,), ())


def test_a_late_join_of_an_earlier_life_changes_nothing() -> None:
    made = root()
    made.passing(TreeJoin(JOB, KID, 2, 1, 5, 2), KID, 0, True)
    made.take_changes()
    assert made.passing(TreeJoin(JOB, KID, 1, 9, 1, 1), KID, 0, True) == (True, [])
    assert made.take_changes() is None
    assert made.subtree.size == 6


def test_a_join_that_comes_late_does_not_leave_an_old_size_behind() -> None:
    made = root()
    made.passing(join(KID, 5, 2, attempt=2), KID, 0, True)
    (adopt,) = posts(made.passing(join(KID, 1, 1, attempt=1), KID, 0, True)[1], KID)
    child = TreeSeat(JOB, KID, 1, P, Random(1))
    child.enter(0)
    child.passing(join(OTHER, 4, 1), OTHER, 0, False)
    child.step(ME, Adopt(JOB, 1, (ME,)), 0)
    assert posts(child.step(ME, adopt, 1), ME) == [Size(JOB, 5, 2)]


def test_absurd_sizes_of_a_peer_are_bounded() -> None:
    made = root()
    made.passing(join(KID, 1 << 100, 1 << 50), KID, 0, True)
    assert made.subtree.size <= 1 + (1 << 32)
    made.step(KID, Size(JOB, -5, 0), 0)
    assert (made.subtree.size, made.subtree.height) == (2, 2)
    made.check()


@pytest.mark.parametrize("seed", range(8))
def test_no_message_of_neighbours_breaks_a_seat(seed: int) -> None:
    """Any message from any node at any time: the invariants hold, and a node without a parent will search again."""
    rng = Random(seed)
    made = TreeSeat(JOB, ME, 1, Parameters(children_max=3), rng)
    nodes = [name(number) for number in range(1, 9)]
    now = 0
    for _ in range(1_500):
        now += rng.choice([0, 1, 1_000, 300_000, 2_000_000, -5_000_000])
        source = rng.choice(nodes[1:])
        path = (source, *rng.sample(nodes, rng.randrange(4)))
        messages: list[Message] = [
            Adopt(
                JOB,
                made._attempt - rng.randrange(2),
                path,
                (rng.randrange(9), source),
                rng.random() < 0.7,
                50,
            ),
            Path(JOB, path, (rng.randrange(9), source), rng.random() < 0.7, rng.choice([0, 5, 50])),
            Path(JOB, ()),
            Refuse(JOB, made._attempt, rng.choice([b"", *nodes])),
            Size(JOB, rng.randrange(-1, 40), rng.randrange(-1, 5)),
            Leave(JOB),
        ]
        child, size = rng.choice(nodes), rng.randrange(1, 30)
        action = rng.randrange(12)
        if action < 6:
            made.step(source, messages[action], now)
        elif action < 9:
            made.passing(
                join(child, size, rng.randrange(1, 4)), rng.choice([child, source]), now, made.is_root
            )
        elif action == 9:
            made.lost(source, now)
        elif action == 10:
            made.root_changed(rng.random() < 0.2, now)
        else:
            rng.choice([made.enter, made.enter, made.leave])(now)
        made.check()
        if made.deadline is not None and rng.random() < 0.5:
            now = max(now, made.deadline)
            made.tick(now)
            made.check()
            assert made.deadline is None or made.deadline > now, "a tick does its work"


def test_a_clock_that_steps_back_takes_the_waits_along() -> None:
    made = seat()
    made.enter(1_000_000_000)
    made.tick(1_000)
    due = made.deadline
    assert due is not None
    assert due <= 1_000 + 2 * P.tree_retry_us
