"""The two functions for times that the kernel calls in Python: a zone's offset, and parsing by a strptime pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from elf.errors import UsageError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1)
QUARTER_SECONDS = 900
REMEMBERED_MAX = 4096
"""Answers kept, of each kind: 4,096 quarters of an hour are six weeks; 4,096 texts of 32 bytes are 0.5 MB."""


def zone_offsets(name: str) -> Callable[[int], int]:
    """A function from a local time, in quarters of an hour since 1970, to its offset from UTC in microseconds.

    A local time that occurs twice (the clock is set back) is the first of the two, fold=0; one that never occurs (the clock is
    set forward) has the offset from before the change. Zones change at quarters of an hour. Raises UsageError: unknown zone.
    """
    if name == "UTC":
        return lambda quarter: 0
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"time zone {name!r} is not known; name one like Europe/Berlin, or UTC") from error
    known: dict[int, int] = {}

    def offset(quarter: int) -> int:
        found = known.get(quarter)
        if found is None:
            if len(known) >= REMEMBERED_MAX:
                known.clear()
            found = known[quarter] = _offset(zone, quarter)
        return found

    return offset


def _offset(zone: ZoneInfo, quarter: int) -> int:
    try:
        offset = (EPOCH + timedelta(seconds=quarter * QUARTER_SECONDS)).replace(tzinfo=zone).utcoffset()
    except (OverflowError, ValueError):  # the first or last day of the calendar
        return 0
    return 0 if offset is None else offset // timedelta(microseconds=1)


def pattern_times(patterns: Sequence[str]) -> Callable[[int, bytes], tuple[int, bool] | None]:
    """A function from (field, text) to (microseconds, the text has a zone), None where the field's pattern does not match.

    Without a zone the microseconds are local. Calls `datetime.strptime`: some 5 µs, less for a text seen before.
    """
    known: dict[tuple[int, bytes], tuple[int, bool] | None] = {}

    def parse(field: int, text: bytes) -> tuple[int, bool] | None:
        key = (field, text)
        if key not in known:
            if len(known) >= REMEMBERED_MAX:
                known.clear()
            known[key] = _strptime(patterns[field], text)
        return known[key]

    return parse


def _strptime(pattern: str, text: bytes) -> tuple[int, bool] | None:
    try:
        when = datetime.strptime(text.decode(), pattern)
    except ValueError:
        return None
    zoned = when.tzinfo is not None
    if zoned:
        try:
            when = when.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            return None
    return (when - EPOCH) // timedelta(microseconds=1), zoned
