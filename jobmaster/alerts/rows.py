"""For which rows of a window the conditions of alerts hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.jobmaster.alerts.alert import Alert, keys_of, problem
from elf.jobmaster.alerts.book import INSTANCES_MAX, MEMBERS_MAX, Hit, Keys
from elf.jobmaster.alerts.template import VALUE_CHARS_MAX, of_row, shown
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values._text import intern
from elf.jobmaster.values.columns import CHUNK_ROWS, CellColumn, in_columns
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

ROWS_MAX = 200_000
"""Rows of a window that are judged: a condition over text takes some 0.1 s for so many, on the loop of the node. A window with
more counts as not complete."""

Found = tuple[dict[str, tuple[Hit, ...]], dict[str, int]]


class RowJudge:
    """Judges rows of results of one version's query. problems: of alerts that do not fit it, by name; they hold nowhere."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._cache = plan, Cache()
        self._names = [output.name for output in plan.select]
        self._types = [str(output.type) for output in plan.select]
        self._keys = keys_of(plan)

    def fits(self, alert: Alert) -> bool:
        return not problem(alert, self._plan)

    def hits(self, alerts: Sequence[Alert], rows: Sequence[tuple[Any, ...]]) -> Found:
        """The instances of each alert for which it holds, those of the first rows, and how many rows more. O(rows)."""
        hits: dict[str, tuple[Hit, ...]] = {}
        left_out: dict[str, int] = {}
        for alert in alerts:
            if alert.by and self.fits(alert):
                hits[alert.name], left_out[alert.name] = self._present(alert, rows[:ROWS_MAX])
            plan = alert.plan
            if plan is None or not self.fits(alert):
                continue
            chosen = self._holding(plan, rows[:ROWS_MAX])
            found: dict[Keys, Hit] = {}
            for at in chosen:
                row = rows[at]
                keys = self._key_texts(row)
                if keys not in found and len(found) < INSTANCES_MAX:
                    found[keys] = Hit(keys, of_row(alert.text, self._names, row, self._types))
                elif keys not in found:
                    left_out[alert.name] = left_out.get(alert.name, 0) + 1
            hits[alert.name] = tuple(found.values())
        return hits, left_out

    def _present(self, alert: Alert, rows: Sequence[tuple[Any, ...]]) -> tuple[tuple[Hit, ...], int]:
        """The values of the alert's columns that have rows, those of the first rows, and how many values more. O(rows)."""
        places = [self._names.index(name) for name in alert.by]
        found: dict[Keys, Hit] = {}
        for values in dict.fromkeys(tuple(row[at] for at in places) for row in rows):
            shown_keys = tuple(
                (name, _key_text(value, self._types[at]))
                for name, value, at in zip(alert.by, values, places, strict=True)
                if value is not None
            )
            types = [self._types[at] for at in places]
            found.setdefault(shown_keys, Hit(shown_keys, of_row(alert.text, list(alert.by), values, types)))
        return tuple(found.values())[:MEMBERS_MAX], max(0, len(found) - MEMBERS_MAX)

    def _holding(self, plan: RowPlan, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        """The indices of the rows for which a condition holds."""
        found: list[int] = []
        at = 0
        for cells in self._pieces(rows):
            count = len(cells[0])
            self._cache.clear()
            columns = {
                column.name: _vector(column.type, cells[self._names.index(column.name)])
                for column in plan.columns
            }
            assert plan.where is not None
            truth = evaluate(plan.where, columns, count, self._cache)
            holds: NDArray[np.bool_] = truth.values if truth.valid is None else truth.values & truth.valid
            found += (at + np.flatnonzero(np.broadcast_to(holds, count))).tolist()
            at += count
        return found

    def _pieces(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[CellColumn]]:
        return in_columns(rows, self._types) if len(rows) else iter(())

    def _key_texts(self, row: tuple[Any, ...]) -> Keys:
        return tuple(
            (self._names[at], _key_text(row[at], self._types[at])) for at in self._keys if row[at] is not None
        )


def _key_text(value: Any, type: str) -> str:
    """A long text is cut, and has a hash of all of it, so that two keys stay two."""
    if not isinstance(value, str) or len(value) <= VALUE_CHARS_MAX:
        return shown(value, type)
    name = blake2b(value.encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return f"{shown(value[: VALUE_CHARS_MAX - 10], type)}…{name}"


def _vector(type: SqlType, cells: CellColumn) -> Vector:
    """A column of results as functions read it."""
    if type.kind is Kind.STRING:
        strings = Strings()
        return Vector(type, intern(strings, cells.to_python()), None, strings)
    return Vector(type, cells.values, cells.valid)


assert ROWS_MAX > CHUNK_ROWS
