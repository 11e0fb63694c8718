"""Who said an item of the directory: signatures, and who may say what.

    kind      | who may say it                       | and only
    ----------+--------------------------------------+-----------------------------------------------
    "job"     | an operator                          |
    "agent"   | an agent                             | of itself: the item's name is the hash of its CURVE key
    "ballot"  | an agent                             | for itself: the ballot names it
    "schedule"| an agent                             | for itself: its ballot names it
    "revoked" | the authority                        | the name is a certificate's serial

    signature = version(1) signed_s(8) signature(64) proof(the signer's; the authority needs none)

The directory holds no certificates, so each item carries its signer's. What counts is the certificate's term at the moment of
signing, which the signature covers: a job goes on when its operator's certificate has run out, and nodes agree whatever their
clocks. Who holds an old key could date a signature back: an expired certificate that may be in wrong hands is to be revoked. A
revocation undoes everything that was signed under that certificate, before or after, so that the order of arrival means nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from time import time

import msgspec

from elf.errors import PeerError
from elf.srt.messages.messages import Item
from elf.srt.messages.revocation import Revocation
from elf.srt.messages.typed import parse
from elf.srt.security.certificates import (
    PROOF_BYTES_MAX,
    SERIAL_BYTES,
    SKEW_S,
    Authority,
    Certificate,
    Keys,
    Trust,
    TrustError,
    check_term,
    moment,
    parse_proof,
)
from elf.srt.security.pairs import SIGNATURE_BYTES

VERSION = 1
CONTEXT = b"elf item"
HEAD_BYTES = 1 + 8 + SIGNATURE_BYTES
ROLE_OF = {"job": "operator", "agent": "agent", "ballot": "agent", "schedule": "agent"}
BALLOT_PARTS = {"ballot": 4, "schedule": 5}
"""Of a stamp that begins with a ballot: its epoch, two halves of the node, the instance, and what else."""


def sign_item(keys: Keys, item: Item, signed_s: int | None = None) -> Item:
    """The item with the holder's signature, made now unless told. Raises TrustError for a reader. 30 µs."""
    when = int(time()) if signed_s is None else signed_s
    signature = keys.sign(_digest(item, when, keys.certificate.serial), CONTEXT)
    return _with(item, _head(when, signature) + keys.proof)


def revocation(authority: Authority, certificate: Certificate, now_s: int) -> Item:
    """The item that takes a certificate back, for good."""
    agent = certificate.id if certificate.role == "agent" else b""
    body = msgspec.msgpack.encode(Revocation(certificate.name, now_s, agent))
    item = Item("revoked", certificate.serial, (now_s,), body)
    return _with(item, _head(now_s, authority.sign(_digest(item, now_s, b""), CONTEXT)))


def _with(item: Item, signature: bytes) -> Item:
    return Item(item.kind, item.name, item.stamp, item.body, signature)


def _head(signed_s: int, signature: bytes) -> bytes:
    return bytes((VERSION,)) + signed_s.to_bytes(8) + signature


def _digest(item: Item, signed_s: int, serial: bytes) -> bytes:
    """What a signature covers: everything but itself. 32 bytes."""
    whole = msgspec.msgpack.encode((item.kind, item.name, item.stamp, item.body, signed_s, serial))
    return blake2b(whole, digest_size=32).digest()


def verify_item(trust: Trust, item: Item, now_s: int) -> bool:
    """Whether the signer may say so, and does. A revocation that is believed is taken to heart. Up to 150 µs."""
    try:
        signer_of(trust, item, now_s)
    except TrustError:
        return False
    return True


def signer_of(trust: Trust, item: Item, now_s: int) -> Certificate | None:
    """Who signed the item; None: the authority, and what it takes back is known to `trust` then. Raises TrustError, whatever
    the bytes.

    What costs nothing is looked at first, and signatures last: a forged item costs its reader 150 µs at most.
    """
    if item.kind == "revoked":
        _check_revocation(trust, item)
        return None
    signed_s, signature, proof = _split(item)
    claimed = parse_proof(proof)
    _check_role(claimed, item)
    if signed_s > now_s + SKEW_S:
        raise TrustError(
            "early",
            f"{claimed.name!r} signed at {moment(signed_s)}, it is {moment(now_s)} here: compare the clocks",
        )
    check_term(claimed, signed_s)
    certificate = trust.read(proof)
    _check_seal(
        trust, certificate.signing_public, item, signed_s, signature, certificate.serial, certificate.name
    )
    return certificate


def _split(item: Item) -> tuple[int, bytes, bytes]:
    whole = item.signature
    if not whole:
        raise TrustError("forged", f"a {item.kind} item is not signed; sign it with keys of this mesh")
    if len(whole) < HEAD_BYTES or len(whole) > HEAD_BYTES + PROOF_BYTES_MAX or whole[0] != VERSION:
        raise TrustError(
            "garbled", f"the signature of a {item.kind} item cannot be read; update the older side"
        )
    signed_s = int.from_bytes(whole[1:9])
    if signed_s >= 253_402_300_800:
        raise TrustError("garbled", f"the signature of a {item.kind} item is of no time")
    return signed_s, whole[9:HEAD_BYTES], whole[HEAD_BYTES:]


def _check_role(certificate: Certificate, item: Item) -> None:
    role = ROLE_OF.get(item.kind)
    if certificate.role != role:
        raise TrustError(
            "role",
            f"{certificate.name!r} signed a {item.kind} item as {certificate.role}; "
            + (f"that takes keys of the role {role}" if role else "nobody may"),
        )
    about = item.name if item.kind == "agent" else _ballot_node(item) if item.kind in BALLOT_PARTS else None
    if about is not None and about != certificate.id:
        raise TrustError(
            "identity", f"{certificate.name!r} signed a {item.kind} item of another node; look at that host"
        )


def _ballot_node(item: Item) -> bytes:
    """The node that a ballot names, of which the stamp holds two halves."""
    if len(item.stamp) != BALLOT_PARTS[item.kind] or any(not 0 <= part < 1 << 64 for part in item.stamp):
        return b""
    return item.stamp[1].to_bytes(8) + item.stamp[2].to_bytes(8)


def _check_seal(
    trust: Trust, public: bytes, item: Item, signed_s: int, signature: bytes, serial: bytes, name: str
) -> None:
    if not trust.is_sealed(public, CONTEXT, _digest(item, signed_s, serial), signature):
        raise TrustError(
            "forged", f"a {item.kind} item was not signed by {name!r}, whose name it bears; it is ignored"
        )


def _check_revocation(trust: Trust, item: Item) -> None:
    signed_s, signature, proof = _split(item)
    if proof or len(item.name) != SERIAL_BYTES:
        raise TrustError("garbled", "a revocation that is none; it is ignored")
    try:
        parse(item.body, Revocation)
    except PeerError as error:
        raise TrustError("garbled", f"a revocation cannot be read: {error}") from error
    _check_seal(trust, trust.authority, item, signed_s, signature, b"", "this mesh's authority")
    trust.revoke(item.name, msgspec.msgpack.encode(item))


def serial_of(item: Item) -> bytes:
    """Of the certificate that an item was signed under; empty when it was not. Nothing is verified. O(1)."""
    try:
        return parse_proof(item.signature[HEAD_BYTES:]).serial
    except TrustError:
        return b""


class Notary:
    """Signs what this node says in the directory, and checks what others say there.

    `refused`: items that were not believed, by reason; `last_refusal` says why, of the last. `clock_s`: seconds since 1970.
    """

    def __init__(self, keys: Keys, trust: Trust, clock_s: Callable[[], float]) -> None:
        self.trust = trust
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""
        self._keys, self._clock_s = keys, clock_s

    def sign(self, item: Item) -> Item:
        return sign_item(self._keys, item, int(self._clock_s()))

    def verify(self, item: Item) -> bool:
        """Whether to believe it. A revocation that is believed is heeded from then on. Up to 150 µs."""
        try:
            signer_of(self.trust, item, int(self._clock_s()))
        except TrustError as error:
            self.refused[error.reason] += 1
            self.last_refusal = str(error)
            return False
        return True

    def is_revoked(self, item: Item) -> bool:
        """Whether an item that was believed once was signed under a certificate that was taken back since. 2 µs."""
        return item.kind != "revoked" and self.trust.is_revoked(serial_of(item))

    def take(self, items: Iterable[Item]) -> None:
        """Heed revocations that were read from a file. Others are not looked at."""
        for item in items:
            if item.kind == "revoked":
                self.verify(item)
