"""The first word on a connection: who speaks, and by whose leave. Nothing else from a peer is looked at before.

    packet  = "ELFT" version(1) kind(1) body
    PROOF   = who I am (`Proof`); the first packet of either side
    STRETCH = some of the connection's stream (`srt/outbox.py`); only behind proofs of both sides
    REFUSAL = why not (`Refusal`); the connection is of no further use

The connecting side knows the other's key beforehand (it is in the address), and CURVE has proven both keys before the first
packet. What is left is whether the mesh's authority vouches for that key, and which life of the node this is. A node's id is the
hash of its key, so nobody can claim another's. Without keys (`security = "none"`, loopback only) both sides are believed.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.srt.addresses import KEY_BYTES, parse_address
from elf.srt.ids import NodeId, node_id, short
from elf.srt.messages import Instance, Life
from elf.srt.typed import parse

MAGIC = b"ELFT"
VERSION = 1
PROOF, STRETCH, REFUSAL = range(1, 4)
HEAD_BYTES = len(MAGIC) + 2
PROOF_BYTES_MAX = 8 << 10
"""The fields of a proof take 4.4 KB at most, those of a refusal 1.6 KB; more may come."""
LIVES_MAX = 8_192
"""Nodes whose life is remembered."""
LIFE_S = 60
"""A life that was heard of within this time is alive: an earlier one of the same key is then another process with that key."""

_encoder = msgspec.msgpack.Encoder()


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """address: where the sender is reached ("" if nowhere). certificate: signed, as the authority issued it. instance: which
    process it is, of those that may run with this key."""

    life: Life
    address: Annotated[str, Meta(max_length=255)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    certificate: Annotated[bytes, Meta(max_length=4_096)] = b""
    instance: Instance = 0


EVIDENCE_BYTES_MAX = 1_024
"""A revocation takes 200."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """reason: a word, to count by. text: for the operator over there. evidence: an item of kind "revoked", encoded, which the
    refused one checks itself."""

    reason: Annotated[str, Meta(max_length=32, pattern=r"^[a-z ]*\Z")]
    text: Annotated[str, Meta(max_length=500)] = ""
    evidence: Annotated[bytes, Meta(max_length=EVIDENCE_BYTES_MAX)] = b""


class Certificate(Protocol):
    @property
    def curve_public(self) -> bytes: ...
    @property
    def role(self) -> str: ...


class Keys(Protocol):
    """Of this node: `elf.srt.security.Keys`."""

    @property
    def curve_public(self) -> bytes: ...
    @property
    def curve_secret(self) -> bytes: ...
    @property
    def proof(self) -> bytes: ...


class Trust(Protocol):
    """Who belongs to the mesh: `elf.srt.security.Trust`."""

    def check(self, proof: bytes, now_s: int) -> Any:
        """The certificate. Raises PeerError."""


def pack(kind: int, body: msgspec.Struct) -> bytes:
    """A packet."""
    return head(kind) + _encoder.encode(body)


def head(kind: int) -> bytes:
    return MAGIC + bytes((VERSION, kind))


def kind_of(packet: bytes | memoryview) -> int:
    """Which kind of packet. Raises PeerError."""
    if len(packet) < HEAD_BYTES or packet[: len(MAGIC)] != MAGIC:
        raise PeerError("it does not speak as an elf agent does; is the address right?")
    if packet[4] != VERSION:
        raise PeerError(
            f"it speaks version {packet[4]} between agents, this build {VERSION}; upgrade the older one"
        )
    return packet[5]


def proof_of(packet: bytes | memoryview) -> Proof:
    """Raises PeerError, whatever the bytes."""
    if len(packet) > PROOF_BYTES_MAX:
        raise PeerError(f"a proof of {len(packet)} bytes, {PROOF_BYTES_MAX} are allowed")
    return parse(memoryview(packet)[HEAD_BYTES:], Proof)


def refusal_of(packet: bytes | memoryview) -> Refusal:
    """Raises PeerError."""
    return parse(memoryview(packet)[HEAD_BYTES:][:PROOF_BYTES_MAX], Refusal)


class Gate:
    """Whom this node talks to. Seconds are those of the host's clock."""

    def __init__(self, key: bytes, life: Life, trust: Trust | None, instance: Instance = 0) -> None:
        self.me, self.life, self.instance = node_id(key), life, instance
        self._trust = trust
        self._lives: dict[
            NodeId, tuple[Life, float]
        ] = {}  # the latest, and when it was heard of; oldest first

    def admit(self, proof: Proof, key: bytes | None, now_s: float) -> NodeId:
        """The node at the other end of a connection on which CURVE has proven `key` (None: without CURVE).

        Raises PeerError: not with that key, certificate, role, address or life. O(1), and a signature's check.
        """
        if key is not None and proof.key != key:
            raise PeerError(
                "it names another key than the one of its connection; is the address's key right?"
            )
        if proof.address and parse_address(proof.address).key not in (None, proof.key):
            raise PeerError("the address it tells has another key than its own; see `advertise` over there")
        if self._trust is not None:
            self.vouched(proof, now_s)
        node = node_id(proof.key)
        self._check_life(node, proof.life, now_s)
        return node

    def vouched(self, proof: Proof, now_s: float) -> None:
        """Raises PeerError unless the authority vouches for that key, as an agent's, now."""
        if self._trust is None:
            return
        certificate: Certificate = self._trust.check(proof.certificate, int(now_s))
        if certificate.curve_public != proof.key:
            raise PeerError("its certificate is for another key; issue one for this key")
        if certificate.role != "agent":
            raise PeerError(f"its key is that of a {certificate.role}; agents need a key with the role agent")

    def _check_life(self, node: NodeId, life: Life, now_s: float) -> None:
        if node == self.me:
            if life != self.life:
                raise PeerError("another agent runs with this agent's key; each agent needs a key of its own")
            return
        known, heard_s = self._lives.pop(node, (0, 0.0))
        if life < known and 0 <= now_s - heard_s < LIFE_S:
            self._lives[node] = known, heard_s
            raise PeerError(
                f"another agent with the key of {short(node)} has started since; each agent needs a key of its own"
            )
        if len(self._lives) >= LIVES_MAX:
            del self._lives[next(iter(self._lives))]
        self._lives[node] = life, now_s

    def heard(self, node: NodeId, life: Life, now_s: float) -> bool:
        """That life has spoken. False: a later one is known, this connection is of the past. O(1)."""
        known = self._lives.get(node)
        if known is not None and life < known[0]:
            return False
        if known is not None:
            self._lives[node] = life, now_s
        return True
