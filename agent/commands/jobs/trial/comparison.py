"""Compares the windows of a job with those of its trial: final windows of the same times, row by row. Pure.

Rows are joined by the group keys of the two queries, by their names. If the queries have different keys, or do not select all of
them, no row is joined: all rows of one stand before all rows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import isnan
from typing import Any, NamedTuple

from elf.jobmaster.plan.plan import Column, Plan
from elf.jobmaster.windows.result import Window

WAITING_MAX = 64
"""Windows of each side that are kept for the other side's, or for a revision: at most 64 MiB each, usually some KiB."""

Number = int | float | Decimal
Values = Mapping[str, Any]


class Sides(NamedTuple):
    """now: the present version's. tried: the trial's."""

    now: Any
    tried: Any


class Row(NamedTuple):
    """keys: of the group. now, tried: its other values; None if that side has no such row. difference: column -> the trial's
    value less the present one, of numbers that both have."""

    keys: Values
    now: Values | None
    tried: Values | None
    difference: Mapping[str, Number]


class Compared(NamedTuple):
    """windows: the two of these times. keys, columns: names of all their columns, and their types."""

    windows: Sides
    keys: Mapping[str, str]
    columns: Mapping[str, str]
    rows: Sequence[Row]


class Shape:
    """The places of a query's columns in its rows. Columns that are the window itself are left out."""

    def __init__(self, plan: Plan) -> None:
        places = {
            at: output.expression.name if isinstance(output.expression, Column) else ""
            for at, output in enumerate(plan.select)
        }
        types = {at: (output.name, str(output.type)) for at, output in enumerate(plan.select)}
        self.keys = {types[at]: at for at, name in places.items() if name.startswith("#k")}
        self.columns = {
            types[at]: at for at, name in places.items() if not name.startswith(("#k", "#window"))
        }
        self.selects_keys = len(self.keys) == len(plan.keys)

    def split(self, row: Sequence[Any]) -> tuple[Values, Values]:
        """A row's keys and its other values."""
        keys = {name: row[at] for (name, _), at in self.keys.items()}
        return keys, {name: row[at] for (name, _), at in self.columns.items()}


class Comparison:
    """Takes windows of both sides, in any order. Memory: `WAITING_MAX` windows of each side."""

    def __init__(self, now: Plan, tried: Plan) -> None:
        self._shapes = Sides(Shape(now), Shape(tried))
        self._windows: Sides = Sides({}, {})

    def take(self, side: int, window: Window) -> Compared | None:
        """A window of side 0 (now) or 1 (the trial). Returns both, once they are final; again if one is revised."""
        if window.status == "open" or window.start is None:
            return None
        kept: dict[tuple[int, int | None], Window] = self._windows[side]
        key = window.start, window.end
        kept.pop(key, None)
        if window.status == "withdrawn":
            return None
        kept[key] = window
        if len(kept) > WAITING_MAX:
            del kept[next(iter(kept))]
        now, tried = (windows.get(key) for windows in self._windows)
        return self._compared(now, tried) if now is not None and tried is not None else None

    def _compared(self, now: Window, tried: Window) -> Compared:
        one, other = self._shapes
        keys, columns = dict([*one.keys, *other.keys]), dict([*one.columns, *other.columns])
        return Compared(Sides(now, tried), keys, columns, list(self._rows(now, tried)))

    def _rows(self, now: Window, tried: Window) -> Iterator[Row]:
        one = [self._shapes.now.split(row) for row in now.rows]
        other = [self._shapes.tried.split(row) for row in tried.rows]
        if not self._are_joinable:
            yield from (Row(keys, values, None, {}) for keys, values in one)
            yield from (Row(keys, None, values, {}) for keys, values in other)
            return
        left = {_identity(keys): values for keys, values in other}
        for keys, values in one:
            theirs = left.pop(_identity(keys), None)
            yield Row(keys, values, theirs, _difference(values, theirs or {}))
        yield from (
            Row(keys, None, left[_identity(keys)], {}) for keys, _ in other if _identity(keys) in left
        )

    @property
    def _are_joinable(self) -> bool:
        one, other = self._shapes
        names = {name for name, _ in one.keys}, {name for name, _ in other.keys}
        return names[0] == names[1] and one.selects_keys and other.selects_keys


def _identity(keys: Values) -> tuple[Any, ...]:
    """Equal for equal groups. NaN, which is not equal to itself, is one group."""
    return tuple(
        "NaN" if isinstance(value, float) and isnan(value) else value for _, value in sorted(keys.items())
    )


def _difference(now: Values, tried: Values) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for name in now.keys() & tried.keys():
        one, other = now[name], tried[name]
        if _is_number(one) and _is_number(other):
            if isinstance(one, float) or isinstance(other, float):
                one, other = float(one), float(other)
            found[name] = other - one
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)
