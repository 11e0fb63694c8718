"""Columns as text: whatever they hold, the kernel writes what a model writes value by value, from columns and from tuples."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from decimal import Decimal
from itertools import chain
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elf.jobmaster.values.columns import CellColumn, ColumnRows, Texts, decimals
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.sinks.console.cells import escape_lines, iso, number, unique_names
from elf.sinks.console.column_text import YEAR_1_US, YEAR_10000_US
from elf.sinks.console.csv import META, Csv, meta_text
from elf.sinks.console.jsonlines import JsonLines, meta_json

WINDOW = "struct<start:timestamp,end:timestamp>"
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(YEAR_1_US, YEAR_10000_US - 1)
WIDE = st.integers(-(10**38) + 1, 10**38 - 1)
TEXT = st.one_of(
    st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=6),
    st.sampled_from(
        [b"", b'"', b",", b"\r", b"a\nb", b"\\x\x7f\x00\x1f", "é\u2028\U0001f600".encode(), b"/index.html"]
    ),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bigint": INT64,
    "int": st.integers(-(2**31), 2**31 - 1),
    "boolean": st.booleans(),
    "double": st.one_of(
        st.floats(),
        INT64.map(float),
        st.sampled_from([0.0, -0.0, 1e15, 1e16, -1e15 + 1, 999999999999999.0, 1e22, 5e-324]),
    ),
    "timestamp": st.one_of(TIMES, INT64.map(lambda us: us // 2), TIMES.map(lambda us: us - us % 10**6)),
    WINDOW: st.tuples(TIMES, TIMES),
    "decimal(18,6)": st.one_of(INT64, st.integers(-10, 10)),
    "decimal(18,0)": INT64,
    "decimal(18,12)": st.one_of(INT64, st.integers(-10, 10)),
    "decimal(38,6)": WIDE,
    "decimal(38,20)": st.one_of(WIDE, st.integers(-10, 10)),
    "array<double>": st.lists(st.floats(), max_size=3),
    "string": TEXT,
    "void": st.just(False),
}
DTYPES = {"boolean": np.bool_, "double": np.float64, "void": np.bool_}


def column(kind: str, values: list[Any], valid: list[bool]) -> CellColumn:
    """A column of `kind` as the engine would make it."""
    if kind == "string":
        distinct = list(dict.fromkeys(values))
        codes = [distinct.index(value) if ok else -1 for value, ok in zip(values, valid, strict=True)]
        return CellColumn(kind, np.array(codes, dtype=np.int32), None, texts(distinct))
    if kind == WINDOW:
        return CellColumn(kind, np.array(values, dtype=np.int64).reshape(-1, 2))
    if kind.startswith(("array", "decimal(38")):
        held = np.empty(len(values), dtype=object)
        held[:] = values
    else:
        held = np.array(values, dtype=DTYPES.get(kind, np.int64))
    mask = np.array(valid, dtype=np.bool_)
    if kind == "void":
        mask[:] = False
    held[~mask] = None if kind.startswith("array") else 0
    return CellColumn(kind, held, None if mask.all() else mask)


def texts(values: list[bytes]) -> Texts:
    ends = np.cumsum([len(value) for value in values], dtype=np.uint32)
    return Texts(np.frombuffer(b"".join(values), dtype=np.uint8), ends)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[ColumnInfo, ...], list[CellColumn]]:
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 5))
    columns = []
    for kind in kinds:
        values = draw(st.lists(VALUES[kind], min_size=rows, max_size=rows))
        columns.append(column(kind, values, draw(st.lists(st.booleans(), min_size=rows, max_size=rows))))
    names = draw(st.lists(st.sampled_from(["a", "b", 'count("x")', "é\n", "a\\"]), min_size=4, max_size=4))
    return tuple(ColumnInfo(name, kind) for name, kind in zip(names, kinds, strict=False)), columns


def window(columns: tuple[ColumnInfo, ...], rows: Any) -> Window:
    return Window("job", "0" * 12, 0, 10_000_000, "final", (0, 0, 1), Lines(9, 8, 1, 0), columns, rows)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def written(kind: type[Csv] | type[JsonLines], shown: Window, meta: bool, terminal: bool = False) -> bytes:
    stream = Terminal() if terminal else io.BytesIO()
    kind(stream, meta=meta).put(shown)
    return stream.getvalue()


def json_of(kind: str, value: Any) -> str:
    """The model of a value in JSON."""
    if value is None:
        return "null"
    if kind == WINDOW:
        return f'{{"start":"{iso(value[0])}","end":"{iso(value[1])}"}}'
    if kind == "timestamp":
        return f'"{iso(value)}"'
    if kind.startswith("decimal"):
        return format(value, "f")
    ready = (
        list(map(number, value)) if kind == "array<double>" else number(value) if kind == "double" else value
    )
    return msgspec.json.encode(ready).decode()


def csv_of(kind: str, value: Any) -> list[str]:
    """The model of a value's cells in CSV."""
    if kind == WINDOW:
        return [iso(value[0]), iso(value[1])]
    if value is None:
        return [""]
    if kind == "timestamp":
        return [iso(value)]
    if kind == "double":
        return [str(number(value))]
    return [value if kind == "string" else json_of(kind, value)]


def csv_lines(rows: Iterable[list[str]]) -> str:
    """By the csv module, which quotes what its line end is made of: a lone carriage return too, then."""
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(line[:-2] + "\n" for line in lines)


def model(kind: type[Csv] | type[JsonLines], shown: Window, meta: bool) -> str:
    kinds, names = [column.type for column in shown.columns], unique_names(shown.columns)
    if kind is JsonLines:
        rows = [
            [*map(json_of, kinds, row), *([meta_json(shown).decode()] if meta else [])] for row in shown.rows
        ]
        keys = [json.dumps(name, ensure_ascii=False) for name in [*names, "_elf"]]
        return "".join("{" + ",".join(map(":".join, zip(keys, row, strict=False))) + "}\n" for row in rows)
    tail = meta_text(shown).split(",") if meta else []
    header = [
        part
        for name, each in zip(names, kinds, strict=True)
        for part in ([f"{name}_start", f"{name}_end"] if each == WINDOW else [name])
    ]
    cells = [[*chain.from_iterable(map(csv_of, kinds, row)), *tail] for row in shown.rows]
    return csv_lines([[*header, *(META if meta else ())], *cells])


@pytest.mark.slow
@settings(derandomize=True, max_examples=400, deadline=None)
@given(tables(), st.booleans(), st.integers(0, 5), st.integers(0, 5))
@example(((ColumnInfo("s", "string"),), [column("string", [b""], [True])]), False, 0, 1)
def test_the_text_is_that_of_the_model(
    table: tuple[tuple[ColumnInfo, ...], list[CellColumn]], meta: bool, start: int, stop: int
) -> None:
    columns, cells = table
    stop = min(stop, len(cells[0]))
    shown = window(columns, ColumnRows(cells, min(start, stop), stop))
    tuples = window(columns, list(shown.rows))
    for kind in (Csv, JsonLines):
        expected = model(kind, tuples, meta)
        for rows in (shown, tuples):
            assert written(kind, rows, meta).decode() == expected
            assert written(kind, rows, meta, terminal=True).decode() == escape_lines(expected)


def test_a_window_of_a_report_may_be_null() -> None:
    columns = (ColumnInfo("w", WINDOW), ColumnInfo("n", "smallint"))
    shown = window(columns, [((0, 1_000_000), 1), (None, None)])
    assert written(JsonLines, shown, False).decode().splitlines() == [
        '{"w":{"start":"1970-01-01T00:00:00Z","end":"1970-01-01T00:00:01Z"},"n":1}',
        '{"w":null,"n":null}',
    ]
    assert written(Csv, shown, False).decode().splitlines() == [
        "w_start,w_end,n",
        "1970-01-01T00:00:00Z,1970-01-01T00:00:01Z,1",
        ",,",
    ]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXT, INT64, st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_other_programs_read_the_values_back(rows: list[tuple[bytes, int, float]]) -> None:
    kinds = ("string", "bigint", "double")
    cells = [column(kind, [row[i] for row in rows], [True] * len(rows)) for i, kind in enumerate(kinds)]
    columns = tuple(ColumnInfo(kind, kind) for kind in kinds)
    shown = window(columns, ColumnRows(cells, 0, len(rows)))
    expected = [(text.decode("utf-8", "replace"), whole, real) for text, whole, real in rows]
    read = csv.reader(io.StringIO(written(Csv, shown, False).decode(), newline=""))
    assert next(read) == list(kinds)
    assert [(text, int(whole), float(real)) for text, whole, real in read] == expected
    lines = written(JsonLines, shown, False).decode().split("\n")[:-1]
    assert [tuple(json.loads(line).values()) for line in lines] == expected


def test_rows_behave_as_a_list_of_tuples() -> None:
    cells = [
        column("bigint", [1, 2, 3, 4], [True, True, False, True]),
        column("string", [b"a", b"b", b"a", b"\xff"], [True, False, True, True]),
        column(WINDOW, [(0, 1), (1, 2), (2, 3), (3, 4)], [True] * 4),
        column("decimal(18,2)", [100, -5, 0, 1], [True] * 4),
    ]
    expected = [
        (1, "a", (0, 1), Decimal("1.00")),
        (2, None, (1, 2), Decimal("-0.05")),
        (None, "a", (2, 3), Decimal("0.00")),
        (4, "\ufffd", (3, 4), Decimal("0.01")),
    ]
    rows = ColumnRows(cells, 0, 4)
    assert rows == expected
    assert expected == rows
    assert [rows[i] for i in range(-4, 4)] == expected * 2
    for cut in (slice(1, 3), slice(-2, None), slice(None, 2), slice(3, 1), slice(None, None, -2)):
        assert list(rows[cut]) == expected[cut]
        assert len(rows[cut]) == len(expected[cut])
    assert list(rows[1:][1:]) == expected[2:]
    assert [list(part) for part in rows.chunks(3)] == [expected[:3], expected[3:]]
    with pytest.raises(IndexError):
        rows[1:3][2]


def test_doubles_of_any_size_look_as_python_prints_them() -> None:
    random = np.random.default_rng(7)
    for power in range(-330, 309, 3):
        values = random.random(60) * 10.0**power * random.choice([-1, 1], 60)
        values[::7] = np.rint(values[::7])
        rows = ColumnRows([CellColumn("double", values)], 0, len(values))
        block = written(Csv, window((ColumnInfo("x", "double"),), rows), False)
        assert block.decode().split() == ["x", *map(repr, values.tolist())]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(WIDE, st.integers(0, 38))
def test_decimals_keep_all_digits(unscaled: int, scale: int) -> None:
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    [value] = decimals([unscaled], scale)
    assert value.as_tuple() == Decimal((int(unscaled < 0), digits, -scale)).as_tuple()
