"""Bundles that are ahead of the committed positions and wait for the missing ones: bounded in bytes and in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Bundle, BundleId
from elf.srt.messages.sizes import bundle_bytes


class Parked(NamedTuple):
    """A bundle, the child that sent it, its size, and when its wait began."""

    child: NodeId
    bundle: Bundle
    nbytes: int
    since: int


class Parking:
    """Parked bundles, oldest first. Rule 4: their bytes are bounded, and each waits at most `park_us`.

    Invariant (`check`): `nbytes` is the sum of their sizes, and at most the bound.
    """

    def __init__(self, bytes_max: int, park_us: int) -> None:
        self._bytes_max, self._park_us = bytes_max, park_us
        self._parked: dict[BundleId, Parked] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[Parked]:
        return iter(list(self._parked.values()))

    def put(self, child: NodeId, bundle: Bundle, now: int) -> bool:
        """Park a bundle; False if there is no room for it. A resent bundle keeps its waiting time, under its new child."""
        before = self.take(bundle.id)
        size = bundle_bytes(bundle)
        if self.nbytes + size > self._bytes_max:
            return False
        self._parked[bundle.id] = Parked(child, bundle, size, before.since if before else now)
        self.nbytes += size
        return True

    def take(self, bundle_id: BundleId) -> Parked | None:
        """Remove a bundle."""
        found = self._parked.pop(bundle_id, None)
        if found is not None:
            self.nbytes -= found.nbytes
        return found

    def expired(self, now: int) -> list[Parked]:
        """Remove bundles that waited too long. If the clock stepped back, their wait starts again now."""
        out = []
        for key, parked in list(self._parked.items()):
            if now < parked.since:
                self._parked[key] = parked._replace(since=now)
            elif now - parked.since >= self._park_us:
                out.append(parked)
                self.take(key)
        return out

    @property
    def deadline(self) -> int | None:
        """When the wait of the oldest bundle ends. O(parked)."""
        if not self._parked:
            return None
        return min(parked.since for parked in self._parked.values()) + self._park_us

    def check(self) -> None:
        assert self.nbytes == sum(parked.nbytes for parked in self._parked.values()) <= self._bytes_max
