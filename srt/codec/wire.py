"""Messages as bytes, and bytes from any peer as messages or a PeerError.

    message = "ELFM" version(1) kind(1) body

The body is a MessagePack array of the message's fields in their order (`srt/messages/messages.py`, `srt/messages/results.py`).
Where some fields have a special form, the body is an array of the message without them, followed by those forms: contributions as
a roster's section (`srt/codec/rosters.py`), rows as frames (`cbt/frame.py`), finished rows with their types
(`srt/codec/rows.py`), entries and states of a log in the form of their owner (`LogForm`). A message within a message is bytes of
this same layout. Fields may be added at the end, with a default: older bytes lack them, older readers skip them. Any other change
makes another version, and no other version is decoded.

Decoding checks types, ranges, lengths, counts and order before it returns a message; the kind of message bounds its size.
`Encoder` and `Decoder` hold the rosters of one direction of one link; `encode` and `decode` are for datagrams and other messages
outside of links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, get_type_hints

import msgspec
from msgspec.structs import replace

from elf.errors import PeerError
from elf.srt.codec.parts import WireParts, pack_parts, unpack_parts
from elf.srt.codec.rosters import RosterDecoder, RosterEncoder
from elf.srt.codec.rows import WireRows, pack_rows, unpack_rows
from elf.srt.messages import changes as c
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import ID_BYTES, MAKER_BYTES, JobId, NodeId
from elf.srt.messages.messages import Ballot, Bundle, Count, Message, Schedule
from elf.srt.messages.reports import (
    AlertTest,
    AlertTestReport,
    EstimateReport,
    EstimateRequest,
    StatusReport,
    StatusRequest,
)
from elf.srt.messages.roster import SLOTS_MAX
from elf.srt.messages.typed import parse

MAGIC = b"ELFM"
VERSION = 1
HEAD_BYTES = len(MAGIC) + 2

KIB, MIB = 1 << 10, 1 << 20
JOBS_MAX = 4_096
"""Jobs whose rosters one direction of a link remembers: ten times the hundreds that run at once."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of message on the wire. number: never reused. bytes_max: of a whole encoded message."""

    number: int
    type: type[Message]
    bytes_max: int


SMALL = 64 * KIB
"""Contacts of a leaf set and a routing table are at most 100 times 300 bytes; other messages are smaller."""
PLANS = 8 * MIB
"""A schedule of 16 plans of 256 KiB, and the positions of a worker's files."""

KINDS = (
    Kind(1, m.Ping, SMALL),
    Kind(2, m.Pong, SMALL),
    Kind(3, m.ProbeFor, SMALL),
    Kind(4, m.LeavesRequest, SMALL),
    Kind(5, m.LeavesReport, SMALL),
    Kind(6, m.JoinMesh, SMALL),
    Kind(7, m.JoinReply, SMALL),
    Kind(8, m.Routed, 2 * MIB),  # a change of a job, which has 1 MiB at most
    Kind(10, m.GossipDigest, SMALL),
    Kind(11, m.GossipItems, 2 * MIB),  # a job's item alone may have 1 MiB
    Kind(20, m.Hello, SMALL),
    Kind(21, m.Welcome, PLANS),
    Kind(22, m.Goodbye, SMALL),
    Kind(23, m.Farewell, SMALL),
    Kind(30, m.TreeJoin, SMALL),
    Kind(31, m.Adopt, SMALL),
    Kind(32, m.Path, SMALL),
    Kind(33, m.Refuse, SMALL),
    Kind(34, m.Size, SMALL),
    Kind(35, m.Leave, SMALL),
    Kind(36, m.Away, SMALL),
    Kind(
        40, m.Bundle, 64 * MIB
    ),  # of a child with all slots that there may be; 8 MiB are kept of a job otherwise
    Kind(41, m.Commit, MIB),  # 32,000 bundles
    Kind(42, m.Split, PLANS),
    Kind(43, m.Resend, MIB),
    Kind(44, m.Hold, SMALL),
    Kind(45, m.Control, PLANS),
    Kind(46, m.Stop, SMALL),
    Kind(50, m.Append, 64 * MIB),  # at most 32 MiB are proposed and not committed; and rosters
    Kind(51, m.Install, 256 * MIB),
    Kind(52, m.Held, SMALL),
    Kind(53, m.StateRequest, SMALL),
    Kind(54, m.StateReport, SMALL),
    Kind(55, m.Fetch, SMALL),
    Kind(56, m.Handover, SMALL),
    Kind(57, m.PieceRequest, SMALL),
    Kind(58, m.StatePiece, 64 * MIB),  # of 1 MiB unpacked, unless one row is larger
    Kind(60, r.LedgerRequest, SMALL),
    Kind(61, r.LedgerReport, MIB),  # 5,000 entries of 60 bytes
    Kind(62, r.Put, 64 * MIB),
    Kind(63, r.PutReply, SMALL),
    Kind(64, r.PutPart, 64 * MIB + SMALL),  # of frame_bytes_max, unless one part of a pane is larger
    Kind(65, r.PartReply, SMALL),
    Kind(66, r.AlertPut, 128 * KIB + SMALL),
    Kind(67, r.AlertReply, SMALL),
    Kind(70, m.Frame, MIB),  # a piece of 512 KiB
    Kind(71, m.Piece, MIB),
    Kind(80, r.Watch, SMALL),
    Kind(81, r.WatchReply, SMALL),
    Kind(82, r.Shown, 64 * MIB + SMALL),
    Kind(83, m.TreeRequest, SMALL),
    Kind(84, m.TreeReport, SMALL),
    Kind(85, StatusRequest, SMALL),
    Kind(86, StatusReport, SMALL),
    Kind(87, r.ShownPart, 64 * MIB + SMALL),
    Kind(88, c.ChangeRequest, MIB + SMALL),
    Kind(90, EstimateRequest, MIB),  # a plan of 256 KiB
    Kind(91, EstimateReport, SMALL),
    Kind(89, c.ChangeReport, MIB + SMALL),
    Kind(92, AlertTest, SMALL),
    Kind(93, AlertTestReport, SMALL),
)
BY_TYPE = {kind.type: kind for kind in KINDS}
BY_NUMBER = {kind.number: kind for kind in KINDS}
HEADS = {kind.type: MAGIC + bytes((VERSION, kind.number)) for kind in KINDS}


class LogForm(Protocol):
    """Encodes and decodes a log's entries and states, whose layout this module does not know. Decoding raises PeerError."""

    def pack_entry(self, entry: Any, rosters: RosterEncoder) -> bytes: ...
    def unpack_entry(self, data: bytes, rosters: RosterDecoder, slots_max: int) -> Any: ...
    def pack_state(self, state: Any) -> bytes: ...
    def unpack_state(self, data: bytes) -> Any: ...


class BundleForm(msgspec.Struct, frozen=True, array_like=True):
    """A `Bundle` without contributions, `lagging` and parts; the section of contributions and `lagging`; the parts."""

    rest: Bundle
    section: bytes
    parts: WireParts


class AppendForm(msgspec.Struct, frozen=True, array_like=True):
    """An `Append` without its entries, and the entries."""

    rest: m.Append
    entries: tuple[bytes, ...]


class InstallForm(msgspec.Struct, frozen=True, array_like=True):
    """An `Install` without state and tail, and these."""

    rest: m.Install
    state: bytes
    tail: tuple[bytes, ...]


class RoutedForm(msgspec.Struct, frozen=True, array_like=True):
    key: JobId
    origin: NodeId
    message: bytes
    hops: Count


class FrameForm(msgspec.Struct, frozen=True, array_like=True):
    session: tuple[Count, Count]
    sequence: Count
    acknowledged: Count
    credit: Count
    message: memoryview


class PutForm(msgspec.Struct, frozen=True, array_like=True):
    """A `Put` without its rows, and the rows."""

    rest: r.Put
    rows: WireRows


class ShownForm(msgspec.Struct, frozen=True, array_like=True):
    job: JobId
    number: Count
    place: Count
    put: bytes


_encoder = msgspec.msgpack.Encoder()


class Encoder:
    """Encodes one direction of one link, or one message alone. `log`: the form of entries and states."""

    def __init__(self, log: LogForm | None = None) -> None:
        self._log = log
        self._rosters: dict[tuple[type, JobId], RosterEncoder] = {}
        self._used: tuple[tuple[type, JobId], RosterEncoder] | None = None  # by the message being encoded

    def encode(self, message: Message) -> bytes:
        """Raises ValueError for values that no message may hold. O(bytes).

        After any exception the link is unchanged, except that the next rosters of this job are fresh.
        """
        try:
            data = self._bytes(message)
        except Exception:
            self._reset_rosters()
            raise
        self._settle_rosters()
        return data

    def _bytes(self, message: Message) -> bytes:
        kind = type(message)
        form = _FORMS.get(kind)
        body = message if form is None else form.pack(self, message)
        data = HEADS[kind] + _encoder.encode(body)
        if len(data) > BY_TYPE[kind].bytes_max:
            raise ValueError(f"{kind.__name__}: {len(data)} bytes, {BY_TYPE[kind].bytes_max} are allowed")
        return data

    def rosters(self, kind: type, job: JobId) -> RosterEncoder:
        """The rosters of a job, for one message."""
        key = kind, job
        found = self._rosters.get(key)
        if found is None:
            found = RosterEncoder()
        self._used = key, found
        return found

    def _settle_rosters(self) -> None:
        """The message is sent: keep its rosters. At both ends the least recently used ones are dropped."""
        if self._used is None:
            return
        key, rosters = self._used
        self._used = None
        put_last(self._rosters, key, rosters, JOBS_MAX)

    def _reset_rosters(self) -> None:
        """The message is not sent: rosters that it may have changed are reset, and keep their rank at both ends."""
        if self._used is not None and self._used[0] in self._rosters:
            self._rosters[self._used[0]] = RosterEncoder()
        self._used = None

    def _bundle(self, bundle: Bundle) -> BundleForm:
        rosters = self.rosters(Bundle, bundle.job)
        section = rosters.pack(bundle.contributions, bundle.lagging, bundle.again)
        rest = replace(bundle, contributions={}, lagging={}, parts={})
        return BundleForm(rest, section, pack_parts(bundle.parts))

    def _append(self, append: m.Append) -> AppendForm:
        return AppendForm(replace(append, entries=()), self._entries(append.job, append.entries))

    def _install(self, install: m.Install) -> InstallForm:
        state = self._form.pack_state(install.state)
        tail = self._entries(install.job, install.tail)
        return InstallForm(replace(install, state=None, tail=()), state, tail)

    def _entries(self, job: JobId, entries: Sequence[Any]) -> tuple[bytes, ...]:
        rosters = self.rosters(m.Append, job)
        return tuple(self._form.pack_entry(entry, rosters) for entry in entries)

    def _routed(self, routed: m.Routed) -> RoutedForm:
        return RoutedForm(routed.key, routed.origin, self._inner(routed.message), routed.hops)

    def _frame(self, frame: m.Frame) -> FrameForm:
        inner = b"" if frame.message is None else self._inner(frame.message)
        return _frame_form(frame, inner)

    def _inner(self, message: Message) -> bytes:
        if type(message) in ENVELOPES:
            raise ValueError(f"{type(message).__name__}: an envelope in another message")
        return self.encode(message)

    def _put(self, put: r.Put) -> PutForm:
        return PutForm(replace(put, rows=()), pack_rows(put.rows))

    def _shown(self, shown: r.Shown) -> ShownForm:
        if type(shown.put) is not r.Put:
            raise ValueError("Shown: not a window")
        return ShownForm(shown.job, shown.number, shown.place, self.encode(shown.put))

    @property
    def _form(self) -> LogForm:
        if self._log is None:
            raise ValueError("log entries: this encoder was made without a LogForm")
        return self._log


class Decoder:
    """The receiving end: decodes messages in the order of their encoding. After a PeerError it is unusable; make a new one."""

    def __init__(self, log: LogForm | None = None) -> None:
        self._log = log
        self._rosters: dict[tuple[type, JobId], RosterDecoder] = {}
        self._slots = 0

    def decode(self, data: bytes | memoryview) -> Message:
        """Raises PeerError. O(bytes)."""
        kind = kind_of(data)
        if len(data) > kind.bytes_max:
            raise PeerError(f"{kind.type.__name__}: {len(data)} bytes, {kind.bytes_max} are allowed")
        form = _FORMS.get(kind.type)
        body = memoryview(data)[HEAD_BYTES:]
        if form is None:
            message = parse(body, kind.type)
        else:
            message = form.unpack(self, parse(body, form.type))
        check_ids(message)
        return message

    def rosters(self, kind: type, job: JobId) -> RosterDecoder:
        """The rosters of a job. The least recently used ones are dropped: the same ones on both sides."""
        key = kind, job
        found = self._rosters.pop(key, None)
        if found is None:
            found = RosterDecoder()
            if len(self._rosters) >= JOBS_MAX:
                self._slots -= self._rosters.pop(next(iter(self._rosters))).slots
        self._rosters[key] = found
        return found

    def room(self, rosters: RosterDecoder) -> int:
        """How many slots these rosters may have: all rosters together have at most `SLOTS_MAX`."""
        return SLOTS_MAX - (self._slots - rosters.slots)

    def _bundle(self, form: BundleForm) -> Bundle:
        rest = form.rest
        if rest.contributions or rest.lagging or rest.parts:
            raise PeerError("Bundle: contributions or rows at two places")
        rosters = self.rosters(Bundle, rest.job)
        before = rosters.slots
        contributions, lagging = rosters.unpack(form.section, rest.again, self.room(rosters))
        self._slots += rosters.slots - before
        return replace(rest, contributions=contributions, lagging=lagging, parts=unpack_parts(form.parts))

    def _append(self, form: AppendForm) -> m.Append:
        if form.rest.entries:
            raise PeerError("Append: entries at two places")
        return replace(form.rest, entries=self._entries(form.rest.job, form.entries))

    def _install(self, form: InstallForm) -> m.Install:
        if form.rest.state is not None or form.rest.tail:
            raise PeerError("Install: a state at two places")
        state = self._form.unpack_state(form.state)
        return replace(form.rest, state=state, tail=self._entries(form.rest.job, form.tail))

    def _entries(self, job: JobId, entries: Sequence[bytes]) -> tuple[Any, ...]:
        rosters = self.rosters(m.Append, job)
        before = rosters.slots
        room = self.room(rosters)
        found = tuple(self._form.unpack_entry(entry, rosters, room) for entry in entries)
        self._slots += rosters.slots - before
        return found

    def _routed(self, form: RoutedForm) -> m.Routed:
        return m.Routed(form.key, form.origin, self._inner(form.message), form.hops)

    def _frame(self, form: FrameForm) -> m.Frame:
        inner = self._inner(form.message) if form.message else None
        return m.Frame(form.session, form.sequence, form.acknowledged, form.credit, inner)

    def _inner(self, data: bytes | memoryview) -> Message:
        if kind_of(data).type in ENVELOPES:
            raise PeerError("message: an envelope in another message")
        return self.decode(data)

    def _put(self, form: PutForm) -> r.Put:
        if form.rest.rows:
            raise PeerError("Put: rows at two places")
        return replace(form.rest, rows=unpack_rows(form.rows))

    def _shown(self, form: ShownForm) -> r.Shown:
        if kind_of(form.put).type is not r.Put:
            raise PeerError("Shown: not a window")
        return r.Shown(form.job, form.number, form.place, self.decode(form.put))

    @property
    def _form(self) -> LogForm:
        if self._log is None:
            raise PeerError("entries of a log, which this node did not request")
        return self._log


ENVELOPES = (m.Routed, m.Frame)


class Form(NamedTuple):
    """A kind's form on the wire, where it is not the message itself, and the conversions."""

    type: type[msgspec.Struct]
    pack: Callable[[Encoder, Any], msgspec.Struct]
    unpack: Callable[[Decoder, Any], Message]


_FORMS = {
    Bundle: Form(BundleForm, Encoder._bundle, Decoder._bundle),
    m.Append: Form(AppendForm, Encoder._append, Decoder._append),
    m.Install: Form(InstallForm, Encoder._install, Decoder._install),
    m.Routed: Form(RoutedForm, Encoder._routed, Decoder._routed),
    m.Frame: Form(FrameForm, Encoder._frame, Decoder._frame),
    r.Put: Form(PutForm, Encoder._put, Decoder._put),
    r.Shown: Form(ShownForm, Encoder._shown, Decoder._shown),
}


def _frame_form(frame: m.Frame, inner: bytes) -> FrameForm:
    return FrameForm(frame.session, frame.sequence, frame.acknowledged, frame.credit, memoryview(inner))


def encode_parts(message: Message, log: LogForm | None = None) -> tuple[bytes, ...]:
    """As `encode`, but in parts that the caller joins, so that the payload of a link's piece is not copied."""
    if type(message) is not m.Frame or type(message.message) is not m.Piece:
        return (encode(message, log),)
    payload = message.message.payload
    inner = HEADS[m.Piece] + b"\x91" + _bytes_head(len(payload))
    form = _encoder.encode(_frame_form(message, b""))[: -len(_bytes_head(0))]
    head = HEADS[m.Frame] + form + _bytes_head(len(inner) + len(payload)) + inner
    if len(head) + len(payload) > BY_TYPE[m.Frame].bytes_max:
        raise ValueError(f"Frame: {len(head) + len(payload)} bytes, {BY_TYPE[m.Frame].bytes_max} are allowed")
    return head, payload


def _bytes_head(nbytes: int) -> bytes:
    """The head that MessagePack puts before a binary of `nbytes` bytes."""
    if nbytes < 1 << 8:
        return b"\xc4" + nbytes.to_bytes(1)
    return b"\xc5" + nbytes.to_bytes(2) if nbytes < 1 << 16 else b"\xc6" + nbytes.to_bytes(4)


def encode(message: Message, log: LogForm | None = None) -> bytes:
    """Encode a message outside of a link. Raises ValueError for values that no message may hold. O(bytes)."""
    return Encoder(log).encode(message)


def decode(data: bytes | memoryview, log: LogForm | None = None) -> Message:
    """Decode a message outside of a link. Raises PeerError. O(bytes)."""
    return Decoder(log).decode(data)


def kind_of(data: bytes | memoryview) -> Kind:
    """The kind that the first `HEAD_BYTES` bytes announce. Raises PeerError."""
    if len(data) < HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise PeerError("message: its first bytes are not those of an elf message")
    if data[4] != VERSION:
        raise PeerError(f"message: wire version {data[4]}, this build uses {VERSION}; upgrade the older one")
    kind = BY_NUMBER.get(data[5])
    if kind is None:
        raise PeerError(f"message: unknown kind {data[5]}")
    return kind


# Checks that types cannot declare.


def check_ids(value: msgspec.Struct) -> None:
    """Check that optional ids are absent or have their full length, and that schedules are in order. Raises PeerError. Mostly
    O(1)."""
    for name, check in _checks_of(type(value)):
        check(getattr(value, name))


def _check_id(node: bytes) -> None:
    if len(node) not in (0, ID_BYTES):
        raise PeerError(f"message: an id of {len(node)} bytes")


def _check_second(pair: tuple[int, bytes]) -> None:
    if len(pair[1]) not in (0, ID_BYTES, MAKER_BYTES):
        raise PeerError(f"message: a ballot of {len(pair[1])} bytes")


def check_schedule(schedule: Schedule) -> None:
    """Check that lines are ordered by number and by time. Raises PeerError."""
    for line, following in pairwise(schedule):
        if line.number >= following.number or line.from_us > following.from_us:
            raise PeerError("message: a schedule out of order")


def _check_revisions(entries: Sequence[tuple[Any, tuple[int, bytes, int], int]]) -> None:
    for _, revision, _ in entries:
        _check_second(revision[:2])


_CHECKS: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (Ballot, _check_second),
    (m.Revision, _check_second),
    (m.MaybeId, _check_id),
    (Schedule, check_schedule),
    (r.LedgerEntries, _check_revisions),
)


@cache
def _checks_of(kind: type) -> tuple[tuple[str, Callable[[Any], None]], ...]:
    """The fields of a kind that have such types, with their checks."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, check) for name, hint in hints.items() for type, check in _CHECKS if hint == type)
