"""One live job: from batches to published windows. No clock and no files: the caller passes time.

Worker.add … cut -> LiveWindows.merge -> due windows -> sinks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from elf.agent.work.lost_values import LostValues
from elf.agent.work.worker import CUT_FACTOR, LATE, Worker
from elf.cbt.budget import Budget
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import PaneState, Sink, StateSink, Window
from elf.jobmaster.windows.state import StateMaker
from elf.jobmaster.windows.windows import LiveWindows, Publisher

PENDING_MAX = 8 << 20
"""While this many bytes wait for a lake (a full disk), no more panes are offered to it: they stay in the trees."""


class JobOptions(msgspec.Struct, frozen=True):
    """All in microseconds."""

    lateness_us: int = 60_000_000
    emit_us: int = 250_000
    keep_us: int = 3_600_000_000


def first_epoch(job: str, sinks: Sequence[Sink]) -> int:
    """The epoch of a start: above those in a lake."""
    stores = [cast(StateSink, sink) for sink in sinks if sink.wants_state]
    return max([0, *(sink.next_epoch(job) for sink in stores)])


class LiveJob:
    """One job version on one source. `sinks` are its own."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        options: JobOptions,
        sinks: Sequence[Sink],
        budget: Budget,
        epoch: int,
    ) -> None:
        self.name, self.plan, self.options, self.sinks = name, plan, options, list(sinks)
        self._budget = budget
        self.worker = Worker(plan)
        self.publisher = Publisher(name, plan, budget)
        self.panes = Panes(plan, budget)
        self.windows = LiveWindows(
            self.publisher,
            self.panes,
            lateness_us=options.lateness_us,
            keep_us=options.keep_us,
            epoch=epoch,
        )
        self.overflows, self.lost = 0, LostValues()
        self.late = 0
        self._state = StateMaker(name, self.publisher.version, plan, budget)
        self._stores = [cast(StateSink, sink) for sink in sinks if sink.wants_state]
        self._streams = [sink for sink in sinks if not sink.wants_state]
        self._pane_us = plan.window.pane_us if plan.window else 0
        self._with_open = any(sink.wants_open for sink in self._streams)
        self._unacked: set[int] = set()
        self._acked: set[int] = set()

    @property
    def is_watched(self) -> bool:
        """Whether a sink takes windows; a lake takes only the states of panes."""
        return bool(self._streams)

    @property
    def reached_us(self) -> int | None:
        """The watermark of its windows."""
        at, clock = (
            self.windows.watermark_us,
            self.plan.window.clock if self.plan.window is not None else None,
        )
        return at if at is None or clock is None else clock.utc_of(at)

    def has_news(self) -> bool:
        """Whether a publication would have anything new."""
        return self.windows.has_news() or self.worker.has_rows()

    def cut(self) -> None:
        """Move the worker's rows into the panes.

        If the budget cannot spill because the disk is full, the rows are merged all the same; it tries again later.
        """
        with self._budget.scratch(CUT_FACTOR * self.worker.nbytes):
            for delta in self.worker.cut():
                self.overflows += delta.overflows
                self.lost.add(delta.lost)
                self.late += int(delta.rows[1].lanes[LATE].sum())
                with suppress(OSError):
                    self.windows.merge(delta.rows)

    def publish(self, watermark_us: int | None) -> int:
        """Cut, then put due windows into the sinks. Returns how many they took. An OSError from a sink propagates."""
        self.cut()
        if watermark_us is not None:
            clock = self.plan.window.clock if self.plan.window is not None else None
            self.windows.advance(watermark_us if clock is None else clock.local_of(watermark_us))
        if not self.is_watched:
            self.windows.pass_due()
            return 0
        count = 0
        for window in self.windows.due(with_open=self._with_open):
            try:
                self._put(window)
            except OSError:
                self.windows.publish_again(None if window.start is None else self.publisher.key(window))
                raise
            count += 1
        return count

    def publish_open(self) -> None:
        """Publish every window that is not final yet, at the end of a run."""
        self.cut()
        for window in self.windows.open_windows():
            self._put(window)

    def _put(self, window: Window) -> None:
        for sink in self._streams:
            if sink.wants_open or window.status != "open":
                sink.put(window)

    def offer_states(self) -> int:
        """Put panes that became final or were revised into the lakes. Returns how many wait for `flush_states`."""
        if sum(sink.pending_bytes for sink in self._stores) > PENDING_MAX:
            return len(self._unacked)
        if self._stores:
            for pane, status in self.windows.due_panes():
                for state in self._pane_states(pane, status):
                    for sink in self._stores:
                        sink.put_state(state)
                    del state  # before the next one is made: states are the largest objects of an agent
                self._unacked.add(pane)
                self._acked.discard(pane)
        return len(self._unacked)

    def _pane_states(self, pane: int, status: str) -> Iterator[PaneState]:
        revision = self.windows.next_pane_revision(pane)
        stop = pane + 1
        pieces, lines = self.panes.pieces(pane, stop, split=True), self.panes.lines(pane, stop)
        yield from self._state.states(pieces, lines, status, revision)

    def flush_states(self) -> None:
        """Make the states put so far durable. Raises OSError if a sink fails; then they stay pending."""
        for sink in self._stores:
            sink.flush()
        self._acked |= self._unacked
        self._unacked.clear()

    def retire(self) -> None:
        """Drop panes past retention that the sinks hold."""
        self.cut()  # lines taken for a pane while it was retained belong to it
        waiting = self._unacked | (self.windows.unstored() if self._stores else set())
        if self.is_watched:
            waiting |= self.windows.unpublished()
        self.windows.retire(min(waiting, default=None))
        bound = self.windows.retained_us
        if bound is not None:
            self._acked = {pane for pane in self._acked if pane >= bound}

    def close(self, notices: Callable[[str], None]) -> None:
        for sink in self.sinks:
            try:
                sink.close()
            except OSError as error:
                notices(f"job {self.name}: {error}")
        self.panes.close()
