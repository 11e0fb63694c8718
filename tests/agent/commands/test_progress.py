"""The progress bar and its words."""

from __future__ import annotations

import io

import pytest

from elf.agent.commands.rejects import reject_lines
from elf.agent.formats.batch import Reject
from elf.agent.formats.fields import Reason
from elf.agent.run.progress import ProgressBar, bar_text, clock_text, count


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_shows_share_rate_and_time_left() -> None:
    assert bar_text(1 << 30, 4 << 30, 3_000_000, 10.0) == (
        "██████··················  25%  1 GiB of 4 GiB  300,000 lines/s  0:30 left"
    )
    assert bar_text(4 << 20, None, 1_000, 2.0) == "4 MiB  500 lines/s"
    assert bar_text(5, 5, 10, 1.0).startswith("█" * 24 + " 100%")
    assert bar_text(0, 5, 0, 0.0).endswith("0 lines/s")


def test_bar_is_drawn_at_most_ten_times_a_second_and_not_for_short_runs() -> None:
    now = [0.0]
    stream = Terminal()
    bar = ProgressBar(lambda: now[0], stream)
    for tick in range(200):
        now[0] = tick / 100
        bar.update(tick, 200, tick)
    assert stream.getvalue().count("\r") == 15  # from 0.5 s to 1.99 s
    bar.clear()
    assert stream.getvalue().endswith("\r\x1b[K")
    before = stream.getvalue()
    bar.clear()
    assert stream.getvalue() == before


def test_nothing_is_drawn_in_a_pipe() -> None:
    now = [0.0]
    stream = io.StringIO()
    bar = ProgressBar(lambda: now[0], stream)
    now[0] = 9.0
    bar.update(1, 2, 3)
    bar.clear()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3_661, "1:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_count() -> None:
    assert (count(1, "line"), count(12_345, "line")) == ("1 line", "12,345 lines")


@pytest.mark.parametrize("offset", [0, 5, 500, 1_000])
def test_caret_stands_under_the_place(offset: int) -> None:
    line = bytes(97 + n % 26 for n in range(1_000))
    place, excerpt, caret = reject_lines(Reject(Reason.LITERAL, line, offset, "x", "f"), 80)
    assert place == f"in f, at byte {offset:,}: expected x"
    assert len(excerpt) <= 80
    at = caret.index("^")
    assert excerpt[at : at + 1] == line[offset : offset + 1].decode()
    shown = excerpt[2:at].lstrip("…").encode()
    assert line[:offset].endswith(shown)
