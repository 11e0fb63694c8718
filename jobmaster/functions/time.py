"""Functions of TIMESTAMP: int64 microseconds since 1970 UTC, the session's zone UTC, proleptic Gregorian calendar."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.functions.frame import Array, Build, Compile, Frame, Program, nulls, settle
from elf.jobmaster.plan.plan import Call, Literal
from elf.jobmaster.values.vector import Vector

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
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


BUILD: dict[str, Build] = {**dict.fromkeys(PARTS, part), "date_trunc": date_trunc}
