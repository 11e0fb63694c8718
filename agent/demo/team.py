"""The demo's mesh: three agents with keys, each beside its web server, and the commands that an operator types.

keys/          the authority, which stays with the operator, and one bundle for each agent and for the operator
web1/ …        for each host: its configuration, its web server's logs, its agent's state, its agent's log
lake/          the lake of web1's agent, for the jobs that name the sink "lake"
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from elf.agent.demo.receiver import Receiver
from elf.agent.demo.server import Server, free_port
from elf.errors import PeerError

READY_S_MAX = 60.0
ENDING_S_MAX = 30.0
ASK_AGAIN_S = 0.05

CONFIGURATION = """\
[agent]
name = "{name}"
state_dir = "state"
listen = "127.0.0.1:{port}"
seeds = {seeds}

[keys]
bundle = "../keys/{name}.keys"

[[source]]
name = "access"
path = "logs/access.log*"
format = {format}
"""

SINK = """
[[sink]]
name = "lake"
parquet = "../lake"
"""


HOOK = """
[[sink]]
name = "hook"
webhook = "{url}"
secret = "{secret}"
private = true
"""


def elf(*arguments: str | Path) -> list[str]:
    """The command line of an `elf` of this installation."""
    return [sys.executable, "-m", "elf.typer_cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    """This process's environment, without variables that configure elf."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ELF_")}


def run(*arguments: str | Path) -> str:
    """Run a command of `elf` and return its output. Raises PeerError with its error if it fails."""
    done = subprocess.run(elf(*arguments), env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"elf {arguments[0]} {arguments[1]} failed: {done.stderr.strip()}")
    return done.stdout


class Agent:
    """One agent beside one web server, in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._said: BinaryIO | None = None

    @property
    def control(self) -> Path:
        """Its control socket."""
        return self.folder / "state" / "control.sock"

    @property
    def log(self) -> Path:
        """The agent's log file."""
        return self.folder / "agent.log"

    def start(self) -> None:
        self._said = self.log.open("ab")
        command = elf("agent", "run", "-c", self.folder / "elf.toml")
        self.process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said
        )

    def kill(self) -> None:
        """Kill the agent without a chance to announce it (kill -9)."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop the agent in order. Raises PeerError if it does not end, or had failed."""
        process = self.process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDING_S_MAX)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise PeerError(f"{self.name}: the agent did not end within {ENDING_S_MAX:.0f} s") from error
        finally:
            self.process = None
            if self._said is not None:
                self._said.close()
        if process.returncode:
            raise PeerError(f"{self.name}: the agent failed; see {self.log}")

    def check(self) -> None:
        """Raises PeerError if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise PeerError(f"{self.name}: the agent ended: {said[-1] if said else 'without a word'}")


class Team:
    """The agents, and the operator's view of them."""

    def __init__(self, folder: Path, webs: Sequence[Server], receiver: Receiver) -> None:
        """receiver: of the second agent's webhook."""
        self.folder, self.keys = folder, folder / "keys"
        self.agents = [Agent(web.log.parent.parent.name, web.log.parent.parent) for web in webs]
        seeds = self._issue()
        for number, (agent, web) in enumerate(zip(self.agents, webs, strict=True)):
            text = CONFIGURATION.format(
                name=agent.name, port=agent.port, seeds=json.dumps(seeds[:2]), format=json.dumps(web.format)
            )
            sinks = {0: SINK, 1: HOOK.format(url=receiver.url, secret=receiver.secret)}
            (agent.folder / "elf.toml").write_text(text + sinks.get(number, ""), encoding="utf-8")

    def _issue(self) -> list[str]:
        """Make the authority and the keys of all agents and the operator. Returns the agents' seed lines."""
        run("keys", "init", "--dir", self.keys)
        seeds = []
        for agent in self.agents:
            address = f"127.0.0.1:{agent.port}"
            said = self._keys(agent.name, "agent", "--address", address)
            seeds += [line.removeprefix("seed: ") for line in said.splitlines() if line.startswith("seed: ")]
        self._keys("operator", "operator")
        return seeds

    def _keys(self, name: str, role: str, *more: str) -> str:
        out = self.keys / f"{name}.keys"
        return run("keys", "issue", name, "--role", role, "--dir", self.keys, "-o", out, *more)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run all agents; at the end stop them in order."""
        try:
            for agent in self.agents:
                agent.start()
            self._wait_for_all()
            yield
            for agent in self.agents:
                agent.stop()
        finally:
            for agent in self.agents:
                if agent.process is not None and agent.process.poll() is None:
                    agent.kill()

    def _wait_for_all(self) -> None:
        """Wait until each agent sees all others."""
        until = time.monotonic() + READY_S_MAX
        for agent in self.agents:
            while self._members(agent) < len(self.agents):
                agent.check()
                if time.monotonic() > until:
                    raise PeerError(f"the agents did not meet within {READY_S_MAX:.0f} s; see {agent.log}")
                time.sleep(ASK_AGAIN_S)

    def _members(self, agent: Agent) -> int:
        if not agent.control.exists():
            return 0
        try:
            status = json.loads(run("mesh", "status", "--agent", agent.control, "--output", "json"))
        except PeerError:
            return 0  # its socket exists, but nothing listens at it yet
        return sum(member["state"] == "alive" for member in status["members"])

    def start_job(self, name: str, sql: str, lateness: str, *more: str) -> None:
        """Start a job, signed by the operator, at one agent; it spreads to the others."""
        options = ("--sql", sql, "--lateness", lateness, "--sink", "lake", *more)
        self.change("start", name, self.agents[0], *options)

    def start_file(self, name: str, text: str) -> None:
        """Start a job of a file, which is left in the folder."""
        file = self.folder / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        self.change("start", name, self.agents[0], "-f", str(file))

    def change(self, verb: str, job: str, agent: Agent, *arguments: str) -> str:
        """`elf job VERB JOB`, signed by the operator, at one agent: what it prints."""
        keys = self.keys / "operator.keys"
        return run("job", verb, job, *arguments, "--keys", keys, "--agent", agent.control).strip()

    def try_job(self, job: str, sql: str, agent: Agent) -> None:
        """`elf job try` until it has printed a window of both queries; the trial goes on."""
        sys.stdout.flush()
        arguments = (job, "--sql", sql, "--windows", "1", "--output", "table")
        signed: tuple[str | Path, ...] = ("--keys", self.keys / "operator.keys", "--agent", agent.control)
        command = elf("job", "try", *arguments, *signed)
        done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise PeerError(f"elf job try {job} failed")

    def versions(self, job: str) -> list[tuple[str, int]]:
        """(version, since when in microseconds) of each change that came into force, oldest first."""
        steps = json.loads(run("job", "history", job, "--agent", self.agents[0].control, "--output", "json"))
        held = [step for step in steps if step["state"] in ("in force", "replaced")]
        return [(step["version"], step["from_us"]) for step in held]

    def master(self, job: str) -> Agent:
        """The agent at the top of a job's tree, once all agents take part. Raises PeerError."""
        until = time.monotonic() + READY_S_MAX
        while time.monotonic() < until:
            tree = json.loads(run("mesh", "tree", job, "--agent", self.agents[0].control, "--output", "json"))
            if _size(tree) == len(self.agents):
                return next(agent for agent in self.agents if agent.name == tree["name"])
            time.sleep(ASK_AGAIN_S)
        raise PeerError(f"the tree of {job} did not grow to all agents within {READY_S_MAX:.0f} s")

    def watch(self, job: str, agent: Agent) -> subprocess.Popen[bytes]:
        """`elf job watch` at an agent."""
        sys.stdout.flush()
        command = elf("job", "watch", job, "--agent", agent.control, "--output", "table")
        return subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL)


def _size(tree: dict[str, Any]) -> int:
    return 1 + sum(map(_size, tree["children"]))
