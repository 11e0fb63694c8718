"""Converts text to values and back, one at a time, like Spark's casts with ANSI off: invalid text becomes None.

Different from Spark: a time of day without a date is None (Spark adds today's date, but results must not depend on a clock); and
doubles print with the fewest digits that read back the same, which Java does only from version 19 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

from elf.jobmaster.values.sql_types import Kind, SqlType

BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes."""
BLANKS_AND_CONTROLS = BLANKS + "\x7f"
DAY_US = 86_400_000_000

INTEGER = re.compile(r"([+-]?)([0-9]*)(?:\.[0-9]*)?")
WHOLE = re.compile(r"([+-]?)([0-9]+)")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+))?")  # any digits of Unicode, as BigDecimal
FLOAT = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[fFdD]?$)))[fFdD]?"
)
HEX_FLOAT = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
SPECIAL = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), float("inf")),
    **dict.fromkeys(("-inf", "-infinity"), float("-inf")),
    "nan": float("nan"),
}
BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def to_integer(text: str, type: SqlType) -> int | None:
    """Digits after a point are dropped; "." is 0, as in Spark."""
    return _integer(INTEGER.fullmatch(text.strip(BLANKS_AND_CONTROLS)), type)


def try_integer(text: str, type: SqlType) -> int | None:
    """try_cast accepts whole numbers only."""
    return _integer(WHOLE.fullmatch(text.strip(BLANKS_AND_CONTROLS)), type)


def _integer(found: re.Match[str] | None, type: SqlType) -> int | None:
    if found is None or found.end() == len(found[1]) or len(found[2].lstrip("0")) > 19:
        return None
    value = int(found[1] + (found[2] or "0"))
    bits = 31 if type.kind is Kind.INT else 63
    return value if -(2**bits) <= value < 2**bits else None


def to_double(text: str, type: SqlType) -> float | None:
    text = text.strip(BLANKS)
    found = FLOAT.fullmatch(text)
    if found:
        return float(found[1])
    found = HEX_FLOAT.fullmatch(text)
    if found:
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf") if text[0] == "-" else float("inf")
    return SPECIAL.get(text.lower())


def to_decimal(text: str, type: SqlType) -> int | None:
    """Unscaled, HALF_UP to the type's scale; None if it has more digits than the type."""
    text = text.strip(BLANKS)
    found = NUMBER.fullmatch(text)
    if found is None or (found[1] and not -(2**31) < int(found[1]) < 2**31):
        return None
    return unscaled(Decimal(text), type)


def unscaled(value: Decimal, type: SqlType) -> int | None:
    """A finite decimal at the type's scale, HALF_UP; None if it has more digits than the type."""
    if value and value.adjusted() >= type.precision - type.scale:
        return None
    if not value or value.adjusted() < -type.scale - 1:
        return 0
    context = Context(prec=type.precision + 2, rounding=ROUND_HALF_UP, Emin=-(10**9), Emax=10**9)
    out = int(
        value.quantize(Decimal(1).scaleb(-type.scale), context=context).scaleb(type.scale, context=context)
    )
    return out if abs(out) < 10**type.precision else None


def to_boolean(text: str, type: SqlType) -> bool | None:
    return BOOLEANS.get(text.strip(BLANKS_AND_CONTROLS).lower())


# ---- times ----------------------------------------------------------------------------------------------------------

TIME = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(?![0-9])(.*))?)?)?)?)?",
    re.DOTALL,
)
OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")
SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""java.time.ZoneId.SHORT_IDS, as of Java 17."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; None if there is no such day."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if (
        not 1 <= month <= 12
        or not 1 <= day <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
    ):
        return None
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    return year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day - 1 - 719468


def date_of(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a number of days since 1970-01-01."""
    era, of_era = divmod(days + 719468, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    rest = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * rest + 2) // 153
    day = rest - (153 * month + 2) // 5 + 1
    return year + era * 400 + (month >= 10), month + 3 if month < 10 else month - 9, day


def offset_of(zone: str) -> int | None:
    """Microseconds east of UTC of "+1", "+01:30", "-0130" or "+01:30:15"; None for any other text."""
    zone = re.sub(r"^([+-][0-9]{2}):([0-9])$", r"\1:0\2", zone)
    found = OFFSET.fullmatch(zone)
    if found is None or (len(found[2]) == 1 and found[3] and ":" not in zone):
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    size = (hours * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or size > 18 * 3600:
        return None
    return (-size if found[1] == "-" else size) * 1_000_000


@lru_cache(maxsize=256)
def region_of(name: str) -> Any:
    """The named zone, or None. Needs the system's time zone database, as Spark needs Java's."""
    from zoneinfo import ZoneInfo

    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", name) or ".." in name:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def _to_utc(local: int, zone: str) -> int | None:
    """Microseconds UTC of a local time in the zone."""
    zone = SHORT_ZONES.get(zone, zone)
    if zone in ("", "Z", "UTC", "GMT", "UT"):
        return local
    if zone[0] in "+-":
        east = offset_of(zone)
        return None if east is None else local - east
    for prefix in ("UTC", "GMT", "UT"):
        if zone.startswith(prefix) and zone[len(prefix)] in "+-":
            return _to_utc(local, zone[len(prefix) :])
    region = region_of(zone)
    if region is None:
        return None
    try:
        naive = datetime(1970, 1, 1) + timedelta(microseconds=local)
        return (naive.replace(tzinfo=region) - EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        return None


def to_timestamp(text: str, type: SqlType) -> int | None:
    found = TIME.fullmatch(text.strip(BLANKS_AND_CONTROLS))
    if found is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = days_of(int(sign + year), int(month or 1), int(day or 1))
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if days is None or h > 23 or m > 59 or s > 59:
        return None
    micros = int((fraction or "")[:6].ljust(6, "0"))
    out = _to_utc(days * DAY_US + ((h * 60 + m) * 60 + s) * 1_000_000 + micros, (zone or "").strip(BLANKS))
    return out if out is not None and -(2**63) <= out < 2**63 else None


# ---- to text --------------------------------------------------------------------------------------------------------


def double_text(value: float) -> str:
    """As Java's Double.toString: decimal from 1e-3 up to 1e7, else one digit, a point and an exponent."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value) if "e" not in repr(value) else format(Decimal(repr(value)), "f")
    shortest = Decimal(repr(value))
    two_digits = Decimal(f"{value:.1e}")
    if len(shortest.as_tuple().digits) == 1 and float(two_digits) == value:
        shortest = two_digits  # Java prints at least two digits, and chooses the nearest such number
    sign, digits, _ = shortest.as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:].rstrip('0') or '0'}E{shortest.adjusted()}"


def timestamp_text(value: int) -> str:
    days, rest = divmod(value, DAY_US)
    year, month, day = date_of(days)
    seconds, micros = divmod(rest, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{'-' if year < 0 else '+'}{abs(year):04d}"
    return f"{shown}-{month:02d}-{day:02d} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


FROM_TEXT: dict[Kind, Callable[[str, SqlType], Any]] = {
    Kind.BOOLEAN: to_boolean,
    Kind.INT: to_integer,
    Kind.BIGINT: to_integer,
    Kind.DOUBLE: to_double,
    Kind.DECIMAL: to_decimal,
    Kind.TIMESTAMP: to_timestamp,
}

TRY_FROM_TEXT = {**FROM_TEXT, Kind.INT: try_integer, Kind.BIGINT: try_integer}

TO_TEXT: dict[Kind, Callable[[Any], str]] = {
    Kind.NULL: str,
    Kind.BOOLEAN: lambda value: "true" if value else "false",
    Kind.INT: str,
    Kind.BIGINT: str,
    Kind.DOUBLE: double_text,
    Kind.DECIMAL: str,
    Kind.TIMESTAMP: timestamp_text,
}
TRY_TO_TEXT = {**TO_TEXT, Kind.DECIMAL: lambda value: format(value, "f")}
"""try_cast never writes a decimal with an exponent."""
