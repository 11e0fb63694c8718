"""Results as tables for people: windows one below the other; on a terminal, open windows are redrawn in place.

A window has a heading with its time, and its rows as a table. Windows of a query that gives each one row at most (it has no other
keys) are the lines of one table, with the time as the first column.
A final result without a time may come in
parts (the rows of lines, as they are read), which continue one table; on a terminal that is too narrow for its columns each row
is a record of several lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

from elf.jobmaster.values.columns import chunks
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.result import INCOMPLETE, ColumnInfo, PaneState, Window
from elf.sinks.console.grid import Grid, Style, cut, line_places, places, span, upright
from elf.sinks.console.row_stream import flush, write

HELD_WINDOWS = 1_000
"""The most windows of one row that are laid out together; more are printed in several parts."""

OTHER = "other"
"""The name of the row of all groups past a limit, in the place of its first key."""

NO_COLUMN = -1
NO_ROWS = "no rows"

Key = tuple[str, str, int]
Paint = Callable[[str], str]


class _Timeless(NamedTuple):
    """A result without a time, of which more parts may come: its job, version and columns; whether each row is a record of
    several lines."""

    shape: tuple[object, ...]
    grid: Grid
    is_upright: bool


class Table:
    """Writes windows to a stream. On a terminal the newest open window of each job is redrawn at each `flush`; in a pipe a window
    is printed once, when it is final, or at `close`.

    colour: use ANSI styles. terminal: redraw and fit the width (default: whether the stream is one). show_job: print the name of
    each window's job (several jobs on one console). size: (columns, lines) of the terminal, for tests.
    """

    wants_open = True
    wants_state = False

    def __init__(
        self,
        stream: BinaryIO | None = None,
        *,
        colour: bool = False,
        terminal: bool | None = None,
        show_job: bool = False,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._style = Style(colour)
        self._terminal = self._stream.isatty() if terminal is None else terminal
        self._show_job = show_job
        self._size = size
        self._open: dict[Key, Window] = {}
        self._held: list[Window] = []  # final windows of one row that are not printed yet
        self._drawn: list[int] = []  # the places of each line of the redrawn part, below all other output
        self._time_at: dict[tuple[str, str], int] = {}  # the column that says which window a single row is of
        self._last: Grid | None = None  # the one-row table that may be continued; None after other output
        self._last_widths: list[int] = []
        self._timeless: _Timeless | None = None  # the result without a time that is printed last

    def put(self, window: Window) -> None:
        key = (window.job, window.version, -1 if window.start is None else window.start)
        if window.status == "open":
            self._open[key] = window
            return
        self._open.pop(key, None)
        if _is_single(window):
            self._held.append(window)
            if len(self._held) >= HELD_WINDOWS:
                self._settle()
            return
        self._settle()
        self._print_window(window)

    def put_state(self, state: PaneState) -> None:
        """Does nothing: this sink has no use for states."""

    def flush(self) -> None:
        self._settle()
        if self._terminal and self._open:
            self._redraw()
        flush(self._stream)

    def close(self) -> None:
        """Print the windows that are held. Open windows stay on the screen as drawn last; those never drawn are printed."""
        self._settle()
        if self._open:
            self._erase()
            for window in self._in_order():
                self._print_singles([window]) if _is_single(window) else self._print_window(window)
            self._open.clear()
        self._drawn = []
        flush(self._stream)

    def make_way(self) -> None:
        """Erase the open windows from the screen, for another message; the next `flush` draws them again."""
        self._erase()
        flush(self._stream)

    # Permanent output: final windows, in the order in which they came.

    def _settle(self) -> None:
        """Print the held one-row windows, those of equal columns as one table."""
        held, self._held = self._held, []
        while held:
            shape = _shape(held[0])
            same = next((i for i, window in enumerate(held) if _shape(window) != shape), len(held))
            self._print_singles(held[:same])
            held = held[same:]

    def _print_singles(self, windows: Sequence[Window]) -> None:
        self._erase()
        self._timeless = None
        self._last, self._last_widths, header, lines = self._singles(windows)
        self._write([*map(self._style.bold, header), *lines])

    def _singles(self, windows: Sequence[Window]) -> tuple[Grid, list[int], list[str], list[str]]:
        """Windows of one row each as a table, which continues the last one if possible: its grid and widths, its header where it
        is a new table, and its rows."""
        shape = _shape(windows[0])
        if shape not in self._time_at and (filled := [each for each in windows if each.rows]):
            self._time_at[shape] = _time_column(filled[0])
        columns, rows = _single_rows(windows, self._show_job, self._time_at.get(shape, NO_COLUMN))
        grid = self._last
        if grid is None or grid.columns != tuple(columns):
            grid = Grid(columns)
        cells = _without_null(grid.cells(rows), windows)
        widths = grid.fitted(self._width())
        is_known = grid is self._last and widths[:-1] == self._last_widths[:-1]  # the last column has no name
        header = [] if is_known else [grid.header(widths)]
        return grid, widths, header, [grid.line(row, widths) for row in cells]

    def _print_window(self, window: Window) -> None:
        self._erase()
        self._last = None
        if window.start is None and window.status == "final" and not window.others:
            self._print_timeless(window)
            return
        self._timeless = None
        if heading := self._heading(window):
            self._write([self._style.dim(heading)])
        grid = Grid(_body_columns(window))
        header_widths: list[int] = []
        groups = len(window.rows) - window.others
        for chunk in chunks(_body_rows(window, window.rows)):
            cells = _with_other(grid, grid.cells(chunk), groups)
            groups -= len(chunk)
            widths = grid.fitted(self._width())
            if widths != header_widths:
                self._write([self._style.bold(grid.header(widths))])
                header_widths = widths
            self._write([grid.line(row, widths) for row in cells])
        if window.left_out:
            self._write([self._style.dim(_more(window.left_out))])
        if window.start is not None:
            self._write([""])

    def _print_timeless(self, window: Window) -> None:
        """Print a result without a time, or its next part: only the first one has a header."""
        shape = (*_shape(window), window.columns)
        known = self._timeless if self._timeless is not None and self._timeless.shape == shape else None
        if known is None and (heading := self._heading(window)):
            self._write([self._style.dim(heading)])
        for chunk in chunks(window.rows):
            grid = Grid(window.columns) if known is None else known.grid
            cells = grid.cells(chunk)
            widths = grid.fitted(self._width())
            if known is None:
                width = self._width()
                known = _Timeless(shape, grid, width is not None and line_places(widths) > width)
                if not known.is_upright:
                    self._write([self._style.bold(grid.header(widths))])
            if known.is_upright:
                self._write(line for row in cells for line in upright(grid.names, row, self._style))
            else:
                self._write([grid.line(row, widths) for row in cells])
        self._timeless = known
        if window.left_out:
            self._write([self._style.dim(_more(window.left_out))])

    # The part that is redrawn, below the permanent output.

    def _redraw(self) -> None:
        """Draw the newest open window of each job again, at most a screen of them; older ones only wait for late lines."""
        newest = {_shape(window): window for window in self._in_order()}
        windows = list(newest.values())
        width, height = self._screen()
        share = max(3, (height - 1) // max(1, min(len(windows), 4)) - 4)
        lines: list[tuple[str, Paint]] = []
        if len(windows) == 1 and _is_single(windows[0]):
            _, _, header, rows = self._singles(windows)
            lines = [
                *((text, self._style.bold) for text in header),
                *((text, self._style.dim) for text in rows),
            ]
        else:
            for window in windows:
                lines += self._drawn_window(window, share, width)
        if waiting := len(self._open) - len(windows):
            older = f"{waiting:,} older windows are" if waiting > 1 else "an older window is"
            lines.append((f"… {older} not final yet", self._style.dim))
        self._erase()
        shown = [(cut(text, width), paint) for text, paint in lines[-max(1, height - 1) :]]
        self._write(paint(text) for text, paint in shown)
        self._drawn = [places(text) for text, _ in shown]

    def _drawn_window(self, window: Window, share: int, width: int) -> list[tuple[str, Paint]]:
        grid = Grid(_body_columns(window))
        shown = list(_body_rows(window, window.rows[:share]))
        cells = _with_other(grid, grid.cells(shown), len(window.rows) - window.others)
        widths = grid.fitted(width)
        lines: list[tuple[str, Paint]] = [
            (self._heading(window) or "── so far ──", self._style.dim),
            (grid.header(widths), self._style.bold),
        ]
        lines += [(grid.line(row, widths), str) for row in cells]
        more = max(0, len(window.rows) - share) + window.left_out
        if more:
            lines.append((_more(more), self._style.dim))
        return lines

    def _erase(self) -> None:
        if self._drawn:
            width = self._screen()[0]  # it may have become narrower since: then lines take several
            up = sum(max(1, -(-taken // width)) for taken in self._drawn)
            self._out(f"\x1b[{up}F\x1b[J")
            self._drawn = []

    def _in_order(self) -> list[Window]:
        return [self._open[key] for key in sorted(self._open, key=lambda key: (key[2], key[0], key[1]))]

    def _heading(self, window: Window) -> str:
        """`── errors · 2015-05-17 10:00 – 11:00 · open · 1,234 lines, 3 rejected ──`; "" for a final window over all time."""
        parts = [window.job] if self._show_job else []
        if window.start is not None and window.end is not None:
            parts.append(span(window.start, window.end))
        if window.status != "final":
            parts.append(window.status)
        if not parts:
            return ""
        if window.agents_reporting != window.agents_expected and window.status != INCOMPLETE:
            parts.append(f"{window.agents_reporting} of {window.agents_expected} agents")
        lines = window.lines
        counts = [f"{lines.parsed:,} line{'' if lines.parsed == 1 else 's'}"]
        lost = sum(n for _, n in lines.not_converted)
        what = f"value{'' if lost == 1 else 's'} not converted"
        others = ((lines.rejected, "rejected"), (lines.late, "late"), (lost, what))
        counts += [f"{n:,} {what}" for n, what in others if n]
        parts.append(", ".join(counts))
        return f"── {' · '.join(parts)} ──"

    def _screen(self) -> tuple[int, int]:
        if self._size:
            return self._size
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
            return columns or 80, lines or 24  # a terminal without a known size says 0
        except (OSError, ValueError):  # the stream is no terminal
            return (120, 40)

    def _width(self) -> int | None:
        return self._screen()[0] if self._terminal else None

    def _write(self, lines: Iterable[str]) -> None:
        self._out("".join(f"{line}\n" for line in lines))

    def _out(self, text: str) -> None:
        write(self._stream, text.encode("utf-8", "replace"))


def _with_other(grid: Grid, cells: list[tuple[str, ...]], groups: int) -> list[tuple[str, ...]]:
    """The same cells; rows from `groups` on are the row `other`, which is named in its first key."""
    for at in range(max(0, groups), len(cells)):
        key = cells[at].index("NULL") if "NULL" in cells[at] else 0
        grid.widths[key] = max(grid.widths[key], len(OTHER))
        cells[at] = (*cells[at][:key], OTHER, *cells[at][key + 1 :])
    return cells


def _is_single(window: Window) -> bool:
    return window.start is not None and window.is_single and not window.others


def _shape(window: Window) -> tuple[str, str]:
    return (window.job, window.version)


def _body_columns(window: Window) -> list[ColumnInfo]:
    """The columns under a heading: without the window, which the heading shows, unless it is the only column."""
    rest = [column for column in window.columns if column.type != WINDOW_TYPE]
    return rest if window.start is not None and rest else list(window.columns)


def _body_rows(window: Window, rows: Sequence[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    keep = [i for i, column in enumerate(window.columns) if column.type != WINDOW_TYPE]
    if window.start is None or not keep or len(keep) == len(window.columns):
        return rows
    return (tuple(row[i] for i in keep) for row in rows)


def _single_rows(
    windows: Sequence[Window], show_job: bool, time_at: int
) -> tuple[list[ColumnInfo], list[tuple[Any, ...]]]:
    """Windows of one row at most as the rows of one table: job, time (unless the column `time_at` says it), values, and what is
    special: the status if it is not final, and that there is no row."""
    only_window = all(column.type == WINDOW_TYPE for column in windows[0].columns)
    timed = [ColumnInfo("window", WINDOW_TYPE)] if time_at == NO_COLUMN else []
    columns = timed + ([] if only_window else _body_columns(windows[0]))
    if show_job:
        columns.insert(0, ColumnInfo("job", "string"))
    columns.append(ColumnInfo("", "string"))
    rows = []
    for window in windows:
        whole = window.rows or [
            tuple(window.start if i == time_at else None for i in range(len(window.columns)))
        ]
        body = () if only_window else next(iter(_body_rows(window, whole)))
        span_cell = ((window.start, window.end),) if timed else ()
        special = [] if window.status == "final" else [window.status]
        special += [] if window.rows else [NO_ROWS]
        row = (*span_cell, *body, ", ".join(special))
        rows.append((window.job, *row) if show_job else row)
    return columns, rows


def _without_null(cells: list[tuple[str, ...]], windows: Sequence[Window]) -> list[tuple[str, ...]]:
    """The cells of windows without a row are empty, not NULL."""
    return [
        row if window.rows else tuple("" if text == "NULL" else text for text in row)
        for row, window in zip(cells, windows, strict=True)
    ]


def _time_column(window: Window) -> int:
    """The column that is the window's start (`window.start AS minute`), or `NO_COLUMN`."""
    (row,) = window.rows
    for at, (value, column) in enumerate(zip(row, window.columns, strict=True)):
        if column.type == "timestamp" and value == window.start:
            return at
    return NO_COLUMN


def _more(rows: int) -> str:
    return f"… {rows:,} more row{'' if rows == 1 else 's'}"
