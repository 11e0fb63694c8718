"""The handshake: each side proves its identity before the other reads anything else from it.

    packet    = "ELFT" version(1) kind(1) body
    PROOF     = the sender's identity (`Proof`); the first packet of either side
    STRETCH   = a stretch of the connection's stream (`srt/link/outbox.py`); only after the proofs of both sides
    REFUSAL   = the reason (`Refusal`); the connection is unusable after it
    CHALLENGE = request for a PROOF, with the sender's `Proof`. As the first packet of a connection it is answered with the PROOF,
                and the connection ends; on an open connection it goes to the side that opened it

The connecting side knows the other's key beforehand (the address contains it), and CURVE has proven both keys before the first
packet. The handshake adds whether the mesh's authority vouches for that key, and which process with that key this is
(`elf.srt.transport.admission`). A node's id is the hash of its key, so no node can claim another's id. Without keys (`security =
"none"`, loopback only) both sides are trusted.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.srt.messages.addresses import KEY_BYTES, parse_address
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import COUNT_MAX, Instance, Life
from elf.srt.messages.typed import parse
from elf.srt.security.certificates import Trust

MAGIC = b"ELFT"
VERSION = 1
PROOF, STRETCH, REFUSAL, CHALLENGE = range(1, 5)
HEAD_BYTES = len(MAGIC) + 2
PROOF_BYTES_MAX = 8 << 10
"""The fields of a proof take at most 4.4 KB, those of a refusal 1.6 KB; later versions may add some."""

_encoder = msgspec.msgpack.Encoder()


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """instance: distinguishes processes with this key. address: the sender's own ("": it cannot be dialled). certificate: signed,
    as the authority issued it."""

    life: Life
    instance: Annotated[int, Meta(ge=1, le=COUNT_MAX)]
    address: Annotated[str, Meta(max_length=255)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    certificate: Annotated[bytes, Meta(max_length=4_096)] = b""


EVIDENCE_BYTES_MAX = 1_024
"""A revocation takes 200."""


TWIN = "twin"
"""Reason of a refusal: another process with that key lives."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """reason: a word for counters. text: for the operator of the refused agent. evidence: an encoded item of kind "revoked",
    which the refused agent verifies itself. other_at, other: of a twin, the address and the instance of the process that
    lives."""

    reason: Annotated[str, Meta(max_length=32, pattern=r"^[a-z ]*\Z")]
    text: Annotated[str, Meta(max_length=500)] = ""
    evidence: Annotated[bytes, Meta(max_length=EVIDENCE_BYTES_MAX)] = b""
    other_at: Annotated[str, Meta(max_length=255)] = ""
    other: Instance = 0


class TwinError(PeerError):
    """Another process with that key lives, at `at`."""

    def __init__(self, text: str, at: str, instance: int) -> None:
        super().__init__(text)
        self.at, self.instance = at, instance


def reason_of(error: PeerError) -> str:
    """The reason, a word, for refusing a proof."""
    return TWIN if isinstance(error, TwinError) else "proof"


def pack(kind: int, body: msgspec.Struct) -> bytes:
    """A packet."""
    return head(kind) + _encoder.encode(body)


def head(kind: int) -> bytes:
    return MAGIC + bytes((VERSION, kind))


def kind_of(packet: bytes | memoryview) -> int:
    """The kind of packet. Raises PeerError."""
    if len(packet) < HEAD_BYTES or packet[: len(MAGIC)] != MAGIC:
        raise PeerError("it does not use the protocol of elf agents; check the address")
    if packet[4] != VERSION:
        raise PeerError(
            f"it uses protocol version {packet[4]}, this build version {VERSION}; upgrade the older one"
        )
    return packet[5]


def proof_of(packet: bytes | memoryview) -> Proof:
    """Raises only PeerError, whatever the bytes are."""
    if len(packet) > PROOF_BYTES_MAX:
        raise PeerError(f"a proof of {len(packet)} bytes, {PROOF_BYTES_MAX} are allowed")
    return parse(memoryview(packet)[HEAD_BYTES:], Proof)


def refusal_of(packet: bytes | memoryview) -> Refusal:
    """Raises PeerError."""
    return parse(memoryview(packet)[HEAD_BYTES:][:PROOF_BYTES_MAX], Refusal)


class Gate:
    """Decides by keys and certificates which peers this node accepts. Seconds are those of the host's clock."""

    def __init__(self, key: bytes, life: Life, instance: int, trust: Trust | None) -> None:
        self.me, self.life, self.instance = node_id(key), life, instance
        self._trust = trust

    def check(self, proof: Proof, key: bytes | None, now_s: float) -> NodeId:
        """The node at the other end of a connection on which CURVE has proven `key` (None: without CURVE).

        Raises PeerError: wrong key, certificate, role or address. O(1), and one verification of a signature.
        """
        if key is not None and proof.key != key:
            raise PeerError(
                "it names another key than the one of its connection; check the key in its address"
            )
        if proof.address and parse_address(proof.address).key not in (None, proof.key):
            raise PeerError("its address contains another key than its own; check `advertise` on its host")
        self.vouched(proof, now_s)
        return node_id(proof.key)

    def vouched(self, proof: Proof, now_s: float) -> None:
        """Raises PeerError unless the authority's certificate for that key is valid now, with the role agent."""
        if self._trust is None:
            return
        certificate = self._trust.check(proof.certificate, int(now_s))
        if certificate.curve_public != proof.key:
            raise PeerError("its certificate is for another key; issue one for this key")
        if certificate.role != "agent":
            raise PeerError(f"its key is that of a {certificate.role}; agents need a key with the role agent")
