"""Results as CSV: a header once, NULL as nothing between the commas, the window as two columns."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, BinaryIO

from elf.jobmaster.values.columns import CellColumn
from elf.jobmaster.windows.result import ColumnInfo, Window
from elf.sinks.console.cells import WINDOW_TYPE, Convert, convert_columns, iso, text_cell, unique_names
from elf.sinks.console.column_text import csv_block
from elf.sinks.console.row_stream import Rows, RowStream

META = (
    "elf_status",
    "elf_revision",
    "elf_agents_reporting",
    "elf_agents_expected",
    "elf_lines_read",
    "elf_lines_parsed",
    "elf_lines_rejected",
    "elf_lines_late",
)


class Csv(RowStream):
    """Writes windows to a binary stream as RFC 4180 CSV with '\\n' line ends.

    Open windows give the rows that changed, final ones all. `meta` adds the columns `META` at the end. The header comes with
    the first window (or with `begin`), and again where the columns change (another job on the same stream).
    """

    def __init__(self, stream: BinaryIO | None = None, *, meta: bool = False) -> None:
        super().__init__(stream, meta=meta)
        self._columns: tuple[ColumnInfo, ...] = ()
        self._converts: list[Convert | None] = []
        self._windows: list[int] = []  # where windows stand among the columns, last first
        self._tail: tuple[Any, ...] = ()

    def begin(self, columns: tuple[ColumnInfo, ...]) -> None:
        """Write the header, unless it stands there: also a result without any window has its columns."""
        if columns != self._columns:
            self._start(columns)

    def lay_out(self, window: Window) -> None:
        self.begin(window.columns)
        self._tail = meta_cells(window) if self._meta else ()

    def column_block(self, columns: Sequence[CellColumn]) -> bytes:
        return csv_block(columns, b"," + csv_lines([self._tail])[:-1] if self._tail else b"")

    def row_block(self, rows: Rows) -> bytes:
        return csv_lines(self._ready(rows))

    def _start(self, columns: tuple[ColumnInfo, ...]) -> None:
        """Lay out `columns` and write their header."""
        self._columns = columns
        self._converts = [text_cell(column.type) for column in columns]
        self._windows = [i for i, column in enumerate(columns) if column.type == WINDOW_TYPE][::-1]
        names = unique_names(columns)
        for at in self._windows:
            self._converts[at : at + 1] = [iso_or_none, iso_or_none]
            names[at : at + 1] = [f"{names[at]}_start", f"{names[at]}_end"]
        self.write(csv_lines([(*names, *(META if self._meta else ()))]))

    def _ready(self, rows: Rows) -> Iterable[tuple[Any, ...]]:
        """`rows` as cells of text: the window split in two, conversions applied, `_tail` added."""
        for at in self._windows:
            rows = [(*row[:at], *(row[at] or (None, None)), *row[at + 1 :]) for row in rows]
        ready, tail = convert_columns(rows, self._converts), self._tail
        return (row + tail for row in ready) if tail else ready


def csv_lines(rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Rows of ready cells as lines."""
    lines: list[str] = []
    # The csv module quotes what its line end is made of: a lone carriage return too, then, which readers take for a line end.
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join([line[:-2] + "\n" for line in lines]).encode("utf-8", "replace")


@lru_cache(maxsize=64)
def iso_or_none(us: int | None) -> str | None:
    return None if us is None else iso(us)


def meta_cells(window: Window) -> tuple[Any, ...]:
    lines = window.lines
    return (
        window.status,
        ".".join(map(str, window.revision)),
        window.agents_reporting,
        window.agents_expected,
        lines.read,
        lines.parsed,
        lines.rejected,
        lines.late,
    )
