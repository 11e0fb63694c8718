"""Messages that carry results: to sinks and to watchers. All are datagrams; bounds and bytes are as in
`srt/messages/messages.py`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Count, Digest, Message, Micros, Revision, ShortText

# Sinks that keep a ledger. Datagrams between a master and a sink, again until answered.


class LedgerRequest(Message, frozen=True, array_like=True, gc=False):
    """A new master's first word to a sink; it raises the fence. `since_us`: tell windows that start there or later."""

    job: JobId
    ballot: Ballot
    number: Count = 0
    since_us: Micros = 0


class LedgerReport(Message, frozen=True, array_like=True, gc=False):
    """`entries`: ((version, window start), revision, digest); `fence` above the asker's ballot: refused."""

    job: JobId
    fence: Ballot
    number: Count
    entries: tuple[tuple[tuple[ShortText, Micros], Revision, Digest], ...]


WITHDRAWN = "withdrawn"
"""Status of a Put that takes a window back."""
NO_ROWS: Digest = 0
"""Its digest, which no rows have."""


class PaneParts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The mergeable state of every group in one pane, as a lake stores it. lines: read, parsed, rejected, late. parts: encoded
    values, and whether the next part begins with the same groups (`elf.jobmaster.windows.result.StateValues`)."""

    start: Micros
    end: Micros
    lines: tuple[Count, Count, Count, Count]
    parts: tuple[tuple[bytes, bool], ...]


class Put(Message, frozen=True, array_like=True):
    """One whole window. revision: (epoch, node, n). digest: of its rows. covers: event times it speaks for (a control line may
    cut it). status "open", "final", "revised"; or "withdrawn", without rows: the schedule has changed, and what was told of that
    window of that version is no result any more. panes: for a sink that stores states instead of rows, the panes that end with
    this window and not with an earlier one. left_out: rows that are not told, of a window that is too large for that."""

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


class PutPart(Message, frozen=True, array_like=True, gc=False):
    """Part `at` of `of` of a window that is too large for one message. nbytes: of the whole, about. payload: a Put of the same
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


class PartReply(Message, frozen=True, array_like=True, gc=False):
    """The part came. begun: tells this gathering of the window's parts from an earlier one, which was lost. room: above 0, the
    window is larger than this sink ever takes."""

    job: JobId
    version: ShortText
    start: Micros
    revision: Revision
    at: Count
    begun: Count
    room: Count = 0


class PutReply(Message, frozen=True, array_like=True, gc=False):
    """`fence` above the master's ballot: refused, step down."""

    job: JobId
    fence: Ballot
    version: ShortText
    start: Micros
    revision: Revision


# Windows for people. Datagrams: `Watch` is routed to the job's id, the rest is answered directly.


class Watch(Message, frozen=True, array_like=True, gc=False):
    """`watcher` wants each window that is published, whole; said again and again, and forgotten when it is not.

    number: tells the watches of one node apart. since_us: final windows that start there or later are told, `back`: so many of
    the newest too. seen: highest place taken under `ballot`, `missing`: those below that never came.
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
    """The master's answer: it has told `last` windows so far, and knows that those up to `seen` came. refused: it has too many
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
    """Part `at` of `of` of a window for a watcher; each has a place of its own. payload: as in `PutPart`."""

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
