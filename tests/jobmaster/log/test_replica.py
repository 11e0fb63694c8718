"""A job's log on one node: the entries that it holds, writes and acknowledges, and the ballots that it promises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.log.job_log import NO_MAJORITY, Base, JobLog, LogRecord, More, Promise, rank
from elf.jobmaster.log.replica import Replica
from elf.jobmaster.log.replication import Replication
from elf.srt.messages.effects import Effect, Post, Write
from elf.srt.messages.messages import NO_BALLOT, Append, Fetch, Held, Install, StateReport
from elf.srt.messages.parameters import Parameters
from tests.rigs.succession_world import JOB, ListState, read_back

A, B = bytes(15) + b"\1", bytes(15) + b"\2"
ONE, TWO, THREE = (1, A), (2, A), (3, B)


def replica(snapshot_entries: int = 100) -> Replica:
    return Replica(JOB, ListState, snapshot_entries, 1 << 20)


def append(
    first: int, entries: str, committed: int = 0, ballot: Any = ONE, previous: Any = NO_BALLOT
) -> Append:
    return Append(JOB, ballot, first, tuple(entries), committed, previous)


def holding(entries: str, ballot: Any = ONE) -> Replica:
    """A replica that holds these entries under `ballot`, from a master that serves."""
    node = replica()
    node.promise(ballot)
    node.install(A, Install(JOB, ballot, len(entries), tuple(entries), ballot))
    return node


def answer(effects: list[Effect]) -> Any:
    [post] = [each for each in effects if isinstance(each, Post)]
    return post.message


def contents(log: JobLog) -> list[str]:
    assert log.state is None or isinstance(log.state, ListState)
    return [*(log.state.entries if log.state else ()), *log.tail]


def test_rule_6_nothing_is_acknowledged_past_a_missing_entry() -> None:
    node = holding("abc")
    assert answer(node.append(A, append(4, "d"))) == Held(JOB, ONE, 4)
    assert answer(node.append(A, append(6, "f"))) == Held(JOB, ONE, 4)
    assert answer(node.append(A, append(3, "cde"))) == Held(JOB, ONE, 5)
    assert contents(node.log) == list("abcde")


def test_rule_6_entries_of_another_ballot_need_a_snapshot_first() -> None:
    node = holding("abc")
    node.promise(TWO)
    assert answer(node.append(A, append(4, "d", ballot=TWO))) == Held(JOB, TWO, -1)
    assert contents(node.log) == list("abc")


def test_the_same_log_continues_under_the_next_ballot_at_exactly_its_end() -> None:
    node = holding("abc")
    node.promise(TWO)
    assert answer(node.append(A, append(5, "e", ballot=TWO, previous=ONE))) == Held(JOB, TWO, -1)
    assert answer(node.append(A, append(4, "d", ballot=TWO, previous=ONE))) == Held(JOB, TWO, 4)
    assert (node.log.held, node.log.last) == (TWO, ONE)
    node.append(A, append(5, "", ballot=TWO))
    assert node.log.last == TWO


@pytest.mark.parametrize("entries", ["abc", ""])
def test_every_acknowledgement_follows_a_write(entries: str) -> None:
    """Also one that adds nothing: the earlier write may still be in progress."""
    node = holding("abc")
    effects = node.append(A, append(1, "abc"))
    assert [type(each) for each in effects] == [Write, Post]
    effects = node.append(A, append(9, entries or "x"))
    assert [type(each) for each in effects] == [Write, Post]


def test_a_heartbeat_applies_what_is_committed_and_is_not_answered() -> None:
    node = holding("abc")
    node.append(A, append(4, "de"))
    assert node.log.applied == 3
    assert node.append(A, append(6, "", committed=4)) == []
    assert node.log.applied == 4
    assert node.append(A, append(6, "", committed=99)) == []
    assert node.log.applied == 5


def test_a_longer_log_is_reported_to_a_node_that_does_not_serve_yet() -> None:
    node = holding("abc")
    node.promise(TWO)
    report = answer(node.install(A, Install(JOB, TWO, 2, ("a", "b"), ONE)))
    assert report == StateReport(JOB, TWO, TWO, ONE, 3)
    assert answer(node.append(A, append(3, "", ballot=TWO, previous=ONE))) == report
    assert contents(node.log) == list("abc")


def test_a_node_that_serves_under_a_higher_ballot_replaces_even_a_longer_log() -> None:
    node = holding("abc")
    node.promise(TWO)
    assert answer(node.install(A, Install(JOB, TWO, 1, ("x",), TWO))) == Held(JOB, TWO, 1)
    assert contents(node.log) == ["x"]


def test_an_older_install_of_the_same_ballot_changes_nothing() -> None:
    node = holding("abc")
    assert answer(node.install(A, Install(JOB, ONE, 1, ("a",), ONE))) == Held(JOB, ONE, 3)
    assert contents(node.log) == list("abc")


def test_a_fetch_is_answered_once_until_the_link_is_reset() -> None:
    node = holding("abc")
    node.append(A, append(4, "d"))
    node.promise(THREE)
    whole = Install(JOB, THREE, 3, ("a", "b", "c"), ONE, ("d",))
    assert answer(node.fetch(B, Fetch(JOB, THREE))) == whole
    assert node.fetch(B, Fetch(JOB, THREE)) == []
    node.link_reset(B)
    assert answer(node.fetch(B, Fetch(JOB, THREE))) == whole


def test_a_promise_survives_a_restart() -> None:
    node = holding("abc")
    record = node.promise(THREE).record
    again = replica()
    again.restore(record)
    assert again.highest == THREE
    assert node.refuse(A) == [Post(A, Held(JOB, THREE, -1, refused=True))]


def test_a_log_without_entries_ranks_lowest() -> None:
    none = NO_MAJORITY
    assert rank((THREE, 0), THREE, 0) < rank(none, ONE, 1) < rank(none, ONE, 2) < rank(none, TWO, 1)
    assert rank(none, THREE, 9) < rank((ONE, 0), TWO, 2) < rank((ONE, 1), ONE, 1)


def test_a_log_that_is_not_served_yet_proves_nothing_after_a_link_reset_either() -> None:
    """A sent its log to B, which has it; a third node has not answered yet when the link to B is reset."""
    master, peer = holding("abc"), holding("abc")
    for node in (master, peer):
        node.promise(TWO)
    master.log.raised(TWO)
    replication = Replication(master, A, TWO, Parameters(), {B: 3})
    first = answer(replication.present([B], 0, 0))
    assert answer(peer.append(A, first)) == Held(JOB, TWO, 3)
    replication.held(B, 3)
    peer.append(A, answer(replication.link_reset(B)))
    assert (peer.log.held, peer.log.last) == (TWO, ONE)
    replication.serve()
    peer.append(A, answer(replication.link_reset(B)))
    assert peer.log.last == TWO


def test_a_replica_with_less_than_it_acknowledged_does_not_count_until_it_has_the_log_again() -> None:
    """Its folder was restored: if the entries are part of the master's state by now, it gets the whole log again."""
    master = holding("abc")
    master.log.commit(3)
    replication = Replication(master, A, ONE, Parameters(), {B: 0})
    replication.held(A, 3)
    replication.present([B], 0, 0)
    replication.held(B, 3)
    assert (replication.everywhere(), replication.peers[B].held) == (3, 3)
    assert isinstance(answer(replication.held(B, 1)), Install)
    assert replication.everywhere() == -1
    replication.held(B, 3)
    assert replication.everywhere() == 3


def test_records_are_replaced_by_a_snapshot_when_they_are_many() -> None:
    node = replica(snapshot_entries=4)
    node.promise(ONE)
    node.install(A, Install(JOB, ONE, 0, (), ONE))
    records = []
    for at, entry in enumerate("abcdefgh", 1):
        effects = node.append(A, append(at, entry, committed=at - 1))
        records += [each.record for each in effects if isinstance(each, Write) and each.replace]
    assert records == [Base(ONE, ONE, 4, ("a", "b", "c", "d"), ("e",))]


step = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(-2, 3)),
    st.tuples(st.just("commit"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("raise"), st.just(0), st.just(0)),
    st.tuples(st.just("install"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.just(0), st.just(0)),
)


@settings(max_examples=200, derandomize=True)
@given(st.lists(step, max_size=25))
def test_the_log_is_read_back_as_it_was_held(steps: list[tuple[str, int, int]]) -> None:
    """Against the test's own reading of the records, and against a second log that restores them."""
    log, disk, ballot, made = JobLog(ListState, 1 << 20), list[LogRecord](), 1, 0
    disk.append(log.begin((ballot, A)))
    for kind, one, other in steps:
        record: Base | More | None = None
        if kind == "append":
            names = [f"e{made + at}" for at in range(one)]
            made += one
            first = max(log.applied + 1, log.index + 1 + min(0, other))
            old = log.after(first - 1)
            record = log.extend((ballot, A), (ballot, A), first, [*old, *names])
        elif kind == "commit":
            before = contents(log)
            log.commit(one)
            assert contents(log) == before
        elif kind == "raise":
            ballot += 1
            record = log.raised((ballot, A))
        elif kind == "install":
            ballot += 1
            base = [f"s{ballot}-{at}" for at in range(one)]
            record = log.install((ballot, A), (ballot, A), one, tuple(base), ["t"] * other)
        else:
            record = log.base()
        if isinstance(record, Base):
            disk.clear()
        if record:
            disk.append(record)
        log.check()
        assert read_back(disk) == (log.held, log.last, tuple(contents(log)))
    again = JobLog(ListState, 1 << 20)
    for kept in disk:
        assert not isinstance(kept, Promise)
        again.restore(kept)
    assert (again.held, again.last, contents(again)) == (log.held, log.last, contents(log))
    assert again.recorded == log.recorded
