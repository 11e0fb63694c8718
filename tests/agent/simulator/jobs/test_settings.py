"""Jobs whose lateness, retention and sinks change while they run, in the random meshes of the soak: every window is exact, and is
in the sinks of its own settings."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import MS, SECOND, Change, Tune
from tests.rigs.canaries import meshes
from tests.soak.drawn import random_scenario
from tests.soak.tuned import tuned

SEEDS = (1, 3, 4, 9, 14)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_is_exact_in_the_sinks_of_its_settings(seed: int) -> None:
    scenario = tuned(replace(random_scenario(seed), sinks=2), 1)
    outcome = simulate(scenario)
    assert outcome.is_exact, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_settings_are_in_force_whoever_serves(seed: int) -> None:
    outcome = simulate(meshes.tuned(seed))
    assert outcome.is_exact, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sides_of_a_partition_that_change_settings_come_to_one_result(seed: int) -> None:
    apart = meshes.operators_apart(seed)
    faults = [
        Tune(at_us=each.at_us, host=each.host, job=0, lateness_us=SECOND + number * 100 * MS, sink=number % 2)
        if isinstance(each, Change)
        else each
        for number, each in enumerate(apart.faults)
    ]
    assert sum(isinstance(each, Tune) for each in faults) >= 2
    outcome = simulate(replace(apart, faults=tuple(faults), sinks=2))
    assert outcome.is_exact, outcome.violation
