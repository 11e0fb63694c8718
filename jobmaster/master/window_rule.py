"""When a window is final, and how many of the expected workers have reported. Pure: a state and times in, numbers out.

*Expected(window)* are the roster's workers whose interval overlaps the window. A worker is done with a window when its watermark
has passed the window's end and the lateness, it has no open lane there, and lost no lines there. A worker that left, with its
last line committed, is done with every window, except where it has lines of a lane to read again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.positions import UNABLE_US
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros


class Coverage(NamedTuple):
    """How many of the expected workers are done with a window (or, while it is open, have reported lines of it)."""

    passed: int
    expected: int

    @property
    def is_whole(self) -> bool:
        return self.passed == self.expected


class Progress:
    """The workers' progress at one moment as arrays: O(workers) to make, then a few vector operations for each window."""

    def __init__(self, state: JobState, lateness_us: Micros) -> None:
        members = state.positions.roster
        self._state, self._lateness_us = state, lateness_us
        self._others: dict[Micros, Progress] = {}
        self._from = np.array([member.from_us for member in members.values()], dtype=np.int64)
        self._until = np.array([member.until_us for member in members.values()], dtype=np.int64)
        marks = state.watermarks
        self._heard = np.array([marks.get(worker, BEFORE_ALL) for worker in members], dtype=np.int64)
        left = np.array([member.has_left for member in members.values()], dtype=np.bool_)
        self._done = np.where(left, AFTER_ALL, self._heard)
        self._gone = self._until != AFTER_ALL
        places = {worker: i for i, worker in enumerate(members)}
        self._hold_lanes(state, places)
        self._gaps = [(places[worker], gap) for worker, gap in state.gaps.items() if worker in places]
        self._unable = self.unable()
        self._done[self._unable] = AFTER_ALL
        self._gaps += [
            (at, (int(self._heard[at]), AFTER_ALL)) for at in np.flatnonzero(self._unable).tolist()
        ]

    @property
    def apart_from_watermarks(self) -> tuple[object, ...]:
        """All that the coverage of a window depends on which the watermarks of all expected workers have passed. O(workers)."""
        state, intervals = self._state, (self._from.tobytes(), self._until.tobytes())
        left = tuple(member.has_left for member in state.positions.roster.values())
        return (*intervals, left, tuple(self._gaps), tuple(lanes_open(state)))

    def within(self, lateness_us: Micros) -> Progress:
        """The same for windows of that lateness."""
        if lateness_us == self._lateness_us:
            return self
        if lateness_us not in self._others:
            self._others[lateness_us] = Progress(self._state, lateness_us)
        return self._others[lateness_us]

    def unable(self) -> NDArray[np.bool_]:
        """Rule Features*: the workers that cannot take part. No window waits for them, and those past their last watermark count
        them as missing."""
        return np.asarray(self._until == UNABLE_US)

    def _hold_lanes(self, state: JobState, places: dict[NodeId, int]) -> None:
        for worker, from_us in lanes_open(state):
            at = places.get(worker)
            if at is not None:
                self._done[at] = min(self._done[at], from_us + self._lateness_us)

    @property
    def highest(self) -> Micros:
        """No worker is done with a window if its end plus the lateness is past this time."""
        return int(self._done.max(initial=BEFORE_ALL))

    @property
    def lowest(self) -> Micros:
        """The workers that are still expected have promised at least up to this time."""
        return int(self._done[~self._gone].min(initial=AFTER_ALL)) if not self._gone.all() else BEFORE_ALL

    def of_open(self, start: Micros, end: Micros) -> Coverage:
        """How many workers have reached an open window. A line at its start suffices, because logs count whole seconds."""
        expected = self.expected(start, end)
        heard = self._without_lost(expected & (self._heard >= start), start, end)
        return Coverage(int(np.count_nonzero(heard)), int(np.count_nonzero(expected)))

    def of_final(self, start: Micros, end: Micros) -> Coverage:
        """How many workers are done with the window."""
        expected = self.expected(start, end)
        done = self._without_lost(expected & self.has_passed(end), start, end)
        return Coverage(int(np.count_nonzero(done)), int(np.count_nonzero(expected)))

    def _without_lost(self, workers: NDArray[np.bool_], start: Micros, end: Micros) -> NDArray[np.bool_]:
        """`workers` without those that have lost lines of the window, or could not read them."""
        for at, (low, high) in self._gaps:
            if (
                low - self._lateness_us < end and high > start
            ):  # lines that arrived within the lateness may be lost too
                workers[at] = False
        return workers

    def has_majority(self, start: Micros, end: Micros) -> bool:
        """Whether the watermarks of more than half of the expected workers have passed the window, and those of more than half
        that have not left. This can hold at only one of two masters, unless a worker has promised to both; whether a worker has
        lost lines of the window does not matter."""
        expected = self.expected(start, end) & ~self._unable
        passed = expected & self.has_passed(end)
        both = ((passed, expected), (passed & ~self._gone, expected & ~self._gone))
        return all(2 * np.count_nonzero(some) > np.count_nonzero(of) for some, of in both)

    def have_all_passed(self, start: Micros, end: Micros) -> bool:
        """Whether the watermarks of all expected workers have passed the window. A worker that is not done with it then has lost
        lines of it, and never will be done."""
        return not (self.expected(start, end) & ~self.has_passed(end)).any()

    def is_settled(self, start: Micros, end: Micros) -> bool:
        """Whether coverage cannot grow any more: all missing workers have left, or have lost lines of the window."""
        missing = self.expected(start, end) & ~self.has_passed(end) & ~self._gone
        return not missing.any()

    def expected(self, start: Micros, end: Micros) -> NDArray[np.bool_]:
        """Expected(window)*: taken from the roster, not from the workers that have reported."""
        return (self._from < end) & (self._until > start)

    def has_passed(self, end: Micros) -> NDArray[np.bool_]:
        """The workers whose watermark has passed the window's end and the lateness."""
        return np.asarray(self._done >= end + self._lateness_us)


def lanes_open(state: JobState) -> list[tuple[NodeId, Micros]]:
    """Rule Lane*: the workers that have lines to read again, and from which time. No window there is whole before they have
    read them."""
    lane = state.positions.lane
    return [(worker, lane.from_us) for worker in lane.open] if lane is not None else []
