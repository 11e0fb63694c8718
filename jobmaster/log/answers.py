"""The logs that a node's neighbours report when it asks which log is the highest."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elf.jobmaster.log.job_log import NO_MAJORITY, JobLog, Majority, Rank, rank
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import NO_BALLOT, StateReport, node_of

NOTHING: Rank = (NO_MAJORITY, NO_BALLOT, 0)


class Answers:
    """Answers to node `me`. `ranks`: the rank of the log of each neighbour that answered. `own`: the rank of this node's log when
    it asked. Bounded by the leaf set."""

    __slots__ = ("_me", "_yielded_to", "own", "ranks")

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self.own: Rank = NOTHING
        self.ranks: dict[NodeId, Rank] = {}
        self._yielded_to: dict[NodeId, Rank] = {}  # logs for which this node has already asked again

    def keep_only(self, neighbours: Collection[NodeId]) -> None:
        self.ranks = {node: rank for node, rank in self.ranks.items() if node in neighbours}
        self._yielded_to = {node: rank for node, rank in self._yielded_to.items() if node in neighbours}

    def lacking(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """The neighbours that have not answered."""
        return [node for node in neighbours if node not in self.ranks]

    @property
    def proven(self) -> Majority:
        """The last majority of all these logs."""
        return max((proven for proven, _, _ in self.ranks.values()), default=NO_MAJORITY)

    def best(self, own: Rank) -> NodeId:
        """Rule 7*: the node with the highest (proven, ballot, index) of all that answered; `me` if none is higher than `own`."""
        found = max(self.ranks, key=lambda node: (self.ranks[node], node), default=self._me)
        return found if self.ranks.get(found, own) > own else self._me

    def holding(self, log: JobLog) -> dict[NodeId, int]:
        """The nodes that hold this log, and how many entries of it. It is the highest log that was reported."""
        return {
            node: index for node, (_, last, index) in self.ranks.items() if log.index and last == log.last
        }

    def is_whole(self, log: JobLog) -> bool:
        """Whether the former master has promised not to serve any more, and then reported this log: the log has everything that
        it published."""
        former = node_of(log.last)
        reported = self.own if former == self._me else self.ranks.get(former, NOTHING)
        return reported[1] == log.last

    def yield_to(self, node: NodeId, reported: Rank) -> None:
        """Record that this node asks again because `node` reported that log. It does so once for each log: a node that cannot
        transfer its log, or is too slow, must not stop every new master."""
        self._yielded_to[node] = reported

    def has_yielded_to(self, node: NodeId, reported: Rank) -> bool:
        return self._yielded_to.get(node) == reported


def rank_of(report: StateReport) -> Rank:
    return rank(report.majority, report.held, report.index)
