"""Results as JSON lines: one object a row, the query's columns in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, BinaryIO

import msgspec

from elf.sinks.cells import (
    Changes,
    Convert,
    chunks,
    convert_columns,
    escape_lines,
    json_cell,
    unique_names,
    window_json,
)
from elf.sinks.column_text import json_block
from elf.sinks.columns import ColumnRows
from elf.sinks.result import ColumnInfo, PaneState, StreamClosed, Window


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


class JsonLines:
    """Writes windows to a binary stream. Open windows give the rows that changed, final ones all.

    With `meta`, each row also holds `_elf`: the window's job, version, bounds, status, revision, coverage and line
    counters. On a terminal, characters that it might obey are written as \\u escapes, which JSON reads back as they were.
    """

    wants_open = True
    wants_state = False

    def __init__(self, stream: BinaryIO | None = None, *, meta: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._meta = meta
        self._terminal = self._stream.isatty()
        self._changes = Changes()
        self._layouts: dict[tuple[ColumnInfo, ...], _Layout] = {}
        self._encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines

    def put(self, window: Window) -> None:
        layout = self._layouts.get(window.columns)
        if layout is None:
            layout = self._layouts[window.columns] = _Layout(window.columns, self._meta)
        meta = meta_json(window) if self._meta else b""
        rows = self._changes.rows(window)
        if isinstance(rows, ColumnRows):
            end = b',"_elf":' + meta if meta else b""
            for part in rows.chunks():
                self._write(json_block(layout.names, part.cells, end))
            return
        tail = (msgspec.Raw(meta),) if meta else ()
        for chunk in chunks(rows):
            ready: Iterable[tuple[Any, ...]] = convert_columns(chunk, layout.converts)
            if tail:
                ready = (row + tail for row in ready)
            self._write(self._encode_lines(list(starmap(layout.row, ready))))

    def _write(self, block: bytes) -> None:
        if self._terminal:
            block = escape_lines(block.decode("utf-8", "replace")).encode()
        write(self._stream, block)

    def put_state(self, state: PaneState) -> None:
        """Nothing: this sink does not want state."""

    def flush(self) -> None:
        flush(self._stream)

    def close(self) -> None:
        self.flush()


def meta_json(window: Window) -> bytes:
    """The `_elf` object of a window's rows."""
    bounds = "null" if window.start is None or window.end is None else window_json((window.start, window.end))
    return msgspec.json.encode(
        {
            "job": window.job,
            "version": window.version,
            "window": msgspec.Raw(bounds),
            "status": window.status,
            "revision": list(window.revision),
            "agents_reporting": window.agents_reporting,
            "agents_expected": window.agents_expected,
            "lines_read": window.lines.read,
            "lines_parsed": window.lines.parsed,
            "lines_rejected": window.lines.rejected,
            "lines_late": window.lines.late,
        }
    )


def write(stream: BinaryIO, block: bytes) -> None:
    """Write all of `block`. Raises `StreamClosed` when nobody reads any more, OSError that names standard output."""
    try:
        stream.write(block)
    except OSError as error:
        raise _told(error) from error


def flush(stream: BinaryIO) -> None:
    try:
        stream.flush()
    except OSError as error:
        raise _told(error) from error


def _told(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return StreamClosed()
    return OSError(error.errno, error.strerror, "standard output")
