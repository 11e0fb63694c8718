"""A roster: files of workers in an order that both ends of a link know, and where the last contribution of each ended.

A bundle's contributions on the wire are a `Section`; `elf.srt.codec.rosters` encodes and decodes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from elf.srt.messages.columns import Words, pair_hash
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Digest, Micros, Slot, Span

SLOTS_MAX = 1 << 20
"""Slots of all rosters of one side together: 100,000 workers with five files each, and as many lanes."""
ROSTERS_MAX = 64
"""Rosters of one side: four times the children of a root, since children come and go."""

Places = NDArray[np.int64]
N = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]


class Presence(IntEnum):
    """Which slots of the roster a bundle contains: all, those at the listed places, all but those, or the ones of a bitmap."""

    ALL = 0
    LISTED = 1
    MISSING = 2
    BITMAP = 3


class Section(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One bundle's contributions on the wire. Each count is the length of the column (`elf.srt.messages.columns`) beside it.

    slots: digest of the roster after its changes. starts: hash sum over the slots and `from`s of this bundle. workers: 16 bytes
    for each added slot; files, lanes: columns. grown: column of to - from, for each present slot in the roster's order. moved:
    zigzag differences of those `from`s that differ from the last end. lagging: watermarks above the lowest of them, each at the
    place of its worker's first slot among the present ones. strangers: watermarks of workers without a slot here.
    """

    roster: Annotated[int, Meta(ge=0, lt=ROSTERS_MAX)]
    is_fresh: bool
    slots: Digest
    starts: Digest
    presence: Presence
    n_listed: N
    listed: bytes
    grown: bytes
    n_moved: N = 0
    moved_at: bytes = b""
    moved: bytes = b""
    n_flagged: N = 0
    flagged_at: bytes = b""
    flags: bytes = b""
    n_removed: N = 0
    removed: bytes = b""
    n_added: N = 0
    workers: bytes = b""
    files: bytes = b""
    lanes: bytes = b""
    n_lagging: N = 0
    lagging_at: bytes = b""
    lagging_from: Micros = 0
    lagging: bytes = b""
    strangers: tuple[tuple[NodeId, Micros], ...] = ()


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Contributions without a roster: so few that a section would be as large and slower to make. Rosters do not change."""

    contributions: dict[Slot, Span]
    lagging: dict[NodeId, Micros]


class Roster:
    """Ordered slots, their hashes, and where the last contribution of each ended. `index` is for the encoder only."""

    __slots__ = ("_digest", "ends", "hashes", "index", "seen", "slots")

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.hashes: Words = np.empty(0, np.uint64)
        self.ends: Words = np.empty(0, np.uint64)
        self.seen: NDArray[np.int64] = np.empty(0, np.int64)
        self.index: dict[Slot, int] = {}
        self._digest: int | None = 0

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def digest(self) -> int:
        """Digest of the slots in their order. O(1) unless they changed."""
        if self._digest is None:
            self._digest = pair_hash(self.hashes, np.arange(len(self.slots), dtype=np.uint64))
        return self._digest

    def remove(self, places: Places) -> None:
        """O(slots)."""
        stays = np.ones(len(self.slots), np.bool_)
        stays[places] = False
        self.slots = [self.slots[i] for i in np.flatnonzero(stays).tolist()]
        self.hashes, self.ends, self.seen = self.hashes[stays], self.ends[stays], self.seen[stays]
        self._digest = None

    def add(self, slots: list[Slot]) -> None:
        """O(slots)."""
        self.slots = self.slots + slots
        self.hashes = np.concatenate([self.hashes, _hashes(slots)])
        self.ends = np.concatenate([self.ends, np.zeros(len(slots), np.uint64)])
        self.seen = np.concatenate([self.seen, np.zeros(len(slots), np.int64)])
        self._digest = None

    def reindex(self) -> None:
        self.index = {slot: at for at, slot in enumerate(self.slots)}

    def move(self, at: Places | slice, starts: Words, ends: Words, again: bool) -> None:
        """Record the ends of a bundle's contributions. `again`: of an older bundle, so that no end moves back."""
        self.ends[at] = np.maximum(self.ends[at], ends) if again else ends

    def check(self) -> None:
        """Raise AssertionError unless the columns fit together."""
        assert len(self.slots) == len(self.hashes) == len(self.ends) == len(self.seen)
        assert len(set(self.slots)) == len(self.slots)
        assert (self.hashes == _hashes(self.slots)).all()
        assert self.digest == pair_hash(self.hashes, np.arange(len(self.slots), dtype=np.uint64))
        assert not self.index or self.index == {slot: at for at, slot in enumerate(self.slots)}


def _hashes(slots: Iterable[Slot]) -> Words:
    """64 bits of each slot."""
    joined = b"".join(
        blake2b(worker + file.to_bytes(8, "little") + lane.to_bytes(8, "little"), digest_size=8).digest()
        for worker, file, lane in slots
    )
    return np.frombuffer(joined, "<u8").astype(np.uint64)
