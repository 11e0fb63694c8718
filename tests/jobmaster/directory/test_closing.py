"""When the next window closes: the lowest watermark above a given one at which some window is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elf.agent.simulator.mesh import version_of
from elf.jobmaster.directory.closing import next_close
from elf.jobmaster.directory.settings import Settings
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, plan_of
from elf.srt.messages.messages import Line, Schedule

SECOND = 1_000_000
BASE = Settings(2 * SECOND, 60 * SECOND)


def line(number: int, window: str, from_s: int, settings: bytes = b"") -> Line:
    version = version_of(window, number)
    return Line(number, version.digest, from_s * SECOND, version.plan, settings)


def closes(schedule: Schedule, until_s: int) -> list[int]:
    """All of them up to a time: each window's end, clipped to its version's, plus the lateness at its version's start."""
    found = set()
    stops = [*(each.from_us for each in schedule[1:]), AFTER_ALL]
    lateness = BASE.lateness_us
    for each, stop in zip(schedule, stops, strict=True):
        shape = Shape.of(plan_of(each.plan))
        lateness = SECOND if each.settings else lateness
        start = -(shape.size_us // shape.slide_us + 1) * shape.slide_us
        while start < until_s * SECOND:
            start += shape.slide_us
            end = start + shape.size_us
            if end > each.from_us and start < stop:
                found.add(min(end, stop) + lateness)
    return sorted(found)


SHORT = Settings(SECOND, 60 * SECOND).encode()
SCHEDULES: tuple[Schedule, ...] = (
    (line(1, "10 seconds", 0),),
    (line(1, "4 seconds/2 seconds", 0),),
    (line(1, "3 seconds/2 seconds", 0),),
    (line(1, "10 seconds", 0), line(2, "4 seconds/2 seconds", 17)),
    (line(1, "10 seconds", 0), line(2, "6 seconds", 13, SHORT), line(3, "10 seconds", 29)),
)


@given(st.sampled_from(SCHEDULES), st.integers(0, 60 * SECOND))
def test_it_is_the_first_of_all_windows_that_is_not_passed(schedule: Schedule, watermark_us: int) -> None:
    expected = min(close for close in closes(schedule, 120) if close > watermark_us)
    assert next_close(schedule, BASE, watermark_us) == expected


def test_a_window_of_ten_seconds() -> None:
    schedule = (line(1, "10 seconds", 0),)
    assert next_close(schedule, BASE, 11_999_999) == 12 * SECOND
    assert next_close(schedule, BASE, 12 * SECOND) == 22 * SECOND


def test_the_present_is_no_reason_to_look_at_versions_of_the_past() -> None:
    schedule = (line(1, "1 second", 0), line(2, "10 seconds", 20))
    assert next_close(schedule, BASE, 22 * SECOND) == 32 * SECOND
