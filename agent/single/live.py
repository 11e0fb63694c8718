"""The loop of `elf run --follow` and of pipes: follows a source, feeds its job, publishes. All clocks and waiting are here.

inotify / poll -> Source.read -> Feed.take -> (every emit) LiveJob.publish -> sinks
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from threading import Event

from elf.agent.host.allocator import give_back
from elf.agent.single.live_job import LiveJob
from elf.agent.single.live_source import LiveSource, Moment
from elf.cbt.budget import Budget
from elf.sinks.lake.parquet import cause

WAKE_S = 0.1
"""Lines that arrive within this time are read together: ten small batches a second are cheap."""
SEEN_S = 1.0
"""How often windows are passed that nobody watches."""
STORE_S = 20.0
"""How often finished panes go to the lake: a writer process is started each time, and many panes share one file."""
RETRY_S = 5.0
HELD_DIVISOR = 8
"""Fronts and dictionaries take at most the budget divided by this; then they are emptied."""


class Live:
    """Runs one source and its jobs until it is stopped."""

    def __init__(
        self,
        source: LiveSource,
        *,
        budget: Budget,
        notices: Callable[[str], None],
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.source, self.jobs, self.budget = source, source.jobs, budget
        self._notices, self._on_progress = notices, on_progress
        self._poll = select.poll()
        descriptor = source.source.fileno()
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLIN)
        self._next_emit = {job.name: 0.0 for job in self.jobs}
        self._next_store = 0.0
        self._is_full = False
        self._reported: dict[str, str] = {}
        self._late_reported: set[str] = set()

    def run(self, stop: Event, until: Callable[[], bool] | None = None) -> None:
        """Run until `stop` is set, or until `until`, called after each round, returns True."""
        more = False
        while not stop.is_set() and not (until is not None and until()):
            if not more:
                self._wait(stop)
            more = self.round()

    def round(self) -> bool:
        """Scan, read and publish once. Returns whether the source has more to read now."""
        now = Moment.now()
        more = False
        if not self._is_full:
            self.source.scan(now)
            self._take_notices(now)  # notices about found files come before those about their lines
            more = self.source.read(now, now.steady_s + 0.2, self._has_room)
            self._take_notices(now)
        self._is_full = not self._guarded("memory", self._keep_within_budget)
        self.publish(now.wall_us)
        self.store()
        if self._on_progress is not None:
            self._on_progress(self.source.feed.totals.lines)
        return more

    def _take_notices(self, now: Moment) -> None:
        for notice in self.source.take_notices(now):
            self._notices(notice)

    def _wait(self, stop: Event) -> None:
        # Wait first while lines gather, then for events: without any, for a second.
        if stop.wait(WAKE_S):
            return
        due = min(self._emit_times(), default=float("inf"))
        timeout = min(max(0.0, due - time.monotonic()), self.source.source.poll_s)
        if timeout:
            self._poll.poll(timeout * 1000)
        self.source.source.wake()

    def _emit_times(self) -> Iterator[float]:
        for job in self.jobs:
            if job.has_news():
                yield self._next_emit[job.name]

    def _held_bytes(self) -> int:
        """Memory of rows that are not in the trees yet."""
        return sum(job.worker.nbytes for job in self.jobs) + self.source.feed.nbytes

    def _has_room(self) -> bool:
        """Whether reading may continue: a fifth of a second of reading could fill a small cap."""
        return self._held_bytes() <= self.budget.cap_bytes // HELD_DIVISOR

    def _keep_within_budget(self) -> None:
        if not self._has_room():
            self.source.feed.empty_dictionaries()
        self.budget.reserve("workers", self._held_bytes())

    def publish(self, now_us: int) -> None:
        """Publish the jobs that are due."""
        watermark = self.source.watermark_us(now_us)
        for job in self.jobs:
            began = time.monotonic()
            if began < self._next_emit[job.name]:
                continue
            works = self._guarded(f"job {job.name}", lambda job=job: self._publish(job, watermark))  # type: ignore[misc]
            took = time.monotonic() - began
            # A job whose windows are large is published less often, so that publishing stays under a tenth of a core.
            every = job.options.emit_us / 1e6 if job.is_watched else SEEN_S
            self._next_emit[job.name] = began + max(every if works else RETRY_S, 10 * took)

    def _publish(self, job: LiveJob, watermark: int | None) -> None:
        if job.publish(watermark):
            for sink in job.sinks:
                if not sink.wants_state:
                    sink.flush()
        if job.late and job.name not in self._late_reported:
            self._late_reported.add(job.name)
            self._notices(
                f"job {job.name}: lines came that are older than the windows it keeps; they are counted as late in the window "
                "that was current, and not added; lateness and keep set how long it waits"
            )

    def store(self, *, now: bool = False) -> None:
        """Offer finished panes to the lakes and make them durable, every `STORE_S` or `now`."""
        moment = time.monotonic()
        if not now and moment < self._next_store:
            return
        self._next_store = moment + STORE_S
        for job in self.jobs:
            if job.offer_states() and not self._guarded(f"job {job.name}, lake", job.flush_states):
                self._next_store = moment + RETRY_S
            job.retire()
        give_back()

    def _guarded(self, what: str, action: Callable[[], object]) -> bool:
        """Run an action: a failing disk must not end the run, so report it once, continue, try again. Returns whether it
        worked."""
        try:
            action()
        except BrokenPipeError:
            raise
        except OSError as error:
            text = f"{what}: {cause(error)}; nothing is lost, trying again every {RETRY_S:.0f} s"
            if self._reported.get(what) != text:
                self._reported[what] = text
                self._notices(text)
            return False
        if self._reported.pop(what, None) is not None:
            self._notices(f"{what}: works again")
        return True

    def finish(self) -> None:
        """An orderly end: publish, the open windows too, and store everything."""
        watermark = self.source.watermark_us(time.time_ns() // 1000)
        for job in self.jobs:
            job.publish(watermark)
            job.publish_open()
            for sink in job.sinks:
                if not sink.wants_state:
                    sink.flush()
        self.store(now=True)

    def close(self) -> None:
        self.source.source.close()
        for job in self.jobs:
            job.close(self._notices)
