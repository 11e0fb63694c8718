"""Reports by the calendar, from the rows of a report by day or by hour: weekdays, weeks, months, and hours that are unusual.

Days are those of the zone of the report. What begins before the lake, ends behind it, or lacks an agent, is no whole day or hour:
such a day is in no mean, such an hour is not judged, and a week or a month is compared with another one only if both consist of
whole days.
"""

from __future__ import annotations

from calendar import monthrange
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from math import sqrt
from statistics import median
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.layout import HOUR_US
from elf.sinks.report.rows import Section

WEEK = timedelta(days=7)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FORMER_MIN, FORMER_MAX = 4, 8
"""How many former weeks an hour is compared with; one with fewer is not judged."""
UNUSUAL = 5
"""An hour is unusual if it is so many deviations from the usual one: about one of a million by chance."""
SIGMA = 1.4826
"""The standard deviation of a normal distribution, in median absolute deviations."""
HOURS_MAX = 20
NAMES = {
    "traffic_by_day": ("traffic_by_weekday", "traffic_by_week", "traffic_by_month"),
    "traffic_by_hour": ("unusual_hours",),
}
"""The reports that follow from each of these."""
_TENTH = Decimal("0.1")
K = TypeVar("K", date, tuple[int, int])

Counts = Iterable[tuple[int, int]]
"""(begin of a day or an hour in microseconds, requests), in order."""
Span = tuple[int, int]
"""From when to when the lake has windows, in microseconds."""
Days = dict[date, int]


def by_calendar(
    days: Counts, zone: str, span: Span, note: str, lacking: Collection[int] = ()
) -> Iterator[Section]:
    """Sections of requests by weekday, week and month; each only if it has two rows. lacking: begins of days that lack an agent;
    they are not whole."""
    first, last = (local(at, ZoneInfo(zone)) for at in span)
    since = first.date() + timedelta(days=first.time() != time())
    every: Days = defaultdict(int)
    lame = {local(at, ZoneInfo(zone)).date() for at in lacking}
    for at, count in days:
        every[local(at, ZoneInfo(zone)).date()] += count
    whole = {day: n for day, n in every.items() if since <= day < last.date() and day not in lame}
    for section in (_by_weekday(whole, note), _by_week(every, whole, note), _by_month(every, whole, note)):
        if len(section.rows) > 1:  # type: ignore[arg-type]
            yield section


def unusual_hours(
    hours: Counts, zone: str, span: Span, note: str, lacking: Collection[int] = ()
) -> Iterator[Section]:
    """The hours whose requests differ most from those of the same hour of former weeks: by the median of these, and the median of
    their distances to it. None if no hour has `FORMER_MIN` former weeks. An hour without a request is not judged, nor one of
    `lacking`, which lacks an agent."""
    requests: dict[tuple[date, int], int] = defaultdict(int)
    begins: dict[tuple[date, int], int] = {}
    for at, count in hours:
        if at < span[0] or at + HOUR_US > span[1] or at in lacking:
            continue
        begin = local(at, ZoneInfo(zone))
        requests[begin.date(), begin.hour] += count
        begins.setdefault((begin.date(), begin.hour), at)
    found, judged = [], 0
    for (day, hour), count in requests.items():
        weeks = ((day - n * WEEK, hour) for n in range(1, FORMER_MAX + 1))
        former = [requests[week] for week in weeks if week in requests]
        if len(former) < FORMER_MIN:
            continue
        judged += 1
        usual = median(former)
        spread = SIGMA * median(abs(each - usual) for each in former)
        score = (count - usual) / max(
            spread, sqrt(usual), 1.0
        )  # requests at random vary by the root of their number
        if abs(score) >= UNUSUAL:
            found.append((begins[day, hour], count, _tenths(usual), _tenths(score)))
    if not judged:
        return
    found.sort(key=lambda row: (-abs(row[3]), row[0]))
    columns = _columns(hour="timestamp", requests="bigint", usual="decimal(20,1)", deviations="decimal(20,1)")
    summary = f"{len(found)} of {judged} hours that have {FORMER_MIN} former weeks are unusual. {note}"
    yield Section("unusual_hours", "Unusual hours", columns, found[:HOURS_MAX], note=summary)


def local(at: int, zone: ZoneInfo) -> datetime:
    """A time in microseconds by the clock of a zone."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).astimezone(zone)


def _columns(**types: str) -> tuple[ColumnInfo, ...]:
    return tuple(ColumnInfo(name, type) for name, type in types.items())


def _by_weekday(requests: Days, note: str) -> Section:
    found: dict[int, list[int]] = defaultdict(list)
    for day, count in requests.items():
        found[day.weekday()].append(count)
    columns = _columns(weekday="string", requests_per_day="bigint", requests="bigint", days="bigint")
    rows = [
        (WEEKDAYS[number], _rounded(Decimal(sum(counts)) / len(counts)), sum(counts), len(counts))
        for number, counts in sorted(found.items())
    ]
    return Section("traffic_by_weekday", "Requests of a day by weekday", columns, rows, "bars", note)


def _by_week(every: Days, whole: Days, note: str) -> Section:
    def week_of(day: date) -> date:
        return day - timedelta(days=day.weekday())

    requests, days, full = _sums(every, whole, week_of, lambda _: len(WEEKDAYS))
    rows = [
        (f"{week}", count, days[week], *change(full.get(week), full.get(week - WEEK)))
        for week, count in sorted(requests.items())
    ]
    columns, note = _compared("week", "week_before"), f"{note} Weeks begin on Monday."
    return Section("traffic_by_week", "Requests by week", columns, rows, "bars", note)


def _by_month(every: Days, whole: Days, note: str) -> Section:
    def month_of(day: date) -> tuple[int, int]:
        return day.year, day.month

    requests, days, full = _sums(every, whole, month_of, lambda month: monthrange(*month)[1])
    rows = [
        (f"{y}-{m:02}", count, days[y, m], *change(full.get((y, m)), full.get((y - 1, m))))
        for (y, m), count in sorted(requests.items())
    ]
    return Section(
        "traffic_by_month", "Requests by month", _compared("month", "year_before"), rows, "bars", note
    )


def _sums(
    every: Days, whole: Days, span_of: Callable[[date], K], length: Callable[[K], int]
) -> tuple[dict[K, int], dict[K, int], dict[K, int]]:
    """By span: its requests, its whole days, and its requests if all of its days are whole."""
    requests: dict[K, int] = defaultdict(int)
    days: dict[K, int] = defaultdict(int)
    for day, count in every.items():
        requests[span_of(day)] += count
        days[span_of(day)] += day in whole
    full = {span: count for span, count in requests.items() if days[span] == length(span)}
    return requests, days, full


def _compared(name: str, before: str) -> tuple[ColumnInfo, ...]:
    types = {name: "string", "requests": "bigint", "days": "bigint", before: "bigint"}
    return _columns(**types, change_percent="decimal(20,1)")


def change(now: int | None, before: int | None) -> tuple[int | None, Decimal | None]:
    """The former requests, and the change in percent; NULL without one."""
    if now is None or not before:
        return None, None
    return before, _tenths(Decimal(100 * (now - before)) / before)


def _tenths(value: float | Decimal) -> Decimal:
    return Decimal(value).quantize(_TENTH, ROUND_HALF_UP)


def _rounded(value: Decimal) -> int:
    return int(value.quantize(Decimal(1), ROUND_HALF_UP))


def counts_of(rows: Iterable[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """The first two columns, of rows that have both."""
    return [(row[0], row[1]) for row in rows if row[0] is not None and row[1] is not None]
