"""Histories that once gave a wrong window, or a queue without end: each test is named after the rule that it held up."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from elf.agent.node.job_seat import JobSeat
from elf.agent.node.worker.delta_worker import DeltaWorker, State
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import Target
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import Left
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Goodbye, Hello, Welcome
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import LedgerReport
from elf.srt.tree.tree import TreeSeat
from tests.rigs.master_rig import BALLOT, PARAMETERS, SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, plan_of, version_of
from tests.rigs.quick import QUICK

pytestmark = pytest.mark.slow

A, B, C = b"A" * 16, b"B" * 16, b"\x03" * 16
JOB = b"J" * 16
LATER = (2, b"N" * 16)


def advertised(rig: Rig, *workers: bytes) -> None:
    adverts = [(worker, AgentAdvert(worker.hex(), ("access",), 1, rig.now)) for worker in workers]
    rig.do(rig.master.adverts(adverts, rig.now))


# Leaving.


def test_leave_is_logged_only_where_the_last_line_is() -> None:
    rig = Rig(ballot=LATER)
    advertised(rig, A, B)
    rig.do(rig.master.goodbye(Goodbye(rig.spec.id, B, T0 + 2 * SECOND, 7, BALLOT), rig.now))
    assert not [entry for _, entry in rig.log if isinstance(entry, Left)]
    (welcome,) = rig.welcomes()
    assert welcome.incarnation == 7


def leaving_as_all_logs_are_lost(seed: int) -> str:
    """Host 5 leaves; while it announces that, the master and its replicas lose their disks."""
    fault = s.Crash(at_us=0, until_us=8 * SECOND, target="circle", wipe=True)
    crashed: list[int] = []

    def prepare(run: Run) -> None:
        job = run.specs[0].id

        def look(now_us: int, what: str, who: Actor | None, about: object) -> None:
            node = run.hosts[5].node
            worker = node.seats[job].worker if node is not None and job in node.seats else None
            if worker is not None and worker.state is State.PARTING and not crashed:
                crashed.append(now_us)
                run.world.at(now_us, lambda: run.faults._crash(1, fault))

        run.world.observers.append(look)

    scenario = s.Scenario(
        seed=seed,
        hosts=8,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND),),
        faults=(s.Part(at_us=7 * SECOND, host=5),),
        parameters=QUICK,
        trouble_us=12 * SECOND,
    )
    outcome = simulate(scenario, prepare=prepare)
    assert crashed
    return outcome.violation


@pytest.mark.parametrize("seed", [0, 1])
def test_an_agent_that_leaves_a_new_log_reads_again_first(seed: int) -> None:
    assert leaving_as_all_logs_are_lost(seed) == ""


# Gaps.


def test_a_gap_in_a_lane_makes_the_windows_that_were_given_up_incomplete() -> None:
    rig = Rig()
    both = {file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}
    rig.bundle(both, [(T0, 1, 1), (T0 + 1, 2, 2)], watermark=T0 + 1)
    versions = (*rig.spec.versions, version_of(plan_of(where="WHERE bytes > 0")))
    spec = msgspec.structs.replace(rig.spec, number=2, versions=versions, mode="restate", line_us=T0 + SECOND)
    rig.do(rig.master.spec_changed(spec, rig.now))
    lane = rig.state.schedule[-1].number
    rig.bundle({file(A, lane=lane): (0, 10, FIRST | CLOSED)}, [(T0, 1, 1)], watermark=T0 + 1)
    rig.bundle({file(B, lane=lane): (10, 10, FIRST | CLOSED | GAP)}, watermark=T0 + 1)
    assert rig.state.positions.lane is None
    rig.bundle({file(A): (10, 10, 0), file(B): (10, 10, 0)}, watermark=T0 + 60 * SECOND)
    rig.run(2 * PARAMETERS.hold_us_max)
    told = rig.windows()
    assert told
    assert all(window.status == "open" or window.agents_reporting == 1 for window in told)


def test_how_far_a_gap_reaches_is_not_lost_in_a_merged_watermark() -> None:
    worker = DeltaWorker(JOB, A, 1, Parameters())
    worker.start(T0)
    read = worker.step(Welcome(JOB, BALLOT, 1, (), 0, ()), T0)[-1]
    assert isinstance(read, Read)
    worker.cut(Cut(JOB, read.request, 0, {file(A): (50, 60, FIRST | GAP)}, T0, {}, True, (file(A),)), T0)
    (bundle,) = worker.take_bundles()
    assert bundle.lagging == {A: T0}


# Logs that began anew.


def published_by_an_earlier_log() -> Rig:
    rig = Rig(spec_of(plan_of("10 seconds/5 seconds"), line_us=T0 - 5000 * SECOND), sinks=[SINK])
    rig.run(SECOND)
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 9, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    assert [window.status for window in rig.windows()] == ["final", "final"]
    return rig


def test_rule_8_no_window_is_final_with_less_before_the_ledgers_say_what_they_hold() -> None:
    rig = published_by_an_earlier_log()
    new = Rig(rig.spec, ballot=LATER, sinks=[SINK], now=T0 + 61 * SECOND, ledgers=rig.ledgers, deaf=True)
    advertised(new, A, B, C)
    new.bundle({file(A): (0, 5, FIRST), file(C): (0, 1, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    new.run(2 * PARAMETERS.hold_us_max)
    new.deaf = False
    new.run(2 * PARAMETERS.hold_us_max)
    assert not [window for window in new.windows() if window.status != "open"]


def test_rule_8_a_window_that_the_log_has_only_the_end_of_stays_as_the_sink_holds_it() -> None:
    rig = published_by_an_earlier_log()
    late = T0 + 605 * SECOND + rig.spec.lateness_us
    new = Rig(rig.spec, ballot=LATER, sinks=[SINK], now=late + 5 * SECOND, ledgers=rig.ledgers)
    since = new.state.positions.since_us
    assert since == T0
    new.run(SECOND)
    new.bundle({file(A): (5, 10, FIRST)}, [(T0, 1, 1)], watermark=late)
    new.run(SECOND)
    assert [window.start for window in new.windows()] == [T0]
    new.master.check()


def test_a_file_that_the_log_does_not_know_begins_with_the_oldest_retained_pane() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST | CLOSED)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    later = T0 + 3000 * SECOND
    rig.bundle({file(A, 2): (0, 20, FIRST)}, [(later, 1, 1)], watermark=later + 60 * SECOND)
    rig.run(2 * SECOND)
    assert file(A) not in rig.state.positions.closed
    rig.do(rig.master.hello(Hello(rig.spec.id, A, 2), rig.now))
    (welcome,) = rig.welcomes()
    retained_us = rig.state.positions.retained_us
    assert retained_us > T0
    assert welcome.since_us == retained_us - retained_us % (10 * SECOND), "where that pane begins"


# What a sink says.


def test_a_ledger_reported_to_an_earlier_ballot_is_not_taken() -> None:
    box = Outbox(JOB, (3, A), [Target("lake", SINK)], Parameters())
    assert box.ledger_reported(SINK, LedgerReport(JOB, (1, A), 0, (), "lake")) is None
    assert not box.has_ledgers
    assert box.ledger_reported(SINK, LedgerReport(JOB, (3, A), 0, (), "lake")) == ()


# Bounds.


def test_hellos_that_wait_for_the_log_are_one_for_each_worker() -> None:
    rig = Rig(delayed=True)
    rig.commit()
    for life in (1, 2, 2, 2):
        rig.do(rig.master.hello(Hello(rig.spec.id, A, life), rig.now))
    rig.commit()
    assert [welcome.incarnation for welcome in rig.welcomes()] == [2]


# Stopping.


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stopped_job_is_stopped_everywhere(restarted: bool) -> None:
    """Host 3 is cut off while the message passes down the tree; or it did not exist at all."""
    away: s.AnyFault = s.Cut(at_us=5 * SECOND, until_us=9 * SECOND, hosts=(3,))
    if restarted:
        away = s.Crash(at_us=5 * SECOND, until_us=9 * SECOND, target="host", host=3)
    scenario = s.Scenario(
        seed=1,
        hosts=5,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND),),
        faults=(away,),
        parameters=QUICK,
    )
    run = Run(scenario)
    world = run.world

    def stop() -> None:
        run.specs[0] = msgspec.structs.replace(run.specs[0], number=2, stopped=True)
        run._submit(0, run.specs[0])

    for host in run.hosts:
        world.at(0, partial(run.start, host))
    world.at(2 * SECOND, lambda: run._submit(0, run.specs[0]))
    world.at(6 * SECOND, stop)
    run.faults.plan(0, away)
    world.run_until(16 * SECOND)
    seats = [host.node.seats[run.specs[0].id] for host in run.hosts if host.node is not None]
    assert [seat.worker.state for seat in seats if seat.worker is not None] == [State.ENDED] * 5


# Full disks.


def test_rule_6_a_replica_that_writes_nothing_is_replaced() -> None:
    """Its disk is full for longer than the simulation's faults; windows continue, and end exact."""
    scenario = s.Scenario(
        seed=1,
        hosts=8,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND),),
        parameters=QUICK,
        trouble_us=20 * SECOND,
    )
    committed: list[int] = []

    def prepare(run: Run) -> None:
        def seat() -> JobSeat:
            node = run.invariants.masters(run.specs[0].id)[0].node
            assert node is not None
            return node.seats[run.specs[0].id]

        def fill() -> None:
            replication = seat().succession.replication
            assert replication is not None
            run.world.fill_disk(run.world.actors[next(iter(replication.peers))], True)

        def look() -> None:
            state = seat().succession.replica.log.state
            assert isinstance(state, JobState)
            committed.append(state.index)

        run.world.at(8 * SECOND, fill)
        for moment in (8, 16, 18):
            run.world.at(moment * SECOND + 1, look)

    outcome = simulate(scenario, prepare=prepare)
    assert outcome.violation == ""
    before, after, later = committed
    assert before + 10 < after < later - 5


def test_a_child_that_its_parent_does_not_know_learns_it_with_its_next_bundle() -> None:
    """Not only after some Paths that do not come, which takes seconds."""
    scenario = s.Scenario(
        seed=1,
        hosts=4,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND),),
        parameters=replace(QUICK, life_us=20 * SECOND, parent_timeout_us=60 * SECOND),
        trouble_us=14 * SECOND,
    )
    children: list[list[NodeId]] = []

    def prepare(run: Run) -> None:
        def tree() -> TreeSeat:
            node = run.invariants.masters(run.specs[0].id)[0].node
            assert node is not None
            return node.seats[run.specs[0].id].tree

        def look() -> None:
            children.append(sorted(tree().children))

        def forget() -> None:
            tree().subtree.forget(min(tree().children))

        run.world.at(8 * SECOND, look)
        run.world.at(8 * SECOND + 1, forget)
        run.world.at(10 * SECOND, look)

    assert simulate(scenario, prepare=prepare).violation == ""
    before, after = children
    assert len(before) == 3
    assert before == after
