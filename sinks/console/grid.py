"""Aligned columns of text: pure layout, no terminal. Used by the console sink, `elf report` and `elf parse`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.cells import escape, is_utc, iso, json_text, moment, number

GAP = "  "
NARROWEST = 8
"""A column is not cut below this many places to fit a terminal."""


class Style:
    """ANSI colours, or none."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def red(self, text: str) -> str:
        return f"\x1b[31m{text}\x1b[0m" if self.colour else text


def places(text: str) -> int:
    """Columns that `text` takes on a terminal: wide East Asian characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, width: int) -> str:
    """`text` in at most `width` places; the end of a longer text is replaced by '…'."""
    if places(text) <= width:
        return text
    taken, used = [], 0
    for c in text:
        used += places(c)
        if used > width - 1:
            break
        taken.append(c)
    return "".join(taken) + "…"


def is_right(kind: str) -> bool:
    """Whether values of SQL type `kind` are aligned to the right."""
    return kind in ("int", "bigint", "double") or kind.startswith("decimal")


def display(kind: str) -> Callable[[Any], str]:
    """The function that formats a value of SQL type `kind` for a table: one line, safe for a terminal."""
    if kind == "string":
        return lambda v: "NULL" if v is None else escape(v)
    if kind == "timestamp":
        return lambda v: "NULL" if v is None else iso(v)
    if kind.startswith("struct<start"):
        return lambda v: "NULL" if v is None else span(*v)
    if kind.startswith("array<"):
        text = json_text(kind)
        return lambda v: "NULL" if v is None else escape(text(v))
    return lambda v: "NULL" if v is None else _shown(v)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(number(value)) if isinstance(value, float) else escape(str(value))


def span(start: int, end: int) -> str:
    """A window's bounds for people: `2015-05-17 10:00 – 11:00`; the second date only if it differs. Outside of UTC with the
    offset, once if both have the same."""
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return f"{iso(start)} – {iso(end)}"
    if start % 60_000_000 == 0 and end % 60_000_000 == 0:
        clock = "minutes"
    elif start % 1_000_000 == 0 and end % 1_000_000 == 0:
        clock = "seconds"
    else:
        clock = "milliseconds"
    to = last.time().isoformat(clock)
    if first.date() != last.date():
        to = f"{last.date()} {to}"
    was, now = ("" if is_utc() else " " + at.isoformat(timespec="minutes")[16:] for at in (first, last))
    return f"{first.date()} {first.time().isoformat(clock)}{was if was != now else ''} – {to}{now}"


class Grid:
    """The columns of one table. Widths only grow, so that lines under each other stay aligned across windows."""

    def __init__(self, columns: Sequence[ColumnInfo]) -> None:
        self.columns = tuple(columns)
        self.names = [escape(column.name) for column in columns]
        self.widths = [places(name) for name in self.names]
        self._display = [display(column.type) for column in columns]
        self._right = [is_right(column.type) for column in columns]
        self._cuttable = [i for i, column in enumerate(columns) if column.type[:5] in ("strin", "array")]

    def cells(self, rows: Sequence[Sequence[Any]]) -> list[tuple[str, ...]]:
        """`rows` as text. Grows the widths to hold them. O(cells)."""
        if not rows or not self.columns:
            return []
        shown = [
            list(map(show, values))
            for show, values in zip(self._display, zip(*rows, strict=True), strict=True)
        ]
        for at, texts in enumerate(shown):
            self.widths[at] = max(self.widths[at], *map(places, texts)) if texts else self.widths[at]
        return list(zip(*shown, strict=True))

    def fitted(self, width: int | None) -> list[int]:
        """Column widths whose sum is at most `width` places, if possible: the widest columns of text are cut first."""
        widths = list(self.widths)
        if width is None:
            return widths
        over = line_places(widths) - width
        while over > 0 and self._cuttable:
            at = max(self._cuttable, key=widths.__getitem__)
            if widths[at] <= NARROWEST:
                break
            next_widest = max([NARROWEST, *(widths[i] for i in self._cuttable if widths[i] < widths[at])])
            target = max(next_widest, widths[at] - over)
            over -= widths[at] - target
            widths[at] = target
        return widths

    def header(self, widths: Sequence[int]) -> str:
        return self.line(self.names, widths)

    def line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        """One row in the given widths, aligned by type, without trailing spaces."""
        parts = []
        for text, width, right in zip(cells, widths, self._right, strict=True):
            text = cut(text, width)
            pad = " " * (width - places(text))
            parts.append(pad + text if right else text + pad)
        return GAP.join(parts).rstrip()


def line_places(widths: Sequence[int]) -> int:
    """The places of a line of these column widths."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def upright(names: Sequence[str], row: Sequence[str], style: Style) -> list[str]:
    """One row as a record: a line for each column, and an empty one."""
    wide = max(map(places, names))
    lines = [
        f"{style.bold(name + ' ' * (wide - places(name)))}  {value}"
        for name, value in zip(names, row, strict=True)
    ]
    return [*lines, ""]


def table(
    columns: Sequence[ColumnInfo], rows: Sequence[Sequence[Any]], width: int | None = None
) -> list[str]:
    """A whole table as lines, header first. All rows are held as text, so only for results of bounded size."""
    grid = Grid(columns)
    cells = grid.cells(rows)
    widths = grid.fitted(width)
    return [grid.header(widths), *(grid.line(row, widths) for row in cells)]
