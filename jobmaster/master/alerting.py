"""When the alerts of a job are judged at its master: by each window that is final in the log, in the order of their ends.

    Final is committed -> its rows are looked at (`RowJudge`), and what holds waits -> no earlier window is open any more
                       -> Judged proposed -> committed: the book of the job's state has it -> sinks are notified

Only one Judged entry is under way at a time. A master that takes over reads the final windows again that no entry has judged.
Between two windows with lines there may be time without: once all agents have passed it, it counts as a complete window without
rows.

Rule Once* is the book's. A window that is left out for good (past retention before it was judged, or withdrawn) changes no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from elf.jobmaster.alerts.book import Hit, JudgedWindow, Judgement
from elf.jobmaster.alerts.replay import next_end
from elf.jobmaster.delivery.outbox import LATER
from elf.jobmaster.directory.settings import Settings, settings_at
from elf.jobmaster.log.entries import Judged
from elf.jobmaster.log.job_state import JobState, WindowKey
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, in_force, plan_of
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.ready import Ready
from elf.srt.messages.messages import Micros

LOOK_US = 1_000_000
"""How often time without lines is looked at, while an alert is pending or firing, or one says that there is no data."""
SLACK_US = 5_000_000
"""How much longer than its lateness and its length a window with lines may take to be final before there is "no data": an
agent's cut, a tree and a commit take less than a second."""
WAITING_MAX = 64
"""Windows whose rows were looked at and that wait for an earlier one; others are read again. Each holds at most 100 hits of
each alert."""


class _Seen(msgspec.Struct, frozen=True):
    """What the rows of a final window say. is_cut: not all rows were looked at."""

    hits: dict[str, tuple[Hit, ...]]
    left_out: dict[str, int]
    has_lines: bool
    is_cut: bool


class Alerting:
    """The alerts of one job at its master. has_room: whether the log takes an entry."""

    def __init__(
        self, state: JobState, publication: Publication, log: Proposals, has_room: Callable[[], bool]
    ) -> None:
        self._state, self._publication, self._log, self._has_room = state, publication, log, has_room
        self._settings = publication.settings
        self._waiting: dict[WindowKey, _Seen | None] = {}
        """Final windows that no entry has judged yet; None: to be read again."""
        self._judges: dict[str, Any] = {}
        self._is_under_way = False
        self._begun_us = 0
        self._at: int | None = None

    def begin(self, now: int) -> None:
        """The master begins to serve."""
        self._begun_us = now
        book = self._state.alerts
        self._waiting = dict.fromkeys(key for key in self._state.finals if self._end(key) > book.until_us)

    @property
    def _is_wanted(self) -> bool:
        return not self._state.alerts.is_idle or any(each.alerts for each in self._settings.every)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work."""
        return self._at

    def _end(self, key: WindowKey) -> Micros:
        return self._state.covers(*key)[1]

    # ---- the log ----

    def published(self, ready: Ready) -> None:
        """A window is final in the log, with these rows."""
        if not self._is_wanted or not self._state.shape(ready.key[0]).pane_us:
            return
        if self._end(ready.key) <= self._state.alerts.until_us:
            return  # rule Once*
        held = sum(seen is not None for seen in self._waiting.values())
        self._waiting[ready.key] = self._look_at(ready) if held < WAITING_MAX else None

    def committed(self) -> None:
        """A Judged entry is in the log."""
        self._is_under_way = False
        book = self._state.alerts
        self._waiting = {
            key: seen
            for key, seen in self._waiting.items()
            if key in self._state.finals and self._end(key) > book.until_us
        }

    # ---- judging ----

    def look(self, now: int) -> None:
        """Propose the next judgement, if there is one. O(1) for a job without alerts."""
        if not self._is_wanted:
            self._waiting.clear()
            self._at = None
            return
        self._at = now + LOOK_US
        if self._is_under_way or not self._has_room():
            return
        found = self._next(now)
        if found is not None:
            self._is_under_way = True
            self._log.propose(Judged(found))
        is_clock = not self._state.alerts.is_idle or any(
            each.is_no_data for each in self._settings.newest.alerts
        )
        if not self._waiting and not is_clock:
            self._at = None

    def tick(self, now: int) -> None:
        """Look, if it is time."""
        if self._at is not None and (now >= self._at or self._at > now + LOOK_US):
            self.look(now)

    def _next(self, now: int) -> Judgement | None:
        first_open = self._first_open()
        while self._waiting:
            key = min(self._waiting, key=lambda each: (self._end(each) if self._is_there(each) else 0, each))
            if not self._is_there(key) or self._end(key) <= self._state.alerts.until_us:
                del self._waiting[key]
                continue
            if self._state.alerts.until_us < first_open < self._end(key):
                return None  # an earlier one has lines, and is judged first
            gap = self._gap(self._state.shape(key[0]), self._end(key) - self._state.shape(key[0]).slide_us)
            found = gap if gap is not None else self._judge(key)
            if found is not None or key in self._waiting:
                return found
        return self._idle(first_open) or self._silence(first_open, now)

    def _first_open(self) -> Micros:
        """The end of the first window that has lines and is not final in the log; `AFTER_ALL` without one. O(windows)."""
        return min(
            (
                self._end((version, start))
                for version, starts in self._publication.unsettled.unfinal.items()
                if version in self._state.touched and self._state.shape(version).pane_us
                for start in starts
            ),
            default=AFTER_ALL,
        )

    def _is_there(self, key: WindowKey) -> bool:
        return key in self._state.finals and key[0] in self._state.touched

    def _judge(self, key: WindowKey) -> Judgement | None:
        """The judgement by a final window; None while its rows are read again, and if there is nothing to record."""
        settings = self._settings.of(key)
        book = self._state.alerts
        if not settings.alerts and book.is_idle:
            del self._waiting[key]
            return None
        seen = self._waiting[key] or self._reread(key)
        if seen is None:
            return None
        known, shape = self._state.finals[key], self._state.shape(key[0])
        is_whole = known.passed == known.expected and known.covers == (key[1], key[1] + shape.size_us)
        is_complete = is_whole and not seen.is_cut
        about = self._end(key), shape.slide_us, is_complete, seen.has_lines, seen.hits, seen.left_out
        return book.judge(JudgedWindow(*about), settings.alerts, settings.sinks)

    def _reread(self, key: WindowKey) -> _Seen | None:
        """Look at the rows of a window that this master has not published. None: later, or with its next revision."""
        ready = self._publication.reread(key)
        if ready == LATER:
            return None
        if ready is None:
            if self._state.is_past(*key):
                del self._waiting[key]
            return None
        return self._look_at(ready)

    def _look_at(self, ready: Ready) -> _Seen:
        from elf.jobmaster.alerts.rows import ROWS_MAX, RowJudge  # functions are imported where they are used

        version = ready.key[0]
        if version not in self._judges:
            known = {line.version for line in self._state.schedule}
            self._judges = {each: judge for each, judge in self._judges.items() if each in known}
            plan = plan_of(next(line.plan for line in self._state.schedule if line.version == version))
            self._judges[version] = RowJudge(plan)
        rows = ready.rows[: len(ready.rows) - ready.others] if ready.others else ready.rows
        hits, left_out = self._judges[version].hits(self._settings.of(ready.key).alerts, rows)
        return _Seen(hits, left_out, ready.lines.read > 0, len(rows) > ROWS_MAX)

    # ---- time without lines ----

    def _gap(self, shape: Shape, until_us: Micros) -> Judgement | None:
        """What the windows without lines change that end after the last judged one, up to that time: the first of them that is
        complete, or else the last."""
        book = self._state.alerts
        if book.is_idle or not book.until_us or not shape.slide_us:
            return None
        first = _next_end(shape, book.until_us)
        last = _next_end(shape, until_us) - (0 if _is_end(shape, until_us) else shape.slide_us)
        for end in dict.fromkeys((first, last)):
            if first <= end <= until_us:
                found = self._empty(shape, end)
                if found is not None:
                    return found
        return None

    def _empty(self, shape: Shape, end_us: Micros) -> Judgement | None:
        """What a window without lines changes, if all agents have passed it."""
        settings = self._settings_at(end_us - shape.slide_us)
        if not self._have_all_passed(end_us - shape.size_us, end_us, settings.lateness_us):
            return None
        found = self._state.alerts.judge(
            JudgedWindow(end_us, shape.slide_us, True, False), settings.alerts, settings.sinks
        )
        return found if found.changes else None

    def _have_all_passed(self, start_us: Micros, end_us: Micros, lateness_us: Micros) -> bool:
        """Whether all agents would have reported a window's lines by now, and none has lost some."""
        progress = self._publication.settle().within(lateness_us)
        return progress.of_final(start_us, end_us).is_whole

    def _idle(self, first_open: Micros) -> Judgement | None:
        """What the first window without lines changes after all that are final."""
        book = self._state.alerts
        if book.is_idle or not book.until_us or not self._state.schedule:
            return None
        shape = self._state.positions.shapes.get(in_force(self._state.schedule, book.until_us).version)
        if shape is None or not shape.slide_us:
            return None
        end = _next_end(shape, book.until_us)
        return None if first_open <= end else self._empty(shape, end)

    def _silence(self, first_open: Micros, now: int) -> Judgement | None:
        """What changes because no window with lines has come."""
        settings, schedule = self._settings.newest, self._state.schedule
        if not any(each.is_no_data for each in settings.alerts) or not schedule:
            return None
        book = self._state.alerts
        if book.until_us < first_open < now:
            return None  # there are lines
        size_us = max((shape.size_us for shape in self._state.positions.shapes.values()), default=0)
        begun_us = max(schedule[-1].from_us, 0 if book.data_us else self._begun_us)
        return book.silence(
            settings.alerts, begun_us, now, settings.lateness_us + size_us + SLACK_US, settings.sinks
        )

    def _settings_at(self, time_us: Micros) -> Settings:
        return settings_at(self._state.schedule, time_us, self._settings.base)


def _is_end(shape: Shape, time_us: Micros) -> bool:
    return (time_us - shape.size_us) % shape.slide_us == 0


def _next_end(shape: Shape, time_us: Micros) -> Micros:
    return next_end(shape.size_us, shape.slide_us, time_us)
