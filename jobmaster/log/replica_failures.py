"""Which replicas failed under one ballot: those that live but do not write, and those that are away and have the log.

| at a look                                         | then                                             |
|---------------------------------------------------|--------------------------------------------------|
| a replica lacks entries                           | behind                                           |
| behind, and still lacks these at the next look    | stuck for `STUCK_LOOKS`, twice as many each time |
| stuck for so many looks, or no neighbour any more | not stuck: it may be a replica again             |
| no replica any more, or served before; absent     | lost: counted, maybe beyond a partition          |
| present again                                     | not lost; the count stays while others are lost  |

A node is present if it is a neighbour and not stuck. So a replica whose disk is full is replaced like a dead one, and commits
wait for it for two looks at most. Like a dead one, it may continue elsewhere with the log that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from elf.jobmaster.log.replication import Alarm
from elf.srt.messages.ids import NodeId

STUCK_LOOKS = 8
"""A replica that wrote nothing is left out for so many times `transfer_us_max` at first: 48 s."""


class ReplicaFailures:
    """The failures that node `me` sees. While replicas are behind or stuck it looks every `look_us`, at `alarm`.

    Memory: one entry per node that was a replica under this ballot, or served before it.
    """

    __slots__ = ("_behind", "_look_us", "_losses", "_lost", "_me", "_strikes", "_stuck", "alarm")

    def __init__(self, me: NodeId, look_us: int) -> None:
        self._me, self._look_us = me, look_us
        self.alarm = Alarm()
        self._behind: dict[NodeId, int] = {}  # replicas that lacked entries at the last look, and up to which
        self._stuck: dict[NodeId, int] = {}  # those that still did at the next look; for how many looks
        self._strikes: dict[NodeId, int] = {}  # for how many looks it was stuck the last time
        self._lost: set[NodeId] = set()
        self._losses = 0

    @property
    def losses(self) -> int:
        """How often a node was lost; 0 while none is missing."""
        return self._losses if self._lost else 0

    def usable(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """The nodes that may be replicas, in their order."""
        return [node for node in nodes if node not in self._stuck]

    def neighbours(self, nodes: Collection[NodeId]) -> None:
        """Only these nodes live now: one that comes back is not stuck any more."""
        self._stuck = {node: left for node, left in self._stuck.items() if node in nodes}

    def watch(self, lacking: Collection[NodeId], now: int) -> None:
        """Set the alarm, unless it is set, while replicas lack entries or are stuck."""
        if self.alarm.at is None and (lacking or self._stuck):
            self.alarm.set(now, self._look_us)

    def look(self, held: Mapping[NodeId, int], index: int) -> None:
        """held: the last entry that each present replica acknowledged; index: that of the log's last entry."""
        stuck = [node for node, lacked in self._behind.items() if held.get(node, lacked) < lacked]
        self._stuck = {node: left - 1 for node, left in self._stuck.items() if left > 1}
        for node in stuck:
            self._stuck[node] = self._strikes[node] = 2 * self._strikes.get(node, STUCK_LOOKS // 2)
        self._behind = {node: index for node, acknowledged in held.items() if acknowledged < index}

    def note_lost(self, nodes: Iterable[NodeId], neighbours: Iterable[NodeId]) -> None:
        """Those of `nodes` that are absent have the log up to here, and may continue with it elsewhere. A replica that only made
        room for a closer node is not lost."""
        here = set(self.usable(neighbours))
        new = set(nodes) - here - self._lost - {self._me, b""}
        self._losses += len(new)
        self._lost = (self._lost | new) - here

    def check(self, neighbours: Collection[NodeId]) -> None:
        assert self._stuck.keys() <= set(neighbours)
        assert all(0 < left <= self._strikes[node] for node, left in self._stuck.items())
        assert len(self._lost) <= self._losses
        assert self._me not in self._lost
