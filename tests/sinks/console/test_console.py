"""Console, JSON and CSV sinks: what people and programs read of a window."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.jobmaster.windows.result import ColumnInfo, Lines, Sink, StreamClosed, Window
from elf.sinks.console.cells import Changes, escape, iso, show_in
from elf.sinks.console.console import Table
from elf.sinks.console.csv import META, Csv
from elf.sinks.console.grid import Grid, cut, places, span, table
from elf.sinks.console.jsonlines import JsonLines
from tests.rigs.terminal import Screen

WINDOW = "struct<start:timestamp,end:timestamp>"
TEN = 10_000_000
LINES = Lines(12, 10, 2)
COLUMNS = (
    ColumnInfo("window", WINDOW),
    ColumnInfo("path", "string"),
    ColumnInfo("hits", "bigint"),
    ColumnInfo("took", "decimal(18,6)"),
    ColumnInfo("at", "timestamp"),
)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def window(
    rows: list[tuple[Any, ...]],
    *,
    start: int | None = 0,
    status: str = "final",
    columns: tuple[ColumnInfo, ...] = COLUMNS,
    n: int = 1,
    job: str = "errors",
) -> Window:
    end = None if start is None else start + TEN
    return Window(job, "0123456789ab", start, end, status, (0, 0, n), LINES, columns, rows)


def row(path: str | None, hits: int | None, start: int = 0) -> tuple[Any, ...]:
    return ((start, start + TEN), path, hits, Decimal("1.500000"), start + 1)


def as_json(windows: list[Window], **options: Any) -> list[dict[str, Any]]:
    stream = io.BytesIO()
    sink = JsonLines(stream, **options)
    for one in windows:
        sink.put(one)
    sink.close()
    return [json.loads(line, parse_float=Decimal) for line in stream.getvalue().decode().splitlines()]


def as_csv(windows: list[Window], **options: Any) -> str:
    stream = io.BytesIO()
    sink = Csv(stream, **options)
    for one in windows:
        sink.put(one)
    sink.close()
    return stream.getvalue().decode()


def as_table(windows: list[Window], **options: Any) -> str:
    stream = io.BytesIO()
    sink = Table(stream, **options)
    for one in windows:
        sink.put(one)
    sink.close()
    return stream.getvalue().decode()


class TestJson:
    def test_row_holds_the_columns_in_order(self) -> None:
        stream = io.BytesIO()
        JsonLines(stream).put(window([row("/a", 3)]))
        assert stream.getvalue() == (
            b'{"window":{"start":"1970-01-01T00:00:00Z","end":"1970-01-01T00:00:10Z"},"path":"/a","hits":3,'
            b'"took":1.500000,"at":"1970-01-01T00:00:00.000001Z"}\n'
        )

    def test_null_is_null(self) -> None:
        assert as_json([window([(None, None, None, None, None)])]) == [
            {"window": None, "path": None, "hits": None, "took": None, "at": None}
        ]

    def test_meta_says_how_complete_a_window_is(self) -> None:
        [got] = as_json([window([row("/a", 3)], status="revised", n=2)], meta=True)
        assert got["_elf"] == {
            "job": "errors",
            "version": "0123456789ab",
            "window": {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T00:00:10Z"},
            "status": "revised",
            "revision": [0, 0, 2],
            "agents_reporting": 1,
            "agents_expected": 1,
            "lines_read": 12,
            "lines_parsed": 10,
            "lines_rejected": 2,
            "lines_late": 0,
        }

    def test_repeated_and_odd_names(self) -> None:
        columns = (ColumnInfo("count(1)", "bigint"), ColumnInfo("x", "int"), ColumnInfo("x", "int"))
        got = as_json([window([(1, 2, 3)], columns=columns)])
        assert got == [{"count(1)": 1, "x": 2, "x_2": 3}]

    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            ("decimal(38,12)", Decimal("0E-12"), "0.000000000000"),
            ("decimal(38,12)", Decimal("1E-12"), "0.000000000001"),
            ("decimal(18,6)", Decimal("0E-6"), "0.000000"),
            ("decimal(38,0)", Decimal(10**37 + 1), str(10**37 + 1)),
            ("double", 0.1, "0.1"),
            ("double", float("nan"), '"NaN"'),
            ("double", float("-inf"), '"-Infinity"'),
            ("boolean", True, "true"),
            ("bigint", -(2**63), str(-(2**63))),
            ("array<bigint>", [1, 2], "[1,2]"),
            ("array<decimal(38,8)>", [Decimal("1E-8")], "[0.00000001]"),
            ("string", "a\x1b[2Jb", '"a\\u001b[2Jb"'),
            ("timestamp", -1, '"1969-12-31T23:59:59.999999Z"'),
        ],
    )
    def test_value(self, kind: str, value: Any, text: str) -> None:
        stream = io.BytesIO()
        JsonLines(stream).put(window([(value,)], columns=(ColumnInfo("v", kind),)))
        assert stream.getvalue().decode() == f'{{"v":{text}}}\n'

    @settings(derandomize=True, max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1)), max_size=20), st.booleans())
    def test_reads_back_as_it_was(self, rows: list[tuple[str, int]], on_terminal: bool) -> None:
        stream = Terminal() if on_terminal else io.BytesIO()
        columns = (ColumnInfo("s", "string"), ColumnInfo("n", "bigint"))
        JsonLines(stream).put(window(list(rows), columns=columns))
        text = stream.getvalue().decode()
        assert [tuple(json.loads(line).values()) for line in text.split("\n")[:-1]] == rows
        if on_terminal:
            assert all(c == "\n" or c.isprintable() for c in text)


class TestCsv:
    def test_header_comes_without_any_window_and_once_with_one(self) -> None:
        stream = io.BytesIO()
        sink = Csv(stream, meta=True)
        sink.begin(COLUMNS)
        header = f"window_start,window_end,path,hits,took,at,{','.join(META)}\n"
        assert stream.getvalue().decode() == header
        sink.put(window([row("/a", 3)]))
        sink.begin(COLUMNS)
        first, second = stream.getvalue().decode().splitlines()
        assert first + "\n" == header
        assert second.startswith("1970-01-01T00:00:00Z,1970-01-01T00:00:10Z,/a,3,")

    def test_header_once_and_window_in_two_columns(self) -> None:
        text = as_csv([window([row("/a", 3)]), window([row('say "hi", you', None, TEN)], start=TEN)])
        assert text == (
            "window_start,window_end,path,hits,took,at\n"
            "1970-01-01T00:00:00Z,1970-01-01T00:00:10Z,/a,3,1.500000,1970-01-01T00:00:00.000001Z\n"
            '1970-01-01T00:00:10Z,1970-01-01T00:00:20Z,"say ""hi"", you",,1.500000,1970-01-01T00:00:10.000001Z\n'
        )

    def test_meta_columns(self) -> None:
        rows = list(csv.DictReader(io.StringIO(as_csv([window([row("/a", 3)])], meta=True))))
        assert [rows[0][name] for name in META] == ["final", "0.0.1", "1", "1", "12", "10", "2", "0"]

    def test_booleans_arrays_and_tiny_decimals(self) -> None:
        columns = (
            ColumnInfo("b", "boolean"),
            ColumnInfo("a", "array<double>"),
            ColumnInfo("d", "decimal(38,9)"),
        )
        text = as_csv([window([(False, [0.5, 1.0], Decimal("1E-9")), (None, None, None)], columns=columns)])
        assert text == 'b,a,d\nfalse,"[0.5,1.0]",0.000000001\n,,\n'

    def test_new_columns_bring_a_new_header(self) -> None:
        other = (ColumnInfo("n", "bigint"),)
        text = as_csv([window([row("/a", 3)]), window([(1,)], columns=other, job="other")])
        assert text.splitlines()[-2:] == ["n", "1"]

    def test_nothing_drives_a_terminal(self) -> None:
        stream = Terminal()
        Csv(stream).put(window([("\x9b31m\x1b]0;x\x07",)], columns=(ColumnInfo("s", "string"),)))
        assert stream.getvalue().decode() == "s\n\\u009b31m\\u001b]0;x\\u0007\n"


class TestOpenWindows:
    @pytest.mark.parametrize("kind", [JsonLines, Csv])
    def test_stream_prints_what_changed_and_all_when_final(self, kind: Any) -> None:
        stream = io.BytesIO()
        sink = kind(stream)
        columns = (ColumnInfo("path", "string"), ColumnInfo("hits", "bigint"))

        def printed(rows: list[tuple[Any, ...]], status: str) -> int:
            stream.truncate(0)
            stream.seek(0)
            sink.put(window(rows, status=status, columns=columns))
            return stream.getvalue().count(b"\n")

        header = 1 if kind is Csv else 0
        assert printed([("/a", 1), ("/b", 1)], "open") == 2 + header
        assert printed([("/a", 1), ("/b", 1)], "open") == 0
        assert printed([("/a", 2), ("/b", 1)], "open") == 1
        assert printed([("/a", 2), ("/b", 1)], "final") == 2
        assert printed([("/a", 2), ("/b", 1)], "final") == 0  # the same revision again

    def test_a_higher_revision_is_printed_again(self) -> None:
        got = as_json([window([row("/a", 1)], n=1), window([row("/a", 2)], n=2, status="revised")])
        assert [one["hits"] for one in got] == [1, 2]

    def test_a_result_too_large_to_remember_waits_until_it_is_final(self) -> None:
        changes = Changes()
        columns = (ColumnInfo("n", "bigint"),)
        rows = [(i,) for i in range(Changes.LIMIT + 1)]
        assert list(changes.rows(window(rows, status="open", columns=columns))) == []
        assert len(list(changes.rows(window(rows, columns=columns)))) == len(rows)

    def test_arrays_can_be_compared(self) -> None:
        changes = Changes()
        columns = (ColumnInfo("p", "array<bigint>"),)
        assert len(list(changes.rows(window([([1, 2],)], status="open", columns=columns)))) == 1
        assert len(list(changes.rows(window([([1, 2],)], status="open", columns=columns)))) == 0


class TestTable:
    def test_window_has_a_heading_and_aligned_columns(self) -> None:
        text = as_table([window([row("/a", 3), row("/long/path", 12_345)])])
        assert text == (
            "── 1970-01-01 00:00:00 – 00:00:10 · 10 lines, 2 rejected ──\n"
            "path         hits      took  at\n"
            "/a              3  1.500000  1970-01-01T00:00:00.000001Z\n"
            "/long/path  12345  1.500000  1970-01-01T00:00:00.000001Z\n"
            "\n"
        )

    def test_windows_of_one_row_are_one_table(self) -> None:
        columns = (ColumnInfo("window", WINDOW), ColumnInfo("hits", "bigint"))
        minute = 60_000_000
        windows = [
            Window(
                "j",
                "v",
                s,
                s + minute,
                "final",
                (0, 0, 1),
                Lines(),
                columns,
                [((s, s + minute), s // minute)],
                is_single=True,
            )
            for s in (0, minute)
        ]
        assert as_table(windows) == (
            "window                    hits\n1970-01-01 00:00 – 00:01     0\n1970-01-01 00:01 – 00:02     1\n"
        )

    def test_one_window_over_all_has_no_heading(self) -> None:
        columns = (ColumnInfo("hits", "bigint"),)
        assert as_table([window([(3,)], start=None, columns=columns)]) == "hits\n   3\n"

    def test_parts_of_a_result_without_a_time_are_one_table(self) -> None:
        """Rows of lines come as they are read: a longer value moves the columns, and the header stands once."""
        columns = (ColumnInfo("path", "string"), ColumnInfo("bytes", "bigint"))
        parts: list[list[tuple[Any, ...]]] = [[("/a", 3), ("/b", 12)], [], [("/longer", 5)], [("/c", None)]]
        windows = [window(rows, start=None, columns=columns, n=n) for n, rows in enumerate(parts, 1)]
        assert as_table(windows) == (
            "path  bytes\n/a        3\n/b       12\n/longer      5\n/c        NULL\n"
        )
        other = window([(1,)], start=None, columns=(ColumnInfo("hits", "bigint"),))
        assert as_table([windows[0], other]) == "path  bytes\n/a        3\n/b       12\nhits\n   1\n"

    def test_rows_too_wide_for_the_terminal_are_records(self) -> None:
        columns = tuple(ColumnInfo(f"column{n}", "string") for n in range(9))
        rows = [tuple(f"{n}{name}" for n in range(9)) for name in ("a" * 30, "b")]
        windows = [window([each], start=None, columns=columns, n=n) for n, each in enumerate(rows, 1)]
        lines = as_table(windows, terminal=True, size=(60, 24)).split("\n")
        assert lines[:3] == ["column0  0" + "a" * 30, "column1  1" + "a" * 30, "column2  2" + "a" * 30]
        assert lines[9:12] == ["", "column0  0b", "column1  1b"]
        assert as_table(windows, terminal=True, size=(120, 24)).startswith("column0  ")
        assert as_table(windows, terminal=True, size=(120, 24)).count("column0") == 1

    def test_open_windows_are_printed_at_the_end_if_they_never_were_final(self) -> None:
        text = as_table([window([row("/a", 1), row("/b", 1)], status="open")])
        assert text.startswith("── 1970-01-01 00:00:00 – 00:00:10 · open · 10 lines")

    def test_terminal_redraws_open_windows_in_place(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(80, 24))
        sink.put(window([row("/a", 1), row("/b", 1)], status="open"))
        sink.flush()
        drawn = stream.getvalue().decode().count("\n")
        sink.put(window([row("/a", 2), row("/b", 1)], status="open"))
        sink.flush()
        assert f"\x1b[{drawn}F\x1b[J" in stream.getvalue().decode()
        sink.put(window([row("/a", 2), row("/b", 1)]))
        sink.close()
        assert screen(stream.getvalue().decode()) == as_table([window([row("/a", 2), row("/b", 1)])])

    def test_a_message_of_somebody_else_stands_above_the_live_part(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(80, 24))
        sink.put(window([row("/a", 1), row("/b", 1)], status="open"))
        sink.flush()
        sink.make_way()
        stream.write(b"elf: a notice\n")
        sink.flush()
        assert screen(stream.getvalue().decode()).splitlines()[0] == "elf: a notice"
        assert screen(stream.getvalue().decode()).count("/a") == 1

    def test_live_part_never_exceeds_the_screen(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(80, 12))
        for i in range(6):
            sink.put(window([row(f"/{n}", n) for n in range(50)], start=i * TEN, status="open"))
        sink.flush()
        assert stream.getvalue().decode().count("\n") <= 11

    def test_rows_fit_the_terminal(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(60, 24))
        sink.put(window([row("/" + "x" * 200, 1), row("/漢字" * 30, 2)]))
        sink.close()
        assert max(places(line) for line in stream.getvalue().decode().splitlines()) <= 60

    def test_hostile_text_is_spelled_out(self) -> None:
        text = as_table([window([row("\x1b[31m\r\n\x9b\u202e", 1), row(None, 2)])])
        assert "\\u001b[31m\\u000d\\u000a\\u009b\\u202e" in text
        assert "\x1b" not in text
        assert "NULL" in text

    def test_colours_only_when_asked(self) -> None:
        assert "\x1b[1m" in as_table([window([row("/a", 1)])], colour=True)
        assert "\x1b" not in as_table([window([row("/a", 1)])])

    def test_job_is_named_where_several_share_the_console(self) -> None:
        text = as_table([window([row("/a", 1), row("/b", 2)])], show_job=True)
        assert text.startswith("── errors · 1970-01-01")
        text = as_table([replace(window([row("/a", 1)]), is_single=True)], show_job=True)
        assert text.splitlines()[1].startswith("errors  1970-01-01")


def screen(text: str, columns: int = 80, lines: int = 24) -> str:
    """What a terminal shows after `text`, and what has scrolled out of it."""
    terminal = Screen(columns, lines)
    terminal.feed(text)
    return "\n".join([*terminal.history, *terminal.shown])


class TestLive:
    """A terminal that follows windows, some of which are open."""

    @pytest.mark.parametrize("columns", [20, 40, 80])
    def test_nothing_stale_is_left_in_a_narrow_terminal(self, columns: int) -> None:
        stream = Terminal()
        sink = Table(stream, size=(columns, 12), colour=True)
        terminal, finals, read = Screen(columns, 12), 0, 0
        for n in range(40):
            start = n // 10 * TEN
            if start and n % 10 == 5:
                sink.put(window([row("/a", 10, start - TEN)], start=start - TEN))
                finals += 1
            rows = [row(f"/{'x' * 30}{each}", n, start) for each in range(n % 4)]
            sink.put(window(rows, start=start, status="open", n=n + 1))
            sink.flush()
            terminal.feed(stream.getvalue()[read:].decode())
            read = len(stream.getvalue())
            assert len([line for line in terminal.text if line.startswith("── 1970")]) == finals + 1

    def test_a_terminal_that_became_narrower(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(80, 24))
        sink.put(window([row("/a", 1), row("/b", 2)], status="open"))
        sink.flush()
        sink._size = (40, 24)
        sink.flush()
        terminal = Screen(40, 24)  # a terminal wraps what it shows again
        terminal.feed(stream.getvalue().decode())
        assert len([line for line in terminal.text if "1970-01-01 00:00:00" in line]) == 1

    def test_only_the_newest_open_window_is_drawn(self) -> None:
        stream = Terminal()
        sink = Table(stream, size=(80, 12))
        for start in (0, TEN, 2 * TEN):
            sink.put(window([row("/a", 1, start), row("/b", 2, start)], start=start, status="open"))
        sink.flush()
        lines = screen(stream.getvalue().decode()).split("\n")
        assert lines[0].startswith("── 1970-01-01 00:00:20 – 00:00:30 · open")
        assert lines[-2:] == ["… 2 older windows are not final yet", ""]
        assert len([line for line in lines if line.startswith("──")]) == 1

    def test_a_single_row_table_keeps_its_layout_where_windows_are_empty(self) -> None:
        columns = (ColumnInfo("window", WINDOW), ColumnInfo("hits", "bigint"))
        windows = [
            replace(
                window([((start, start + TEN), 7)] if full else [], start=start, columns=columns),
                is_single=True,
            )
            for start, full in ((0, False), (TEN, True), (2 * TEN, False))
        ]
        windows.append(replace(windows[-1], start=3 * TEN, end=4 * TEN, status="open"))
        assert as_table(windows).splitlines() == [
            "window                          hits",
            "1970-01-01 00:00:00 – 00:00:10        no rows",
            "1970-01-01 00:00:10 – 00:00:20     7",
            "1970-01-01 00:00:20 – 00:00:30        no rows",
            "1970-01-01 00:00:30 – 00:00:40        open, no rows",
        ]

    def test_a_column_that_is_the_start_stands_for_the_window(self) -> None:
        columns = (ColumnInfo("minute", "timestamp"), ColumnInfo("hits", "bigint"))
        windows = [
            replace(window(rows, start=start, columns=columns), is_single=True)
            for start, rows in ((0, [(0, 7)]), (TEN, []))
        ]
        assert as_table(windows).splitlines() == [
            "minute                hits",
            "1970-01-01T00:00:00Z     7",
            "1970-01-01T00:00:10Z        no rows",
        ]


@pytest.fixture
def berlin() -> Iterator[None]:
    show_in("Europe/Berlin")
    yield
    show_in("UTC")


@pytest.mark.usefixtures("berlin")
class TestZone:
    """The clock goes back on 2015-10-25 from 03:00 +02:00 to 02:00 +01:00, and forth on 2015-03-29."""

    COLUMNS = (ColumnInfo("window", WINDOW), ColumnInfo("at", "timestamp"))
    AUTUMN = 1_445_731_200_000_000  # 2015-10-25T00:00:00Z
    SPRING = 1_427_587_200_000_000  # 2015-03-29T00:00:00Z
    HOUR = 3_600_000_000

    def of(self, start: int, end: int) -> Window:
        made = window([((start, end), start + 1)], columns=self.COLUMNS)
        return replace(made, start=start, end=end, is_single=True)

    def test_the_repeated_hour_has_two_offsets(self) -> None:
        hours = [self.of(self.AUTUMN + n * self.HOUR, self.AUTUMN + (n + 1) * self.HOUR) for n in range(2)]
        assert as_json(hours) == [
            {
                "window": {"start": "2015-10-25T02:00:00+02:00", "end": "2015-10-25T02:00:00+01:00"},
                "at": "2015-10-25T02:00:00.000001+02:00",
            },
            {
                "window": {"start": "2015-10-25T02:00:00+01:00", "end": "2015-10-25T03:00:00+01:00"},
                "at": "2015-10-25T02:00:00.000001+01:00",
            },
        ]
        assert as_csv(hours).splitlines()[1:] == [
            "2015-10-25T02:00:00+02:00,2015-10-25T02:00:00+01:00,2015-10-25T02:00:00.000001+02:00",
            "2015-10-25T02:00:00+01:00,2015-10-25T03:00:00+01:00,2015-10-25T02:00:00.000001+01:00",
        ]
        assert [line.partition("  2015")[0].rstrip() for line in as_table(hours).splitlines()[1:]] == [
            "2015-10-25 02:00 +02:00 – 02:00 +01:00",
            "2015-10-25 02:00 – 03:00 +01:00",
        ]

    def test_days_of_23_and_25_hours(self) -> None:
        day = 24 * self.HOUR
        assert span(self.AUTUMN - 2 * self.HOUR, self.AUTUMN + 23 * self.HOUR) == (
            "2015-10-25 00:00 +02:00 – 2015-10-26 00:00 +01:00"
        )
        assert span(self.SPRING - self.HOUR, self.SPRING + 22 * self.HOUR) == (
            "2015-03-29 00:00 +01:00 – 2015-03-30 00:00 +02:00"
        )
        assert span(self.SPRING + day, self.SPRING + 2 * day) == "2015-03-30 02:00 – 2015-03-31 02:00 +02:00"

    def test_beyond_the_calendar(self) -> None:
        assert iso(253_402_300_800_000_000) == "10000-01-01T00:00:00.000000Z"


class TestGrid:
    def test_cut_counts_places_not_characters(self) -> None:
        assert cut("漢字漢字", 5) == "漢字…"
        assert cut("abc", 3) == "abc"
        assert cut("abcd", 3) == "ab…"

    def test_widest_text_gives_way_first(self) -> None:
        grid = Grid([ColumnInfo("a", "string"), ColumnInfo("b", "string"), ColumnInfo("n", "bigint")])
        grid.cells([("x" * 50, "y" * 12, 123_456)])
        assert grid.fitted(40) == [18, 12, 6]
        assert grid.fitted(34) == [12, 12, 6]
        assert grid.fitted(10) == [8, 8, 6]  # never below what can be read
        assert grid.fitted(None) == [50, 12, 6]

    def test_table_of_nothing_is_its_header(self) -> None:
        assert table([ColumnInfo("a", "string"), ColumnInfo("b", "bigint")], []) == ["a  b"]

    @settings(derandomize=True, max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), max_size=8), st.integers(20, 60))
    def test_every_line_fits_and_aligns(self, rows: list[tuple[str, str]], width: int) -> None:
        lines = table([ColumnInfo("one", "string"), ColumnInfo("two", "string")], rows, width)
        assert len(lines) == len(rows) + 1
        assert all(places(line) <= width and line.isprintable() for line in lines)

    @pytest.mark.parametrize(
        ("start", "end", "text"),
        [
            (0, 3_600_000_000, "1970-01-01 00:00 – 01:00"),
            (0, 10_000_000, "1970-01-01 00:00:00 – 00:00:10"),
            (0, 86_400_000_000, "1970-01-01 00:00 – 1970-01-02 00:00"),
            (500_000, 1_000_000, "1970-01-01 00:00:00.500 – 00:00:01.000"),
        ],
    )
    def test_span(self, start: int, end: int, text: str) -> None:
        assert span(start, end) == text


def test_times_beyond_the_calendar_are_still_printed() -> None:
    assert iso(253_402_300_799_000_000) == "9999-12-31T23:59:59Z"
    assert iso(253_402_300_800_000_000) == "10000-01-01T00:00:00.000000Z"


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text())
def test_escaped_text_is_printable_and_one_line(text: str) -> None:
    assert escape(text).isprintable()


@pytest.mark.parametrize("kind", [JsonLines, Csv, Table])
def test_a_reader_that_went_away_stops_the_run(kind: Any) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "wb", buffering=0)
    sink: Sink = kind(stream)
    with pytest.raises(StreamClosed):
        sink.put(window([row("/a", 1), row("/b", 2)]))
    stream.close()


class TestOther:
    """The last row of a window is the rest of all groups."""

    ROWS = (row("/a", 3), ((0, TEN), None, 2, None, None), ((0, TEN), None, 41, Decimal(7), None))

    def given(self, *rows: tuple[Any, ...], status: str = "final", n: int = 1) -> Window:
        return replace(window(list(rows or self.ROWS), status=status, n=n), others=1)

    def test_json_marks_it(self) -> None:
        got = as_json([self.given()], meta=True)
        assert [each["_elf"].get("other") for each in got] == [None, None, True]
        assert [each["hits"] for each in got] == [3, 2, 41]

    def test_of_an_open_window_it_is_printed_when_it_has_changed(self) -> None:
        first, then = self.given(status="open"), self.given(row("/b", 1), self.ROWS[2], status="open", n=2)
        got = as_json([first, then, self.given(self.ROWS[2], n=3)], meta=True)
        assert [(each["hits"], each["_elf"].get("other")) for each in got] == [
            (3, None),
            (2, None),
            (41, True),
            (1, None),
            (41, True),
        ]

    def test_a_table_names_it(self) -> None:
        lines = as_table([self.given()]).splitlines()
        assert [line.split()[0] for line in lines[2:5]] == ["/a", "NULL", "other"]
        assert "other" in as_table([self.given(self.ROWS[2])])

    def test_csv_has_it_last(self) -> None:
        assert list(csv.reader(io.StringIO(as_csv([self.given()]))))[-1][2:4] == ["", "41"]
