"""Results as JSON lines: one object a row, the query's columns in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, BinaryIO

import msgspec

from elf.jobmaster.values.columns import CellColumn
from elf.jobmaster.windows.result import ColumnInfo, Window
from elf.sinks.console.cells import Convert, convert_columns, json_cell, unique_names, window_json
from elf.sinks.console.column_text import json_block
from elf.sinks.console.row_stream import Rows, RowStream


class _Layout:
    """One row's shape, made once per list of columns: a Struct, since msgspec encodes those fastest."""

    def __init__(self, columns: Sequence[ColumnInfo], meta: bool) -> None:
        self.names = unique_names(columns)
        names = [*self.names, *(["_elf"] if meta else [])]
        fields = [f"c{i}" for i in range(len(names))]
        self.row: Any
        if any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in names):
            # A Struct takes no name with a quote, a backslash or a control character.
            self.row = lambda *cells: dict(zip(names, cells, strict=True))
        else:
            rename = dict(zip(fields, names, strict=True))
            self.row = msgspec.defstruct("Row", fields, rename=rename, gc=False, frozen=True)
        self.converts: list[Convert | None] = [json_cell(column.type) for column in columns]


class JsonLines(RowStream):
    """Writes windows to a binary stream. Open windows give the rows that changed, final ones all.

    With `meta`, each row also holds `_elf`: the window's job, version, bounds, status, revision, coverage and line
    counters. On a terminal, characters that it might obey are written as \\u escapes, which JSON reads back as they were.
    """

    def __init__(self, stream: BinaryIO | None = None, *, meta: bool = False) -> None:
        super().__init__(stream, meta=meta)
        self._layouts: dict[tuple[ColumnInfo, ...], _Layout] = {}
        self._tail = b""  # the `_elf` object of the window at hand
        self._encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines

    def lay_out(self, window: Window) -> None:
        layout = self._layouts.get(window.columns)
        if layout is None:
            layout = self._layouts[window.columns] = _Layout(window.columns, self._meta)
        self._layout = layout
        self._tail = meta_json(window) if self._meta else b""

    def column_block(self, columns: Sequence[CellColumn]) -> bytes:
        return json_block(self._layout.names, columns, b',"_elf":' + self._tail if self._meta else b"")

    def row_block(self, rows: Rows) -> bytes:
        ready: Iterable[tuple[Any, ...]] = convert_columns(rows, self._layout.converts)
        if self._meta:
            tail = (msgspec.Raw(self._tail),)
            ready = (row + tail for row in ready)
        return self._encode_lines(list(starmap(self._layout.row, ready)))


def meta_json(window: Window) -> bytes:
    """The `_elf` object of a window's rows. A node in a revision is 48 hexadecimal digits, which compare in order and which no
    reader of JSON rounds."""
    epoch, node, n = window.revision
    bounds = "null" if window.start is None or window.end is None else window_json((window.start, window.end))
    left_out = {"rows_left_out": window.left_out} if window.left_out else {}
    return msgspec.json.encode(
        {
            "job": window.job,
            "version": window.version,
            "window": msgspec.Raw(bounds),
            "status": window.status,
            "revision": [epoch, f"{node:048x}" if node else 0, n],
            "agents_reporting": window.agents_reporting,
            "agents_expected": window.agents_expected,
            "lines_read": window.lines.read,
            "lines_parsed": window.lines.parsed,
            "lines_rejected": window.lines.rejected,
            "lines_late": window.lines.late,
            **left_out,
        }
    )
