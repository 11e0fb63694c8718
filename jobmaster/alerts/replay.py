"""What the alerts of a job would have said, had they been judged by these windows: a backtest.

The same book as at a master (`elf.jobmaster.alerts.book`), fed from a lake or from logs. Time without windows is time without
lines. What says "no data" counts by a master's clock, and is not replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.alerts.book import Book, JudgedWindow, Transition
from elf.srt.messages.messages import Micros


def next_end(size_us: Micros, slide_us: Micros, time_us: Micros) -> Micros:
    """The first end of a window past that time, whose starts are the multiples of the slide; that time itself is none."""
    return time_us + slide_us - (time_us - size_us) % slide_us


class Replay:
    """Judges windows in the order of their ends, each once."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self.book = Book()
        self._alerts = [each for each in alerts if not each.is_no_data]

    def take(self, window: JudgedWindow, size_us: Micros) -> list[Transition]:
        """What sinks would have heard because of that window; one that ends with or before an earlier one changes nothing.
        size_us: its length. O(instances + hits)."""
        book, step_us = self.book, window.step_us
        if window.until_us <= book.until_us:
            return []
        heard = list[Transition]()
        if not book.is_idle:
            empty_us = next_end(size_us, step_us, book.until_us)
            if empty_us <= window.until_us - step_us:
                heard += self._judge(JudgedWindow(empty_us, step_us, True, False))
        return heard + self._judge(window)

    def _judge(self, window: JudgedWindow) -> list[Transition]:
        found = self.book.judge(window, self._alerts)
        return [each.change for each in self.book.apply(found)]
