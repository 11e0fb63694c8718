"""The records that a node's cores write, as bytes for its disk, and back.

    record = "ELFD" version(1) kind(1) body       body = MessagePack array (job or b"", replaces, the record's fields)

| kind | key | record |
|---|---|---|
| 1 | ("node", b"") | incarnation |
| 2 | ("directory", b"") | items |
| 3 | ("ballot", job) | `Promise` |
| 4 | ("log", job) | `Base`: state and entries as in `log_codec` |
| 5 | ("log", job) | `More`: entries, and how many were known to be committed |
| 6 | ("ledger", job) | fence, entries, and which of these are open |
| 7 | ("log", job) | `Promise`: all that is kept of a stopped job's log |
| 8 | ("log", job) | `Base` with a number: the state without its rows |
| 9 | ("log", job) | `Rows`: a piece of these rows |
| 10 | ("log", job) | `Whole` |

Records of a key are read in the order in which they were written, and a record that `replaces` makes the earlier ones obsolete.
So a file can be appended to, and can be rewritten at any time without the obsolete records. Contributions refer to a roster
(`elf.srt.codec.rosters`), so a `More` can only be read after the records before it; a new `RecordEncoder` begins with fresh
rosters, whatever the file contains already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from elf.cbt.frame import FRAME_BYTES_MAX, unpack
from elf.errors import PeerError, StateError
from elf.jobmaster.log.job_log import Base, LogRecord, More, Promise, Rows, Whole
from elf.jobmaster.log.log_codec import LogCodec
from elf.jobmaster.log.log_order import BASE, NONE, ROWS, WHOLE, InOrder, Part, part_of
from elf.jobmaster.log.state_rows import RowPiece
from elf.srt.codec.rosters import RosterDecoder, RosterEncoder
from elf.srt.codec.wire import check_ids
from elf.srt.messages.effects import Write
from elf.srt.messages.messages import Ballot, Count, Item, Life, MaybeId, Micros, Revision, ShortText
from elf.srt.messages.results import LedgerEntries
from elf.srt.messages.roster import SLOTS_MAX
from elf.srt.messages.typed import parse

MAGIC = b"ELFD"
VERSION = 1
HEAD_BYTES = len(MAGIC) + 2


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The fields with which every record begins."""

    job: MaybeId
    replaces: bool


class NodeRecord(Record, frozen=True, array_like=True):
    incarnation: Life


class DirectoryRecord(Record, frozen=True, array_like=True):
    items: tuple[Item, ...]


class BallotRecord(Record, frozen=True, array_like=True):
    ballot: Ballot


class EndRecord(BallotRecord, frozen=True, array_like=True):
    pass


class BaseRecord(Record, frozen=True, array_like=True):
    ballot: Ballot
    last: Ballot
    index: Count
    state: bytes
    tail: tuple[bytes, ...]


class MoreRecord(Record, frozen=True, array_like=True):
    ballot: Ballot
    last: Ballot
    first: Count
    entries: tuple[bytes, ...]
    committed: Count = 0


class PieceRecord(Record, frozen=True, array_like=True):
    """The fields with which every record of a state in pieces begins."""

    number: Count


class PartedRecord(PieceRecord, frozen=True, array_like=True):
    ballot: Ballot
    last: Ballot
    index: Count
    state: bytes
    tail: tuple[bytes, ...]


class RowsRecord(PieceRecord, frozen=True, array_like=True):
    at: Count
    version: ShortText
    tree: Count
    frame: bytes


class WholeRecord(PieceRecord, frozen=True, array_like=True):
    count: Count


class LedgerRecord(Record, frozen=True, array_like=True):
    """open: the windows of which the sink holds only an open revision."""

    fence: Ballot
    entries: LedgerEntries
    open: tuple[tuple[ShortText, Micros], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(Record)
_PARTS = {8: BASE, 9: ROWS, 10: WHOLE}


class _PartHead(PieceRecord, frozen=True, array_like=True):
    count: Any = 0


_parts = msgspec.msgpack.Decoder(_PartHead)


def head_of(data: bytes | memoryview) -> tuple[tuple[str, bytes], bool]:
    """The key of a record, and whether it replaces those before it; decodes only the record's head. Raises StateError for a
    record that this version cannot read."""
    kind = _kind_of(data)
    try:
        head = _heads.decode(memoryview(data)[HEAD_BYTES:])
    except msgspec.MsgspecError as error:
        raise _damaged(error) from error
    return (KINDS[kind].key, head.job), head.replaces


def part_in(data: bytes | memoryview) -> Part:
    """A record's part in a state in pieces; decodes only the head. Raises StateError like `head_of`."""
    kind = _PARTS.get(_kind_of(data))
    if kind is None:
        return NONE
    try:
        head = _parts.decode(memoryview(data)[HEAD_BYTES:])
    except msgspec.MsgspecError as error:
        raise _damaged(error) from error
    return Part(kind, head.number, head.count if kind != BASE else 0)


def _kind_of(data: bytes | memoryview) -> int:
    if data[: len(MAGIC)] != MAGIC or len(data) < HEAD_BYTES:
        raise StateError("state: a record that does not start as one of elf's; restore it from a backup")
    if data[4] != VERSION:
        raise StateError(
            f"state: record version {data[4]} is of another version of elf, this one reads {VERSION}; run that version, or use "
            "another state_dir"
        )
    if data[5] not in KINDS:
        raise StateError(
            f"state: a record of unknown kind {data[5]}, of a later version of elf; run that version, or use another state_dir"
        )
    return data[5]


def _damaged(error: Exception) -> StateError:
    return StateError(f"state: a damaged record ({error}); restore it from a backup")


class RecordEncoder:
    """All writes of one life of a node, in order."""

    def __init__(self) -> None:
        self._log = LogCodec()
        self._rosters: dict[bytes, RosterEncoder] = {}

    def encode(self, write: Write) -> bytes:
        """Raises ValueError for an unknown key. O(bytes)."""
        record = self._record(write)
        return MAGIC + bytes((VERSION, _NUMBERS[type(record)])) + _encoder.encode(record)

    def lost(self, key: tuple[str, bytes]) -> None:
        """A record that was encoded under the key did not reach the disk: begin with fresh rosters."""
        self._rosters.pop(key[1], None)

    def _record(self, write: Write) -> Record:
        (kind, job), record, replaces = write.key, write.record, write.replace
        match kind:
            case "node":
                return NodeRecord(job, replaces, record)
            case "directory":
                return DirectoryRecord(job, replaces, record)
            case "ballot":
                return BallotRecord(job, replaces, record.ballot)
            case "ledger":
                fence, entries = record
                held = tuple((window, revision, digest) for window, revision, digest, _ in entries)
                return LedgerRecord(
                    job, replaces, fence, held, tuple(entry[0] for entry in entries if entry[3])
                )
            case "log":
                if replaces:
                    self._rosters[job] = RosterEncoder()
                return self._log_record(job, replaces, record)
        raise ValueError(f"a record of kind {kind!r}")

    def _log_record(self, job: bytes, replaces: bool, record: LogRecord) -> Record:
        if isinstance(record, Promise):
            return EndRecord(job, replaces, record.ballot)
        if isinstance(record, Rows):
            piece = record.piece
            return RowsRecord(job, replaces, record.number, record.at, piece.version, piece.tree, piece.frame)
        if isinstance(record, Whole):
            return WholeRecord(job, replaces, record.number, record.count)
        if isinstance(record, Base) and record.number:
            self._rosters[job] = RosterEncoder()  # a reader may lack the records before this one
        rosters = self._rosters.setdefault(job, RosterEncoder())
        if isinstance(record, Base):
            state = self._log.pack_state(record.state)
            tail = tuple(self._log.pack_entry(entry, rosters) for entry in record.tail)
            about = record.ballot, record.last, record.index, state, tail
            if record.number:
                return PartedRecord(job, replaces, record.number, *about)
            return BaseRecord(job, replaces, *about)
        entries = tuple(self._log.pack_entry(entry, rosters) for entry in record.entries)
        return MoreRecord(job, replaces, record.ballot, record.last, record.first, entries, record.committed)


class RecordDecoder:
    """Reads all records of a disk, in order, whichever lives of the node wrote them."""

    def __init__(self) -> None:
        self._log = LogCodec()
        self._rosters: dict[bytes, RosterDecoder] = {}

    def decode(self, data: bytes) -> Write:
        """The write that was encoded. Raises StateError. O(bytes)."""
        kind = KINDS[_kind_of(data)]
        try:
            record = parse(memoryview(data)[HEAD_BYTES:], kind.form)
            check_ids(record)
            return Write((kind.key, record.job), kind.read(self, record), record.replaces)
        except PeerError as error:
            raise _damaged(error) from error

    def _base(self, record: BaseRecord | PartedRecord) -> Base:
        state = self._log.unpack_state(record.state)
        number = record.number if isinstance(record, PartedRecord) else 0
        if number:
            self._rosters[record.job] = RosterDecoder()
        tail = self._entries(record, record.tail)
        return Base(record.ballot, record.last, record.index, state, tail, number)

    def _rows(self, record: RowsRecord) -> Rows:
        unpack(record.frame, FRAME_BYTES_MAX)
        return Rows(record.number, record.at, RowPiece(record.version, record.tree, record.frame))

    def _more(self, record: MoreRecord) -> More:
        entries = self._entries(record, record.entries)
        return More(record.ballot, record.last, record.first, entries, record.committed)

    def _entries(self, record: Record, entries: tuple[bytes, ...]) -> tuple[Any, ...]:
        if record.replaces or record.job not in self._rosters:
            self._rosters[record.job] = RosterDecoder()
        rosters = self._rosters[record.job]
        return tuple(self._log.unpack_entry(entry, rosters, SLOTS_MAX) for entry in entries)


def gathered(encoded: Iterable[bytes]) -> dict[tuple[str, bytes], InOrder[Any]]:
    """All records of a disk, by key. Raises StateError. O(bytes)."""
    records: dict[tuple[str, bytes], InOrder[Any]] = {}
    decoder = RecordDecoder()
    for data in encoded:
        write = decoder.decode(data)
        records.setdefault(write.key, InOrder()).note(part_of(write.record), write.record, write.replace)
    return records


def _with_open(record: LedgerRecord) -> Iterator[tuple[tuple[str, int], Revision, int, bool]]:
    open_ones = set(record.open)
    for window, revision, digest in record.entries:
        yield window, revision, digest, window in open_ones


class Kind(NamedTuple):
    """The first part of the key of such records, their form on disk, and what a core's record is made of that form by."""

    key: str
    form: type[Record]
    read: Callable[[RecordDecoder, Any], Any]


KINDS = {
    1: Kind("node", NodeRecord, lambda _, record: record.incarnation),
    2: Kind("directory", DirectoryRecord, lambda _, record: record.items),
    3: Kind("ballot", BallotRecord, lambda _, record: Promise(record.ballot)),
    4: Kind("log", BaseRecord, RecordDecoder._base),
    5: Kind("log", MoreRecord, RecordDecoder._more),
    6: Kind("ledger", LedgerRecord, lambda _, record: (record.fence, tuple(_with_open(record)))),
    7: Kind("log", EndRecord, lambda _, record: Promise(record.ballot)),
    8: Kind("log", PartedRecord, RecordDecoder._base),
    9: Kind("log", RowsRecord, RecordDecoder._rows),
    10: Kind("log", WholeRecord, lambda _, record: Whole(record.number, record.count)),
}
_NUMBERS = {kind.form: number for number, kind in KINDS.items()}
