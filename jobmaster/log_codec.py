"""Entries and states of a job's log as bytes, the same on links and on disk. `LOG` is what `elf.srt.wire` asks for.

    entry = MessagePack array: the entry's name, then its fields; of an Accept, a roster's section and frames of rows stand in
            the places of contributions, lagging and parts
    state = b"\\0" and plain or b"\\1" and zstd-compressed: MessagePack array of the fields of `StateSnapshot`

Which version of this that is, is said by the message or record around it.
"""

from __future__ import annotations

import msgspec

from elf.cbt.frame import FRAME_BYTES_MAX, unpack
from elf.errors import PeerError
from elf.jobmaster.entries import (
    Accept,
    Add,
    AnyEntry,
    Begin,
    ControlEntry,
    Entry,
    Final,
    Forget,
    Left,
    Retire,
    Serve,
)
from elf.jobmaster.job_state import StateSnapshot
from elf.jobmaster.schedule import plan_of
from elf.srt.messages import Count, Micros, Schedule
from elf.srt.part_codec import WireParts, pack_parts, unpack_parts
from elf.srt.roster_codec import RosterDecoder, RosterEncoder
from elf.srt.squeeze import squeeze, unsqueeze
from elf.srt.wire import LogForm, check_ids, check_schedule, pack_section, parse, unpack_section

STATE_BYTES_MAX = 256 << 20
"""A state unpacked, but for its rows, which stay packed: 100,000 workers take 10 MB, the rest are rows."""


class WireAccept(Entry, frozen=True, array_like=True, tag="accept"):
    """An `Accept`: its contributions and `lagging` are the section."""

    schedule: Count
    watermark: Micros
    section: bytes
    parts: WireParts


class WireEntry(msgspec.Struct, frozen=True, array_like=True):
    """Any entry, so that all are decoded as one type."""

    entry: Begin | Serve | WireAccept | Add | Left | Forget | ControlEntry | Final | Retire


_encoder = msgspec.msgpack.Encoder()


class LogCodec:
    """The form of `AnyEntry` and `StateSnapshot`. Without state of its own: the rosters are the link's, or the file's."""

    def pack_entry(self, entry: AnyEntry, rosters: RosterEncoder) -> bytes:
        """O(bytes)."""
        if isinstance(entry, Accept):
            section = rosters.encode(entry.contributions, entry.lagging)
            wire = WireAccept(entry.schedule, entry.watermark, pack_section(section), pack_parts(entry.parts))
            return _encoder.encode(WireEntry(wire))
        return _encoder.encode(WireEntry(entry))

    def unpack_entry(self, data: bytes, rosters: RosterDecoder, slots_max: int) -> AnyEntry:
        """Raises PeerError. O(bytes)."""
        entry = parse(data, WireEntry).entry
        if isinstance(entry, WireAccept):
            contributions, lagging = rosters.decode(unpack_section(entry.section), slots_max=slots_max)
            parts = unpack_parts(entry.parts)
            return Accept(entry.schedule, contributions, entry.watermark, lagging, parts)
        check_ids(entry)
        if isinstance(entry, Begin):
            check_plans(entry.schedule)
        elif isinstance(entry, ControlEntry):
            check_plans((entry.line,))
        return entry

    def pack_state(self, state: StateSnapshot) -> bytes:
        """O(bytes)."""
        return squeeze(_encoder.encode(state))

    def unpack_state(self, data: bytes) -> StateSnapshot:
        """Raises PeerError; also for rows that `JobState.restore` would refuse. O(bytes unpacked)."""
        state = parse(unsqueeze(data, STATE_BYTES_MAX), StateSnapshot)
        check_ids(state)
        check_schedule(state.positions.schedule)
        check_plans(state.positions.schedule)
        if state.panes.keys() - {line.version for line in state.positions.schedule}:
            raise PeerError("state: panes of a version that its schedule does not have")
        for trees in state.panes.values():
            for frame in (frame for tree in trees for frame in tree):
                unpack(frame, FRAME_BYTES_MAX)
        return state


def check_plans(schedule: Schedule) -> None:
    """Raises PeerError for a plan that is none."""
    for line in schedule:
        plan_of(line.plan)


LOG: LogForm = LogCodec()
"""For links; entries and states are opaque there."""
