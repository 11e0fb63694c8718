"""Results as JSON lines: one object per row, with the query's columns in order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elf.jobmaster.values.columns import CellColumn, in_columns
from elf.jobmaster.windows.result import Window
from elf.sinks.console.cells import unique_names, window_json
from elf.sinks.console.column_text import json_block
from elf.sinks.console.row_stream import RowStream, empty_row


class JsonLines(RowStream):
    """Writes windows to a binary stream: of open windows the rows that changed, of final windows all rows.

    With `meta`, each row also has `_elf`: the window's job, version, bounds, status, revision, coverage and line counters; by
    column the values that did not convert, if any; and `other`, if the row is no group but the rest of them. On a terminal,
    characters that could control it are written as \\u escapes, which readers of JSON turn back into the characters.
    """

    def lay_out(self, window: Window, *, is_other: bool = False) -> None:
        self._names = unique_names(window.columns)
        self._tail = b',"_elf":' + meta_json(window, is_other=is_other) if self._meta else b""

    def put_empty(self, window: Window) -> None:
        """The window's bounds, null in other columns, and `_elf`, where `rows` is 0: a row has no such key."""
        self._names = unique_names(window.columns)
        self._tail = b',"_elf":' + meta_json(window, is_empty=True)
        rows = in_columns([empty_row(window)], [column.type for column in window.columns])
        self.write(self.block(next(rows)))

    def block(self, columns: Sequence[CellColumn]) -> bytes:
        return json_block(self._names, columns, self._tail)


def window_object(window: Window) -> bytes:
    """The whole window as one JSON object: `rows`, each as `JsonLines` writes it, and once `_elf`, as it stands in each of those
    lines. `other`: the row that is no group, if there is one. O(bytes)."""
    names, types = unique_names(window.columns), [column.type for column in window.columns]
    shown = window.rows if window.status != "withdrawn" else ()
    count = len(shown) - window.others if shown else 0
    rows = b",".join(_joined(names, columns) for columns in in_columns(shown[:count], types))
    last = b"".join(_joined(names, columns) for columns in in_columns(shown[count:], types))
    other = b',"other":' + last if last else b""
    return b'{"_elf":' + meta_json(window) + b',"rows":[' + rows + b"]" + other + b"}"


def _joined(names: Sequence[str], columns: Sequence[CellColumn]) -> bytes:
    """Rows, separated by commas. A line break separates them in a block, and is in none of them: JSON escapes it."""
    return json_block(names, columns).rstrip(b"\n").replace(b"\n", b",\n")


def meta_json(window: Window, *, is_other: bool = False, is_empty: bool = False) -> bytes:
    """The `_elf` object of a window's rows, or of its record where it has none. A node in a revision is text of 48 hexadecimal
    digits: it sorts in order, and no reader of JSON rounds it."""
    (epoch, node, n), lines = window.revision, window.lines
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
            "lines_read": lines.read,
            "lines_parsed": lines.parsed,
            "lines_rejected": lines.rejected,
            "lines_late": lines.late,
            **left_out,
            **({"not_converted": dict(lines.not_converted)} if lines.not_converted else {}),
            **({"other": True} if is_other else {}),
            **({"rows": 0} if is_empty else {}),
        }
    )
