"""Which replicas failed under one ballot: those that live but do not write, and those that are away and have the log.

| at a look                                             | then                                             |
|-------------------------------------------------------|--------------------------------------------------|
| a replica lacks entries                               | behind                                           |
| behind, and still lacks these at the next look        | stuck for `STUCK_LOOKS`, twice as many each time |
| stuck for so many looks, or no longer a neighbour     | not stuck: it may be a replica again             |
| a former replica or former master, and not present    | lost: counted, maybe beyond a partition          |
| present again                                         | not lost; the count stays while others are lost  |

A node is present if it is a neighbour and not stuck. So a replica whose disk is full is replaced like a dead one, and commits
wait for it for two looks at most. Like a dead one, it may serve elsewhere with the log that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from elf.jobmaster.log.alarm import Alarm
from elf.srt.messages.ids import NodeId

STUCK_LOOKS = 8
"""The number of looks for which a replica is stuck the first time; with a look each `transfer_us_max`, 48 s."""


class ReplicaFailures:
    """The failures that node `me` observes. While replicas are behind or stuck it looks every `look_us`, when `alarm` rings.

    Memory: one entry per node that was a replica under this ballot, or served before it.
    """

    __slots__ = (
        "_behind",
        "_look_us",
        "_losses",
        "_lost",
        "_me",
        "_neighbours",
        "_strikes",
        "_stuck",
        "alarm",
    )

    def __init__(self, me: NodeId, look_us: int) -> None:
        self._me, self._look_us = me, look_us
        self.alarm = Alarm()
        self._neighbours: frozenset[NodeId] = frozenset()
        self._behind: dict[NodeId, int] = {}  # replica -> the log's index at the last look, which it lacked
        self._stuck: dict[NodeId, int] = {}  # replica -> for how many more looks it is stuck
        self._strikes: dict[NodeId, int] = {}  # replica -> for how many looks it was stuck the last time
        self._lost: set[NodeId] = set()
        self._losses = 0

    @property
    def losses(self) -> int:
        """How many times nodes were lost; 0 while none is missing."""
        return self._losses if self._lost else 0

    def usable(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """The nodes that may be replicas, in their order."""
        return [node for node in nodes if node not in self._stuck]

    def neighbours(self, nodes: Collection[NodeId]) -> None:
        """Set the live neighbours: a node that leaves and comes back is not stuck any more."""
        self._neighbours = frozenset(nodes)
        self._stuck = {node: left for node, left in self._stuck.items() if node in self._neighbours}

    def watch(self, lacking: Collection[NodeId], now: int) -> None:
        """Set the alarm, unless it is set, while replicas lack entries or are stuck."""
        if self.alarm.at is None and (lacking or self._stuck):
            self.alarm.set(now, self._look_us)

    def look(self, held: Mapping[NodeId, int], index: int) -> None:
        """Find replicas that are behind or stuck. held: the last entry that each present replica acknowledged; index: that of
        the log's last entry."""
        stuck = [node for node, lacked in self._behind.items() if held.get(node, lacked) < lacked]
        self._stuck = {node: left - 1 for node, left in self._stuck.items() if left > 1}
        for node in stuck:
            self._stuck[node] = self._strikes[node] = 2 * self._strikes.get(node, STUCK_LOOKS // 2)
        self._behind = {node: index for node, acknowledged in held.items() if acknowledged < index}

    def note_lost(self, nodes: Iterable[NodeId]) -> None:
        """Count those of `nodes` that are absent as lost: they have the log up to here, and may serve with it elsewhere. A
        neighbour that is no longer a replica because a closer node has joined is not lost."""
        here = set(self.usable(self._neighbours))
        new = set(nodes) - here - self._lost - {self._me, b""}
        self._losses += len(new)
        self._lost = (self._lost | new) - here

    def check(self) -> None:
        assert self._stuck.keys() <= self._neighbours
        assert all(0 < left <= self._strikes[node] for node, left in self._stuck.items())
        assert len(self._lost) <= self._losses
        assert self._me not in self._lost
