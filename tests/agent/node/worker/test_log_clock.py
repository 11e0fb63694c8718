"""The latest time that a lost line may have, where the clock of the logs and that of the agent disagree."""

from __future__ import annotations

from elf.agent.node.worker.log_clock import LogClock
from elf.srt.messages.messages import NO_WATERMARK

SECOND = 1_000_000
NOON = 43_200 * SECOND


def clock() -> LogClock:
    return LogClock(10 * SECOND, 5 * SECOND)


def test_where_the_clocks_agree_no_line_is_later_than_now() -> None:
    logs = clock()
    logs.read(NOON - SECOND, NOON)
    logs.read(NO_WATERMARK, NOON)
    assert logs.latest(NOON) == NOON


def test_a_line_that_is_later_than_this_clock_shows_that_the_logs_clock_is_ahead() -> None:
    logs = clock()
    logs.read(NOON + 2 * SECOND, NOON)
    logs.read(NOON + 61 * SECOND, NOON + 60 * SECOND)
    assert logs.latest(NOON + 60 * SECOND) == NOON + 62 * SECOND
    logs.read(NOON + 300 * SECOND, NOON + 60 * SECOND)
    assert logs.latest(NOON + 60 * SECOND) == NOON + 65 * SECOND, "one wrong line costs five seconds at most"


def test_the_logs_clock_need_not_be_set_back_with_this_one() -> None:
    logs = clock()
    logs.set_back(NOON, NOON - 4 * SECOND)
    assert logs.latest(NOON + SECOND) == NOON + 5 * SECOND
    logs.set_back(NOON + 2 * SECOND, NOON + 1_500_000)
    assert logs.latest(NOON + 2 * SECOND) == NOON + 6_500_000, "steps add up"


def test_lines_from_before_a_long_step_may_still_be_unread_for_some_seconds() -> None:
    logs = clock()
    logs.set_back(NOON, NOON - 60 * SECOND)
    assert logs.latest(NOON - 51 * SECOND) == NOON
    assert logs.latest(NOON - 50 * SECOND) == NOON - 45 * SECOND
