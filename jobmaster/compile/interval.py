"""`INTERVAL '5 minutes'`, which is added to a timestamp or taken from it, and the length of a window: Spark's interval texts."""

from __future__ import annotations

import re
from typing import NamedTuple

from elf.jobmaster.compile.types import Mismatch

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_MONTHS = {"month": 1, "year": 12}
UNITS = frozenset(name + end for name in (*_UNITS_US, *_MONTHS) for end in ("", "s"))
_PART = re.compile(r"\s*([+-]?)\s*(\d{1,18})(?:\.(\d{0,6}))?\s+([a-z]+)")
EXAMPLES = "write it like '10 seconds', '5 minutes' or '1 hour 30 minutes'"
_SHOWN = ("day", "hour", "minute", "second")
_FIELD = {"week": "day", "millisecond": "second", "microsecond": "second"}


class Interval(NamedTuple):
    """months and microseconds, one of them 0; the units that the text names."""

    months: int
    micros: int
    units: frozenset[str]


def read_interval(text: str) -> Interval:
    """A Spark interval text such as '1 minute 30 seconds' or '2 months'. Raises Mismatch."""
    rest = re.sub(r"^\s*interval\s", " ", text.lower())
    months, micros, at = 0, 0, 0
    units: set[str] = set()
    while rest[at:].strip():
        part = _PART.match(rest, at)
        if part is None:
            raise Mismatch(f"{text!r} is not an interval", EXAMPLES)
        sign, whole, digits, unit = part.groups()
        unit = unit.removesuffix("s")
        if unit not in _UNITS_US | _MONTHS or (digits is not None and unit != "second"):
            raise Mismatch(f"{text!r} is not an interval", EXAMPLES)
        factor = -1 if sign == "-" else 1
        months += factor * int(whole) * _MONTHS.get(unit, 0)
        micros += factor * (int(whole) * _UNITS_US.get(unit, 0) + int((digits or "").ljust(6, "0")))
        units.add(unit)
        at = part.end()
    if not at:
        raise Mismatch(f"{text!r} is not an interval", EXAMPLES)
    if units & set(_MONTHS) and units - set(_MONTHS):
        raise Mismatch(f"{text!r}: months and days in one interval are not supported", "add them one by one")
    if max(abs(months), abs(micros)) >= 2**63:
        raise Mismatch(f"{text!r} is too long")
    return Interval(months, micros, frozenset(units))


def parse_interval(text: str) -> int:
    """Microseconds of an interval without months. Raises Mismatch."""
    interval = read_interval(text)
    if interval.units & set(_MONTHS):
        raise Mismatch(f"{text!r}: months and years have no fixed length", "use days")
    return interval.micros


def shown(interval: Interval) -> str:
    """As Spark names it in a column: INTERVAL '05' MINUTE, INTERVAL '1 02' DAY TO HOUR."""
    months, micros, units = interval
    if units & set(_MONTHS):
        sign, years = "-" if months < 0 else "", abs(months) // 12
        if units == {"year"}:
            return f"INTERVAL '{sign}{years}' YEAR"
        if units == {"month"}:
            return f"INTERVAL '{months}' MONTH"
        return f"INTERVAL '{sign}{years}-{abs(months) % 12}' YEAR TO MONTH"
    found = sorted(_SHOWN.index(_FIELD.get(unit, unit)) for unit in units)
    first, last = found[0], found[-1]
    out, rest = "", abs(micros)
    for at in range(first, last + 1):
        value, rest = divmod(rest, _UNITS_US[_SHOWN[at]])
        before = "" if at == first else " " if at == 1 else ":"
        out += before + (f"{value:02d}" if at else str(value))
    if last == 3 and rest:
        out += f".{rest:06d}".rstrip("0")
    names = _SHOWN[first].upper() + (f" TO {_SHOWN[last].upper()}" if last > first else "")
    return f"INTERVAL '{'-' if micros < 0 else ''}{out}' {names}"
