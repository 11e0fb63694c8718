"""The hosts, twins and sinks of a simulated mesh, on one network, with one calendar and one time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.rivals import HEARSAY_S
from elf.agent.simulator.world.calendar import Calendar
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.network import Network
from elf.agent.simulator.world.sources import VirtualSource
from elf.jobmaster.delivery.ledger import Ledger
from elf.srt.messages.ids import JobId, NodeId, node_id
from elf.srt.messages.messages import Contact, Message
from elf.srt.messages.results import AlertPut, Put

EPOCH_US = 1_700_000_000_000_000
"""Event time of virtual time 0: in November 2023."""

Observer = Callable[[int, str, "Actor | None", Any], None]
"""(world time, event, actor, details); events: "deliver", "crash", "start", "put", "notice", …"""


class Actor:
    """A host: its web server's logs, its disk, its clock, and the agent while one runs."""

    __slots__ = (
        "address",
        "begun_us",
        "clock_us",
        "disk",
        "features",
        "id",
        "inbox",
        "is_paused",
        "life",
        "name",
        "node",
        "received",
        "rival",
        "seeds",
        "source",
        "wake_us",
    )

    def __init__(
        self, name: str, source: VirtualSource | None, disk: Disk, twin_of: Actor | None = None
    ) -> None:
        self.name = name
        self.id: NodeId = node_id(name.encode()) if twin_of is None else twin_of.id
        self.address = "" if twin_of is None else name
        self.source = source
        self.features = b""
        """Of plans that its agent knows; b\"\": all."""
        self.disk = disk
        self.node: MeshNode | None = None
        self.clock_us = EPOCH_US  # what its clock shows at virtual time 0
        self.life = 0
        self.is_paused = False
        self.inbox: list[tuple[NodeId, Message]] = []
        self.wake_us: int | None = None
        self.seeds: tuple[Contact, ...] = ()
        self.begun_us = -round(HEARSAY_S * 1e6)
        self.rival: Contact | None = None
        """The other process with this one's key, for whose end this one waits; None if it does not wait."""

    @property
    def place(self) -> bytes:
        """Its place in the network."""
        return self.address.encode() or self.id


class Places:
    """The actors, the time, and the observers of events. `World` adds the behaviour."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.now_us = 0
        self.calendar = Calendar()
        self.actors: dict[NodeId, Actor] = {}
        self.twins: dict[NodeId, Actor] = {}
        """Running processes with another one's key. `twinned`: the keys that ever had such a process."""
        self.twinned: set[NodeId] = set()
        self.elsewhere: dict[bytes, Actor] = {}
        """The twins by their address."""
        self.sinks: dict[NodeId, dict[JobId, Ledger]] = {}
        self.observers: list[Observer] = []
        self.put_observers: list[Callable[[Put, int], None]] = []
        """Called with every window that a sink takes, and the time."""
        self.taking: NodeId = b""
        """The sink that takes a window, while observers are notified of it."""
        self.take_alert: Callable[[NodeId, AlertPut, Actor | None], Message | None] = lambda *about: None
        """Takes alerts for a sink, at that agent if the sink is one that moves, and answers."""

    def sink_at(self, number: int) -> NodeId:
        return list(self.sinks)[number]

    def clock(self, actor: Actor) -> int:
        return self.now_us + actor.clock_us

    def at(self, time_us: int, do: Callable[[], None]) -> None:
        """Call `do` at that time."""
        self.calendar.add(time_us, lambda a, b: do(), None, None)

    def run_until(self, time_us: int) -> None:
        """Run all events up to and including that time."""
        for event in self.calendar.upto(time_us):
            self.now_us, _, do, a, b = event
            do(a, b)
        self.now_us = time_us

    def notify(self, what: str, who: Actor | None, about: Any) -> None:
        for observer in self.observers:
            observer(self.now_us, what, who, about)

    def put_to(self, sink: NodeId, put: Put) -> None:
        """The sink takes a window."""
        self.taking = sink
        self.notify("put", None, put)
        for observer in self.put_observers:
            observer(put, self.now_us)

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        self.at(self.now_us + delay_us, do)

    def process_at(self, place: bytes) -> Actor | None:
        return self.actors.get(place) or self.elsewhere.get(place)
