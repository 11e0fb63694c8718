"""What a job's log is made of. Entries are values: they survive encoding, and mean the same on every replica.

`JobState` says what each of them does; `Master` is the only one who makes them.
"""

from __future__ import annotations

import msgspec

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, Line, Maker, Micros, Schedule, Slot, Span
from elf.srt.messages.partial import Part
from elf.srt.messages.sizes import CONTRIBUTION_BYTES, ID_BYTES

Revision = tuple[int, Maker, int]
"""(epoch, maker, n) of a window's publication, compared in order."""
SpecRank = tuple[int, bytes]
"""(number, digest of the body) of a job's spec: of two specs with one number the digest decides."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Base of all. Tagged by name on the wire."""


class Begin(Entry, frozen=True, array_like=True, tag="begin"):
    """The log of a job starts here, or starts anew because nothing was found. since_us: workers begin at the place where their
    event time first reached it; what is older is not part of the job. Always the first entry of a log."""

    ballot: Ballot
    since_us: Micros
    schedule: Schedule
    spec: SpecRank


class Serve(Entry, frozen=True, array_like=True, tag="serve"):
    """`ballot` serves from here on. What it says waits for this entry, and so for all before it, to be held by its replicas.
    unknown_us: windows that end by then may have been final in what this log lacks."""

    ballot: Ballot
    unknown_us: Micros = 0


class Proven(Entry, frozen=True, array_like=True, tag="proven"):
    """More than half of the roster has reported to the master of this log under `ballot`. Said twice: once more when the first is
    committed, so that whoever holds the second knows that."""

    ballot: Ballot


class Accept(Entry, frozen=True, array_like=True, tag="accept"):
    """A bundle, each contribution at the committed place: rows are merged and positions move, in one step.

    promises: its watermarks count. since_us: lines before it were left out. untimed: see `Bundle`.
    """

    schedule: int
    contributions: dict[Slot, Span]
    watermark: Micros
    lagging: dict[NodeId, Micros]
    parts: dict[str, Part]
    promises: bool = True
    since_us: Micros = 0
    untimed: dict[NodeId, int] = {}

    @property
    def nbytes(self) -> int:
        rows = sum(part.nbytes for part in self.parts.values())
        return rows + CONTRIBUTION_BYTES * len(self.contributions) + ID_BYTES * len(self.lagging)


class Add(Entry, frozen=True, array_like=True, tag="add"):
    """The roster: windows that reach past `from_us` expect these workers."""

    workers: tuple[NodeId, ...]
    from_us: Micros


class Left(Entry, frozen=True, array_like=True, tag="left"):
    """The worker left, its last line committed; none of its lines is at or past `until_us`. unread: nor could any of its last
    lines be read, so it is missing from its last promise on."""

    worker: NodeId
    until_us: Micros
    unread: bool = False


class Gone(Entry, frozen=True, array_like=True, tag="gone"):
    """The worker left for good, as the directory has it, while another log than this one was served: what only that one took in
    is lost. Windows in [from_us, until_us) expect it (from when on it was expected already, if it was)."""

    worker: NodeId
    from_us: Micros
    until_us: Micros


class Forget(Entry, frozen=True, array_like=True, tag="forget"):
    """Nobody expects the worker any more in windows from `until_us` on: its watermark."""

    worker: NodeId
    until_us: Micros


class ControlEntry(Entry, frozen=True, array_like=True, tag="control"):
    """From `line.from_us` on another version is in force. Rows at or past `lane_us` are given up and read once more, under the
    new schedule, up to where each file stands at this entry."""

    line: Line
    lane_us: Micros
    spec: SpecRank


class Final(Entry, frozen=True, array_like=True, tag="final"):
    """The window's rows up to entry `at` are its result, under that revision. passed: workers of `expected` that are done.
    covers: the event times that it speaks for. is_revised: readers may have another final result of the window."""

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
    """Panes that end at or before `before_us` are given up: their lines are late from now on."""

    before_us: Micros


AnyEntry = Begin | Serve | Proven | Accept | Add | Left | Gone | Forget | ControlEntry | Final | Retire
