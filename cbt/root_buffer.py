"""The root's buffer of a tree: inserted runs, uncompressed, until they are moved into the nodes.

All memory is charged to the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from elf.cbt._kernel import first_disorder, merge
from elf.cbt.budget import Budget
from elf.cbt.nodes import LOWEST, Bound, between, cut, quantiles
from elf.cbt.rows import Op, Rows

READ_RUNS_MAX, READ_BYTES = 8, 8 << 10
"""With more runs than this of so few bytes each, a read merges them first."""
RUNS_MAX = 48
"""With more runs than this, the smaller ones are merged: this bounds the fan-in of every merge."""


class RootBuffer:
    """`runs`: each is ordered and folded; any two may share keys. `nbytes`: the size of their rows."""

    __slots__ = ("_budget", "_ops", "nbytes", "runs")

    def __init__(self, ops: Sequence[Op], budget: Budget) -> None:
        self._ops, self._budget = ops, budget
        self.runs: list[Rows] = []
        self.nbytes = 0

    def add(self, run: Rows) -> None:
        """O(1)."""
        self.runs.append(run)
        self._count(run.nbytes)

    def replace(self, runs: Sequence[Rows]) -> None:
        """Replace the present runs by these."""
        self.runs = [run for run in runs if len(run)]
        self._count(sum(run.nbytes for run in self.runs) - self.nbytes)

    def _count(self, more: int) -> None:
        self.nbytes += more
        self._budget.charge(more)

    def merge_all(self) -> None:
        """Merge all runs into one."""
        with self._budget.scratch(self.nbytes):
            self.replace([merge(self.runs, self._ops)])

    def merge_small(self) -> None:
        """If there are more than `RUNS_MAX` runs, merge the smaller three quarters: so a row is merged O(log) times."""
        if len(self.runs) <= RUNS_MAX:
            return
        self.runs.sort(key=len)
        few = len(self.runs) * 3 // 4
        with self._budget.scratch(sum(run.nbytes for run in self.runs[:few])):
            merged = merge(self.runs[:few], self._ops)
        self.replace([*self.runs[few:], merged])

    def merge_read(self) -> None:
        """Before a read: merge small runs if they are many, so that the next reads of a window that grows find one. A run that
        has grown is left alone, so a row is merged a bounded number of times."""
        small = [run for run in self.runs if run.nbytes <= READ_BYTES]
        if len(small) > READ_RUNS_MAX:
            large = [run for run in self.runs if run.nbytes > READ_BYTES]
            with self._budget.scratch(sum(run.nbytes for run in small)):
                merged = merge(small, self._ops)
            self.replace([*large, merged])

    def fraction_left(self) -> float:
        """The fraction of the rows that merging would leave, estimated from a sixteenth of their keys."""
        bounds = quantiles(self.runs, 16)
        if len(bounds) < 2:
            return 0.0
        middle = len(bounds) // 2
        sample = [cut(run, bounds[middle - 1], bounds[middle]) for run in self.runs]
        return len(merge(sample, self._ops)) / (sum(len(part) for part in sample) or 1)

    def bytes_below(self, high: Bound) -> int:
        """About the size of the rows below `high`. O(runs)."""
        return sum(run.nbytes * between(run, LOWEST, high)[1] // len(run) for run in self.runs)

    def take(self, low: Bound, high: Bound | None) -> list[Rows]:
        """Remove the rows in [low, high)."""
        inside, outside = [], []
        for run in self.runs:
            start, stop = between(run, low, high)
            if start == stop:
                outside.append(run)
            else:
                inside.append(run.slice(start, stop))
                outside += [run.slice(0, start).copy(), run.slice(stop, len(run)).copy()]
        self.replace(outside)
        return inside

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self.nbytes == sum(run.nbytes for run in self.runs)
        assert len(self.runs) <= RUNS_MAX + 1
        for run in self.runs:
            assert first_disorder(run) == len(run)
