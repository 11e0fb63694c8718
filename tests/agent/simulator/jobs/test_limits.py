"""Jobs with a limit on groups in the simulator: which groups stay depends on their hashes alone, and all sums are exact."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.scenario.scenario import Job, Scenario
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.sources import Traffic
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.limits import Limits
from elf.srt.messages.results import Put
from tests.rigs.canaries import meshes
from tests.rigs.quick import QUICK
from tests.soak.drawn import random_scenario

pytestmark = pytest.mark.slow

SECOND = 1_000_000
JOB = Job(start_us=2 * SECOND, windows=("2 seconds",), lateness_us=2 * SECOND, sample=6)
CALM = Scenario(
    seed=1,
    hosts=5,
    jobs=(JOB, replace(JOB, windows=("4 seconds/1 second",))),
    parameters=QUICK,
    traffic=Traffic(lines_per_s=40.0, keys=60),
    trouble_us=8 * SECOND,
)


@pytest.mark.parametrize("coded", [None, Disk])
def test_the_rest_of_the_groups_is_one_row(coded: type[Disk] | None) -> None:
    others: list[int] = []

    def prepare(run: Run) -> None:
        def observe(now_us: int, what: str, who: object, about: object) -> None:
            if what == "put" and isinstance(about, Put) and about.status != "open":
                others.append(about.others)

        run.world.observers.append(observe)

    assert simulate(CALM, prepare=prepare, coded=coded).violation == ""
    assert others.count(1) > len(others) / 2


@pytest.mark.parametrize("seed", range(4))
def test_faults_and_changes_leave_it_exact(seed: int) -> None:
    plain = meshes.limited(seed)
    assert simulate(plain).violation == ""


@pytest.mark.parametrize("seed", [5, 19])
def test_any_trouble(seed: int) -> None:
    drawn = random_scenario(seed)
    jobs = tuple(replace(job, sample=2) for job in drawn.jobs)
    assert simulate(replace(drawn, jobs=jobs)).violation == ""


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_trial_that_passes_a_limit_ends_everywhere(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_broken: bool
) -> None:
    """Rule Trials*: with the present version that runs beside it, at all agents, and nothing else notices."""
    if is_broken:
        monkeypatch.setattr(JobItems, "over", lambda *about: None)
    plain = replace(JOB, sample=0)
    trial = replace(plain, agents=("web[0-2]",), until_us=9 * SECOND)
    left: list[str] = []

    def prepare(run: Run) -> None:
        run.specs[1] = replace(run.specs[1], limits=Limits(groups=3))

        def look() -> None:
            nodes = [actor.node for actor in run.hosts if actor.node is not None]
            for spec in run.specs[1:]:
                seats = {node.name: node.seats.get(spec.id) for node in nodes}
                left.extend(name for name, seat in seats.items() if seat is None or not seat.is_stopped)

        run.world.at(6 * SECOND, look)

    away = s.Crash(at_us=3 * SECOND, until_us=5 * SECOND, target="host", host=3)
    scenario = replace(CALM, seed=seed, jobs=(plain, trial, trial), faults=(away,), trouble_us=10 * SECOND)
    assert simulate(scenario, prepare=prepare).violation == ""
    assert bool(left) == is_broken
