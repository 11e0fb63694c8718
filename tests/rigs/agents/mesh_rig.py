"""A mesh of real agents for tests: processes of `elf agent run` on loopback, each beside a web server's log of its own.

    with Fleet(tmp_path, 3) as fleet:
        fleet.start_job("hits", SQL)
        with fleet.traffic(), fleet.watch("hits") as seen:
            seen.wait(lambda: seen.finals >= 2)
            fleet.agents[1].kill()
        assert fleet.settled(seen) == fleet.counted()

Nothing here sleeps where it can wait for something, and everything it started has ended when the `with` is left. Timings are fast
(`FAST`), so that a death is found within half a second. Event times are the clock's, to the millisecond.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from elf.agent.control import protocol as w
from elf.agent.control.client import SOCKET, Control
from elf.errors import ElfError
from tests.rigs.agents.seen import WAIT_S, Seen, Totals
from tests.rigs.agents.zygote import Forked, Zygote, plain_environment

FAST = {
    "flush": "60ms",
    "combine_max": "15ms",
    "emit": "60ms",
    "park": "900ms",
    "idle_grace": "300ms",
    "acknowledge": "90ms",
    "retransmit_min": "150ms",
    "retransmit_max": "450ms",
    "link_dead": "800ms",
    "probe": "150ms",
    "probe_timeout": "60ms",
    "suspect": "450ms",
    "join_retry": "100ms",
    "repair": "400ms",
    "path": "250ms",
    "life": "250ms",
    "parent_timeout": "900ms",
    "tree_retry": "100ms",
    "size": "50ms",
    "gossip": "250ms",
    "rumor": "10ms",
    "append": "5ms",
    "ask": "50ms",
    "ask_max": "250ms",
    "transfer_max": "1500ms",
    "disk_max": "3s",
    "seat_retry": "300ms",
    "seat_retry_max": "60s",
}
FORMAT = '$msec "$request" $status $body_bytes_sent'
WINDOW_S = 1
SQL = (
    f"SELECT window, status, count(*) AS hits, sum(bytes) AS bytes FROM access "
    f"GROUP BY window(time, '{WINDOW_S} second'), status"
)
LATENESS = "300ms"
AHEAD_S = 3.0
"""The lines that close a log's last windows are so far in its future."""
STATUSES = (200, 200, 200, 301, 404, 500)
LOOK_S = 0.5
"""Polling looks at least so often."""
PORTS, PARTS = range(10_000, 32_768), 16
"""Ports that the kernel gives to nobody who asks for any port. In how many parts the processes of xdist divide them."""


def _ports() -> Iterator[int]:
    """All ports of this process of xdist, in random order, again and again."""
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PARTS
    ports = list(PORTS)[own::PARTS]
    random.SystemRandom().shuffle(ports)
    return cycle(ports)


_PORTS = _ports()
warm: Zygote | None = None
"""Starts agents where there is one: in tests, without the fixture `bare_agents`."""


def free_ports(count: int) -> list[int]:
    """Free ports that nobody else is given before an agent binds them, or while that agent is dead."""
    return list(islice(filter(_is_free, _PORTS), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_until(happened: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Poll every few milliseconds, since other processes cannot be waited on. A look that takes long, as a command does, is not
    repeated at once: the agents that it waits for need the processor."""
    begun = time.monotonic()
    until = begun + seconds
    while not happened():
        now = time.monotonic()
        assert now < until, f"after {seconds:.0f} s: {what}"
        time.sleep(min(LOOK_S, max(0.01, 2 * (now - begun))))
        begun = time.monotonic()


class Agent:
    """One agent and its log."""

    def __init__(self, folder: Path, name: str, port: int, config: str, prefix: Sequence[str] = ()) -> None:
        self.folder, self.name, self.port, self._prefix = folder, name, port, prefix
        self.log = folder / "access.log"
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.python_path: Path | None = None
        """A folder whose `sitecustomize` its process loads: for a bug that is no part of elf."""
        folder.mkdir(parents=True)
        (folder / "elf.toml").write_text(config)
        self.log.touch()

    @property
    def socket(self) -> Path:
        return self.folder / "state" / SOCKET

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Run it, unless it runs."""
        assert not self.is_running
        self.process = self.launch()

    def launch(self) -> subprocess.Popen[bytes] | Forked:
        """`elf agent run`, with its output in `said`: in a test it is forked from a process that has imported elf already.

        It is a bare `python -m elf` in benchmarks, in network namespaces, with a `python_path`, and in tests with the fixture
        `bare_agents`: those of memory, because forked processes share pages; and some of the command itself, of its signals
        and of its exit codes, because forked processes also share the seed of hashes and import nothing anew.
        """
        arguments = ["agent", "run", "-c", str(self.folder / "elf.toml")]
        environment, said = plain_environment(), self.folder / "said"
        if self.python_path is not None:
            environment["PYTHONPATH"] = str(self.python_path)
        elif warm is not None and not self._prefix:
            return warm.start(arguments, self.folder, environment, said)
        with said.open("ab") as output:
            return subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "elf", *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def said(self) -> str:
        """The agent's output in all its lives."""
        path = self.folder / "said"
        return path.read_text() if path.exists() else ""

    def wait_ready(self) -> None:
        """Until commands reach it."""

        def answers() -> bool:
            assert self.is_running, f"{self.name} ended:\n{self.said()}"
            with suppress(ElfError), Control(self.socket) as control:
                control.one(w.JobList())
                return True
            return False

        wait_until(answers, f"{self.name} does not answer:\n{self.said()}")

    def ask(self, request: w.Request) -> Any:
        """The one answer of a request."""
        with Control(self.socket) as control:
            return control.one(request)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, as in a power failure."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it in order. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.signal(signal.SIGCONT)
        self.signal(number)
        return self.process.wait(WAIT_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def write(self, lines: Sequence[str]) -> None:
        """At once, at the end of the log, wherever it is by now."""
        with self.log.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def rotate(self) -> None:
        """As logrotate does it: every file a number higher, a new one in the place of the first."""
        for path in sorted(self.folder.glob("access.log.*"), key=lambda path: -int(path.suffix[1:])):
            path.rename(self.folder / f"access.log.{int(path.suffix[1:]) + 1}")
        self.log.rename(self.folder / "access.log.1")
        self.log.touch()

    def lines(self) -> Iterator[str]:
        """All that its server has logged."""
        for path in self.folder.glob("access.log*"):
            yield from path.read_text().splitlines()

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident."""
        return _of_process(self, "VmRSS:")


def peak_bytes(agent: Agent) -> int:
    """What it had resident at most, in this life."""
    return _of_process(agent, "VmHWM:")


def _of_process(agent: Agent, name: str) -> int:
    for line in Path(f"/proc/{agent.pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def line(at_s: float, status: int, size: int) -> str:
    """A line in the rig's format."""
    return f'{at_s:.3f} "GET /p HTTP/1.1" {status} {size}'


class Fleet:
    """Agents 0 … count-1, all started and, unless `wait` is False, all in one mesh.

    timings: of [mesh]. agent: more lines of each agent's [agent] section. more: text behind the sections of agent number i.
    security: "none", or "curve" with keys that the rig makes; "alone": a single agent without listen.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        timings: Mapping[str, str] = FAST,
        agent: str = "",
        more: Callable[[int], str] = lambda number: "",
        security: str = "none",
        seeds: int = 2,
        wait: bool = True,
    ) -> None:
        self.folder, self.security, self._wait = folder, security, wait
        self._timings, self._agent, self._more, self._n_seeds = timings, agent, more, seeds
        self.agents: list[Agent] = []
        self._keys: list[str] = []
        self._seeds: list[str] = []
        self._random = random.Random(1)
        self.last_s = 0.0
        """Time of the last line."""
        self._make(count)

    def _make(self, count: int) -> None:
        ports = free_ports(count)
        if self.security == "curve":
            self._issue(count, ports)
        else:
            self._seeds = [self._address(number, port) for number, port in enumerate(ports[: self._n_seeds])]
        for number, port in enumerate(ports):
            name, prefix = f"a{number}", self._prefix(number)
            config = self._config(number, name, port)
            self.agents.append(Agent(self.folder / name, name, port, config, prefix))

    def _address(self, number: int, port: int) -> str:
        """Where the others find an agent."""
        del number
        return f"127.0.0.1:{port}"

    def _prefix(self, number: int) -> Sequence[str]:
        """What stands before an agent's command."""
        del number
        return ()

    def _issue(self, count: int, ports: Sequence[int]) -> None:
        """Keys for every agent, and for an operator."""
        from elf.srt.messages.addresses import key_text
        from elf.srt.security.certificates import Authority
        from elf.srt.security.files import save_keys

        authority = self.authority = Authority()
        now_s = int(time.time())
        self.folder.mkdir(parents=True, exist_ok=True)
        save_keys(authority.issue("op", "operator", now_s), self.operator)
        for number in range(count):
            keys = authority.issue(f"a{number}", "agent", now_s)
            path = self.folder / f"a{number}.keys"
            save_keys(keys, path)
            self._keys.append(str(path))
            if number < self._n_seeds:
                self._seeds.append(f"{self._address(number, ports[number])}/{key_text(keys.curve_public)}")

    @property
    def operator(self) -> Path:
        """Bundle of keys that signs jobs."""
        return self.folder / "operator.keys"

    def _config(self, number: int, name: str, port: int) -> str:
        timings = "\n".join(f'{key} = "{value}"' for key, value in self._timings.items())
        keys = f'[keys]\nbundle = "{self._keys[number]}"' if self._keys else ""
        network = f"""\
listen = "{self._address(number, port)}"
seeds = {json.dumps(self._seeds)}
security = "{self.security}"
"""
        return f"""\
[agent]
name = "{name}"
state_dir = "state"
{network if self.security != "alone" else ""}
{self._agent}

[mesh]
{timings}

{keys}

[[source]]
name = "access"
path = "access.log*"
format = '{FORMAT}'
start = "beginning"

{self._more(number)}
"""

    def __enter__(self) -> Fleet:
        try:
            for agent in self.agents:
                agent.start()
            if self._wait:
                self.wait_joined()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            for agent in self.agents:
                error.add_note(f"--- {agent.name} said ---\n{agent.said()[-2_000:]}")

    def close(self) -> None:
        """End every agent."""
        running = [agent for agent in self.agents if agent.is_running]
        for agent in running:
            agent.signal(signal.SIGKILL)
        for agent in running:
            assert agent.process is not None
            agent.process.wait(WAIT_S)

    def wait_joined(self) -> None:
        """Until each running agent counts all of them as alive."""
        running = [agent for agent in self.agents if agent.is_running]
        for agent in running:
            agent.wait_ready()
        for agent in running:
            wait_until(
                partial(self._sees, agent, len(running)), f"{agent.name} does not see {len(running)} agents"
            )

    def wait_known(self) -> None:
        """Until each agent has the adverts of all: commands count and name agents by these, and they come after `wait_joined`."""
        for agent in self.agents:
            wait_until(partial(self._knows_all, agent), f"{agent.name} lacks adverts")

    def _knows_all(self, agent: Agent) -> bool:
        source = agent.ask(w.JobGet("any", columns=True)).schemas.get("access")
        return source is not None and source.followers == len(self.agents)

    def _sees(self, agent: Agent, count: int) -> bool:
        """An agent that restarts opens its control socket again."""
        try:
            return self.alive(agent) >= count
        except (ElfError, OSError):
            return False

    @staticmethod
    def alive(agent: Agent) -> int:
        status = agent.ask(w.MeshStatus())
        assert isinstance(status, w.Status)
        return sum(member.state == "alive" for member in status.members)

    # Jobs.

    def _knows_sink(self, at: int, sink: str) -> bool:
        """Agents see each other as alive a moment before their adverts have spread."""
        status = self.agents[at].ask(w.MeshStatus())
        assert isinstance(status, w.Status)
        return any(sink in member.sinks for member in status.members)

    def elf(self, *arguments: str, at: int = 0) -> str:
        """`elf … --agent SOCKET`, in this process. What it printed."""
        from typer.testing import CliRunner

        from elf.typer_cli import app

        result = CliRunner().invoke(app, [*arguments, "--agent", str(self.agents[at].socket)])
        assert result.exit_code == 0, f"elf {' '.join(arguments)}: {result.output} {result.exception!r}"
        return result.output

    def start_job(
        self, name: str, sql: str = SQL, *options: str, at: int = 0, lateness: str = LATENESS
    ) -> None:
        """`elf job start` at that agent, once it knows of every sink that is named; returns when every running agent knows the
        job and one serves it."""
        for before, sink in pairwise(options):
            if before == "--sink":
                wait_until(
                    partial(self._knows_sink, at, sink), f"{self.agents[at].name} knows no sink {sink}"
                )
        keys = ["--keys", str(self.operator)] if self._keys else []
        self.elf("job", "start", name, "--sql", sql, "--lateness", lateness, *keys, *options, at=at)
        running = [agent for agent in self.agents if agent.is_running]
        for agent in running:
            wait_until(partial(self.master_name, name, agent), f"{agent.name} knows no master")

    @staticmethod
    def master_name(job: str, agent: Agent) -> str:
        """The agent that serves the job, as far as that agent knows; "" if it knows none."""
        answer = agent.ask(w.JobList())
        assert isinstance(answer, w.Jobs)
        return next((each.master for each in answer.jobs if each.name == job), "")

    def master(self, job: str) -> Agent:
        """The agent that serves the job, as the first running agent knows it."""
        first = next(agent for agent in self.agents if agent.is_running)
        name = ""

        def is_known() -> str:
            nonlocal name
            name = self.master_name(job, first)
            return name

        wait_until(is_known, f"{first.name} knows nobody who serves {job}")
        return next(agent for agent in self.agents if agent.name == name)

    def beside(self, agent: Agent) -> int:
        """The number of another agent."""
        return 0 if agent is not self.agents[0] else 1

    @contextmanager
    def watch(self, job: str, at: int = 0, *also: int) -> Iterator[Seen]:
        """The windows that `elf job watch` receives at that agent meanwhile, or at several together.

        A command that is started again is told the last five final windows: where an agent is to end for longer than that, watch
        at another one too.
        """
        seen = Seen(self.agents[at].socket, job, *(self.agents[number].socket for number in also))
        try:
            yield seen
        finally:
            seen.close()

    # Lines.

    def log(self, count: int = 1) -> None:
        """So many lines, now, at each agent's server, whether the agent runs or not."""
        now_s = time.time()
        self.last_s = max(self.last_s, now_s)
        for agent in self.agents:
            agent.write([self._line(now_s) for _ in range(count)])

    def _line(self, at_s: float) -> str:
        return line(at_s, self._random.choice(STATUSES), self._random.randrange(10_000))

    @contextmanager
    def traffic(self, lines_per_s: float = 50.0, *, rotate_s: float = 0.0) -> Iterator[None]:
        """Lines at every server meanwhile; with `rotate_s` the logs are rotated now and then."""
        stop = threading.Event()

        def write() -> None:
            rotated = time.monotonic()
            while not stop.wait(1 / lines_per_s):
                self.log()
                if rotate_s and time.monotonic() - rotated > rotate_s:
                    rotated = time.monotonic()
                    for agent in self.agents:
                        agent.rotate()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close_windows(self) -> None:
        """A line far enough ahead at each server, so that every window before is final without waiting for a clock."""
        ahead_s = max(self.last_s, time.time()) + AHEAD_S
        for agent in self.agents:
            agent.write([line(ahead_s, 200, 0)])

    # Truth.

    def counted(self) -> Totals:
        """One pass over all logs: windows that ended before the lines of `close_windows`."""
        totals: dict[int, dict[int, Counter[str]]] = {}
        end_us = (int(self.last_s) // WINDOW_S + 1) * WINDOW_S * 1_000_000
        for agent in self.agents:
            for text in agent.lines():
                at, _, rest = text.partition(" ")
                status, size = rest.rpartition('"')[2].split()
                start = int(float(at)) // WINDOW_S * WINDOW_S * 1_000_000
                if start < end_us:
                    cell = totals.setdefault(start, {}).setdefault(int(status), Counter())
                    cell["hits"] += 1
                    cell["bytes"] += int(size)
        return {
            start: {status: (cell["hits"], cell["bytes"]) for status, cell in row.items()}
            for start, row in sorted(totals.items())
        }

    def settled(self, seen: Seen) -> Totals:
        """Write no more, wait until all windows are final at a watcher, and return them."""
        self.close_windows()
        wanted = set(self.counted())
        seen.wait(
            lambda: wanted <= seen.final_starts,
            lambda: f"windows {sorted(wanted - seen.final_starts)} are not final",
        )
        return {start: totals for start, totals in seen.totals().items() if start in wanted}
