"""The sinks of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from elf.jobmaster.delivery.sink_queue import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, decode_agent
from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import JobId, NodeId, closeness, job_id
from elf.srt.messages.messages import Micros
from elf.srt.messages.patterns import is_named

TAKES_OVER = 2
"""The node that serves a sink, and the one that would take it over."""
SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


TAKERS_MAX = 16
"""Sinks of one job, besides those that it names: with 16 of these, 32 of the outbox's bounds of memory."""


IsDead = Callable[[NodeId, AgentAdvert], bool]
"""Whether the overlay has declared the process of that advert dead."""


def servers_of(
    name: str, job: JobId, adverts: Iterable[tuple[NodeId, AgentAdvert]], is_dead: IsDead
) -> tuple[NodeId, ...]:
    """The node that serves the job's sink, of those that have it and have not left; () for none. Where each of them may deliver
    in another's place, the closest to the job that is alive, which is often its master, and after it the one that would take
    over. Else the one with the lowest id, where the sink's folder is. O(agents)."""
    having = {node: advert for node, advert in adverts if name in advert.sinks and not advert.until_us}
    if not all(name in advert.moving for advert in having.values()):
        return tuple(sorted(having)[:1])
    nodes = sorted(having, key=lambda node: closeness(job, node))
    alive = [node for node in nodes if not is_dead(node, having[node])]
    return tuple(alive[:TAKES_OVER] or nodes[:1])


class Taking:
    """Of all agents in the directory; shared by the seats of a node. The adverts are read once after each change."""

    def __init__(self, directory: Directory, is_dead: IsDead = lambda node, advert: False) -> None:
        self._directory, self._is_dead = directory, is_dead
        self._digest = -1
        self._adverts: dict[NodeId, AgentAdvert] = {}
        self._names: list[str] = []

    def servers(self, name: str, job: JobId) -> tuple[NodeId, ...]:
        """See `servers_of`."""
        self._read()
        return servers_of(name, job, self._adverts.items(), self._is_dead)

    def of(self, job: str) -> list[Target]:
        """For the job of that name, one for each name of a sink, by name. O(sinks with patterns x agents)."""
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
        nodes = servers_of(name, job_id(job), taking, self._is_dead)
        if not nodes:
            return None
        return _target(name, nodes, self._adverts[nodes[0]])._replace(takes_all=True)


class JobSinks:
    """The sinks of which the job's master knows. One node may serve several. sink_of: instead of what the directory says."""

    __slots__ = ("_directory", "_job", "_sink_of", "_taking", "moving", "served")

    def __init__(
        self, job: JobId, directory: Directory, sink_of: SinkOf | None = None, taking: Taking | None = None
    ) -> None:
        self._job, self._directory = job, directory
        self._sink_of, self._taking = sink_of, taking or Taking(directory)
        self.served: list[Target] = []
        self.moving: tuple[NodeId, ...] = ()
        """The nodes of those sinks, also of its alerts, for which another node may take over."""

    def nodes_of(self, name: str) -> tuple[NodeId, ...]:
        """The node that serves the sink of that name, and the one that would take it over, if there are any."""
        if self._sink_of is None:
            return self._taking.servers(name, self._job)
        node = self._sink_of(name)
        return () if node is None else (node,)

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
        found = ((name, self.nodes_of(name)) for name in names)
        return {name: self._target(name, nodes) for name, nodes in found if nodes}

    def _target(self, name: str, nodes: Sequence[NodeId]) -> Target:
        item = self._directory.get("agent", nodes[0])
        return Target(name, nodes[0]) if item is None else _target(name, nodes, decode_agent(item))


def _target(name: str, nodes: Sequence[NodeId], advert: AgentAdvert) -> Target:
    """nodes: the one that serves the sink, which has that advert, and the one that would take it over."""
    about = {"moves": name in advert.moving, "standby": nodes[1] if len(nodes) > 1 else None}
    return Target(name, nodes[0], name in advert.streams, **about)  # type: ignore[arg-type]
