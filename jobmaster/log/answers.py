"""What a node's neighbours have told of their logs, when it asks which log is the highest."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elf.jobmaster.log.job_log import JobLog, Rank, rank
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, StateReport, node_of

NOTHING: Rank = (NO_BALLOT, NO_BALLOT, 0)


class Answers:
    """`ranks`: the log of each neighbour that has answered. `own`: of this node's, when it asked. Bounded by the leaf set."""

    __slots__ = ("_given_way", "own", "ranks")

    def __init__(self) -> None:
        self.own: Rank = NOTHING
        self.ranks: dict[NodeId, Rank] = {}
        self._given_way: dict[NodeId, Rank] = {}  # for whose log this node gave up its own already

    def keep_only(self, neighbours: Collection[NodeId]) -> None:
        self.ranks = {node: told for node, told in self.ranks.items() if node in neighbours}
        self._given_way = {node: told for node, told in self._given_way.items() if node in neighbours}

    def lacking(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """Who has not answered."""
        return [node for node in neighbours if node not in self.ranks]

    @property
    def proven(self) -> Ballot:
        """The highest ballot under which more than half of the agents stood behind one of these logs."""
        return max((told[0] for told in self.ranks.values()), default=NO_BALLOT)

    def best(self, own: Rank) -> NodeId:
        """Who holds the highest log, where that is higher than the own one; b"" else."""
        found = max(self.ranks, key=lambda node: (self.ranks[node], node), default=b"")
        return found if found and self.ranks[found] > own else b""

    def holding(self, log: JobLog) -> dict[NodeId, int]:
        """Who holds this log, and how many entries of it. No others: it is the highest that was told of."""
        return {
            node: index for node, (_, last, index) in self.ranks.items() if log.index and last == log.last
        }

    def is_whole(self, log: JobLog, me: NodeId) -> bool:
        """Whether who served this log before has told of it, after it had promised to serve no more: then it has published
        nothing that is not in the log."""
        former = node_of(log.last)
        told = self.own if former == me else self.ranks.get(former, NOTHING)
        return told[1] == log.last

    def give_way(self, node: NodeId, told: Rank) -> None:
        """Give up the own log for that one. Once: whoever cannot give it, or takes too long, must not end each master anew."""
        self._given_way[node] = told

    def has_given_way(self, node: NodeId, told: Rank) -> bool:
        return self._given_way.get(node) == told


def rank_of(tell: StateReport) -> Rank:
    return rank(tell.proven, tell.held, tell.index)
