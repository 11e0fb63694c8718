"""The oracle: what every window must hold, from the lines themselves and nothing else, beside what the sinks were told.

It shares no code with workers, reducers or the master: one table of all lines that any web server ever logs, and masks over it.

For every publication that a sink accepted:
1. *never more*: no group holds a line twice, one that was not written yet, or one outside the times it speaks for;
2. *in order*: revisions of a window only grow, and its line counters agree with its rows;
3. *whole means whole*: a final or revised window in which all expected agents have reported holds every line that agents known to
   the mesh wrote in time.
And when all is healed and quiet:
4. the last revision of every window of the job's schedule holds every line, is not open, and nobody is missing. Only agents that
   left for good may be, where a log had to begin anew, or a change of the job to read again, what only they had: then the window
   must say so by its coverage, and hold all lines of the others; or be one that was published before the log began anew, and is
   not published again since nobody could replay it whole.

In time is a line that was written before its server's clock could show the window's end plus the lateness: no promise of that
agent can have passed it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.simulator.sources import VirtualSource
from elf.srt.ids import JobId, short
from elf.srt.messages import Ballot, Micros, Put

Ints = NDArray[np.int64]
Groups = dict[str, tuple[int, int]]
"""Key -> (lines, sum of bytes)."""
ALWAYS = 1 << 62


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the program)
    """Something that must never be."""


class Server(msgspec.Struct, frozen=True):
    """A web server as the oracle knows it.

    known_us: event time from which its agent was surely known to the mesh; `ALWAYS` for one that may not be before the end.
    ahead_us: the most by which its clock, or its lines, ever show a later time than the virtual epoch plus the world's.
    """

    number: int
    source: VirtualSource
    known_us: Micros
    ahead_us: Micros


class Stretch(msgspec.Struct, frozen=True):
    """A version of a job and the event times [from_us, to_us) at which it is in force."""

    version: str
    size_us: Micros
    slide_us: Micros
    from_us: Micros
    to_us: Micros


class Oracle:
    """Holds publications against all lines. O(lines of the window) for each."""

    def __init__(self, servers: Iterable[Server], keys: Sequence[str]) -> None:
        self._keys = keys
        files = [(server, file) for server in servers for file in server.source.files]
        event = np.concatenate([file.event_us for _, file in files])
        written = np.concatenate([file.written_us for _, file in files])
        shown = np.concatenate([file.written_us + server.ahead_us for server, file in files])
        known = np.concatenate([np.full(len(file.key), server.known_us) for server, file in files])
        hosts = np.concatenate([np.full(len(file.key), server.number) for server, file in files])
        key = np.concatenate([file.key for _, file in files])
        sizes = np.concatenate([file.bytes for _, file in files])
        order = np.argsort(event, kind="stable")
        self._event, self._written, self._shown = event[order], written[order], shown[order]
        self._known, self._key, self._size = known[order], key[order], sizes[order]
        self._host = hosts[order]
        self.gone: set[int] = set()
        """Numbers of servers whose agents have left for good."""
        self.last: dict[tuple[JobId, str, Micros], Put] = {}
        self.lateness_us: dict[JobId, Micros] = {}
        self.finals = self.revisions = self.opens = 0

    @property
    def lines(self) -> int:
        return len(self._event)

    # ---- the truth ----

    def written(self, low: Micros, high: Micros, now_us: int) -> Groups:
        """All lines with an event time in [low, high) that were written by then."""
        at = self._range(low, high)
        return self._groups(at, self._written[at] <= now_us)

    def of_present(self, low: Micros, high: Micros) -> Groups:
        """All lines in [low, high) of servers whose agents have not left."""
        at = self._range(low, high)
        return self._groups(at, ~np.isin(self._host[at], list(self.gone)))

    def in_time(self, low: Micros, high: Micros, since_us: Micros, until_us: Micros, now_us: int) -> Groups:
        """Lines in [low, high) of agents known by `since_us` that were written before their clocks could show `until_us`."""
        at = self._range(low, high)
        mask = (self._known[at] <= since_us) & (self._shown[at] < until_us) & (self._written[at] <= now_us)
        return self._groups(at, mask)

    def _range(self, low: Micros, high: Micros) -> slice:
        first, last = np.searchsorted(self._event, (low, high))
        return slice(int(first), int(last))

    def _groups(self, at: slice, mask: NDArray[np.bool_]) -> Groups:
        key, size = self._key[at][mask], self._size[at][mask]
        hits = np.bincount(key, minlength=0)
        totals = np.bincount(key, weights=size)  # exact in float64: below 2^53
        return {self._keys[k]: (int(hits[k]), int(totals[k])) for k in np.flatnonzero(hits).tolist()}

    # ---- publications ----

    def accepted(self, put: Put, now_us: int) -> None:
        """A sink took this publication. Raises Violation."""
        key = (put.job, put.version, put.start)
        before = self.last.get(key)
        self.last[key] = put
        if before is not None and put.revision <= before.revision:
            raise Violation(
                f"{_name(put)}: accepted after revision {before.revision[0]}.{before.revision[2]}"
            )
        told = groups_of(put)
        self._check_form(put, told)
        self._check_most(put, told, now_us)
        if put.status == "open":
            self.opens += 1
            return
        if put.status == "final":
            self.finals += 1
        else:
            self.revisions += 1
        if put.agents_reporting == put.agents_expected:
            self._check_least(put, told, now_us)

    def _check_form(self, put: Put, told: Groups) -> None:
        low, high = put.covers
        if not put.start <= low <= high <= put.end:
            raise Violation(f"{_name(put)}: speaks for [{low}, {high}) outside of [{put.start}, {put.end})")
        if len(told) != len(put.rows):
            raise Violation(f"{_name(put)}: a group occurs twice")
        if put.agents_reporting > put.agents_expected:
            raise Violation(f"{_name(put)}: {put.agents_reporting} agents of {put.agents_expected}")
        hits = sum(hits for hits, _ in told.values())
        if put.lines != (hits, hits, 0, 0):
            raise Violation(f"{_name(put)}: {hits} lines in rows, counted {put.lines}")

    def _check_most(self, put: Put, told: Groups, now_us: int) -> None:
        written = self.written(*put.covers, now_us)
        for key, (hits, total) in told.items():
            most = written.get(key, (0, 0))
            if hits > most[0] or total > most[1]:
                raise Violation(f"{_name(put)}: {key} has {hits} lines, {most[0]} were written by then")

    def _check_least(self, put: Put, told: Groups, now_us: int) -> None:
        low, high = put.covers
        least = self.in_time(low, high, low, high + self.lateness_us[put.job], now_us)
        for key, (hits, _) in least.items():
            if told.get(key, (0, 0))[0] < hits:
                raise Violation(
                    f"{_name(put)}: {put.status} with {put.agents_reporting} of {put.agents_expected} agents has "
                    f"{told.get(key, (0, 0))[0]} lines of {key}, {hits} were written in time"
                )

    # ---- at the end ----

    def unfinished(self, job: JobId, began: Ballot, schedule: Sequence[Stretch], now_us: int) -> str:
        """What is still wrong with the last revisions of a job's windows; "" when all is exact and whole.

        schedule: not empty, from the job's first line on; windows that began before it are not told. began: ballot under which
        the log began.
        """
        for stretch in schedule:
            for start in self._starts(stretch):
                if start < schedule[0].from_us:
                    continue
                wrong = self._wrong(job, began, stretch, start, now_us)
                if wrong:
                    return wrong
        return ""

    def _starts(self, stretch: Stretch) -> Iterable[Micros]:
        """Starts of all windows that meet the stretch and the lines."""
        if not len(self._event):
            return ()
        low = max(stretch.from_us, int(self._event[0])) - stretch.size_us
        high = min(stretch.to_us, int(self._event[-1]) + 1)
        return range(low - low % stretch.slide_us, high, stretch.slide_us)

    def _wrong(self, job: JobId, began: Ballot, stretch: Stretch, start: Micros, now_us: int) -> str:
        low, high = max(start, stretch.from_us), min(start + stretch.size_us, stretch.to_us)
        if low >= high:
            return ""
        truth = self.written(low, high, now_us)
        put = self.last.get((job, stretch.version, start))
        if put is None or (put.status == "withdrawn" and not truth):
            name = f"job {short(job)} version {stretch.version[:6]} window {start}"
            return f"{name}: never published, {len(truth)} groups" if truth else ""
        told = groups_of(put)
        if self.gone and put.status != "open" and put.revision[:2] < began:
            return ""
        if put.covers != (low, high):
            return f"{_name(put)}: speaks for {put.covers}, the schedule says {(low, high)}"
        whole = put.agents_reporting == put.agents_expected
        if put.status != "open" and not whole and self._lacks_only_gone(put, told, truth):
            return ""
        if told != truth:
            wrong = min(key for key in {**told, **truth} if told.get(key) != truth.get(key))
            return f"{_name(put)}: in the end {wrong} has {told.get(wrong)} (lines, bytes), the logs have {truth.get(wrong)}"
        if put.status == "open" or not whole:
            return f"{_name(put)}: in the end {put.status}, {put.agents_reporting} of {put.agents_expected} agents"
        return ""

    def _lacks_only_gone(self, put: Put, told: Groups, truth: Groups) -> bool:
        if put.agents_expected - put.agents_reporting > len(self.gone):
            return False
        least = self.of_present(*put.covers)
        return all(
            least.get(key, (0, 0)) <= told.get(key, (0, 0)) <= truth.get(key, (0, 0))
            for key in {**told, **truth}
        )


def check_schedule(stretches: Sequence[Stretch]) -> None:
    """No event time belongs to two versions. Raises Violation."""
    for one, other in pairwise(stretches):
        if one.to_us > other.from_us:
            raise Violation(f"versions {one.version[:6]} and {other.version[:6]} overlap at {other.from_us}")


def groups_of(put: Put) -> Groups:
    """The published rows (window, key, lines, bytes) by key."""
    return {row[1]: (row[2], row[3] or 0) for row in put.rows}


def _name(put: Put) -> str:
    return (
        f"job {short(put.job)} version {put.version[:6]} window {put.start} "
        f"revision {put.revision[0]}.{short(put.revision[1])}.{put.revision[2]}"
    )
