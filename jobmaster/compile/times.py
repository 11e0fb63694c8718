"""The builders of functions of time, and `time + INTERVAL '…'`."""

from __future__ import annotations

from collections.abc import Sequence

from elf.jobmaster.compile import types
from elf.jobmaster.compile.constants import Build, text
from elf.jobmaster.compile.interval import Interval
from elf.jobmaster.compile.types import Mismatch, call, cast
from elf.jobmaster.plan import signatures
from elf.jobmaster.plan.plan import Expression, Literal
from elf.jobmaster.values import date_pattern, zone_names
from elf.jobmaster.values.sql_types import BIGINT, INT, STRING, TIMESTAMP, Kind

_UNITS = {
    "YYYY": "YEAR",
    "YY": "YEAR",
    "MON": "MONTH",
    "MM": "MONTH",
    "DD": "DAY",
    **{unit: unit for unit in signatures.UNITS},
}
OF_UNIT = frozenset({"timestampadd", "timestampdiff", "dateadd", "datediff"})
"""Functions whose first of three arguments is the bare name of a unit."""


def unit_named(name: str) -> Literal:
    """MINUTE as the plan's constant. Raises Mismatch."""
    unit = "DAY" if name.upper() == "DAYOFYEAR" else name.upper()
    if unit not in signatures.UNITS:
        raise Mismatch(f"{name!r} is not a unit of time", "one of " + ", ".join(signatures.UNITS))
    return Literal(unit, STRING)


def _date_trunc(operands: Sequence[Expression]) -> Expression:
    unit = str(text(operands[0], "unit").value)
    if unit.upper() not in _UNITS:
        raise Mismatch(f"{unit!r} is not a unit of time", "one of " + ", ".join(signatures.UNITS))
    return call("date_trunc", Literal(_UNITS[unit.upper()], STRING), types.timestamp(operands[1]))


def _of_time(function: str) -> Build:
    return lambda operands: call(function, types.timestamp(operands[0]))


def _only_timestamp(name: str, operand: Expression) -> Expression:
    """Spark reads other texts here than a cast does: a text must be cast."""
    if operand.type == STRING:
        raise Mismatch(f"{name} takes a timestamp here", f"{name}(CAST(x AS TIMESTAMP))")
    return types.timestamp(operand)


def _unix_timestamp(operands: Sequence[Expression]) -> Expression:
    return call("unix_timestamp", _only_timestamp("unix_timestamp", operands[0]))


def _to_date(operands: Sequence[Expression]) -> Expression:
    return call("date_trunc", Literal("DAY", STRING), _only_timestamp("to_date", operands[0]))


def _date_format(operands: Sequence[Expression]) -> Expression:
    pattern = text(operands[1], "pattern")
    wrong = date_pattern.problem(str(pattern.value))
    if wrong or len(str(pattern.value)) > signatures.PATTERN_CHARS_MAX:
        reason = f"the pattern {pattern.value!r} cannot be used: {wrong or 'it is too long'}"
        raise Mismatch(reason, "as in 'yyyy-MM-dd HH:mm:ss'")
    return call("date_format", types.timestamp(operands[0]), pattern)


def _from_unixtime(operands: Sequence[Expression]) -> Expression:
    pattern = operands[1] if len(operands) == 2 else Literal("yyyy-MM-dd HH:mm:ss", STRING)
    seconds = cast(types.typed(operands[0], BIGINT), BIGINT)
    epoch = Literal(0, TIMESTAMP)
    return _date_format([call("timestampadd", Literal("SECOND", STRING), seconds, epoch), pattern])


def _zone_moved(function: str) -> Build:
    def build(operands: Sequence[Expression]) -> Expression:
        name = text(operands[1], "time zone")
        if zone_names.zone(str(name.value)) is None:
            hint = "write it like 'Europe/Berlin' or '+02:00'"
            raise Mismatch(f"there is no time zone {name.value!r}", hint)
        return call(function, types.timestamp(operands[0]), name)

    return build


def _timestampadd(operands: Sequence[Expression]) -> Expression:
    unit, count, time = operands
    count = types.typed(count, BIGINT)
    if not count.type.is_integer and count.type.kind is not Kind.NULL:
        raise Mismatch(f"a whole number of units is expected, not a {count.type}", "CAST(x AS BIGINT)")
    return call("timestampadd", unit, cast(count, BIGINT), types.timestamp(time))


def _timestampdiff(operands: Sequence[Expression]) -> Expression:
    return call("timestampdiff", operands[0], *map(types.timestamp, operands[1:]))


def _datediff(operands: Sequence[Expression]) -> Expression:
    """With a unit as timestampdiff; else the days from the second date to the first."""
    if len(operands) == 3:
        return _timestampdiff(operands)
    end, start = (_to_date([operand]) for operand in operands)
    return cast(_timestampdiff([Literal("DAY", STRING), start, end]), INT)


def moved(time: Expression, interval: Interval, function: str) -> Expression:
    """`time + INTERVAL` or `time - INTERVAL`. Raises Mismatch."""
    time = types.typed(time, TIMESTAMP)
    if time.type != TIMESTAMP and time.type.kind is not Kind.NULL:
        hint = "CAST(x AS TIMESTAMP)" if time.type == STRING else "an interval is added to a timestamp"
        raise Mismatch(f"an interval cannot be added to a {time.type}", hint)
    unit = "MONTH" if interval.months else "MICROSECOND"
    count = (interval.months or interval.micros) * (1 if function == "+" else -1)
    return call("timestampadd", Literal(unit, STRING), Literal(count, BIGINT), cast(time, TIMESTAMP))


BUILD: dict[str, Build] = {
    "date_trunc": _date_trunc,
    **{name: _of_time(name) for name in ("hour", "minute", "second", "dayofweek", "day", "month", "year")},
    "dayofmonth": _of_time("day"),
    "unix_timestamp": _unix_timestamp,
    "to_date": _to_date,
    "to_timestamp": lambda operands: cast(operands[0], TIMESTAMP),
    "date_format": _date_format,
    "from_unixtime": _from_unixtime,
    **{name: _zone_moved(name) for name in ("from_utc_timestamp", "to_utc_timestamp")},
    **dict.fromkeys(("timestampadd", "dateadd"), _timestampadd),
    "timestampdiff": _timestampdiff,
    "datediff": _datediff,
}
