"""The sinks of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elf.jobmaster.delivery.outbox import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import decode_agent
from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros

SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


class JobSinks:
    """The sinks of which the job's master knows. One node may serve several."""

    __slots__ = ("_directory", "_sink_of", "served")

    def __init__(self, sink_of: SinkOf, directory: Directory) -> None:
        self._sink_of, self._directory = sink_of, directory
        self.served: list[Target] = []

    def node_of(self, name: str) -> NodeId | None:
        """The node that serves the sink of that name; None for none."""
        return self._sink_of(name)

    def serve(self, master: Master, now: Micros) -> list[Effect]:
        """The sinks of a job's windows, or the nodes that serve them, may have changed: tell its master."""
        return master.serve_sinks(self.served, now) if self.look(master.publication.settings.sinks) else []

    def look(self, names: Iterable[str]) -> bool:
        """Take those of these names that some node serves. Returns whether anything changed."""
        before = self.served
        found = ((name, self._sink_of(name)) for name in names)
        self.served = [
            Target(name, node, self._takes_rows(name, node)) for name, node in found if node is not None
        ]
        return self.served != before

    def _takes_rows(self, name: str, node: NodeId) -> bool:
        item = self._directory.get("agent", node)
        return item is not None and name in decode_agent(item).streams
