"""One job of a live agent: from batches to published windows. No clock and no files: the caller passes time and records.

Worker.add … cut -> LiveWindows.merge -> due windows -> sinks
                \\-> the journal's next record
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from elf.agent.single.job_record import Changes, Gap, JobRecord, whole
from elf.agent.work.lost_values import LostValues
from elf.agent.work.worker import CUT_FACTOR, LATE, Worker
from elf.cbt.budget import Budget
from elf.cbt.frame import pack, unpack
from elf.cbt.rows import Rows
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import PaneState, Sink, StateSink, Window
from elf.jobmaster.windows.state import StateMaker
from elf.jobmaster.windows.windows import LiveWindows, Publisher, WindowsState

PENDING_MAX = 8 << 20
"""While this many bytes wait for a lake (a full disk), no more panes are offered to it: they stay in the trees."""

NO_WINDOWS = WindowsState(None, None, [], [])
"""The windows in a record that only has rows."""


class JobOptions(msgspec.Struct, frozen=True):
    """All in microseconds."""

    lateness_us: int = 60_000_000
    emit_us: int = 250_000
    keep_us: int = 3_600_000_000


def first_epoch(job: str, sinks: Sequence[Sink], least: int) -> int:
    """The epoch of a start: above the journal's, and above those in a lake from a state_dir that was lost."""
    stores = [cast(StateSink, sink) for sink in sinks if sink.wants_state]
    return max([least, *(sink.next_epoch(job) for sink in stores)])


class LiveJob:
    """One job version on one source. `sinks` are its own; `lakes` names those of them that take states."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        options: JobOptions,
        sinks: Sequence[Sink],
        budget: Budget,
        epoch: int,
        lakes: Sequence[str] = (),
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
        self._unrecorded: list[list[Rows]] = []
        self._unacked: set[int] = set()
        self._acked: set[int] = set()
        self._lakes = list(lakes)
        self._changes = Changes()
        self.gaps: list[Gap] = []
        """Times of which lines are missing: windows and panes there show that no agent has reported them whole."""

    @property
    def unrecorded_bytes(self) -> int:
        """Memory of the rows that wait for the journal."""
        return sum(rows.nbytes for delta in self._unrecorded for rows in delta)

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

    def has_unrecorded(self) -> bool:
        return bool(self._unrecorded) or self.worker.has_rows()

    def cut(self) -> None:
        """Move the worker's rows into the panes, and keep them for the next record.

        If the budget cannot spill because the disk is full, the rows are merged all the same; it tries again later.
        """
        with self._budget.scratch(CUT_FACTOR * self.worker.nbytes):
            for delta in self.worker.cut():
                self.overflows += delta.overflows
                self.lost.add(delta.lost)
                self.late += int(delta.rows[1].lanes[LATE].sum())
                self._unrecorded.append(delta.rows)
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
        if self.lacks(window.start, window.end):
            window = msgspec.structs.replace(window, agents_reporting=0)
        for sink in self._streams:
            if sink.wants_open or window.status != "open":
                sink.put(window)

    def lacks(self, start: int | None, end: int | None) -> bool:
        """Whether lines of [start, end) were read without this job; of any time if these are None."""
        if start is None or end is None:
            return bool(self.gaps)
        return any((low is None or end > low) and start <= high for low, high in self.gaps)

    def has_missed(self, until_us: int) -> None:
        """Lines up to this event time were read without this job: windows that were not final by its watermark lack some."""
        reached = self.windows.watermark_us
        self.gaps.append((None if reached is None else reached - self.options.lateness_us, until_us))

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
        reporting = 0 if self.lacks(pane, pane + self._pane_us) else 1
        for state in self._state.states(
            self.panes.pieces(pane, stop, split=True), self.panes.lines(pane, stop), status, revision
        ):
            yield msgspec.structs.replace(state, agents_reporting=reporting)

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
            if self.plan.window is not None:
                self.gaps = [gap for gap in self.gaps if gap[1] >= bound]

    # Records for the journal.

    def record(self) -> JobRecord:
        """The changes since the last record. The caller calls `recorded` once it is durable."""
        frames = [
            [pack(rows, ops) for rows, ops in zip(delta, self.panes.ops, strict=True)]
            for delta in self._unrecorded
        ]
        return self._changes.since(self._record(frames))

    def recorded(self) -> None:
        self._unrecorded.clear()
        self._changes.recorded()

    def snapshot(self) -> Iterator[JobRecord]:
        """The whole state, in records of bounded size."""
        for number, rows in self._all_rows():
            frames = [b""] * len(self.panes.ops)
            frames[number] = pack(rows, self.panes.ops[number])
            yield JobRecord(self.publisher.version, [frames], NO_WINDOWS, [], is_delta=True)

    def record_of_nothing(self) -> JobRecord:
        """All windows without rows, after a snapshot of the rows."""
        return self._changes.whole(self._record([]))

    def _all_rows(self) -> Iterator[tuple[int, Rows]]:
        for number, stream in enumerate(self.panes.rows()):
            for rows in stream:
                yield number, rows

    def _record(self, frames: list[list[bytes]]) -> JobRecord:
        acked = sorted(self._acked)
        windows = self.windows.snapshot()
        return JobRecord(self.publisher.version, frames, windows, acked, self._lakes, gaps=list(self.gaps))

    def restore(self, records: Iterable[JobRecord]) -> None:
        """Resume from the journal's records, oldest first."""
        known = list(records)
        for record in known:
            for frames in record.frames:
                for tree, frame in enumerate(frames):
                    if frame:
                        self.panes.insert(tree, unpack(frame)[0])
        last = whole(known)
        if last is None:
            return
        self.gaps = list(last.gaps)
        if set(self._lakes) <= set(last.lakes):  # a new lake gets all retained panes
            self._acked = set(last.acked)
        bound = last.windows.dropped_until
        if bound is not None:
            self.panes.drop(bound)
        self.windows.restore(last.windows, self.panes.lines().pane.tolist(), self._acked)

    def abandon(self) -> None:
        """Stop as a kill would: states that are not durable are not flushed."""
        self.panes.close()

    def close(self, notices: Callable[[str], None]) -> None:
        for sink in self.sinks:
            try:
                sink.close()
            except OSError as error:
                notices(f"job {self.name}: {error}")
        self.panes.close()
