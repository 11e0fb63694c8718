"""Rule 9 in whole meshes: a partition, of which the side with the lower ballot loses its logs, or hosts for good."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import msgspec
import pytest

from elf.agent.simulator.checks.oracle import Violation, groups_of
from elf.agent.simulator.run import Run
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.places import EPOCH_US
from elf.agent.simulator.world.sources import LINE_BYTES, Traffic
from elf.jobmaster.log import handover
from elf.jobmaster.log.handover import Unshared
from tests.rigs.canaries.meshes import MASTER, MS, SECOND, mesh
from tests.rigs.journal_disk import JournalDisk
from tests.rigs.quick import QUICK

pytestmark = pytest.mark.slow

READ_US = 1_000 * MS
"""Lines older than this have been cut, accepted and committed in calm weather."""


def parted(seed: int, *, children: int, deleted: bool) -> tuple[s.Scenario, tuple[int, ...]]:
    """The master and another one are cut off; before that ends, all their log files are deleted. Returns also their numbers."""
    rng = Random(seed)
    at = 6 * SECOND + rng.randrange(SECOND)
    until = at + rng.randint(5, 7) * SECOND
    side = (MASTER, *rng.sample([0, 2, 3], 1))
    faults: list[s.AnyFault] = [s.Cut(at_us=at, until_us=until, hosts=side)]
    if deleted:
        faults += [s.Lose(at_us=until - 200 * MS, host=host, loss="all") for host in side]
    traffic = Traffic(lines_per_s=20.0, keys=5, late_share=0.0, rotate_us=rng.choice((0, 3 * SECOND)))
    parameters = msgspec.structs.replace(QUICK, children_max=children)
    return mesh(seed, faults, trouble_us=until, traffic=traffic, parameters=parameters), side


def lost_lines(scenario: s.Scenario, side: tuple[int, ...], *, coded: type[Disk] | None = None) -> int:
    """Lines that had long been read when their files were deleted, and are in no window in the end. The oracle holds every window
    against what the log says of the files."""
    run = Run(scenario, coded=coded)
    run.to_the_end()
    positions = run._state(run.specs[0]).positions
    lost = 0
    for source in (run.hosts[host].source for host in side):
        assert source is not None
        for file in source.files:
            if file.gone_us is not None:
                at = positions.position((source.worker, file.identity, 0))
                read = file.lines_at(file.gone_us - READ_US)
                lost += max(0, read - (at.offset // LINE_BYTES if at is not None else 0))
    return lost


@pytest.mark.parametrize("children", [2, 16])
@pytest.mark.parametrize("seed", range(2))
def test_lines_whose_files_are_gone_come_from_the_master_that_lost(seed: int, children: int) -> None:
    assert lost_lines(*parted(seed, children=children, deleted=True)) == 0


def test_in_a_long_partition_they_are_joined() -> None:
    """Here as bytes, too."""
    scenario, side = parted(0, children=2, deleted=True)
    parameters = msgspec.structs.replace(scenario.parameters, handover_bytes_max=20_000)
    with patch.object(handover, "joined", wraps=handover.joined) as joined:
        lost = lost_lines(msgspec.structs.replace(scenario, parameters=parameters), side, coded=JournalDisk)
    assert joined.called
    assert lost == 0


def test_without_the_rule_they_are_lost() -> None:
    """Rule 9*'s canary."""
    with patch.object(Unshared, "keep", lambda *_: []):
        assert lost_lines(*parted(0, children=16, deleted=True)) > 100


def windows_wrong(seed: int) -> int:
    """After the partition a host of the losing side never comes back: how many windows of that time lack lines."""
    scenario, side = parted(seed, children=16, deleted=False)
    run = Run(scenario)
    dead = run.hosts[side[1]]
    cut = scenario.faults[0]
    run.world.at(cut.until_us + MS, lambda: run.world.crash(dead, wipe=True))
    with pytest.raises(Violation, match="agents"):  # it is missing to the end
        run.to_the_end()
    told = {
        start: groups_of(put) for (_, _, _, start), put in run.oracle.last.items() if put.status != "open"
    }
    wrong = 0
    for start in range(EPOCH_US + cut.at_us // SECOND * SECOND, EPOCH_US + cut.until_us - 2 * SECOND, SECOND):
        wrong += told.get(start) != run.oracle.written(start, start + SECOND, run.world.now_us)
    return wrong


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_lines_of_a_host_that_dies_for_good_come_from_there_too(seed: int) -> None:
    assert windows_wrong(seed) == 0


def test_without_the_rule_they_are_missing() -> None:
    with patch.object(Unshared, "keep", lambda *_: []):
        assert windows_wrong(1) > 2
