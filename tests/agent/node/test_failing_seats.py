"""One job's failure is that job's alone, in simulated meshes: whatever raises, once or always, at one agent or at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from elf.agent.node.seats import SeatedNode
from elf.agent.node.vacancy import Vacancy
from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.jobmaster.directory.job_spec import JobSpec, Version
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.master.master import Master
from elf.srt.codec import rosters, wire
from elf.srt.messages.effects import Send
from elf.srt.messages.events import Cut
from elf.srt.messages.messages import Away, Bundle, Refuse
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import Put
from tests.rigs.journal_disk import JournalDisk
from tests.rigs.quick import QUICK

SECOND = 1_000_000
FAIL_POINTS: tuple[tuple[s.FailPoint, str], ...] = (
    ("message", "Bundle"),
    ("message", "Append"),
    ("message", "Held"),
    ("message", "Commit"),
    ("message", "Adopt"),
    ("message", "PutReply"),
    ("message", ""),
    ("tick", "Master"),
    ("tick", "TreeSeat"),
    ("tick", "DeltaWorker"),
    ("entry", "Final"),
    ("entry", "Accept"),
    ("cut", ""),
    ("settle", ""),
    ("restore", ""),
)


def mesh(
    *faults: s.AnyFault, parameters: Parameters = QUICK, trouble_us: int = 10 * SECOND, hosts: int = 5
) -> s.Scenario:
    """Two jobs, of which the first one may fail."""
    job = s.Job(start_us=2 * SECOND, windows=("1 second",) * 8, lateness_us=2 * SECOND)
    return s.Scenario(
        seed=7,
        hosts=hosts,
        jobs=(job, job),
        faults=faults,
        parameters=parameters,
        trouble_us=trouble_us,
        after_us=SECOND,
        rest_us=30 * SECOND,
    )


def bug(
    on: s.FailPoint, kind: str = "", host: int = -1, *, once: bool = False, until_us: int = 9 * SECOND
) -> s.Bug:
    return s.Bug(at_us=5 * SECOND, until_us=until_us, job=0, on=on, kind=kind, host=host, once=once)


def watched(scenario: s.Scenario, coded: type[Disk] | None = None) -> tuple[Outcome, Run]:
    runs: list[Run] = []
    return simulate(scenario, prepare=runs.append, coded=coded), runs[0]


@pytest.mark.long
@pytest.mark.slow
def test_the_job_is_exact_after_it_and_no_other_notices() -> None:
    """No link is reset, the other job keeps its master: `Bugs.check_spared`. What raises once does so beside four others."""
    end_us = 7 * SECOND
    runs: list[tuple[s.Bug, ...]] = [
        (bug(on, kind, until_us=end_us), *before(on)) for on, kind in FAIL_POINTS
    ]
    for third in range(3):
        points = FAIL_POINTS[third::3]
        runs.append(tuple(each for on, kind in points for each in (bug(on, kind, once=True), *before(on))))
    raised = 0
    for bugs in runs:
        outcome, run = watched(mesh(*bugs, trouble_us=max(each.until_us for each in bugs) + SECOND))
        assert outcome.violation == "", bugs
        raised += run.bugs.raised
    assert raised > 100


def before(on: s.FailPoint) -> tuple[s.Bug, ...]:
    """A seat is restored once it has failed otherwise."""
    return (bug("cut", once=True),) if on == "restore" else ()


@pytest.mark.slow
@pytest.mark.parametrize("on", ["message", "tick", "entry"])
def test_over_bytes_too(on: s.FailPoint) -> None:
    """Records are encoded within the guard, and a new seat starts with those that are read back."""
    outcome, run = watched(mesh(bug(on)), coded=JournalDisk)
    assert outcome.violation == ""
    assert run.bugs.raised > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Bundle", "Append"])
@pytest.mark.parametrize("once", [True, False])
def test_what_cannot_be_encoded_is_that_jobs_failure_alone(kind: str, once: bool) -> None:
    """No link is reset, though its rosters, which here encode even a single file, were ahead: `Bugs.check_spared`."""
    with patch.object(rosters, "LISTED_MAX", 0):
        outcome, run = watched(mesh(bug("encode", kind, once=once)), coded=JournalDisk)
    assert outcome.violation == ""
    assert run.bugs.raised > 0


def published(scenario: s.Scenario) -> dict[tuple[str, int], int]:
    """When each window of the second job first became final."""
    found: dict[tuple[str, int], int] = {}
    runs: list[Run] = []

    def prepare(run: Run) -> None:
        runs.append(run)
        run.world.put_observers.append(take)

    def take(put: Put, now_us: int) -> None:
        if put.job == runs[0].specs[1].id and put.status == "final":
            found.setdefault((put.version, put.start), now_us)

    assert simulate(scenario, prepare=prepare).violation == ""
    return found


@pytest.mark.slow
def test_windows_of_other_jobs_are_not_later() -> None:
    plain, beside = published(mesh()), published(mesh(bug("tick", "Master"), bug("message", "Bundle")))
    assert plain.keys() == beside.keys()
    late = [beside[window] - plain[window] for window in plain]
    assert max(late) <= QUICK.append_us


def test_an_unplanted_exception_is_a_finding() -> None:
    """The guard hides no bug from simulations."""
    with patch.object(Master, "tick", side_effect=KeyError("a real one")):
        assert simulate(mesh()).violation.startswith("a core failed: KeyError")


def after(scenario: s.Scenario, until_us: int, *, coded: type[Disk] | None = None) -> Run:
    """A run, stopped at that time."""
    run = Run(scenario, coded=coded)
    for host in run.hosts[: scenario.hosts]:
        run.world.at(0, lambda host=host: run.start(host))  # type: ignore[misc]
    for number, job in enumerate(scenario.jobs):
        run.world.at(job.start_us, lambda number=number: run._submit(0, run.specs[number]))  # type: ignore[misc]
    for number, fault in enumerate(scenario.faults):
        run.faults.plan(number, fault)
    run.world.run_until(until_us)
    return run


def vacant(run: Run) -> list[str]:
    return [
        actor.name
        for actor in run.hosts
        if actor.node is not None and any(vacancy.is_vacant for vacancy in actor.node.vacancies.values())
    ]


@pytest.mark.slow
def test_the_place_stays_and_attempts_become_rare() -> None:
    """No other node takes over; waits of 0.2, 0.4, 0.8, 1.6, 3, 3, … seconds."""
    trouble = bug("tick", "Master", until_us=60 * SECOND)
    run = after(mesh(trouble, trouble_us=60 * SECOND), 40 * SECOND)
    job = run.specs[0].id
    served = {a.name for a in run.hosts if a.node and job in a.node.seats and a.node.seats[job].takeovers}
    assert len(served | set(vacant(run))) == 1
    vacancy = max(
        (a.node.vacancies[job] for a in run.hosts if a.node and job in a.node.vacancies),
        key=lambda v: v.failures,
    )
    assert 10 <= vacancy.failures <= 16
    assert vacancy.reason == "PlantedError: tick Master"


def test_a_job_whose_log_cannot_be_applied_can_be_stopped_and_started_again() -> None:
    run = after(mesh(bug("entry", "Final", until_us=100 * SECOND), trouble_us=30 * SECOND), 12 * SECOND)
    first, job = run.specs[0], run.specs[0].id
    assert vacant(run)
    run._submit(0, msgspec.structs.replace(first, number=2, stopped=True))
    run.world.run_until(16 * SECOND)
    assert not vacant(run)
    for actor in run.hosts:
        assert actor.node is not None
        assert actor.node.seats[job].is_stopped
        assert [type(record).__name__ for record in actor.disk.records[("log", job)]] == ["Promise"]
    run.bugs.clear()
    run._submit(0, msgspec.structs.replace(first, number=3, since_us=EPOCH_US + run.world.now_us))
    run.world.run_until(24 * SECOND)
    state = run._state(first)
    assert len(state.finals) > 2


def test_a_job_that_failed_after_its_end_can_be_started_again_at_once() -> None:
    """At its master, as at a late `Leave`. An ended seat takes the place, and no other news of the job comes before the start."""
    run = after(mesh(trouble_us=60 * SECOND), 5 * SECOND)
    first, job = run.specs[0], run.specs[0].id
    host = next(a for a in run.hosts if a.node is not None and a.node.seats[job].master is not None)
    run._submit(0, msgspec.structs.replace(first, number=2, stopped=True))
    run.world.run_until(6 * SECOND)
    node, out = host.node, list[Any]()
    assert node is not None
    assert node.seats[job].is_stopped
    node.seat_failed = lambda error, is_news: None
    now = run.world.clock(host)
    node._failed(node.seats[job].spec, ValueError("late"), now, out)
    run.world._perform(host, node._end(now, out))
    run.world.run_until(7 * SECOND)
    assert node.seats[job].is_stopped
    run._submit(0, msgspec.structs.replace(first, number=3, since_us=EPOCH_US + run.world.now_us))
    run.world.run_until(15 * SECOND)
    assert not node.seats[job].is_stopped
    assert len(run._state(first).finals) > 2


def test_a_node_that_learns_late_of_a_start_gets_what_its_ended_seat_dropped() -> None:
    """A replica that the new master waits for: until it has answered there is no master. Here other messages on that link help;
    what failed, a link on which nobody sends, is the kept scenario dropped-by-an-ended-seat."""
    both = mesh(trouble_us=60 * SECOND)
    run = after(msgspec.structs.replace(both, jobs=both.jobs[:1]), 5 * SECOND)
    first, job = run.specs[0], run.specs[0].id
    actor, replica = next(
        (a, a.node)
        for a in run.hosts
        if a.node is not None
        and a.node.seats[job].succession.replica.log.index > 0
        and a.node.seats[job].master is None
    )
    run._submit(0, msgspec.structs.replace(first, number=2, stopped=True))
    run.world.run_until(6 * SECOND)
    assert replica.seats[job].is_stopped
    with patch.object(replica, "_open_seats"):
        run._submit(0, msgspec.structs.replace(first, number=3, since_us=EPOCH_US + run.world.now_us))
        run.world.run_until(8 * SECOND)
    assert replica._dropped[job]
    now, out = run.world.clock(actor), list[Any]()
    replica._open_seats(now, out, {})
    run.world._perform(actor, replica._end(now, out))
    run.world.run_until(20 * SECOND)
    assert not replica.seats[job].is_stopped
    assert len(run._state(first).finals) > 2


def test_what_came_before_its_job_was_known_is_sent_again_if_an_ended_seat_drops_it() -> None:
    """A node that joins gets a master's message first, then the job as it was before it was started again."""
    run = after(mesh(trouble_us=60 * SECOND), SECOND)
    first, job = run.specs[0], run.specs[0].id
    actor, peer = run.hosts[1], run.hosts[2].id
    node, neighbour = actor.node, run.hosts[2].node
    assert node is not None
    assert neighbour is not None
    assert job not in node.seats
    node._from_link(peer, Refuse(job, 1), run.world.clock(actor), [])
    run.world.start_job(actor, msgspec.structs.replace(first, number=2, stopped=True))
    assert node.seats[job].is_stopped
    assert node._dropped == {job: {peer}}
    heard: list[tuple[Any, Any]] = []
    with patch.object(
        neighbour, "_heard_away", lambda source, message, now, out: heard.append((source, message))
    ):
        run.world.start_job(
            actor, msgspec.structs.replace(first, number=3, since_us=EPOCH_US + run.world.now_us)
        )
        run.world.run_until(2 * SECOND)
    assert not node.seats[job].is_stopped
    assert heard == [(node.id, Away(job, False))]


def strike(error: Callable[[], Exception]) -> tuple[Any, Any, Actor]:
    """A node whose seat raises at each Bundle of one neighbour."""
    run = after(mesh(), 5 * SECOND)
    job = run.specs[0].id
    host = next(a for a in run.hosts if a.node is not None and a.node.seats[job].tree.children)
    assert host.node is not None
    child = next(iter(host.node.seats[job].tree.children))
    make = host.node.make_seat
    host.node.seat_failed = lambda error, is_news: None

    def doomed(seat: Any) -> Any:
        plain = seat.step

        def step(source: Any, message: Any, now: int) -> Any:
            if type(message) is Bundle and source == child:
                raise error()
            return plain(source, message, now)

        seat.step = step
        return seat

    host.node.make_seat = lambda *about, **more: doomed(make(*about, **more))
    doomed(host.node.seats[job])
    run.world.run_until(8 * SECOND)
    return run, host.node.vacancies[job], child  # type: ignore[return-value]


def test_a_job_that_was_changed_after_a_failure_does_not_count_as_failing() -> None:
    spec = JobSpec("hits", 1, "access", (Version("v", b"", ""),))
    vacancy = Vacancy(spec, SECOND, 8 * SECOND)
    node: Any = SimpleNamespace(vacancies={spec.id: vacancy})
    vacancy.failed(ValueError("once"), 0, None)
    assert [each.reason for each in SeatedNode.failing(node, 0)] == ["ValueError: once"]
    vacancy.hurry(spec, 0)
    assert SeatedNode.failing(node, 0) == ()


def test_a_neighbour_that_makes_a_job_fail_three_times_is_refused_until_the_job_has_recovered() -> None:
    _, vacancy, child = strike(lambda: ValueError("no"))
    assert vacancy.failures == 3
    assert vacancy.refused == {child}
    assert not vacancy.is_vacant


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "memory is short"),
        (OSError(28, "No space left on device"), "the disk: No space left on device"),
    ],
)
def test_a_lack_of_memory_or_disk_counts_against_no_neighbour(error: Exception, reason: str) -> None:
    _, vacancy, _ = strike(lambda: error)
    assert vacancy.failures > 3
    assert vacancy.refused == set()
    assert vacancy.reason == reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Bundle: 70000000 bytes"), "ValueError: Bundle: 70000000 bytes"),
        (MemoryError(), "memory is short"),
        (OSError(28, "No space left on device"), "the disk: No space left on device"),
    ],
)
def test_an_exception_of_encoding_is_reported_as_what_it_is(error: Exception, reason: str) -> None:
    """The senders of the merged bundles are not to blame."""
    run = after(mesh(), 5 * SECOND, coded=JournalDisk)
    failed: list[Exception] = []
    nodes = [actor.node for actor in run.hosts if actor.node is not None]
    for node in nodes:
        node.seat_failed = lambda error, is_news: failed.append(error)
    with patch.object(wire, "pack_parts", side_effect=error):
        run.world.run_until(5_500_000)
    reports = [each for node in nodes for each in node.failing(run.world.now_us + EPOCH_US)]
    assert {each.reason for each in reports} == {reason}
    assert sum(each.failures for each in reports) == len(failed) > 0
    run.world.run_until(9 * SECOND)
    assert not vacant(run)
    assert all(not vacancy.refused for node in nodes for vacancy in node.vacancies.values())
    assert all(not link.resets for node in nodes for link in node.links.values())


def test_a_deadline_that_raises_fails_its_seat() -> None:
    run = after(mesh(), 5 * SECOND)
    job, actor = run.specs[0].id, run.hosts[1]
    assert actor.node is not None
    failed: list[str] = []
    actor.node.seat_failed = lambda error, is_news: failed.append(str(error))
    core = actor.node.seats[job].succession
    own = type(core)

    class Broken(own):  # type: ignore[valid-type, misc]
        __slots__ = ()

        @property
        def deadline(self) -> int | None:
            raise ValueError("no deadline")

    core.__class__ = Broken
    run.world.run_until(5_100_000)
    assert failed == ["no deadline"]
    actor.node.check()
    run.world.run_until(8 * SECOND)
    assert actor.node.seats[job].succession.__class__ is own


def test_a_dropped_seat_gives_its_memory_back() -> None:
    run = after(mesh(), 8 * SECOND)
    budget = run.world._budget
    before = budget.used
    held = sum(
        isinstance(seat.succession.replica.log.state, JobState)
        for a in run.hosts
        if a.node
        for seat in a.node.seats.values()
    )
    assert held >= 4
    assert before > 0
    for actor in run.hosts:
        assert actor.node is not None
        actor.node.seat_failed = lambda error, is_news: None
        for seat in list(actor.node.seats.values()):
            actor.node._failed(seat.spec, ValueError("now"), run.world.clock(actor), [])
    assert budget.used == 0


def test_a_late_cut_for_a_dropped_seat_is_ignored() -> None:
    """Its lines are read again for the new seat, from the log's place."""
    run = after(mesh(), 5 * SECOND)
    job, actor = run.specs[0].id, run.hosts[1]
    node = actor.node
    assert node is not None
    late: list[Cut] = []

    def hold(cut: Cut, now: int) -> list[Any]:
        late.append(cut)
        return []

    with patch.object(node, "cut", hold):
        run.world.run_until(5_500_000)
        assert any(cut.job == job and cut.parts for cut in late)
        now = run.world.clock(actor)
        node.seat_failed = lambda error, is_news: None
        run.world._perform(actor, node.read_failed(job, ValueError("now"), now))
    run.world.run_until(7 * SECOND)
    worker = node.seats[job].worker
    assert worker is not None
    before = len(worker._kept), worker.kept_bytes
    for cut in [each for each in late if each.job == job]:
        assert [each for each in node.cut(cut, run.world.clock(actor)) if isinstance(each, Send)] == []
    assert (len(worker._kept), worker.kept_bytes) == before
    run.world.run_until(10 * SECOND)  # the oracle sees every window
    assert node.seats[job].worker is worker
