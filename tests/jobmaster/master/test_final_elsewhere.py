"""Windows that two masters at a time may both publish as final: one learns of it first, from a worker that has promised to
both."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario import scenario as s
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import BEFORE_ALL
from elf.jobmaster.master.elsewhere import Elsewhere
from elf.srt.messages.bundles import OpenBundle, Promises, again
from elf.srt.messages.messages import FIRST, MASTERS_MAX, NO_BALLOT, Ballot, Bundle, Commit
from elf.srt.messages.messages import Elsewhere as Promised
from tests.agent.node.worker.test_delta_worker import ME, Bench, F, T
from tests.rigs.canaries.meshes import MS, SECOND, mesh
from tests.rigs.master_rig import PARAMETERS, T0, A, B, Rig, file
from tests.rigs.tree_rig import JOB, bundle_of, node_name

ONE, TWO, THREE = (1, b"a" * 16), (2, b"b" * 16), (3, b"a" * 16)


def promising(promised: Promised, child: int = 1) -> Bundle:
    """A bundle of that child with those promises to others."""
    worker = node_name(child)
    return replace(bundle_of(worker, 1, {(worker, 1, 0): (0, 10, FIRST)}), elsewhere=promised)


def test_a_worker_reports_its_promises_to_others_until_such_a_bundle_is_committed() -> None:
    bench = Bench()
    bench.welcome()
    first = bench.cut({F: (0, 50, FIRST)}, T + 10)
    assert first.elsewhere == ((NO_BALLOT, T),)  # of an earlier life, up to this life's start
    bench.step(Commit(JOB, first.ballot, (first.id,)))
    second = bench.flush({F: (50, 100, 0)})
    assert second.elsewhere == ()
    bench.step(Commit(JOB, TWO, (second.id,)))  # cut for another master: proves nothing
    third = bench.flush({F: (100, 150, 0)})
    assert third.ballot == TWO
    assert third.elsewhere == ((NO_BALLOT, T), (first.ballot, second.watermark))
    fourth = bench.flush({F: (150, 200, 0)})
    assert fourth.elsewhere == third.elsewhere
    bench.step(Commit(JOB, TWO, (third.id,)))
    assert bench.flush({F: (200, 250, 0)}).elsewhere == ()


def test_only_the_last_masters_are_remembered() -> None:
    promises = Promises()
    for epoch in range(1, 2 * MASTERS_MAX + 1):
        promises.note((epoch, ME), epoch)
    promises.note((2 * MASTERS_MAX, ME), 5)  # a lower watermark than before
    promised = promises.to_others((2 * MASTERS_MAX - 1, ME))
    epochs = [*range(MASTERS_MAX + 1, 2 * MASTERS_MAX - 1), 2 * MASTERS_MAX]
    assert promised == tuple(((epoch, ME), epoch) for epoch in epochs)


def test_a_reducer_forwards_the_highest_of_each() -> None:
    bundle = OpenBundle(1 << 20)
    each: tuple[tuple[int, Promised], ...] = (
        (1, ((ONE, 7), (TWO, 5))),
        (2, ()),
        (3, ((NO_BALLOT, 9), (TWO, 6))),
    )
    for child, promised in each:
        bundle.add(node_name(child), promising(promised, child), 0)
    merged = bundle.close(JOB, (ME, 1, 2))
    assert merged.elsewhere == ((NO_BALLOT, 9), (ONE, 7), (TWO, 6))
    assert again(merged, (ME, 1, 4)).elsewhere == merged.elsewhere
    bundle.empty()
    bundle.add(node_name(1), promising(()), 0)
    assert bundle.close(JOB, (ME, 1, 6)).elsewhere == ()


@pytest.mark.parametrize(
    ("promised", "whole", "is_new", "until"),
    [
        (ONE, (), False, 50),
        (ONE, (ONE,), False, BEFORE_ALL),  # it has handed its log on
        (THREE, (), False, BEFORE_ALL),  # this master itself
        (NO_BALLOT, (ONE,), True, 50),
        (NO_BALLOT, (ONE,), False, BEFORE_ALL),
    ],
)
def test_which_promises_to_others_count_for_a_master(
    promised: Ballot, whole: tuple[Ballot, ...], is_new: bool, until: int
) -> None:
    elsewhere = Elsewhere(THREE, slack_us=10)
    elsewhere.note(promising(((promised, 50),)), whole, is_new, now=100)
    assert elsewhere.until_us == until
    assert elsewhere.may_have(50) == (until == 50)
    assert not elsewhere.may_have(51)


def test_a_promise_of_the_far_future_is_not_believed() -> None:
    elsewhere = Elsewhere(THREE, slack_us=10)
    elsewhere.note(promising(((ONE, 1 << 60),)), (), False, now=100)
    assert elsewhere.until_us == 110


def taken_over() -> Rig:
    """The next master after one whose process has ended, as far as it knows, with a log in which a window is whole and due."""
    before = Rig(delayed=True, now=T0 + 20 * SECOND)
    before.commit()
    marks = {A: T0 + 20 * SECOND, B: T0 + 20 * SECOND}
    for worker, mark in marks.items():
        before.bundle({file(worker): (0, 10, FIRST)}, [(T0 + 1, 1, 2)], watermark=mark, child=worker)
    before.commit(len(before.waiting))
    assert not before.state.finals
    state = JobState(before.spec.id, before.spec.name, before.budget)
    state.restore(before.state.snapshot())
    return Rig(before.spec, state=state, ballot=TWO, now=before.now, handed_on=True)


def finals(rig: Rig) -> list[str]:
    return [put.status for put in rig.shown.puts if put.status != "open"]


def test_a_window_that_was_due_at_a_takeover_waits_for_more_than_half_of_the_workers() -> None:
    """Another master may have taken over from the same one, which began again on the other side of a partition."""
    rig = taken_over()
    rig.run(SECOND)
    rig.bundle({file(A): (10, 10, 0)}, watermark=T0 + 20 * SECOND, child=A)
    rig.run(SECOND)
    assert finals(rig) == []
    rig.bundle({file(B): (10, 10, 0)}, watermark=T0 + 20 * SECOND, child=B)
    rig.run(SECOND)
    assert finals(rig) == ["final"]


def test_such_a_window_is_revised_if_a_worker_has_promised_to_the_other_one() -> None:
    rig = taken_over()
    mark = T0 + 20 * SECOND
    rig.bundle({file(A): (10, 10, 0)}, watermark=mark, child=A)
    rig.bundle({file(B): (10, 10, 0)}, watermark=mark, child=B, elsewhere=((THREE, mark),))
    rig.run(SECOND)
    assert finals(rig) == ["revised"]


def test_such_a_window_is_revised_if_the_workers_do_not_come() -> None:
    rig = taken_over()
    rig.run(PARAMETERS.hold_us_max - SECOND)
    assert finals(rig) == []
    rig.run(2 * SECOND)
    assert finals(rig) == ["revised"]


def stopped(seed: int) -> s.Scenario:
    """The master stalls for some seconds, or loses all messages in one direction, and continues. Watchers are connected to it and
    to other nodes, and some reconnect."""
    rng = Random(seed)
    at = 6 * SECOND + rng.randrange(SECOND)
    until = at + rng.randint(3, 7) * SECOND
    host = 1  # closest to the job
    fault = (
        s.Pause(at_us=at, until_us=until, host=host),
        s.Cut(at_us=at, until_us=until, hosts=(host,), inward=False),
        s.Cut(at_us=at, until_us=until, hosts=(host,), outward=False),
    )[seed % 3]
    again_us = tuple(until + rng.randint(100, 3_000) * MS for _ in range(2))
    readers = tuple(
        s.Reader(host=each, job=0, from_us=4 * SECOND, again_us=more)
        for each, more in ((host, ()), (host, again_us), (2, again_us), (4, ()))
    )
    return mesh(seed, [fault], hosts=5, trouble_us=until + SECOND, readers=readers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_window_is_final_once_if_a_master_stalled_or_was_cut_off_one_way(seed: int) -> None:
    outcome = simulate(stopped(seed))
    assert outcome.violation == ""
    assert outcome.finals > 5
