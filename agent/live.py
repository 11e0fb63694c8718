"""The live loop of one agent: follow sources, feed jobs, publish, remember. Time and waiting live here and nowhere below.

    inotify / poll -> Source.read -> Feed.take -> (every emit) LiveJob.publish -> sinks
                                                -> (every second) Journal

Restarting is reading the journal: its records hold the positions of every source together with the panes merged up to
them, so a line is counted once, wherever the process died.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event

import msgspec

from elf.agent.allocator import give_back
from elf.agent.blocks import Block, FileKey
from elf.agent.compaction import Compaction
from elf.agent.feed import Feed, ParseState
from elf.agent.format_choice import FormatChoice
from elf.agent.live_job import JobRecord, LiveJob
from elf.agent.source import Source, SourceState
from elf.agent.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.jobmaster.journal import Journal

QUIET_US = 5_000_000
"""How long a source must have had no new line before its watermark follows the clock: longer than web servers buffer logs."""
WAKE_S = 0.1
"""Lines that arrive within this time are read together: ten small batches a second cost next to nothing."""
SYNC_S = 1.0
STORE_S = 20.0
"""How often finished panes go to the lake: a writer process is started each time, and many panes share one file."""
RETRY_S = 5.0
UNRECORDED_MAX = 16 << 20
"""Reading stops while more than this waits for a journal that cannot be written."""
JOURNAL_GROWTH = 8 << 20
"""The journal is rewritten when it has grown by this much and to more than twice its last snapshot."""


class SourceRecord(msgspec.Struct, array_like=True):
    """A source in the journal: its position, and what parsing needs to go on in each of its files."""

    position: SourceState
    files: list[tuple[FileKey, ParseState]]
    time_max: int | None


class Record(msgspec.Struct, array_like=True):
    """One record of the journal: every position, and what each job merged up to it."""

    epoch: int
    sources: dict[str, SourceRecord]
    jobs: dict[str, JobRecord]


class LiveSource:
    """One followed source with the jobs on it."""

    def __init__(self, source: Source, formats: FormatChoice, feed: Feed, jobs: Sequence[LiveJob]) -> None:
        self.source, self.formats, self.feed, self.jobs = source, formats, feed, list(jobs)
        self._unparsed, self._path = Unparsed(source.name), ""
        self._last_line_us: int | None = None  # when the source last gave lines, or was first looked at

    def read(self, now_us: int, deadline: float) -> bool:
        """Read what is there, until `deadline` (monotonic); True when more is waiting."""
        retained = [job.windows.retained_us for job in self.jobs]
        if self._last_line_us is None:
            self._last_line_us = now_us
        while (block := self.source.read(now_us / 1e6)) is not None:
            self._take(block, now_us, retained)
            if time.monotonic() >= deadline:
                return True
        return False

    def _take(self, block: Block, now_us: int, retained: Sequence[int | None]) -> None:
        # What is too late counts in the current pane, also where the clock moved it on since the last line.
        latest = [self.feed.time_max, *(job.windows.watermark_us for job in self.jobs)]
        late_us = max((time for time in latest if time is not None), default=now_us)
        self.feed.take(block, now_us=now_us, retained_us=retained, late_us=late_us)
        self._last_line_us, self._path = now_us, block.path
        if block.last:
            self.feed.files.pop(block.file, None)
            self.formats.forget(block.file)

    def take_notices(self, now_us: int) -> list[str]:
        """What there is to be said of the source since the last call."""
        notices = list(self.source.notices)
        self.source.notices.clear()
        if (complaint := self._unparsed.look(now_us, self.feed.totals, self._path)) is not None:
            notices.append(complaint)
        return notices

    def watermark_us(self, now_us: int) -> int | None:
        """No line before this will come, as far as this source can promise; never past the clock.

        The latest event time while lines come, held back by each file that is still to be read to its end: by the last
        line taken from it. Once quiet at the end of its newest file: the clock as it was taken before reading to that end,
        less the grace.
        """
        latest = self.feed.time_max
        if latest is not None and (unread := self.source.unread()):
            reached = {key.generation: state.last_time for key, state in self.feed.files.items()}
            for generation in unread:
                time_us = reached.get(generation)
                if time_us is None:
                    return None
                latest = min(latest, time_us)
        complete = self.source.complete_until
        if complete is not None and self._last_line_us is not None:
            idle = int(complete * 1e6) - QUIET_US
            if idle >= self._last_line_us and (latest is None or idle > latest):
                latest = idle
        return None if latest is None else min(latest, now_us)

    def record(self) -> SourceRecord:
        return SourceRecord(self.source.positions(), list(self.feed.files.items()), self.feed.time_max)

    def restore(self, record: SourceRecord) -> None:
        """Parsing goes on where the record says (the source itself was opened with its position)."""
        self.feed.files = dict(record.files)
        self.feed.time_max = record.time_max
        for key, state in record.files:
            if state.format is not None and self.formats.spec == "auto":
                self.formats.remember(key, state.format)


class Live:
    """Runs sources and their jobs until told to stop."""

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
        self._compaction = Compaction(lakes, time.monotonic())
        self._retry_at = 0.0
        self._snapshot_bytes = (
            0  # how much of the journal is history is not known: a long one is rewritten at once
        )
        self._recorded_lines = -1
        self._unsynced = False
        self._begun = journal is None  # whether this start is on record: its revisions may be given out
        self._is_full = False
        self._said: dict[str, str] = {}
        self._told_late: set[str] = set()

    def run(self, stop: Event, until: Callable[[], bool] | None = None) -> None:
        """Until `stop` is set (or `until` says so, asked after each round)."""
        more = False
        while not stop.is_set() and not (until is not None and until()):
            if not more:
                self._wait(stop)
            more = self.round()

    def round(self) -> bool:
        """Scan, read, publish, record, once; True when a source has more to read right away."""
        now_us = time.time_ns() // 1000
        deadline = time.monotonic() + 0.2
        more = False
        if not self._is_choked():
            for source in self.sources:
                source.source.scan(now_us / 1e6)
                self._tell(source, now_us)  # what was found comes before what is said of its lines
                more |= source.read(now_us, deadline)
                self._tell(source, now_us)
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

    def _tell(self, source: LiveSource, now_us: int) -> None:
        for notice in source.take_notices(now_us):
            self._notices(notice)

    def _wait(self, stop: Event) -> None:
        # Waiting first for the time in which lines are gathered, then for news: an idle agent sleeps for a second.
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
        if self._is_full:
            return True
        return sum(job.unrecorded_bytes for job in self.jobs) > UNRECORDED_MAX and self.journal is not None

    def _keep_within_budget(self) -> None:
        held = sum(job.worker.nbytes + job.unrecorded_bytes for job in self.jobs)
        held += sum(source.feed.nbytes for source in self.sources)
        if held > self.budget.cap_bytes // 4:
            for source in self.sources:
                source.feed.empty_dictionaries()
        self.budget.reserve("workers", held)

    def publish(self, now_us: int) -> None:
        """Publish the jobs whose emit interval is over."""
        for source in self.sources:
            watermark = source.watermark_us(now_us)
            for job in source.jobs:
                began = time.monotonic()
                if began < self._next_emit[job.name]:
                    continue
                works = self._guarded(f"job {job.name}", partial(self._publish, job, watermark))
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
        if job.late and job.name not in self._told_late:
            self._told_late.add(job.name)
            self._notices(
                f"job {job.name}: lines came that are older than the windows it keeps; they are counted as late in the window "
                "that was current, and not added; lateness and keep say how long it waits"
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
        if self._unsynced:  # what a full disk refused comes first
            journal.sync()
            self._unsynced = False
        for source in self.sources:
            for job in source.jobs:
                job.cut()  # positions and rows must speak of the same lines
        if journal.size > 2 * self._snapshot_bytes + JOURNAL_GROWTH:
            journal.rewrite(self._snapshot())
            self._snapshot_bytes = journal.size
        else:
            record = Record(
                self.epoch,
                {source.source.name: source.record() for source in self.sources},
                {job.name: job.record() for job in self.jobs},
            )
            journal.append(msgspec.msgpack.encode(record))
            self._unsynced = True
        for job in self.jobs:
            job.recorded()
        if self._unsynced:
            journal.sync()
            self._unsynced = False
        self._begun = True

    def _snapshot(self) -> Iterator[bytes]:
        """The whole state. Only the last record has positions: a rewrite that is cut short never replaces the old journal."""
        for job in self.jobs:
            for record in job.snapshot():
                yield msgspec.msgpack.encode(Record(self.epoch, {}, {job.name: record}))
        yield msgspec.msgpack.encode(
            Record(
                self.epoch,
                {source.source.name: source.record() for source in self.sources},
                {job.name: job.record_of_nothing() for job in self.jobs},
            )
        )

    def _guarded(self, what: str, action: Callable[[], object]) -> bool:
        """A full disk or a slow one must not end the agent: say it once, go on, try again. Whether it worked."""
        try:
            action()
        except BrokenPipeError:
            raise
        except OSError as error:
            text = f"{what}: {error.strerror or error}; nothing is lost, trying again every {RETRY_S:.0f} s"
            if self._said.get(what) != text:
                self._said[what] = text
                self._notices(text)
            return False
        if self._said.pop(what, None) is not None:
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
                for job in source.jobs:
                    last = partial(self._publish_last, job, watermark, publish_open)
                    if self.journal is None:  # no later start could tell it again
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
