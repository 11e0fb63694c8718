"""Contributions by roster: the contributions of thousands of files, in two bytes each.

In one sentence: contributions go in, and a section comes out that contains only what the receiver cannot derive from the sections
before it; at the other end sections go in, in the same order, and the same contributions come out.

Both sides hold rosters: ordered slots, and for each slot the end of its last contribution. A section names a roster, changes it,
lists which of its slots are in the bundle, and gives a column of (to - from). A contribution normally begins where the last one
of its slot ended; the exceptions are listed. The section contains two hash sums, of the slots and of the `from`s, so the receiver
detects at the next bundle if its roster differs from the sender's.

    section                     what the receiver does
    --------------------------  ----------------------------------------------------------------------------------------
    first of its roster, fresh  empty the roster; the section names all its slots
    removed, added              remove those places, append those slots
    lagging                     watermarks listed one by one, by place
    places                      all slots, or the listed ones, or all but the listed ones, or a bitmap
    starts                      listed where they differ from the end of the last contribution
    flags                       listed
    `again`                     no end moves back: the bundle is older than the last one
    a sum that differs, a slot  PeerError. The owner of the link hangs up: both sides begin anew, the sender sends all bundles
    twice, a bound exceeded     that it keeps again, and its first section is fresh

Up to `LISTED_MAX` contributions are sent plainly, without a roster. The encoder chooses the roster and decides when to remove
slots; the decoder applies each section. A child mostly sends the same slots again and again, so its link has one roster. A
master's log contains bundles of all its children in turn, so it has one roster for each child.

Bounds: `SLOTS_MAX` slots and `ROSTERS_MAX` rosters on either side, about 200 bytes a slot in Python.

Source: ours; the summable hash after Bellare and Micciancio's incremental hashing (Eurocrypt 1997), without their strength.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.errors import PeerError
from elf.srt.messages.columns import (
    Words,
    pack_column,
    pack_places,
    pair_hash,
    unpack_column,
    unpack_places,
    unzigzag,
    zigzag,
)
from elf.srt.messages.compression import compress, decompress
from elf.srt.messages.ids import ID_BYTES, NodeId
from elf.srt.messages.messages import Micros, Slot, Span
from elf.srt.messages.roster import ROSTERS_MAX, SLOTS_MAX, Listed, Places, Presence, Roster, Section
from elf.srt.messages.typed import parse

FORGET_AFTER = 64
"""A slot that was in none of the last this many bundles of its roster is removed: 13 s of flushes."""
SAMPLE = 8
"""Slots that are looked up to choose a bundle's roster."""
LISTED_MAX = 3
"""A bundle of at most this many contributions lists them, 40 bytes each; a section's sums alone take 18 bytes and 0.1 ms."""
LARGE = 64
"""A bundle with at least this many slots gets a new roster if no roster has any of the sampled ones."""
SECTION_BYTES_MAX = 48 << 20
"""Size of a section that announces `SLOTS_MAX` slots: ids, files, starts and lengths."""
END_MAX = (1 << 63) - 1
FLAGS_MAX = 7
LISTED = b"\2"
"""First byte of listed contributions; sections begin with a byte of `elf.srt.messages.compression`."""
_encoder = msgspec.msgpack.Encoder()

NONE_LAGGING: dict[NodeId, Micros] = {}


class RosterEncoder:
    """One direction of one link, or one log: `encode` each bundle's contributions in the order of sending."""

    def __init__(self) -> None:
        self.rosters: dict[int, Roster] = {}  # the one used last is the last
        self._count = 0

    def pack(
        self,
        contributions: dict[Slot, Span],
        lagging: dict[NodeId, Micros] = NONE_LAGGING,
        again: bool = False,
    ) -> bytes:
        """`encode`, as bytes. Raises ValueError for an invalid span."""
        if len(contributions) <= LISTED_MAX:
            for start, end, flags in contributions.values():
                if not (0 <= start <= end <= END_MAX and 0 <= flags <= FLAGS_MAX):
                    raise ValueError("a span that ends before it starts, or with unknown flags")
            return LISTED + _encoder.encode(Listed(contributions, lagging))
        return compress(_encoder.encode(self.encode(contributions, lagging, again)))

    def encode(
        self,
        contributions: dict[Slot, Span],
        lagging: dict[NodeId, Micros] = NONE_LAGGING,
        again: bool = False,
    ) -> Section:
        """Raises ValueError for an invalid span; after that this encoder is unusable. O(contributions + roster)."""
        self._count += 1
        number, is_fresh = self._choose(contributions)
        roster = self.rosters[number] = self.rosters.pop(number)
        removed = self._stale(roster, contributions)
        if len(removed):
            roster.remove(removed)
            roster.reindex()
        at = np.fromiter(map(roster.index.get, contributions, repeat(-1)), np.int64, len(contributions))
        added: list[Slot] = []
        if len(new := np.flatnonzero(at < 0)):
            slots = list(contributions)
            added = [slots[i] for i in new.tolist()]
            at[new] = np.arange(len(roster), len(roster) + len(added))
            roster.index.update(zip(added, at[new].tolist(), strict=True))
            roster.add(added)
        at, spans = _in_order(at, contributions)
        return self._section(number, is_fresh, roster, at, spans, lagging, again, removed, added)

    def _section(
        self,
        number: int,
        is_fresh: bool,
        roster: Roster,
        at: Places,
        spans: Words,
        lagging: dict[NodeId, Micros],
        again: bool,
        removed: Places,
        added: list[Slot],
    ) -> Section:
        starts, ends, flags = spans
        expected = roster.ends[at]
        moved = np.flatnonzero(starts != expected)
        flagged = np.flatnonzero(flags)
        presence, n_listed, listed = _presence(at, len(roster))
        section = Section(
            number,
            is_fresh,
            roster.digest,
            pair_hash(roster.hashes[at], starts),
            presence,
            n_listed,
            listed,
            pack_column(ends - starts),
            len(moved),
            pack_places(moved),
            pack_column(zigzag((starts[moved] - expected[moved]).view(np.int64))),
            len(flagged),
            pack_places(flagged),
            pack_column(flags[flagged]),
            len(removed),
            pack_places(removed),
            len(added),
            b"".join(slot[0] for slot in added),
            pack_column(np.array([slot[1] for slot in added], dtype=np.uint64)),
            pack_column(np.array([slot[2] for slot in added], dtype=np.uint64)),
            *_lagging_fields(lagging, roster, at),
        )
        roster.move(at, starts, ends, again)
        roster.seen[at] = self._count
        return section

    def _choose(self, contributions: dict[Slot, Span]) -> tuple[int, bool]:
        """The number of the roster that has most of a few sampled slots, and whether it is fresh. Many unknown slots get a new
        roster, in place of the least recently used one."""
        slots = list(contributions)
        sample = slots[:: len(slots) // SAMPLE + 1]
        known, number = 0, -1
        for each, roster in self.rosters.items():
            hits = sum(slot in roster.index for slot in sample)
            if hits >= max(known, 1):
                known, number = hits, each
        if number >= 0:
            return number, False
        if self.rosters and len(slots) < LARGE:
            return next(reversed(self.rosters)), False
        return self._new(), True

    def _new(self) -> int:
        if len(self.rosters) < ROSTERS_MAX:
            number = next(n for n in range(ROSTERS_MAX) if n not in self.rosters)
        else:
            number = next(iter(self.rosters))
            del self.rosters[number]
        self.rosters[number] = Roster()
        return number

    def _stale(self, roster: Roster, contributions: dict[Slot, Span]) -> Places:
        """Places of slots that no recent bundle contained; computed at every `FORGET_AFTER`th bundle."""
        if self._count % FORGET_AFTER or not len(roster):
            return np.empty(0, np.int64)
        places = np.flatnonzero(roster.seen < self._count - FORGET_AFTER * len(self.rosters))
        still = [at for at in places.tolist() if roster.slots[at] not in contributions]
        return np.array(still, dtype=np.int64)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert len(self.rosters) <= ROSTERS_MAX
        for roster in self.rosters.values():
            roster.check()
            assert len(roster.index) == len(roster)


def _in_order(at: Places, contributions: dict[Slot, Span]) -> tuple[Places, Words]:
    """The places in the roster, ascending, and their `from`, `to` and flags, of shape (3, n). O(contributions)."""
    n = len(at)
    try:
        spans = np.fromiter(chain.from_iterable(contributions.values()), np.int64, 3 * n).reshape(n, 3)
    except OverflowError as error:
        raise ValueError("a span beyond 63 bits") from error
    if n and (
        int(spans.min()) < 0 or (spans[:, 1] < spans[:, 0]).any() or int(spans[:, 2].max()) > FLAGS_MAX
    ):
        raise ValueError("a span that ends before it starts, or with unknown flags")
    if n > 1 and (at[1:] < at[:-1]).any():
        order = np.argsort(at, kind="stable")
        at, spans = at[order], spans[order]
    return at, np.ascontiguousarray(spans.T).view(np.uint64)


def _lagging_fields(
    lagging: dict[NodeId, Micros], roster: Roster, at: Places
) -> tuple[int, bytes, Micros, bytes, tuple[tuple[NodeId, Micros], ...]]:
    """The last fields of a section, of workers listed in `lagging`. O(contributions) if there are any."""
    if not lagging:
        return 0, b"", 0, b"", ()
    first: dict[NodeId, int] = {}
    for place, slot in enumerate(at.tolist()):
        first.setdefault(roster.slots[slot][0], place)
    found = sorted((first[worker], mark) for worker, mark in lagging.items() if worker in first)
    marks = np.array([mark for _, mark in found], dtype=np.int64)
    low = marks.min(initial=END_MAX) if found else np.int64(0)
    return (
        len(found),
        pack_places(np.array([place for place, _ in found], dtype=np.int64)),
        int(low),
        pack_column((marks - np.full(len(marks), low)).view(np.uint64)),
        tuple((worker, mark) for worker, mark in lagging.items() if worker not in first),
    )


def _presence(at: Places, n: int) -> tuple[Presence, int, bytes]:
    """The shortest encoding of which of n slots are present."""
    if len(at) == n:
        return Presence.ALL, 0, b""
    if 16 * len(at) <= n:
        return Presence.LISTED, len(at), pack_places(at)
    bits = np.zeros(n, np.bool_)
    bits[at] = True
    if 16 * (n - len(at)) <= n:
        return Presence.MISSING, n - len(at), pack_places(np.flatnonzero(~bits))
    return Presence.BITMAP, len(at), np.packbits(bits, bitorder="little").tobytes()


class RosterDecoder:
    """The receiving end: `decode` sections in the order of sending. After a PeerError it is unusable.

    slots: number of slots in all rosters together."""

    def __init__(self) -> None:
        self.rosters: dict[int, Roster] = {}
        self.slots = 0

    def decode(
        self, section: Section, again: bool = False, slots_max: int = SLOTS_MAX
    ) -> tuple[dict[Slot, Span], dict[NodeId, Micros]]:
        """The contributions, in the roster's order, and the watermarks of `lagging`. Raises PeerError. O(contributions +
        roster)."""
        roster = self._changed(section, slots_max)
        at, n = _present(section, len(roster))
        slots = roster.slots if n == len(roster) else [roster.slots[i] for i in at.tolist()]
        where: Places | slice = slice(None) if n == len(roster) else at
        starts = roster.ends[where].copy()
        if section.n_moved:
            moved = unpack_places(section.moved_at, section.n_moved, n)
            starts[moved] += unzigzag(unpack_column(section.moved, section.n_moved)).view(np.uint64)
        ends = starts + unpack_column(section.grown, n)
        if n and (int(starts.max()) > END_MAX or int(ends.max()) > END_MAX or (ends < starts).any()):
            raise PeerError("bundle: a span that ends before it starts")
        if pair_hash(roster.hashes[where], starts) != section.starts:
            raise PeerError("bundle: the start of a contribution differs from the sender's")
        roster.move(where, starts, ends, again)
        flags: Iterable[int] = repeat(0)
        if section.n_flagged:
            flags = _flags(section, n).tolist()
        spans = zip(starts.tolist(), ends.tolist(), flags, strict=False)
        return dict(zip(slots, spans, strict=True)), _lagging(section, slots)

    def unpack(
        self, data: bytes, again: bool = False, slots_max: int = SLOTS_MAX
    ) -> tuple[dict[Slot, Span], dict[NodeId, Micros]]:
        """`decode`, from bytes. Raises PeerError."""
        if data[:1] != LISTED:
            section = parse(decompress(data, SECTION_BYTES_MAX), Section)
            return self.decode(section, again, slots_max)
        listed = parse(memoryview(data)[1:], Listed)
        if any(start > end for start, end, _ in listed.contributions.values()):
            raise PeerError("bundle: a span that ends before it starts")
        return listed.contributions, listed.lagging

    def _changed(self, section: Section, slots_max: int) -> Roster:
        """The section's roster, after its changes."""
        if section.is_fresh:
            self.slots -= len(self.rosters.pop(section.roster, ()))
            self.rosters[section.roster] = Roster()
        roster = self.rosters.get(section.roster)
        if roster is None:
            raise PeerError("bundle: a roster that was never announced")
        if section.n_removed:
            roster.remove(unpack_places(section.removed, section.n_removed, len(roster)))
        if section.n_added:
            if self.slots + section.n_added > slots_max:
                raise PeerError("bundle: rosters of more files than are allowed")
            _add(roster, section)
        self.slots += section.n_added - section.n_removed
        if roster.digest != section.slots:
            raise PeerError("bundle: the roster differs from the sender's")
        return roster

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self.slots == sum(map(len, self.rosters.values())) <= SLOTS_MAX
        for roster in self.rosters.values():
            roster.check()


def _add(roster: Roster, section: Section) -> None:
    """Append the slots that a section names."""
    n, workers = section.n_added, section.workers
    if len(workers) != ID_BYTES * n:
        raise PeerError("bundle: worker ids of the wrong length")
    ids = [workers[i : i + ID_BYTES] for i in range(0, len(workers), ID_BYTES)]
    files, lanes = unpack_column(section.files, n), unpack_column(section.lanes, n)
    if int(lanes.max()) > END_MAX:
        raise PeerError("bundle: a lane beyond 63 bits")
    added = list(zip(ids, files.tolist(), lanes.tolist(), strict=True))
    if len(set(added)) != n or not set(added).isdisjoint(roster.slots):
        raise PeerError("bundle: a slot twice in one roster")
    roster.add(added)


def _present(section: Section, n: int) -> tuple[Places, int]:
    """Places of a bundle's slots among the n of its roster (empty if all are present), and their number."""
    count = section.n_listed
    if section.presence is Presence.ALL:
        return np.arange(0), n
    if count > n:
        raise PeerError("bundle: more slots than the roster has")
    if section.presence is Presence.LISTED:
        return unpack_places(section.listed, count, n), count
    bits = np.ones(n, np.bool_)
    if section.presence is Presence.MISSING:
        bits[unpack_places(section.listed, count, n)] = False
    else:
        if len(section.listed) != (n + 7) // 8:
            raise PeerError("bundle: a bitmap of the wrong length")
        packed = np.frombuffer(section.listed, np.uint8)
        bits = np.unpackbits(packed, count=n, bitorder="little").view(np.bool_)
    at = np.flatnonzero(bits)
    return at, len(at)


def _flags(section: Section, n: int) -> NDArray[np.int64]:
    found = unpack_column(section.flags, section.n_flagged)
    if int(found.max()) > FLAGS_MAX:
        raise PeerError("bundle: unknown flags of a span")
    flags = np.zeros(n, np.int64)
    flags[unpack_places(section.flagged_at, section.n_flagged, n)] = found
    return flags


def _lagging(section: Section, slots: list[Slot]) -> dict[NodeId, Micros]:
    found = dict(section.strangers)
    n = section.n_lagging
    if n:
        above = unpack_column(section.lagging, n)
        if section.lagging_from + int(above.max()) > END_MAX:
            raise PeerError("bundle: a watermark beyond 63 bits")
        places = unpack_places(section.lagging_at, n, len(slots)).tolist()
        marks = above.view(np.int64) + np.int64(section.lagging_from)
        found.update(zip((slots[place][0] for place in places), marks.tolist(), strict=True))
    if len(found) != n + len(section.strangers):
        raise PeerError("bundle: a worker's watermark twice")
    return found
