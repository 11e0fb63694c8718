"""Windows of days of a time zone, made of panes of UTC: the report's SQL, run by SQLite, against Python's calendar."""

from __future__ import annotations

import random
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elf.jobmaster.values.zones import DAY_US, zone_named
from elf.sinks.lake.every import Every, finest_us, local_sql, utc_sql, words
from elf.sinks.lake.layout import HOUR_US

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US = 60_000_000
ZONES = {
    "Europe/Berlin": 60,
    "America/New_York": 60,
    "Asia/Kolkata": 30,
    "Asia/Kathmandu": 15,
    "Australia/Lord_Howe": 30,  # its clock changes by half an hour
    "Africa/Casablanca": 60,  # back and forth around Ramadan
    "America/Sao_Paulo": 60,  # skips midnight
    "Pacific/Apia": 60,  # skipped a whole day
    "America/St_Johns": 30,
    "Etc/UTC": 60,
}
"""And the longest panes in minutes that make up days of this century; St. John's aside, until 2011."""


def us(year: int, month: int, day: int) -> int:
    return (datetime(year, month, day, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def windows(every: Every, span: tuple[int, int], panes: list[int]) -> list[tuple[int, int]]:
    """The bounds of each pane's window, as the report's SQL finds them."""
    database = sqlite3.connect(":memory:")
    database.create_function("pmod", 2, lambda a, b: a % b, deterministic=True)
    database.create_function("greatest", 2, max, deterministic=True)
    database.execute("CREATE TABLE panes (at INTEGER)")
    database.executemany("INSERT INTO panes VALUES (?)", [(at,) for at in panes])
    offsets = every.offsets(span, every.us + DAY_US)
    local = local_sql("at", offsets)
    start, end = utc_sql("since", offsets), utc_sql(f"(since + {every.us}L)", offsets)
    sql = f"SELECT {start}, {end} FROM (SELECT at, {local} - pmod({local}, {every.us}L) AS since FROM panes) ORDER BY at"
    return database.execute(re.sub(r"(\d)L\b", r"\1", sql)).fetchall()


def day_of(time_us: int, zone: str) -> int:
    """The local date, as days since 1970."""
    at = (EPOCH + timedelta(microseconds=time_us)).astimezone(ZoneInfo(zone))
    return at.date().toordinal() - EPOCH.toordinal()


CHANGES = {zone: zone_named(zone).offsets(us(2000, 1, 1), us(2030, 1, 1)) for zone in ZONES}
"""The first of each is the beginning of the century."""


@settings(max_examples=60)
@given(
    st.sampled_from([(zone, since) for zone in ZONES for since, _ in CHANGES[zone]]),
    st.integers(0, 3),
    st.sampled_from([1, 5, 15, 30, 60]),
    st.sampled_from([1, 2, 7]),
    st.integers(0, 60 * MINUTE_US - 1),
)
@example(("Pacific/Apia", us(2011, 12, 30)), 1, 60, 1, 0)
@example(("America/Sao_Paulo", us(2015, 10, 18)), 1, 60, 1, 0)
@example(("Australia/Lord_Howe", us(2015, 10, 3)), 0, 30, 1, 0)
@example(("America/St_Johns", us(2010, 11, 7)), 1, 1, 1, 0)
def test_each_moment_of_a_pane_is_in_the_window_of_its_local_date(
    change: tuple[str, int], before: int, minutes: int, days: int, inside: int
) -> None:
    """Around changes of the clock."""
    zone, first = change[0], change[1] // DAY_US - before
    every, pane_us = Every(days * DAY_US, zone), minutes * MINUTE_US
    span = (first * DAY_US, (first + 4) * DAY_US)
    if every.misfit(pane_us, span) is not None:
        return
    panes = sorted(random.Random(first).sample(range(*span, pane_us), 96))
    clock = zone_named(zone)
    for at, (start, end) in zip(panes, windows(every, span, panes), strict=True):
        window = day_of(at, zone) // days
        assert {day_of(at + inside % pane_us, zone) // days, day_of(at + pane_us - 1, zone) // days} == {
            window
        }
        assert start == clock.utc_of(window * every.us)
        assert end == clock.utc_of((window + 1) * every.us)


@pytest.mark.parametrize(("zone", "minutes"), ZONES.items())
def test_the_finest_panes_that_a_zone_needs(zone: str, minutes: int) -> None:
    span = (us(2015, 1, 1), us(2020, 1, 1))
    assert finest_us(zone, span) == minutes * MINUTE_US
    every = Every(DAY_US, zone)
    assert every.misfit(minutes * MINUTE_US, span) is None
    if minutes < 60:
        assert every.misfit(HOUR_US, span) is not None


def test_panes_that_are_too_long_are_refused_with_what_the_zone_needs() -> None:
    span = (us(2015, 1, 1), us(2016, 1, 1))
    assert Every(DAY_US, "Asia/Kathmandu").misfit(30 * MINUTE_US, span) == (
        "days of Asia/Kathmandu begin at 18:15 UTC, inside its panes of 30 minutes; "
        "such days need a query with window(time, '15 minutes')"
    )
    assert Every(7 * DAY_US, "Europe/Berlin").misfit(DAY_US, span) == (
        "days of Europe/Berlin begin at 23:00 UTC, inside its panes of 1 day; "
        "such days need a query with window(time, '1 hour')"
    )
    assert Every(7 * DAY_US, "Europe/London").misfit(DAY_US, (us(2015, 1, 1), us(2015, 3, 28))) is None
    assert Every(DAY_US, "America/St_Johns").misfit(30 * MINUTE_US, (us(2010, 11, 1), us(2010, 12, 1))) == (
        "days of America/St_Johns begin at 02:31 UTC, inside its panes of 30 minutes; "
        "such days need a query with window(time, '1 minute')"
    )


def test_windows_that_are_not_of_whole_days_are_those_of_utc() -> None:
    assert Every(36 * HOUR_US, "Asia/Kolkata").misfit(HOUR_US, (0, DAY_US)) is None
    assert windows(Every(12 * HOUR_US, "Asia/Kolkata"), (0, DAY_US), [0, 13 * HOUR_US]) == [
        (0, 12 * HOUR_US),
        (12 * HOUR_US, 24 * HOUR_US),
    ]


@pytest.mark.parametrize(
    ("length_us", "text"),
    [(DAY_US, "1 day"), (90 * MINUTE_US, "90 minutes"), (500_000, "500000 microseconds")],
)
def test_lengths_in_words(length_us: int, text: str) -> None:
    assert words(length_us) == text
