"""Signatures of directory items, and which role may sign which kind.

    kind      | signer                               | restriction
    ----------+--------------------------------------+-----------------------------------------------
    "job"     | an operator                          | the operator's certificate names the job, or all jobs
    "former"  | an operator                          | likewise; the name ends with the serial of its certificate
    "agent"   | an agent                             | about itself: the item's name is the hash of its CURVE key
    "ballot"  | an agent                             | for itself: the ballot names it
    "schedule"| an agent                             | for itself: its ballot names it
    "lost"    | an agent                             | none: it is only for display
    "audit"   | an agent                             | about itself: the item's name begins with the hash of its CURVE key
    "over"    | an agent                             | none: it can only end a trial
    "revoked" | the authority                        | the name is a certificate's serial

    signature = version(1) signed_s(8) signature(64) proof(the signer's; the authority needs none)

The directory contains no certificates, so each item carries that of its signer. The certificate must be valid at the time of
signing, which the signature covers: so a job continues when its operator's certificate expires, and nodes agree whatever their
clocks. The holder of an old key could backdate a signature: revoke an expired certificate whose key may be stolen. A revocation
voids everything that was signed under its certificate, before or after, so that the order of arrival does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from time import time
from typing import NamedTuple

import msgspec

from elf.errors import PeerError
from elf.srt.messages.ids import ID_BYTES
from elf.srt.messages.messages import Item
from elf.srt.messages.revocation import Revocation
from elf.srt.messages.signers import OF_JOBS, Signers, job_in
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
ROLE_OF = {
    "job": "operator",
    "former": "operator",
    "agent": "agent",
    "ballot": "agent",
    "schedule": "agent",
    "lost": "agent",
    "audit": "agent",
    "over": "agent",
}
JobsOf = Callable[[Item], Iterable[str]]
"""The names of the jobs that a "job" item is about. It may raise PeerError."""
BALLOT_PARTS = {"ballot": 4, "schedule": 5}
"""Length of a stamp that begins with a ballot: the epoch, two halves of the node's id, the instance, and further parts."""


def sign_item(keys: Keys, item: Item, signed_s: int | None = None) -> Item:
    """The item with the holder's signature, made at `signed_s`, or now. Raises TrustError for a reader. 30 µs."""
    when = int(time()) if signed_s is None else signed_s
    signature = keys.sign(_digest(item, when, keys.certificate.serial), CONTEXT)
    return _with(item, _head(when, signature) + keys.proof)


def revocation(authority: Authority, certificate: Certificate, now_s: int) -> Item:
    """The item that revokes a certificate, for good."""
    agent = certificate.id if certificate.role == "agent" else b""
    body = msgspec.msgpack.encode(Revocation(certificate.name, now_s, agent))
    item = Item("revoked", certificate.serial, (now_s,), body)
    return _with(item, _head(now_s, authority.sign(_digest(item, now_s, b""), CONTEXT)))


def _with(item: Item, signature: bytes) -> Item:
    return Item(item.kind, item.name, item.stamp, item.body, signature)


def _head(signed_s: int, signature: bytes) -> bytes:
    return bytes((VERSION,)) + signed_s.to_bytes(8) + signature


def _digest(item: Item, signed_s: int, serial: bytes) -> bytes:
    """The digest that is signed: of the item without its signature, the time and the serial. 32 bytes."""
    whole = msgspec.msgpack.encode((item.kind, item.name, item.stamp, item.body, signed_s, serial))
    return blake2b(whole, digest_size=32).digest()


def signer_of(trust: Trust, item: Item, now_s: int, jobs_of: JobsOf, grace_s: int = 0) -> Certificate | None:
    """The certificate of an item's signer; None: the authority signed it, and its revocation is added to `trust`. Raises only
    TrustError, whatever the bytes are; for the reason "jobs" only if the item has that signer.

    Cheap checks come first, and signatures last: a forged item costs its reader at most 150 µs. grace_s: so long a job counts
    that was signed before its signer's certificate was revoked.
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
    revoked_s = trust.revoked_s.get(claimed.serial, 0)
    counts = item.kind in OF_JOBS and signed_s <= revoked_s and now_s < revoked_s + grace_s
    certificate = trust.read(proof, may_be_revoked=counts)
    if item.kind == "former":
        if item.name[-SERIAL_BYTES:] != certificate.serial:
            raise TrustError(
                "identity", f"a former item of {certificate.name!r} has another serial in its name"
            )
        item = job_in(item)
    _check_seal(
        trust, certificate.signing_public, item, signed_s, signature, certificate.serial, certificate.name
    )
    if certificate.jobs:
        certificate.check_jobs(_jobs(jobs_of, item))
    return certificate


def _jobs(jobs_of: JobsOf, item: Item) -> Iterable[str]:
    try:
        return jobs_of(item)
    except PeerError as error:
        raise TrustError("garbled", str(error)) from error


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
        raise TrustError("garbled", f"the signature of a {item.kind} item has an invalid time")
    return signed_s, whole[9:HEAD_BYTES], whole[HEAD_BYTES:]


def _check_role(certificate: Certificate, item: Item) -> None:
    role = ROLE_OF.get(item.kind)
    if certificate.role != role:
        raise TrustError(
            "role",
            f"{certificate.name!r} signed a {item.kind} item as {certificate.role}; "
            + (f"sign it with keys of the role {role}" if role else "no role may sign this kind"),
        )
    about = _node_of(item)
    if about is not None and about != certificate.id:
        raise TrustError(
            "identity", f"{certificate.name!r} signed a {item.kind} item of another node; check that host"
        )


def _node_of(item: Item) -> bytes | None:
    """The only node that may sign the item; None: any may."""
    if item.kind in BALLOT_PARTS:
        return _ballot_node(item)
    if item.kind == "audit":
        return item.name[:ID_BYTES]
    return item.name if item.kind == "agent" else None


def _ballot_node(item: Item) -> bytes:
    """The node that a ballot names, as two halves in the stamp."""
    if len(item.stamp) != BALLOT_PARTS[item.kind] or any(not 0 <= part < 1 << 64 for part in item.stamp):
        return b""
    return item.stamp[1].to_bytes(8) + item.stamp[2].to_bytes(8)


def _check_seal(
    trust: Trust, public: bytes, item: Item, signed_s: int, signature: bytes, serial: bytes, name: str
) -> None:
    if not trust.is_sealed(public, CONTEXT, _digest(item, signed_s, serial), signature):
        raise TrustError(
            "forged", f"a {item.kind} item names {name!r} as its signer, who did not sign it; it is ignored"
        )


def _check_revocation(trust: Trust, item: Item) -> None:
    signed_s, signature, proof = _split(item)
    if proof or len(item.name) != SERIAL_BYTES:
        raise TrustError("garbled", "a malformed revocation; it is ignored")
    try:
        revoked_s = parse(item.body, Revocation).revoked_s
    except PeerError as error:
        raise TrustError("garbled", f"a revocation cannot be read: {error}") from error
    _check_seal(trust, trust.authority, item, signed_s, signature, b"", "this mesh's authority")
    trust.revoke(item.name, msgspec.msgpack.encode(item), revoked_s)


class Signed(NamedTuple):
    """Who signed an item, and when: the name and serial of the certificate, and seconds since 1970."""

    name: str
    serial: bytes
    when_s: int


def signed_of(item: Item) -> Signed:
    """As the item's signature says; empty if there is none. Nothing is verified. O(1)."""
    try:
        when_s, _, proof = _split(item)
        certificate = parse_proof(proof)
    except TrustError:
        return Signed("", b"", 0)
    return Signed(certificate.name, certificate.serial, when_s)


def serial_of(item: Item) -> bytes:
    """The serial of the certificate with which an item was signed; empty if there is none. Nothing is verified. O(1)."""
    return signed_of(item).serial


def signed_us(item: Item) -> int:
    """When an item was signed, by its signer's clock; 0 if it was not. Nothing is verified. O(1)."""
    return int.from_bytes(item.signature[1:9]) * 1_000_000


class Notary:
    """Signs this node's items of the directory, and verifies those of others.

    `refused`: counts of refused items, by reason. `last_refusal`: message about the last one. `clock_s`: seconds since 1970.
    """

    def __init__(
        self, keys: Keys, trust: Trust, clock_s: Callable[[], float], jobs_of: JobsOf, grace_us: int = 0
    ) -> None:
        self.trust = trust
        self.signers = Signers(serial_of, self._revoked_us, grace_us, signed_us)
        self.refused: Counter[str] = Counter()
        self.last_refusal = ""
        self._keys, self._clock_s, self._jobs_of = keys, clock_s, jobs_of

    def sign(self, item: Item) -> Item:
        return sign_item(self._keys, item, int(self._clock_s()))

    def verify(self, item: Item) -> bool:
        """Whether to accept an item. An accepted revocation is applied from then on. Up to 150 µs."""
        error = self.refusal(item)
        if error is None:
            return True
        self.refused[error.reason] += 1
        self.last_refusal = str(error)
        return False

    def refusal(self, item: Item) -> TrustError | None:
        """Why the item is not accepted; None: it is."""
        try:
            signer_of(
                self.trust, item, int(self._clock_s()), self._jobs_of, self.signers.grace_us // 1_000_000
            )
        except TrustError as error:
            return error
        return None

    def is_revoked(self, item: Item) -> bool:
        """Whether an accepted item was signed under a certificate that was revoked since, and counts no more. 2 µs."""
        void_us = self.signers.void_us(item)
        return void_us is not None and self._clock_s() * 1e6 >= void_us

    def _revoked_us(self, serial: bytes) -> int | None:
        return self.trust.revoked_s.get(serial, 0) * 1_000_000 if self.trust.is_revoked(serial) else None

    def take(self, items: Iterable[Item]) -> None:
        """Apply revocations that were read from a file. Items of other kinds are ignored."""
        for item in items:
            if item.kind == "revoked":
                self.verify(item)
