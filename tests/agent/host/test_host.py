"""Real agents on loopback: whatever happens to their processes, their windows equal one pass over the logs in the end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from elf.agent.control.protocol import MeshLeave
from elf.errors import UsageError
from tests.rigs.agents.mesh_rig import FAST, Fleet, wait_until
from tests.rigs.agents.seen import WAIT_S

pytestmark = pytest.mark.process

RATE = 60.0
NARROW = {**FAST, "children_max": "2"}
"""So that few agents make a tree with inner nodes."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mesh"


def test_an_agent_whose_only_seed_is_itself_is_a_mesh_of_one(folder: Path) -> None:
    with Fleet(folder, 2, wait=False) as fleet:
        absent = fleet.agents.pop()
        absent.kill()
        fleet.agents[0].wait_ready()
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()
        assert f"seed 127.0.0.1:{absent.port}" in fleet.elf("mesh", "status")
        fleet.agents.append(absent)
        absent.start()
        fleet.wait_joined()


def test_an_agent_alone_is_exact_through_a_kill_a_stop_and_rotation(folder: Path) -> None:
    with Fleet(folder, 1, security="alone") as fleet:
        agent = fleet.agents[0]
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(RATE, rotate_s=0.7):
                seen.wait_finals()
                for end in (agent.kill, agent.stop):
                    end()
                    before = len(seen.puts)
                    agent.start()
                    seen.wait(lambda before=before: len(seen.puts) > before + 3)  # type: ignore[misc]
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()
        with pytest.raises(UsageError, match="it is in no mesh, so it cannot leave one"):
            agent.ask(MeshLeave())


def test_master_and_worker_are_killed_and_come_back(folder: Path) -> None:
    with Fleet(folder, 4) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        watched = fleet.beside(master)
        worker = next(agent for agent in fleet.agents if agent not in (master, fleet.agents[watched]))
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE, rotate_s=0.7):
                seen.wait_finals()
                for victim in (worker, master):
                    victim.kill()
                    before = len(seen.puts)
                    seen.wait(lambda before=before: len(seen.puts) > before + 3)  # type: ignore[misc]
                    victim.start()
                    victim.wait_ready()
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


def test_a_stopped_master_hands_over_at_once_and_its_worker_resumes_where_it_was(folder: Path) -> None:
    """No node is declared dead meanwhile: the next master was asked to serve."""
    with Fleet(folder, 3, timings={**FAST, "suspect": "60s"}) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        watched = fleet.beside(master)
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
                ballot = max(put.ballot for _, put in seen.puts)
                assert master.stop() == 0
                seen.wait(lambda: seen.puts[-1][1].ballot > ballot)
                master.start()
                master.wait_ready()
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


@pytest.mark.usefixtures("bare_agents")
def test_all_are_killed_and_started_again(folder: Path) -> None:
    with Fleet(folder, 3) as fleet:
        fleet.start_job("hits")
        with fleet.watch(
            "hits", 0, 1, 2
        ) as seen:  # one alone may be back after the others have told more than five
            with fleet.traffic(RATE):
                seen.wait_finals()
            for agent in fleet.agents:
                agent.kill()
            fleet.log(500)
            for agent in fleet.agents:
                agent.start()
            fleet.wait_joined()
            with fleet.traffic(RATE):
                seen.wait_finals(3)
            assert fleet.settled(seen) == fleet.counted()


@pytest.mark.parametrize("seconds", [0.25, 1.8], ids=["shorter", "longer"])
def test_a_paused_process_is_waited_for_or_left_out_and_taken_in_again(folder: Path, seconds: float) -> None:
    """Of 3.3 probe periods' suspicion; the master among them."""
    with Fleet(folder, 3) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        watched = fleet.beside(master)
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
                for agent in (master, next(each for each in fleet.agents[1:] if each is not master)):
                    with agent.paused():
                        time.sleep(seconds)  # what is tested is how long it is
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


@pytest.mark.usefixtures("bare_agents")
def test_a_second_agent_is_refused_the_state_with_the_pid_of_the_first(folder: Path) -> None:
    with Fleet(folder, 1) as fleet:
        agent = fleet.agents[0]
        second = agent.launch()
        assert second.wait(WAIT_S) == 1
        assert f"in use by another agent (pid {agent.pid})" in agent.said()
        assert agent.stop() == 0


@pytest.mark.usefixtures("bare_agents")
def test_ctrl_c_ends_in_good_order_with_its_exit_code(folder: Path) -> None:
    with Fleet(folder, 1) as fleet:
        agent = fleet.agents[0]
        agent.signal(signal.SIGINT)
        assert agent.process is not None
        assert agent.process.wait(WAIT_S) == 130
        assert not agent.socket.exists()


def test_a_full_disk_stops_nothing_but_what_depends_on_it(folder: Path) -> None:
    resource = pytest.importorskip("resource")
    with Fleet(folder, 3) as fleet:
        fleet.start_job("hits")
        victim = fleet.master("hits")
        watched = fleet.beside(victim)
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
                ballot = max(put.ballot for _, put in seen.puts)
                full = (victim.folder / "state" / "mesh").stat().st_size
                limits = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
                wait_until(lambda: "File too large" in victim.said(), "a full disk is not told")
                full_us = int(time.time() * 1e6)
                time.sleep(0.5)  # nothing comes of what the master cannot write down
                later = [put for _, put in list(seen.puts) if put.ballot == ballot and put.end > full_us]
                assert {put.status for put in later} <= {"open"}
                resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, limits)
                wait_until(lambda: "works again" in victim.said(), "a mended disk is not told")
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()
        assert victim.said().count("File too large") < 3


@pytest.mark.slow
def test_whatever_happens_to_agents_with_keys(folder: Path) -> None:
    """A dozen faults at random, one upon the other, while logs are rotated."""
    rng = Random(3)
    with Fleet(folder, 5, timings=NARROW, security="curve", seeds=3) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits", 4) as seen:
            with fleet.traffic(RATE, rotate_s=1.3):
                seen.wait_finals()
                for _ in range(12):
                    agent, fault = rng.choice(fleet.agents[:4]), rng.choice(["kill", "stop", "pause"])
                    if fault == "pause":
                        with agent.paused():
                            time.sleep(rng.choice([0.2, 0.5, 1.5]))
                    else:
                        agent.kill() if fault == "kill" else agent.stop()
                        time.sleep(rng.choice([0, 0.1, 1]))
                        agent.start()
                    time.sleep(rng.choice([0, 0.3, 1]))
                fleet.wait_joined()
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


@pytest.mark.slow
def test_sixteen_join(folder: Path) -> None:
    """With the timings that an agent comes with: so many of them in a hurry would take each other's processor, and for dead."""
    with Fleet(folder, 16, timings={}, wait=False) as fleet:
        fleet.wait_joined()
        fleet.start_job("hits", at=5)
        with fleet.watch("hits", 3) as seen:
            with fleet.traffic(20):
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


def test_a_rolling_restart_loses_nothing_and_every_window_is_exact(folder: Path) -> None:
    """In trees with inner nodes: one agent after the other is stopped and started, under load, with rotation."""
    with Fleet(folder, 5, timings=NARROW) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits", 0, 2) as seen:
            with fleet.traffic(RATE, rotate_s=0.9):
                seen.wait_finals()
                for agent in fleet.agents:
                    assert agent.stop() == 0
                    agent.start()
                    agent.wait_ready()
                fleet.wait_joined()
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()


def test_inner_nodes_of_the_tree_are_killed(folder: Path) -> None:
    with Fleet(folder, 6, timings=NARROW) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
                for name in inner_nodes(fleet, "hits") - {"a0"}:
                    agent = next(each for each in fleet.agents if each.name == name)
                    agent.kill()
                    agent.start()
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()


def inner_nodes(fleet: Fleet, job: str) -> set[str]:
    """Names of the agents that have children in the job's tree, but for the master."""

    def below(node: dict[str, Any]) -> set[str]:
        inner = {node["name"]} if node["children"] else set()
        return inner.union(*(below(child) for child in node["children"]))

    tree: dict[str, Any] = {}

    def is_whole() -> bool:
        nonlocal tree
        tree = tree_of(fleet, job)
        return size(tree) == len(fleet.agents)

    wait_until(is_whole, "the tree is not whole")
    found = below(tree) - {tree["name"]}
    assert found, "with two children each, six agents have inner nodes"
    return found


def tree_of(fleet: Fleet, job: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(fleet.elf("mesh", "tree", job, "--output", "json"))
    return tree


def size(tree: dict[str, Any]) -> int:
    return 1 + sum(map(size, tree["children"]))
