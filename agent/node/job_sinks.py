"""The sinks of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from elf.jobmaster.delivery.outbox import Takes
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import decode_agent
from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros

SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


class Served(NamedTuple):
    """A sink, and the node that serves it. takes: rows for a stream, states for a lake."""

    name: str
    node: NodeId
    takes: Takes


class JobSinks:
    """The sinks of which the job's master knows. One node may serve several."""

    __slots__ = ("_directory", "_served", "_sink_of")

    def __init__(self, sink_of: SinkOf, directory: Directory) -> None:
        self._sink_of, self._directory = sink_of, directory
        self._served: list[Served] = []

    def node_of(self, name: str) -> NodeId | None:
        """The node that serves the sink of that name; None for none."""
        return self._sink_of(name)

    @property
    def nodes(self) -> list[NodeId]:
        """The node of each sink."""
        return [sink.node for sink in self._served]

    @property
    def takes(self) -> dict[NodeId, Takes]:
        """What the sinks of each node take together."""
        found: dict[NodeId, Takes] = {}
        for sink in self._served:
            found[sink.node] = found.get(sink.node, Takes(0)) | sink.takes
        return found

    def takers(self, names: Collection[str]) -> set[NodeId]:
        """The nodes of the sinks with these names."""
        return {sink.node for sink in self._served if sink.name in names}

    def serve(self, master: Master, now: Micros) -> list[Effect]:
        """The sinks of a job's windows, or the nodes that serve them, may have changed: tell its master."""
        fresh = self.look(master.publication.settings.sinks)
        return [] if fresh is None else master.serve_sinks(self.nodes, now, fresh, self.takes)

    def look(self, names: Iterable[str]) -> set[NodeId] | None:
        """Take those of these names that some node serves. Returns the nodes with a sink that was not known; None if nothing
        changed."""
        before = self._served
        found = ((name, self._sink_of(name)) for name in names)
        self._served = [
            Served(name, node, self._takes(name, node)) for name, node in found if node is not None
        ]
        return None if self._served == before else {each.node for each in self._served if each not in before}

    def _takes(self, name: str, node: NodeId) -> Takes:
        item = self._directory.get("agent", node)
        is_stream = item is not None and name in decode_agent(item).streams
        return Takes.ROWS if is_stream else Takes.STATES
