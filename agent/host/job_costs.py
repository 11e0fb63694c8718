"""What each job costs this agent: processor time, bytes sent up its tree, groups, memory.

Processor time is that of the thread that does a job's work: the calls of its seat, with all that they send and write, and its
part of reading the source (`elf.agent.work.spent`). What jobs share outside of that (the overlay, gossip, encryption, syncs of
the disk) is charged to none. Figures of a second are means over the last ten.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from time import thread_time_ns
from typing import NamedTuple

from elf.agent.config.units import size_text
from elf.agent.host.memory import job_bytes
from elf.agent.node.job_seat import JobSeat
from elf.agent.work.estimate import most_in_a_pane
from elf.jobmaster.directory.limits import Limits
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId
from elf.srt.messages.reports import COSTS_MAX, JobCost

WAY_OUT = "group by fewer values, or give it another limit"
LOOKS = 10
"""Looks, a second each, over which means are taken."""


class _Look(NamedTuple):
    """Totals at one time. groups: the most in one pane of a cut since the look before."""

    at_s: float
    cpu_ns: Counter[JobId]
    sent_bytes: Counter[JobId]
    groups: Counter[JobId]


class JobCosts:
    """All jobs of one agent. `charge` is for one thread, that of the node. Memory: a few numbers for each job in the directory,
    for each look."""

    def __init__(self, clock_ns: Callable[[], int] = thread_time_ns) -> None:
        """clock_ns: processor time of the calling thread, in nanoseconds."""
        self.cpu_ns: Counter[JobId] = Counter()
        """Processor time of each job, in this process."""
        self._clock_ns = clock_ns
        self._job: JobId | None = None
        self._since_ns = 0
        self._groups: Counter[JobId] = Counter()
        self._over_s: dict[JobId, float] = {}  # when a job passed a limit last
        self._looks: deque[_Look] = deque(maxlen=LOOKS + 1)

    def charge(self, job: JobId | None) -> JobId | None:
        """From now on this thread works for that job; None: for no job. Returns the job it worked for before."""
        now_ns, former = self._clock_ns(), self._job
        if former is not None:
            self.cpu_ns[former] += now_ns - self._since_ns
        self._job, self._since_ns = job, now_ns
        return former

    def spent(self, amounts: Iterable[tuple[JobId, int]]) -> None:
        """Another thread has spent these nanoseconds for these jobs."""
        for job, ns in amounts:
            self.cpu_ns[job] += ns

    def cut(self, job: JobId, cut: Cut) -> None:
        """A job's source was cut. O(rows)."""
        for part in cut.parts.values():
            self._groups[job] = max(self._groups[job], most_in_a_pane(part.rows[0].pane))

    def look(self, now_s: float, sent_bytes: Counter[JobId]) -> None:
        """Note the totals. Call it every second. now_s: a clock that does not go back. sent_bytes: up each job's tree."""
        self._looks.append(_Look(now_s, self.cpu_ns.copy(), sent_bytes.copy(), self._groups))
        self._groups = Counter()

    def over(self, seats: Iterable[JobSeat]) -> list[tuple[JobId, str]]:
        """Jobs whose means are above their limits, and why. A job that was named here is measured anew from then on."""
        found = []
        last = self._looks[-1]
        for seat in seats:
            limits, since_s = seat.limits.newest, self._over_s.get(seat.job, 0.0)
            if not (limits.cpu_us or limits.sent_bytes):
                continue
            if len(self._looks) <= LOOKS or self._looks[0].at_s < since_s or seat.is_stopped:
                continue
            (cost,) = self._costs({seat.job: 0})
            if why := passed(cost, limits):
                self._over_s[seat.job] = last.at_s
                found.append((seat.job, why))
        return found

    def of(self, seats: Iterable[JobSeat]) -> tuple[JobCost, ...]:
        """The costs of these jobs, the most expensive first, at most `COSTS_MAX`."""
        jobs = {seat.job: job_bytes(seat) for seat in seats if not seat.is_stopped}
        costs = sorted(self._costs(jobs), key=lambda cost: (-cost.cpu_us, -cost.sent_bytes, cost.job))
        return tuple(costs[:COSTS_MAX])

    def _costs(self, jobs: Mapping[JobId, int]) -> Iterable[JobCost]:
        if len(self._looks) < 2:
            return
        first, last = self._looks[0], self._looks[-1]
        span_s = max(last.at_s - first.at_s, 1e-3)
        for job, held in jobs.items():
            cpu_us = int((last.cpu_ns[job] - first.cpu_ns[job]) / 1e3 / span_s)
            sent = int((last.sent_bytes[job] - first.sent_bytes[job]) / span_s)
            yield JobCost(job, cpu_us, sent, max(look.groups[job] for look in self._looks), held)


def passed(cost: JobCost, limits: Limits) -> str:
    """Why that cost is above the limits; "" if it is not."""
    if limits.cpu_us and cost.cpu_us > limits.cpu_us:
        return f"{cost.cpu_us / 1000:.0f} core-ms in a second, of {limits.cpu_us / 1000:.0f}; {WAY_OUT}"
    if limits.sent_bytes and cost.sent_bytes > limits.sent_bytes:
        rates = size_text(cost.sent_bytes), size_text(limits.sent_bytes)
        return f"{rates[0]} sent up in a second, of {rates[1]}; {WAY_OUT}"
    return ""
