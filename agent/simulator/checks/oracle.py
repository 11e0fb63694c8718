"""The oracle: computes from the lines alone the rows that every window must have, and compares them with the windows that sinks
took.

It shares no code with workers, reducers or the master: one table of all lines that any web server ever logs, and masks over it.
For every publication that a sink accepted:
1. *never too many*: no group counts a line twice, one that was not written yet, or one outside the times that the window covers;
2. *in order*: revisions of a window only grow, and its line counters agree with its rows, which have the value of their version;
3. *whole means whole*: a final or revised window in which all expected agents have reported holds every line that agents known to
   the mesh wrote in time.
And when all faults are over and the mesh is at rest, in every sink to which the job's settings send that window:
4. the last revision of every window of the job's schedule holds every line, is not open, and has all agents. Only agents that
   left for good may be missing, if a new log, or a change of the job, needed to read lines again that only they had. Then the
   window's coverage must show it, and the window must hold all lines of the other agents; or it was published before the new log
   began, and is not published again, since it could not be replayed whole.
5. *lost lines are reported*: of a deleted file, the lines past the offset at which the log closed the file may be missing (more,
   if the job was changed and had to read them again); the coverage of every window that lacks one shows that an agent is missing.
   The coverage need not show it only for files that no disk has notes of: their agent never saw them, or lost its notes.
6. *late lines are counted*: a window past retention does not change; no more lines are counted as late than are missing in such
   windows, or were missing when they were past retention: after that, a master whose log is not taken over may publish them with
   lines that this log lacks. Not checked if the job was changed: a line that is late for a replaced version is counted in a
   window of the next version; once that window is past retention too, the log has no record of the windows that lack the line.

Of lines that an agent cannot parse:
7. *rejected lines are counted*: a window counts them as rejected, at the time of the parsed line before them in their file, or if
   the window of that time is past retention, in the current one; never more than there are, and in the end all of them;
8. *an agent that cannot parse is missing*: no final window counts an agent as reporting if the window has none of the agent's
   lines, and ten or more of its lines in the window were rejected.

If two processes have one key, the lines of both count as that agent's; of the process that ends, those that the log has by then.

A line is in time if it was written before its server's clock could show the window's end plus the lateness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.simulator.checks.carried import Carried, Window
from elf.agent.simulator.checks.sampling import OTHER, folded, staying
from elf.agent.simulator.checks.servers import ALWAYS, Server, Unread, is_read
from elf.agent.simulator.world.places import EPOCH_US
from elf.agent.simulator.world.sources import LINE_BYTES
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import NO_BALLOT, Ballot, Micros, Position, Slot
from elf.srt.messages.results import Put

Ints = NDArray[np.int64]
Groups = dict[str, tuple[int, int]]
"""Key -> (lines, sum of bytes)."""
Ends = Mapping[Slot, Position]


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the program)
    """Something that must never happen."""


class Stretch(msgspec.Struct, frozen=True):
    """A version of a job and the event times [from_us, to_us) at which it is in force."""

    version: str
    size_us: Micros
    slide_us: Micros
    from_us: Micros
    to_us: Micros


class Log(msgspec.Struct, frozen=True):
    """A job's state in the serving master's log. began: ballot under which the log began. served:
    ballot of the master that serves. schedule: not empty, from the job's
    first line on; windows that begin before it are not published. ends: positions in the files; None if the job was changed, so
    that files had to be read again. is_past: whether a window is past retention. left: agents of which the log records that they
    have left. is_for: whether a sink gets a window. retired: (time, before): at which time of the simulation panes before which
    event time were dropped, one after the other. lacks: whether a window is final there with agents missing. waits: whether it
    expects an agent that is gone for good, since another process had its key after it had left. line: the masters that have
    served with it."""

    job: JobId
    began: Ballot
    schedule: Sequence[Stretch]
    ends: Ends | None = None
    is_past: Callable[[str, Micros], bool] = lambda version, start: False
    left: frozenset[NodeId] = frozenset()
    is_for: Callable[[NodeId, str, Micros], bool] = lambda sink, version, start: True
    served: Ballot = NO_BALLOT
    retired: Sequence[tuple[int, Micros]] = ()
    lacks: Callable[[str, Micros], bool] = lambda version, start: False
    waits: bool = False
    line: Collection[Ballot] = ()


class Oracle:
    """Compares publications with all lines. O(lines of the window) for each."""

    def __init__(self, servers: Iterable[Server], keys: Sequence[str]) -> None:
        self._keys = self.keys = keys
        servers = list(servers)
        self._numbers = {server.source.worker: server.number for server in servers}
        files = [(server, file) for server in servers for file in server.source.files]
        event = np.concatenate([file.event_us for _, file in files])
        written = np.concatenate([file.written_us for _, file in files])
        shown = np.concatenate([file.written_us + server.ahead_us for server, file in files])
        known = np.concatenate([np.full(len(file.key), server.known_us) for server, file in files])
        hosts = np.concatenate([np.full(len(file.key), server.number) for server, file in files])
        key = np.concatenate([file.key for _, file in files])
        sizes = np.concatenate([file.bytes for _, file in files])
        self._unread = Unread([(server, file) for server, file in files if file.rejected is not None])
        read = np.concatenate([is_read(file) for _, file in files])
        order = np.argsort(event, kind="stable")
        order = order[read[order]]
        self._event, self._written, self._shown = event[order], written[order], shown[order]
        self._known, self._host, self._key, self._size = (each[order] for each in (known, hosts, key, sizes))
        lengths = [len(file.key) for _, file in files]
        self._file = np.concatenate([np.full(n, number) for number, n in enumerate(lengths)])[order]
        self._line = np.concatenate([np.arange(n) for n in lengths])[order]
        self._lossy = {n: each for n, each in enumerate(files) if each[1].gone_us is not None}
        """Files that are deleted, by their numbers."""
        self.gone: set[int] = set()
        """Numbers of servers whose agents have left for good."""
        self.returned: set[int] = set()
        """Servers whose agents crashed while leaving, and restarted: they did not read again for changes in between, and the
        coverage of windows shows it."""
        self.doubled: set[int] = set()
        """Servers with a key that two processes used: the other process may have reported lines as lost that it does not have."""
        self.last: dict[Window, Put] = {}
        self.counts: dict[Window, list[tuple[int, int]]] = {}
        """(time, lines) of each publication."""
        self.were_away: set[NodeId] = set()
        """Sinks that may have been away for longer than windows are retained."""
        self.forgotten: set[Window] = set()
        """Windows of sinks that came back empty."""
        self.carried = Carried()
        self.came_back: set[tuple[JobId, str]] = set()
        """Versions that left and came back: their windows may cover less than all times between their bounds."""
        self.numbers: dict[str, int] = {}
        """The value of the parameter of each version that has one."""
        self.sample: dict[JobId, int] = {}
        """Jobs with a limit on groups, past which these become one row."""
        self.hashes: dict[str, int] = {}
        """Of the keys of such jobs."""
        self.lateness_us: dict[JobId, Micros] = {}
        self.keep_us: dict[JobId, Micros] = {}
        self._ahead_us = max(server.ahead_us for server in servers)
        self.finals = self.revisions = self.opens = 0
        self._narrow: dict[JobId, Oracle] = {}

    def narrow(self, job: JobId, servers: Iterable[Server]) -> None:
        """Of that job only the lines of these servers are part."""
        self._narrow[job] = one = Oracle(servers, self._keys)
        one.gone, one.returned, one.doubled = self.gone, self.returned, self.doubled
        one.were_away = self.were_away
        one.last, one.came_back = self.last, self.came_back
        one.forgotten, one.carried = self.forgotten, self.carried
        one.lateness_us, one.keep_us = self.lateness_us, self.keep_us
        one.sample, one.hashes = self.sample, self.hashes

    @property
    def lines(self) -> int:
        return len(self._event)

    # ---- from the lines ----

    def written(self, low: Micros, high: Micros, now_us: int) -> Groups:
        """All lines with an event time in [low, high) that were written by `now_us`."""
        at = self._range(low, high)
        return self._groups(at, self._written[at] <= now_us)

    def certain(self, low: Micros, high: Micros) -> Groups:
        """All lines in [low, high) in files that were not deleted, of servers whose agents have not left and had no twin."""
        at = self._range(low, high)
        lost = np.isin(self._file[at], list(self._lossy))
        return self._groups(
            at, ~np.isin(self._host[at], list(self.gone | self.returned | self.doubled)) & ~lost
        )

    def recoverable(
        self,
        low: Micros,
        high: Micros,
        ends: Ends | None,
        due_us: Micros = ALWAYS,
        absent: Set[int] = frozenset(),
    ) -> Groups:
        """All lines in [low, high) except those in deleted files that no disk has notes of, and those of deleted files past
        `ends`, where the log closed them (without `ends`: those written so late that their agent's watermark may have passed
        `due_us`); and late lines of agents that are `absent`: only those written before `due_us` are sure to be counted."""
        at = self._range(low, high)
        mask = ~self._unknown(at) & (~np.isin(self._host[at], list(absent)) | (self._shown[at] < due_us))
        if self._lossy and ends is None:
            mask &= ~np.isin(self._file[at], list(self._lossy)) | (self._shown[at] < due_us)
        for number, (server, file) in (self._lossy if ends is not None else {}).items():
            end = ends.get((server.source.worker, file.identity, 0)) if ends is not None else None
            lines = end.offset // LINE_BYTES if end is not None else 0
            mask &= (self._file[at] != number) | (self._line[at] < lines)
        return self._groups(at, mask)

    def _unknown(self, at: slice) -> NDArray[np.bool_]:
        """Mask of lines in deleted files of which no agent has a note."""
        unknown = [n for n, (server, file) in self._lossy.items() if not server.source.is_noted(file)]
        return np.isin(self._file[at], unknown)

    def in_time(self, low: Micros, high: Micros, since_us: Micros, until_us: Micros, now_us: int) -> Groups:
        """Lines in [low, high) of agents known by `since_us` that were written before their clocks could show `until_us`."""
        at = self._range(low, high)
        mask = (self._known[at] <= since_us) & (self._shown[at] < until_us) & (self._written[at] <= now_us)
        return self._groups(at, mask & ~self._unknown(at) if self._lossy else mask)

    def _range(self, low: Micros, high: Micros) -> slice:
        first, last = np.searchsorted(self._event, (low, high))
        return slice(int(first), int(last))

    def _groups(self, at: slice, mask: NDArray[np.bool_]) -> Groups:
        key, size = self._key[at][mask], self._size[at][mask]
        hits = np.bincount(key, minlength=0)
        totals = np.bincount(key, weights=size)  # exact in float64: below 2^53
        return {self._keys[k]: (int(hits[k]), int(totals[k])) for k in np.flatnonzero(hits).tolist()}

    def double(self, number: int) -> None:
        """Another process with that server's key was admitted by a neighbour."""
        self.doubled.add(number)
        self.unknown(number)

    def unknown(self, number: int) -> None:
        """The mesh may not know that server's agent before the end."""
        for oracle in (self, *self._narrow.values()):
            oracle._known[oracle._host == number] = ALWAYS

    # ---- publications ----

    def times_of(self, key: int) -> Ints:
        """The event times of all lines of a key, in order. O(lines)."""
        return np.asarray(self._event[self._key == key])

    def accepted(self, put: Put, now_us: int, sink: NodeId = b"") -> None:
        """Check a publication that a sink took. Raises Violation."""
        if put.job in self._narrow:
            self._narrow[put.job].accepted(put, now_us, sink)
            return
        key = (sink, put.job, put.version, put.start)
        before = self.last.get(key)
        self.last[key] = put
        self.counts.setdefault(key, []).append((now_us, put.lines[1] - put.lines[3]))
        if before is not None and put.revision <= before.revision and not _is_first_final(before, put):
            raise Violation(
                f"{_name(put)}: accepted after revision {before.revision[0]}.{before.revision[2]}"
            )
        published = groups_of(put)
        self._check_form(put, published)
        self._check_sample(put, published)
        self._check_most(put, published, now_us)
        if put.status == "open":
            self.opens += 1
            return
        if put.status == "final":
            self.finals += 1
        else:
            self.revisions += 1
        if put.agents_reporting == put.agents_expected and (put.job, put.version) not in self.came_back:
            self._check_least(put, published, now_us)

    def _check_form(self, put: Put, published: Groups) -> None:
        low, high = put.covers
        if not put.start <= low <= high <= put.end:
            raise Violation(f"{_name(put)}: covers [{low}, {high}) outside of [{put.start}, {put.end})")
        if len(published) != len(put.rows):
            raise Violation(f"{_name(put)}: a group occurs twice")
        if put.agents_reporting > put.agents_expected:
            raise Violation(f"{_name(put)}: {put.agents_reporting} agents of {put.agents_expected}")
        number = self.numbers.get(put.version)
        if number is not None and any(tuple(row[4:]) not in ((), (number,)) for row in put.rows):
            raise Violation(f"{_name(put)}: a row has another number than {number}, the value of its version")
        hits = sum(hits for hits, _ in published.values())
        rejected, late = put.lines[2:]
        if put.lines != (hits + late + rejected, hits + late, rejected, late):
            raise Violation(f"{_name(put)}: {hits} lines in rows, counted {put.lines}")

    def _check_sample(self, put: Put, published: Groups) -> None:
        most = self.sample.get(put.job, len(published))
        if len(published.keys() - {OTHER}) > most:
            raise Violation(f"{_name(put)}: {len(published)} groups, its limit is {most}")
        if (OTHER in published) != bool(put.others):
            raise Violation(f"{_name(put)}: says that it has {put.others} rows of other groups")

    def _like(self, put: Put, published: Groups, groups: Groups) -> Groups:
        """The groups, with those that the window does not show as one, if it may leave some out."""
        return folded(groups, published.keys() - {OTHER}) if OTHER in published else groups

    def _check_most(self, put: Put, published: Groups, now_us: int) -> None:
        written = self._like(put, published, self.written(*put.covers, now_us))
        for key, (hits, total) in published.items():
            most = written.get(key, (0, 0))
            if hits > most[0] or total > most[1]:
                raise Violation(f"{_name(put)}: {key} has {hits} lines, {most[0]} were written by then")
        rejected = self._unread.counted(*put.covers, now_us)
        if put.lines[2] > rejected and self._unread.numbers:
            # Lines of an agent that was away count here if their own window is past retention when they are read.
            past_us = min(put.covers[0], now_us - self._retained_us(put.job))
            rejected += self._unread.counted(1, past_us, now_us)
        if put.lines[2] > rejected:
            raise Violation(
                f"{_name(put)}: {put.lines[2]} lines are counted as rejected, {rejected} were written by then"
            )

    def _check_least(self, put: Put, published: Groups, now_us: int) -> None:
        low, high = put.covers
        in_time = self.in_time(low, high, low, high + self.lateness_us[put.job], now_us)
        least = self._like(put, published, in_time)
        for key, (hits, _) in least.items():
            if published.get(key, (0, 0))[0] < hits:
                raise Violation(
                    f"{_name(put)}: {put.status} with {put.agents_reporting} of {put.agents_expected} agents has "
                    f"{published.get(key, (0, 0))[0]} lines of {key}, {hits} were written in time"
                )
        for number in self._unread.blind(low, high):
            if not len(self._event[self._range(low, high)][self._host[self._range(low, high)] == number]):
                raise Violation(
                    f"{_name(put)}: {put.status} with {put.agents_reporting} of {put.agents_expected} agents, and all lines "
                    f"of web{number} in it were rejected"
                )

    def emptied(self, sink: NodeId) -> None:
        """A sink came back empty: the windows that it held are unknown."""
        for key in [key for key in self.last if key[0] == sink]:
            del self.last[key]
            self.counts.pop(key, None)
            self.forgotten.add(key)

    # ---- at the end ----

    def unfinished(self, log: Log, now_us: int, sink: NodeId = b"") -> str:
        """The first error in the last revisions of a job's windows in a sink; "" if all are exact and whole."""
        if log.job in self._narrow:
            return self._narrow[log.job].unfinished(log, now_us, sink)
        first_us = log.schedule[0].from_us
        late = missing = 0
        is_plain = log.ends is not None and log.schedule[0].size_us == log.schedule[0].slide_us
        for stretch in log.schedule:
            for start in self._starts(stretch):
                if start < first_us:
                    continue
                wrong = self._wrong(log, stretch, start, now_us, sink)
                if wrong:
                    return wrong
                if is_plain:
                    counts = self._late(log, stretch, start, now_us, sink)
                    late, missing = late + counts[0], missing + counts[1]
        if late > missing:
            return f"job {short(log.job)}: {late} lines are counted as late, {missing} are missing"
        return self._not_withdrawn(log, sink)

    def unfinished_at_end(self, log: Log, now_us: int, sink: NodeId = b"") -> str:
        """Rule Stop*: the first window up to the end of a job that has ended, with lines in time, which is not final in that sink
        with all of them and all agents, or "". log: when the job ended, at `now_us`; its last version is the end."""
        first_us = log.schedule[0].from_us
        for stretch in log.schedule[:-1]:
            for start in (each for each in self._starts(stretch) if each >= first_us):
                parts = _within(log.schedule, stretch.version, start, start + stretch.size_us)
                key = (sink, log.job, stretch.version, start)
                # A version that the log no longer retains is past: is_for does not know it.
                is_past = log.is_past(stretch.version, start) or key in self.forgotten
                if not parts or is_past or not log.is_for(sink, stretch.version, start):
                    continue
                low, high = parts[0][0], parts[-1][1]
                least: Groups = {}
                for part in parts:
                    least |= self.in_time(*part, part[0], part[1] + self.lateness_us[log.job], now_us)
                put = self.last.get(key)
                if put is None and not self.recoverable(low, high, log.ends, due_us=0):
                    continue  # no line of a deleted file is sure to be read again, as a change may ask
                if put is not None and put.status in ("final", "revised") and self._is_earlier(put, log):
                    continue
                if least and (wrong := self._wrong_at_end(put, (low, high), key)):
                    return wrong
        return ""

    def _wrong_at_end(self, put: Put | None, covers: tuple[Micros, Micros], key: Window) -> str:
        """What is wrong with the last revision of a window. Its rows were checked when the sink took it."""
        if put is None or put.status not in ("final", "revised"):
            status = "never published" if put is None else put.status
            return f"job {short(key[1])} version {key[2][:6]} window {key[3]}: {status} when the job ended"
        if put.covers != covers:
            return f"{_name(put)}: covers {put.covers} when the job ended, in the schedule it covers {covers}"
        if put.agents_reporting < put.agents_expected and not self._may_be_missing(put):
            return f"{_name(put)}: {put.agents_reporting} of {put.agents_expected} agents when the job ended"
        return ""

    def _not_withdrawn(self, log: Log, sink: NodeId) -> str:
        """A window in the sink whose version is not in force at any time of the window; "" if there is none."""
        for (at, job, version, start), put in self.last.items():
            is_result = (at, job) == (sink, log.job) and put.status in ("final", "revised")
            if (
                is_result
                and start >= log.schedule[0].from_us
                and not _speaks(log.schedule, version, start, put.end)
                and not self.carried.may_be_unknown((at, job, version, start), put, log.began, log.line)
            ):
                return f"{_name(put)}: is none of the schedule's, and was not withdrawn"
        return ""

    def _late(self, log: Log, stretch: Stretch, start: Micros, now_us: int, sink: NodeId) -> tuple[int, int]:
        """(lines that the window counts as late, lines that it lacks, or lacked then, because it is past retention)."""
        key, end = (sink, log.job, stretch.version, start), start + stretch.size_us
        put, counts = self.last.get(key), self.counts.get(key, [])
        late = put.lines[3] if put is not None else 0
        if not log.is_past(stretch.version, start):
            return late, 0
        written = sum(hits for hits, _ in self.written(start, end, now_us).values())
        past_us = next((at for at, before in log.retired if before >= end), now_us)
        if EPOCH_US + past_us < end + self.lateness_us[log.job] + self.keep_us[log.job]:
            past_us = now_us  # that log must not have dropped it so early
        had = [lines for at, lines in counts if at <= past_us] or [lines for _, lines in counts[:1]]
        has = had[-1] if had else 0
        return late, written - min(has, counts[-1][1] if counts else 0)

    def _starts(self, stretch: Stretch) -> Iterable[Micros]:
        """Starts of all windows that overlap the stretch and the lines."""
        if not len(self._event):
            return ()
        low = max(stretch.from_us, int(self._event[0])) - stretch.size_us
        high = min(stretch.to_us, int(self._event[-1]) + 1)
        return range(low - low % stretch.slide_us, high, stretch.slide_us)

    def _wrong(self, log: Log, stretch: Stretch, start: Micros, now_us: int, sink: NodeId) -> str:
        parts = _within(log.schedule, stretch.version, start, start + stretch.size_us)
        if not parts or not log.is_for(sink, stretch.version, start):
            return ""
        low, high = parts[0][0], parts[-1][1]
        key = (sink, log.job, stretch.version, start)
        truth, put = self._written_in(parts, now_us), self.last.get(key)
        is_past = log.is_past(stretch.version, start)
        if put is None or (put.status == "withdrawn" and not truth):
            # Of a changed job no line of a deleted file is sure to be read again, as for a window that lacks an agent.
            sure = self.recoverable(low, high, log.ends, due_us=0)
            may_lack = not truth or is_past or key in self.forgotten or not sure
            name = f"job {short(log.job)} version {stretch.version[:6]} window {start}"
            return "" if may_lack else f"{name}: never published, {len(truth)} groups"
        if is_past:
            is_stale = put.status == "open" and sink not in self.were_away
            return f"{_name(put)}: in the end open, and past retention" if is_stale else ""
        if not truth and put.revision[:2] < log.began:
            return ""  # a known gap: only a lost log recorded that a change left this window without lines
        if not truth and put.status == "open" and (put.lines[0] == 0 or put.ballot != log.served):
            return ""  # likewise: an open window is in no log, and a master withdraws only those that it has published
        may_be_worse = put.status != "open" or sink in self.were_away  # then another sink holds it
        if may_be_worse and self._is_earlier(put, log):
            return ""
        if self.carried.may_be_unknown(key, put, log.began, log.line):
            return ""
        if put.covers != (low, high):
            return f"{_name(put)}: covers {put.covers}, in the schedule it covers {(low, high)}"
        return self._wrong_rows(log, put, truth) if len(parts) == 1 else self._wrong_parts(log, put, truth)

    def _is_earlier(self, put: Put, log: Log) -> bool:
        """Whether a sink keeps that result from before the log began anew: the log may never have the window whole, since lines
        or agents are gone, or since no agent reports again what was rejected. It then lacks lines that came late."""
        lacks = put.agents_reporting < put.agents_expected or log.lacks(put.version, put.start)
        is_partial = bool(self._unread.numbers) and lacks
        is_less = bool(self.gone or self._lossy or self.doubled or is_partial)
        return is_less and put.revision[:2] < log.began

    def _written_in(self, parts: Sequence[tuple[Micros, Micros]], now_us: int) -> Groups:
        """All lines of these times that were written by `now_us`."""
        found: Groups = {}
        for low, high in parts:
            for key, (hits, total) in self.written(low, high, now_us).items():
                known = found.get(key, (0, 0))
                found[key] = known[0] + hits, known[1] + total
        return found

    def _wrong_parts(self, log: Log, put: Put, truth: Groups) -> str:
        """A window that its version left and came back to within its bounds: the lines of both its parts, and no others."""
        if put.status == "open":
            return self._open_at_end(log, put)
        published, whole = groups_of(put), put.agents_reporting == put.agents_expected
        is_exact = whole and not (self.gone or self._lossy or self.doubled or self.returned)
        truth = self._like(put, published, truth)
        for key in sorted({**published, **truth}):
            has, most = published.get(key, (0, 0)), truth.get(key, (0, 0))
            if has[0] > most[0] or has[1] > most[1] or (is_exact and has != most):
                return (
                    f"{_name(put)}: in the end {key} has {has} (lines, bytes) in parts, the logs have {most}"
                )
        return ""

    def _wrong_rows(self, log: Log, put: Put, truth: Groups) -> str:
        published, whole = groups_of(put), put.agents_reporting == put.agents_expected
        if put.status == "open":
            return self._open_at_end(log, put)
        if not whole and not self._may_be_missing(put):
            return f"{_name(put)}: in the end {put.agents_reporting} of {put.agents_expected} agents"
        is_exact = not self.gone and log.ends is not None
        if whole or is_exact:
            due_us = put.covers[1] + self.lateness_us[log.job]
            least = self.recoverable(*put.covers, None if whole else log.ends, due_us, self._absent(log))
        else:
            least = self.certain(*put.covers)
        most = self._most(put, log, truth) if is_exact and not whole else truth
        if put.job in self.sample and least == most:
            stay = staying(most, self.hashes, self.sample[put.job])
            if (shown := published.keys() - {OTHER}) != stay:
                return (
                    f"{_name(put)}: in the end it shows {sorted(shown)}, by their hashes it is {sorted(stay)}"
                )
        least, most, truth = (self._like(put, published, each) for each in (least, most, truth))
        for key in sorted({**published, **truth}):
            low, has, high = (each.get(key, (0, 0)) for each in (least, published, most))
            if not (low[0] <= has[0] <= high[0] and low[1] <= has[1] <= high[1]):
                span = f"{high}" if low == high else f"{low} to {high}"
                return f"{_name(put)}: in the end {key} has {has} (lines, bytes), the logs have {span}"
        return self._wrong_rejects(put) if is_exact else ""

    def _open_at_end(self, log: Log, put: Put) -> str:
        """A window is final with agents missing if more than half have promised that no more lines of it come. Too few may if
        agents are gone."""
        without = len(self.doubled)
        if log.waits and 2 * (put.agents_expected - without) <= put.agents_expected:
            return ""
        return f"{_name(put)}: in the end open, {put.agents_reporting} of {put.agents_expected} agents"

    def _absent(self, log: Log) -> Set[int]:
        """Servers whose agents have left, which only a log on the other side of a partition knows, and that log is lost."""
        left = {number for worker, number in self._numbers.items() if worker in log.left}
        return self.gone - left

    def _wrong_rejects(self, put: Put) -> str:
        """Compare the count of rejected lines, if no line was lost or counted as late."""
        rejected = self._unread.counted(*put.covers, ALWAYS)
        if put.lines[2] == rejected or put.lines[3] or self._lossy or self.doubled or self.returned:
            return ""
        retained_us = self._retained_us(put.job)
        least = rejected - self._unread.may_be_late(*put.covers, retained_us)
        if least <= put.lines[2] <= rejected + self._unread.from_before(put.covers[0], retained_us):
            return ""
        return (
            f"{_name(put)}: in the end {put.lines[2]} lines are counted as rejected, the logs have {rejected}"
        )

    def _retained_us(self, job: JobId) -> Micros:
        """A line that is written within this time of its event time is not past retention: no watermark can have passed it."""
        return self.lateness_us[job] + self.keep_us[job] - self._ahead_us

    def _most(self, put: Put, log: Log, truth: Groups) -> Groups:
        """The most lines that the window may hold: deleted files without a note may have been read before."""
        return (
            truth
            if self._unknown(self._range(*put.covers)).any()
            else self.recoverable(*put.covers, log.ends)
        )

    def _may_be_missing(self, put: Put) -> bool:
        """Whether enough agents have left for good, or lost lines, to explain the missing ones."""
        lossy = {server.number for server, _ in self._lossy.values()}
        return put.agents_expected - put.agents_reporting <= len(
            self.gone | self.returned | lossy | self.doubled | self._unread.numbers
        )


def _is_first_final(before: Put, put: Put) -> bool:
    """Whether `put`, final in its master's log, replaces an open window of a master that lacks that log."""
    return before.status == "open" and put.status != "open" and put.ballot > before.revision[:2]


def _within(
    schedule: Sequence[Stretch], version: str, start: Micros, end: Micros
) -> list[tuple[Micros, Micros]]:
    """The times of [start, end) at which a version is in force, in order."""
    met = [(max(start, each.from_us), min(end, each.to_us)) for each in schedule if each.version == version]
    return [(low, high) for low, high in met if low < high]


def _speaks(schedule: Sequence[Stretch], version: str, start: Micros, end: Micros) -> bool:
    return any(each.version == version and each.from_us < end and start < each.to_us for each in schedule)


def check_schedule(stretches: Sequence[Stretch]) -> None:
    """No event time belongs to two versions. Raises Violation."""
    for one, other in pairwise(stretches):
        if one.to_us > other.from_us:
            raise Violation(f"versions {one.version[:6]} and {other.version[:6]} overlap at {other.from_us}")


def groups_of(put: Put) -> Groups:
    """The published rows (window, key, lines, bytes) by key."""
    return {OTHER if row[1] is None else row[1]: (row[2], row[3] or 0) for row in put.rows}


def _name(put: Put) -> str:
    return (
        f"job {short(put.job)} version {put.version[:6]} window {put.start} "
        f"revision {put.revision[0]}.{short(put.revision[1])}.{put.revision[2]}"
    )
