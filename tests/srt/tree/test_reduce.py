"""Reducers: trees of them under a model of the master, and each rule by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elf.agent.node.worker.delta_worker import DeltaWorker
from elf.srt.messages.bundles import OpenBundle, in_log
from elf.srt.messages.effects import Effect, Post
from elf.srt.messages.messages import (
    CLOSED,
    FIRST,
    NO_BALLOT,
    Bundle,
    Commit,
    Hold,
    Line,
    Message,
    Position,
    Resend,
    Split,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.tree.reduce import Reducer
from tests.rigs.tree_rig import JOB, SCHEDULE, Tree, bundle_of, node_name, run, sums

ME, UP, X, Y = node_name(1), node_name(2), node_name(3), node_name(4)
P = Parameters()


def reducer(parameters: Parameters = P) -> Reducer:
    """With a parent, children X and Y, and its own worker; none has sent yet."""
    out = Reducer(JOB, ME, 1, parameters)
    out.children_changed([X, Y])
    assert out.parent_changed(UP, False, 0) == []
    return out


def posted(effects: list[Effect], to: bytes = UP) -> list[Message]:
    assert all(isinstance(effect, Post) for effect in effects)
    return [effect.message for effect in effects if isinstance(effect, Post) and effect.to == to]


def bundles(effects: list[Effect]) -> list[Bundle]:
    out = []
    for message in posted(effects):
        assert isinstance(message, Bundle)
        out.append(message)
    return out


def warm(r: Reducer) -> None:
    """X, Y and the own worker have sent in a round each; all of it is committed."""
    sent = bundles(r.offer(X, bundle_of(X, 1, {(X, 1, 0): (0, 0, FIRST)}), 0))
    r.offer(Y, bundle_of(Y, 1, {(Y, 1, 0): (0, 0, FIRST)}), 0)
    r.offer(ME, bundle_of(ME, 1, {(ME, 1, 0): (0, 0, FIRST)}), 0)
    sent += bundles(r.tick(P.combine_us_max))
    r.committed([bundle.id for bundle in sent], NO_BALLOT, 0)
    r.take_for_worker()
    assert r.kept_bytes == 0


def fill(r: Reducer, count: int, now: int) -> list[Effect]:
    """One round: ten bytes of each."""
    effects = []
    for child in (X, Y, ME):
        span = (10 * count - 30, 10 * count - 20, 0)
        effects += r.offer(child, bundle_of(child, count, {(child, 1, 0): span}), now)
    return effects


# Trees of reducers and workers under faults.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_byte_is_accepted_once_whatever_fails(seed: int) -> None:
    tree = run(seed, steps=500)
    assert tree.committed()
    assert tree.master.accepted > 0


def test_small_bounds_change_nothing() -> None:
    tight = Parameters(kept_bytes_max=1_500, frame_bytes_max=600)
    for seed in range(3):
        assert run(seed, steps=400, parameters=tight).committed()


def test_without_faults_each_node_sends_about_one_bundle_per_flush() -> None:
    tree = Tree(3, count=16)
    tree.rest(2)
    before, accepted = tree.bundles, tree.master.accepted
    for _ in range(25):
        for name in tree.names:
            tree.sources[name].grow(10, tree.now)
        tree.rest(0.2)
    feeders = 1 + sum(parent == tree.root for parent in tree.parents.values())
    assert tree.bundles - before <= 1.1 * 25 * feeders
    assert tree.master.accepted - accepted >= 24 * feeders
    assert tree.master.splits == 0


def run_seeds(count: int) -> None:
    for seed in range(count):
        run(seed, checks=False)


def broken_rules() -> list[tuple[type[Any], str, Callable[..., Any]]]:
    return [
        (OpenBundle, "meets", lambda self, bundle: True),
        (Reducer, "_verdict", lambda self, feeder, positions, through: Resend),
        (DeltaWorker, "_rewind", lambda self, bundle, positions, now: []),
    ]


@pytest.mark.parametrize(("owner", "rule", "broken"), broken_rules())
def test_canary_a_broken_rule_is_seen(
    owner: type[Any], rule: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(AssertionError):
        run_seeds(12)


# Rule by rule.


def test_rule_2_one_bundle_when_all_have_been_heard() -> None:
    r = reducer()
    warm(r)
    effects = fill(r, 3, 1_000_000)
    (bundle,) = bundles(effects)
    assert bundle.contributions == {(n, 1, 0): (0, 10, 0) for n in (X, Y, ME)}
    assert sums(bundle.parts) == {X: 10, Y: 10, ME: 10}
    assert bundle.watermark == 0
    assert not bundle.again
    r.check()


@pytest.mark.parametrize(("levels", "patience"), [(1, 45_000), (2, 90_000), (4, 180_000), (9, 180_000)])
def test_rule_2_a_late_child_is_waited_for_longer_where_more_is_below(levels: int, patience: int) -> None:
    """But never into the next round: 200 ms. Otherwise each level would stop waiting just before the late bundle comes."""
    r = reducer()
    warm(r)
    r.levels = levels
    assert r.offer(X, bundle_of(X, 11, {(X, 1, 0): (1, 1, 0)}), 1_000_000) == []
    assert r.deadline == 1_000_000 + patience
    assert not bundles(r.tick(1_000_000 + patience - 1))
    assert len(bundles(r.tick(1_000_000 + patience))) == 1


def test_rule_2_a_silent_child_is_waited_for_no_longer_than_combine_us_max() -> None:
    r = reducer()
    warm(r)
    for missed in range(1, 5):
        now = missed * 1_000_000
        assert r.offer(X, bundle_of(X, 10 + missed, {(X, 1, 0): (missed, missed, 0)}), now) == []
        assert r.deadline == now + P.combine_us_max
        assert len(bundles(r.tick(now + P.combine_us_max))) == 1
    assert (
        len(bundles(r.offer(X, bundle_of(X, 20, {(X, 1, 0): (5, 5, 0)}), 9_000_000))) == 1
    )  # the others are gone


@pytest.mark.parametrize(("start", "count"), [(10, 1), (11, 2), (9, 2)])
def test_rule_2_spans_that_do_not_meet_close_the_bundle(start: int, count: int) -> None:
    r = reducer()
    warm(r)
    effects = r.offer(X, bundle_of(X, 5, {(X, 1, 0): (0, 10, FIRST)}), 0)
    effects += r.offer(X, bundle_of(X, 7, {(X, 1, 0): (start, 20, CLOSED)}), 0)
    sent = bundles(effects + r.tick(P.combine_us_max))
    assert len(sent) == count
    if count == 1:
        assert sent[0].contributions[X, 1, 0] == (0, 20, FIRST | CLOSED)
    r.check()


def test_rule_2_another_schedule_closes_the_bundle() -> None:
    r = reducer()
    warm(r)
    newer = bundle_of(Y, 5, {(Y, 1, 0): (0, 10, 0)})
    effects = r.offer(X, bundle_of(X, 5, {(X, 1, 0): (0, 10, 0)}), 0)
    effects += r.offer(Y, Bundle(JOB, newer.id, 2, newer.contributions, 0, {}, newer.parts), 0)
    effects += r.tick(P.combine_us_max)
    assert [bundle.schedule for bundle in bundles(effects)] == [1, 2]


def test_rule_3_kept_until_commit_which_its_feeders_get() -> None:
    r = reducer()
    warm(r)
    (bundle,) = bundles(fill(r, 5, 0))
    assert r.kept_bytes > 0
    effects = r.committed([bundle.id, (UP, 9, 9)], (3, UP), 0)
    assert effects == [Post(n, Commit(JOB, (3, UP), ((n, 1, 5),))) for n in (X, Y)]
    assert r.take_for_worker() == [Commit(JOB, (3, UP), ((ME, 1, 5),))]
    assert r.kept_bytes == 0
    assert r.committed([bundle.id], (3, UP), 0) == []  # for the worker, who does not know it
    r.check()


def test_rule_3_a_new_parent_gets_what_is_kept_in_order_before_anything_new() -> None:
    r = reducer()
    warm(r)
    first, second = (bundles(fill(r, count, 0))[0] for count in (5, 7))
    r.offer(X, bundle_of(X, 9, {(X, 1, 0): (60, 70, 0)}), 0)
    again = [m for m in posted(r.parent_changed(UP, False, 0)) if isinstance(m, Bundle)]
    assert [(b.id, b.again) for b in again] == [(first.id, True), (second.id, True)]
    assert again[0].contributions == first.contributions
    assert [b.again for b in bundles(r.tick(P.combine_us_max))] == [False]


@pytest.mark.parametrize("held", [False, True])
def test_rule_3_a_bundle_that_is_asked_for_twice_in_one_message_is_sent_once(held: bool) -> None:
    r = reducer()
    warm(r)
    (kept,) = bundles(fill(r, 5, 0))
    r.hold(Hold(JOB, held), 0)
    effects = r.resend(Resend(JOB, (kept.id, kept.id)), 0)
    r.check()
    effects += r.hold(Hold(JOB, False), 0)
    assert [(b.id, b.again) for b in bundles(effects)] == [(kept.id, True)]


def test_rule_3_what_was_sent_before_is_forwarded_and_never_merged() -> None:
    r = reducer()
    warm(r)
    r.offer(X, bundle_of(X, 5, {(X, 1, 0): (0, 10, 0)}), 0)
    old = bundle_of(Y, 3, {(Y, 1, 0): (0, 10, 0)})
    old = Bundle(JOB, old.id, 1, old.contributions, 0, {}, old.parts, True)
    sent = bundles(r.offer(Y, old, 0))
    assert [(list(b.contributions), b.again) for b in sent] == [([(X, 1, 0)], False), ([(Y, 1, 0)], True)]
    assert r.offer(Y, old, 0) == []  # it is kept here already
    assert r.committed([sent[1].id], (1, UP), 0) == [Post(Y, Commit(JOB, (1, UP), (old.id,)))]


def test_rule_4_only_feeders_that_do_not_fit_are_split() -> None:
    r = reducer()
    warm(r)
    (bundle,) = bundles(fill(r, 5, 0))
    positions = (((X, 1, 0), Position(30)), ((Y, 1, 0), Position(5)))
    effects = r.split(Split(JOB, (1, UP), bundle.id, SCHEDULE, positions), 0)
    assert posted(effects, X) == [Commit(JOB, (1, UP), ((X, 1, 5),))]  # behind: it is in the log
    assert posted(effects, Y) == [Split(JOB, (1, UP), (Y, 1, 5), SCHEDULE, positions)]
    assert r.take_for_worker() == [Resend(JOB, ((ME, 1, 5),))]
    assert r.kept_bytes == 0
    assert r.split(Split(JOB, (1, UP), bundle.id, SCHEDULE, positions), 0) == []


def test_rule_4_another_schedule_goes_down_to_all() -> None:
    r = reducer()
    warm(r)
    (bundle,) = bundles(fill(r, 5, 0))
    schedule = (*SCHEDULE, Line(2, "v2", 50, b""))
    effects = r.split(Split(JOB, (1, UP), bundle.id, schedule, ()), 0)
    assert [type(m) for n in (X, Y) for m in posted(effects, n)] == [Split, Split]
    assert [type(m) for m in r.take_for_worker()] == [Split]


@pytest.mark.parametrize(("number", "since_us", "kind"), [(1, 0, Commit), (2, 0, Split), (1, -1, Split)])
def test_rule_4_a_feeder_without_new_lines_gets_a_split_of_another_schedule_or_an_earlier_beginning(
    number: int, since_us: int, kind: type
) -> None:
    """Otherwise it would always get the answer that its empty deltas are in the log, and none of its watermarks would count
    there."""
    r = reducer()
    (bundle,) = bundles(r.offer(ME, bundle_of(ME, 5, {(ME, 1, 0): (30, 30, 0)}), 0))
    schedule = (*SCHEDULE[:-1], Line(number, "v", 0, b""))
    committed = (((ME, 1, 0), Position(30)),)
    r.split(Split(JOB, (1, UP), bundle.id, schedule, committed, since_us), 0)
    assert [type(answer) for answer in r.take_for_worker()] == [kind]


def test_a_former_child_that_holds_is_released() -> None:
    """Y does not know that yet, and will be a child again before it does: it must not hold for ever."""
    r = reducer(Parameters(kept_bytes_max=500))
    r.offer(X, bundle_of(X, 1, {(X, 1, 0): (0, 5, FIRST)}), 0)
    assert Hold(JOB, True) in posted(fill(r, 5, 0) + r.tick(P.combine_us_max), Y)
    assert r.children_changed([X, Y]) == []
    assert posted(r.children_changed([X]), Y) == [Hold(JOB, False)]
    assert r.children_changed([X, Y]) == []


def test_a_full_reducer_holds_its_children_until_there_is_room() -> None:
    r = reducer(Parameters(kept_bytes_max=500))
    r.offer(X, bundle_of(X, 1, {(X, 1, 0): (0, 5, FIRST)}), 0)
    room = [r.has_room]
    effects = fill(r, 5, 0) + r.tick(P.combine_us_max)
    room.append(r.has_room)
    assert Hold(JOB, True) in posted(effects, Y)
    ids = [m.id for m in posted(effects) if isinstance(m, Bundle)]
    effects = r.committed([(ME, 1, 2), *ids], NO_BALLOT, 0)
    room.append(r.has_room)
    assert room == [True, False, True]
    assert Hold(JOB, False) in posted(effects, Y)


def test_while_held_it_merges_on() -> None:
    r = reducer()
    warm(r)
    r.hold(Hold(JOB, True), 0)
    assert fill(r, 5, 0) == []
    assert fill(r, 6, 1_000_000) == []
    assert r.deadline is None
    (bundle,) = bundles(r.hold(Hold(JOB, False), 2_000_000))
    assert bundle.contributions[X, 1, 0] == (20, 40, 0)
    assert sums(bundle.parts) == {X: 20, Y: 20, ME: 20}


def test_a_root_hands_bundles_over_as_they_are_and_asks_for_them_when_it_is_none() -> None:
    r = reducer()
    warm(r)
    (kept,) = bundles(fill(r, 5, 0))
    r.offer(X, bundle_of(X, 7, {(X, 1, 0): (40, 50, 0)}), 0)
    assert r.parent_changed(None, True, 0) == []
    handed = r.take_for_master()
    assert [(child, b.id, b.again) for child, b in handed] == [(ME, kept.id, True), (ME, (ME, 1, 8), False)]
    given = bundle_of(Y, 9, {(Y, 1, 0): (30, 40, 0)})
    assert r.offer(Y, given, 0) == []
    assert r.take_for_master() == [(Y, given)]
    effects = r.parent_changed(UP, False, 0)
    assert posted(effects, X) == posted(effects, Y) == [Resend(JOB, ())]
    assert r.take_for_worker() == [Resend(JOB, ())]
    assert len([m for m in posted(effects) if isinstance(m, Bundle)]) == 2


def test_what_is_in_the_log() -> None:
    spans = {(X, 1, 0): (0, 10, 0), (X, 2, 0): (5, 5, 0)}
    assert not in_log(spans, {})
    assert in_log(spans, {(X, 1, 0): Position(10)})
    assert not in_log(spans, {(X, 1, 0): Position(9)})
    assert not in_log(spans, {(X, 2, 0): Position(9)})
    assert not in_log({(X, 1, 0): (0, 10, CLOSED)}, {(X, 1, 0): Position(10)})
    assert in_log({(X, 1, 0): (0, 10, CLOSED)}, {(X, 1, 0): Position(10, True)})
