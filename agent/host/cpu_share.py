"""How much of the processor reading may take: `cpu_max`.

Only reading is held back. What keeps the mesh together is cheap and has to be in time, and a log that is read later is read in
larger pieces, which costs less for each line.
"""

from __future__ import annotations

BURST_S = 1.0
"""So much of what was not used lately may be used at once: a joiner's first reading, a merge."""


class CpuShare:
    """A bucket that fills at `cores` seconds of processor time a second. Seconds of both clocks are given."""

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
