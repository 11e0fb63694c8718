"""The schedule of a job's log in the directory, for a master that finds no log and has to begin a new one.

The spec determines the time of the next control line only for `split` at a given time. In the other modes the master chooses the
time once, and only the log has it. So each master publishes its log's schedule in the directory, as an item under its ballot: of
two items nodes keep the one with the higher (ballot, number of the schedule). The item contains names of versions and times; the
plans are in the spec, which an operator has signed.

Bounded: the newest `LINES_MAX` lines, 7 KiB; with other settings at each of them 9 KiB. A job that was never changed has no
such item.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.jobmaster.directory.settings import name_of
from elf.jobmaster.log.entries import SpecRank
from elf.jobmaster.log.schedule import number_of
from elf.srt.messages.ids import ID_BYTES, JobId
from elf.srt.messages.messages import Ballot, Item, Micros, Schedule
from elf.srt.messages.typed import S, parse

LINES_MAX = 256
"""Four times the versions that a spec may have: retention has passed all older lines."""
BODY_BYTES_MAX = 24 << 10
"""Four times the size of these lines."""
BALLOT_PARTS = 4
STAMP_PARTS = BALLOT_PARTS + 1
"""Numbers in a stamp: epoch, both halves of a node's id, instance, and the schedule's number."""


class KnownLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From `from_us` on that version is in force. settings: the name of those that the line carries; b"": none. The spec, which
    an operator has signed, has the settings themselves."""

    version: Annotated[str, Meta(min_length=1, max_length=64)]
    from_us: Micros
    settings: Annotated[bytes, Meta(max_length=8)] = b""


class KnownSchedule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """number, digest: of the spec that is fully in force. The version in force before the first line is not included."""

    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    digest: Annotated[bytes, Meta(max_length=16)]
    lines: Annotated[tuple[KnownLine, ...], Meta(min_length=1, max_length=LINES_MAX)]

    @property
    def rank(self) -> SpecRank:
        return self.number, self.digest


_encoder = msgspec.msgpack.Encoder()


def stamp_of(ballot: Ballot) -> tuple[int, ...]:
    """A ballot as a stamp that sorts like the ballot: its maker is split into 64-bit numbers."""
    epoch, by = ballot
    return epoch, int.from_bytes(by[:8]), int.from_bytes(by[8:ID_BYTES]), int.from_bytes(by[ID_BYTES:])


def schedule_item(job: JobId, ballot: Ballot, rank: SpecRank, schedule: Schedule) -> Item:
    """The item of a master under that ballot."""
    lines = tuple(
        KnownLine(line.version, line.from_us, name_of(line.settings)) for line in schedule[-LINES_MAX:]
    )
    known = KnownSchedule(*rank, lines)
    stamp = (*stamp_of(ballot), number_of(schedule))
    return Item("schedule", job, stamp, _encoder.encode(known))


def body_of(item: Item, kind: type[S], bytes_max: int) -> S:
    """The decoded body of an item. Raises PeerError. O(bytes)."""
    if len(item.body) > bytes_max:
        raise PeerError(f"directory: a {item.kind} item of {len(item.body)} bytes; {bytes_max} are allowed")
    try:
        return parse(item.body, kind)
    except PeerError as error:
        raise PeerError(f"directory: a {item.kind} item cannot be read ({error}); it is ignored") from error


def decode_schedule(item: Item) -> KnownSchedule:
    """Raises PeerError for an invalid or unordered schedule."""
    if len(item.stamp) != STAMP_PARTS:
        raise PeerError("directory: a schedule item without a ballot; it is ignored")
    known = body_of(item, KnownSchedule, BODY_BYTES_MAX)
    times = [line.from_us for line in known.lines]
    if times != sorted(set(times)):
        raise PeerError("directory: a schedule item whose lines are not in order; it is ignored")
    return known
