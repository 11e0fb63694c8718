"""Limits the processor time that reading takes: `cpu_max`.

Only reading is delayed. The work that keeps the mesh together is cheap and must be on time, and a log that is read later is read
in larger pieces, which costs less for each line.
"""

from __future__ import annotations

BURST_S = 1.0
"""Unused time that may be used at once, for a first reading or a merge."""


class CpuShare:
    """A token bucket that fills with `cores` seconds of processor time a second. The caller passes the times of both clocks."""

    def __init__(self, cores: float, used_s: float, now_s: float) -> None:
        self.cores = cores
        self._used_s, self._at_s = used_s, now_s
        self._left_s = cores * BURST_S

    def wait_s(self, used_s: float, now_s: float) -> float:
        """How long reading should wait, when the process has used `used_s` in all."""
        gained = (now_s - self._at_s) * self.cores - (used_s - self._used_s)
        self._left_s = min(self._left_s + gained, self.cores * BURST_S)
        self._used_s, self._at_s = used_s, now_s
        return max(0.0, -self._left_s / self.cores)
