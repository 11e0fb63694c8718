"""Who signed a directory item, and until when it counts once the signer's certificate is revoked.

Most items are void at once. Jobs are not: others may need them. So the specs that an operator had signed by then count for a
grace period more, in which another operator can sign the job again. Of each operator who signed specs of a job the newest one is
kept: the item "job" has the newest of all, items "former" those of the others, under the job's id and the signer's serial, with
body and signature unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from elf.srt.messages.ids import ID_BYTES, JobId
from elf.srt.messages.messages import Item, Micros

OF_JOBS = ("job", "former")
"""Kinds of items that count for the grace period."""


class Signers(NamedTuple):
    """serial: that of the certificate with which an item was signed; b"": none. revoked_us: when the certificate with that serial
    was revoked, as far as this node knows; None: it was not. signed_us: when an item was signed. grace_us: the grace period."""

    serial: Callable[[Item], bytes] = lambda item: b""
    revoked_us: Callable[[bytes], Micros | None] = lambda serial: None
    grace_us: Micros = 0
    signed_us: Callable[[Item], Micros] = lambda item: 0

    def void_us(self, item: Item) -> Micros | None:
        """From when on the item does not count; None: its signer's certificate holds. O(1)."""
        revoked_us = self.revoked_us(self.serial(item)) if item.kind != "revoked" else None
        if revoked_us is None:
            return None
        counts = item.kind in OF_JOBS and self.signed_us(item) <= revoked_us
        return revoked_us + self.grace_us if counts else 0

    def is_void(self, serial: bytes, now: Micros) -> bool:
        """Whether a job's spec that was signed under that certificate does not count any more."""
        revoked_us = self.revoked_us(serial)
        return revoked_us is not None and now >= revoked_us + self.grace_us


def former_of(item: Item, serial: bytes) -> Item:
    """A job's item, as the newest one of that signer."""
    return Item("former", item.name + serial, item.stamp, item.body, item.signature)


def job_in(item: Item) -> Item:
    """The job's item of which that is the former one."""
    return Item("job", item.name[:ID_BYTES], item.stamp, item.body, item.signature)


def job_of(item: Item) -> JobId:
    return item.name[:ID_BYTES]
