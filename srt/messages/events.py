"""What a node's surroundings tell its cores, besides messages: the answers to `effects.Read`, and lives of neighbours."""

from __future__ import annotations

import msgspec

from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Micros, Slot, Span
from elf.srt.messages.partial import Part


class Cut(msgspec.Struct, frozen=True, gc=False):
    """What a source gave for a `Read`: rows of whole lines, and how far each of its files has now been read.

    spans: for every file that is open, or whose end was reached by this very cut: from where to where, with FIRST and CLOSED
    (lane 0 or the lane's number as asked). watermark_us: no line with an event time before it will still come in these files.
    caught_up: their present ends were reached. gaps: files that were shorter than their position, or gone: lines are lost.
    is_blind: lines came since the watermark before, and none could be read, so nobody knows in which windows they are. untimed:
    lines that were rejected before any line of their file could be read: they are in no window. ends_unread: none of the
    last lines before these ends could be read.
    """

    job: JobId
    request: int
    schedule: int
    spans: dict[Slot, Span]
    watermark_us: Micros
    parts: dict[str, Part]
    caught_up: bool
    gaps: tuple[Slot, ...] = ()
    is_blind: bool = False
    untimed: int = 0
    ends_unread: bool = False
