"""Whole meshes under mixed faults: every window exact, or honest about what is missing, and exact after healing.

A seed that fails is printed with its violation; `python -m tests.soak --keep SEED FOLDER` shrinks it, and leaves
its scenario and transcript in the folder. Whether the seeds still go all ways of the protocol is held against what they counted
on them: by the batch that ends last, wherever all of them run.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from elf.agent.simulator.mesh import EVERY
from elf.agent.simulator.scenario.scenario import Scenario, Stop, decode
from tests.rigs import paths
from tests.soak.census import RARE, WAYS, counted
from tests.soak.drawn import random_scenario

pytestmark = pytest.mark.slow

SEEDS, BATCH = range(100, 200), 10
LEAST, LEAST_RARE = 4, 1
"""Seeds that go each way, half of those that do today, or fewer: another protocol is another draw. `make soak` draws new ones."""
WATCHED = 5
"""More seeds, in which every core of a node is checked after each of its events: seven times as slow."""
KEPT = sorted((paths.GOLDEN / "simulator").glob("*.json"))
"""Scenarios that failed once, whatever the seeds mean today."""


@pytest.fixture(scope="session")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of tests share: in how many seeds of each batch each way was gone."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "census"
    folder.mkdir(exist_ok=True)
    return folder


def check(scenario: Scenario, every: int = EVERY) -> Counter[str]:
    """Returns how often each way was gone."""
    outcome, counts = counted(scenario, every)
    assert outcome.is_exact, f"seed {scenario.seed}: {outcome.violation}"
    is_cut_short = any(isinstance(fault, Stop) for fault in scenario.faults)
    assert outcome.finals or is_cut_short, f"seed {scenario.seed}: no window was final"
    return counts


def check_ways(batches: list[Path]) -> None:
    seeds = Counter[str]()
    for batch in batches:
        seeds.update(msgspec.json.decode(batch.read_bytes(), type=dict[str, int]))
    few = {way: seeds[way] for way in WAYS if seeds[way] < (LEAST_RARE if way in RARE else LEAST)}
    assert not few, f"of {len(SEEDS)} seeds hardly any went these ways: {few}; see soak --stats"


@pytest.mark.parametrize("first", SEEDS[::BATCH])
def test_mixed_faults(first: int, census: Path) -> None:
    seeds = Counter[str]()
    for seed in range(first, first + BATCH):
        seeds.update(way for way, count in check(random_scenario(seed)).items() if count)
    half = census / f"{first}.half"
    half.write_bytes(msgspec.json.encode(seeds))
    half.rename(census / f"{first}.json")
    batches = list(census.glob("*.json"))
    if len(batches) == len(SEEDS) // BATCH:
        check_ways(batches)


@pytest.mark.parametrize("seed", range(WATCHED))
def test_invariants_hold_after_every_event(seed: int) -> None:
    check(random_scenario(seed), every=1)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_scenarios_that_failed_once(path: Path) -> None:
    check(decode(path.read_bytes()))
