"""What a node knows about its neighbours: whose seats of a job have failed, and whose processes have ended."""

from __future__ import annotations

from collections.abc import Collection

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import JobId, NodeId, closeness
from elf.srt.messages.messages import Contact, Life, Micros
from elf.srt.messages.reports import ENDED_MAX

DEAD_MAX = 4_096


class Neighbours:
    """Those of the node `me`. ended: neighbours that left, or whose processes are gone as their hosts' kernels show, and when."""

    def __init__(self, me: NodeId) -> None:
        self.ended: dict[NodeId, Micros] = {}
        self._me = me
        self._away: dict[JobId, set[NodeId]] = {}  # at most one for each link
        self._dead: dict[NodeId, Life] = {}

    def heard_away(self, job: JobId, node: NodeId, is_away: bool) -> None:
        """A neighbour's seat of that job has failed, or started again."""
        away = self._away.setdefault(job, set())
        (away.add if is_away else away.discard)(node)
        if not away:
            del self._away[job]

    def are_away(self, job: JobId) -> bool:
        """Whether any neighbour's seat of that job has failed."""
        return job in self._away

    def may_hold_log(self, job: JobId, node: NodeId, refused: Collection[NodeId]) -> bool:
        """Whether a neighbour counts for the job's log. A neighbour that is away, or refused, does not, unless it is closer to
        the job than this node: then it stays responsible."""
        is_away = node in self._away.get(job, ()) or node in refused
        return not is_away or closeness(job, node) < closeness(job, self._me)

    def link_lost(self, node: NodeId) -> list[JobId]:
        """What that neighbour said over its link is void. Returns the jobs for which it was away."""
        were_away = [job for job, away in self._away.items() if node in away]
        for job in were_away:
            self.heard_away(job, node, False)
        return were_away

    def changed(self, what: str, contact: Contact, now: Micros) -> None:
        """The overlay has noticed a change of a member."""
        self._dead.pop(contact.id, None)
        if what == "left":
            self.note_ended(contact.id, now)
        elif what == "dead":
            put_last(self._dead, contact.id, contact.incarnation, DEAD_MAX)
        else:
            self.ended.pop(contact.id, None)

    def is_dead(self, node: NodeId, advert: AgentAdvert) -> bool:
        """Whether the overlay has declared the process of that advert dead."""
        return node in self._dead and advert.incarnation <= self._dead[node]

    def note_ended(self, node: NodeId, now: Micros) -> None:
        """That neighbour's process has ended. The oldest records are dropped: their jobs have another master by now."""
        self.ended.pop(node, None)
        while len(self.ended) >= ENDED_MAX:
            del self.ended[next(iter(self.ended))]
        self.ended[node] = now
