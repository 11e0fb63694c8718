"""A rejected line as text for people: a caret marks its first mismatch, and the expected text is named."""

from __future__ import annotations

from elf.agent.formats.batch import Reject
from elf.sinks.console.cells import escape
from elf.sinks.console.grid import places


def reject_lines(reject: Reject, width: int) -> list[str]:
    """Three lines: the place and what was expected there, the text around it, and the caret under it.

    The excerpt takes at most `width` places; characters that could control a terminal are escaped.
    """
    before = escape(reject.line[: reject.offset].decode("utf-8", "replace"))
    after = escape(reject.line[reject.offset :].decode("utf-8", "replace"))
    room = width - 2
    before = _end_of(before, room * 2 // 3)
    rest = room - places(before)
    after = after if len(after) <= rest else after[: rest - 1] + "…"
    head = f"{f'in {reject.field}, ' if reject.field else ''}at byte {reject.offset:,}"
    if reject.expected:
        head += f": expected {escape(reject.expected)}"
    return [head, f"  {before}{after}", f"  {' ' * places(before)}^"]


def _end_of(text: str, room: int) -> str:
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]
