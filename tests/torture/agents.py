"""Agents: processes of `elf agent run`, one beside each web server, and the commands that an operator types."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.hosts import Hosts

PORT = 7400
METRICS = "127.0.0.1:9464"
METRICS_URL = f"http://{METRICS}/metrics"
COMMAND_S_MAX = 120.0
END_S_MAX = 60.0
DISK_MIB = 96
LAKE_DISK_MIB = 256
BUG = Path(__file__).with_name("bug")
"""A folder whose `sitecustomize` gives the agent a bug."""
CLOCK = Path(__file__).with_name("clock.c")
COMPILE = ("cc", "-shared", "-fPIC", "-O2")

CONFIG = """\
[agent]
name = "{name}"
state_dir = "disk/state"
listen = "{address}"
seeds = {seeds}
metrics = "{metrics}"

[mesh]
{timings}

[keys]
bundle = "agent.keys"

[[source]]
name = "access"
path = "logs/access.log*"
format = "{format}"
"""
SINK = """
[[sink]]
name = "{name}"
parquet = "lake/files"
"""


class RefusedError(Exception):
    """A command of `elf` failed; says with which words."""


def missing() -> str:
    """What is not installed of what agents need; "" if all is."""
    return "" if shutil.which(COMPILE[0]) else "a C compiler"


def clock_library(folder: Path) -> Path:
    """What a process is preloaded with whose clock steps."""
    library = folder / "clock.so"
    subprocess.run([*COMPILE, "-o", library, CLOCK, "-ldl"], check=True)
    return library


def environment() -> dict[str, str]:
    """This process's, without what would configure ELF or Python."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ELF_", "PYTHON"))}


def elf(*arguments: str | Path, seconds: float = COMMAND_S_MAX) -> str:
    """What a command of `elf` prints. Raises RefusedError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "elf", *map(str, arguments)],
            env=environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"elf {arguments[0]} {arguments[1]}: no answer after {seconds:.0f} s") from error
    if done.returncode:
        raise RefusedError(f"elf {arguments[0]} {arguments[1]}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class End:
    """An agent ended although nobody had told it to."""

    at_s: float
    name: str
    code: int
    said: str


class Agent:
    """The agent in `folder` on `host`. Its life is guarded by `lock`: faults of one agent follow one another."""

    def __init__(self, hosts: Hosts, host: str, folder: Path, clock_library: Path | None = None) -> None:
        self.hosts, self.host, self.folder, self.name = hosts, host, folder, folder.name
        self._clock_library = clock_library
        self.lock = threading.RLock()
        self.is_wanted = False
        """Whether it is meant to run; one that ends by itself is started again, as a service would be."""
        self.has_bug = False
        """Whether it is given a bug, which sleeps until there is a file `bug`."""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def state(self) -> Path:
        return self.folder / "disk" / "state"

    @property
    def socket(self) -> Path:
        return self.state / "control.sock"

    @property
    def said(self) -> Path:
        return self.folder / "agent.said"

    @property
    def clock(self) -> Path:
        """How far its clock is off."""
        return self.folder / "clock"

    @property
    def bug(self) -> Path:
        """While this file is there, its bug is awake."""
        return self.folder / "bug"

    @property
    def address(self) -> str:
        return f"{self.hosts.address(self.host)}:{PORT}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Run it."""
        self.is_wanted = True
        self.starts += 1
        with self.said.open("ab") as said:
            said.write(f"--- start {self.starts} at {time.time():.3f}\n".encode())
            said.flush()
            self.process = subprocess.Popen(
                [*self.hosts.enter(self.host), sys.executable, "-m", "elf", "agent", "run", "-c", "elf.toml"],
                cwd=self.folder,
                env=environment() | self._clock_environment() | self._bug_environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _clock_environment(self) -> dict[str, str]:
        if self._clock_library is None:
            return {}
        if not self.clock.exists():
            self.step_clock(0.0)
        return {"LD_PRELOAD": str(self._clock_library), "TORTURE_CLOCK": str(self.clock)}

    def _bug_environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(BUG), "TORTURE_BUG": str(self.bug)} if self.has_bug else {}

    def step_clock(self, seconds: float) -> None:
        """Its clock is so far ahead of everybody's from now on."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{seconds:+.1f}\n")
        new.replace(self.clock)

    def kill(self) -> None:
        """As when the power goes."""
        self.is_wanted = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """In good order; by force if it does not end."""
        self.is_wanted = False
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        if self.is_running and self.process is not None:
            self.process.send_signal(number)

    def wipe(self) -> None:
        """Its state folder is lost."""
        shutil.rmtree(self.state, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """`elf mesh status` there; {} if it does not answer."""
        with suppress(RefusedError):
            answer: dict[str, Any] = json.loads(
                elf("mesh", "status", "--agent", self.socket, "--output", "json", seconds=30.0)
            )
            return answer
        return {}

    def tell(self, jobs: Sequence[str]) -> str:
        """All that it can be asked, for whoever looks for what went wrong."""
        asked = [("mesh", "status"), ("job", "list"), *(("mesh", "tree", job) for job in jobs)]
        told = []
        for words in asked:
            try:
                told.append(elf(*words, "--agent", self.socket, "--output", "json", seconds=30.0))
            except RefusedError as error:
                told.append(f"{error}\n")
        metrics = [*self.hosts.enter(self.host), "curl", "-s", "-m", "10", METRICS_URL]
        told.append(subprocess.run(metrics, capture_output=True, text=True, check=False).stdout)
        return "\n".join(told)


class Authority:
    """Who issues keys: the operator's desk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        elf("keys", "init", "--dir", folder)
        self.operator = folder / "operator.keys"
        self._issue("operator", "operator", self.operator)

    def _issue(self, name: str, role: str, out: Path, *more: str) -> str:
        return elf("keys", "issue", name, "--role", role, "--dir", self.folder, "-o", out, *more)

    def issue(self, agent: Agent) -> str:
        """Keys for that agent. Returns what others name it by, to find the mesh."""
        said = self._issue(agent.name, "agent", agent.folder / "agent.keys", "--address", agent.address)
        return next(line[6:] for line in said.splitlines() if line.startswith("seed: "))

    def renew(self, agent: Agent) -> None:
        elf("keys", "renew", agent.folder / "agent.keys", "--dir", self.folder)

    def revoke(self, agent: Agent, at: Agent) -> None:
        """Takes its keys back, and tells the mesh at another agent."""
        with suppress(RefusedError):  # there is no agent on the desk to tell it to
            elf("keys", "revoke", agent.name, "--dir", self.folder)
        elf("keys", "revoke", self.folder / "revocations.toml", "--agent", at.socket)


def configure(
    agent: Agent, *, format: str, seeds: Sequence[str], timings: Mapping[str, str], sink: str = ""
) -> None:
    """Write its configuration."""
    text = CONFIG.format(
        name=agent.name,
        address=agent.address,
        metrics=METRICS,
        seeds=json.dumps(list(seeds)),
        timings="\n".join(f'{key} = "{value}"' for key, value in timings.items()),
        format=format,
    )
    (agent.folder / "elf.toml").write_text(text + (SINK.format(name=sink) if sink else ""))
