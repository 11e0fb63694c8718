"""Alerts in random meshes: what fires and is resolved is in the log exactly once, whoever serves, and every sink hears of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import Scenario
from elf.jobmaster.alerts.book import EMPTY
from elf.jobmaster.log.job_state import JobState, StateSnapshot
from tests.rigs.canaries import meshes
from tests.soak.alerted import with_alert


def run_of(scenario: Scenario) -> tuple[str, Run]:
    kept: list[Run] = []
    outcome = simulate(scenario, prepare=kept.append)
    return outcome.violation, kept[0]


MESHES = [meshes.takeovers, meshes.sinks, meshes.rough]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: mesh.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_states_are_in_the_log_exactly_once(mesh: Callable[[int], Scenario], seed: int) -> None:
    violation, run = run_of(with_alert(mesh(seed), for_s=2 * (seed % 2)))
    assert not violation
    heard = [len(each) for each in run.alert_sinks.heard.values()]
    assert len(heard) == 2
    assert min(heard) >= 4, "the alert changed its state"


@pytest.mark.slow
def test_a_state_without_its_alerts_would_repeat_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: a master whose state came from another node judges all windows again."""
    restore = JobState.restore

    def forgetful(self: JobState, snapshot: StateSnapshot) -> None:
        restore(self, replace(snapshot, alerts=EMPTY))

    monkeypatch.setattr(JobState, "restore", forgetful)
    violations = (run_of(with_alert(meshes.in_pieces(seed)))[0] for seed in range(4))
    assert any("the same change" in each for each in violations)
