"""Events that a node's host reports to its cores, besides messages: the answers to `effects.Read`."""

from __future__ import annotations

import msgspec

from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import NO_WATERMARK, Micros, Period, Slot, Span
from elf.srt.messages.partial import Part


class Cut(msgspec.Struct, frozen=True, gc=False):
    """A source's answer to a `Read`: rows of whole lines, and how far each of its files has now been read.

    spans: from, to and flags (FIRST, CLOSED) of every file that is open or whose end this cut reached, in the lane of the
    request. watermark_us: these files will bring no more lines with an earlier event time. caught_up: their present ends were
    reached. gaps: files that were shorter than their position, or gone: lines are lost. is_blind: lines came since the last
    watermark, but none could be parsed, so their windows are unknown. untimed: lines that were rejected before any line of their
    file could be parsed: they are in no window. ends_unread: none of the last lines before these ends could be parsed.
    newest: no line of the spans is later. unparsed: lines of these spans were rejected, and none of that time could be parsed.
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
    newest: Micros = NO_WATERMARK
    unparsed: Period | None = None
