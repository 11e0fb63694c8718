"""Which settings each window of a job has, by the log's schedule: how long it waits, is kept, and where it goes."""

from __future__ import annotations

from elf.jobmaster.directory.settings import Settings, every, retained_from, settings_at, sinks_of
from elf.jobmaster.log.job_state import JobState, WindowKey
from elf.srt.messages.messages import Micros

UNBOUNDED = 1 << 40
"""More groups than any window has."""


class WindowSettings:
    """base: the job's settings before the first line of the schedule that carries any."""

    def __init__(self, state: JobState, base: Settings) -> None:
        self.base, self._state = base, state

    @property
    def every(self) -> list[Settings]:
        """Those of all windows that the schedule has, oldest first."""
        return every(self._state.schedule, self.base)

    @property
    def newest(self) -> Settings:
        """Those of the windows to come."""
        return self.every[-1]

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks to which windows go, or went that may be published again."""
        return sinks_of(self.every)

    def of(self, key: WindowKey) -> Settings:
        """Rule Settings*: a window has the settings in force at the first time that it covers, whoever publishes it and when."""
        if len(self._state.schedule) < 2:
            return self.newest
        covers_us = self._state.covers(*key)[0] if key[0] in self._state.touched else key[1]
        return settings_at(self._state.schedule, covers_us, self.base)

    def sample(self, key: WindowKey) -> int:
        """See `Contents`. A window without a limit may reach over panes that have one, and so have rows `other`."""
        own = self.of(key).limits.sample
        return own or (UNBOUNDED if any(each.limits.sample for each in self.every) else 0)

    def retained_from(self, done_us: Micros, times: int) -> Micros:
        """See `elf.jobmaster.directory.settings.retained_from`."""
        return retained_from(self._state.schedule, self.base, done_us, times)
