"""The simulator can see what it is there to see: without any one of the rules, it fails within the stated seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario import Scenario
from tests.canary_rules import CANARIES, Canary, without


@cache
def violation(mesh: Callable[[int], Scenario], seed: int) -> str:
    """With all rules in force."""
    return simulate(mesh(seed)).violation


@pytest.mark.parametrize("canary", CANARIES, ids=[f"{each.rule} | {each.broken}" for each in CANARIES])
def test_without_a_rule_the_simulator_fails(canary: Canary) -> None:
    for seed in canary.seeds:
        with without(canary):
            broken = simulate(canary.mesh(seed)).violation
        assert violation(canary.mesh, seed) == ""
        if broken:
            return
    pytest.fail(f"not seen in {len(canary.seeds)} simulations")
