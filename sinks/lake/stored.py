"""One version of a job in a lake, as reports know it: from the names of its folders and the metadata of its newest file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import msgspec

from elf.jobmaster.values.zones import DAY_US
from elf.sinks.lake.every import Every, Span

EPOCH_DAY = date(1970, 1, 1).toordinal()


class Stored(msgspec.Struct, frozen=True):
    """One version of a job in the lake. columns: [{name, type, role, stored}]. recipe, plan: from the metadata of its files.
    span: the days of its folders. bounds: only the panes that begin in [since, until) are asked for, in microseconds; None for
    no bound."""

    job: str
    version: str
    folder: str
    newest: str  # its last day and the end of its last pane, by which versions are ordered
    columns: list[dict[str, str]]
    recipe: dict[str, Any]
    span: Span = (0, 0)
    plan: str = ""
    bounds: tuple[int | None, int | None] = (None, None)

    @property
    def keys(self) -> list[dict[str, str]]:
        return [column for column in self.columns if column["role"] == "key"]

    @property
    def states(self) -> list[dict[str, str]]:
        return [column for column in self.columns if column["role"] != "key"]

    @property
    def pane_us(self) -> int | None:
        found: int | None = self.recipe["pane_us"]
        return found

    def misfit(self, every: Every) -> str | None:
        """Why such windows do not consist of whole panes of this version; None if they do."""
        if self.pane_us is None:
            return "its query has no windows to merge into longer ones"
        return every.misfit(self.pane_us, self.span)


def days_span(folders: Iterable[str], pane_us: int | None) -> Span:
    """From the first day of these folders to the end of the last pane that may be in them."""
    names = [folder.rpartition("/date=")[2] for folder in folders]
    days = [date(*map(int, name.split("-"))).toordinal() for name in names if name[0].isdigit()]
    if pane_us is None or not days:
        return (0, 0)
    first, last = ((day - EPOCH_DAY) * DAY_US for day in (min(days), max(days)))
    return first, last + DAY_US + pane_us
