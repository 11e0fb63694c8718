"""Real agents whose disks are full for longer than jobs wait: others serve in their place, and no line is lost."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.rigs.agents.mesh_rig import FAST, Agent, Fleet, wait_until

ALONE = """\
[agent]
state_dir = "state"

[[source]]
name = "access"
path = "access.log"
format = "combined"

[[job]]
name = "hits"
sql = "SELECT window, count(*) AS hits FROM access GROUP BY window(time, '10 seconds')"
sinks = ["console"]
"""
RATE = 40.0
DISK_S = float(FAST["disk_max"].removesuffix("s"))


@contextmanager
def small_disks(agents: list[Agent]) -> Iterator[None]:
    """Each agent's state_dir is a file system of 4 MiB of its own."""
    with ExitStack() as mounts:
        for agent in agents:
            at = agent.folder / "state"
            at.mkdir(mode=0o700)
            command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(at)]
            made = subprocess.run(command, capture_output=True, check=False)
            if made.returncode:
                pytest.skip(f"a small disk cannot be mounted here: {made.stderr.decode().strip()}")
            mounts.callback(subprocess.run, ["umount", "-l", str(at)], check=True)
        yield


def fill(agent: Agent) -> Path:
    """A file that takes all the room."""
    ballast = agent.folder / "state" / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for _ in range(2):  # what is freed by a page that was half full
            with suppress(OSError):  # the agent has written meanwhile
                file.write(bytes(shutil.disk_usage(ballast.parent).free))
    return ballast


def test_a_master_whose_disk_stays_full_gives_its_jobs_to_others_and_comes_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "mesh", 3)
    with small_disks(fleet.agents), fleet:
        fleet.start_job("hits")
        victim = fleet.master("hits")
        watched = fleet.beside(victim)
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE):
                seen.wait_finals()
                ballot = max(put.ballot for _, put in seen.puts)
                began = time.monotonic()  # its disk may be full a moment before `fill` returns
                ballast = fill(victim)
                wait_until(
                    lambda: "other agents serve jobs in place of this" in victim.said(),
                    "it does not step aside",
                )
                assert time.monotonic() - began >= DISK_S
                seen.wait(lambda: seen.puts[-1][1].ballot > ballot)
                seen.wait_finals(3)
                last = max(seen.latest.values(), key=lambda put: (put.status != "open", put.start))
                assert (last.agents_reporting, last.agents_expected) == (3, 3), "its lines are in it"
                wait_until(
                    lambda: "others serve in its place" in fleet.elf("mesh", "status", at=watched),
                    "elf mesh status does not say it",
                )
                wait_until(
                    lambda: fleet.master_name("hits", fleet.agents[watched]) not in ("", victim.name),
                    "no other agent serves",
                )
                ballast.unlink()
                wait_until(lambda: "this agent serves jobs again" in victim.said(), "it does not come back")
                wait_until(lambda: fleet.master("hits") is victim, "it does not serve again")
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()
        assert victim.said().count("other agents serve jobs") == 1
        assert "others serve" not in fleet.elf("mesh", "status", at=watched)


@pytest.mark.parametrize("is_alone", [False, True])
def test_an_agent_that_starts_on_a_full_disk_waits_for_room_and_says_so_once(
    tmp_path: Path, is_alone: bool
) -> None:
    agent = Fleet(tmp_path / "mesh", 1).agents[0]
    if is_alone:
        (agent.folder / "elf.toml").write_text(ALONE)
    with small_disks([agent]):
        ballast = fill(agent)
        agent.start()
        wait_until(lambda: "waits until there is room" in agent.said(), "it does not say why it waits")
        assert agent.is_running
        ballast.unlink()
        journal = agent.folder / "state" / "mesh"
        wait_until(lambda: journal.exists() and journal.stat().st_size > 100, "it does not begin")
        assert agent.stop() == 0
        said = agent.said()
        assert said.count("No space left on device") == 1
        (said_first,) = [line for line in said.splitlines() if "No space" in line]
        assert said_first == (
            f"elf: {agent.folder / 'state'}: No space left on device; the agent waits until there is room, and tries again "
            "every 1 s: free space"
        )


def test_an_agent_that_is_stopped_while_it_waits_for_room_ends(tmp_path: Path) -> None:
    agent = Fleet(tmp_path / "mesh", 1).agents[0]
    with small_disks([agent]):
        fill(agent)
        agent.start()
        wait_until(lambda: "waits until there is room" in agent.said(), "it does not say why it waits")
        assert agent.stop() == 0


def test_an_agent_that_is_killed_while_its_disk_is_full_reads_on_from_where_the_mesh_is(
    tmp_path: Path,
) -> None:
    """What it said while it could write nothing, it said of its lines only: nothing is counted twice or left out."""
    fleet = Fleet(tmp_path / "mesh", 3)
    with small_disks(fleet.agents), fleet:
        fleet.start_job("hits")
        victim = fleet.master("hits")
        watched = fleet.beside(victim)
        with fleet.watch("hits", watched) as seen:
            with fleet.traffic(RATE, rotate_s=1.1):
                seen.wait_finals()
                ballast = fill(victim)
                wait_until(
                    lambda: "other agents serve jobs in place of this" in victim.said(),
                    "it does not step aside",
                )
                seen.wait_finals(2)
                victim.kill()
                ballast.unlink()
                victim.start()
                victim.wait_ready()
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()
