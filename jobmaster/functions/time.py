"""Functions of TIMESTAMP: int64 microseconds since 1970 UTC, the session's zone UTC, proleptic Gregorian calendar."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo

import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.functions.frame import Array, Build, Compile, Frame, Mask, Program, both, nulls, settle
from elf.jobmaster.functions.number import Checked, add, multiply, subtract
from elf.jobmaster.plan.plan import Call, Literal
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.values.zone_names import offset_at, zone

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
QUARTER_US = 15 * MINUTE_US
"""Zones change at such times; those that do not (before 1972) take a look for each line."""
THURSDAY = 4  # 1970-01-01, counting Sunday as 0

Micros = NDArray[np.int64]


def months(time: Micros) -> Micros:
    """Whole months since January 1970."""
    return (time // DAY_US).view("M8[D]").astype("M8[M]").view(np.int64)


def month_start(month: Micros) -> Micros:
    return month.view("M8[M]").astype("M8[D]").view(np.int64) * DAY_US


def day_of_month(time: Micros) -> Micros:
    return (time - month_start(months(time))) // DAY_US + 1


PARTS: dict[str, Callable[[Micros], Array]] = {
    "hour": lambda time: time % DAY_US // HOUR_US,
    "minute": lambda time: time % HOUR_US // MINUTE_US,
    "second": lambda time: time % MINUTE_US // SECOND_US,
    "dayofweek": lambda time: (time // DAY_US + THURSDAY) % 7 + 1,
    "day": day_of_month,
    "month": lambda time: months(time) % 12 + 1,
    "year": lambda time: months(time) // 12 + 1970,
    # Towards zero as in Spark, unlike the cast to BIGINT.
    "unix_timestamp": lambda time: (time - np.fmod(time, SECOND_US)) // SECOND_US,
}


def week_start(time: Micros) -> Micros:
    """Monday, 00:00."""
    day = time // DAY_US
    return (day - (day + THURSDAY - 1) % 7) * DAY_US


def _floor_to(unit: int) -> Callable[[Micros], Micros]:
    return lambda time: time - time % unit


def _months_to(unit: int) -> Callable[[Micros], Micros]:
    def run(time: Micros) -> Micros:
        month = months(time)
        return month_start(month - month % unit)

    return run


TRUNCATE: dict[str, Callable[[Micros], Micros]] = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), _months_to(12)),
    "QUARTER": _months_to(3),
    **dict.fromkeys(("MONTH", "MM", "MON"), _months_to(1)),
    "WEEK": week_start,
    **dict.fromkeys(("DAY", "DD"), _floor_to(DAY_US)),
    "HOUR": _floor_to(HOUR_US),
    "MINUTE": _floor_to(MINUTE_US),
    "SECOND": _floor_to(SECOND_US),
    "MILLISECOND": _floor_to(1000),
    "MICROSECOND": lambda time: time,
}


def _program(call: Call, inner: Program, function: Callable[[Micros], Array]) -> Program:
    def run(frame: Frame) -> Vector:
        a = inner(frame)
        return settle(frame, call.type, function(a.values), a.valid)

    return run


def part(call: Call, compile: Compile) -> Program:
    return _program(call, compile(call.arguments[0]), PARTS[call.function])


def date_trunc(call: Call, compile: Compile) -> Program:
    """An unknown unit is NULL, as in Spark."""
    unit = call.arguments[0]
    truncate = TRUNCATE.get(str(unit.value).upper()) if isinstance(unit, Literal) else None
    if truncate is None:
        value = nulls(call.type)
        return lambda frame: value
    return _program(call, compile(call.arguments[1]), truncate)


UNIT_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": SECOND_US,
    "MINUTE": MINUTE_US,
    "HOUR": HOUR_US,
    "DAY": DAY_US,
    "WEEK": 7 * DAY_US,
}
UNIT_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
MONTHS_MAX = 12 * 300_000
"""More months than a timestamp of 64 bits can move."""


def _unit(call: Call) -> str:
    unit = call.arguments[0]
    return str(unit.value) if isinstance(unit, Literal) else ""


def _month_moved(time: Micros, count: Micros) -> Checked:
    """The same day of another month at the same time, or that month's last day if it is shorter."""
    start = months(time)
    far = np.abs(count) > MONTHS_MAX
    month = start + np.where(far, 0, count)
    length = (month + 1).view("M8[M]").astype("M8[D]") - month.view("M8[M]").astype("M8[D]")
    day = np.minimum(day_of_month(time) - 1, length.view(np.int64) - 1)
    days = month.view("M8[M]").astype("M8[D]").view(np.int64) + day
    micros, lost = multiply(days, np.full(1, DAY_US))
    out, over = add(micros, time % DAY_US)
    return out, _any(_any(far, lost), over)


def _any(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a | b


def timestampadd(call: Call, compile: Compile) -> Program:
    """A time past the range of 64 bits is NULL and counted."""
    unit = _unit(call)
    amount, inner = compile(call.arguments[1]), compile(call.arguments[2])

    def run(frame: Frame) -> Vector:
        n, time = amount(frame), inner(frame)
        if unit in UNIT_MONTHS:
            count, lost = multiply(n.values, np.full(1, UNIT_MONTHS[unit]))
            stamps, counts = np.broadcast_arrays(time.values, count)
            out, over = _month_moved(stamps.copy(), counts.copy())
        else:
            count, lost = multiply(n.values, np.full(1, UNIT_US[unit]))
            out, over = add(time.values, count)
        return settle(frame, call.type, out, both(n.valid, time.valid), lost=_any(lost, over))

    return run


def _months_between(start: Micros, end: Micros) -> Micros:
    """Whole months, as `java.time`: an end at an earlier time of day than the start is one day less; then dates are compared."""
    first, last = start // DAY_US, end // DAY_US
    earlier, later = end % DAY_US < start % DAY_US, end % DAY_US > start % DAY_US
    last = last - ((last > first) & earlier) + ((last < first) & later)
    one, two = (months(day * DAY_US) * 32 + day_of_month(day * DAY_US) for day in (first, last))
    return _towards_zero(two - one, 32)


def _towards_zero(value: Micros, unit: int) -> Micros:
    return (value - np.fmod(value, unit)) // unit


def timestampdiff(call: Call, compile: Compile) -> Program:
    """Whole units from the first time to the second, towards zero."""
    unit = _unit(call)
    first, second = compile(call.arguments[1]), compile(call.arguments[2])

    def run(frame: Frame) -> Vector:
        a, b = first(frame), second(frame)
        start, end = (each.copy() for each in np.broadcast_arrays(a.values, b.values))
        lost = None
        if unit in UNIT_MONTHS:
            out = _towards_zero(_months_between(start, end), UNIT_MONTHS[unit])
        else:
            out, lost = subtract(end, start)
            out = _towards_zero(out, UNIT_US[unit])
        return settle(frame, call.type, out, both(a.valid, b.valid), lost=lost)

    return run


def offsets(place: tzinfo | int, times: Micros, *, is_local: bool) -> Micros:
    """Microseconds east of UTC at each time. One look at the zone's rules for each quarter of an hour that occurs."""
    if isinstance(place, int):
        return np.full(len(times), place, dtype=np.int64)

    def look(times: list[int]) -> Micros:
        return np.array([offset_at(place, time, is_local=is_local) for time in times], dtype=np.int64)

    quarters, back = np.unique(times // QUARTER_US, return_inverse=True)
    begin, end = look((quarters * QUARTER_US).tolist()), look(((quarters + 1) * QUARTER_US - 1).tolist())
    out: Micros = begin[back]
    changes = np.flatnonzero((begin != end)[back])
    out[changes] = look(times[changes].tolist())
    return out


def zone_moved(call: Call, compile: Compile) -> Program:
    """from_utc_timestamp and to_utc_timestamp: the local time of a zone as if it were UTC, and back."""
    name, is_local = call.arguments[1], call.function == "to_utc_timestamp"
    place = zone(str(name.value)) if isinstance(name, Literal) else None
    inner = compile(call.arguments[0])

    def run(frame: Frame) -> Vector:
        a = inner(frame)
        assert place is not None  # the table of functions refuses plans with other zones
        east = offsets(place, a.values, is_local=is_local)
        out, lost = (subtract if is_local else add)(a.values, east)
        return settle(frame, call.type, out, a.valid, lost=lost)

    return run


BUILD: dict[str, Build] = {
    **dict.fromkeys(PARTS, part),
    "date_trunc": date_trunc,
    "timestampadd": timestampadd,
    "timestampdiff": timestampdiff,
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), zone_moved),
}
