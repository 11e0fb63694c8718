"""Keys, state folders and logs that are used twice, and the windows in these cases."""

from __future__ import annotations

import msgspec
import pytest

from elf.agent.node.rivals import Rivals
from elf.agent.simulator.checks.oracle import groups_of
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.srt.messages.messages import node_of
from tests.rigs.canaries import meshes
from tests.rigs.journal_disk import JournalDisk

pytestmark = pytest.mark.slow


def beside(seed: int) -> s.Scenario:
    """The host's agent runs on while there is another one with its key."""
    scenario = meshes.twins(seed)
    faults = tuple(
        msgspec.structs.replace(fault, beside=True) if isinstance(fault, s.Twin) else fault
        for fault in scenario.faults
    )
    return msgspec.structs.replace(scenario, faults=faults)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mesh", [meshes.twins, beside])
def test_lines_of_a_host_count_once_though_another_process_had_its_key(mesh: object, seed: int) -> None:
    assert simulate(mesh(seed)).violation == ""  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_over_bytes_too(seed: int) -> None:
    assert simulate(meshes.twins(seed), coded=JournalDisk).violation == ""


def test_lines_of_logs_that_two_agents_read_count_twice() -> None:
    run = Run(meshes.mesh(3, [s.Share(at_us=0, host=4, other=2)]))
    run.to_the_end()
    agents = [server.source for server in run.servers]
    assert agents[4].files is agents[2].files
    assert agents[4].worker != agents[2].worker
    assert run.oracle.lines == sum(len(file.key) for source in agents for file in source.files)


AT = 6 * meshes.SECOND
UNTIL = AT + 5 * meshes.SECOND


def twin_of(host: int, **more: object) -> s.Twin:
    return s.Twin(at_us=AT, until_us=UNTIL, host=host, beside=True, **more)  # type: ignore[arg-type]


def windows(run: Run) -> dict[object, object]:
    return {
        key: (groups_of(put), put.lines, put.agents_reporting, put.agents_expected)
        for key, put in run.oracle.last.items()
    }


@pytest.mark.parametrize("keeps", ["nothing", "clone"])
@pytest.mark.parametrize("host", [meshes.MASTER, 2, 4])
def test_a_twin_of_an_agent_that_can_be_reached_has_no_effect(host: int, keeps: str) -> None:
    """It waits to be admitted; the agent's life, the sinks and the windows, which have to be whole, are as without it."""
    run = Run(meshes.mesh(1, [twin_of(host, keeps=keeps, logs=True)], trouble_us=14 * meshes.SECOND))
    waits: list[str] = []

    def look(now_us: int, what: str, who: object, about: object) -> None:
        if what in ("waits", "crash"):
            waits.append(f"{what} {who.name}")  # type: ignore[attr-defined]
        for twin in run.world.twins.values():
            assert (
                not any(seat.master for seat in twin.node.seats.values()) if twin.node is not None else True
            )

    run.world.observers.append(look)
    run.to_the_end()
    name = run.hosts[host].name
    assert f"waits {name}'" in waits
    assert f"crash {name}" not in waits
    assert run.oracle.doubled == set()
    node = run.hosts[host].node
    assert node is not None
    assert node.life == 1
    alone = Run(meshes.mesh(1, [], trouble_us=14 * meshes.SECOND))
    alone.to_the_end()
    assert windows(run) == windows(alone)


def test_who_waits_goes_in_when_the_other_is_gone() -> None:
    run = Run(
        meshes.mesh(
            1,
            [
                twin_of(2),
                s.Crash(at_us=AT + 2 * meshes.SECOND, until_us=UNTIL + meshes.SECOND, target="host", host=2),
            ],
            trouble_us=14 * meshes.SECOND,
        )
    )
    told: list[tuple[int, str, str]] = []
    run.world.observers.append(
        lambda now, what, who, about: told.append((now, what, getattr(who, "name", "")))
    )
    run.world.admissions.admitted.append(lambda who: told.append((run.world.now_us, "in", who.name)))
    run.to_the_end()
    assert min(now for now, what, _ in told if what == "in") > AT + 2 * meshes.SECOND
    starts = [now for now, what, name in told if (what, name) == ("start", "web2'")]
    assert starts[0] == AT
    assert AT + 2 * meshes.SECOND < starts[-1] <= AT + 3 * meshes.SECOND


@pytest.mark.parametrize("seed", range(2))
def test_of_two_that_were_let_in_on_two_sides_one_gives_way(seed: int) -> None:
    """The one of the lower instance; both have served till then, each under ballots of its own."""
    cut = s.Cut(at_us=AT - 500 * meshes.MS, until_us=AT + 4 * meshes.SECOND, hosts=(meshes.MASTER,))
    twin = msgspec.structs.replace(twin_of(meshes.MASTER), until_us=16 * meshes.SECOND)
    run = Run(meshes.mesh(seed, [cut, twin], trouble_us=20 * meshes.SECOND))
    host = run.hosts[meshes.MASTER]
    served: dict[tuple[int, bytes], set[str]] = {}
    instances: dict[str, int] = {}
    waits: list[str] = []

    def look(now_us: int, what: str, who: object, about: object) -> None:
        if what == "waits" and now_us > cut.until_us:
            waits.append(who.name)  # type: ignore[attr-defined]
        for actor in (*run.hosts, *run.world.twins.values()):
            for seat in actor.node.seats.values() if actor.node is not None else ():
                if seat.master is not None and node_of(seat.master.ballot) == host.id:
                    served.setdefault(seat.master.ballot, set()).add(actor.name)
            if actor.id == host.id and actor.node is not None and now_us < cut.until_us:
                instances[actor.name] = actor.node.instance

    run.world.observers.append(look)
    run.to_the_end()
    assert {name for names in served.values() for name in names} == {"web1", "web1'"}
    assert all(len(names) == 1 for names in served.values())
    assert set(waits) == {min(instances, key=lambda name: instances[name])}


def restored(seed: int) -> s.Scenario:
    """A host's agent was restarted, and later on gets the state folder that it had before."""
    host, back_us = 2 + seed % 3, AT + 3 * meshes.SECOND
    again = s.Crash(at_us=AT, until_us=AT + 300 * meshes.MS, target="host", host=host, process=seed % 2 == 0)
    backup = s.Restore(at_us=back_us - meshes.SECOND, until_us=back_us, host=host, from_us=AT - meshes.MS)
    return meshes.mesh(seed, [again, backup], trouble_us=14 * meshes.SECOND)


def lost_disks(scenario: s.Scenario) -> list[str]:
    """The agents that began with an empty disk, in a run in which all windows are exact."""
    run, lost = Run(scenario), list[str]()
    run.world.observers.append(
        lambda now, what, who, about: lost.append(who.name) if what == "crash" and about and who else None
    )
    run.to_the_end()
    return lost


@pytest.mark.parametrize("seed", range(3))
def test_a_state_folder_of_an_earlier_life_counts_as_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are exact without that rule too: no window shows the harm of its promises."""
    assert lost_disks(restored(seed)) == [f"web{2 + seed % 3}"]
    monkeypatch.setattr(Rivals, "_look_at", lambda self, item: None)
    assert lost_disks(restored(seed)) == []
