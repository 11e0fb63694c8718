"""What waits at this agent: for the sinks of the jobs of which it is the master, and for its own sinks."""

from __future__ import annotations

from collections.abc import Iterable

from elf.agent.node.job_seat import JobSeat
from elf.srt.messages.reports import LAGS_MAX, SinkLag, SinkState


def lags_of(seats: Iterable[JobSeat], now: int) -> tuple[SinkLag, ...]:
    """The longest wait first; of those for which nothing waits the first ones. O(windows that wait)."""
    found = [
        SinkLag(
            seat.job,
            lag.target.name,
            lag.waiting,
            max(0, now - lag.since) if lag.since is not None else 0,
            lag.delivered,
            lag.lost,
        )
        for seat in seats
        if seat.master is not None
        for lag in seat.master.outbox.lags
        if lag.waiting or lag.lost or lag.delivered
    ]
    return tuple(sorted(found, key=lambda lag: -lag.oldest_us)[:LAGS_MAX])


def problem_of(state: SinkState) -> str:
    """What operators read of a sink of this agent that has a problem."""
    waits = "1 window waits" if state.waiting == 1 else f"{state.waiting:,} windows wait"
    return f"sink {state.name}: {state.problem}; {waits}, the oldest for {state.oldest_us // 1_000_000} s"
