"""The sinks of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elf.jobmaster.delivery.outbox import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, decode_agent
from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros
from elf.srt.messages.patterns import is_named

SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


TAKERS_MAX = 16
"""Sinks of one job, besides those that it names: with 16 of these, 32 of the outbox's bounds of memory."""


IsDead = Callable[[NodeId, AgentAdvert], bool]
"""Whether the overlay has declared the process of that advert dead."""


def server_of(name: str, adverts: Iterable[tuple[NodeId, AgentAdvert]], is_dead: IsDead) -> NodeId | None:
    """The node that serves the sink: of those that have it and have not left, the one with the lowest id; None for none. Where
    each of them may deliver in another's place, one that is alive. O(agents)."""
    having = sorted(
        (node, advert) for node, advert in adverts if name in advert.sinks and not advert.until_us
    )
    if all(name in advert.moving for _, advert in having):
        having = [each for each in having if not is_dead(*each)] or having
    return having[0][0] if having else None


class Taking:
    """Of all agents in the directory; shared by the seats of a node. The adverts are read once after each change."""

    def __init__(self, directory: Directory, is_dead: IsDead = lambda node, advert: False) -> None:
        self._directory, self._is_dead = directory, is_dead
        self._digest = -1
        self._adverts: dict[NodeId, AgentAdvert] = {}
        self._names: list[str] = []

    def server(self, name: str) -> NodeId | None:
        """See `server_of`."""
        self._read()
        return server_of(name, self._adverts.items(), self._is_dead)

    def of(self, job: str) -> list[Target]:
        """One for each name of a sink, by name. O(sinks with patterns x agents)."""
        self._read()
        targets = [self._target(name, job) for name in self._names]
        return [target for target in targets if target is not None][:TAKERS_MAX]

    def _read(self) -> None:
        if self._digest != self._directory.digest:
            self._digest = self._directory.digest
            self._adverts = {item.name: decode_agent(item) for item in self._directory.items("agent")}
            self._names = sorted({name for advert in self._adverts.values() for name, _ in advert.takes})

    def _target(self, name: str, job: str) -> Target | None:
        """None for a sink that does not take that job."""
        taking = [
            (node, advert)
            for node, advert in self._adverts.items()
            if any(each == name and is_named(job, patterns) for each, patterns in advert.takes)
        ]
        node = server_of(name, taking, self._is_dead)
        if node is None:
            return None
        advert = self._adverts[node]
        return Target(name, node, name in advert.streams, takes_all=True, moves=name in advert.moving)


class JobSinks:
    """The sinks of which the job's master knows. One node may serve several."""

    __slots__ = ("_directory", "_sink_of", "_taking", "moving", "served")

    def __init__(self, sink_of: SinkOf, directory: Directory, taking: Taking | None = None) -> None:
        self._sink_of, self._directory, self._taking = sink_of, directory, taking or Taking(directory)
        self.served: list[Target] = []
        self.moving: tuple[NodeId, ...] = ()
        """The nodes of those sinks, also of its alerts, for which another node may take over."""

    def node_of(self, name: str) -> NodeId | None:
        """The node that serves the sink of that name; None for none."""
        return self._sink_of(name)

    def serve(self, master: Master, now: Micros) -> list[Effect]:
        """The sinks of a job's windows, or the nodes that serve them, may have changed: tell its master."""
        has_changed = self.look(master.publication.settings.sinks, master.spec)
        return master.serve_sinks(self.served, now) if has_changed else []

    def look(self, names: Iterable[str], spec: JobSpec) -> bool:
        """Take those of these names that some node serves, and the sinks that take the job anyway; a trial goes only where it
        says. Returns whether anything changed."""
        before = self.served, self.moving
        served = self._targets(names)
        alerted = self._targets(name for alert in spec.alerts for name in alert.sinks)
        if spec.trial is None:
            served |= {target.name: target for target in self._taking.of(spec.name)}
        self.served = list(served.values())
        self.moving = tuple(sorted({target.node for target in (alerted | served).values() if target.moves}))
        return (self.served, self.moving) != before

    def _targets(self, names: Iterable[str]) -> dict[str, Target]:
        found = ((name, self._sink_of(name)) for name in names)
        return {name: self._target(name, node) for name, node in found if node is not None}

    def _target(self, name: str, node: NodeId) -> Target:
        item = self._directory.get("agent", node)
        if item is None:
            return Target(name, node)
        advert = decode_agent(item)
        return Target(name, node, name in advert.streams, moves=name in advert.moving)
