"""Certificates of a mesh's members: each binds keys to a name, a role and a term, and is signed by the mesh's authority.

    authority (Ed25519) --signs--> certificate: name, role, term, CURVE key, Ed25519 key
    CURVE key           --proves-> a connection; its hash is the node's id
    Ed25519 key         --signs--> items of the directory (`elf.srt.security.items`)

A certificate is sent as a *proof*: magic, the authority's signature, the certificate's bytes. The authority's public key suffices
to verify it, offline. The authority revokes certificates with revocations, which spread like other items.

A certificate has version 1, or version 2 if it narrows an operator's rights to patterns of job names. The authority's signature
covers the version, so a narrowed certificate cannot be passed off as one of version 1, whose readers would ignore the patterns.

Only `Keys` and `Authority` contain secrets, and their `repr` shows none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from elf.errors import PeerError
from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.patterns import PATTERNS_MAX, is_named
from elf.srt.messages.typed import parse
from elf.srt.security.pairs import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Pair,
    curve_pair,
    curve_public,
    is_sealed,
    seal,
    signing_pair,
)

SERIAL_BYTES = 16
MAGIC, MAGIC_2 = b"ELFC\x01", b"ELFC\x02"
CONTEXTS = {MAGIC: b"elf certificate", MAGIC_2: b"elf certificate 2"}
JOB_PATTERN = r"^[!-~]{1,64}\Z"
PROOF_BYTES_MAX = 1600
"""Magic 5, signature 64, and a certificate of at most 64 for the name, 80 for keys and serial, 16 * 66 for patterns of jobs, and
30 for the rest."""
SKEW_S = 3600
"""How far the clocks of hosts may differ before a certificate or a signature seems to be from the future."""
DAY_S = 86_400
KNOWN_MAX = 4_096
"""The last signatures whose verification is cached: 16 bytes each in a dict, half a megabyte."""

Role = Literal["agent", "operator", "reader"]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Serial = Annotated[bytes, Meta(min_length=SERIAL_BYTES, max_length=SERIAL_BYTES)]
Seconds = Annotated[int, Meta(ge=0, lt=253_402_300_800)]
"""Since 1970 UTC, up to the year 9999."""


class TrustError(PeerError):
    """A certificate or signature is not valid for this use. `reason` is one word, for counters: see `Reason`."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


Reason = Literal["garbled", "forged", "expired", "early", "revoked", "role", "identity", "jobs"]


class Certificate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the authority certifies about one holder of keys. Public. `signing_public` of a reader is empty: it signs nothing.
    jobs: patterns of the names of those jobs that an operator may change; none: all."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    role: Role
    curve_public: Key
    signing_public: Annotated[bytes, Meta(max_length=KEY_BYTES)]
    serial: Serial
    not_before_s: Seconds
    not_after_s: Seconds
    jobs: Annotated[tuple[Annotated[str, Meta(pattern=JOB_PATTERN)], ...], Meta(max_length=PATTERNS_MAX)] = ()

    @property
    def id(self) -> NodeId:
        """The id of the node that holds the CURVE key."""
        return node_id(self.curve_public)

    @property
    def jobs_text(self) -> str:
        """The jobs that an operator may change, for people."""
        return ", ".join(self.jobs) or "all"

    def check_jobs(self, names: Iterable[str]) -> None:
        """Raises TrustError unless this operator may change the jobs of these names."""
        for name in names:
            if not is_named(name, self.jobs):
                raise TrustError(
                    "jobs",
                    f"{self.name!r} may not change job {name!r}, only jobs named {self.jobs_text}; sign it with keys of an "
                    "operator who may, or issue some: elf keys issue NAME --role operator --jobs PATTERN",
                )


class Keys:
    """A holder's keys: its certificate as `proof`, its CURVE and Ed25519 secrets, and its mesh's public key.

    `address`: host:port where an agent is to be reached, or empty. In files: `elf.srt.security.files`.
    """

    __slots__ = ("_signing", "address", "authority", "certificate", "curve_public", "curve_secret", "proof")

    def __init__(
        self, authority: bytes, proof: bytes, curve_secret: bytes, signing: bytes, address: str = ""
    ) -> None:
        """`signing`: the Ed25519 seed, empty for a reader. Raises TrustError if the secrets do not match the certificate."""
        self.authority, self.proof, self.address = authority, proof, address
        self.certificate = read_proof(authority, proof)
        self.curve_public, self.curve_secret = self.certificate.curve_public, curve_secret
        self._signing = signing_pair(signing) if signing else Pair(b"", b"")
        if (
            curve_public(curve_secret) != self.curve_public
            or self._signing.public != self.certificate.signing_public
        ):
            raise TrustError(
                "identity", f"the secret keys are not those of {self.certificate.name}'s certificate"
            )

    @property
    def id(self) -> NodeId:
        return self.certificate.id

    @property
    def signing_seed(self) -> bytes:
        """The Ed25519 seed, for the keys file only."""
        return self._signing.secret[:KEY_BYTES]

    def sign(self, data: bytes, context: bytes = b"elf") -> bytes:
        """A signature of 64 bytes. Raises TrustError for a reader, which has no signing key."""
        if not self._signing.secret:
            raise TrustError(
                "role", f"{self.certificate.name} is a reader, and signs nothing; use an operator's keys"
            )
        return seal(self._signing.secret, context, data)

    def __repr__(self) -> str:
        return f"Keys({self.certificate.name!r}, {self.certificate.role!r})"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled")


def read_proof(authority: bytes, proof: bytes) -> Certificate:
    """The certificate in a proof, verified against this authority; its term is not checked. Raises TrustError. 60 µs."""
    return _read(proof, authority, is_sealed)


def _read(
    proof: bytes, authority: bytes, is_sealed: Callable[[bytes, bytes, bytes, bytes], bool]
) -> Certificate:
    certificate = parse_proof(proof)
    signature, body = _parts(proof)
    if not is_sealed(authority, CONTEXTS[proof[: len(MAGIC)]], body, signature):
        raise TrustError(
            "forged",
            f"the certificate of {certificate.name!r} is not signed by this mesh's authority; "
            "both sides need keys that the same authority issued",
        )
    return certificate


def parse_proof(proof: bytes) -> Certificate:
    """The certificate in a proof, not verified. Raises TrustError if it is malformed. O(1): bounded."""
    if len(proof) > PROOF_BYTES_MAX or proof[: len(MAGIC)] not in CONTEXTS:
        raise TrustError(
            "garbled", "no certificate of a version that this agent reads; update the older side"
        )
    try:
        certificate = parse(_parts(proof)[1], Certificate)
    except PeerError as error:
        raise TrustError("garbled", f"a certificate cannot be read: {error}") from error
    if len(certificate.signing_public) != (0 if certificate.role == "reader" else KEY_BYTES):
        raise TrustError("garbled", f"the certificate of {certificate.name!r} lacks the keys of its role")
    is_narrowed = proof[: len(MAGIC)] == MAGIC_2
    if is_narrowed != bool(certificate.jobs) or (is_narrowed and certificate.role != "operator"):
        raise TrustError(
            "garbled",
            f"the certificate of {certificate.name!r} has patterns of jobs that do not fit its role or version",
        )
    return certificate


def _parts(proof: bytes) -> tuple[bytes, bytes]:
    end = len(MAGIC) + SIGNATURE_BYTES
    return proof[len(MAGIC) : end], proof[end:]


class Trust:
    """Verifies others for one node, with the authority's public key and the revocations known so far.

    `revoked`: serials. It only grows: when its length changes, the owner of connections verifies its peers again.
    """

    def __init__(self, authority: bytes) -> None:
        self.authority = authority
        self.revoked: set[bytes] = set()
        self.revoked_s: dict[bytes, int] = {}
        """Serial -> when, as the authority says."""
        self._evidence: dict[bytes, bytes] = {}
        self._known: dict[bytes, bool] = {}

    def is_sealed(self, public: bytes, context: bytes, data: bytes, signature: bytes) -> bool:
        """As `elf.srt.security.pairs.is_sealed`, with a cache: a repeated check costs 3 µs."""
        asked = blake2b(public + signature + context + b"\0" + data, digest_size=16).digest()
        known = self._known.get(asked)
        if known is None:
            known = is_sealed(public, context, data, signature)
            put_last(self._known, asked, known, KNOWN_MAX)
        return known

    def read(self, proof: bytes, *, may_be_revoked: bool = False) -> Certificate:
        """The certificate, if the authority signed it and has not revoked it; its term is not checked. Raises TrustError."""
        certificate = _read(proof, self.authority, self.is_sealed)
        if certificate.serial in self.revoked and not may_be_revoked:
            error = TrustError(
                "revoked", f"the certificate of {certificate.name!r} was revoked; issue new keys to its host"
            )
            error.evidence = self._evidence.get(certificate.serial, b"")
            raise error
        return certificate

    def check(self, proof: bytes, now_s: int) -> Certificate:
        """The certificate, if it is valid now. Raises TrustError. 60 µs, and 6 µs if cached."""
        certificate = self.read(proof)
        check_term(certificate, now_s)
        return certificate

    def revoke(self, serial: bytes, evidence: bytes = b"", revoked_s: int = 0) -> None:
        """`evidence`: the encoded revocation, which a refused holder gets."""
        self.revoked.add(serial)
        self.revoked_s[serial] = revoked_s
        if evidence:
            self._evidence[serial] = evidence

    def is_revoked(self, serial: bytes) -> bool:
        return serial in self.revoked


def check_term(certificate: Certificate, now_s: int) -> None:
    """Raises TrustError unless `now_s` lies in the certificate's term."""
    if now_s < certificate.not_before_s:
        raise TrustError(
            "early",
            f"the certificate of {certificate.name!r} is not valid before {moment(certificate.not_before_s)}; "
            f"it is {moment(now_s)} here: compare the clocks",
        )
    if now_s > certificate.not_after_s:
        raise TrustError(
            "expired",
            f"the certificate of {certificate.name!r} expired {moment(certificate.not_after_s)}; "
            "renew it with `elf keys renew`, or set this host's clock",
        )


def moment(seconds: int) -> str:
    """A time for messages to users, UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


class Authority:
    """The authority that issues a mesh's certificates, in memory. `elf.agent.config.authority_folder` keeps it in a folder."""

    __slots__ = ("_pair",)

    def __init__(self, seed: bytes | None = None) -> None:
        """The authority of that seed, or a new one."""
        self._pair = signing_pair(seed)

    @property
    def public(self) -> bytes:
        return self._pair.public

    @property
    def seed(self) -> bytes:
        """The authority's secret, for its file only."""
        return self._pair.secret[:KEY_BYTES]

    def issue(
        self,
        name: str,
        role: Role,
        now_s: int,
        days: int = 365,
        address: str = "",
        jobs: tuple[str, ...] = (),
        secret: bytes = b"",
    ) -> Keys:
        """New keys, valid for `days` and since an hour ago (clocks differ). secret: that of the CURVE pair, which an agent has
        already. Raises TrustError for an invalid name or pattern."""
        curve = Pair(curve_public(secret), secret) if secret else curve_pair()
        seed = b"" if role == "reader" else os.urandom(KEY_BYTES)
        signing = signing_pair(seed).public if seed else b""
        proof = self.certify(name, role, curve.public, signing, now_s, days, jobs)
        return Keys(self.public, proof, curve.secret, seed, address)

    def renew(self, keys: Keys, now_s: int, days: int = 365) -> Keys:
        """The same keys, and so the same node id and rights, with a new certificate."""
        old = keys.certificate
        proof = self.certify(old.name, old.role, old.curve_public, old.signing_public, now_s, days, old.jobs)
        return Keys(self.public, proof, keys.curve_secret, keys.signing_seed, keys.address)

    def certify(
        self,
        name: str,
        role: Role,
        curve: bytes,
        signing: bytes,
        now_s: int,
        days: int,
        jobs: tuple[str, ...] = (),
    ) -> bytes:
        """The proof of a new certificate for those public keys."""
        serial, since_s = os.urandom(SERIAL_BYTES), max(0, now_s - SKEW_S)
        certificate = Certificate(name, role, curve, signing, serial, since_s, now_s + days * DAY_S, jobs)
        magic, fields = MAGIC_2, astuple(certificate)
        if not jobs:
            magic, fields = MAGIC, fields[:-1]  # older agents read it too
        body = msgspec.msgpack.encode(fields)
        proof = magic + seal(self._pair.secret, CONTEXTS[magic], body) + body
        parse_proof(proof)  # sign nothing that others could not read
        return proof

    def sign(self, data: bytes, context: bytes) -> bytes:
        return seal(self._pair.secret, context, data)

    def __repr__(self) -> str:
        return "Authority(…)"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled")
