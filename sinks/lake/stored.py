"""One version of a job in a lake, as reports know it: from the names of its folders and the metadata of its newest file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from elf.jobmaster.values.zones import DAY_US
from elf.sinks.lake.every import Every, Span, words

EPOCH_DAY = date(1970, 1, 1).toordinal()

Longer = tuple[int, int, int]
"""Days from and until (microseconds UTC) whose panes were merged into panes of that length."""


class Stored(msgspec.Struct, frozen=True):
    """One version of a job in the lake. columns: [{name, type, role, stored}]. recipe, plan: from the metadata of its files.
    span: the days of its folders. bounds: only the panes that begin in [since, until) are asked for, in microseconds; None for
    no bound. longer: its days whose panes are longer than the query's, in order."""

    job: str
    version: str
    folder: str
    newest: str  # its last day and the end of its last pane, by which versions are ordered
    columns: list[dict[str, str]]
    recipe: dict[str, Any]
    span: Span = (0, 0)
    plan: str = ""
    bounds: tuple[int | None, int | None] = (None, None)
    longer: tuple[Longer, ...] = ()

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

    @property
    def slides(self) -> bool:
        """Whether a pane is in several of its windows."""
        window = self.recipe["window"]
        return bool(window) and window["slide_us"] != window["size_us"]

    def misfit(self, every: Every) -> str | None:
        """Why such windows do not consist of whole panes of this version; None if they do."""
        if self.pane_us is None:
            return "its query has no windows to merge into longer ones"
        if (reason := every.misfit(self.pane_us, self.span)) is not None:
            return reason
        for since, until, pane_us in self._asked_longer():
            if (reason := every.misfit(pane_us, (since, until))) is not None:
                return f"{reason.partition(';')[0]} {self._of_longer(pane_us)}"
        return None

    def own_misfit(self) -> str | None:
        """Why some of the query's own windows are not stored any more; None if all are."""
        longest = max((pane_us for _, _, pane_us in self._asked_longer()), default=None)
        if longest is None:
            return None
        return f"its own windows are not stored any more {self._of_longer(longest)}"

    def _asked_longer(self) -> list[Longer]:
        since, until = self.bounds
        return [
            each
            for each in self.longer
            if (since is None or since < each[1]) and (until is None or until > each[0])
        ]

    def _of_longer(self, pane_us: int) -> str:
        """Since when the panes are shorter than that."""
        last = max(until for _, until, length in self._asked_longer() if length >= pane_us)
        day = f"{datetime.fromtimestamp(last // 1_000_000, UTC):%Y-%m-%d}"
        return f"before {day}, where they were merged into windows of {words(pane_us)}; give --since {day}"


def longer_days(lengths: Iterable[tuple[str, int]], own_us: int | None) -> tuple[Longer, ...]:
    """Of (day folder, length of its panes) those that are longer than the query's: days in a row as one."""
    found: list[Longer] = []
    for folder, pane_us in sorted(lengths):
        name = folder.rpartition("date=")[2]
        if own_us is None or pane_us <= own_us or not name[:1].isdigit():
            continue
        since = (date.fromisoformat(name).toordinal() - EPOCH_DAY) * DAY_US
        if found and found[-1][1:] == (since, pane_us):
            found[-1] = (found[-1][0], since + DAY_US, pane_us)
        else:
            found.append((since, since + DAY_US, pane_us))
    return tuple(found)


def days_span(folders: Iterable[str], pane_us: int | None) -> Span:
    """From the first day of these folders to the end of the last pane that may be in them."""
    names = [folder.rpartition("/date=")[2] for folder in folders]
    days = [date(*map(int, name.split("-"))).toordinal() for name in names if name[0].isdigit()]
    if pane_us is None or not days:
        return (0, 0)
    first, last = ((day - EPOCH_DAY) * DAY_US for day in (min(days), max(days)))
    return first, last + DAY_US + pane_us
