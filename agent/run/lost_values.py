"""Values that did not convert to their column's type, counted by column: of one job in this process, for its closing lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class LostValues:
    """`totals`: by column. In memory only: an agent that restarts counts from its start. Windows count theirs in their lines."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()

    def add(self, lost: Mapping[tuple[str, int], int]) -> None:
        for (column, _), count in lost.items():
            self.totals[column] += count
