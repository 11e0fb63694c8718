"""A mesh of agents on hosts, with their servers and logs: the target of faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.torture import rotation
from tests.torture.agents import (
    DISK_MIB,
    LAKE_DISK_MIB,
    Agent,
    Authority,
    End,
    RefusedError,
    clock_library,
    configure,
    elf,
)
from tests.torture.hosts import Hosts
from tests.torture.jobs import CHANGING, DOOMED, JOBS, Job
from tests.torture.options import Options
from tests.torture.oracle import Log
from tests.torture.readers.receivers import Receivers
from tests.torture.recorder import Recorder
from tests.torture.rotation import Rotation
from tests.torture.servers import Server

READY_S_MAX = 180.0
ASK_AGAIN_S = 0.2
STYLES = ("plain", "combined", "apache", "plain", "plain", "plain", "plain")
MODES = (
    rotation.DELAYED,
    rotation.CREATE,
    rotation.ZSTD,
    rotation.DATED,
    rotation.COPIED,
    rotation.COMPRESSED,
    rotation.CREATE,
)
GUESTS = 2
SPARE = "spare"
"""A host without a server, where twins run."""
HUB = "hub"
"""The host of the receivers."""
CLOCKED = (1, 2)
"""The host whose clock can step."""
SINKS = ("east", "west")
DELIVERING = 2
"""So many agents have the sinks `broker` and `hook`, each as one sink: the first one that has not left delivers."""
SERVICE_S = 2.0
"""An agent that ended unexpectedly is started again so much later, as by systemd."""


class World:
    """`agents` by the names of their hosts, guests too."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.names = [f"web{number + 1}" for number in range(options.agents)]
        self.guests = [f"guest{number + 1}" for number in range(GUESTS)]
        self.hosts = Hosts([*self.names, *self.guests, SPARE, HUB], folder)
        self.receivers = Receivers(self.hosts, HUB, folder / "receivers")
        self.is_over = threading.Event()
        self.ends: list[End] = []
        self.gone: dict[str, str] = {}
        """Agents that left or were taken out for good, and how."""
        self.doubtful_ms: dict[str, int] = {}
        self.twins_ms: list[tuple[str, float, float]] = []
        """Agents in whose place another process with their key and other logs was, and from and to when."""
        self.left_ms: dict[str, int] = {}
        """Agents that left, and when."""
        self.servers: dict[str, Server] = {}
        self.agents: dict[str, Agent] = {}
        self.rotations: dict[str, Rotation] = {}
        self.lakes: dict[str, Path] = {}
        self._make()
        self.recorder = Recorder(
            folder / "samples.jsonl",
            lambda: list(self.agents.values()),
            [each.parent for each in self.lakes.values()],
        )

    def _make(self) -> None:
        site = self.folder / "site"
        site.mkdir()
        (site / "page.html").write_text("<html>" + "a page " * 40 + "</html>")
        self.authority = Authority(self.folder / "authority")
        styles = [*STYLES[: len(self.names)], *STYLES[-GUESTS:]]
        modes = [*MODES[: len(self.names)], *MODES[-GUESTS:]]
        library = clock_library(self.folder)
        for number, name in enumerate([*self.names, *self.guests]):
            server = self.servers[name] = Server(self.hosts, name, styles[number])
            server.configure(site)
            self.rotations[name] = Rotation(server, rotation.MODES.get(self.options.mode, modes[number]))
            self.hosts.disk(name, "disk", DISK_MIB)
            folder = self.folder / name
            self.agents[name] = Agent(self.hosts, name, folder, library if number in CLOCKED else None)
        self._configure()

    def _configure(self) -> None:
        self.seeds = seeds = {name: self.authority.issue(agent) for name, agent in self.agents.items()}
        for number, (name, agent) in enumerate(self.agents.items()):
            sink = SINKS[number] if number < len(SINKS) else ""
            if sink:
                self.lakes[sink] = self.hosts.disk(name, "lake", LAKE_DISK_MIB) / "files"
            server = self.servers[name]
            configure(
                agent,
                format=server.format,
                seeds=[seeds[each] for each in self.names[:3]],
                timings=self.options.timings,
                sink=sink,
                more=self.receivers.sinks() if number < DELIVERING else "",
            )
            (agent.folder / "hook.secret").write_text(self.receivers.secret)
            (agent.folder / "hook.secret").chmod(0o600)

    # For faults.

    @property
    def living(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.is_running]

    def well(self, *but: str) -> Agent:
        """A running agent that answers, if possible not one of those. Raises OSError."""
        names = [name for name in self.agents if name not in but]
        for name in [*names, *but]:
            agent = self.agents[name]
            if agent.is_running and agent.socket.exists() and agent.lock.acquire(blocking=False):
                agent.lock.release()
                return agent
        raise OSError("no agent runs")

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the run."""
        self.is_over.wait(seconds)

    def until(self, happened: Callable[[], object], what: str, seconds: float = READY_S_MAX) -> None:
        """Repeat until it holds. Raises OSError."""
        until = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > until:
                raise OSError(f"after {seconds:.0f} s: {what}")
            time.sleep(ASK_AGAIN_S)

    # Start.

    def begin(self) -> None:
        """Start servers and agents; wait until all agents see each other and know all jobs."""
        self.receivers.start()
        for name in self.names:
            self.servers[name].start()
            self.agents[name].start()
        for name in self.names:
            self.until(partial(self._sees_all, self.agents[name]), f"{name} does not see all")
        members = self.agents[self.names[0]].status()["members"]
        self.bare = max(member["memory_bare"] or 0 for member in members)
        for job in (*JOBS, CHANGING, DOOMED):
            self.start_job(job)

    def _sees_all(self, agent: Agent) -> bool:
        return self.sees(agent) >= len(self.names)

    @staticmethod
    def sees(agent: Agent) -> int:
        return sum(member["state"] == "alive" for member in agent.status().get("members", ()))

    def start_job(self, job: Job) -> None:
        sinks = [word for sink in (*job.sinks, *job.receivers) for word in ("--sink", sink)]
        values = () if job.least is None else ("--param", f"least={job.least}")
        lateness = f"{self.options.lateness_s:.0f}s"
        at = self.agents[self.names[0]].socket
        keys = self.authority.operator
        elf(
            "job",
            "start",
            job.name,
            "--sql",
            job.sql,
            "--lateness",
            lateness,
            *sinks,
            *values,
            "--keys",
            keys,
            "--agent",
            at,
        )
        for name in self.names:
            self.until(partial(self._knows, self.agents[name], job), f"{name} knows no master of {job.name}")

    @staticmethod
    def _knows(agent: Agent, job: Job) -> bool:
        with suppress(RefusedError):
            jobs = json.loads(elf("job", "list", "--agent", agent.socket, "--output", "json"))
            return any(each["name"] == job.name and each["master"] for each in jobs)
        return False

    def welcome(self) -> None:
        for number, name in enumerate(self.names):
            self.servers[name].welcome(self.options.rate, self.options.seed * 100 + number)

    # During the run.

    def revive(self) -> None:
        """Restart agents that ended unexpectedly, and record it."""
        for agent in list(self.agents.values()):
            if agent.is_wanted and not agent.is_running and agent.lock.acquire(blocking=False):
                try:
                    if agent.is_wanted and not agent.is_running:
                        self._ended(agent)
                finally:
                    agent.lock.release()

    def note_left(self, name: str) -> None:
        """It has left for good: a later change cannot have its lines read again."""
        self.gone[name] = "left"
        self.left_ms[name] = int(time.time() * 1_000)

    def _ended(self, agent: Agent) -> None:
        assert agent.process is not None
        if agent.is_leaving and agent.process.returncode == 0:
            agent.is_wanted = False
            self.note_left(agent.name)
            return
        said = agent.log_file.read_text(errors="replace")[-2_000:]
        self.ends.append(End(time.time(), agent.name, agent.process.returncode, said))
        self.recorder.event("ended", agent.name, f"ended by itself with {agent.process.returncode}")
        self.pause(SERVICE_S)
        agent.start()

    def rotate(self, name: str) -> None:
        self.rotations[name].rotate()

    # End.

    def dismiss(self) -> None:
        """Stop all visitors."""
        threads = [threading.Thread(target=server.dismiss) for server in self.servers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def logs(self) -> list[Log]:
        """The logs that the oracle reads."""
        return [self._log(name) for name in self.agents if self.servers[name].oracle.exists()]

    def _log(self, name: str) -> Log:
        server, mode = self.servers[name], self.rotations[name].mode
        rotated = sorted(server.log.parent.glob("access.log*")) if mode.is_lossy else []
        return Log(name, server.oracle, server.style == "plain", tuple(rotated), self.doubtful_ms.get(name))

    def close(self) -> None:
        """End all processes; any left end with the run's namespaces."""
        self.is_over.set()
        threads = [threading.Thread(target=agent.stop) for agent in self.agents.values() if agent.is_running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in self.servers.values():
            server.stop()
        self.receivers.close()
        self.recorder.close()
