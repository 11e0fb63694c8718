"""Which process represents each node. Two processes may run with one key: on a cloned machine, or from a backup that was started
elsewhere.

Nothing on disk distinguishes a copy from its original, so each process draws a number when it starts, its instance, and sends it
in its proof. The known process is not replaced while it lives. To find out whether it lives, this node challenges it: it requests
the proof of the process at the known address.

    known      a proof of                          what follows
    ---------  ----------------------------------  -------------------------------------------------------------------------
    -          B                                   B is admitted, and known
    A          A                                   A is admitted
    A          B, on a connection to A's address   A is no longer there: B is admitted, and known
    A          B, and A answered a moment ago      B is refused
    A          B                                   A is challenged; B waits
               A answers                           B is refused, and gets A's address
               a third process answers there       the third is known now; B is refused
               B answers, or no process does       B is admitted, and known: a restarted agent, or one that lost its disk

Only the holder of a key can open a connection with it, so only the holder can cause a challenge to that key or answer one. If the
kernel of the known host refuses the connection, B is admitted at once; a stopped process or an unreachable host has `CHALLENGE_S`
to answer. A process that only dials out, as from behind a NAT, is challenged over the connection that it has opened to this node;
without that connection it cannot answer.

The node also knows processes from its overlay and directory: this structure is empty after a restart, and the address of a node
that was away for long may have changed. Both the process known here and the one known there are challenged.

Invariants: everything is bounded; `known` holds no node without an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact
from elf.srt.transport.handshake import Proof, TwinError

KNOWN_MAX = 8_192
"""Nodes whose process is remembered; 200 bytes each."""
CHALLENGE_S = 1.0
"""How long a newcomer waits for an answer or a refused connection: two probe periods, and less than a suspicion takes."""
ANSWERED_S = 0.5
"""How long an answer counts: a newcomer that comes sooner is refused without another challenge."""
TWO_AGENTS = "two agents run with one key"


class Known(msgspec.Struct):
    """The process that represents a node, its address, and when it last answered a challenge."""

    life: int
    instance: int
    address: str
    answered_s: float = -ANSWERED_S


class Admission:
    """`contact_of`: another node's contact in this node's overlay or directory. Seconds are those of a monotonic clock."""

    def __init__(self, contact_of: Callable[[NodeId], Contact | None]) -> None:
        self._contact_of = contact_of
        self._known: dict[NodeId, Known] = {}  # least recently admitted first

    def ask(self, node: NodeId, proof: Proof, dialed: str, now_s: float) -> list[str]:
        """Addresses to challenge before that process is admitted, "" where none is known; []: it is admitted. Raises TwinError.
        O(1).

        dialed: the address at which this node reached it; "" if it has connected to this node.
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
        """Admit the newcomer unless one of the `answers` (address, proof) is of another process: then TwinError. O(1)."""
        for address, answer in answers:
            if answer.instance != proof.instance:
                alive = Known(answer.life, answer.instance, address, now_s)
                put_last(self._known, node, alive, KNOWN_MAX)
                raise twin(proof, alive)
        self._admit(node, proof)

    def other_process(self, node: NodeId, proof: Proof) -> Known | None:
        """The process that represents the node now; None if it is that of the proof. O(1)."""
        known = self._known.get(node)
        return known if known is not None and known.instance != proof.instance else None

    def _others(self, node: NodeId, proof: Proof) -> list[Known]:
        """Other processes with that key that may still run."""
        known = self._known.get(node)
        if known is not None and known.instance == proof.instance:
            return []
        others = [] if known is None else [known]
        heard = self._contact_of(node)
        if heard is not None and heard.instance and all(heard.instance != other.instance for other in others):
            others.append(Known(heard.incarnation, heard.instance, heard.address))
        return [other for other in others if other.instance != proof.instance]

    def _admit(self, node: NodeId, proof: Proof) -> None:
        put_last(self._known, node, Known(proof.life, proof.instance, proof.address), KNOWN_MAX)

    def check(self) -> None:
        assert len(self._known) <= KNOWN_MAX


def twin(proof: Proof, known: Known) -> TwinError:
    """The error that names both processes, with one text for all logs."""
    return TwinError(both(known.address, proof.address), known.address, known.instance)


def both(first: str, second: str) -> str:
    one, other = (address.partition("/")[0] for address in (first, second))
    if one == other:  # nobody knows whether that one has ended
        return (
            f"a process at {one} is refused, since another one with its key answers there: it was restarted, or it is a copy, "
            "which needs its own key (elf keys issue) and an empty state_dir"
        )
    return (
        f"{TWO_AGENTS}: one at {one}, and one at {other}, which is refused; give the second its own key "
        "(elf keys issue) and an empty state_dir, or stop the first"
    )
