"""A mesh of real nodes that read real files: every window exact, judged by the simulator's oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elf.agent.simulator import mesh as meshes
from elf.agent.simulator import run as runs
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.sources import Traffic
from tests.rigs.mesh_log_world import SECOND, WrittenSource, follow_lives
from tests.rigs.quick import QUICK
from tests.soak.drawn import random_scenario

TRAFFIC = Traffic(lines_per_s=40.0, rotate_us=6 * SECOND, keys=8)


@pytest.fixture(autouse=True)
def _written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[WrittenSource] = []
    monkeypatch.setattr(WrittenSource, "folder", tmp_path, raising=False)
    monkeypatch.setattr(WrittenSource, "made", made, raising=False)
    monkeypatch.setattr(meshes, "VirtualSource", WrittenSource)
    yield
    for source in made:
        source.close()


def exact(scenario: s.Scenario) -> runs.Outcome:
    outcome = runs.simulate(scenario, prepare=follow_lives)
    assert outcome.is_exact, outcome.violation
    assert outcome.finals > 0
    return outcome


def test_a_quiet_mesh_is_exact() -> None:
    job = s.Job(start_us=2 * SECOND, windows=("2 seconds",), lateness_us=4 * SECOND)
    exact(s.Scenario(seed=1, hosts=3, jobs=(job,), parameters=QUICK, traffic=TRAFFIC))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_faults_are_exact(seed: int) -> None:
    scenario = random_scenario(seed)
    faults = tuple(fault for fault in scenario.faults if not isinstance(fault, s.Lose))
    exact(msgspec.structs.replace(scenario, traffic=TRAFFIC, faults=faults))
