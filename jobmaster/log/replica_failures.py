"""Which replicas failed under one ballot: those that live but write nothing, and those that are away with the log.

| what is seen                                      | then                                             |
|---------------------------------------------------|--------------------------------------------------|
| a replica lacks something at a look               | behind                                           |
| behind, and not so far at the next look either    | stuck for `STUCK_LOOKS`, twice as many each time |
| stuck for so many looks, or no neighbour any more | not stuck: it may be a replica again             |
| no replica any more, or served before; not here   | lost: counted, maybe beyond a partition          |
| here again                                        | not lost; the count stays while others are       |

Here is who is a neighbour and not stuck. So a replica whose disk is full is replaced like a dead one, and commits wait for it for
two looks at most; what it holds may be gone on with elsewhere, as what a dead one held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from elf.jobmaster.log.replication import Alarm
from elf.srt.messages.ids import NodeId

STUCK_LOOKS = 8
"""A replica that wrote nothing is left out for so many times `transfer_us_max` at first: 48 s."""


class ReplicaFailures:
    """As the node `me` sees them, which looks every `look_us` while there is something to see: at `alarm`.

    Memory: one entry per node that was a replica under this ballot, or served before it.
    """

    __slots__ = ("_behind", "_look_us", "_losses", "_lost", "_me", "_strikes", "_stuck", "alarm")

    def __init__(self, me: NodeId, look_us: int) -> None:
        self._me, self._look_us = me, look_us
        self.alarm = Alarm()
        self._behind: dict[NodeId, int] = {}  # who lacked something at the last look, and up to where
        self._stuck: dict[NodeId, int] = {}  # who still did at the next one; for how many looks
        self._strikes: dict[NodeId, int] = {}  # for how many it was the last time
        self._lost: set[NodeId] = set()
        self._losses = 0

    @property
    def losses(self) -> int:
        """How often somebody was lost; 0 while all of them are here."""
        return self._losses if self._lost else 0

    def able(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Who of these may be a replica, in their order."""
        return [node for node in nodes if node not in self._stuck]

    def neighbours(self, nodes: Collection[NodeId]) -> None:
        """Only these live now: who comes back is not stuck any more."""
        self._stuck = {node: left for node, left in self._stuck.items() if node in nodes}

    def watch(self, lacking: Collection[NodeId], now: int) -> None:
        """Set the alarm, if it is not, for replicas that lack something now and for those that are stuck."""
        if self.alarm.at is None and (lacking or self._stuck):
            self.alarm.set(now, self._look_us)

    def look(self, held: Mapping[NodeId, int], index: int) -> None:
        """held: up to where each present replica has acknowledged; index: of the last entry that there is."""
        stuck = [node for node, lacked in self._behind.items() if held.get(node, lacked) < lacked]
        self._stuck = {node: left - 1 for node, left in self._stuck.items() if left > 1}
        for node in stuck:
            self._stuck[node] = self._strikes[node] = 2 * self._strikes.get(node, STUCK_LOOKS // 2)
        self._behind = {node: index for node, acknowledged in held.items() if acknowledged < index}

    def note_lost(self, nodes: Iterable[NodeId], neighbours: Iterable[NodeId]) -> None:
        """Of these, who is away has the log up to here, and may go on with it elsewhere. A replica that only made room for a
        closer node is not lost."""
        here = set(self.able(neighbours))
        new = set(nodes) - here - self._lost - {self._me, b""}
        self._losses += len(new)
        self._lost = (self._lost | new) - here

    def check(self, neighbours: Collection[NodeId]) -> None:
        assert self._stuck.keys() <= set(neighbours)
        assert all(0 < left <= self._strikes[node] for node, left in self._stuck.items())
        assert len(self._lost) <= self._losses
        assert self._me not in self._lost
