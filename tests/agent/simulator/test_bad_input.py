"""Input that should not be, as a fleet meets it while a job changes: each has one outcome, and the job beside it does not notice.

The table of docs/jobs.md names the tests of the others.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import MS, SECOND, AnyFault, Change, Revoke, Scenario
from tests.rigs.canaries import meshes

AT, BAD = 8 * SECOND, 1


def ran(scenario: Scenario) -> Run:
    """The scenario with a second job, which keeps its one line and loses no window."""
    runs: list[Run] = []
    two = replace(scenario, jobs=(*scenario.jobs, *scenario.jobs))
    outcome = simulate(two, prepare=runs.append)
    assert outcome.violation == ""
    (run,) = runs
    assert len(run.schedule(run.specs[1])) == 1
    return run


@pytest.mark.slow
@pytest.mark.parametrize("later_us", [0, 20 * MS, 60 * MS, 200 * MS])
def test_an_operators_key_is_revoked_in_the_middle_of_an_update(later_us: int) -> None:
    """The change is refused, or it counts until the grace period is over and the job falls back: never by halves."""
    faults: list[AnyFault] = [
        Change(at_us=AT, host=BAD, job=0, mode="split"),
        Revoke(at_us=AT + later_us, host=4, operator=BAD),
    ]
    plain = meshes.mesh(1, faults, trouble_us=16 * SECOND)
    run = ran(replace(plain, parameters=replace(plain.parameters, revoked_grace_us=2 * SECOND)))
    versions = [stretch.version for stretch in run.schedule(run.specs[0])]
    assert versions[0] == versions[-1] == run.specs[0].versions[0].digest
    assert len(versions) in (1, 3)
