"""The repair of the leaf set: requests for leaf sets of neighbours, and reports of this node's own.

    event                                          action
    a nearest neighbour's digest has changed       LeavesRequest to it, at most four in `repair_us`: its leaf set covers mine
    a leaf dies                                    LeavesRequest to the ends of the leaf set; again from time to time (`rounds`)
                                                   until a LeavesReport comes
    LeavesReport                                   keep its digest, if it comes from a nearest neighbour
    LeavesRequest                                  LeavesReport

Invariants: `check`. Prior art: Pastry (Middleware 2001), section 2.5.
"""

from __future__ import annotations

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import LeavesReport, LeavesRequest
from elf.srt.overlay.leafset import leaves_digest
from elf.srt.overlay.membership import Membership
from elf.srt.overlay.neighbours import Neighbours


class Repair:
    """holes: the leaf set lost a node, or may lack one, and no LeavesReport has come since."""

    __slots__ = ("_members", "_near", "_pause_us", "_request_at", "_seen", "holes")

    def __init__(self, members: Membership, near: Neighbours, repair_us: int) -> None:
        self._members = members
        self._near = near
        self._pause_us = repair_us // 4
        self._request_at = 0
        self._seen: dict[NodeId, int] = {}
        """The digest of the leaf set that each of my nearest neighbours reported last."""
        self.holes = False

    def compare(self, neighbour: NodeId, digest: int, out: list[Effect]) -> None:
        """Request a nearest neighbour's leaf set if its digest is not that of the last report. O(1)."""
        leaves, lived = self._near.leaves, self._members.lived
        if neighbour not in (leaves.left, leaves.right) or digest == self._seen.get(neighbour):
            return
        if lived >= self._request_at:
            self._request_at = lived + self._pause_us
            out.append(Send(neighbour, LeavesRequest(self._members.me)))

    def request_edges(self) -> list[Effect]:
        return [Send(node, LeavesRequest(self._members.me)) for node in self._near.leaves.edges()]

    def lost_leaf(self) -> list[Effect]:
        self.holes = True
        self.forget_reports()
        return self.request_edges()

    def forget(self, node: NodeId) -> None:
        """A member is gone."""
        self._seen.pop(node, None)

    def forget_reports(self) -> None:
        """The neighbours' reports may be outdated: request their leaf sets again at their next pings."""
        self._seen.clear()

    def reported(self, report: LeavesReport) -> None:
        self.holes = False
        nearest = (self._near.leaves.left, self._near.leaves.right)
        self._seen = {node: digest for node, digest in self._seen.items() if node in nearest}
        if report.sender.id in nearest:
            self._seen[report.sender.id] = leaves_digest([contact.id for contact in report.leaves])

    def report(self, request: LeavesRequest) -> Send:
        """My leaf set, and the row of the routing table that the request names. O(L)."""
        members = self._members.members
        leaves = tuple([members[node] for node in self._near.leaves.clockwise()])
        row = tuple([members[node] for node in self._near.table.row(request.row)])
        return Send(request.sender.id, LeavesReport(self._members.me, leaves, row))

    def check(self) -> None:
        assert len(self._seen) <= 2
