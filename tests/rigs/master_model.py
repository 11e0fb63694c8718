"""Workers, a tree that merges, repeats and loses their bundles, and one pass over their lines to compare windows with.

The workers are the simplest that keep the rules: what they do not know they ask, and when in doubt they read again.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import interval, number_of
from elf.srt.messages.effects import Effect, Post, Send
from elf.srt.messages.messages import (
    CLOSED,
    FIRST,
    NO_BALLOT,
    Bundle,
    BundleId,
    Commit,
    Hello,
    Schedule,
    Slot,
    Span,
    Split,
    Welcome,
)
from elf.srt.messages.partial import merge_parts
from elf.srt.messages.results import Put
from tests.rigs.master_rig import CHILD, SINK, T0, Rig, parts_of, spec_of
from tests.rigs.mesh_lines import SECOND, LogLine, counts_of, plan_of, version_of, window_of

LINE_BYTES = 10
PAST_ALL, FAR = T0 + 61 * SECOND, T0 + 10_000 * SECOND
"""Watermarks of a worker that has read all: its log stands still, but a change that waits would begin where its time has come to;
`FAR` closes all windows, and forgets all files."""


class Worker:
    """One log in files; offsets are ten bytes a line."""

    def __init__(self, number: int, files: list[list[LogLine]]) -> None:
        self.id = bytes([number]) * 16
        self.files = files
        self.schedule: Schedule = ()
        self.ballot = NO_BALLOT
        self.at: dict[Slot, int] = {}
        self.done: set[Slot] = set()
        self.ends: dict[Slot, int] = {}
        self.lane_us = 0
        self.asks = True
        self.bundles = 0
        self.kept: dict[BundleId, Bundle] = {}
        self.end_us = PAST_ALL

    @property
    def lines(self) -> list[LogLine]:
        return [line for file in self.files for line in file]

    def welcome(self, message: Welcome) -> None:
        """Begin from what is committed."""
        self.schedule, self.ballot, self.asks = message.schedule, message.ballot, False
        self.at = {slot: position.offset for slot, position in message.positions}
        self.done = {slot for slot, position in message.positions if position.closed}
        self.ends = dict(message.ends)
        self.lane_us = message.lanes[0][1] if message.lanes else 0
        self.kept.clear()

    def cut(self, rng: Random, job: bytes, everything: bool = False, lanes: bool = True) -> Bundle:
        """The next lines of each file, and of a lane if it is its turn."""
        spans: dict[Slot, Span] = {}
        lines: list[LogLine] = []
        for number, file in enumerate(self.files, 1):
            slot = (self.id, number, 0)
            if slot not in self.done:
                lines += self._read(rng, slot, file, LINE_BYTES * len(file), spans, everything)
                if spans[slot][1] < LINE_BYTES * len(file):
                    break  # later files are not there yet
                if number < len(self.files):
                    spans[slot] = (*spans[slot][:2], spans[slot][2] | CLOSED)
        for slot, end in self.ends.items() if lanes else ():
            file = self.files[slot[1] - 1]
            self.at.setdefault(slot, -1)
            if self.at[slot] < end:
                low = LINE_BYTES * low_of(file, self.lane_us)
                if self.at[slot] < 0:
                    self.at[slot] = min(low, end)
                    found = self._read(rng, slot, file, end, spans, everything)
                    spans[slot] = (*spans[slot][:2], spans[slot][2] | FIRST)
                else:
                    found = self._read(rng, slot, file, end, spans, everything)
                lines += [line for line in found if line[0] >= self.lane_us]
        self.bundles += 1
        bundle = Bundle(
            job,
            (self.id, 1, self.bundles),
            number_of(self.schedule),
            spans,
            self.watermark(),
            {},
            parts_of(self.schedule, lines),
            ballot=self.ballot,
        )
        self.kept[bundle.id] = bundle
        return bundle

    def _read(
        self,
        rng: Random,
        slot: Slot,
        file: list[LogLine],
        limit: int,
        spans: dict[Slot, Span],
        everything: bool,
    ) -> list[LogLine]:
        start = self.at.get(slot, 0)
        end = limit if everything else min(limit, start + LINE_BYTES * rng.choice((0, 1, 1, 2, 5)))
        spans[slot] = (start, end, FIRST if start == 0 else 0)
        self.at[slot] = end
        return file[start // LINE_BYTES : end // LINE_BYTES]

    def watermark(self) -> int:
        """The earliest line that is still to come."""
        left = [
            line[0]
            for number, file in enumerate(self.files, 1)
            if (self.id, number, 0) not in self.done
            for line in file[self.at.get((self.id, number, 0), 0) // LINE_BYTES :]
        ]
        return min(left, default=self.end_us)

    def commit(self, bundle_id: BundleId) -> None:
        bundle = self.kept.pop(bundle_id, None)
        if bundle is not None:
            self.done |= {slot for slot, span in bundle.contributions.items() if span[2] & CLOSED}


def low_of(file: list[LogLine], since_us: int) -> int:
    """The line at which the running maximum of event time first reached that time."""
    return next((i for i, line in enumerate(file) if line[0] >= since_us), len(file))


class Mesh:
    """A job's master, its workers, and the bundles between them."""

    def __init__(self, rng: Random, workers: list[Worker], windows: list[str]) -> None:
        self.rng, self.workers = rng, workers
        self.windows = windows
        self.spec: JobSpec = spec_of(plan_of(windows[0]))
        self.rig = Rig(self.spec, sinks=[SINK], delayed=True)
        self.by_id = {worker.id: worker for worker in workers}
        self.moving: list[Bundle] = []
        self.feeders: dict[BundleId, list[Bundle]] = {}
        self.merged = 0
        self.epoch = 1
        self.last: dict[tuple[str, int], Put] = {}
        self._advertise()

    def _advertise(self) -> None:
        adverts = [(worker.id, AgentAdvert(worker.id.hex(), ("access",), 1, T0)) for worker in self.workers]
        self.rig.do(self.rig.master.adverts(adverts, self.rig.now))

    # ---- steps ----

    def step(self) -> None:
        do: Any = self.rng.choice(
            (
                self.cut,
                self.cut,
                self.cut,
                self.deliver,
                self.deliver,
                self.deliver,
                self.deliver_again,
                self.lose,
                self.merge,
                self.merge,
                self.commit,
                self.commit,
                self.pass_time,
                self.resend,
                self.sink_goes_or_comes,
            )
        )
        do()
        self.absorb()

    def cut(self) -> None:
        worker = self.rng.choice(self.workers)
        if worker.asks:
            self.ask(worker)
        else:
            self.moving.append(worker.cut(self.rng, self.spec.id, lanes=self.rng.random() < 0.4))

    def ask(self, worker: Worker) -> None:
        self.rig.do(self.rig.master.hello(Hello(self.spec.id, worker.id, 1), self.rig.now))

    def deliver(self) -> None:
        if self.moving:
            self.rig.give(
                self.moving.pop(0 if self.rng.random() < 0.7 else self.rng.randrange(len(self.moving)))
            )

    def deliver_again(self) -> None:
        if self.moving:
            self.rig.give(self.rng.choice(self.moving))

    def lose(self) -> None:
        if self.moving:
            self.moving.pop(self.rng.randrange(len(self.moving)))

    def resend(self) -> None:
        worker = self.rng.choice(self.workers)
        self.moving += [msgspec.structs.replace(bundle, again=True) for bundle in worker.kept.values()]

    def merge(self) -> None:
        """Two bundles on their way become one, as a reducer does it."""
        if len(self.moving) < 2:
            return
        first, second = self.moving[0], self.moving[1]
        if (first.schedule, first.ballot) != (second.schedule, second.ballot):
            return
        spans = dict(first.contributions)
        for slot, span in second.contributions.items():
            mine = spans.get(slot)
            if mine is not None and mine[1] != span[0]:
                return
            spans[slot] = span if mine is None else (mine[0], span[1], mine[2] | span[2])
        self.merged += 1
        bundle = Bundle(
            self.spec.id,
            (CHILD, self.epoch, self.merged),
            first.schedule,
            spans,
            min(first.watermark, second.watermark),
            {},
            merge_parts([first.parts, second.parts]),
            ballot=first.ballot,
        )
        self.feeders[bundle.id] = [first, second]
        self.moving[:2] = [bundle]

    def commit(self) -> None:
        self.rig.commit(self.rng.randrange(len(self.rig.waiting) + 1))

    def pass_time(self) -> None:
        self.rig.run(self.rng.choice((300_000, 2_500_000)))

    def sink_goes_or_comes(self) -> None:
        self.rig.deaf = not self.rig.deaf

    def take_over(self) -> None:
        """The master dies with what was not committed; another one resumes from a replica's state."""
        state = JobState(self.spec.id, self.spec.name, self.rig.budget)
        state.restore(self.rig.state.snapshot())
        self.epoch += 1
        new = Rig(
            self.spec,
            state=state,
            ballot=(self.epoch, b"M" * 16),
            sinks=[SINK],
            delayed=True,
            now=self.rig.now,
            ledgers=self.rig.ledgers,
        )
        new.log = [(index, entry) for index, entry in self.rig.log if index <= state.index]
        self.rig = new
        self._advertise()

    def change(self, mode: str, line_us: int) -> None:
        """The next version of the job."""
        number = self.spec.number + 1
        plan = plan_of(self.windows[number % len(self.windows)], f"WHERE bytes >= -{number}")
        self.spec = msgspec.structs.replace(
            self.spec,
            number=number,
            versions=(*self.spec.versions, version_of(plan)),
            mode=mode,
            line_us=line_us,
        )
        self.rig.do(self.rig.master.spec_changed(self.spec, self.rig.now))
        self.absorb()

    # ---- what comes down ----

    def absorb(self) -> None:
        effects: list[Effect] = list(self.rig.effects)
        self.rig.effects.clear()
        for effect in effects:
            assert isinstance(effect, Send | Post)
            message = effect.message
            if isinstance(message, Commit):
                for each in message.ids:
                    self._commit(each)
            elif isinstance(message, Split):
                self._split(message)
            elif isinstance(message, Welcome):
                self.by_id[effect.to].welcome(message)
            elif isinstance(message, Put):
                self._check(message)
        for _ in self.rig.master.take_multicast():
            for worker in self.workers:
                worker.asks = True

    def _commit(self, each: BundleId) -> None:
        if each[0] in self.by_id:
            self.by_id[each[0]].commit(each)
        for feeder in self.feeders.pop(each, ()):
            self._commit(feeder.id)

    def _split(self, split: Split) -> None:
        if split.id[0] in self.by_id:
            self.by_id[split.id[0]].asks = True
        self.moving += self.feeders.pop(split.id, ())

    # ---- the oracle ----

    def truth(self, version: str, low: int, high: int) -> dict[str, tuple[int, int]]:
        return window_of([line for worker in self.workers for line in worker.lines], low, high)

    def _check(self, put: Put) -> None:
        """No publication counts a line twice; a final one of all workers has every line."""
        rows, truth = counts_of(put.rows), self.truth(put.version, *put.covers)
        for path, (hits, total) in rows.items():
            assert hits <= truth[path][0], (put.version, put.start, path)
            assert total <= truth[path][1]
        if put.status != "open" and put.agents_reporting == put.agents_expected == len(self.workers):
            assert rows == truth, (put.version, put.start, put.status)
        known = self.last.get((put.version, put.start))
        assert known is None or put.revision >= known.revision
        self.last[put.version, put.start] = put

    def finish(self) -> None:
        """No more faults: everything is read and committed, all windows close; then each equals one pass."""
        self.moving.clear()
        self.rig.deaf = False
        for turn in range(12):
            for worker in self.workers:
                self.ask(worker)
                if turn == 8:
                    assert not self.rig.master.amendments.is_waiting(self.spec)
                    worker.end_us = FAR
            self.rig.commit()
            self.absorb()
            for worker in self.workers:
                bundle = worker.cut(self.rng, self.spec.id, everything=True, lanes=turn > 2)
                self.rig.give(bundle)
            self.rig.commit()
            self.rig.run(3 * SECOND)
            self.rig.commit()
            self.rig.run(SECOND)
            self.absorb()
            self.moving.clear()
        self.rig.master.check()
        state = self.rig.state
        assert state.positions.lane is None
        for version in state.panes:
            self._check_version(version)

    def _check_version(self, version: str) -> None:
        state = self.rig.state
        low, until = interval(state.schedule, version)
        shape = state.shape(version)
        starts = {
            start
            for worker in self.workers
            for at, _, _ in worker.lines
            if low <= at < until
            for start in range(at - at % shape.slide_us, at - shape.size_us, -shape.slide_us)
        }
        for start in starts:
            covers = max(start, low, state.positions.since_us), min(start + shape.size_us, until)
            put = self.last.get((version, start))
            assert put is not None, (version, start - T0, "never published")
            assert put.covers == covers
            assert counts_of(put.rows) == self.truth(version, *covers), (version, start - T0)
            assert put.status != "open", (version, start - T0)
            assert put.agents_reporting == put.agents_expected == len(self.workers)


def some_lines(rng: Random, count: int, span_us: int) -> list[LogLine]:
    """Lines in order of writing, some of them late."""
    times = sorted(rng.randrange(span_us) for _ in range(count))
    late = (T0 + max(0, at - rng.choice((0, 0, 0, 3 * SECOND))) for at in times)
    return [(at, rng.randrange(4), rng.randrange(100)) for at in late]


def some_workers(rng: Random, count: int) -> list[Worker]:
    return [
        Worker(
            number, [some_lines(rng, rng.randrange(1, 12), 60 * SECOND) for _ in range(rng.randrange(1, 3))]
        )
        for number in range(1, count + 1)
    ]
