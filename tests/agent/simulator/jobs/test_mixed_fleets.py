"""A fleet in which some agents are of an older version: they take no part in jobs whose plans they cannot decode, all windows are
exact for the others, and coverage says who is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import SECOND, AnyFault, Change, Crash, Scenario, Upgrade
from elf.agent.simulator.world.disk import Disk
from elf.srt.messages.ids import closeness
from elf.srt.messages.results import Put
from tests.rigs.canaries import meshes

pytestmark = pytest.mark.slow

AT = 6 * SECOND
HOSTS = 6


def change(at_us: int = AT, mode: str = "split") -> Change:
    return Change(at_us=at_us, host=0, job=0, mode=mode)  # type: ignore[arg-type]


def ran(scenario: Scenario, coded: type[Disk] | None = None) -> tuple[Run, list[Put]]:
    """The run, and the last revision of each of the job's windows, in order."""
    runs: list[Run] = []
    assert simulate(scenario, prepare=runs.append, coded=coded).violation == ""
    puts = [put for put in runs[0].oracle.last.values() if put.status != "open"]
    return runs[0], sorted(puts, key=lambda put: (put.start, put.version))


@pytest.mark.parametrize("coded", [None, Disk])
@pytest.mark.parametrize("mode", ["split", "restate", "next"])
def test_windows_of_a_version_that_some_cannot_decode_count_them_as_missing(
    mode: str, coded: type[Disk] | None
) -> None:
    run, puts = ran(replace(meshes.mesh(1, [change(mode=mode)]), older=(0, 3)), coded)
    first = run.specs[0].versions[0].digest
    later = [put for put in puts if put.version != first]
    assert {(put.agents_reporting, put.agents_expected) for put in later[1:]} == {(HOSTS - 2, HOSTS)}
    assert (puts[0].agents_reporting, puts[0].agents_expected) == (HOSTS, HOSTS)
    for number, actor in enumerate(run.hosts):
        assert actor.node is not None
        assert actor.node.seats[run.specs[0].id].is_stopped == (number in (0, 3))


def nearest(scenario: Scenario, count: int) -> tuple[int, ...]:
    """The hosts that would be the job's master and first replicas."""
    run = Run(scenario)
    ids = [actor.id for actor in run.hosts]
    return tuple(ids.index(node) for node in sorted(ids, key=lambda node: closeness(run.specs[0].id, node)))[
        :count
    ]


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_the_master_and_its_replicas_are_able(seed: int, count: int) -> None:
    """Also where the one that serves is not, and where all but one are not."""
    mesh = meshes.mesh(seed, [change()])
    run, puts = ran(replace(mesh, older=nearest(mesh, count)))
    assert puts[-1].agents_reporting == HOSTS - count
    (master,) = run.invariants.masters(run.specs[0].id)
    assert run.hosts.index(master) not in run.scenario.older


@pytest.mark.parametrize("mode", ["split", "restate"])
def test_an_agent_that_is_upgraded_takes_part_and_reads_what_it_missed(mode: str) -> None:
    faults: list[AnyFault] = [change(mode=mode), Upgrade(at_us=9 * SECOND, host=3)]
    run, puts = ran(replace(meshes.mesh(2, faults), older=(0, 3)))
    assert (puts[-1].agents_reporting, puts[-1].agents_expected) == (HOSTS - 1, HOSTS)
    first = run.specs[0].versions[0].digest
    second = [put for put in puts if put.version != first]
    if mode == "split":
        assert {put.agents_reporting for put in second[1:]} == {HOSTS - 1}


@pytest.mark.parametrize("seed", range(6))
def test_changes_and_crashes_and_upgrades_in_a_mixed_fleet(seed: int) -> None:
    faults: list[AnyFault] = [
        change(AT),
        Crash(at_us=AT + 1 * SECOND, until_us=AT + 4 * SECOND, target="master", job=0),
        change(AT + 3 * SECOND, "restate"),
        Upgrade(at_us=AT + 5 * SECOND, host=seed % HOSTS),
        change(AT + 7 * SECOND, "next"),
        Crash(at_us=AT + 8 * SECOND, until_us=AT + 11 * SECOND, target="circle", job=0),
        Upgrade(at_us=AT + 11 * SECOND, host=(seed + 2) % HOSTS),
    ]
    ran(replace(meshes.mesh(seed, faults, trouble_us=20 * SECOND), older=(seed % HOSTS, (seed + 2) % HOSTS)))
