"""Versions of a job that come back, as `elf job rollback` makes them, in the random meshes of the soak: every window is exact."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import SECOND, Change, Mode, Scenario
from elf.jobmaster.log import job_state, schedule
from elf.srt.messages.messages import Line, Micros, Schedule
from tests.rigs.canaries import meshes
from tests.rigs.canaries.check import check
from tests.rigs.canaries.rules import Canary
from tests.soak.drawn import random_scenario
from tests.soak.faults import with_faults


def from_first_to_last(known: Schedule, version: str, start: Micros, end: Micros) -> tuple[Micros, Micros]:
    low, until = schedule.interval(known, version)
    return max(start, min(low, end)), max(start, min(until, end))


def of_the_last_part(known: Schedule, of: Line, pane: Micros, low: Micros) -> Micros:
    begins, until = max(
        (line.from_us, stop)
        for line, stop in zip(known, [*(each.from_us for each in known[1:]), 1 << 62], strict=True)
        if line.version == of.version
    )
    return max(begins, pane) if until > low and begins < low else low


COMEBACKS = (
    Canary(
        "Changing a job: a window covers the times of its version within it",
        "the times from the version's first beginning to its last end",
        *(job_state, "times_within", from_first_to_last),
        *(meshes.returns, range(2)),
    ),
    Canary(
        "Lane*: what is discarded is read again, also of an earlier part of a version",
        "only of its last part",
        *(schedule, "_reach", of_the_last_part),
        *(meshes.returns, range(2)),
    ),
)
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
    return replace(with_faults(plain, *changes), trouble_us=max(plain.trouble_us, longest_us))


SEEDS = (1, 3, 7, 8, 13, 15, 18)
"""The cheapest of twenty that together have each mode of a change and of the way back, at once and later, one to three jobs, and
masters that die meanwhile. Of the changes that the soak draws, four in ten go back."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_is_exact_where_a_version_comes_back(seed: int) -> None:
    outcome = simulate(with_rollbacks(seed))
    assert outcome.is_exact, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("canary", COMEBACKS, ids=[each.rule for each in COMEBACKS])
def test_without_a_rule_the_simulator_fails(canary: Canary) -> None:
    check(canary)
