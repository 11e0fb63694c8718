"""Operators' signatures in a simulation, without cryptography: a signature is the operator's name, and so is the serial.

`OPERATORS` operators sign changes in turn; the first one, who starts the jobs, is never revoked, so no job ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from elf.errors import PeerError
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.entries import SpecRank
from elf.srt.messages.messages import Item, Micros
from elf.srt.messages.revocation import Revocation
from elf.srt.messages.signers import OF_JOBS, Signers
from elf.srt.messages.typed import parse

OPERATORS = 4
STARTS = b"op0"


def operator(number: int) -> bytes:
    """Who signs a change of that number."""
    return b"op%d" % (1 + number % (OPERATORS - 1))


def revocation(name: bytes, now: Micros) -> Item:
    """The item that revokes an operator's certificate. Like real ones, it has whole seconds."""
    body = msgspec.msgpack.encode(Revocation(name.decode(), now // 1_000_000))
    return Item("revoked", name, (now // 1_000_000,), body)


class Signatures:
    """Who signed which spec, in the whole mesh. revoked: operators who sign no more."""

    def __init__(self) -> None:
        self.revoked: set[bytes] = set()
        self._of: dict[SpecRank, bytes] = {}

    def sign(self, spec: JobSpec, number: int) -> Item:
        """The item of a change, by the operator of that number, or the first one."""
        name = operator(number)
        self._of[rank_of(spec)] = STARTS if name in self.revoked else name
        return self.item(spec)

    def item(self, spec: JobSpec) -> Item:
        return spec.item(self._of.get(rank_of(spec), STARTS))


class Believed:
    """One node's `signers` and `verify`: what it knows of revocations."""

    def __init__(self, grace_us: Micros, clock: Callable[[], Micros]) -> None:
        self._revoked: dict[bytes, Micros] = {}
        self._clock = clock
        self.signers = Signers(
            lambda item: item.signature if item.kind in OF_JOBS else b"", self._revoked.get, grace_us
        )

    def verify(self, item: Item) -> bool:
        if item.kind == "revoked":
            try:
                self._revoked[item.name] = parse(item.body, Revocation).revoked_s * 1_000_000
            except PeerError:
                return False
            return True
        void_us = self.signers.void_us(item)
        return void_us is None or self._clock() < void_us
