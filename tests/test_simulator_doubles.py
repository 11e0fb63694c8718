"""Keys, state folders and logs that are used twice: what windows hold then."""

from __future__ import annotations

import msgspec
import pytest

from elf.agent.simulator import scenario as s
from elf.agent.simulator.run import Run, simulate
from elf.srt.messages import node_of
from tests import canary_meshes as meshes


def beside(seed: int) -> s.Scenario:
    """The host's agent runs on while there is another one with its key."""
    scenario = meshes.twins(seed)
    faults = tuple(
        msgspec.structs.replace(fault, beside=True) if isinstance(fault, s.Twin) else fault
        for fault in scenario.faults
    )
    return msgspec.structs.replace(scenario, faults=faults)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mesh", [meshes.twins, beside])
def test_lines_of_a_host_count_once_though_another_process_had_its_key(mesh: object, seed: int) -> None:
    assert simulate(mesh(seed)).violation == ""  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(3))
def test_over_bytes_too(seed: int) -> None:
    assert simulate(meshes.twins(seed), coded=True).violation == ""


def test_lines_of_logs_that_two_agents_read_count_twice() -> None:
    run = Run(meshes.mesh(3, [s.Share(at_us=0, host=4, other=2)]))
    run.to_the_end()
    agents = [server.source for server in run.servers]
    assert agents[4].files is agents[2].files
    assert agents[4].worker != agents[2].worker
    assert run.oracle.lines == sum(len(file.key) for source in agents for file in source.files)


def test_the_ballots_of_a_twin_are_its_own() -> None:
    """The twin of the master, which runs on, serves too."""
    at = 6 * meshes.SECOND
    twin = s.Twin(at_us=at, until_us=at + 6 * meshes.SECOND, host=meshes.MASTER, beside=True)
    run = Run(meshes.mesh(1, [twin], trouble_us=14 * meshes.SECOND))
    served: dict[tuple[int, bytes], set[str]] = {}

    def look(now_us: int, what: str, who: object, about: object) -> None:
        for actor in (*run.hosts, *run.world.twins.values()):
            for seat in actor.node.seats.values() if actor.node is not None else ():
                if seat.master is not None and node_of(seat.master.ballot) == run.hosts[meshes.MASTER].id:
                    served.setdefault(seat.master.ballot, set()).add(actor.name)

    run.world.observers.append(look)
    run.to_the_end()
    assert {name for names in served.values() for name in names} == {"web1", "web1'"}
    assert all(len(names) == 1 for names in served.values())
