"""How long a suspect has to refute: `suspect_us`, and longer for a node that has lately been slow to do so.

A node on an overloaded host answers late. If it is taken for dead, its jobs move to other nodes, which costs those the work of
taking over, and costs it the same when it comes back: the mesh is then slower than before, and the next answer comes later still.
So a refutation that takes more than half of the usual time, or comes after the node was taken for dead, shows that the node was
slow. Its next suspicion lasts twice that time, at most twice as long as the last one, and never over `SPANS_MAX` times
`suspect_us`. After `dead_us` without such a refutation it is the usual time again.

A node that was never slow is taken for dead as soon as ever, and so is one whose process is known to have ended. Times are lived
µs. Prior art: Lifeguard (Dadgar, Phillips, Currey, DSN 2018), which slows down the prober that is slow itself.
"""

from __future__ import annotations

import msgspec

from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import NodeId
from elf.srt.messages.parameters import Parameters

SPANS_MAX = 8
"""12 s with the default times: a process that gets a tenth of a processor answers within that."""
KNOWN_MAX = 256
"""Nodes that are suspected or were slow: far more than the leaf set and the table of a large mesh."""


class Delay(msgspec.Struct):
    """since: when the node became suspect; None if it is not. span: of its next suspicion, until the time `until`."""

    since: int | None = None
    span: int = 0
    until: int = 0


class Patience:
    """What one node knows of others' slowness. Bounded by `KNOWN_MAX`."""

    __slots__ = ("_known", "_parameters")

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._known: dict[NodeId, Delay] = {}

    def span(self, node: NodeId, lived: int) -> int:
        """The time that a suspicion of the node lasts if it begins now."""
        known = self._known.get(node)
        return known.span if known is not None and lived < known.until else self._parameters.suspect_us

    def suspected(self, node: NodeId, lived: int) -> int:
        """A suspicion begins. Returns when it ends."""
        known = self._known.pop(node, None) or Delay()
        known.since = lived
        put_last(self._known, node, known, KNOWN_MAX)
        return lived + self.span(node, lived)

    def refuted(self, node: NodeId, lived: int) -> None:
        """The suspect, or a node that was taken for dead, has reported itself alive in the same life."""
        known = self._known.get(node)
        if known is None or known.since is None:
            return
        usual, took, known.since = self._parameters.suspect_us, lived - known.since, None
        if 2 * took > usual:
            span = self.span(node, lived)
            known.span = min(max(span, 2 * took), 2 * span, SPANS_MAX * usual)
            known.until = lived + self._parameters.dead_us
        elif known.until <= lived:
            del self._known[node]

    def forget(self, node: NodeId) -> None:
        """The node's process has ended, or it has left."""
        self._known.pop(node, None)

    def check(self) -> None:
        assert len(self._known) <= KNOWN_MAX
        assert all(each.span <= SPANS_MAX * self._parameters.suspect_us for each in self._known.values())
