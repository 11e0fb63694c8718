"""Columns as blocks of CSV and JSON lines, made by a kernel.

What the kernel cannot print (arrays, wide decimals, doubles in JSON, times outside the years 1 to 9999) becomes a text
column first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.values.columns import CellColumn
from elf.jobmaster.values.sql_types import WINDOW_TYPE, scale_of
from elf.sinks.console import _text
from elf.sinks.console.cells import is_utc, iso, json_cell, json_text, number, plain

Texts = tuple[NDArray[np.uint8], NDArray[np.uint32]]

YEAR_1_US, YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000


def csv_block(columns: Sequence[CellColumn], tail: bytes = b"") -> bytes:
    """Rows of `columns` as CSV, windows as two cells; each row ends with `tail`. O(bytes)."""
    parts = [part for column in columns for part in _bounds(column)]
    cells = [_cell(part, _csv_texts) for part in parts]
    prefixes = [b"", *[b","] * (len(cells) - 1)]
    # Without quotes, a row of one empty cell would be an empty line, which readers skip.
    return _text.join_rows(cells, prefixes, tail + b"\n", b"", False, b"" if tail else b'""')


def json_block(names: Sequence[str], columns: Sequence[CellColumn], tail: bytes = b"") -> bytes:
    """Rows of `columns` as JSON objects, one per line; `tail` is inserted before the closing brace. O(bytes)."""
    cells, prefixes, close = [], [], b"{"
    for name, column in zip(names, columns, strict=True):
        key = close + msgspec.json.encode(name) + b":"
        parts = _bounds(column) if column.valid is None else [column]
        cells += [_cell(part, _json_texts) for part in parts]
        prefixes += [key] if len(parts) == 1 else [key + b'{"start":', b',"end":']
        close = b"," if len(parts) == 1 else b"},"
    return _text.join_rows(cells, prefixes, close[:-1] + tail + b"}\n", b"null", True, b"")


def _bounds(column: CellColumn) -> list[CellColumn]:
    """A window as its two times; any other column as it is."""
    if column.type != WINDOW_TYPE:
        return [column]
    return [CellColumn("timestamp", column.values[:, side], column.valid) for side in (0, 1)]


def _cell(column: CellColumn, to_texts: Any) -> _text.Cell:
    values, valid, kind = column.values, column.valid, column.type
    if values.dtype == np.bool_:
        return _text.BOOLEAN, values, valid, None, None, 0
    if values.dtype == np.int64 and kind.startswith("decimal"):
        return _text.DECIMAL, values, valid, None, None, scale_of(kind)
    if values.dtype == np.int64 and kind not in ("timestamp", WINDOW_TYPE):
        return _text.INTEGER, values, valid, None, None, 0
    if kind == "timestamp" and is_utc() and _has_plain_years(values):
        return _text.TIME, values, valid, None, None, 0
    text, ends = to_texts(column)
    if column.texts is not None:
        return _text.TEXT, values, None, text, ends, 0
    codes = np.arange(len(values), dtype=np.int32)
    return _text.TEXT, codes if valid is None else np.where(valid, codes, -1), None, text, ends, 0


def _has_plain_years(values: NDArray[np.int64]) -> bool:
    return not len(values) or (values.min() >= YEAR_1_US and values.max() < YEAR_10000_US)


def _csv_texts(column: CellColumn) -> Texts:
    """CSV cells: for strings, one for each entry of the dictionary; for other types, one for each row."""
    if column.texts is not None:
        forms = column.texts.forms
        if "csv" not in forms:
            forms["csv"] = _text.csv_texts(column.texts.text, column.texts.ends)
        return forms["csv"]
    if column.values.dtype == np.float64:
        size = np.abs(column.values)
        if ((size == 0) | ((size >= 1e-4) & (size < 1e16))).all():
            return _json_texts(
                column
            )  # both look alike without an exponent, and msgspec is five times as fast
        return _text.double_texts(np.ascontiguousarray(column.values))
    kind = column.type
    show = iso if kind == "timestamp" else plain if kind.startswith("decimal") else json_text(kind)
    cells = [b"" if value is None else show(value).encode() for value in column.to_python()]
    ends = np.cumsum([len(cell) for cell in cells], dtype=np.uint32)
    return _text.csv_texts(np.frombuffer(b"".join(cells), dtype=np.uint8), ends)


def _json_texts(column: CellColumn) -> Texts:
    """JSON values: for strings, one for each entry of the dictionary; for other types, one for each row."""
    if column.texts is not None:
        forms = column.texts.forms
        if "json" not in forms:
            forms["json"] = _text.json_texts(column.texts.text, column.texts.ends)
        return forms["json"]
    values: list[Any]
    if column.values.dtype == np.float64:
        values = column.values.tolist()
        if not np.isfinite(column.values).all():
            values = list(map(number, values))
    else:
        convert = json_cell(column.type)
        values = column.to_python()
        values = values if convert is None else list(map(convert, values))
    lines = np.frombuffer(_encode_lines(values), dtype=np.uint8)
    breaks = lines == ord("\n")  # no value contains one: JSON escapes it
    ends = np.flatnonzero(breaks) - np.arange(len(values))
    return lines[~breaks], ends.astype(np.uint32)


_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines
