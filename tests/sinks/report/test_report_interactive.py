"""The page's script against the drawings of Python: the same range and steps give the same picture, longer steps add up."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import dukpy  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.cells import show_in
from elf.sinks.report import charts, interactive
from elf.sinks.report.charts import Chart, Series
from elf.sinks.report.page import page
from elf.sinks.report.rows import Section

HOUR, DAY = 3_600_000_000, 86_400_000_000
START = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1_000_000
"""A Monday."""
EVER = -(10**12), 10**12
DAY_S, WEEK_S, MONTH_S = 86_400, 7 * 86_400, 30 * 86_400
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(autouse=True)
def utc_again() -> Iterator[None]:
    yield
    show_in("UTC")


def js(call: str, chart: Chart, *values: float) -> Any:
    return dukpy.evaljs(
        f"{interactive.script()};({call}).apply(null, [dukpy.chart].concat(dukpy.values))",
        chart=interactive.values_of(chart),
        values=list(values),
    )


def draw(chart: Chart, step: int, since: int = EVER[0], until: int = EVER[1]) -> str:
    return str(js("draw", chart, since, until, step))


def assert_alike(one: str, other: str) -> None:
    """The same elements and texts; numbers may differ by what rounding makes of a half."""
    assert NUMBER.sub("#", one) == NUMBER.sub("#", other)
    first, second = ([float(each) for each in NUMBER.findall(text)] for text in (one, other))
    assert first == pytest.approx(second, abs=0.11)


def requests(counts: dict[int, int], **how: Any) -> Chart:
    series = [Series("requests", "main", [float(count) for count in counts.values()])]
    return Chart(list(counts), how.pop("step_us", HOUR), series, charts.compact, **how)


COUNTS = st.dictionaries(st.integers(0, 400), st.integers(0, 10**6), min_size=1, max_size=40).map(
    lambda found: {START + hour * HOUR: count for hour, count in sorted(found.items())}
)


@given(COUNTS, st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]))
@settings(max_examples=30)
def test_the_whole_range_is_the_drawing_that_the_page_came_with(counts: dict[int, int], zone: str) -> None:
    """The range has the change of the clock in Berlin."""
    show_in(zone)
    chart = requests({at + 25 * DAY: count for at, count in counts.items()})
    assert_alike(draw(chart, 3600), chart.svg())


@pytest.mark.parametrize("step_us", [1_000_000, 10_000_000, 60_000_000, 600_000_000, HOUR, DAY])
def test_labels_of_all_steps_are_those_of_the_page(step_us: int) -> None:
    counts = {START + 7 * HOUR + n * step_us: n * n % 17 for n in range(100)}
    chart = requests(counts, step_us=step_us, partial=[min(counts)])
    assert_alike(draw(chart, step_us // 1_000_000), chart.svg())


def test_shares_lines_and_stacks_are_those_of_the_page() -> None:
    times = [START + n * HOUR for n in (0, 1, 2, 5, 6)]
    part, whole = [1, 0, 3, 7, 2], [10, 5, 4, 900, 3]
    shares = [100 * a / b for a, b in zip(part, whole, strict=True)]
    lines = [Series("4xx", "s4", list(shares), part, whole), Series("5xx", "s5", list(shares), part, whole)]
    chart = Chart(times, HOUR, lines, charts.percent, lines=True)
    assert_alike(draw(chart, 3600), chart.svg())
    quantiles = Chart(
        times,
        HOUR,
        [Series("p50", "s2", [0.5, None, 2.0, 0.001, 1.0])],
        charts.seconds,
        lines=True,
        adds_up=False,
    )
    assert_alike(draw(quantiles, 3600), quantiles.svg())
    assert js("fitting", quantiles, *EVER, DAY_S) == 3600
    stacked = Chart(
        times,
        HOUR,
        [Series("2xx", "s2", [1, 2, 3, 4, 5]), Series("5xx", "s5", [None, 1, 0, 1, 2])],
        charts.compact,
    )
    assert_alike(draw(stacked, 3600), stacked.svg())
    sizes = Chart(times, HOUR, [Series("bytes", "main", [10**n for n in range(3, 8)])], charts.size)
    assert_alike(draw(sizes, 3600), sizes.svg())


def hints(svg: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", svg)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_longer_steps_add_up_by_the_calendar_of_the_zone(zone: str) -> None:
    """Over both changes of the clock of a year, but for the hours of the first and the last day."""
    show_in(zone)
    begin = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    first = int(begin.timestamp()) * 1_000_000
    counts = {first + n * HOUR: n % 7 + 1 for n in range(364 * 24)}
    days = Counter[str]()
    weeks, months = Counter[str](), Counter[str]()
    for at, count in counts.items():
        local = datetime.fromtimestamp(at / 1e6, ZoneInfo(zone)).date()
        days[f"{local}"] += count
        weeks[f"week of {local - timedelta(days=local.weekday())}"] += count
        months[f"{local:%Y-%m}"] += count
    chart = requests(counts)

    def shown(step: int) -> dict[str, str]:
        return dict(hint.split("  requests: ") for hint in hints(draw(chart, step)))

    assert shown(WEEK_S) == {week: charts.compact(count) for week, count in weeks.items()}
    assert shown(MONTH_S) == {month: charts.compact(count) for month, count in months.items()}
    last = dict(list(days.items())[-charts.COLUMNS_MAX :])
    assert shown(DAY_S) == {day: charts.compact(count) for day, count in last.items()}


def test_a_range_cuts_steps_and_marks_those_that_it_cuts() -> None:
    counts = {START + n * HOUR: 1 for n in range(72)}
    since = START // 1_000_000 + 6 * 3600
    chart = requests(counts, partial=[START + 71 * HOUR])
    assert hints(draw(chart, DAY_S, since, since + DAY_S)) == [
        "2026-03-02  requests: 18, incomplete",
        "2026-03-03  requests: 6, incomplete",
    ]
    assert hints(draw(chart, DAY_S, since - 6 * 3600)) == [
        "2026-03-02  requests: 24",
        "2026-03-03  requests: 24",
        "2026-03-04  requests: 24, incomplete",
    ]
    assert len(hints(draw(chart, 3600, since, since + 7200))) == 2
    assert draw(chart, 3600, since - 10 * DAY_S, since - 9 * DAY_S) == ""


def test_steps_fit_the_range() -> None:
    chart = requests({START + n * HOUR: 1 for n in range(5000)})
    first = START // 1_000_000
    assert js("fitting", chart, first, first + 14 * DAY_S, 0) == 3600
    assert js("fitting", chart, first, first + 15 * DAY_S, 0) == DAY_S
    assert js("fitting", chart, *EVER, WEEK_S) == WEEK_S
    assert js("fitting", chart, *EVER, 60) == 3600


def test_the_page_has_one_script_which_its_policy_names() -> None:
    columns = ColumnInfo("hour", "timestamp"), ColumnInfo("requests", "bigint")
    bars = ColumnInfo("path", "string"), ColumnInfo("requests", "bigint")
    sections = [
        Section("a", "A", columns, [(START, 7)], "columns"),
        Section("b", "B", bars, [('/"><script>alert(1)</script>', 7)], "bars"),
    ]
    text = page("t", "s", [], sections, [])
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    [named] = re.findall(r"script-src 'sha256-([^']*)'", text)
    assert named == b64encode(sha256(script.encode()).digest()).decode()
    assert text.count("<script") == 1
    assert text.count("data-chart=") == 1
    assert text.count('<form class="range" hidden>') == 1
    assert text.count("Of the whole time") == 1
    assert "script" not in page("t", "s", [], sections[1:], []).replace("&lt;script", "").replace(
        "&lt;/script", ""
    )
