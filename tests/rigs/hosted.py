"""A mesh of the simulator whose first host has a control socket: commands talk to it while its virtual time runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import sqlglot
from msgspec.structs import replace

from elf.agent.config.specs import SinkSection
from elf.agent.control.server import ControlServer
from elf.agent.control.service import ControlService
from elf.agent.control.signed_messages import SignedMessages
from elf.agent.host.sinks.lags import lags_of
from elf.agent.host.sinks.sink_host import SinkHost
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import Traffic, VirtualSource
from elf.agent.simulator.world.world import PATHS, World
from elf.cbt.budget import Budget
from elf.jobmaster.directory.job_spec import decode_job
from elf.sinks.spec import Broker, Hook
from elf.srt.messages.effects import Send, Write
from elf.srt.messages.ids import NodeId, job_id, node_id
from elf.srt.messages.messages import Contact, Item
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import EstimateReport, EstimateRequest, StatusReport
from elf.srt.security.certificates import TrustError

SECOND = 1_000_000
TRAFFIC = Traffic(lines_per_s=20.0)
STEP_US = 20_000
STEP_S = 0.001
"""Virtual time runs at most twenty times as fast as the wall clock."""
PATIENCE_S = 60.0
"""No wait of a test takes longer, unless something is broken, also on a slow machine that does other work."""
LOGGED_S = 600
"""Virtual seconds for which servers log; a test ends long before."""


class NoLogs:
    """Hosts in a world have no files to estimate from."""

    def __init__(self, host: Hosted) -> None:
        self._host = host

    def take(self, source: NodeId, request: EstimateRequest) -> None:
        report = EstimateReport(request.number, problem="its log has no lines yet")
        self._host.perform(self._host.node.carry([Send(source, report)], self._host.clock_us()))


class Readable(list[Any]):
    """Records that can be read until the agent has begun, as a real disk's."""

    is_closed = False

    def __iter__(self) -> Iterator[Any]:
        assert not self.is_closed
        return super().__iter__()


class AtOnce:
    """The disk of an actor, for records that are durable at once."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def write(self, write: Write, done: Callable[[], None]) -> None:
        self._actor.disk.begin(write.key, write.record)
        done()


class Hosted:
    """An actor in a world, as the control service needs it."""

    is_signed = False

    def __init__(self, world: World, actor: Actor) -> None:
        self.world, self.actor = world, actor
        self.said: list[str] = []
        self.notices = self.said.append
        self.estimates = NoLogs(self)
        self.store = AtOnce(actor)

    @property
    def node(self) -> MeshNode:
        assert self.actor.node is not None
        return self.actor.node

    def refusal(self, item: Item) -> TrustError | None:
        return None

    def clock_us(self) -> int:
        return self.world.clock(self.actor)

    def submit(self, item: Item) -> None:
        self.perform(self.node.put(item, self.clock_us()))

    def announce(self, item: Item) -> None:
        self.submit(self.node._sign(item))

    sinks: SinkHost | None = None
    signed_messages: SignedMessages

    def describe(self, tell: StatusReport) -> StatusReport:
        lags = lags_of(self.node.seats.values(), self.clock_us())
        return replace(tell, version="1.0", memory_bytes=1 << 20, memory_max=1 << 26, lags=lags)

    def end(self, error: Exception) -> None:
        raise error

    async def leave(self) -> bool:
        self.perform(self.node.leave(self.clock_us()))
        while not self.node.has_left:
            await asyncio.sleep(STEP_S)
        return True

    def perform(self, effects: Sequence[Outer]) -> None:
        self.world._perform(self.actor, effects)


def _takes_part(host: Hosted, job: str) -> bool:
    """Whether that agent works for the job, and knows of an agent that serves it."""
    seat = host.node.seats.get(job_id(job))
    is_known = host.node.directory.get("ballot", job_id(job)) is not None
    return seat is not None and seat.worker is not None and is_known


def _knows_end(host: Hosted, job: str) -> bool:
    item = host.node.directory.get("job", job_id(job))
    return item is not None and decode_job(item).stopped


class SinkWorld(World):
    """A world whose sinks are agents: of every job, those that say so in the directory."""

    serving: tuple[str, ...] = ()
    lakes: tuple[str, ...] = ("lake",)
    streams: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()

    def _make_node(self, actor: Actor) -> MeshNode:
        super()._make_node(actor)
        contact = Contact(actor.id, actor.life)
        sinks = self.lakes + self.streams if actor.name in self.serving else ()
        actor.node = MeshNode(
            contact,
            actor.name,
            self.parameters,
            Random(actor.id + bytes([actor.life])),
            ("access",),
            budget=Budget(1 << 30),
            sinks=sinks,
            streams=self.streams if sinks else (),
            moving=self.moving if sinks else (),
            stores_states=True,
        )
        return actor.node


class Mesh:
    """`nodes` agents that have found each other, in a loop of its own thread; every one has a control socket. lake: where web1
    keeps the sink "lake"; lakes: others that it has; streams: its sinks on standard output, in JSON lines; brokers: its sinks at
    MQTT brokers; hooks: its webhooks; others: sinks of other kinds. serving: the agents that have these sinks."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        seed: int = 1,
        seconds: int = LOGGED_S,
        lake: Path | None = None,
        lakes: Mapping[str, Path] = MappingProxyType({}),
        streams: tuple[str, ...] = (),
        brokers: Mapping[str, Broker] = MappingProxyType({}),
        hooks: Mapping[str, Hook] = MappingProxyType({}),
        others: Sequence[SinkSection] = (),
        parameters: Parameters | None = None,
        serving: tuple[str, ...] = ("web1",),
    ) -> None:
        self.world = SinkWorld(seed, parameters or Parameters())
        self._lakes = ({"lake": lake} if lake else {}) | dict(lakes)
        self._streams, self._brokers, self._hooks, self._others = streams, brokers, hooks, others
        self.world.serving = serving if self._lakes or streams or brokers or hooks or others else ()
        self.world.moving = (*brokers, *hooks, *(each.name for each in others if each.moves))
        self.world.lakes, self.world.streams = (
            tuple(self._lakes),
            (*streams, *brokers, *hooks, *(each.name for each in others)),
        )
        self.sink: SinkHost | None = None
        self.hosts: list[Hosted] = []
        self._folder, self._nodes, self._seconds = folder, nodes, seconds
        self._todo: list[tuple[Callable[[], None], threading.Event]] = []
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def socket(self, number: int = 0) -> Path:
        return self._folder / f"control{number}.sock"

    def _start(self) -> None:
        seeds: list[Contact] = []
        for number in range(self._nodes):
            name = f"web{number}"
            traffic = VirtualSource(node_id(name.encode()), 1, TRAFFIC, 0, self._seconds * SECOND, EPOCH_US)
            actor = self.world.add_host(name, traffic)
            self.world.start(actor, seeds)
            assert actor.node is not None
            seeds = [self.world.actors[next(iter(self.world.actors))].node.overlay.me]  # type: ignore[union-attr]
            self.hosts.append(Hosted(self.world, actor))
        self.world.run_until(5_000_000)

    async def _run(self) -> None:
        self._start()
        servers = []
        for number, host in enumerate(self.hosts):
            service = ControlService(host)
            host.signed_messages = SignedMessages(service, host)
            servers.append(ControlServer(self.socket(number), service.serve))
        for server in servers:
            await server.start()
        for name in self.world.serving:
            self.open_sink(name)
        self._ready.set()
        while not self._stop.is_set():
            while self._todo:
                do, done = self._todo.pop()
                do()
                done.set()
            self.world.run_until(self.world.now_us + STEP_US)
            await asyncio.sleep(STEP_S)
        for server in servers:
            await server.close()
        for host in self.hosts:
            if host.sinks is not None:
                await host.sinks.close()

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Poll until it holds: another thread's virtual time cannot be waited on. It needs the time of a look that takes long."""
        begun = time.monotonic()
        until = begun + PATIENCE_S
        while not happened():
            now = time.monotonic()
            assert now < until
            time.sleep(max(0.005, now - begun))
            begun = time.monotonic()

    def wait_served(self, job: str) -> None:
        """Until one agent serves the job, and every agent knows that it does, and works for it."""
        self.wait_for(lambda: self.masters(job) == 1 and all(_takes_part(host, job) for host in self.hosts))

    def wait_stopped(self, job: str) -> None:
        """Until nobody serves the job, and every agent knows that it was stopped."""
        self.wait_for(lambda: not self.masters(job) and all(_knows_end(host, job) for host in self.hosts))

    def masters(self, job: str) -> int:
        """How many agents serve the job."""
        seats = [host.node.seats.get(job_id(job)) for host in self.hosts]
        return sum(seat is not None and seat.master is not None for seat in seats)

    def tree_size(self, job: str) -> int:
        """Nodes that are somebody's child, and the root."""
        seats = [host.node.seats.get(job_id(job)) for host in self.hosts]
        return 1 + len({child for seat in seats if seat is not None for child in tuple(seat.tree.children)})

    def watched(self, job: str) -> int:
        """By how many."""
        seats = [host.node.seats.get(job_id(job)) for host in self.hosts]
        return sum(
            len(seat.master.watchers) for seat in seats if seat is not None and seat.master is not None
        )

    def truth(self, start: str, size_us: int) -> dict[str, int]:
        """Lines by path in a window, from one pass over all logs."""
        return self.truth_at(
            int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()) * SECOND, size_us
        )

    def truth_at(self, low: int, size_us: int) -> dict[str, int]:
        """The same, by microseconds since 1970."""
        found: Counter[str] = Counter()
        for host in self.hosts:
            for file in host.actor.source.files if host.actor.source else ():
                inside = (file.event_us >= low) & (file.event_us < low + size_us)
                found.update(PATHS.paths[key] for key in file.key[inside].tolist())
        return dict(found)

    def in_world(self, do: Callable[[], None]) -> None:
        """Run it in the loop's thread, between two moments."""
        done = threading.Event()
        self._todo.append((do, done))
        assert done.wait(PATIENCE_S)

    def open_sink(self, name: str = "web1") -> None:
        """The sinks of that agent, with what its disk holds."""
        if name in self.world.serving:
            host = next(each for each in self.hosts if each.actor.name == name)
            sections = [SinkSection(name, lake) for name, lake in self._lakes.items()]
            sections += [SinkSection(name, console="json") for name in self._streams]
            sections += [SinkSection(name, mqtt=broker) for name, broker in self._brokers.items()]
            sections += [SinkSection(name, webhook=hook) for name, hook in self._hooks.items()]
            sections += self._others
            records = {key: Readable(known) for key, known in host.actor.disk.records.items()}
            if host.sinks is not None:  # of a life that was killed: its connections end too
                self._killed = asyncio.get_running_loop().create_task(_ended(host.sinks))
            host.sinks = SinkHost(sections, host, records, self._folder)
            self.sink = host.sinks if name == "web1" else self.sink
            for each in records.values():
                each.is_closed = True

    def kill(self, host: Hosted) -> None:
        """An agent crashes, with the connections of its sinks."""
        self.world.crash(host.actor)
        if host.sinks is not None:
            self._killed = asyncio.get_running_loop().create_task(_ended(host.sinks))
            host.sinks = None

    def restart(self, host: Hosted) -> None:
        """An agent that has crashed starts again, without its control socket."""
        seed = next(each for each in self.hosts if each is not host and each.actor.node is not None)
        self.world.start(host.actor, [seed.node.overlay.me])

    def __enter__(self) -> Mesh:
        sqlglot.parse_one(
            "SELECT 1", dialect="spark"
        )  # virtual time runs on while a command loads what compiles its query
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *about: object) -> None:
        self._stop.set()
        self._thread.join()


async def _ended(sink: SinkHost) -> None:
    """Its connections end, as those of a process that is killed."""
    await sink._outlets.close()
    await sink.alerts.close()
