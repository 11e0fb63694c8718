"""Alerts in random meshes: what fires and is resolved is in the log exactly once, whoever serves, and every sink hears of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import SECOND, Scenario
from elf.jobmaster.master.alerting import Alerting
from elf.jobmaster.master.window_rule import Coverage, Progress
from tests.rigs.canaries import meshes


def with_alert(scenario: Scenario, for_s: int = 0) -> Scenario:
    """Its job has an alert that often changes its state; no window is final without an agent."""
    job = replace(scenario.jobs[0], alert=25, alert_for_us=for_s * SECOND)
    parameters = replace(scenario.parameters, hold_us_max=60 * SECOND)
    return replace(scenario, jobs=(job,), parameters=parameters, sinks=2)


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
def test_time_without_lines_before_all_agents_have_passed_it_would_resolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A canary: without the rule an agent that is cut off lets alerts resolve, or keeps them from firing."""
    monkeypatch.setattr(Progress, "of_final", lambda self, start, end: Coverage(1, 1))
    monkeypatch.setattr(Alerting, "_end", lambda self, key: key[1] + self._state.shape(key[0]).size_us)
    assert any(run_of(with_alert(meshes.takeovers(seed)))[0] for seed in range(3))
