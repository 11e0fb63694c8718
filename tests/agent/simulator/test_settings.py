"""Jobs whose lateness, retention and sinks change while they run, in the random meshes of the soak: every window is exact, and is
in the sinks of its own settings."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import simulate
from tests.rigs.canaries import meshes
from tests.soak.drawn import random_scenario
from tests.soak.tuned import tuned

SEEDS = (1, 3, 4, 7, 9, 14)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_is_exact_in_the_sinks_of_its_settings(seed: int) -> None:
    scenario = tuned(replace(random_scenario(seed), sinks=2), 1)
    outcome = simulate(scenario)
    assert outcome.is_exact, outcome.violation


@pytest.mark.parametrize("seed", range(3))
def test_settings_are_in_force_whoever_serves(seed: int) -> None:
    outcome = simulate(meshes.tuned(seed))
    assert outcome.is_exact, outcome.violation
