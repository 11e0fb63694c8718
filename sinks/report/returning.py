"""New and returning visitors by week, from a job's sets of clients (`approx_set(client_ip)`) of each day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.stored import Stored
from elf.sinks.lake.theta import Hashes, common, estimate, united
from elf.sinks.report.calendar import local
from elf.sinks.report.rows import Section

NAME = "returning"
CLIENT = "client_ip"
NEEDED = f"approx_set({CLIENT}), without WHERE, in windows that days consist of"
_COLUMNS = {
    "week": "string",
    "visitors": "bigint",
    "returning": "bigint",
    "new": "bigint",
    "returning_percent": "decimal(5,1)",
}


def set_column(stored: Stored) -> str | None:
    """The state column with the sets of all clients, or None."""
    if stored.recipe["filtered"]:
        return None
    for aggregate in stored.recipe["aggregates"]:
        if (aggregate["function"], aggregate["input"]) == ("approx_set", CLIENT) and not aggregate[
            "filtered"
        ]:
            return str(aggregate["columns"][0])
    return None


def by_week(days: Mapping[int, Hashes], zone: str, note: str) -> Section:
    """A row for each week that has a visitor. days: the set of each day, by its begin in the zone, in microseconds.

    A visitor returns who was there in an earlier week of the lake; all others are new. Estimates above some thousand, so the two
    may differ from the number of visitors by their errors.
    """
    weeks: dict[Any, list[Hashes]] = {}
    for at, hashes in sorted(days.items()):
        day = local(at, ZoneInfo(zone)).date()
        weeks.setdefault(day - timedelta(days=day.weekday()), []).append(hashes)
    before, rows = np.empty(0, np.int64), []
    for week, sets in weeks.items():
        of_week = united(*sets)
        visitors, returning = estimate(of_week), common(of_week, before)
        share = (
            (Decimal(100 * returning) / visitors).quantize(Decimal("0.1"), ROUND_HALF_UP)
            if visitors
            else None
        )
        rows.append((f"{week}", visitors, returning, max(0, visitors - returning), share))
        before = united(before, of_week)
    columns = tuple(ColumnInfo(name, kind) for name, kind in _COLUMNS.items())
    about = "Weeks begin on Monday. Returning: seen in an earlier week of the lake."
    return Section(NAME, "New and returning visitors by week", columns, rows, note=f"{about} {note}")
