"""Rows of one job from parsed lines: a line belongs to the version of the schedule that is in force at its event time.

A rejected line gets the time of the parsed line before it in its file; without one it has no time and is counted outside of all
windows. So rows depend on the lines alone, and not on where reading was cut.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.batch import Batch
from elf.agent.formats.own_keys import typed_name
from elf.agent.work.feed import complete, without_untimed
from elf.agent.work.gathered import Gathered
from elf.agent.work.parsers import between
from elf.agent.work.unparsed import LINES_MIN
from elf.agent.work.worker import Worker
from elf.cbt.rows import Op
from elf.jobmaster.log.schedule import AFTER_ALL, plan_of
from elf.jobmaster.plan.plan import Column, Plan
from elf.jobmaster.windows.lanes import LINE_OPS, family_ops, group_ops
from elf.srt.messages.messages import Micros, Schedule
from elf.srt.messages.partial import Part, merge_parts

NEVER_US = -(1 << 62)


class Before(msgspec.Struct, frozen=True):
    """The state of a file before a block. last_time: of its last parsed line. unread: lines rejected since then."""

    last_time: Micros | None = None
    unread: int = 0


class Unread:
    """Finds periods in which lines were written and none was parsed.

    Such a period has `LINES_MIN` or more rejected lines between two parsed lines, the second of which is later than all before.
    """

    __slots__ = ("_count", "_highest")

    def __init__(self) -> None:
        self._count, self._highest = -1, NEVER_US

    def take(self, batch: Batch, before: Before, too_long: int) -> list[tuple[Micros, Micros]]:
        """Take the next block. Returns the periods that end in it, (from, until). before: used only for the first block.
        O(rows) if lines were rejected."""
        if self._count < 0:
            self._count = before.unread
            self._highest = NEVER_US if before.last_time is None else before.last_time
        self._count += too_long
        if not batch.rows:
            self._count += len(batch.reject_rows)
            return []
        times: NDArray[np.int64] = batch.columns["time"].values
        known = self._highest
        self._highest = max(known, int(times.max()))
        if not self._count and not len(batch.reject_rows):
            return []
        highest = np.maximum(np.maximum.accumulate(times), known)
        former = np.r_[known, highest[:-1]]
        rises = np.flatnonzero(highest > former)
        counts = np.bincount(np.searchsorted(rises, batch.reject_rows), minlength=len(rises) + 1)
        counts[0] += self._count
        self._count = int(counts[-1])
        return [(int(former[at]), int(highest[at])) for at in rises[counts[:-1] >= LINES_MIN].tolist()]


def ops_of(plan: Plan) -> tuple[tuple[Op, ...], ...]:
    """The operations of each tree of the plan."""
    return (group_ops(plan), LINE_OPS, *(family_ops(family) for family in plan.families))


class JobRows:
    """Rows since the last cut, by version, of lines at or past `since_us`: earlier ones are in no retained pane.

    A query without a window retains its pane for ever. It leaves out earlier lines only of files that its log does not know,
    as it may have counted and forgotten them. No line of a known file was counted from its position on.
    """

    def __init__(self, schedule: Schedule, since_us: Micros) -> None:
        self.schedule, self.since_us = schedule, since_us
        self.untimed = 0
        """Rejected lines without a time, since the last cut."""
        self._workers = {line.version: Worker(plan_of(line.plan)) for line in schedule}
        self._ops = {version: ops_of(worker.plan) for version, worker in self._workers.items()}
        self._settled: list[dict[str, Part]] = []
        stops = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
        self._reach = [
            (line.from_us, stop, self._workers[line.version])
            for line, stop in zip(schedule, stops, strict=True)
        ]
        names = {"time"}.union(*((each.name, typed_name(each.name, each.type)) for each in self.columns))
        self._gathered, self._is_known = Gathered(names), False
        # Memory that a cut empties, of fronts and settled rows; and that with the workers' caches. Both are kept: a source looks
        # at those of all its jobs at each read.
        self.uncut_bytes = self.nbytes = 0
        self._measure()

    @property
    def columns(self) -> frozenset[Column]:
        """The columns that the parser must fill, besides `time`."""
        return frozenset(column for worker in self._workers.values() for column in worker.plan.columns)

    def _measure(self) -> None:
        settled = sum(part.nbytes for parts in self._settled for part in parts.values())
        settled += self._gathered.nbytes
        self.uncut_bytes = settled + sum(worker.uncut_bytes for worker in self._workers.values())
        self.nbytes = settled + sum(worker.nbytes for worker in self._workers.values())

    def add(self, batch: Batch, before: Before, too_long: int, is_known: bool = False) -> None:
        """Take a block's lines; `too_long` lines before it were skipped. is_known: the job's log knows the file. Few lines wait
        for others (`gathered`). O(rows)."""
        if too_long or is_known != self._is_known or not self._gather(batch, before):
            self.flush()
            self._is_known = is_known
            if too_long or not self._gather(batch, before):
                self._add(batch, before, too_long, is_known)

    def _gather(self, batch: Batch, before: Before) -> bool:
        known = self._gathered.nbytes
        is_gathered = self._gathered.add(batch, before.last_time)
        self.uncut_bytes += self._gathered.nbytes - known
        self.nbytes += self._gathered.nbytes - known
        return is_gathered

    def flush(self) -> None:
        """Reduce what waits. O(rows)."""
        if self._gathered:
            before = Before(self._gathered.first_before)
            self._add(self._gathered.take(), before, 0, self._is_known)

    def _add(self, batch: Batch, before: Before, too_long: int, is_known: bool) -> None:
        if before.last_time is None:
            self.untimed += too_long + int(np.count_nonzero(batch.reject_rows == 0))
            too_long, batch = 0, without_untimed(batch)
        if not batch.rows and before.last_time is None:
            return
        times = batch.columns["time"].values if batch.rows else np.empty(0, dtype=np.int64)
        first = before.last_time if before.last_time is not None else int(times[0])
        for from_us, stop, worker in self._reach:
            counts_all = is_known and worker.plan.window is None
            low = from_us if counts_all else max(from_us, self.since_us)
            if too_long and low <= first < stop:
                worker.count_rejects_at(first, too_long)
            mine = between(batch, times, first, low, stop)
            if mine is not None:
                worker.add(complete(mine, worker), pane_before=before.last_time)
        self._measure()

    def has_whole_pane(self, from_us: Micros, until_us: Micros) -> bool:
        """Whether a whole pane is between these times, so that no line of it was parsed."""
        plans = [worker.plan for worker in self._workers.values()]
        panes = [plan.window.pane_us for plan in plans if plan.window is not None]
        return until_us > self.since_us and any(until_us // pane - from_us // pane > 1 for pane in panes)

    def settle(self) -> None:
        """Convert gathered rows to deltas before the dictionaries are emptied."""
        self.flush()
        self._settled += self._deltas()
        for worker in self._workers.values():
            worker.forget()
        self._measure()

    def cut(self) -> dict[str, Part]:
        """All rows since the last cut."""
        self.flush()
        deltas, self._settled = self._settled + self._deltas(), []
        self._measure()
        return merge_parts(deltas)

    def _deltas(self) -> list[dict[str, Part]]:
        deltas = []
        for version, worker in self._workers.items():
            for delta in worker.cut():
                deltas.append({version: Part(self._ops[version], tuple(delta.rows))})
        return deltas
