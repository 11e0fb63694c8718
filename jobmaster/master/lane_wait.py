"""Rule Wait*: when the next change of a job waits, because workers read lines again for the one before.

Without it, a job that is changed again and again would read the same windows again and again, and none would ever be final.

    state  | event                                                                    | next
    -------+--------------------------------------------------------------------------+-------------------------------------
    free   | a change with a lane is in the log, or this master begins with a lane    | waits
    waits  | the windows that are due are proposed; the lane has ended, or is left    | waits, until these are in the log
    waits  | they are in the log, and no other change is                              | free

A lane is left when the workers that still read are fewer than half, and `hold_us_max` is over: windows do not wait for them any
longer either (`publication`).
"""

from __future__ import annotations

from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import AFTER_ALL, number_of


class LaneWait:
    """state: the log's; hold_us_max: see `Parameters`."""

    def __init__(self, state: JobState, hold_us_max: int) -> None:
        self._state, self._hold_us_max = state, hold_us_max
        self._since_us: int | None = None
        self.is_on = False
        self.changed()

    def changed(self) -> None:
        """The log has another schedule, and maybe a lane, or this master begins."""
        self.is_on, self._since_us = self._state.positions.lane is not None, None

    def look(self, now: int) -> None:
        """Note the time; the clock may step back."""
        if self.is_on:
            self._since_us = now if self._since_us is None else min(now, self._since_us)

    def has_ended(self, now: int) -> bool:
        """Whether the wait is over once the windows that are due are in the log. O(1); O(roster) after `hold_us_max`."""
        lane = self._state.positions.lane
        if not self.is_on or lane is None:
            return self.is_on
        if self._since_us is None or now < self._since_us + self._hold_us_max:
            return False
        members = self._state.positions.roster.values()
        return 2 * len(lane.open) < sum(member.until_us == AFTER_ALL for member in members)

    def release(self, schedule: int) -> None:
        """The windows that were due under the schedule of that number are in the log."""
        if schedule == number_of(self._state.schedule):
            self.is_on = False
