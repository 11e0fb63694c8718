"""One followed source with its jobs: passes blocks to the feed, and promises a watermark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from elf.agent.files.blocks import Block, FileKey
from elf.agent.formats.choice import FormatChoice
from elf.agent.single.live_job import LiveJob
from elf.agent.work.feed import Feed, columns_for
from elf.agent.work.unparsed import Unparsed

STRINGS_MAX = 4 << 20
QUIET_US = 5_000_000
"""How long a source must have had no new line before its watermark follows the clock: longer than web servers buffer logs."""
GATHER_S = 5.0
"""How long detected formats are gathered, unless the source is read to its end before: files that agree get one notice."""


class Input(Protocol):
    """What gives a live source its lines: a `Source`, which has the documentation, or a `Stream`."""

    name: str
    complete_until: float | None

    @property
    def notices(self) -> list[str]: ...
    @property
    def at_end(self) -> bool: ...
    @property
    def poll_s(self) -> float: ...
    def fileno(self) -> int: ...
    def wake(self) -> bool: ...
    def unread(self) -> set[int]: ...
    def head(self, key: FileKey | None = None) -> bytes: ...
    def scan(self, now: float) -> None: ...
    def read(self, now: float) -> Block | None: ...
    def close(self) -> None: ...


class Moment(NamedTuple):
    """A time by two clocks: the wall clock, which may be set back, and a steady one for durations."""

    wall_us: int
    steady_s: float

    @staticmethod
    def now() -> Moment:
        return Moment(time.time_ns() // 1000, time.monotonic())


class LiveSource:
    """One followed source with the jobs on it."""

    def __init__(self, source: Input, formats: FormatChoice, feed: Feed, jobs: Sequence[LiveJob]) -> None:
        self.source, self.formats, self.feed, self.jobs = source, formats, feed, list(jobs)
        self._unparsed, self._path = Unparsed(source.name, formats.spec), ""
        self._last_line_s: float | None = None  # when the source last gave lines, or was first looked at
        self._scanned = Moment(0, 0.0)
        self._found_since: float | None = None

    def settle(self) -> None:
        """Cut every job: the rows of its worker go to its panes."""
        for job in self.jobs:
            job.cut()

    def scan(self, now: Moment) -> None:
        """See `Source.scan`, whose clock is the steady one."""
        self.source.scan(now.steady_s)
        self._scanned = now

    def read(self, now: Moment, deadline: float, has_room: Callable[[], bool] = lambda: True) -> bool:
        """Read until `deadline` (monotonic), or until `has_room` returns False. Returns whether more is waiting."""
        if self._last_line_s is None:
            self._last_line_s = now.steady_s
        while (block := self.source.read(now.steady_s)) is not None:
            self._take(block, now)
            if time.monotonic() >= deadline or not has_room():
                return True
        return False

    def _take(self, block: Block, now: Moment) -> None:
        now_us = now.wall_us
        retained = [job.windows.retained_us for job in self.jobs]
        # Lines that are too late count in the current pane, even if the clock has moved it on since the last line.
        latest = [self.feed.time_max, *(job.reached_us for job in self.jobs)]
        late_us = max((time for time in latest if time is not None), default=now_us)
        self.feed.take(block, now_us=now_us, retained_us=retained, late_us=late_us)
        self._last_line_s, self._path = now.steady_s, block.path
        if block.last:
            self.feed.files.pop(block.file, None)
            self.formats.forget(block.file)

    def take_notices(self, now: Moment) -> list[str]:
        """Notices about the source since the last call."""
        notices = list(self.source.notices)
        self.source.notices.clear()
        notice = self._unparsed.look(int(now.steady_s * 1e6), self.feed.totals, self._path)
        notices += self._formats_found(now.steady_s, at_once=notice is not None)
        return notices if notice is None else [*notices, notice]

    def _formats_found(self, now_s: float, *, at_once: bool) -> list[str]:
        if not self.formats.has_found:
            return []
        if self._found_since is None:
            self._found_since = now_s
        if not (at_once or self.source.at_end or now_s - self._found_since >= GATHER_S):
            return []
        self._found_since = None
        return self.formats.take_found()

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
        if complete is not None and self._last_line_s is not None:
            idle_us = self._scanned.wall_us - QUIET_US
            quiet_s = complete - self._last_line_s
            if quiet_s * 1e6 >= QUIET_US and (latest is None or idle_us > latest):
                latest = idle_us
        return None if latest is None else min(latest, now_us)


def wire(
    source: Input,
    formats: FormatChoice,
    jobs: Sequence[LiveJob],
    timezone: str,
    agent: str,
    bounds: tuple[int | None, int | None] | None = None,
    kind: type[LiveSource] = LiveSource,
) -> LiveSource:
    """A source with a feed for its jobs. bounds: only lines of [since, until)."""
    workers = [job.worker for job in jobs]

    def settle() -> None:
        live.settle()

    feed = Feed(
        formats.of,
        workers,
        columns=columns_for(workers),
        settle=settle,
        head=lambda block: source.head(block.file),
        timezone=timezone,
        agent=agent,
        bounds=bounds,
        strings_max=STRINGS_MAX,
    )
    live = kind(source, formats, feed, jobs)
    return live
