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
    """A command of `elf` failed, with this message."""


def missing() -> str:
    """A program that agents need and that is not installed; "" if all are."""
    return "" if shutil.which(COMPILE[0]) else "a C compiler"


def clock_library(folder: Path) -> Path:
    """The library that is preloaded into a process to step its clock."""
    library = folder / "clock.so"
    subprocess.run([*COMPILE, "-o", library, CLOCK, "-ldl"], check=True)
    return library


def environment() -> dict[str, str]:
    """This process's environment, without variables that configure ELF or Python."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("ELF_", "PYTHON"))}


def elf(*arguments: str | Path, seconds: float = COMMAND_S_MAX) -> str:
    """Run a command of `elf` and return its output. Raises RefusedError."""
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
    """An agent ended unexpectedly."""

    at_s: float
    name: str
    code: int
    said: str


class Agent:
    """The agent in `folder` on `host`. Faults hold `lock`, so that those of one agent do not overlap."""

    def __init__(self, hosts: Hosts, host: str, folder: Path, clock_library: Path | None = None) -> None:
        self.hosts, self.host, self.folder, self.name = hosts, host, folder, folder.name
        self._clock_library = clock_library
        self.lock = threading.RLock()
        self.is_wanted = False
        self.is_leaving = False
        """Whether it was asked to leave, and goes on with that after the command gave up."""
        """Whether it should run; if it ends unexpectedly it is started again, as a service would be."""
        self.has_bug = False
        """Whether it has a bug, which is inactive until a file `bug` exists."""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def state(self) -> Path:
        return self.folder / "disk" / "state"

    @property
    def socket(self) -> Path:
        return self.state / "control.sock"

    @property
    def log_file(self) -> Path:
        return self.folder / "agent.log_file"

    @property
    def clock(self) -> Path:
        """The offset of its clock."""
        return self.folder / "clock"

    @property
    def bug(self) -> Path:
        """While this file exists, its bug is active."""
        return self.folder / "bug"

    @property
    def address(self) -> str:
        return f"{self.hosts.address(self.host)}:{PORT}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Run it."""
        self.is_wanted, self.is_leaving = True, False
        self.starts += 1
        with self.log_file.open("ab") as said:
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
        """From now on its clock is so far ahead of all others."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{seconds:+.1f}\n")
        new.replace(self.clock)

    def kill(self) -> None:
        """End it at once, as in a power failure."""
        self.is_wanted = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop it in order; kill it if it does not end."""
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
        """Delete its state folder."""
        shutil.rmtree(self.state, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """`elf mesh status` there; {} if it does not answer."""
        with suppress(RefusedError):
            answer: dict[str, Any] = json.loads(
                elf("mesh", "status", "--agent", self.socket, "--output", "json", seconds=30.0)
            )
            return answer
        return {}

    def describe(self, jobs: Sequence[str]) -> str:
        """The output of all commands that describe its state, for the analysis of failures."""
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
    """The operator's machine, which issues keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        elf("keys", "init", "--dir", folder)
        self.operator = folder / "operator.keys"
        self._issue("operator", "operator", self.operator)

    def _issue(self, name: str, role: str, out: Path, *more: str) -> str:
        return elf("keys", "issue", name, "--role", role, "--dir", self.folder, "-o", out, *more)

    def issue(self, agent: Agent) -> str:
        """Issue keys for that agent. Returns its seed address."""
        said = self._issue(agent.name, "agent", agent.folder / "agent.keys", "--address", agent.address)
        return next(line[6:] for line in said.splitlines() if line.startswith("seed: "))

    def renew(self, agent: Agent) -> None:
        elf("keys", "renew", agent.folder / "agent.keys", "--dir", self.folder)

    def revoke(self, agent: Agent, at: Agent) -> None:
        """Revoke its keys, and send the revocation to another agent."""
        with suppress(RefusedError):  # no agent runs here that could take the revocation
            elf("keys", "revoke", agent.name, "--dir", self.folder)
        elf("keys", "revoke", self.folder / "revocations.toml", "--agent", at.socket)


def configure(
    agent: Agent,
    *,
    format: str,
    seeds: Sequence[str],
    timings: Mapping[str, str],
    sink: str = "",
    more: str = "",
) -> None:
    """Write its configuration. sink: the name of its lake. more: tables of other sinks."""
    text = CONFIG.format(
        name=agent.name,
        address=agent.address,
        metrics=METRICS,
        seeds=json.dumps(list(seeds)),
        timings="\n".join(f'{key} = "{value}"' for key, value in timings.items()),
        format=format,
    )
    (agent.folder / "elf.toml").write_text(text + (SINK.format(name=sink) if sink else "") + more)
