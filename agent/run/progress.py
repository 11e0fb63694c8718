"""The progress of a long run on stderr: a bar while it reads, and a closing line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from elf.agent.config.units import size_text

BAR_PLACES = 24
REDRAW_SECONDS = 0.1
SLOWEST_FIRST = 0.5  # a run that ends sooner shows no bar at all


class ProgressBar:
    """One line, redrawn in place. `clock` gives seconds; nothing is written unless `stream` is a terminal."""

    def __init__(self, clock: Callable[[], float], stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._started = clock()
        self._next = self._started + SLOWEST_FIRST
        self._shown = False
        self._visible = self._stream.isatty()

    def update(self, bytes_done: int, bytes_total: int | None, lines: int) -> None:
        """Draw again, at most ten times a second."""
        self.draw(lambda seconds: bar_text(bytes_done, bytes_total, lines, seconds))

    def draw(self, text_after: Callable[[float], str]) -> None:
        """Draw the text that `text_after` gives for the seconds since the beginning."""
        now = self._clock()
        if not self._visible or now < self._next:
            return
        self._next = now + REDRAW_SECONDS
        text = text_after(now - self._started)
        import shutil

        width = shutil.get_terminal_size((80, 24)).columns
        self._stream.write(f"\r\x1b[K{text[: width - 1]}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Clear the bar from the screen, if it is shown."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def bar_text(bytes_done: int, bytes_total: int | None, lines: int, seconds: float) -> str:
    """`██████····  42%  1.2 GiB of 2.9 GiB  3,100,000 lines/s  0:07 left`; without a known total only what is done."""
    rate = f"{lines / seconds if seconds > 0 else 0:,.0f} lines/s"
    if not bytes_total:
        return f"{size_text(bytes_done)}  {rate}"
    return percent_text(
        bytes_done / bytes_total, [f"{size_text(bytes_done)} of {size_text(bytes_total)}", rate], seconds
    )


def percent_text(done: float, facts: Sequence[str], seconds: float) -> str:
    """A bar that is full at 1, the percentage, facts, and the time left at the speed of the `seconds` so far."""
    done = min(1.0, done)
    full = int(done * BAR_PLACES)
    bar = "█" * full + "·" * (BAR_PLACES - full)
    parts = [f"{bar} {done:4.0%}", *facts]
    if 0 < done < 1 and seconds > 0:
        parts.append(f"{clock_text(seconds * (1 - done) / done)} left")
    return "  ".join(parts)


def clock_text(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def count(n: int, what: str) -> str:
    """`1 line`, `12,345 lines`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
