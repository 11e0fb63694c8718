"""Versions of a job that differ in the value of a parameter alone, as `elf job set` makes them, in the random meshes of the soak:
every window is exact, and all its rows have the value of its version."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from elf.agent.simulator.mesh import SHOWN
from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import SECOND, Change, Mode, Scenario
from elf.jobmaster.log.entries import NO_LANE, ControlEntry
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.master import contents
from elf.jobmaster.plan.parameters import parameters, with_values
from elf.jobmaster.plan.plan import Plan
from tests.soak.drawn import random_scenario
from tests.soak.faults import with_faults

SEEDS = (1, 3, 4, 7, 9, 14)
"""Small meshes: each mode, of one job or two, by one operator or by rivals, beside every kind of death, joins, twins and bugs."""
MODES: tuple[Mode, ...] = ("split", "restate", "next")


def with_changed_values(seed: int) -> Scenario:
    """The soak's scenario of that seed, in which each job is changed several times, always to windows of the same size."""
    plain, rng = random_scenario(seed), Random(seed ^ 0x5EED_005E)
    changes = []
    for job, each in enumerate(plain.jobs):
        at_us = each.start_us + int(rng.uniform(1, 3) * SECOND)
        for _ in range(rng.choice((2, 3, 5))):
            host, rival = rng.randrange(min(plain.hosts, 3)), rng.random() < 0.2
            changes.append(Change(at_us=at_us, host=host, job=job, mode=rng.choice(MODES), rival=rival))
            at_us += int(rng.choice((0.02, 0.3, 1, 3)) * rng.uniform(0.5, 1.5) * SECOND)
    last_us = max(change.at_us for change in changes) + 2 * SECOND
    return replace(
        with_faults(plain, *changes),
        jobs=tuple(replace(each, windows=each.windows[:1]) for each in plain.jobs),
        trouble_us=max(plain.trouble_us, last_us),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_window_is_exact_and_has_the_value_of_its_version(seed: int) -> None:
    outcome = simulate(with_changed_values(seed))
    assert outcome.is_exact, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 16])
def test_no_line_is_read_again_for_another_having(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first version selects no number: all others differ from it in HAVING alone."""
    entries: list[ControlEntry] = []

    def keep_rows(self: JobState, entry: ControlEntry) -> None:
        entries.append(entry)
        kept(self, entry)

    kept = JobState._keep_rows
    monkeypatch.setattr(JobState, "_keep_rows", keep_rows)
    plain = replace(with_changed_values(seed), faults=())
    shown = tuple(
        replace(each, windows=tuple(f"{window}{SHOWN}" for window in each.windows)) for each in plain.jobs
    )
    changes = tuple(fault for fault in with_changed_values(seed).faults if isinstance(fault, Change))
    outcome = simulate(replace(plain, jobs=shown, faults=changes))
    assert outcome.is_exact, outcome.violation
    assert entries
    assert all(entry.lane_us >= NO_LANE for entry in entries)


def test_the_oracle_sees_a_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_another_value(data: bytes) -> Plan:
        plan = plan_of(data)
        return with_values(plan, {"number": "7"}) if parameters(plan) else plan

    monkeypatch.setattr(contents, "plan_of", with_another_value)
    assert "a row has another number than" in simulate(with_changed_values(1)).violation
