"""Values that did not convert to their column's type, counted by column and pane, for the windows of one job on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from elf.jobmaster.windows.result import Window

PANES_MAX = 10_000
"""Counts kept, by column and pane, some 2 MB; then the oldest panes are dropped."""


class LostValues:
    """`totals`: by column. In memory only: an agent that restarts counts from its start."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._panes: dict[tuple[str, int], int] = {}

    def add(self, lost: Mapping[tuple[str, int], int]) -> None:
        for (column, pane), count in lost.items():
            self.totals[column] += count
            self._panes[column, pane] = self._panes.get((column, pane), 0) + count
        if len(self._panes) > PANES_MAX:
            newest = sorted(self._panes, key=lambda key: key[1])[-PANES_MAX // 2 :]
            self._panes = {key: self._panes[key] for key in newest}

    def noted(self, window: Window) -> Window:
        """The window with the counts of its panes. O(panes kept) if any."""
        if not self._panes:
            return window
        start, end = window.start, window.end
        lost: Counter[str] = Counter()
        for (column, pane), count in self._panes.items():
            if start is None or end is None or start <= pane < end:
                lost[column] += count
        return replace(window, not_converted=dict(lost)) if lost else window
