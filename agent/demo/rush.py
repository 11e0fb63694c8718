"""The demo's alert: it fires when many visitors come at once, and is resolved when they are fewer. What the webhook received of
it is compared with one pass over the raw logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from elf.agent.demo.oracle import fields

WINDOW_US = 2_000_000
LEAST = 900
"""Requests in a window: at night there are a quarter, at noon and in the evening half as many again."""
JOB = f"""\
lateness = "1s"
sql = "SELECT window, count(*) AS hits FROM access GROUP BY window(time, '2 seconds')"

[[alert]]
name = "rush"
when = "hits > {LEAST}"
text = "{{hits}} requests in two seconds"
sinks = ["hook"]
"""

Event = dict[str, Any]
"""A change of the alert, as a sink gets it."""


def count_lines(paths: Iterable[Path]) -> Counter[int]:
    """The lines of each window, by its start in microseconds."""
    found: Counter[int] = Counter()
    for path in paths:
        with path.open("rb") as lines:
            found.update(fields(line)[0] // WINDOW_US * WINDOW_US for line in lines)
    return found


def is_over(events: Sequence[Event]) -> bool:
    """Whether nothing fires."""
    return not events or events[-1]["state"] == "resolved"


def check(events: Sequence[Event], counted: Counter[int], say: Callable[[str], None]) -> int:
    """Print each change, and whether the raw logs agree: it fires by a window with more than `LEAST` lines, and is resolved by
    one that has not more. A window may lack the lines of the agent that is dead; so not each one with more must have fired.
    events: in the order of their times. Returns the exit code."""
    wrong, is_firing = 0, False
    for event in events:
        start = _start_of(event)
        agrees = (event["state"] == "firing") == (counted[start] > LEAST) != is_firing
        is_firing = event["state"] == "firing"
        why = event["text"] if is_firing else f"{counted[start]:,} requests"
        say(
            f"alert rush: {event['state']} at {event['at'][11:19]}, {why}{'' if agrees else ': the logs DIFFER'}"
        )
        wrong += not agrees
    if is_firing or (not events and max(counted.values(), default=0) > LEAST):
        say("alert rush: the webhook did not receive all of its changes")
        return 1
    return int(wrong > 0)


def _start_of(event: Event) -> int:
    return int(datetime.fromisoformat(event["at"]).timestamp()) * 1_000_000 - WINDOW_US
