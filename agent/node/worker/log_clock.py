"""How far the clock that stamps the lines of a source may be ahead of this agent's clock.

No line of a log is later than its server's clock; so of lines that are lost, the agent knows the latest possible time, as long as
it knows that clock. The server's clock may be ahead of this one: this one was set back and the server's was not, as where the
log is that of another host or of a container with a clock of its own; or lines were read that are later than this clock.
"""

from __future__ import annotations

from elf.srt.messages.messages import NO_WATERMARK, Micros


class LogClock:
    """patience_us: for how long after a step back a line may still have the time before it. ahead_us_max: bound on how far the
    logs' clock is assumed to be ahead; one wrong line must not make windows of a whole day incomplete.

    Invariant: 0 <= ahead_us <= ahead_us_max.
    """

    __slots__ = ("_ahead_us_max", "_patience_us", "_set_back", "ahead_us")

    def __init__(self, patience_us: Micros, ahead_us_max: Micros) -> None:
        self._patience_us, self._ahead_us_max = patience_us, ahead_us_max
        self._set_back = 0, 0  # the last step back of this clock: from, to
        self.ahead_us = 0

    def set_back(self, before: Micros, after: Micros) -> None:
        """This agent's clock was set back."""
        self._set_back = before, after
        self._ahead(self.ahead_us + before - after)

    def read(self, newest: Micros, now: Micros) -> None:
        """Lines were read of which none is later than `newest`; NO_WATERMARK: unknown."""
        if newest != NO_WATERMARK:
            self._ahead(newest - now)

    def _ahead(self, by_us: Micros) -> None:
        self.ahead_us = min(max(self.ahead_us, by_us), self._ahead_us_max)

    def latest(self, now: Micros) -> Micros:
        """No line that was logged until now is later."""
        before, after = self._set_back
        return max(now + self.ahead_us, before if now - after < self._patience_us else now)
