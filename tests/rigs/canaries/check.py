"""Whether the simulator notices that a rule is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from elf.agent.simulator.checks.oracle import Violation
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import Scenario
from elf.srt.messages.parameters import SECOND
from tests.rigs.canaries.rules import Canary, without

REST_US = 12 * SECOND
"""How long a mesh may take to be exact after its faults. With all rules in force few take nine seconds, some whose agents read
anew up to fifteen; without one, many never are. A seed that takes longer with all rules in force shows nothing: take another."""
NONE_YET = "no violation yet"
_clean: dict[tuple[Callable[[int], Scenario], int], int] = {}
"""Until when a mesh with a seed has shown no violation with all rules in force."""


def check(canary: Canary) -> None:
    """Fails unless a violation is found without the rule in one of its seeds, and none with it in any seed up to that, nor in
    that one until then: what such a mesh does later is the business of `test_seeds.py`."""
    for seed in canary.seeds:
        with without(canary):
            broken = simulate(scenario_of(canary.mesh, seed))
        assert violation(canary.mesh, seed, broken.at_us) in ("", NONE_YET)
        if broken.violation:
            return
    pytest.fail(f"not seen in {len(canary.seeds)} simulations")


def scenario_of(mesh: Callable[[int], Scenario], seed: int) -> Scenario:
    scenario = mesh(seed)
    return replace(scenario, rest_us=min(scenario.rest_us, REST_US))


def violation(mesh: Callable[[int], Scenario], seed: int, until_us: int) -> str:
    """The violation with all rules in force, or `NONE_YET` if there is none up to and including that time."""
    if until_us <= _clean.get((mesh, seed), -1):
        return NONE_YET
    found = simulate(scenario_of(mesh, seed), prepare=partial(_end_after, until_us)).violation
    if found in ("", NONE_YET):
        _clean[mesh, seed] = until_us
    return found


def _end_after(until_us: int, run: Run) -> None:
    def end() -> None:
        raise Violation(NONE_YET)

    run.world.at(until_us + 1, end)
