"""Charts and the page: round axes, gaps that stay gaps, and text from logs that stays text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import UsageError
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.cells import show_in
from elf.sinks.report import charts
from elf.sinks.report.charts import Series
from elf.sinks.report.output import Target, target_of, write_page
from elf.sinks.report.page import page
from elf.sinks.report.rows import Section

HOUR = 3_600_000_000
START = 1_790_000_000_000_000 // (24 * HOUR) * 24 * HOUR
HOSTILE = "/<script>alert('x')</script>&\"\u202e\x1b[31m\x00"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg[svg.index("<svg") :])


@settings(max_examples=200, derandomize=True)
@given(st.floats(1e-6, 1e15))
def test_ticks_reach_the_highest_value_in_few_round_steps(highest: float) -> None:
    ticks = charts.ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * (1 - 1e-9)
    assert 2 <= len(ticks) <= 6
    assert f"{ticks[1]:e}"[0] in "1259"  # 9: 9.99…e-7 as it prints


@pytest.mark.parametrize(
    ("value", "count", "size"),
    [
        (0, "0", "0 B"),
        (999, "999", "999 B"),
        (1500, "1.5k", "1.465 KiB"),
        (2_000_000, "2M", "1.907 MiB"),
        (1023, "1.023k", "1023 B"),
    ],
)
def test_numbers_on_axes(value: int, count: str, size: str) -> None:
    assert charts.compact(value) == count
    assert charts.size(value) == size


def test_bytes_have_round_steps_of_their_own_units() -> None:
    assert [charts.size(tick) for tick in charts.ticks(300 * 1024**2, charts.size)] == [
        "0 B",
        "100 MiB",
        "200 MiB",
        "300 MiB",
    ]


def test_columns_stand_at_their_hours_and_gaps_stay_empty() -> None:
    times = [START, START + HOUR, START + 4 * HOUR]
    svg = charts.over_time(times, HOUR, [Series("requests", "main", [1, 2, 4])], charts.compact)
    rects = parsed(svg).findall("rect")
    left = [float(rect.get("x", "")) for rect in rects]
    assert left[2] - left[1] == pytest.approx(3 * (left[1] - left[0]), abs=0.2)
    heights = [float(rect.get("height", "")) for rect in rects]
    assert heights[2] == pytest.approx(4 * heights[0], rel=1e-3)
    assert rects[2].find("title").text == "2026-09-21 04:00  requests: 4"  # type: ignore[union-attr]


@pytest.fixture
def berlin() -> Iterator[None]:
    show_in("Europe/Berlin")
    yield
    show_in("UTC")


def test_days_of_a_zone_are_equally_wide(berlin: None) -> None:
    """The middle one of these days has 25 hours."""
    midnight = int(datetime(2015, 10, 23, 22, tzinfo=UTC).timestamp()) * 1_000_000
    times = [midnight, midnight + 24 * HOUR, midnight + 49 * HOUR]
    svg = parsed(charts.over_time(times, 24 * HOUR, [Series("requests", "main", [1, 2, 4])], charts.compact))
    left = [float(rect.get("x", "")) for rect in svg.findall("rect")]
    assert left[2] - left[1] == pytest.approx(left[1] - left[0], abs=0.2)
    hints = [rect.findtext("title") for rect in svg.findall("rect")]
    assert hints == ["2015-10-24  requests: 1", "2015-10-25  requests: 2", "2015-10-26  requests: 4"]
    assert [text.text for text in svg.findall("text[@class='axis mid']")] == ["24 Oct", "25 Oct", "26 Oct"]


def test_hours_of_a_zone_have_its_clock_and_offset(berlin: None) -> None:
    """The hour that autumn repeats has two columns."""
    first = int(datetime(2015, 10, 24, 22, tzinfo=UTC).timestamp()) * 1_000_000
    times = [first + n * HOUR for n in range(5)]
    svg = parsed(charts.over_time(times, HOUR, [Series("requests", "main", [1] * 5)], charts.compact))
    hints = [str(rect.findtext("title"))[11:23] for rect in svg.findall("rect")]
    assert hints == ["00:00 +02:00", "01:00 +02:00", "02:00 +02:00", "02:00 +01:00", "03:00 +01:00"]
    labels = [text.text for text in svg.findall("text[@class='axis mid']")]
    assert labels == ["00:00", "01:00", "02:00", "02:00", "03:00"]
    assert [text.text for text in svg.findall("text[@class='axis mid day']")] == ["25 Oct 2015"]


def test_stacked_columns_stand_on_each_other() -> None:
    svg = charts.over_time([START], HOUR, [Series("a", "s2", [3]), Series("b", "s5", [1])], charts.compact)
    low, high = parsed(svg).findall("rect")
    assert float(high.get("y", "")) + float(high.get("height", "")) == pytest.approx(
        float(low.get("y", "")), abs=0.02
    )
    assert svg.startswith('<div class="legend">')


def test_a_line_breaks_where_hours_are_missing() -> None:
    times = [START, START + HOUR, START + 3 * HOUR, START + 4 * HOUR]
    svg = charts.over_time(times, HOUR, [Series("x", "s5", [1, 2, 3, 4])], charts.percent, lines=True)
    path = re.search(r' d="([^"]*)"', svg)
    assert path is not None
    assert re.sub(r"[^ML]", "", path[1]) == "MLML"


def test_of_years_of_hours_the_last_two_weeks_are_drawn() -> None:
    times = [START + i * HOUR for i in range(2000)]
    svg = charts.over_time(times, HOUR, [Series("x", "main", [1.0] * 2000)], charts.compact)
    assert svg.count("<rect") == charts.COLUMNS_MAX
    assert len(parsed(svg).findall("text")) < 40


@pytest.mark.parametrize(
    ("step", "count", "first", "second", "labels"),
    [
        (5_000_000, 7, "00:00:00", "00:00:05", 7),
        (10_000_000, 30, "00:00:00", "00:00:30", 10),
        (60_000_000, 40, "00:00", "00:05", 8),
        (600_000_000, 17, "00:00", "00:20", 9),
        (HOUR, 24, "00:00", "02:00", 12),
    ],
)
def test_labels_are_few_at_round_times_with_seconds_where_steps_are_short(
    step: int, count: int, first: str, second: str, labels: int
) -> None:
    times = [START + i * step for i in range(count)]
    svg = charts.over_time(times, step, [Series("x", "main", [1.0] * count)], charts.compact)
    texts = [(t.get("class"), t.text) for t in parsed(svg).findall("text")]
    assert [text for kind, text in texts if kind == "axis mid"][:2] == [first, second]
    assert [kind for kind, _ in texts].count("axis mid") == labels
    assert [text for kind, text in texts if kind == "axis mid day"] == ["21 Sep 2026"]


@settings(max_examples=100, derandomize=True)
@given(st.text(max_size=200), st.integers(0, 10**12))
def test_any_path_is_text_and_the_drawing_well_formed(path: str, value: int) -> None:
    found = parsed(charts.bars([(path, value), (HOSTILE, 1)], "main", charts.compact))
    assert {each.tag for each in found.iter()} <= {"svg", "text", "title", "rect"}


def test_the_page_escapes_names_values_and_notes() -> None:
    columns = (ColumnInfo(HOSTILE, "string"), ColumnInfo("requests", "bigint"))
    sections = [Section("x", HOSTILE, columns, [(HOSTILE, 1), (None, 2)], "bars", HOSTILE)]
    text = page(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], sections, [HOSTILE])
    assert "<script" not in text
    assert "NULL" in text
    assert text.count("&lt;script&gt;") > 8


def test_a_section_without_rows_has_no_chart() -> None:
    columns = (ColumnInfo("hour", "timestamp"), ColumnInfo("requests", "bigint"))
    assert "<svg" not in page("t", "s", [], [Section("x", "X", columns, [], "columns")], [])


def test_html_wants_a_folder_that_is_there() -> None:
    assert target_of("html:/tmp/x.html") == Target("html", "/tmp/x.html")
    assert target_of("csv") == Target("csv")


def test_a_page_replaces_no_device_and_no_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_page(str(tmp_path / "pipe"), "A title", "", (), (), ())
    assert b"A title" in os.read(reader, 1 << 16)
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    write_page(str(tmp_path / "link.html"), "A title", "", (), (), ())
    assert (tmp_path / "link.html").is_symlink()
    assert "A title" in (tmp_path / "page.html").read_text()
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        write_page("/dev/full", "A title", "", (), (), ())
    with pytest.raises(UsageError, match="Is a directory"):
        write_page(str(tmp_path), "A title", "", (), (), ())
