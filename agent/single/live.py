"""The live loop of one agent: follows sources, feeds jobs, publishes, records. All clocks and waiting are here.

    inotify / poll -> Source.read -> Feed.take -> (every emit) LiveJob.publish -> sinks
                                                -> (every second) Journal

A restart reads the journal: its records hold the positions of every source together with the panes merged up to them, so a line
is counted once, wherever the process died.
"""

from __future__ import annotations

import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event

import msgspec

from elf.agent.disk.journal import Journal
from elf.agent.host.allocator import give_back
from elf.agent.host.compaction import Care, Compaction
from elf.agent.single.job_record import JobRecord
from elf.agent.single.live_job import LiveJob
from elf.agent.single.live_source import LiveSource, Moment, SourceRecord
from elf.cbt.budget import Budget
from elf.jobmaster.windows.result import StreamClosed
from elf.sinks.lake.parquet import cause

WAKE_S = 0.1
"""Lines that arrive within this time are read together: ten small batches a second are cheap."""
SYNC_S = 1.0
STORE_S = 20.0
"""How often finished panes go to the lake: a writer process is started each time, and many panes share one file."""
RETRY_S = 5.0
UNRECORDED_MAX = 16 << 20
"""Reading stops while more than this waits for a journal that cannot be written."""
HELD_DIVISOR = 8
"""Fronts, dictionaries and rows that wait for the journal take at most the budget divided by this; then they are emptied."""
JOURNAL_GROWTH = 8 << 20
"""The journal is rewritten when it has grown by this much and to more than twice its last snapshot."""


class Record(msgspec.Struct, array_like=True):
    """One record of the journal: every position, and the rows that each job merged up to it.

    apart: positions of jobs that differ from their source's: of a failed job, that of its last record; later that of its own
    reading from there on.
    """

    epoch: int
    sources: dict[str, SourceRecord]
    jobs: dict[str, JobRecord]
    apart: dict[str, SourceRecord] = {}


def report_stopped(job: str, error: Exception, notices: Callable[[str], None]) -> None:
    """Log a notice, and the traceback."""
    notices(
        f"job {job}: stopped by an error of elf ({type(error).__name__}: {error}), of which the traceback follows in "
        "this log; other jobs continue, and this one resumes from its last record at the next start"
    )
    traceback.print_exception(error, file=sys.stderr)


class Live:
    """Runs sources and their jobs until it is stopped."""

    def __init__(
        self,
        sources: Sequence[LiveSource],
        *,
        budget: Budget,
        epoch: int,
        journal: Journal | None,
        notices: Callable[[str], None],
        on_progress: Callable[[int], None] | None = None,
        lakes: Sequence[Path] = (),
        stopped: Mapping[str, SourceRecord] = {},
    ) -> None:
        self.sources, self.budget, self.epoch, self.journal = list(sources), budget, epoch, journal
        self.jobs = [job for source in sources for job in source.jobs]
        self._notices, self._on_progress = notices, on_progress
        self._poll = select.poll()
        for source in self.sources:
            descriptor = source.source.fileno()
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)
        self._next_emit = {job.name: 0.0 for job in self.jobs}
        self._next_sync = self._next_store = 0.0
        self._compaction = Compaction([Care(lake) for lake in lakes], time.monotonic())
        self._retry_at = 0.0
        self._snapshot_bytes = (
            0  # unknown how much of the journal is history: a long one is rewritten at once
        )
        self._recorded_lines = -1
        self._unsynced = False
        self._begun = journal is None  # whether this start is recorded, so that its revisions may be used
        self._is_full = False
        self._reported: dict[str, str] = {}
        self._late_reported: set[str] = set()
        self._recorded_at = [source.record() for source in self.sources]
        """The position of each source at the last record."""
        self._stopped = dict(stopped)
        """The positions of jobs that an error of ours stopped: those of their last records, as after a kill."""
        for source in self.sources if journal is not None else ():
            source.on_failure = self._stop

    def run(self, stop: Event, until: Callable[[], bool] | None = None) -> None:
        """Run until `stop` is set, or until `until`, called after each round, returns True."""
        more = False
        while not stop.is_set() and not (until is not None and until()):
            if not more:
                self._wait(stop)
            more = self.round()

    def round(self) -> bool:
        """Scan, read, publish and record once. Returns whether a source has more to read now."""
        now = Moment.now()
        now_us = now.wall_us
        deadline = now.steady_s + 0.2
        more = False
        if not self._is_choked():
            for source in self.sources:
                source.scan(now)
                self._take_notices(
                    source, now
                )  # notices about found files come before those about their lines
                more |= source.read(now, deadline, self._has_room)
                self._take_notices(source, now)
        self._is_full = not self._guarded("memory", self._keep_within_budget)
        if self._begun:
            self.publish(now_us)
            self.store()
        self.sync()
        for failure in self._compaction.look(time.monotonic(), now_us):
            self._notices(failure)
        if self._on_progress is not None:
            self._on_progress(sum(source.feed.totals.lines for source in self.sources))
        return more

    def _take_notices(self, source: LiveSource, now: Moment) -> None:
        for notice in source.take_notices(now):
            self._notices(notice)

    def _wait(self, stop: Event) -> None:
        # Wait first while lines gather, then for events: an idle agent sleeps for a second.
        if stop.wait(WAKE_S):
            return
        due = min([self._next_sync if self._has_unrecorded() else float("inf"), *self._emit_times()])
        timeout = min([max(0.0, due - time.monotonic()), *(source.source.poll_s for source in self.sources)])
        if timeout:
            self._poll.poll(timeout * 1000)
        for source in self.sources:
            source.source.wake()

    def _emit_times(self) -> Iterator[float]:
        for job in self.jobs:
            if job.has_news():
                yield self._next_emit[job.name]

    def _has_unrecorded(self) -> bool:
        return self.journal is not None and any(job.has_unrecorded() for job in self.jobs)

    def _is_choked(self) -> bool:
        return self._is_full or (self.journal is not None and self._unrecorded_bytes() > UNRECORDED_MAX)

    def _unrecorded_bytes(self) -> int:
        return sum(job.unrecorded_bytes for job in self.jobs)

    def _held_bytes(self) -> int:
        """Memory of rows that are not in the trees yet, or must be kept until they are recorded."""
        workers = sum(job.worker.nbytes for job in self.jobs)
        return workers + self._unrecorded_bytes() + sum(source.feed.nbytes for source in self.sources)

    def _has_room(self) -> bool:
        """Whether reading may continue: a fifth of a second of reading could fill a small cap."""
        return self._held_bytes() <= self.budget.cap_bytes // HELD_DIVISOR

    def _keep_within_budget(self) -> None:
        if not self._has_room():
            for source in self.sources:
                source.feed.empty_dictionaries()
        if self._unrecorded_bytes() > self.budget.cap_bytes // (2 * HELD_DIVISOR):
            self._next_sync = 0.0  # not in a second: in this round
        self.budget.reserve("workers", self._held_bytes())

    def publish(self, now_us: int) -> None:
        """Publish the jobs that are due."""
        for source in self.sources:
            watermark = source.watermark_us(now_us)
            for job in list(source.jobs):
                began = time.monotonic()
                if began < self._next_emit[job.name]:
                    continue
                works = self._guarded(
                    f"job {job.name}", partial(self._isolated, job, partial(self._publish, job, watermark))
                )
                took = time.monotonic() - began
                # A job whose windows are large is published less often, so that publishing stays under a tenth of a core.
                every = job.options.emit_us / 1e6 if job.is_watched else SYNC_S
                if not works:
                    every = RETRY_S
                self._next_emit[job.name] = began + max(every, 10 * took)

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
        for job in list(self.jobs):
            self._isolated(job, partial(self._store, job, moment))
        give_back()

    def _store(self, job: LiveJob, moment: float) -> None:
        if job.offer_states() and not self._guarded(f"job {job.name}, lake", job.flush_states):
            self._next_store = moment + RETRY_S
        job.retire()

    def sync(self, *, now: bool = False) -> None:
        """Append a record to the journal and make it durable, every second when something changed, or `now`."""
        moment = time.monotonic()
        journal = self.journal
        if journal is None:
            for job in self.jobs:
                job.recorded()
            return
        if not now and moment < max(self._next_sync, self._retry_at):
            return
        self._next_sync = moment + SYNC_S
        if not now and not self._changed():
            return
        if not self._guarded("journal", lambda: self._record(journal)):
            self._retry_at = moment + RETRY_S

    def _changed(self) -> bool:
        if self._unsynced or not self._begun:
            return True
        total = sum(source.feed.totals.lines for source in self.sources)
        changed = total != self._recorded_lines or any(job.has_unrecorded() for job in self.jobs)
        self._recorded_lines = total
        return changed

    def _record(self, journal: Journal) -> None:
        if self._unsynced:  # records that failed on a full disk come first
            journal.sync()
            self._unsynced = False
        for source in self.sources:
            source.settle()  # positions and rows must cover the same lines
        positions = [source.record() for source in self.sources]
        if journal.size > 2 * self._snapshot_bytes + JOURNAL_GROWTH:
            journal.rewrite(self._snapshot(journal, positions))
            self._snapshot_bytes = journal.size
        else:
            jobs: dict[str, JobRecord] = {}
            for job in list(self.jobs):
                self._isolated(job, partial(self._add_record, jobs, job))
            journal.append(msgspec.msgpack.encode(self._at_positions(jobs, positions)))
            self._unsynced = True
        self._recorded_at = positions
        for job in self.jobs:
            job.recorded()
        if self._unsynced:
            journal.sync()
            self._unsynced = False
        self._begun = True

    @staticmethod
    def _add_record(jobs: dict[str, JobRecord], job: LiveJob) -> None:
        jobs[job.name] = job.record()

    def _at_positions(self, jobs: dict[str, JobRecord], positions: Sequence[SourceRecord]) -> Record:
        shared: dict[str, SourceRecord] = {}
        apart: dict[str, SourceRecord] = {}
        for source, position in zip(self.sources, positions, strict=True):
            if source.apart is None:
                shared[source.source.name] = position
            else:
                apart[source.apart] = position
        return Record(self.epoch, shared, jobs, apart | self._stopped)

    def _snapshot(self, journal: Journal, positions: Sequence[SourceRecord]) -> Iterator[bytes]:
        """The whole state. Only the last record has positions; an incomplete rewrite never replaces the old journal."""
        if self._stopped:
            yield from self._records_of_stopped(journal)
        for job in self.jobs:
            for record in job.snapshot():
                yield msgspec.msgpack.encode(Record(self.epoch, {}, {job.name: record}))
        jobs = {job.name: job.record_of_nothing() for job in self.jobs}
        yield msgspec.msgpack.encode(self._at_positions(jobs, positions))

    def _records_of_stopped(self, journal: Journal) -> Iterator[bytes]:
        """The journal's records of stopped jobs: what a failed job has in memory cannot be trusted."""
        for encoded in journal.records():
            record = msgspec.msgpack.decode(encoded, type=Record)
            jobs = {name: job for name, job in record.jobs.items() if name in self._stopped}
            if jobs:
                yield msgspec.msgpack.encode(Record(record.epoch, {}, jobs))

    def _isolated(self, job: LiveJob, action: Callable[[], object]) -> None:
        """Run an action of one job: a bug of ours in it must not end the others."""
        try:
            action()
        except (OSError, StreamClosed):
            raise
        except Exception as error:
            if self.journal is None:
                raise
            self._stop(job, error)

    def _stop(self, job: LiveJob, error: Exception) -> None:
        """Continue without the job: lines since its last record are dropped, and read again at the next start."""
        number = next(n for n, source in enumerate(self.sources) if job in source.jobs)
        self._stopped[job.name] = self._recorded_at[number]
        self.sources[number].leave_out(job)
        self.jobs.remove(job)
        report_stopped(job.name, error, self._notices)
        job.abandon()

    def _guarded(self, what: str, action: Callable[[], object]) -> bool:
        """Run an action: a failing disk must not end the agent, so report it once, continue, try again. Returns whether it
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

    def finish(self, *, publish_open: bool) -> None:
        """An orderly end: publish, store and record everything."""
        now_us = time.time_ns() // 1000
        if not self._begun:
            self.sync(now=True)
        if self._begun:
            for source in self.sources:
                watermark = source.watermark_us(now_us)
                for job in list(source.jobs):
                    last = partial(
                        self._isolated, job, partial(self._publish_last, job, watermark, publish_open)
                    )
                    if self.journal is None:  # no later start could publish it again
                        last()
                    else:
                        self._guarded(f"job {job.name}", last)
            self.store(now=True)
        self.sync(now=True)

    @staticmethod
    def _publish_last(job: LiveJob, watermark: int | None, publish_open: bool) -> None:
        job.publish(watermark)
        if publish_open:
            job.publish_open()
        for sink in job.sinks:
            if not sink.wants_state:
                sink.flush()

    def close(self) -> None:
        for source in self.sources:
            source.source.close()
        for job in self.jobs:
            job.close(self._notices)
        if self.journal is not None:
            self.journal.close()
