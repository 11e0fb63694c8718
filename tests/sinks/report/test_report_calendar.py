"""Weekdays, weeks, months and unusual hours of a report, from counts whose calendar another library knows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from elf.jobmaster.values.zones import DAY_US
from elf.sinks.lake.layout import HOUR_US
from elf.sinks.report.calendar import by_calendar, unusual_hours
from elf.sinks.report.rows import Section

MONDAY = datetime(2026, 9, 7, tzinfo=UTC)


def us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


def rows(sections: Iterator[Section]) -> dict[str, list[tuple[Any, ...]]]:
    return {section.name: list(section.rows) for section in sections}


def days(first: datetime, counts: list[int], zone: str = "UTC") -> list[tuple[int, int]]:
    """Midnights of the zone and counts."""
    local = first.replace(tzinfo=ZoneInfo(zone))
    return [(us(local + timedelta(days=n)), count) for n, count in enumerate(counts)]


def test_weekdays_are_means_of_whole_days() -> None:
    counts = days(MONDAY, [10, 20, 30, 40, 50, 60, 70, 11, 5])
    noon = counts[-1][0] + DAY_US // 2
    found = rows(by_calendar(counts, "UTC", (counts[0][0], noon), ""))
    assert found["traffic_by_weekday"] == [
        ("Monday", 11, 21, 2),  # 10.5, away from zero
        ("Tuesday", 20, 20, 1),  # the second one is half a day
        ("Wednesday", 30, 30, 1),
        ("Thursday", 40, 40, 1),
        ("Friday", 50, 50, 1),
        ("Saturday", 60, 60, 1),
        ("Sunday", 70, 70, 1),
    ]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Auckland"])
def test_weeks_are_compared_if_all_their_days_are_whole(zone: str) -> None:
    """Over the change of Berlin's and Auckland's clocks."""
    counts = days(MONDAY.replace(month=9, day=7), [100] * 7 + [110] * 7 + [55] * 7 + [1] * 3, zone)
    span = counts[0][0], counts[-1][0] + DAY_US
    found = rows(by_calendar(counts, zone, span, ""))
    assert found["traffic_by_week"] == [
        ("2026-09-07", 700, 7, None, None),
        ("2026-09-14", 770, 7, 700, Decimal("10.0")),
        ("2026-09-21", 385, 7, 770, Decimal("-50.0")),
        ("2026-09-28", 3, 3, None, None),
    ]
    late = rows(by_calendar(counts, zone, (span[0] + HOUR_US, span[1]), ""))
    assert late["traffic_by_week"][:2] == [
        ("2026-09-07", 700, 6, None, None),
        ("2026-09-14", 770, 7, None, None),
    ]


def test_months_are_compared_with_the_year_before() -> None:
    first = datetime(2024, 1, 15, tzinfo=UTC)
    n = (datetime(2025, 3, 10, tzinfo=UTC) - first).days
    counts = [
        (at, 29 if datetime.fromtimestamp(at / 1e6, UTC).year == 2024 else 28)
        for at, _ in days(first, [0] * n)
    ]
    found = rows(by_calendar(counts, "UTC", (us(first), counts[-1][0] + DAY_US), ""))["traffic_by_month"]
    assert [row[0] for row in found] == [f"2024-{m:02}" for m in range(1, 13)] + [
        "2025-01",
        "2025-02",
        "2025-03",
    ]
    assert found[0] == ("2024-01", 17 * 29, 17, None, None)
    assert found[12] == ("2025-01", 31 * 28, 31, None, None), "January of 2024 is not whole"
    assert found[13] == ("2025-02", 28 * 28, 28, 29 * 29, Decimal("-6.8"))


def test_one_day_has_no_calendar() -> None:
    assert rows(by_calendar(days(MONDAY, [5]), "UTC", (us(MONDAY), us(MONDAY) + DAY_US), "")) == {}


def hours(weeks: int, chance: random.Random) -> list[tuple[int, int]]:
    """Traffic by the hour of the day, at random as independent visitors are."""
    made = []
    for n in range(weeks * 7 * 24):
        usual = 400 + 300 * (8 <= n % 24 < 20)
        made.append((us(MONDAY) + n * HOUR_US, round(chance.gauss(usual, usual**0.5))))
    return made


def test_hours_at_random_are_usual_and_others_are_found() -> None:
    counts = hours(6, random.Random(5))
    span = counts[0][0], counts[-1][0] + HOUR_US
    [section] = unusual_hours(counts, "UTC", span, "From job x.")
    assert (section.rows, section.note) == (
        [],
        "0 of 336 hours that have 4 former weeks are unusual. From job x.",
    )
    at = 5 * 7 * 24 + 30
    counts[at], counts[at + 40] = (counts[at][0], 900), (counts[at + 40][0], 3)
    [section] = unusual_hours(counts, "UTC", span, "")
    assert {(row[0], row[1]) for row in section.rows} == {counts[at], counts[at + 40]}
    by_time = {row[0]: row for row in section.rows}
    assert by_time[counts[at][0]][3] > 5
    assert by_time[counts[at + 40][0]][3] < -5


def test_the_last_hour_is_judged_once_it_is_whole() -> None:
    counts = hours(5, random.Random(6))
    counts[-1] = (counts[-1][0], 1)
    half = counts[0][0], counts[-1][0] + HOUR_US // 2
    assert list(next(unusual_hours(counts, "UTC", half, "")).rows) == []
    whole = counts[0][0], counts[-1][0] + HOUR_US
    [(at, count, usual, _)] = next(unusual_hours(counts, "UTC", whole, "")).rows
    assert (at, count) == counts[-1]
    assert 350 < usual < 450


def test_four_weeks_are_too_few() -> None:
    counts = hours(4, random.Random(7))
    assert list(unusual_hours(counts, "UTC", (counts[0][0], counts[-1][0] + HOUR_US), "")) == []
