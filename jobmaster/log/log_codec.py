"""Entries and states of a job's log as bytes, the same on links and on disk. `LOG` is the codec that `elf.srt.codec.wire` needs.

    entry = MessagePack array: the entry's name, then its fields; of an Accept, itself without contributions, lagging and
            parts, then a roster's section and frames of rows
    state = b"\\0" and plain or b"\\1" and zstd-compressed: MessagePack array of the fields of `StateSnapshot`

The message or record around them says which version of this format they have.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from elf.cbt.frame import FRAME_BYTES_MAX, unpack
from elf.errors import PeerError
from elf.jobmaster.log.entries import Accept, AnyEntry, Begin, ControlEntry, Entry
from elf.jobmaster.log.job_state import StateSnapshot
from elf.jobmaster.log.schedule import plan_of
from elf.srt.codec.parts import WireParts, pack_parts, unpack_parts
from elf.srt.codec.rosters import RosterDecoder, RosterEncoder
from elf.srt.codec.wire import LogForm, check_ids, check_schedule
from elf.srt.messages.compression import compress, decompress
from elf.srt.messages.messages import Schedule
from elf.srt.messages.typed import parse

STATE_BYTES_MAX = 256 << 20
"""Size of an unpacked state, whose rows stay packed: 100,000 workers take 10 MB, the rest are rows."""


class AcceptForm(Entry, frozen=True, array_like=True, tag="accept"):
    """An `Accept` on the wire. rest: the entry without contributions, `lagging` and parts. section: contributions and `lagging`,
    as a section of a roster."""

    rest: Accept
    section: bytes
    parts: WireParts


_KINDS = (*(kind for kind in get_args(AnyEntry) if kind is not Accept), AcceptForm)
EntryForm = msgspec.defstruct("EntryForm", [("entry", reduce(or_, _KINDS))], array_like=True, frozen=True)
"""Any entry, so that all are decoded as one type."""

_encoder = msgspec.msgpack.Encoder()


class LogCodec:
    """Packs and unpacks `AnyEntry` and `StateSnapshot`. Stateless: the rosters are the link's, or the file's."""

    def pack_entry(self, entry: AnyEntry, rosters: RosterEncoder) -> bytes:
        """O(bytes)."""
        wire: Any = entry
        if isinstance(entry, Accept):
            section = rosters.pack(entry.contributions, entry.lagging)
            rest = replace(entry, contributions={}, lagging={}, parts={})
            wire = AcceptForm(rest, section, pack_parts(entry.parts))
        return _encoder.encode(EntryForm(wire))

    def unpack_entry(self, data: bytes, rosters: RosterDecoder, slots_max: int) -> AnyEntry:
        """Raises PeerError. O(bytes)."""
        entry: Any = parse(data, EntryForm).entry  # type: ignore[attr-defined]
        if isinstance(entry, AcceptForm):
            return self._accept(entry, rosters, slots_max)
        check_ids(entry)
        if isinstance(entry, Begin):
            check_plans(entry.schedule)
        elif isinstance(entry, ControlEntry):
            check_plans((entry.line,))
        known: AnyEntry = entry
        return known

    def _accept(self, form: AcceptForm, rosters: RosterDecoder, slots_max: int) -> Accept:
        rest = form.rest
        if rest.contributions or rest.lagging or rest.parts:
            raise PeerError("Accept: contributions or rows outside their sections")
        contributions, lagging = rosters.unpack(form.section, slots_max=slots_max)
        return replace(rest, contributions=contributions, lagging=lagging, parts=unpack_parts(form.parts))

    def pack_state(self, state: StateSnapshot) -> bytes:
        """O(bytes)."""
        return compress(_encoder.encode(state))

    def unpack_state(self, data: bytes) -> StateSnapshot:
        """Raises PeerError for bytes that are no state, or whose rows `JobState.restore` would refuse. O(bytes unpacked)."""
        state = parse(decompress(data, STATE_BYTES_MAX), StateSnapshot)
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
    """Raises PeerError for an invalid plan."""
    for line in schedule:
        plan_of(line.plan)


LOG: LogForm = LogCodec()
"""For links; entries and states are opaque there."""
