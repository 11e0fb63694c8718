"""A host of whose lines none can be read, always or for a while, in simulated meshes whose masters die: no window counts it, none
waits for it, and its lines are counted as what they are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import EPOCH_US
from elf.agent.simulator.world.sources import IDLE_GRACE_US
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.results import Put
from tests.rigs.canaries import meshes
from tests.rigs.canaries.meshes import SECOND

pytestmark = pytest.mark.slow

BROKEN = 3
AT, UNTIL = 6 * SECOND, 8_500_000


def rejecting(scenario: s.Scenario, at: int = 0, until: int = 60 * SECOND, share: float = 1.0) -> s.Scenario:
    fault = s.Reject(at_us=at, until_us=until, host=BROKEN, share=share)
    return replace(scenario, faults=(fault, *scenario.faults))


def finals_of(scenario: s.Scenario) -> tuple[Run, list[tuple[int, Put]]]:
    """Each final or revised window and when it was published, in a run without violations."""
    run, finals = Run(scenario), list[tuple[int, Put]]()
    run.world.put_observers.append(
        lambda put, now_us: finals.append((now_us, put)) if put.status != "open" else None
    )
    run.to_the_end()
    assert finals
    return run, finals


def check_untimed(run: Run) -> None:
    """Each line that the log has of the broken host is counted once beside the windows, at its master and at replicas, whatever
    logs it was handed on from; and none of others."""
    broken = run.hosts[BROKEN].id
    states = [
        seat.succession.replica.log.state
        for host in run.hosts
        if host.node is not None
        for seat in host.node.seats.values()
        if seat.master is not None or seat.is_replica
    ]
    assert len(states) > 1
    for state in states:
        assert isinstance(state, JobState)
        files = [at.offset for slot, at in state.positions.files_of(broken) if slot[1]]
        counted = sum(files) // 100
        assert state.untimed == ({broken: counted} if counted else {})


@pytest.mark.parametrize("seed", range(2))
def test_no_window_counts_it_whoever_serves(seed: int) -> None:
    run, finals = finals_of(rejecting(meshes.takeovers(seed)))
    check_untimed(run)
    assert all(put.agents_reporting < put.agents_expected for _, put in finals)


def test_no_window_waits_for_it() -> None:
    scenario = meshes.mesh(1, [])
    _, plain = finals_of(scenario)
    _, broken = finals_of(rejecting(scenario))
    late = [max(now_us + EPOCH_US - put.end for now_us, put in each) for each in (plain, broken)]
    assert late[1] <= late[0] + IDLE_GRACE_US < late[0] + scenario.parameters.hold_us_max
    assert {(put.agents_reporting, put.agents_expected) for _, put in broken} == {(5, 6)}


@pytest.mark.parametrize("seed", range(2))
def test_windows_without_a_line_that_can_be_read_do_not_count_it_when_it_can_be_read_again(seed: int) -> None:
    """And those of other times do, but for what may have come late."""
    _, finals = finals_of(rejecting(meshes.mesh(seed, []), AT, UNTIL))
    last = {put.start - EPOCH_US: put for _, put in finals}
    missing = {start for start, put in last.items() if put.agents_reporting < put.agents_expected}
    assert missing >= {AT, AT + SECOND}
    assert missing <= set(range(AT - 3 * SECOND, AT + 3 * SECOND, SECOND))


def test_lines_before_any_that_can_be_read_are_counted_beside_the_windows() -> None:
    run, finals = finals_of(
        rejecting(
            replace(meshes.mesh(1, []), traffic=replace(meshes.mesh(1, []).traffic, rotate_us=0)), 0, AT
        )
    )
    source, (spec,) = run.hosts[BROKEN].source, run.specs
    assert source is not None
    untimed = sum(file.untimed(0, len(file.key)) for file in source.files)
    assert untimed > 50
    assert run._state(spec).untimed == {run.hosts[BROKEN].id: untimed}
    assert all(put.lines[2] == 0 for _, put in finals)


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_some_that_cannot_be_read_are_counted_and_concern_no_other(share: float) -> None:
    run, finals = finals_of(rejecting(meshes.mesh(1, []), share=share))
    last = {put.start: put for _, put in finals}
    assert {(put.agents_reporting, put.agents_expected) for put in last.values()} == {(6, 6)}
    source = run.hosts[BROKEN].source
    assert source is not None
    timed = sum(
        int((file.rejected & (file.event_us > 0)).sum()) for file in source.files if file.rejected is not None
    )
    assert sum(put.lines[2] for put in last.values()) == timed > 0


@pytest.mark.parametrize("seed", range(3))
def test_through_takeovers(seed: int) -> None:
    assert simulate(rejecting(meshes.takeovers(seed), AT, UNTIL)).violation == ""
