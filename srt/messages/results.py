"""Messages that carry results: to sinks and to watchers. All are datagrams; bounds and bytes are as in
`srt/messages/messages.py`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Count, Digest, Message, Micros, Revision, ShortText

# Sinks that keep a ledger. Datagrams between a master and a sink, repeated until answered.
#
# `sink`: the name of the sink, of those of the job. Each sink has its own ledger, and each message is about one of them: an agent
# that serves several gets and sends a message for each. "": from before messages named it, so of a node with one sink of the job.

SinkName = Annotated[str, Meta(max_length=1000)]


LedgerEntries = tuple[tuple[tuple[ShortText, Micros], Revision, Digest], ...]
"""((version, window start), revision, digest) of each window."""


class LedgerRequest(Message, frozen=True, array_like=True, gc=False):
    """A new master's first message to a sink; it raises the fence. `since_us`: report the windows that start at or after it.
    `known`: results that were delivered by another node with this sink, in whose place this one delivers (rule Moving)."""

    job: JobId
    ballot: Ballot
    number: Count = 0
    since_us: Micros = 0
    sink: SinkName = ""
    known: LedgerEntries = ()


class LedgerReport(Message, frozen=True, array_like=True, gc=False):
    """What a sink holds. `fence` above the master's ballot: refused."""

    job: JobId
    fence: Ballot
    number: Count
    entries: LedgerEntries
    sink: SinkName = ""


WITHDRAWN = "withdrawn"
"""Status of a Put that withdraws a window."""
NO_ROWS: Digest = 0
"""Digest of such a Put; no rows have it."""


Lost = tuple[tuple[Annotated[str, Meta(max_length=4_096)], Count], ...]
"""Values that did not convert to their column's type, by column."""


class PaneParts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The mergeable state of every group in one pane, as a lake stores it. lines: counts of read, parsed, rejected and late ones.
    parts: encoded values, and whether the next part begins with the same groups (`elf.jobmaster.windows.result.StateValues`).
    not_converted: of these lines."""

    start: Micros
    end: Micros
    lines: tuple[Count, Count, Count, Count]
    parts: tuple[tuple[bytes, bool], ...]
    not_converted: Lost = ()


class Put(Message, frozen=True, array_like=True):
    """One whole window. revision: (epoch, maker, n). digest: of its rows. covers: the event times that it covers (a control line
    may cut a window). status "open", "final", "revised"; or "withdrawn", without rows: the schedule has changed, and the window
    of that version is no longer a result. panes: for a sink that stores states instead of rows, the panes whose last window this
    is. left_out: number of rows left out, of a window that is too large. others: how many of the last rows are no groups, but the
    rest of all groups past the job's limit: 0 or 1. sinks: the name of the one that it is for. not_converted: of the window's
    lines. since_us: the master retains windows that start at or after it; 0: unknown."""

    job: JobId
    ballot: Ballot
    version: ShortText
    start: Micros
    end: Micros
    covers: tuple[Micros, Micros]
    status: Annotated[str, Meta(pattern=r"^(open|final|revised|withdrawn)\Z")]
    revision: Revision
    digest: Digest
    agents_reporting: Count
    agents_expected: Count
    lines: tuple[Count, Count, Count, Count]
    rows: Any = ()
    panes: tuple[PaneParts, ...] = ()
    left_out: Count = 0
    others: Count = 0
    sinks: Annotated[tuple[SinkName, ...], Meta(max_length=16)] = ()
    not_converted: Lost = ()
    since_us: Micros = 0

    @property
    def sink(self) -> str:
        return self.sinks[0] if len(self.sinks) == 1 else ""


class PutPart(Message, frozen=True, array_like=True, gc=False):
    """Part `at` of `of` of a window that is too large for one message. nbytes: of the whole, roughly. payload: a Put of the same
    window and revision with some of its rows and panes (`jobmaster/delivery/chunks.py`)."""

    job: JobId
    ballot: Ballot
    version: ShortText
    start: Micros
    revision: Revision
    at: Count
    of: Count
    nbytes: Count
    payload: bytes
    sink: SinkName = ""


class PartReply(Message, frozen=True, array_like=True, gc=False):
    """The part has arrived. begun: number of this attempt to collect the window's parts; parts of an earlier attempt are lost.
    room: above 0, the window is larger than this limit of the sink."""

    job: JobId
    version: ShortText
    start: Micros
    revision: Revision
    at: Count
    begun: Count
    room: Count = 0
    sink: SinkName = ""


class PutReply(Message, frozen=True, array_like=True, gc=False):
    """The window has been stored; but if `fence` is above the master's ballot: refused, step down."""

    job: JobId
    fence: Ballot
    version: ShortText
    start: Micros
    revision: Revision
    sink: SinkName = ""


# Alerts. Datagrams between a master and a node that serves a sink, repeated until answered.


class AlertPut(Message, frozen=True, array_like=True, gc=False):
    """Changes of a job's alerts for one sink, up to the `number`th that sinks hear of since the log began under `log`. payload:
    these changes (`elf.jobmaster.alerts.book.Notification`); none: only the sink's cursor is asked for, which is at least
    `number`: so far another node with this sink has delivered. is_firing: no changes,
    but all that fire now; nobody answers."""

    job: JobId
    ballot: Ballot
    sink: Annotated[str, Meta(max_length=200)]
    log: Ballot
    number: Count
    payload: Annotated[bytes, Meta(max_length=128 << 10)]
    is_firing: bool = False


class AlertReply(Message, frozen=True, array_like=True, gc=False):
    """The sink has delivered all changes up to the `number`th of that log. repeats: it wants to hear again of what fires."""

    job: JobId
    sink: Annotated[str, Meta(max_length=200)]
    log: Ballot
    number: Count
    repeats: bool = False


# Windows for people. Datagrams: `Watch` is routed to the job's id, the others are sent directly.


class Watch(Message, frozen=True, array_like=True, gc=False):
    """`watcher` wants each published window, whole. It repeats this message; the master forgets a watcher that does not.

    number: of this watch among those of one node. since_us: send final windows that start at or after it. `back`: how many of the
    newest windows to send too. seen: highest place received under `ballot`. `missing`: the places below it that did not arrive.
    """

    job: JobId
    watcher: NodeId
    number: Count
    since_us: Micros
    back: Count = 0
    ballot: Ballot = NO_BALLOT
    seen: Count = 0
    missing: tuple[Count, ...] = ()


class WatchReply(Message, frozen=True, array_like=True, gc=False):
    """The master's answer: it has sent `last` windows so far, and knows that those up to `seen` arrived. refused: it has too many
    watchers."""

    job: JobId
    number: Count
    ballot: Ballot
    last: Count = 0
    seen: Count = 0
    refused: bool = False


class Shown(Message, frozen=True, array_like=True):
    """A window for a watcher, the `place`th under its ballot; `put` is a Put."""

    job: JobId
    number: Count
    place: Count
    put: Message


class ShownPart(Message, frozen=True, array_like=True, gc=False):
    """Part `at` of `of` of a window for a watcher. Each part has its own place. payload: as in `PutPart`."""

    job: JobId
    number: Count
    place: Count
    ballot: Ballot
    version: ShortText
    start: Micros
    revision: Revision
    at: Count
    of: Count
    payload: bytes
