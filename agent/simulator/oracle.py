"""The oracle: what every window must hold, from one pass over all lines in plain Python, beside what the sinks were told.

For every publication that a sink accepted:
1. *never more*: no group counts a line twice, or a line that was not written yet;
2. *final means final*: a final window with full coverage holds every line that its expected agents wrote in time;
3. at the end, when all is healed and quiet: the last revision of every window holds every line, with full coverage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from elf.agent.simulator.sources import VirtualSource
from elf.srt.ids import JobId, NodeId, short
from elf.srt.messages import Micros, Put

Groups = dict[str, tuple[int, int]]
"""Key -> (lines, sum of bytes)."""


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the program)
    """A window is wrong."""


class Server(msgspec.Struct):
    """A web server as the oracle knows it. since_us: world time from which its agent was known to the mesh."""

    source: VirtualSource
    since_us: int


def groups_of(put: Put) -> Groups:
    """The published rows (window, key, hits, bytes) by key."""
    return {row[1]: (row[2], row[3] or 0) for row in put.rows}


class Oracle:
    """Holds publications against the lines themselves. Times of the lines are event times; `now_us` is the world's."""

    def __init__(self, lateness_us: int) -> None:
        self.servers: dict[NodeId, Server] = {}
        self.lateness_us = lateness_us
        self.last: dict[tuple[JobId, str, Micros], Put] = {}
        self.finals = self.revisions = self.opens = 0

    def truth(
        self, from_us: Micros, to_us: Micros, written_until_us: int, servers: Iterable[Server]
    ) -> Groups:
        """One pass over the lines with an event time in [from, to) that were written by then."""
        out: Groups = {}
        for server in servers:
            for event, key, size in server.source.lines_between(from_us, to_us, written_until_us):
                name = server.source.key_name(key)
                hits, total = out.get(name, (0, 0))
                out[name] = hits + 1, total + size
        return out

    def accepted(self, put: Put, now_us: int) -> None:
        """A sink took this publication. Raises Violation."""
        low, high = max(put.start, put.covers[0]), min(put.end, put.covers[1])
        told = groups_of(put)
        written = self.truth(low, high, now_us, self.servers.values())
        for key, (hits, total) in told.items():
            most = written.get(key, (0, 0))
            if hits > most[0] or total > most[1]:
                raise Violation(f"{_name(put)}: {key} has {hits} lines, only {most[0]} were written")
        if put.status == "open":
            self.opens += 1
        else:
            self._check_final(put, told, low, high, now_us)
        self.last[put.job, put.version, put.start] = put

    def _check_final(self, put: Put, told: Groups, low: Micros, high: Micros, now_us: int) -> None:
        if put.status == "final":
            self.finals += 1
        else:
            self.revisions += 1
        if put.agents_reporting < put.agents_expected:
            return
        known = [server for server in self.servers.values() if server.since_us <= low]
        for key, least in self.truth(low, high, high + self.lateness_us, known).items():
            if told.get(key, (0, 0)) < least:
                raise Violation(
                    f"{_name(put)}: {put.status} with full coverage has {told.get(key, (0, 0))[0]} lines of {key}, "
                    f"{least[0]} were written in time"
                )

    def check_end(
        self, jobs: Sequence[tuple[JobId, Sequence[tuple[str, Micros, Micros, Micros]]]], now_us: int
    ) -> None:
        """After all is quiet: `jobs` gives for each job (version, size, covers from, covers to) of its schedule."""
        for job, versions in jobs:
            for version, size, from_us, to_us in versions:
                for start in range(from_us - from_us % size, to_us, size):
                    self._check_last(
                        job, version, start, max(start, from_us), min(start + size, to_us), now_us
                    )

    def _check_last(
        self, job: JobId, version: str, start: Micros, low: Micros, high: Micros, now_us: int
    ) -> None:
        truth = self.truth(low, high, now_us, self.servers.values())
        put = self.last.get((job, version, start))
        if put is None:
            if truth:
                raise Violation(
                    f"job {short(job)} window {start}: never published, {len(truth)} groups missing"
                )
            return
        told = groups_of(put)
        if told != truth:
            wrong = next(key for key in {**told, **truth} if told.get(key) != truth.get(key))
            raise Violation(
                f"{_name(put)}: at the end {wrong} has {told.get(wrong)} (lines, bytes), the logs have {truth.get(wrong)}"
            )
        if put.status == "open" or put.agents_reporting < put.agents_expected:
            raise Violation(
                f"{_name(put)}: at the end it is {put.status}, {put.agents_reporting} of {put.agents_expected} agents"
            )


def _name(put: Put) -> str:
    return f"job {short(put.job)} version {put.version} window {put.start} revision {put.revision[0]}.{put.revision[2]}"
