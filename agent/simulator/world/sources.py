"""Virtual access logs: a web server that writes lines whether or not an agent reads them, and rotates its files.

Lines are written at world time; event times come from the server's clock, which may be skewed and may step; a fraction of the
lines is late (long requests are logged when they end). Offsets are bytes: every line has `LINE_BYTES` of them.

Files may be deleted or emptied before they are read to their end. A source has notes of the files it has seen (on the agent's
disk), so it can report lost lines, except in files that it has never seen, or whose notes are lost as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from hashlib import blake2b
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from elf.agent.simulator.world.rows import RowMaker
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.bundles import hull
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Line, Period, Position, Schedule, Slot, Span
from elf.srt.messages.partial import Part

LINE_BYTES = 100
LINES_PER_CUT_MAX = 20_000

Ints = NDArray[np.int64]
Loss = Literal["all", "rotated", "cut"]
"""Which files are lost: all are deleted, the rotated ones are deleted, or the live one is emptied ("cut")."""
GIVE_UP_US = 1_200_000
"""How long a missing file is searched for: its archive may not be complete yet."""
QUIET_US = 1_000_000
"""A source without a new line for this long is idle: its watermark is the clock's time minus `IDLE_GRACE_US`."""
IDLE_GRACE_US = 3_000_000
UNREAD_MIN = 10
"""This many rejected lines in a row mean a wrong format; fewer may be a client's garbage."""
RowMakers = Callable[[Line], RowMaker]
Bools = NDArray[np.bool_]
Columns = tuple[Ints, Ints, Ints, Ints, Bools]
"""Columns of lines: times of writing, event times, keys, bytes, and whether they are rejected."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a server, per second and in microseconds."""

    lines_per_s: float = 20.0
    keys: int = 20
    late_share: float = 0.05
    late_us_max: int = 2_000_000
    rotate_us: int = 0  # 0: never
    linger_us: int = 200_000  # how long the writer still appends to the renamed file
    close_after_us: int = 600_000  # grace after which a renamed file is known to be at its end


class VirtualFile(msgspec.Struct):
    """One log file: lines in the order in which they were written. gone_us: when it was deleted; given_up_us: when the search for
    it ends. rejected: lines that the agent cannot parse; their event time is that of the last parsed line before them, 0 if there
    is none. true_us: the event times in the lines. read_last: for each line the last parsed one up to it, -1: none."""

    identity: int
    created_us: int
    closed_us: int | None  # when its end becomes known
    written_us: Ints
    event_us: Ints
    highest_us: Ints  # running maximum of event_us
    key: Ints
    bytes: Ints
    gone_us: int | None = None
    given_up_us: int = 0
    rejected: Bools | None = None
    true_us: Ints | None = None
    read_last: Ints | None = None

    def lines_at(self, now_us: int) -> int:
        return int(self.written_us.searchsorted(now_us, "right"))

    def low(self, event_us: int) -> int:
        """The first line at which the running maximum of event time has reached `event_us`; 0 if no line before it has a time."""
        first = int(np.searchsorted(self.highest_us, event_us, side="left"))
        return first if first and self.highest_us[first - 1] else 0

    def is_quiet(self, lines: int, now_us: int) -> bool:
        """Whether the last parsed line among the first `lines` was written more than `QUIET_US` ago."""
        last = lines - 1 if self.read_last is None else int(self.read_last[lines - 1])
        return last < 0 or now_us - int(self.written_us[last]) > QUIET_US

    def untimed(self, first: int, stop: int) -> int:
        """How many of these lines have no time."""
        return 0 if self.read_last is None else int((self.read_last[first:stop] < 0).sum())


class VirtualSource:
    """All lines that one web server ever logs, generated at once from the seed. steps: (when, by how much) its clock jumps.
    losses: (when, which) files are lost. rejects: (from, until, fraction) of lines that its agent cannot parse. salt:
    distinguishes another server of the same worker."""

    def __init__(
        self,
        worker: NodeId,
        seed: int,
        traffic: Traffic,
        start_us: int,
        stop_us: int,
        skew_us: int = 0,
        *,
        steps: Sequence[tuple[int, int]] = (),
        losses: Sequence[tuple[int, Loss]] = (),
        rejects: Sequence[tuple[int, int, float]] = (),
        salt: bytes = b"",
    ) -> None:
        self.worker, self._salt = worker, salt
        self._readings: dict[JobId, _Reading] = {}
        self._has_rejects = bool(rejects)
        self._noted: set[int] = set()
        self._missed_us: dict[Slot, int] = {}
        rng = np.random.default_rng(
            int.from_bytes(blake2b(worker + seed.to_bytes(8) + salt, digest_size=8).digest())
        )
        count = int(rng.poisson(traffic.lines_per_s * (stop_us - start_us) / 1e6))
        written = np.sort(rng.integers(start_us, stop_us, count))
        event = written + skew_us
        for at_us, by_us in steps:
            event[written >= at_us] += by_us
        late = rng.random(count) < traffic.late_share
        event[late] -= rng.integers(0, traffic.late_us_max + 1, int(late.sum()))
        # A few keys make most of the lines: the square of a uniform number.
        key = (rng.random(count) ** 2 * traffic.keys).astype(np.int64)
        sizes = rng.integers(0, 100_000, count)
        rejected = _rejected(written, rejects, worker + seed.to_bytes(8) + salt)
        breaks = [at for at, loss in losses if loss != "rotated" and start_us < at < stop_us]
        self.files = self._split(
            rng, traffic, (start_us, stop_us, *breaks), (written, event, key, sizes, rejected)
        )
        for at_us, loss in sorted(losses):
            self._lose(at_us, loss)

    def _lose(self, at_us: int, loss: Loss) -> None:
        """Lose files that exist at that time, but not one that the server begins at that moment."""
        there = [file for file in self.files if file.created_us < at_us and file.gone_us is None]
        live = max(there, key=lambda file: file.created_us, default=None)
        for file in there:
            if loss != "all" and (file is live) is (loss == "rotated"):
                continue
            file.gone_us = at_us
            file.given_up_us = at_us if loss == "cut" else at_us + GIVE_UP_US

    def _split(
        self,
        rng: np.random.Generator,
        traffic: Traffic,
        times: tuple[int, ...],
        lines: Columns,
    ) -> list[VirtualFile]:
        """Distribute the lines over files. times: start and end, and further times at which the server begins a new file."""
        written = lines[0]
        start_us, stop_us, *breaks = times
        if not (traffic.rotate_us or breaks):
            return [self._file(0, start_us, None, lines)]
        cuts: list[int] = []
        if traffic.rotate_us:
            offset = int(rng.integers(traffic.rotate_us // 2, traffic.rotate_us))
            cuts = list(range(start_us + offset, stop_us, traffic.rotate_us))
        cuts = sorted({*cuts, *breaks})
        number = np.searchsorted(cuts, written, side="right")
        lingers = (number > 0) & (rng.random(len(written)) < 0.3)
        began = np.array([start_us, *cuts])[number]
        lingers &= ~np.isin(began, breaks)  # no line is appended to a file that is emptied
        since = written - began
        number = np.where(lingers & (since < traffic.linger_us), number - 1, number)
        files = []
        for n, created in enumerate([start_us, *cuts]):
            closed = cuts[n] + traffic.close_after_us if n < len(cuts) else None
            mine = number == n
            written, event, key, sizes, rejected = lines
            columns = written[mine], event[mine], key[mine], sizes[mine], rejected[mine]
            files.append(self._file(n, created, closed, columns))
        return files

    def _file(self, n: int, created: int, closed: int | None, lines: Columns) -> VirtualFile:
        name = self.worker + bytes([n]) + self._salt
        identity = int.from_bytes(blake2b(name, digest_size=8).digest()) >> 1 or 1
        written, event, key, sizes, rejected = lines
        read = _read_last(rejected) if rejected.any() else None
        true, event = event, event if read is None else np.where(read < 0, 0, event[read])
        highest = np.maximum.accumulate(event) if len(event) else event
        file = VirtualFile(identity, created, closed, written, event, highest, key, sizes)
        if read is not None:
            file.rejected, file.true_us, file.read_last = rejected, true, read
        return file

    def read(self, read: Read, now_us: int, clock_us: int, schedule: Schedule, rows: RowMakers) -> Cut:
        """Answer a `Read` at the world's time `now_us`, when the server's clock shows `clock_us`."""
        spans: dict[Slot, Span] = {}
        gaps: list[Slot] = []
        held_us: int | None = None  # of files that are searched for
        taken = _Taken()
        caught_up = True
        left = LINES_PER_CUT_MAX
        for file in self.files:
            if file.created_us > now_us:
                break
            slot = (self.worker, file.identity, read.lane)
            is_gone = file.gone_us is not None and file.gone_us <= now_us
            if not is_gone:
                self._noted.add(file.identity)
            if read.lane and slot not in read.ends:
                continue
            at = read.positions.get(slot)
            if at is not None and at.closed and (read.lane or not self.has_more(file, at, now_us)):
                continue
            first = file.low(read.since_us) if at is None else at.offset // LINE_BYTES
            if is_gone or (at is not None and not read.lane and first > file.lines_at(now_us)):
                before = int(file.highest_us[first - 1]) if 0 < first <= len(file.highest_us) else 0
                if not self._report_gone(file, slot, first, read, now_us, spans, gaps):
                    held_us = before if held_us is None else min(held_us, before)
                taken.watermark_us = max(taken.watermark_us, before)
                continue
            written = file.lines_at(now_us)
            end = written if not read.lane else read.ends[slot] // LINE_BYTES
            first = min(first, end)
            stop = min(end, first + left)
            left -= stop - first
            caught_up &= stop == end
            flags = FIRST if at is None else 0
            if stop == end and (read.lane or (file.closed_us is not None and file.closed_us <= now_us)):
                flags |= CLOSED
            start = first * LINE_BYTES
            spans[slot] = start, start if stop == first else stop * LINE_BYTES, flags
            taken.add(file, first, stop, now_us)
            if not left:
                break
        held_us = 0 if self._report_missing(read, now_us, spans, gaps) else held_us
        if held_us is not None:
            caught_up, taken.watermark_us = False, min(taken.watermark_us, held_us)
        panes = [rows(line).pane_us for line in schedule] if self._has_rejects else []
        watermark, is_blind, unparsed = self._promise(read, taken, (now_us, clock_us), caught_up, panes)
        self._note(read, spans, watermark)
        return Cut(
            read.job,
            read.request,
            read.schedule,
            spans,
            watermark,
            _parts(taken.lines, schedule, read.since_us, rows),
            caught_up,
            tuple(gaps),
            is_blind,
            0 if read.lane else taken.untimed,
            self._unread_since(now_us, clock_us) is not None,
            max((int(event.max()) for event, *_ in taken.lines), default=0),
            unparsed,
        )

    def next_line_us(self, read: Read, now_us: int) -> int:
        """When there is a line past the positions of a `Read`: now, or later; `AFTER_ALL` if never. O(files)."""
        times = [AFTER_ALL]
        for file in self.files:
            at = read.positions.get((self.worker, file.identity, 0))
            is_over = at is not None and at.closed and not self.has_more(file, at, now_us)
            first = file.low(read.since_us) if at is None else at.offset // LINE_BYTES
            if not is_over and first < len(file.written_us) and (file.gone_us or AFTER_ALL) > now_us:
                times.append(max(int(file.written_us[first]), now_us))
        return min(times)

    def is_due(self, read: Read, now_us: int, clock_us: int, schedule: Schedule, rows: RowMakers) -> bool:
        """Whether the answer to a `Read` has reached `due_us`, or has more than lines to report. Only notes of files stay."""
        reading = self._readings.get(read.job)
        if reading is not None:
            self._readings[read.job] = replace(
                reading, places=dict(reading.places), lacks=list(reading.lacks)
            )
        cut = self.read(read, now_us, clock_us, schedule, rows)
        self._readings.pop(read.job, None)
        if reading is not None:
            self._readings[read.job] = reading
        return cut.watermark_us >= read.due_us or not cut.caught_up or bool(cut.gaps) or cut.is_blind

    def _promise(
        self, read: Read, taken: _Taken, clocks: tuple[int, int], caught_up: bool, panes: Sequence[int]
    ) -> tuple[int, bool, Period | None]:
        """The watermark, whether it passes a gap (windows up to it lack rejected lines), and the time of which no line could be
        parsed."""
        now_us, clock_us = clocks
        watermark = taken.watermark_us
        if read.lane:
            return watermark, False, _Reading(0, read.since_us, {}).take(taken, panes)
        reading = self._reading(read) if self._has_rejects else _Reading(0, 0, {})
        unparsed = reading.take(taken, panes)
        before, unread_us = reading.watermark_us, self._unread_since(now_us, clock_us)
        is_first = unread_us is not None and before < watermark
        if caught_up and taken.is_quiet and not is_first:
            watermark = max(watermark, clock_us - IDLE_GRACE_US)
        watermark, lacks = reading.promise(watermark)
        is_blind = caught_up and unread_us is not None and before < watermark and before <= unread_us
        if (is_blind or lacks) and before:
            unparsed = hull(unparsed, (before, watermark))
        return watermark, is_blind or lacks, unparsed

    def _reading(self, read: Read) -> _Reading:
        """The job's reading if the `Read` continues it, else a new one."""
        about = read.schedule, read.since_us, dict(read.positions)
        reading = self._readings.get(read.job)
        if reading is None or about != (reading.schedule, reading.since_us, reading.places):
            reading = self._readings[read.job] = _Reading(*about)
        return reading

    def _note(self, read: Read, spans: dict[Slot, Span], watermark: int) -> None:
        reading = self._readings.get(read.job)
        if reading is not None and not read.lane:
            ends = {slot: Position(end, bool(flags & CLOSED)) for slot, (_, end, flags) in spans.items()}
            reading.places, reading.watermark_us = {**read.positions, **ends}, watermark

    def _unread_since(self, now_us: int, clock_us: int) -> int | None:
        """The clock's time when the last line was written, if the last lines were all rejected; else None."""
        if not self._has_rejects:
            return None
        count, last_us = 0, 0
        for file in reversed(self.files):
            lines = file.lines_at(now_us)
            if not lines:
                continue
            last_us = last_us or int(file.written_us[lines - 1])
            read = lines - 1 if file.read_last is None else int(file.read_last[lines - 1])
            count += lines - 1 - read
            if read >= 0:
                return last_us + clock_us - now_us if count >= UNREAD_MIN else None
        return last_us + clock_us - now_us if count else None

    def _report_gone(
        self,
        file: VirtualFile,
        slot: Slot,
        first: int,
        read: Read,
        now_us: int,
        spans: dict[Slot, Span],
        gaps: list[Slot],
    ) -> bool:
        """Report a file that does not exist any more, if lines from `first` on are wanted. Returns whether the search for it is
        over. A file that was read to its end has lost nothing, once no line can be appended to it."""
        at = read.positions.get(slot)
        end = file.lines_at(now_us) if not read.lane else read.ends[slot] // LINE_BYTES
        if at is not None and first > end and not read.lane:  # the file is shorter than its position
            gaps.append(slot)
            spans[slot] = at.offset, at.offset, CLOSED | GAP
            return True
        is_over = read.lane or file.given_up_us == file.gone_us
        is_over = is_over or (file.closed_us is not None and file.closed_us <= now_us)
        is_whole = first >= end and is_over
        if at is None and not read.lane and (is_whole or not self.is_noted(file)):
            return True
        first = min(first, end)
        offset, flags = first * LINE_BYTES, FIRST if at is None else 0
        if not is_whole and now_us < file.given_up_us:
            if at is not None:
                spans[slot] = offset, offset, flags
            return False
        if not is_whole:
            gaps.append(slot)
        spans[slot] = offset, offset, flags | CLOSED | (0 if is_whole else GAP)
        return True

    def has_more(self, file: VirtualFile, at: Position, now_us: int) -> bool:
        """Rule 10*: whether a file that the job's log has closed has more lines. If so, it is read on as the same file."""
        is_there = file.gone_us is None or now_us < file.gone_us
        return is_there and file.lines_at(now_us) * LINE_BYTES > at.offset

    def _report_missing(self, read: Read, now_us: int, spans: dict[Slot, Span], gaps: list[Slot]) -> bool:
        """Report files that this host does not have: after `GIVE_UP_US` of search they are given up. Returns whether any is still
        searched for."""
        own = {file.identity for file in self.files}
        wanted = dict.fromkeys(read.ends, 0)
        wanted |= {slot: at.offset for slot, at in read.positions.items() if slot[1] and not at.closed}
        is_missing = False
        for slot, offset in wanted.items():
            given = read.positions.get(slot)
            if slot[1] in own or (given is not None and given.closed):
                continue
            if now_us - self._missed_us.setdefault(slot, now_us) < GIVE_UP_US:
                is_missing = True
                if given is not None:
                    spans[slot] = offset, offset, 0
                continue
            gaps.append(slot)
            spans[slot] = offset, offset, CLOSED | GAP | (0 if given is not None else FIRST)
        return is_missing

    def is_noted(self, file: VirtualFile) -> bool:
        """Whether the agent's disk has a note of that file."""
        return file.identity in self._noted

    def forget(self) -> None:
        """Lose the agent's notes; files that exist will be noted again."""
        self._noted.clear()

    @property
    def notes(self) -> frozenset[int]:
        """The agent's notes of files."""
        return frozenset(self._noted)

    def restart(self, notes: frozenset[int] | None = None) -> None:
        """The agent starts again, perhaps with older notes."""
        self._missed_us.clear()
        self._readings.clear()
        if notes is not None:
            self._noted = set(notes)


class _Taken:
    """Lines of a cut, and their times. before: (lines rejected since the highest time, that time) of the newest file that was
    already read in part."""

    def __init__(self) -> None:
        self.lines: list[tuple[Ints, Ints, Ints, Bools]] = []
        self.untimed = self.watermark_us = 0
        self.is_quiet = True
        self.before = 0, 0

    def add(self, file: VirtualFile, first: int, stop: int, now_us: int) -> None:
        if first:
            unread = 0 if file.read_last is None else first - 1 - int(file.read_last[first - 1])
            highest = int(file.highest_us[first - 1])
            self.before = (unread, highest) if highest else (self.before[0] + unread, self.before[1])
        if stop > first:
            self.lines.append(_lines(file, first, stop))
            self.untimed += file.untimed(first, stop)
        if stop:
            self.watermark_us = max(self.watermark_us, int(file.highest_us[stop - 1]))
            self.is_quiet &= file.is_quiet(stop, now_us)


class _Reading(msgspec.Struct):
    """One job's reading: where its last cut ended, its promise, and stretches of time without parsed lines. unread: lines
    rejected since event time rose to `highest_us`; -1: not known yet."""

    schedule: int
    since_us: int
    places: dict[Slot, Position]
    watermark_us: int = 0
    lacks: list[tuple[int, int]] = []
    highest_us: int = 0
    unread: int = -1

    def take(self, taken: _Taken, panes: Sequence[int]) -> Period | None:
        """Record stretches of time in which whole panes have no parsed line although `UNREAD_MIN` lines or more were written.
        Returns the time of the new ones."""
        if not panes:
            return None
        known = len(self.lacks)
        if self.unread < 0:
            self.unread, self.highest_us = taken.before
        for event, _, _, rejected in taken.lines:
            if not (self.unread or rejected.any()):
                self.highest_us = max(self.highest_us, int(event.max()))
                continue
            for at_us, is_rejected in zip(event.tolist(), rejected.tolist(), strict=True):
                if is_rejected:
                    self.unread += 1
                elif at_us > self.highest_us:
                    self._rise(at_us, panes)
        return reduce(hull, (each for each in self.lacks[known:] if each[0]), None)

    def _rise(self, at_us: int, panes: Sequence[int]) -> None:
        is_lack = any(at_us // pane - self.highest_us // pane > 1 for pane in panes if pane)
        if self.unread >= UNREAD_MIN and is_lack and at_us > self.since_us:
            self.lacks.append((self.highest_us, at_us))
        self.highest_us, self.unread = at_us, 0

    def promise(self, watermark_us: int) -> tuple[int, bool]:
        """The highest watermark for this cut, in steps: up to a recorded stretch, then past it; and whether this step is a
        gap."""
        self.lacks = [each for each in self.lacks if each[1] > self.watermark_us]
        if not self.lacks:
            return watermark_us, False
        from_us, until_us = self.lacks[0]
        if self.watermark_us < from_us:
            return min(watermark_us, from_us), False
        return min(watermark_us, until_us), watermark_us > self.watermark_us


def _rejected(written: Ints, rejects: Sequence[tuple[int, int, float]], seed: bytes) -> Bools:
    """Which lines are rejected, drawn from a generator of its own, so that the other columns do not change."""
    rejected = np.zeros(len(written), dtype=bool)
    if rejects:
        rng = np.random.default_rng(int.from_bytes(blake2b(seed + b"rejects", digest_size=8).digest()))
        drawn = rng.random(len(written))
        for from_us, until_us, share in rejects:
            rejected |= (written >= from_us) & (written < until_us) & (drawn < share)
    return rejected


def _read_last(rejected: Bools) -> Ints:
    return np.maximum.accumulate(np.where(rejected, -1, np.arange(len(rejected), dtype=np.int64)))


def _lines(file: VirtualFile, first: int, stop: int) -> tuple[Ints, Ints, Ints, Bools]:
    rejected = np.zeros(stop - first, dtype=bool) if file.rejected is None else file.rejected[first:stop]
    return file.event_us[first:stop], file.key[first:stop], file.bytes[first:stop], rejected


def _parts(
    taken: Sequence[tuple[Ints, Ints, Ints, Bools]], schedule: Schedule, since_us: int, rows: RowMakers
) -> dict[str, Part]:
    """Rows of each version of the schedule: a line belongs to the version in force at its event time; without a time, to none."""
    if not taken:
        return {}
    event, key, sizes, rejected = (
        taken[0]
        if len(taken) == 1
        else tuple(np.concatenate(columns) for columns in zip(*taken, strict=True))
    )
    masks: dict[str, Bools] = {}
    for number, line in enumerate(schedule):
        mine = event >= max(line.from_us, since_us, 1)
        if number + 1 < len(schedule):
            mine &= event < schedule[number + 1].from_us
        if line.version in masks:  # the version came back
            mine |= masks[line.version]
        masks[line.version] = mine
    parts = {}
    for line in {line.version: line for line in schedule}.values():
        mine = masks[line.version]
        count = np.count_nonzero(mine)
        if count == len(event):
            parts[line.version] = rows(line)(event, key, sizes, rejected)
        elif count:
            parts[line.version] = rows(line)(event[mine], key[mine], sizes[mine], rejected[mine])
    return parts
