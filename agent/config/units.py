"""Sizes, durations and moments as people write them on a command line or in the configuration."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

SIZES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    SIZES[f"{_letter}iB"] = SIZES[_letter] = 1024**_power
    SIZES[f"{_letter}B"] = 1000**_power

DURATIONS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}

SIZE_EXPECTED = 'a size like "64MiB"'
DURATION_EXPECTED = 'a duration like "60s", "250ms" or "1h"'
AGE_EXPECTED = 'a time like "13 months", "90 days" or "36h"'
COARSER_EXPECTED = (
    'a length and an age, like "1 minute after 7 days", or of one job, like "errors: 1 hour after 30 days"'
)
MOMENT_EXPECTED = "a time like 2015-05-17T10:05 or 2015-05-17, or how long ago, like 1h"

_NUMBER_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
LARGEST = 2**62


def size(text: str) -> int:
    """Bytes of "64MiB", "1.5GB", "4096". Raises ValueError."""
    return _scaled(text, SIZES, SIZE_EXPECTED)


def duration_us(text: str) -> int:
    """Microseconds of "60s", "250ms", "1h30m". Raises ValueError; a bare number is refused, since its unit is a guess."""
    parts = _NUMBER_UNIT.findall(text)
    if not parts or _NUMBER_UNIT.sub("", text).strip():
        raise ValueError(DURATION_EXPECTED)
    return sum(_scaled(f"{number}{unit}", DURATIONS_US, DURATION_EXPECTED) for number, unit in parts)


class Age(msgspec.Struct, frozen=True):
    """How long ago, as people say it: calendar months, and microseconds."""

    months: int = 0
    us: int = 0

    def __str__(self) -> str:
        return f"{self.months} months" if self.months else f"{self.us / DURATIONS_US['d']:g} days"

    def before(self, now_us: int) -> int:
        """The moment so long before `now_us`, microseconds UTC: on the same day of the month, or on its last one."""
        now = datetime.fromtimestamp(now_us // 1_000_000, UTC)
        year, month = divmod(now.year * 12 + now.month - 1 - self.months, 12)
        if year < 1:
            raise ValueError(AGE_EXPECTED)
        first = now.replace(year=year, month=month + 1, day=1)
        days = ((first + timedelta(days=31)).replace(day=1) - first).days
        then = first.replace(day=min(now.day, days))
        return int(then.timestamp()) * 1_000_000 + now_us % 1_000_000 - self.us


def age(text: str) -> Age:
    """ "13 months", "2 years", "90 days", "1 day", "36h". Raises ValueError."""
    found = re.fullmatch(r"\s*(\d{1,5})\s*(day|week|month|year)s?\s*", text)
    try:
        if found is None:
            return Age(us=duration_us(text))
    except ValueError:
        raise ValueError(AGE_EXPECTED) from None
    number = int(found[1])
    if found[2] in ("month", "year"):
        return Age(months=number * (12 if found[2] == "year" else 1))
    return Age(us=number * DURATIONS_US[found[2][0]])


class Coarser(msgspec.Struct, frozen=True):
    """Windows of a lake become windows of `pane_us` when their day is so old: of all jobs, or of one."""

    pane_us: int
    after: Age
    job: str | None = None

    def __str__(self) -> str:
        return f"{f'{self.job}: ' if self.job else ''}{duration_text(self.pane_us)} after {self.after}"


def coarser(text: str) -> Coarser:
    """ "1 minute after 7 days", "1h after 3 months", "errors: 1 hour after 30 days". Raises ValueError."""
    found = re.fullmatch(r"\s*(?:(\S[^:]*?)\s*:)?\s*(.+?)\s+after\s+(.+)", text)
    if found is None:
        raise ValueError(COARSER_EXPECTED)
    length = re.fullmatch(r"(\d{1,5})\s*(second|minute|hour)s?", found[2])
    try:
        us = duration_us(found[2]) if length is None else int(length[1]) * DURATIONS_US[length[2][0]]
        after = age(found[3])
    except ValueError:
        raise ValueError(COARSER_EXPECTED) from None
    if us == 0 or DURATIONS_US["d"] % us:
        raise ValueError("windows of which a whole number makes a day, like 1 minute, 15 minutes or 1 hour")
    return Coarser(us, after, found[1])


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(expected)
    whole, _, fraction = match[1].partition(".")
    # In integers, so that "0.1s" is exactly 100,000.
    value = int(whole + fraction) * units[match[2]] // int(10 ** len(fraction))
    if value > LARGEST:
        raise ValueError(expected)
    return value


def moment_us(text: str, *, now_us: int, timezone: str = "UTC") -> int:
    """Microseconds since 1970 of an ISO 8601 time (without an offset: in `timezone`), or of a duration before `now_us`."""
    try:
        return now_us - duration_us(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(MOMENT_EXPECTED) from None
    if at.tzinfo is None:
        from zoneinfo import ZoneInfo

        at = at.replace(tzinfo=ZoneInfo(timezone))
    passed = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def size_text(n_bytes: int) -> str:
    """64 MiB, 1.5 GiB, 812 B."""
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"


def duration_text(us: int) -> str:
    """1h, 1m30s, 250ms: exact, in the largest units that fit."""
    if us == 0:
        return "0s"
    out = ""
    for unit in ("w", "d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, DURATIONS_US[unit])
        out += f"{count}{unit}" if count else ""
    return out
