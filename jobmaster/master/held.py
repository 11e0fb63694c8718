"""Windows that are due, and wait for workers that have not reported; and since when."""

from __future__ import annotations

from collections.abc import Callable

from elf.jobmaster.log.job_state import WindowKey


class Held:
    """hold_us_max: µs for which each window waits; see `Parameters`."""

    def __init__(self, hold_us_max: int) -> None:
        self._hold_us_max = hold_us_max
        self._since: dict[WindowKey, int] = {}

    def holds(self, key: WindowKey, now: int) -> bool:
        """Whether that window still waits; begins its wait at the first call. The clock may step back."""
        since = self._since[key] = min(now, self._since.get(key, now))
        return now - since < self._hold_us_max

    def drop(self, key: WindowKey) -> bool:
        """The window is published, or does not wait. Returns whether it has waited."""
        return self._since.pop(key, None) is not None

    def leave_out(self, is_past: Callable[[str, int], bool]) -> None:
        """Forget windows whose panes are dropped."""
        for key in [key for key in self._since if is_past(*key)]:
            del self._since[key]

    def next_end(self, now: int) -> int | None:
        """When the next wait ends after `now`. O(windows that wait)."""
        ends = (since + self._hold_us_max for since in self._since.values())
        return min((end for end in ends if end > now), default=None)
