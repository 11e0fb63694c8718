"""The memory cap of an agent of a mesh, measured: a log with a path of its own in every line, kill -9, a start, a lost disk."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from elf.agent.control import protocol as w
from elf.agent.disk.state_dir import JOURNAL
from tests.rigs.agents.mesh_rig import Agent, Fleet, line, peak_bytes, wait_until
from tests.rigs.memory_group import MemoryGroup, memory_group

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.usefixtures("bare_agents"),
]

MIB = 1 << 20
CAP = 64 * MIB
GROUP = 384 * MIB
"""Of the shipped unit."""
TOLERANCE = 8 * MIB
"""What may be taken between two looks at the process."""
PATHS = 600_000
BATCH = 8_000
BY_PATH = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes FROM access "
    "GROUP BY window(time, '1 minute'), path"
)
BUSY_S = 60.0


def member(agent: Agent) -> w.Member:
    """As it tells itself."""
    status = agent.ask(w.MeshStatus())
    assert isinstance(status, w.Status)
    return next(each for each in status.members if each.id == status.me)


def beyond(agent: Agent) -> float:
    """MiB that the process had at most, beyond the bare one; what it reports is soon what the kernel reports."""
    wait_until(lambda: is_true(agent), "it reports other memory than the kernel does")
    reported = member(agent)
    assert reported.memory_bare is not None
    return (peak_bytes(agent) - reported.memory_bare) / MIB


def is_true(agent: Agent) -> bool:
    """Whether the memory that it reports is what the kernel reports a moment later, and all of it has owners: these are counted
    at the report, the whole up to a second before, and both move while it works."""
    reported = member(agent)
    assert reported.memory is not None
    assert reported.memory_bare is not None
    assert reported.memory_bytes is not None
    is_owned = sum(reported.memory.values()) >= reported.memory_bytes - MIB
    return is_owned and abs(reported.memory_bare + reported.memory_bytes - agent.memory_bytes()) < TOLERANCE


def flood(agent: Agent, paths: int, rng: random.Random) -> None:
    """Lines of now, each with a path that no other has, as fast as they are read."""
    for _ in range(0, paths, BATCH):
        now_s = time.time()
        fresh = (f"/{rng.getrandbits(64):x}/{rng.getrandbits(40):x}" for _ in range(BATCH))
        agent.write([line(now_s, 200, 100).replace("/p", path, 1) for path in fresh])
        wait_until(lambda: not member(agent).lag_bytes, "it does not read", BUSY_S)


def test_a_flood_a_restart_and_a_lost_disk_stay_under_the_cap(tmp_path: Path) -> None:
    """The state travels to the agent without a disk, and all windows are exact."""
    cap = f'memory_max = "{CAP // MIB}MiB"'
    with Fleet(tmp_path / "mesh", 2, timings={}, agent=cap) as fleet:
        first, second = fleet.agents
        fleet.start_job("paths", BY_PATH, lateness="2s")
        fleet.start_job("hits")
        with fleet.watch("hits", 0, 1) as seen:
            flood(first, PATHS, random.Random(1))
            held = {"flood": beyond(first), "replica": beyond(second)}
            first.kill()
            second.kill()
            (second.folder / "state" / JOURNAL).unlink()
            first.start()
            first.wait_ready()
            second.start()
            fleet.wait_joined()
            flood(second, BATCH, random.Random(2))
            fleet.last_s = time.time()
            counted = fleet.counted()
            assert fleet.settled(seen) == fleet.counted()
        assert sum(hits for row in counted.values() for hits, _ in row.values()) == PATHS + BATCH
        held |= {"started again": beyond(first), "lost its disk": beyond(second)}
    assert max(held.values()) * MIB <= CAP + TOLERANCE, held


class Grouped(Fleet):
    """All agents in one cgroup, if there is any."""

    group: MemoryGroup | None = None

    def _prefix(self, number: int) -> Sequence[str]:
        return self.group.prefix if self.group is not None else ()


def test_a_flood_and_a_kill_do_not_take_an_agent_out(tmp_path: Path) -> None:
    """A client that makes up URLs, in a group as small as that of the shipped unit: the lives that read the journal back
    stay up and under the cap, and nothing counts twice or not at all."""
    with memory_group(GROUP) as group:
        Grouped.group = group
        with Grouped(tmp_path / "mesh", 1, timings={}, agent=f'memory_max = "{CAP // MIB}MiB"') as fleet:
            agent = fleet.agents[0]
            fleet.start_job("paths", BY_PATH, lateness="2s")
            fleet.start_job("hits")
            with fleet.watch("hits") as seen:
                flood(agent, 2 * PATHS, random.Random(1))
                held = {"flood": beyond(agent)}
                for life in range(2):
                    agent.kill()
                    agent.start()
                    agent.wait_ready()
                    wait_until(lambda: fleet.master_name("paths", agent), "the job is not served")
                    flood(agent, BATCH, random.Random(2 + life))
                    held[f"life {life}"] = beyond(agent)
                fleet.last_s = time.time()
                counted = fleet.counted()
                assert fleet.settled(seen) == counted
        assert group is None or group.kills == 0
    assert sum(hits for row in counted.values() for hits, _ in row.values()) == 2 * PATHS + 2 * BATCH
    assert max(held.values()) * MIB <= CAP + TOLERANCE, held


def test_garbage_at_the_control_socket_stays_under_the_cap(tmp_path: Path) -> None:
    """Many who connect, send much or little of it, and neither end nor read; what they took is given back."""
    with Fleet(tmp_path / "mesh", 1, timings={}, agent=f'memory_max = "{CAP // MIB}MiB"') as fleet:
        agent = fleet.agents[0]
        wait_until(lambda: member(agent), "it does not answer")
        before = agent.memory_bytes()
        threads = [threading.Thread(target=_garbage, args=(agent, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BUSY_S)
        wait_until(lambda: member(agent), "it does not answer")
        held, kept = beyond(agent), (agent.memory_bytes() - before) / MIB
    assert held * MIB <= CAP + TOLERANCE, held
    assert kept * MIB <= TOLERANCE, kept


def _garbage(agent: Agent, number: int) -> None:
    rng = random.Random(number)
    for _ in range(40):
        sockets = []
        for _ in range(8):
            each = socket.socket(socket.AF_UNIX)
            each.settimeout(0.2)
            sockets.append(each)
            try:
                each.connect(str(agent.socket))
                length = rng.choice((0, 100, 1 << 20, (1 << 20) - 1, 1 << 22, (1 << 32) - 1))
                each.sendall(length.to_bytes(4, rng.choice(("little", "big"))))
                each.sendall(rng.randbytes(min(length, rng.choice((10, 1 << 16, 1 << 21)))))
            except OSError:
                continue
        for each in sockets:
            each.close()
