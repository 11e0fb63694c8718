"""The calendar of a simulated world against one sorted list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.simulator.world.calendar import Calendar

Plan = list[tuple[int, list[int]]]
STEPS = st.lists(
    st.tuples(st.integers(0, 5_000), st.lists(st.integers(0, 3_000), max_size=4)), min_size=1, max_size=40
)


def nothing(a: Any, b: Any) -> None:
    """What the events of these tests do."""


@settings(derandomize=True, max_examples=200, deadline=None)
@given(STEPS)
def test_events_come_in_order_of_time_and_of_making(steps: Plan) -> None:
    """Some are made before each moment, some while others are taken: never for a time that is over."""
    calendar, waiting, made, now = Calendar(), list[tuple[int, int]](), 0, 0

    def add(after_us: int) -> None:
        nonlocal made
        made += 1
        calendar.add(now + after_us, nothing, made, None)
        waiting.append((now + after_us, made))

    for span, delays in steps:
        for delay in delays:
            add(delay)
        until = now + span
        for event in calendar.upto(until):
            now = event[0]
            assert (now, event[3]) == min(waiting)
            waiting.remove(min(waiting))
            if made % 3:
                add(delays[made % len(delays)] if delays else made % 50)
        assert all(at > until for at, _ in waiting)
        now = until


def test_it_takes_what_it_was_given() -> None:
    calendar = Calendar()
    done: list[tuple[int, int]] = []
    do: Callable[[Any, Any], None] = lambda a, b: done.append((a, b))  # noqa: E731
    calendar.add(2_000, do, 1, 2)
    assert list(calendar.upto(1_999)) == []
    for _, _, act, a, b in calendar.upto(2_000):
        act(a, b)
    assert done == [(1, 2)]
    assert list(calendar.upto(1 << 40)) == []
