"""The sinks of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elf.jobmaster.delivery.outbox import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import JobSpec, decode_agent
from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros
from elf.srt.messages.patterns import is_named

SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


TAKERS_MAX = 16
"""Sinks of one job, besides those that it names: with 16 of these, 32 of the outbox's bounds of memory."""


class Taking:
    """Of all agents in the directory; shared by the seats of a node. The adverts are read once after each change."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._digest = -1
        self._found: list[tuple[str, NodeId, tuple[str, ...], bool]] = []

    def of(self, job: str) -> list[Target]:
        """One for each name of a sink, by name: the node with the lowest id that serves it. O(sinks with patterns)."""
        if self._digest != self._directory.digest:
            self._digest = self._directory.digest
            self._found = sorted(self._read())
        targets: dict[str, Target] = {}
        for name, node, patterns, takes_rows in self._found:
            if name not in targets and is_named(job, patterns):
                targets[name] = Target(name, node, takes_rows, takes_all=True)
        return list(targets.values())[:TAKERS_MAX]

    def _read(self) -> list[tuple[str, NodeId, tuple[str, ...], bool]]:
        adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
        return [
            (name, node, patterns, name in advert.streams)
            for node, advert in adverts
            if not advert.until_us
            for name, patterns in advert.takes
        ]


class JobSinks:
    """The sinks of which the job's master knows. One node may serve several."""

    __slots__ = ("_directory", "_sink_of", "_taking", "served")

    def __init__(self, sink_of: SinkOf, directory: Directory, taking: Taking | None = None) -> None:
        self._sink_of, self._directory, self._taking = sink_of, directory, taking or Taking(directory)
        self.served: list[Target] = []

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
        before = self.served
        found = ((name, self._sink_of(name)) for name in names)
        served = {
            name: Target(name, node, self._takes_rows(name, node)) for name, node in found if node is not None
        }
        if spec.trial is None:
            served |= {target.name: target for target in self._taking.of(spec.name)}
        self.served = list(served.values())
        return self.served != before

    def _takes_rows(self, name: str, node: NodeId) -> bool:
        item = self._directory.get("agent", node)
        return item is not None and name in decode_agent(item).streams
