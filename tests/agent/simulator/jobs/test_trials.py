"""Trials in the simulator: exact over the lines of the agents that take part, and gone at every node when their time is over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.node import job_seat
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.scenario.scenario import Job, Scenario
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.network import Weather
from elf.jobmaster.directory.job_spec import JobSpec
from elf.srt.messages.results import Put
from tests.rigs.quick import QUICK
from tests.soak.drawn import random_scenario

pytestmark = pytest.mark.slow

SECOND = 1_000_000
JOB = Job(start_us=2 * SECOND, windows=("2 seconds",), lateness_us=2 * SECOND)
SOME = replace(JOB, agents=("web[02]", "web5*"))
CALM = Scenario(seed=1, hosts=5, jobs=(JOB, SOME), parameters=QUICK, trouble_us=8 * SECOND)


def puts_of(scenario: Scenario) -> tuple[str, list[Put], Run]:
    """The violation, what sinks took of the second job, and the run."""
    puts: list[Put] = []
    runs: list[Run] = []

    def observe(now_us: int, what: str, who: object, about: object) -> None:
        if what == "put" and isinstance(about, Put) and about.job == runs[0].specs[1].id:
            puts.append(about)

    def prepare(run: Run) -> None:
        runs.append(run)
        run.world.observers.append(observe)

    violation = simulate(scenario, prepare=prepare).violation
    return violation, puts, runs[0]


def test_a_job_of_some_agents_is_exact_over_their_lines() -> None:
    violation, puts, run = puts_of(CALM)
    assert violation == ""
    assert {put.agents_expected for put in puts if put.status != "open"} == {2}
    job = run.specs[1].id
    taking = {actor.name for actor in run.hosts if actor.node and actor.node.seats[job].worker is not None}
    assert taking == {"web0", "web2"}


def test_an_agent_that_joins_later_and_matches_takes_part() -> None:
    joins = (s.Join(at_us=5 * SECOND, host=5, backlog_us=0), s.Join(at_us=5 * SECOND, host=6, backlog_us=0))
    violation, puts, _ = puts_of(replace(CALM, faults=joins, trouble_us=12 * SECOND))
    assert violation == ""
    expected = [
        put.agents_expected for put in sorted(puts, key=lambda put: put.start) if put.status != "open"
    ]
    assert (expected[0], expected[-1]) == (2, 3)


@pytest.mark.parametrize("seed", [3, 11, 27, 42])
def test_faults_change_nothing_about_who_takes_part(seed: int) -> None:
    drawn = random_scenario(seed)
    jobs = tuple(replace(job, agents=("web[0-2]",)) for job in drawn.jobs)
    assert simulate(replace(drawn, jobs=jobs)).violation == ""


@pytest.mark.parametrize("coded", [None, Disk])
def test_a_trial_ends_by_itself_at_every_node(coded: type[Disk] | None) -> None:
    """Also where the clock is behind or ahead, and at an agent that was down meanwhile."""
    jobs = (JOB, replace(SOME, until_us=6 * SECOND))
    away = s.Crash(at_us=5 * SECOND, until_us=7 * SECOND, target="host", host=2)
    scenario = replace(CALM, jobs=jobs, faults=(away,), skews=(0, 700_000, -700_000))
    assert simulate(scenario, coded=coded).violation == ""


@pytest.mark.parametrize("seed", [2, 6, 7])
def test_a_trial_follows_another_one_while_a_host_is_down(seed: int) -> None:
    """They have different names: with one name, what that host has of the former one would meet the next one."""
    former = replace(SOME, until_us=6 * SECOND)
    later = replace(SOME, agents=("web[134]",), start_us=6 * SECOND, line_us=6 * SECOND)
    away = s.Crash(at_us=5_500_000, until_us=7 * SECOND, target="host", host=seed % 5)
    jobs, weather = (JOB, former, later), Weather(loss=0.05, straggle=0.2, straggle_us=400_000)
    scenario = replace(CALM, seed=seed, jobs=jobs, faults=(away,), weather=weather, trouble_us=12 * SECOND)
    assert simulate(scenario).violation == ""


@pytest.mark.parametrize("is_broken", [False, True])
def test_another_trial_of_the_name_has_its_own_agents(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """The nodes get the next one's spec without an end of the former one."""
    if is_broken:
        monkeypatch.setattr(job_seat, "is_another_trial", lambda *about: False)

    def prepare(run: Run) -> None:
        spec = run.specs[1]
        assert spec.trial is not None
        trial = replace(spec.trial, agents=("web[134]",), until_us=spec.trial.until_us + 1)
        since_us = spec.since_us + 6 * SECOND
        after: JobSpec = replace(spec, number=2, trial=trial, since_us=since_us, line_us=since_us)

        def change() -> None:
            run.specs[1] = after
            run.oracle.narrow(spec.id, [run.servers[number] for number in (1, 3, 4)])
            for key in [key for key in run.oracle.last if key[1] == spec.id]:
                del run.oracle.last[key]
            run._submit(3, after)

        run.world.at(6 * SECOND, change)

    scenario = replace(CALM, trouble_us=12 * SECOND, rest_us=20 * SECOND)
    assert bool(simulate(scenario, prepare=prepare).violation) == is_broken


def test_new_seeds_are_drawn_with_trials_that_end_and_that_are_aborted() -> None:
    drawn = [random_scenario(seed) for seed in range(7_000_000, 7_000_120)]
    tries = [scenario for scenario in drawn if scenario.jobs[-1].until_us]
    aborted = [
        scenario
        for scenario in tries
        if any(isinstance(fault, s.Stop) and fault.job == len(scenario.jobs) - 1 for fault in scenario.faults)
    ]
    assert len(tries) >= 8
    assert 2 <= len(aborted) < len(tries)
    assert {bool(scenario.jobs[-1].agents) for scenario in tries} == {False, True}
