"""Operators stop a job: it ends when all its windows up to the stop are final in every sink, or at once."""

from __future__ import annotations

import msgspec
import pytest

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import (
    MS,
    SECOND,
    Change,
    Scenario,
    SinkCrash,
    Start,
    Stop,
)
from elf.agent.simulator.world.places import EPOCH_US
from elf.jobmaster.directory.ending import stopped
from elf.jobmaster.directory.job_spec import END, JobSpec, decode_job
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.master.finish import Finish
from tests.rigs.canaries import meshes
from tests.rigs.canaries.breaks import always
from tests.rigs.canaries.rules import Canary, without
from tests.soak.drawn import random_scenario

AT = 6 * SECOND


def ran(scenario: Scenario) -> Run:
    runs: list[Run] = []
    assert simulate(scenario, prepare=runs.append).violation == ""
    return runs[0]


def held(run: Run) -> JobSpec:
    """The job as all nodes know it."""
    nodes = [host.node for host in run.hosts]
    items = {node.directory.get("job", run.specs[0].id) for node in nodes if node is not None}
    (item,) = items
    assert item is not None
    return decode_job(item)


def test_a_job_ends_for_all_when_its_windows_are_final() -> None:
    run = ran(meshes.mesh(1, [Stop(at_us=AT + 400 * MS, host=3, job=0)]))
    spec, last = held(run), run.operators.finishing[run.specs[0].id]
    assert spec == stopped(last, last.number)
    assert [each.version for each in spec.changes] == [spec.versions[-1].digest, END]
    assert END not in {each.digest for each in spec.versions}
    log, _ = run._ends[spec.id]
    assert log is not None
    line_us = log.schedule[-1].from_us
    windows = [put for put in run.oracle.last.values() if put.job == spec.id]
    assert {put.status for put in windows} == {"final"}
    assert max(put.covers[1] for put in windows) == line_us < AFTER_ALL
    assert line_us % SECOND, "the last window is cut"
    assert END not in {put.version for put in windows}


def test_nothing_changes_a_job_after_its_end() -> None:
    faults = [Stop(at_us=AT + host * 10 * MS, host=host, job=0) for host in (0, 3)]
    changes = [Change(at_us=AT + n * 300 * MS, host=n, job=0, mode="split") for n in range(1, 4)]
    run = ran(meshes.mesh(2, [*faults, *changes]))
    assert (run.operators.taken, len(held(run).changes)) == (1, 2)


def test_it_waits_for_a_sink_and_not_for_ever() -> None:
    away = SinkCrash(at_us=AT - SECOND, until_us=10 * SECOND, sink=0)
    stop = Stop(at_us=AT, host=3, job=0)
    run = ran(meshes.mesh(1, [stop, away]))
    assert run._ends[run.specs[0].id][1] >= 10 * SECOND
    (job,) = meshes.mesh(1, []).jobs
    short = msgspec.structs.replace(job, keep_us=SECOND)
    run = ran(meshes.mesh(1, [stop, msgspec.structs.replace(away, until_us=0)], jobs=(short,)))
    assert run._ends[run.specs[0].id][1] < 10 * SECOND


def test_a_stop_at_once_ends_a_job_that_is_finishing() -> None:
    stops = [Stop(at_us=AT, host=3, job=0), Stop(at_us=AT + SECOND, host=1, job=0, at_once=True)]
    run = ran(meshes.mesh(1, [*stops]))
    spec, last = held(run), run.operators.finishing[run.specs[0].id]
    assert spec.stopped
    assert spec.number > stopped(last, last.number).number
    assert run._ends[spec.id][1] < AT + 2 * SECOND


@pytest.mark.parametrize("at_once", [True, False])
def test_a_job_that_has_ended_starts_anew(at_once: bool) -> None:
    """With another query, from its start on; what is asked for before it has ended waits."""
    stop = Stop(at_us=AT + 400 * MS, host=3, job=0, at_once=at_once)
    start = Start(at_us=AT + SECOND, until_us=AT + 9 * SECOND, host=1, job=0)
    change = Change(at_us=AT + 5 * SECOND, host=2, job=0, mode="split")
    run = ran(meshes.mesh(1, [stop, start, change]))
    spec = held(run)
    first, second = (each.version for each in spec.changes)
    assert [spec.changes[0].mode, spec.stopped, len(spec.changes)] == ["start", False, 2]
    since_us = spec.since_us - EPOCH_US
    assert (since_us == start.at_us) if at_once else (start.at_us < since_us < start.until_us)
    puts = [put for put in run.oracle.last.values() if put.job == spec.id]
    former = [put for put in puts if put.version not in (first, second)]
    assert max(put.covers[1] for put in former if put.status == "final") <= EPOCH_US + stop.at_us + SECOND
    begin_us = spec.since_us - spec.since_us % SECOND  # its first window is whole
    assert min(put.covers[0] for put in puts if put.version == first) == begin_us
    assert {put.status for put in puts if put.version == second} == {"final"}


STOP = Canary(
    "Stop: a job ends only when all windows up to its end are final in every sink",
    "it ends when the log has its end",
    *(Finish, "is_complete", always(True)),
    *(meshes.stopping, range(3)),
)


def test_without_the_rule_the_simulator_fails() -> None:
    seed = STOP.seeds[0]
    assert simulate(STOP.mesh(seed)).violation == ""
    with without(STOP):
        assert simulate(STOP.mesh(seed)).violation != ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_last_windows_are_exact_under_faults(seed: int) -> None:
    ran(meshes.stopping(seed))


def test_scenarios_are_drawn_with_stops_of_both_kinds() -> None:
    drawn = [fault for seed in range(120) for fault in random_scenario(seed).faults]
    kinds = [fault.at_once for fault in drawn if isinstance(fault, Stop)]
    assert kinds.count(False) >= 10
    assert kinds.count(True) >= 2


def test_new_seeds_are_drawn_with_starts_after_stops() -> None:
    drawn = [random_scenario(seed) for seed in range(7_000_000, 7_000_120)]
    starts = [[fault for fault in scenario.faults if isinstance(fault, Start)] for scenario in drawn]
    assert len([each for each in starts if each]) >= 8
    assert max(map(len, starts)) >= 2
