"""The lakes of a job that take windows as they are published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from elf.jobmaster.master.master import Master
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros

SinkOf = Callable[[str], NodeId | None]
"""Name of a job's sink in its spec -> the node to which windows are sent; None if that sink keeps no ledger."""


class Lakes:
    """The lakes of which the job's master knows: names, and the sink that serves each. One node may serve several."""

    __slots__ = ("_served", "_sink_of")

    def __init__(self, sink_of: SinkOf) -> None:
        self._sink_of = sink_of
        self._served: list[tuple[str, NodeId]] = []

    @property
    def sinks(self) -> list[NodeId]:
        """The node of each lake."""
        return [sink for _, sink in self._served]

    def takers(self, names: Collection[str]) -> set[NodeId]:
        """The nodes of the lakes with these names."""
        return {sink for name, sink in self._served if name in names}

    def serve(self, master: Master, now: Micros) -> list[Effect]:
        """The sinks of a job's windows, or the nodes that serve them, may have changed: tell its master."""
        fresh = self.look(master.publication.settings.sinks)
        return [] if fresh is None else master.serve_sinks(self.sinks, now, fresh)

    def look(self, names: Iterable[str]) -> set[NodeId] | None:
        """Take those of these names that some node serves. Returns the nodes with a lake that was not known; None if nothing
        changed."""
        before = self._served
        self._served = [(name, sink) for name in names if (sink := self._sink_of(name)) is not None]
        return None if self._served == before else {lake[1] for lake in self._served if lake not in before}
