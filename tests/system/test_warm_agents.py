"""Agents of the rig that are forked from a warm process: their signals, exit codes, streams and ends are those of any process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs import paths
from tests.rigs.agents.mesh_rig import Fleet, wait_until
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.agents.zygote import Zygote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
STARTER = """\
import sys
from pathlib import Path
from tests.rigs.agents.zygote import Zygote, plain_environment
folder = Path(sys.argv[1])
agent = Zygote().start(["agent", "run", "-c", "elf.toml"], folder, plain_environment(), folder / "said")
print(agent.pid, flush=True)
input()
"""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_ends_with_the_code_or_the_signal_of_its_end(tmp_path: Path) -> None:
    with Fleet(tmp_path, 2, wait=False) as fleet:
        killed, stopped = fleet.agents
        for agent in fleet.agents:
            agent.wait_ready()
            assert type(agent.process).__name__ == "Forked"
        assert parent(killed.pid) == parent(stopped.pid) != os.getpid()
        with killed.paused():
            wait_until(lambda: "T (stopped)" in Path(f"/proc/{killed.pid}/status").read_text(), "it runs on")
            assert killed.is_running
        killed.kill()
        assert stopped.stop() == 0
        for agent, code in ((killed, -signal.SIGKILL), (stopped, 0)):
            assert agent.process is not None
            assert (agent.process.poll(), agent.process.returncode) == (code, code)
            agent.process.kill()  # does nothing


def test_its_folder_environment_arguments_and_output_are_its_own(tmp_path: Path) -> None:
    config = Fleet(tmp_path, 1).agents[0].folder
    process = Zygote().start(
        ["agent", "run", "-c", "elf.toml"], config, {"ELF_MESH_FLUSH": "soon"}, tmp_path / "said"
    )
    assert process.wait(WAIT_S) == 78
    said = (tmp_path / "said").read_text()
    assert said.startswith("elf: ELF_MESH_FLUSH in the environment: ")
    assert said.count("\n") == 1


def test_nobody_is_left_when_the_starter_is_killed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    command = [sys.executable, "-c", STARTER, str(fleet.agents[0].folder)]
    with subprocess.Popen(
        command, cwd=paths.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        agent = int(starter.stdout.readline())
        zygote = parent(agent)
        wait_until((fleet.agents[0].folder / "state" / "lock").exists, "the agent does not start")
        starter.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (agent, zygote)), "some are left")
