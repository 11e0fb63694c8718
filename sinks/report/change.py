"""What lists of the most frequent keys compare: the last seven whole days with the seven before; or, for a report of a range of
time, that range with the time before it, as long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.report.calendar import change, local

WEEK = timedelta(days=7)
Span = tuple[int, int]
"""[since, until), in microseconds."""


def last_weeks(stored: Span, zone: str) -> tuple[Span, Span] | None:
    """The last seven days of the zone that end within the lake's time, and the seven before; None if it has not all of them."""
    at = ZoneInfo(zone)
    last = local(stored[1], at).date()
    ends = [_midnight(last - weeks * WEEK, at) for weeks in range(3)]
    return ((ends[1], ends[0]), (ends[2], ends[1])) if ends[2] >= stored[0] else None


def _midnight(day: Any, zone: ZoneInfo) -> int:
    begin = datetime.combine(day, time(), zone).astimezone(UTC)
    return (begin - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def before(stored: Span, since: int, until: int | None) -> Span | None:
    """The time before `since`, as long as from there to `until`, or to the lake's end; None if the lake begins later."""
    end = stored[1] if until is None else until
    span = 2 * since - end, since
    return span if span[0] >= stored[0] else None


def compared(
    columns: Sequence[ColumnInfo], rows: Iterable[tuple[Any, ...]], counts: Mapping[str, Mapping[Any, int]]
) -> tuple[tuple[ColumnInfo, ...], list[tuple[Any, ...]]]:
    """The rows (key, requests) with a column for each of `counts`, and the change in percent: of the first against the second
    count, or of `requests` against the only one. A key that a count lacks had no request."""
    out = []
    for key, requests in rows:
        found = [of.get(key, 0) for of in counts.values()]
        now, former = found if len(found) > 1 else (requests, *found)
        out.append((key, requests, *found, change(now, former)[1]))
    added = (ColumnInfo(name, "bigint") for name in counts)
    return (*columns, *added, ColumnInfo("change_percent", "decimal(20,1)")), out
