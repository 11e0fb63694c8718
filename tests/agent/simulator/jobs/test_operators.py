"""Several operators change a job at the same time: a master takes one change after another, each of the version before it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario.scenario import SECOND, Change, Mode, Scenario
from elf.jobmaster.directory import audit as audit_module
from elf.jobmaster.directory import changes as changes_module
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.versions import history
from elf.jobmaster.master.amendments import Amendments
from tests.rigs.canaries import meshes
from tests.rigs.canaries.breaks import always
from tests.rigs.canaries.check import check
from tests.rigs.canaries.rules import Canary
from tests.soak.census import counted
from tests.soak.drawn import random_scenario

AT = 6 * SECOND


def ran(scenario: Scenario) -> tuple[Outcome, Run]:
    runs: list[Run] = []
    outcome = simulate(scenario, prepare=runs.append)
    assert outcome.violation == ""
    return outcome, runs[0]


def held(run: Run, host: int) -> JobItems:
    node = run.hosts[host].node
    assert node is not None
    return JobItems(node.directory, run.specs[0].id)


def spec_of(run: Run) -> JobSpec:
    found = {spec.encode(): spec for host in range(6) if (spec := held(run, host).spec(run.specs[0]))}
    assert len(found) == 1
    return next(iter(found.values()))


def at_once(**fields: bool) -> list[Change]:
    return [Change(at_us=AT, host=host, job=0, mode="split", **fields) for host in (0, 3, 5)]


def test_of_operators_who_expect_one_version_one_changes_it() -> None:
    for seed in range(3):
        _, run = ran(meshes.mesh(seed, [*at_once(expects=True)]))
        assert (run.operators.taken, run.operators.outrun) == (1, 2)
        assert len(spec_of(run).versions) == 2


@pytest.mark.slow
def test_operators_who_expect_nothing_change_the_job_one_after_the_other() -> None:
    for seed in range(3):
        _, run = ran(meshes.mesh(seed, [*at_once()]))
        assert (run.operators.taken, run.operators.outrun) == (3, 0)
        spec = spec_of(run)
        versions = [each.digest for each in spec.versions]
        assert len(versions) == 4
        assert [(each.former, each.version) for each in spec.changes[1:]] == list(pairwise(versions))
        steps = history(spec, held(run, 0).schedule(), held(run, 0).lost())
        assert [step.version for step in steps] == versions
        assert "lost" not in {step.state for step in steps}


@pytest.mark.slow
def test_each_side_of_a_partition_takes_a_change_and_history_says_which_one_is_lost() -> None:
    for seed in range(3):
        _, run = ran(meshes.operators_apart(seed))
        assert run.operators.taken >= 2
        spec = spec_of(run)
        for host in range(6):
            lost = held(run, host).lost()
            assert lost is not None
            assert not lost.revoked
            assert {each.version for each in lost.changes}.isdisjoint(each.version for each in spec.changes)
            steps = history(spec, held(run, host).schedule(), lost)
            assert [step.version for step in steps if step.state == "lost"] == [
                each.version for each in lost.changes
            ]
            assert run.operators.taken == len(lost.changes) + len(spec.changes) - 1


ORDER = (
    Canary(
        "Audit: an agent overwrites a request in its list only when its slots are full",
        "it always takes the first slot",
        *(audit_module, "_free_slot", always(0)),
        *(meshes.operators, range(3)),
    ),
    Canary(
        "Lane: nothing need be read again if no line that was reported is at or past the control line",
        "nothing is ever read again",
        *(Amendments, "is_past_all", always(True)),
        *(meshes.hurried, range(1, 2)),
    ),
    Canary(
        "Order: a change is taken only if it has the master's next number and names the version in force",
        "every change is taken",
        *(Amendments, "is_next", always(True)),
        *(meshes.operators, range(1)),
    ),
    Canary(
        "Order: a change's number contains the term of the master that takes it",
        "it is the number of the last change and one",
        *(changes_module, "number_after", lambda ballot, last: last + 1),
        *(meshes.operators_apart, range(1, 2)),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("canary", ORDER, ids=[each.rule for each in ORDER])
def test_without_a_rule_the_simulator_fails(canary: Canary) -> None:
    check(canary)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_window_is_exact_with_several_operators(seed: int) -> None:
    ran(meshes.operators(seed))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["split", "next"])
def test_a_control_line_past_all_reported_lines_has_nothing_read_again(mode: Mode) -> None:
    """Also where the clock of a host is ahead of the operator's by less than `SHIFT_US_MAX`."""
    for ahead_us in (0, 3 * SECOND):
        changes = [Change(at_us=AT + n * SECOND, host=n, job=0, mode=mode, back=n == 2) for n in range(3)]
        scenario = meshes.mesh(1, [*changes], skews=(0, 0, 0, 0, ahead_us, 0))
        outcome, went = counted(scenario)
        assert outcome.violation == ""
        assert (went["change: logged"], went["change: read again in a lane"]) == (3, 0)


def test_lines_are_read_again_where_a_clock_is_further_ahead() -> None:
    outcome, went = counted(meshes.mesh(1, [*at_once()], skews=(0, 0, 0, 0, 6 * SECOND, 0)))
    assert outcome.violation == ""
    assert went["change: read again in a lane"] > 0


def test_scenarios_are_drawn_with_versions_that_come_back_and_versions_that_are_expected() -> None:
    drawn = [fault for seed in range(60) for fault in random_scenario(seed).faults]
    changes = [fault for fault in drawn if isinstance(fault, Change)]
    assert sum(each.back for each in changes) >= 10
    assert sum(each.expects for each in changes) >= 10
