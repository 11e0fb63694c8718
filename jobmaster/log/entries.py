"""The entries of a job's log. Entries are values: they survive encoding, and have the same effect on every replica.

`JobState` defines the effect of each; only `Master` makes them.
"""

from __future__ import annotations

import msgspec

from elf.jobmaster.alerts.book import Judgement
from elf.jobmaster.log.job_log import Majority
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    NO_WATERMARK,
    Ballot,
    Count,
    Line,
    Maker,
    Micros,
    Period,
    Schedule,
    Slot,
    Span,
)
from elf.srt.messages.partial import Part
from elf.srt.messages.sizes import CONTRIBUTION_BYTES, ID_BYTES

Revision = tuple[int, Maker, int]
"""(epoch, maker, n) of a window's publication, compared in order."""
SpecRank = tuple[int, bytes]
"""(number, digest of the body) of a job's spec: of two specs with one number the digest decides."""


NO_LANE: Micros = 1 << 62
"""Nothing is discarded, and nothing is read again."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Base class. Tagged by name on the wire."""


class Begin(Entry, frozen=True, array_like=True, tag="begin"):
    """The first entry of every log: of a new job's, or of one that replaces a lost log. since_us: workers begin at the position
    where their event time first reached it; older lines are not part of the job."""

    ballot: Ballot
    since_us: Micros
    schedule: Schedule
    spec: SpecRank
    signer: bytes = b""


class Serve(Entry, frozen=True, array_like=True, tag="serve"):
    """The master of `ballot` serves from here on. It sends nothing before the replicas hold this entry, and so all entries before
    it. unknown_us: windows that end by then may have been final in entries that this log lacks."""

    ballot: Ballot
    unknown_us: Micros = 0


class Proven(Entry, frozen=True, array_like=True, tag="proven"):
    """More than half of the roster has reported to the master of this log under `ballot`, since `left` replicas had left. The
    master appends it again when the first one is committed: a log that has both proves that the first is committed."""

    ballot: Ballot
    left: Count = 0

    @property
    def majority(self) -> Majority:
        return self.ballot, self.left


class Accept(Entry, frozen=True, array_like=True, tag="accept"):
    """A bundle whose contributions begin at the committed positions: rows are merged and positions advance, atomically.

    promises: whether its watermarks count. since_us: its workers left out the lines before that time. untimed, newest,
    unparsed: see `Bundle`.
    """

    schedule: int
    contributions: dict[Slot, Span]
    watermark: Micros
    lagging: dict[NodeId, Micros]
    parts: dict[str, Part]
    promises: bool = True
    since_us: Micros = 0
    untimed: dict[NodeId, int] = {}
    newest: Micros = NO_WATERMARK
    unparsed: dict[NodeId, Period] = {}

    @property
    def nbytes(self) -> int:
        rows = sum(part.nbytes for part in self.parts.values())
        return rows + CONTRIBUTION_BYTES * len(self.contributions) + ID_BYTES * len(self.lagging)


class Add(Entry, frozen=True, array_like=True, tag="add"):
    """Adds to the roster: windows that reach past `from_us` expect these workers."""

    workers: tuple[NodeId, ...]
    from_us: Micros


class Left(Entry, frozen=True, array_like=True, tag="left"):
    """The worker left after its last line was committed; none of its lines is at or past `until_us`. unread: none of its last
    lines could be parsed, so windows after its last watermark count it as missing."""

    worker: NodeId
    until_us: Micros
    unread: bool = False


class Gone(Entry, frozen=True, array_like=True, tag="gone"):
    """The directory reports that the worker left for good while another log was served: lines that only that log accepted are
    lost. Windows in [from_us, until_us) expect the worker, or from an earlier time if it is on the roster already. until_us
    `positions.UNABLE_US`: it is there, and cannot take part."""

    worker: NodeId
    from_us: Micros
    until_us: Micros


class Forget(Entry, frozen=True, array_like=True, tag="forget"):
    """The worker is revoked, or was silent for too long. Windows from `until_us` on, which others have reached, no longer expect
    it; earlier ones count it as missing from its last watermark on."""

    worker: NodeId
    until_us: Micros


class ControlEntry(Entry, frozen=True, array_like=True, tag="control"):
    """From `line.from_us` on another version is in force. Rows at or past `lane_us` are discarded. Workers read their lines again
    under the new schedule, up to the position that each file has at this entry. lane_us: `NO_LANE` if no line at or past the
    control line was reported. signer: the serial of the certificate under which the spec was signed."""

    line: Line
    lane_us: Micros
    spec: SpecRank
    signer: bytes = b""


class Final(Entry, frozen=True, array_like=True, tag="final"):
    """The window's rows up to entry `at` are its final result, under that revision. passed: how many of the `expected` workers
    are done with it. covers: the interval of event time. is_revised: readers may have another final result of the window."""

    version: str
    start: Micros
    revision: Revision
    digest: int
    passed: int
    expected: int
    at: int
    covers: tuple[Micros, Micros]
    is_revised: bool = False


class Retire(Entry, frozen=True, array_like=True, tag="retire"):
    """Panes that end at or before `before_us` are dropped: their lines are late from now on."""

    before_us: Micros


class Judged(Entry, frozen=True, array_like=True, tag="judged"):
    """Rule Once*: the job's alerts were judged by a window, or by the time without any; these of them changed their state."""

    judgement: Judgement

    @property
    def nbytes(self) -> int:
        """O(changes)."""
        return sum(change.nbytes for change in self.judgement.changes)


AnyEntry = (
    Begin | Serve | Proven | Accept | Add | Left | Gone | Forget | ControlEntry | Final | Retire | Judged
)
