"""Whether the simulator notices that a rule is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import Scenario
from tests.rigs.canaries.rules import Canary, without


@cache
def violation(mesh: Callable[[int], Scenario], seed: int) -> str:
    """With all rules in force."""
    return simulate(mesh(seed)).violation


def check(canary: Canary) -> None:
    """Fails unless a violation is found without the rule in one of its seeds, and none with it in any seed up to that."""
    for seed in canary.seeds:
        with without(canary):
            broken = simulate(canary.mesh(seed)).violation
        assert violation(canary.mesh, seed) == ""
        if broken:
            return
    pytest.fail(f"not seen in {len(canary.seeds)} simulations")
