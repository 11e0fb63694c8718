"""Versions of a job that come back, as `elf job rollback` makes them, in the random meshes of the soak: every window is exact."""

from __future__ import annotations

from random import Random

import pytest

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import SECOND, Change, Mode, Scenario
from tests.soak.drawn import random_scenario

MODES: tuple[Mode, ...] = ("split", "restate", "next")


def with_rollbacks(seed: int) -> Scenario:
    """The soak's scenario of that seed with a change of each job, which is taken back, maybe more than once."""
    plain, rng = random_scenario(seed), Random(seed ^ 0x5EED_00BA)
    changes = []
    for job, each in enumerate(plain.jobs):
        at_us = each.start_us + int(rng.uniform(2, 5) * SECOND)
        for number in range(rng.choice((2, 3, 4))):
            host, mode = rng.randrange(min(plain.hosts, 3)), rng.choice(MODES)
            changes.append(Change(at_us=at_us, host=host, job=job, mode=mode, back=number > 0))
            at_us += int(rng.choice((0.02, 0.3, 1, 3)) * rng.uniform(0.5, 1.5) * SECOND)
    longest_us = max(change.at_us for change in changes) + 2 * SECOND
    return Scenario(
        **{field: getattr(plain, field) for field in Scenario.__struct_fields__}
        | {
            "faults": tuple(sorted((*plain.faults, *changes), key=lambda fault: fault.at_us)),
            "trouble_us": max(plain.trouble_us, longest_us),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_window_is_exact_where_a_version_comes_back(seed: int) -> None:
    outcome = simulate(with_rollbacks(seed))
    assert outcome.is_exact, outcome.violation
