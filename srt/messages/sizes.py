"""Cheap estimates of a message's size: on the wire (`size_of`, for windows of links and for the simulator's counts), and in
memory (`bundle_bytes`, for what is kept).

The figures are those of `elf.srt.codec.wire`, plus the frame of a link; `tests/srt/codec/test_wire.py` checks that they are
within a factor of two of the real ones. Rosters count as known: the first bundle of a roster takes 26 bytes more for each
contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from elf.srt.messages import messages as m
from elf.srt.messages.changes import ChangeReport, ChangeRequest
from elf.srt.messages.messages import Bundle, Message, Schedule
from elf.srt.messages.partial import Part
from elf.srt.messages.reports import EstimateRequest
from elf.srt.messages.results import AlertPut, LedgerReport, PaneParts, Put, PutPart, Shown, ShownPart

MESSAGE_BYTES = 100
"""Size of most messages: a frame of a link, the message's head, a job, a ballot, a few numbers."""
CONTRIBUTION_BYTES = 40
"""Size of a slot and a span, in memory beside shared ids, or on the wire without a roster."""
ID_BYTES = 32
"""Size of a bundle's id."""
ENTRY_BYTES = 100
"""Size of a log entry without contributions."""
_NODE_BYTES = 18
_CONTACT_BYTES = 38
_SECTION_BYTES = 40
_TREE_BYTES = 45
_ROW_BYTES = 30


def size_of(message: Message) -> int:
    """Bytes on the wire, roughly. O(parts of a bundle, entries of an Append)."""
    extra = _EXTRA.get(type(message))
    return MESSAGE_BYTES if extra is None else MESSAGE_BYTES + extra(message)


def bundle_bytes(bundle: Bundle) -> int:
    """Bytes of a bundle's rows and contributions in memory."""
    total = MESSAGE_BYTES + CONTRIBUTION_BYTES * len(bundle.contributions) + ID_BYTES * len(bundle.lagging)
    for part in bundle.parts.values():
        total += part.nbytes
    return total


def entry_bytes(entry: Any) -> int:
    """Bytes of a log entry in memory."""
    if not hasattr(entry, "contributions"):
        return ENTRY_BYTES + int(getattr(entry, "nbytes", 0))
    rows: int = sum(part.nbytes for part in entry.parts.values())
    places = CONTRIBUTION_BYTES * len(entry.contributions) + ID_BYTES * len(entry.lagging)
    return ENTRY_BYTES + places + rows


def _payload_bytes(contributions: Sized, lagging: Sized, parts: Mapping[str, Part]) -> int:
    """Wire bytes of a section and of frames of rows, which compress to a sixth."""
    total = _SECTION_BYTES + 3 * len(contributions) // 2 + 6 * len(lagging)
    for part in parts.values():
        total += _TREE_BYTES * len(part.rows) + part.nbytes // 6
    return total


def _entries(entries: Iterable[Any]) -> int:
    total = 0
    for entry in entries:
        total += ENTRY_BYTES
        if not hasattr(entry, "contributions"):
            total += int(getattr(entry, "nbytes", 0))
        else:
            total += _payload_bytes(entry.contributions, entry.lagging, entry.parts)
    return total


def _plans(schedule: Schedule) -> int:
    return sum(len(line.plan) + len(line.settings) + MESSAGE_BYTES // 4 for line in schedule)


def _panes(panes: Sequence[PaneParts]) -> int:
    return sum(MESSAGE_BYTES + sum(len(part) for part, _ in pane.parts) for pane in panes)


def _news(message: Any) -> int:
    return (_CONTACT_BYTES + 8) * len(message.news)


def _items(items: Iterable[m.Item]) -> int:
    return sum(len(item.body) + len(item.name) + len(item.signature) + ID_BYTES for item in items)


_EXTRA: dict[type[Message], Callable[[Any], int]] = {
    Bundle: lambda b: _payload_bytes(b.contributions, b.lagging, b.parts),
    m.Append: lambda a: _entries(a.entries),
    m.Install: lambda i: int(getattr(i.state, "nbytes", ENTRY_BYTES)) + _entries(i.tail),
    m.StatePiece: lambda p: len(p.frame),
    m.Commit: lambda c: ID_BYTES * len(c.ids) - ID_BYTES // 2,
    m.Resend: lambda r: ID_BYTES * len(r.ids) - ID_BYTES,
    m.Split: lambda s: CONTRIBUTION_BYTES * len(s.positions) + _plans(s.schedule),
    m.Welcome: lambda w: CONTRIBUTION_BYTES * (len(w.positions) + len(w.ends)) + _plans(w.schedule),
    m.Control: lambda c: _plans(c.schedule),
    m.Ping: _news,
    m.Pong: _news,
    m.LeavesReport: lambda t: _CONTACT_BYTES * (len(t.leaves) + len(t.row)),
    m.JoinMesh: lambda j: _CONTACT_BYTES * len(j.known),
    m.JoinReply: lambda j: _CONTACT_BYTES * len(j.known),
    m.Routed: lambda r: size_of(r.message) - MESSAGE_BYTES // 2,
    m.Frame: lambda f: 0 if f.message is None else size_of(f.message) - MESSAGE_BYTES,
    m.GossipDigest: lambda d: 9 * len(d.buckets) + len(d.want) - 4 * MESSAGE_BYTES // 5,
    m.GossipItems: lambda g: _items(g.items),
    ChangeRequest: lambda c: _items((c.item,)),
    ChangeReport: lambda c: _items(c.items),
    m.Adopt: lambda a: _NODE_BYTES * len(a.path),
    m.Path: lambda p: _NODE_BYTES * len(p.path),
    LedgerReport: lambda t: 2 * ID_BYTES * len(t.entries),
    Put: lambda p: MESSAGE_BYTES + _ROW_BYTES * len(p.rows) + _panes(p.panes),
    Shown: lambda s: size_of(s.put),
    PutPart: lambda p: len(p.payload),
    AlertPut: lambda a: len(a.payload),
    ShownPart: lambda s: len(s.payload),
    m.TreeReport: lambda t: _NODE_BYTES * len(t.children),
    EstimateRequest: lambda e: len(e.plan),
    m.Piece: lambda p: len(p.payload) - MESSAGE_BYTES // 2,
}
