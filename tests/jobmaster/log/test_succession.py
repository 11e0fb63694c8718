"""Succession: random histories against an oracle, canaries for the rules, and whole takeovers as transcripts."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from elf.errors import InternalError
from elf.jobmaster.log import job_log
from elf.jobmaster.log.answers import Answers
from elf.jobmaster.log.job_log import Promise
from elf.jobmaster.log.phases import Phase, Role, Serve, StepDown
from elf.jobmaster.log.replica import Replica
from elf.jobmaster.log.replication import Replication
from elf.jobmaster.log.succession import FETCH_SPANS, Succession
from elf.srt.messages.effects import Effect, Post, Send, Write
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    NO_BALLOT,
    Append,
    Ballot,
    Fetch,
    Held,
    Install,
    StateReport,
    StateRequest,
    node_of,
)
from tests.rigs import paths
from tests.rigs.succession_world import JOB, PARAMETERS, Explorer, ListState, World

GOLDEN = paths.GOLDEN / "succession"
A, B, C = (bytes(15) + bytes([number]) for number in (1, 2, 3))


def explore(seed: int, steps: int, *, honest: bool) -> Explorer:
    world = Explorer(seed, 5 + seed % 3, honest=honest)
    try:
        world.run(steps)
    except AssertionError as error:
        error.add_note(f"seed {seed}, honest {honest}; the story ends with:\n" + "\n".join(world.story[-40:]))
        raise
    return world


def explore_many(count: int) -> None:
    for seed in range(count):
        explore(seed, 1_200, honest=bool(seed % 2))


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_random_histories_lose_nothing_and_come_to_rest(honest: bool) -> None:
    worlds = [explore(seed, 1_200, honest=honest) for seed in range(80)]
    assert sum(world.commits for world in worlds) > 1_500
    assert sum(world.transfers for world in worlds) > 15
    assert sum(world.proofs for world in worlds) > 200
    assert sum(world.known_whole for world in worlds) > 10
    assert sum(world.serves - world.fresh for world in worlds) > 60


def outranks_by_epoch_only(one: Ballot, other: Ballot) -> bool:
    return one[0] > other[0]


def promise_from_memory(self: Replica, ballot: Ballot) -> Write:
    self.highest = max(self.highest, ballot)
    return Write(("ballot", JOB), Promise(NO_BALLOT), replace=True)


CANARIES: list[tuple[str, Any, str, Any]] = [
    ("6: acknowledges with a hole", Replica, "continues", lambda self, message: True),
    ("6: commits what only the own disk holds", Replication, "everywhere", lambda self: self.durable),
    ("7: keeps its promises in memory only", Replica, "promise", promise_from_memory),
    ("7: compares the epoch only", Replica, "outranks", staticmethod(outranks_by_epoch_only)),
    ("7: takes its own log instead of the highest", Answers, "best", lambda self, own: self._me),
    (
        "7: a claim counts before it is committed",
        job_log,
        "committed_proven",
        lambda ballots, last: ballots[1],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "broken"), [each[1:] for each in CANARIES], ids=[each[0] for each in CANARIES]
)
def test_a_broken_rule_is_found(kind: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, name, broken)
    with pytest.raises(AssertionError):
        explore_many(150)


# Transcripts. Set ELF_GOLDEN=write to write them anew, and read the difference.


def check_transcript(world: World, name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = "\n".join(world.story) + "\n"
    if os.environ.get("ELF_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def begun(names: str, *, count: int = 4) -> World:
    """These of A, B, … have started, the closest serves, and three entries are committed."""
    world = World(0, count)
    for node in world.nodes:
        if node.name in names:
            world.start(node)
    world.settle()
    master = next(node for node in world.alive() if node.core.role is Role.SERVING)
    for _ in range(3):
        world.propose(master)
    world.settle()
    return world


def test_transcript_takeover_after_death() -> None:
    world = begun("ABCD")
    world.story.clear()
    world.crash(world.nodes[0])
    world.settle()
    world.check_rest()
    check_transcript(world, "takeover")


def test_transcript_transfer_to_a_closer_joiner() -> None:
    world = begun("BCD")
    world.story.clear()
    world.start(world.nodes[0])
    world.settle()
    world.check_rest()
    assert world.transfers == 1
    check_transcript(world, "transfer")


def test_transcript_all_replicas_lost_is_fresh() -> None:
    world = begun("ABCD")
    world.story.clear()
    world.nodes[3].core.heard_ballot((1, A), world.now)  # from the directory
    for node in world.nodes[:3]:
        world.crash(node, disk_lost=True)
    world.settle()
    assert world.fresh == 2
    check_transcript(world, "lost")


def test_restarting_all_loses_nothing() -> None:
    world = begun("ABCD")
    for node in world.nodes:
        world.crash(node)
    for node in world.nodes:
        world.start(node)
    world.settle()
    world.check_rest()
    assert world.fresh == 1
    assert world.nodes[0].log.entries[:3] == ("A1", "A2", "A3")


def test_a_disk_alone_is_enough_and_commits_only_what_it_has() -> None:
    world = World(0, 1)
    node = world.nodes[0]
    world.start(node)
    world.settle()
    world.propose(node)
    world.perform(node, node.core.tick(world.now + PARAMETERS.append_us))
    assert node.waiting
    assert world.commits == 0
    world.settle()
    assert world.commits == 1


# Two lineages: a log with a majority, and one that was begun by nodes that did not reach it.


def two_sides(old: str, new: str, *, again: int = 0) -> World:
    """The nodes of `old` serve a proven log with three entries; those of `new` begin a longer one, restarted `again` times."""
    world = World(0, 6, honest=False)
    for node in world.nodes:
        node.group = int(node.name in new)
    for node in world.nodes:
        world.start(node)
    for node in world.nodes:
        world.look(node)
    world.settle()
    one, other = (next(node for node in world.nodes if node.name == side[0]) for side in (old, new))
    for _ in range(2):
        world.prove(one)
        world.settle()
    for _ in range(3):
        world.propose(one)
    for turn in range(again + 1):
        for node in (other,) if turn else ():
            world.crash(node)
            world.start(node)
        for node in world.nodes:
            world.look(node)
        world.settle()
        for _ in range(6):
            world.propose(other)
            world.settle()
    return world


def meet(world: World) -> World:
    for node in world.nodes:
        node.group = 0
    for node in world.nodes:
        if node.alive:
            world.look(node)
    world.settle()
    world.check_rest()
    return world


@pytest.mark.parametrize("again", [0, 2])
@pytest.mark.parametrize(("old", "new"), [("ABC", "DEF"), ("DEF", "ABC"), ("ACE", "BDF"), ("BCDEF", "A")])
def test_a_log_with_a_majority_wins_over_one_begun_anew(old: str, new: str, again: int) -> None:
    world = two_sides(old, new, again=again)
    other = world.by_id[bytes(15) + bytes(["ABCDEF".index(new[0]) + 1])]
    assert other.core.role is Role.SERVING
    kept = next(node for node in world.nodes if node.name == old[0]).log.entries
    assert len(kept) == 5
    assert len(other.log.entries) > len(kept)
    meet(world)
    assert world.nodes[0].log.entries[:5] == kept


def test_a_log_begun_anew_wins_when_it_has_a_later_majority() -> None:
    world = two_sides("DEF", "ABC", again=1)
    for _ in range(2):
        world.prove(world.nodes[0])
        world.settle()
    kept = world.nodes[0].log.entries
    meet(world)
    assert world.nodes[0].log.entries[: len(kept)] == kept


def former_replica_alone(is_proved_again: bool) -> World:
    """The log is proven while C is a replica. C dies, five entries are committed without it, and it comes back alone."""
    world = begun("ABCDEF", count=6)
    master, former = world.nodes[0], world.nodes[2]
    for _ in range(2):
        world.prove(master)
        world.settle()
    world.crash(former)
    world.settle()
    for _ in range(2 * is_proved_again):
        world.prove(master)
        world.settle()
    for _ in range(5):
        world.propose(master)
    world.settle()
    world.honest, former.group = False, 1
    world.start(former)
    world.look(former)
    world.settle()
    assert former.core.role is Role.SERVING
    for _ in range(20):
        world.propose(former)
    world.settle()
    return world


def test_a_former_replica_does_not_win_over_the_majority_that_went_on_without_it() -> None:
    world = former_replica_alone(is_proved_again=True)
    kept = world.nodes[0].log.entries
    assert len(kept) == 3 + 2 + 2 + 5
    assert world.nodes[2].log.proven < world.nodes[0].log.proven == ((1, A), 1)
    meet(world)
    assert world.nodes[0].log.entries[: len(kept)] == kept


def test_until_the_majority_has_reported_again_a_former_replica_wins_by_its_ballot() -> None:
    """What the rule does not promise: these five entries had not been covered by reports since the replica left."""
    world = former_replica_alone(is_proved_again=False)
    kept = world.nodes[0].log.entries
    meet(world)
    assert world.nodes[0].log.entries[:5] == kept[:5]
    assert world.nodes[0].log.entries[5:10] != kept[5:10]


@pytest.mark.parametrize("is_ballot_first", [True, False])
@pytest.mark.parametrize(("old", "new"), [("DEF", "ABC"), ("ACE", "BDF")])
def test_a_report_of_a_higher_log_is_not_missed(old: str, new: str, is_ballot_first: bool) -> None:
    """The ballot arrives before its node is a neighbour; or the links are reset while the report is in flight."""
    world = two_sides(old, new, again=2)
    holders = [node for node in world.nodes if node.name in old]
    server = next(node for node in world.nodes if node.name == new[0])
    kept, ballot = holders[0].log.entries, server.core.ballot
    for node in world.nodes:
        node.group = 0
    for node in holders:
        if not is_ballot_first:
            world.look(node)
        world.perform(node, node.core.heard_ballot(ballot, world.time(node)))
    for node in () if is_ballot_first else holders:
        while node.waiting:
            world.sync(node)
        world.reset(node, server)
    meet(world)
    assert world.nodes[0].log.entries[:5] == kept[:5]


# One node by hand.


def alone(me: NodeId = A) -> Succession:
    return Succession(JOB, me, PARAMETERS, ListState)


def messages(effects: list[Effect], kind: type) -> list[Any]:
    sent = [each.message for each in effects if isinstance(each, (Send, Post))]
    return [message for message in sent if isinstance(message, kind)]


def phase(node: Succession) -> Phase:
    return node.phase


def serve_with(me: Succession, replica: NodeId) -> Ballot:
    """A node that begins a job with one replica that holds nothing."""
    me.closest(True, [replica], 0)
    me.step(replica, StateReport(JOB, NO_BALLOT, NO_BALLOT, NO_BALLOT, 0), 0)
    ballot = me.ballot
    me.step(replica, StateReport(JOB, ballot, ballot, NO_BALLOT, 0), 0)
    me.step(me.me, Held(JOB, ballot, 0), 0)
    me.step(replica, Held(JOB, ballot, 0), 0)
    assert me.role is Role.SERVING
    assert me.news.take_changes() == [Serve(ballot, me.replica.log.state, 0, True)]  # type: ignore[arg-type]
    return ballot


def test_nothing_found_is_served_under_a_higher_ballot_and_fresh() -> None:
    me = alone()
    me.heard_ballot((7, C), 0)
    assert serve_with(me, B) == (8, A)


def test_rule_7_two_processes_with_one_key_never_take_the_same_ballot() -> None:
    one, other = (Succession(JOB, A, PARAMETERS, ListState, instance) for instance in (5, 6))
    ballots = [serve_with(one, B), serve_with(other, C)]
    assert ballots == [(1, A + bytes(7) + b"\5"), (1, A + bytes(7) + b"\6")]
    assert [node_of(ballot) for ballot in ballots] == [A, A]
    lower, higher = ballots
    assert one.heard_ballot(higher, 0) != []
    assert (one.role, one.highest) == (Role.ASKING, higher)
    assert other.heard_ballot(lower, 0) == []
    assert other.role is Role.SERVING


def test_a_query_promises_nothing_and_a_request_under_a_ballot_is_written_first() -> None:
    me = alone()
    [report] = messages(me.step(B, StateRequest(JOB, NO_BALLOT), 0), StateReport)
    assert report.highest == NO_BALLOT
    for _ in range(2):  # a repeated request may come before the first write is durable
        effects = me.step(B, StateRequest(JOB, (3, B)), 0)
        assert isinstance(effects[0], Write)
        assert messages(effects, StateReport)[0].highest == (3, B)


def test_entries_within_append_us_leave_in_one_message() -> None:
    me = alone()
    ballot, now = serve_with(me, B), 10**9
    me.propose("w", now)
    assert messages(me.tick(now), Append) == [Append(JOB, ballot, 1, ("w",), 0)], "after a pause at once"
    assert [me.propose("x", now + 100), me.propose("y", now + 200)] == [2, 3]
    assert me.tick(now + PARAMETERS.append_us - 1) == []
    effects = me.tick(now + PARAMETERS.append_us)
    assert isinstance(effects[0], Write)
    assert messages(effects, Append) == [Append(JOB, ballot, 2, ("x", "y"), 0)]
    me.step(B, Held(JOB, ballot, 3), now)
    assert me.news.take_committed() == []
    me.step(A, Held(JOB, ballot, 3), now)
    assert me.news.take_committed() == [(1, "w"), (2, "x"), (3, "y")]
    assert me.tick(now + PARAMETERS.flush_us) == []
    assert messages(me.tick(now + 2 * PARAMETERS.flush_us), Append) == [Append(JOB, ballot, 4, (), 3)]


def test_replicas_learn_what_is_committed_with_the_next_entries() -> None:
    me = alone()
    ballot, now = serve_with(me, B), 10**9
    for number, entry in enumerate("wxy", 1):
        me.propose(entry, now)
        assert messages(me.tick(now), Append) == [Append(JOB, ballot, number, (entry,), number - 1)]
        for node in (A, B):
            me.step(node, Held(JOB, ballot, number), now)
        now += PARAMETERS.flush_us
        assert messages(me.tick(now - 1), Append) == []


def test_a_refusal_with_a_higher_ballot_makes_it_step_down() -> None:
    me = alone()
    ballot = serve_with(me, B)
    me.propose("lost", 0)
    me.step(B, Held(JOB, (9, C), -1, refused=True), 0)
    assert me.propose("in vain", 0) == 1
    assert me.news.take_changes() == [StepDown(ballot)]
    assert (me.highest, me.phase) == ((9, C), Phase.QUERY)
    assert me.replica.log.index == 0
    with pytest.raises(InternalError, match="does not serve"):
        me.propose("more", 0)


def test_a_master_that_is_fenced_off_again_and_again_waits_longer_each_time() -> None:
    me, ask, now, pauses = alone(), PARAMETERS.ask_us, 0, []
    serve_with(me, B)
    for _ in range(8):
        me.heard_ballot((me.highest[0] + 1, C), now)
        assert me.deadline is not None
        pauses.append((me.deadline - now) // ask)
        now = me.deadline
        asks = messages(me.tick(now), StateRequest)
        assert [ask.ballot for ask in asks] == [NO_BALLOT]
        me.step(B, StateReport(JOB, NO_BALLOT, me.highest, NO_BALLOT, 0), now)
        me.step(B, StateReport(JOB, me.ballot, me.ballot, NO_BALLOT, 0), now)
        for node in (A, B):
            me.step(node, Held(JOB, me.ballot, me.replica.log.index), now)
        assert me.role is Role.SERVING
    assert pauses == [1, 2, 4, 8, 16, 32, 32, 32]
    now += 8 * 32 * ask
    me.heard_ballot((me.highest[0] + 1, C), now)
    assert me.deadline == now + ask


def test_entries_that_wait_for_replicas_are_bounded() -> None:
    me = alone()
    serve_with(me, B)
    for _ in range(PARAMETERS.snapshot_entries):
        me.propose("x", 0)
    assert me.room == 0
    with pytest.raises(InternalError, match="wait for replicas"):
        me.propose("x", 0)


def test_a_clock_that_steps_back_does_not_delay_an_append() -> None:
    me = alone()
    serve_with(me, B)
    me.propose("w", 10**12)
    assert messages(me.tick(10**12), Append)
    me.propose("x", 10**12 + 1)
    assert me.tick(5) == []
    assert messages(me.tick(5 + PARAMETERS.append_us), Append)


def test_a_late_report_of_a_longer_log_is_not_ignored() -> None:
    me = alone()
    me.closest(True, [B], 0)
    me.tick(2 * PARAMETERS.ask_us)
    now = 2 * PARAMETERS.ask_us + PARAMETERS.ask_us_max
    me.tick(now)
    assert phase(me) is Phase.INSTALL
    tell_more = StateReport(JOB, me.ballot, me.ballot, (1, C), 4)
    before = me.ballot
    me.step(B, tell_more, now)
    assert phase(me) is Phase.PROMISE
    assert me.ballot > before
    effects = me.step(B, StateReport(JOB, me.ballot, me.ballot, (1, C), 4), now)
    assert messages(effects, Fetch) == [Fetch(JOB, me.ballot)]
    me.step(B, Install(JOB, me.ballot, 3, ("a", "b", "c"), (1, C), ("d",)), now)
    me.step(A, Held(JOB, me.ballot, 4), now)
    me.step(B, Held(JOB, me.ballot, 4), now)
    [serve] = me.news.take_changes()
    assert isinstance(serve, Serve)
    assert (serve.index, serve.fresh) == (4, False)


def test_the_log_of_a_node_that_has_left_is_not_awaited_any_more() -> None:
    """The first part of a log arrives from a node that has left, while the next highest log is on its way."""
    me = alone()
    me.closest(True, [B, C], 0)
    for ballot in (NO_BALLOT, (1, A)):
        me.step(B, StateReport(JOB, ballot, max(ballot, (0, B)), (0, B), 9), 0)
        me.step(C, StateReport(JOB, ballot, max(ballot, (0, B)), (0, B), 4), 0)
    assert phase(me) is Phase.FETCH
    assert messages(me.closest(True, [C], 0), Fetch) == [Fetch(JOB, me.ballot)]
    in_pieces = Install(JOB, me.ballot, 9, SimpleNamespace(in_pieces=True), (0, B))
    assert me.step(B, in_pieces, 0) == []
    me.check()
    me.step(C, Install(JOB, me.ballot, 4, ("a", "b", "c", "d"), (0, B)), 0)
    assert phase(me) is Phase.INSTALL


@pytest.mark.parametrize(
    ("teller", "last", "handed_on"), [(B, (1, B), True), (C, (1, B), False), (B, (0, B), False)]
)
def test_a_former_master_that_promises_hands_its_log_on(
    teller: NodeId, last: Ballot, handed_on: bool
) -> None:
    """This node holds three entries of master (1, B). If B itself reports the same log, it has published nothing that is not in
    it."""
    me = alone()
    me.step(B, Install(JOB, (1, B), 3, ("a", "b", "c"), (1, B), ()), 0)
    me.closest(True, [teller], 0)
    for ballot in (NO_BALLOT, (2, A)):
        me.step(teller, StateReport(JOB, ballot, max(ballot, (1, B)), last, 3 if last == (1, B) else 2), 0)
    for node in (A, teller):
        me.step(node, Held(JOB, (2, A), 3), 0)
    [serve] = me.news.take_changes()
    assert isinstance(serve, Serve)
    assert (serve.index, serve.handed_on) == (3, handed_on)


def test_waiting_for_a_transfer_is_bounded() -> None:
    me = alone()
    me.closest(True, [B], 0)
    me.step(B, StateReport(JOB, NO_BALLOT, (2, B), (2, B), 5, serving=True), 0)
    assert phase(me) is Phase.WAIT
    me.tick(PARAMETERS.transfer_us_max)
    assert (me.phase, me.ballot) == (Phase.PROMISE, (3, A))


def test_messages_under_another_nodes_ballot_are_ignored() -> None:
    me = alone()
    assert me.step(B, Append(JOB, (5, C), 1, ("x",), 0), 0) == []
    assert me.highest == NO_BALLOT


def test_a_log_that_never_arrives_is_awaited_only_once() -> None:
    """A neighbour whose messages arrive, and which receives none: its log is awaited once."""
    me = alone()
    ballot = serve_with(me, B)

    def look() -> list[Effect]:
        return me.step(B, StateReport(JOB, me.ballot, me.ballot, (3, B), 9, False, (2, B)), 0)

    assert messages(look(), StateRequest)
    assert phase(me) is Phase.PROMISE
    me.tick(PARAMETERS.ask_us_max)
    assert phase(me) is Phase.FETCH
    now = PARAMETERS.ask_us_max + FETCH_SPANS * PARAMETERS.transfer_us_max
    me.tick(now)
    assert phase(me) is Phase.INSTALL
    assert me.ballot > ballot
    me.step(me.me, Held(JOB, me.ballot, me.replica.log.index), now)
    me.step(B, Held(JOB, me.ballot, me.replica.log.index), now)
    assert me.role is Role.SERVING
    assert messages(look(), StateRequest) == []
    assert me.role is Role.SERVING
