"""Which process speaks for each node. Two may run with one key: a machine that was cloned, a backup that was started elsewhere.

Nothing on disk tells a copy from its original, so each process draws a number when it starts, its instance, and tells it in its
proof. Who is known stays, as long as it lives; whether it does, it is asked: who runs at the address that is known of it?

    known      a proof of                          what follows
    ---------  ----------------------------------  -------------------------------------------------------------------------
    -          B                                   B is in, and known
    A          A                                   A is in
    A          B, of a connection to A's address   A is not there any more: B is in, and known
    A          B, and A answered a moment ago      B is refused
    A          B                                   A is challenged; B waits
               A answers                           B is refused, and told where A is
               a third process answers there       that is known now; B is refused
               B answers, or nobody                B is in, and known: a restarted agent, or one that lost its disk, at once

Only the holder of a key can open a connection with it, so only it can have a process of that key challenged, or answer for it.
A host whose kernel refuses the connection answers at once; a process that is stopped, or a host that is gone, is given
`CHALLENGE_S`. Who only dials out, as from behind a NAT, is challenged over the connection that it has opened to here; where that
is gone, it does not answer.

Besides what the door itself remembers there is what the node has heard (its overlay, the directory): after a restart the door
knows nobody, and the address of a node that was last here long ago may have changed. Both are challenged.

Invariants: everything is bounded; `known` holds no node without an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact
from elf.srt.transport.handshake import Proof, TwinError

KNOWN_MAX = 8_192
"""Nodes of which the process is remembered; 200 bytes each."""
CHALLENGE_S = 1.0
"""Two probe periods, and less than a suspicion takes: so long a newcomer waits where nobody answers and nobody refuses."""
ANSWERED_S = 0.5
"""An answer counts for so long: whoever knocks faster is refused by it, and nobody is challenged."""
TWO_AGENTS = "two agents run with one key"


class Known(msgspec.Struct):
    """The process that speaks for a node, where it is reached, and when it answered a challenge last."""

    life: int
    instance: int
    address: str
    answered_s: float = -ANSWERED_S


class Admission:
    """`told`: what the node itself has heard of another one. Seconds are of a clock that never steps."""

    def __init__(self, contact_of: Callable[[NodeId], Contact | None]) -> None:
        self._contact_of = contact_of
        self._known: dict[NodeId, Known] = {}  # least lately admitted first

    def ask(self, node: NodeId, proof: Proof, dialed: str, now_s: float) -> list[str]:
        """Whom to challenge before that process may come in: addresses, "" where none is known; [] if it is in. Raises TwinError.
        O(1).

        dialed: the address at which this node has found it; "" where it has come by itself.
        """
        others = self._others(node, proof)
        for known in others:
            if now_s - known.answered_s < ANSWERED_S and known.address != dialed:
                raise twin(proof, known)
        challenged = [known.address for known in others if not dialed or known.address != dialed]
        if not challenged:
            self._admit(node, proof)
        return list(dict.fromkeys(challenged))

    def decide(self, node: NodeId, proof: Proof, answers: Sequence[tuple[str, Proof]], now_s: float) -> None:
        """Who was challenged has answered (address, proof), or not: the newcomer is in. Raises TwinError. O(1)."""
        for address, answer in answers:
            if answer.instance != proof.instance:
                alive = Known(answer.life, answer.instance, address, now_s)
                self._keep(node, alive)
                raise twin(proof, alive)
        self._admit(node, proof)

    def other_process(self, node: NodeId, proof: Proof) -> Known | None:
        """None if that process still speaks for the node; else who does. O(1)."""
        known = self._known.get(node)
        return known if known is not None and known.instance != proof.instance else None

    def _others(self, node: NodeId, proof: Proof) -> list[Known]:
        """Other processes that may run with that key."""
        known = self._known.get(node)
        if known is not None and known.instance == proof.instance:
            return []
        others = [] if known is None else [known]
        heard = self._contact_of(node)
        if heard is not None and heard.instance and all(heard.instance != other.instance for other in others):
            others.append(Known(heard.incarnation, heard.instance, heard.address))
        return [other for other in others if other.instance != proof.instance]

    def _admit(self, node: NodeId, proof: Proof) -> None:
        self._keep(node, Known(proof.life, proof.instance, proof.address))

    def _keep(self, node: NodeId, known: Known) -> None:
        self._known.pop(node, None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[node] = known

    def check(self) -> None:
        assert len(self._known) <= KNOWN_MAX


def twin(proof: Proof, known: Known) -> TwinError:
    """What is said of the two, in all logs."""
    return TwinError(both(known.address, proof.address), known.address, known.instance)


def both(first: str, second: str) -> str:
    one, other = (address.partition("/")[0] for address in (first, second))
    return (
        f"{TWO_AGENTS}: one at {one}, and one at {other}, which is refused; give the second its own key "
        "(elf keys issue) and an empty state_dir, or stop the first"
    )
