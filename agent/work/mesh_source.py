"""One source's log files, read for the mesh: each `Read` of a job is answered by a `Cut`.

**Goal.** The sum of all accepted cuts equals one pass over all lines: rows are bit-identical wherever cuts fall, whatever happens
to the files, across restarts, and however often lines are read again.

**How.** One `Source` follows the files and reads each byte once; it has read up to the *front*. A block is parsed once (small
ones wait while no job is due: `held.py`), and every job with its place at the block's start gets it, as a rule all jobs. A job
gathers rows until its next `Read` cuts them. A job behind the front (it reads again what was not committed, or started later)
gets the lines in between from a `Rescan`, which never reads past the front, where the job joins the others. A `Read` that does
not resume where the last cut ended starts a new reading at its own positions, and the gathered rows are dropped. So the position
of the front affects cost only, not results.

**Order.** Lines that a job must read again come before new ones; rotated files before live ones.

**What no reader can repair.** See `agent/files/source.py`. If a position is no longer in any file, its file is closed with a gap.

No clock: `clock_us` is the wall clock, `now_s` any clock that does not go back. One read at a time, in any thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from msgspec.structs import replace

from elf.agent.files.blocks import BLOCK_BYTES, LINE_MAX, Block
from elf.agent.files.follow import Followed
from elf.agent.files.source import GRACE_S
from elf.agent.formats.batch import Batch, Reject
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import Format
from elf.agent.formats.own_keys import asked_types
from elf.agent.work import source_bounds as bounds
from elf.agent.work.counters import Counters
from elf.agent.work.feed import Totals
from elf.agent.work.file_ends import FileEnds
from elf.agent.work.file_notes import FileNote
from elf.agent.work.job_rows import Before
from elf.agent.work.line_parsing import Parsing
from elf.agent.work.log_files import SAVE_S, LogFiles
from elf.agent.work.losses import Losses
from elf.agent.work.misfits import Misfits
from elf.agent.work.parse_health import ParseHealth
from elf.agent.work.parsers import ParseState, advance
from elf.agent.work.reading import LOST_STATE, Place, Reading
from elf.agent.work.rescan import EndsBefore, Rescan
from elf.agent.work.spent import Spent
from elf.agent.work.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.errors import SourceError
from elf.jobmaster.plan.plan import Column
from elf.jobmaster.values.sql_types import SqlType
from elf.srt.messages.bundles import has_lines
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Micros, Schedule

CUT_BYTES = 8 << 20
"""Bytes that one read takes at most, except for its last block: 8 blocks, some 10 ms of parsing and as many of grouping."""
STRINGS_BYTES = 8 << 20
"""Dictionaries of this size are emptied."""
ABSENT_S = 10.0
"""A job without a `Read` for this time gets no more blocks; its next `Read` reads them again."""


class MeshSource:
    """One source of one agent. It keeps positions and notes in a file of its own in `state_dir`."""

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        format: str,
        timezone: str,
        worker: NodeId,
        budget: Budget,
        state_dir: Path,
        *,
        agent: str = "",
        idle_grace_us: Micros = 5_000_000,
        start: str = "beginning",
        line_max: int = LINE_MAX,
        block_bytes: int = BLOCK_BYTES,
        cut_bytes: int = CUT_BYTES,
        grace_s: float = GRACE_S,
        strings_max: int = STRINGS_BYTES,
    ) -> None:
        """agent: its name, for the column `agent`. start: see `LogFiles`. idle_grace_us: a source without a new line for this
        time is idle, and its watermark follows the clock at this distance (at least as long as the server buffers lines). Raises
        FormatError, UsageError for an unknown time zone."""
        self.name, self.counters, self.totals = name, Counters(), Totals()
        self._worker, self._budget = worker, budget
        self.idle_grace_us, self._grace_s = idle_grace_us, grace_s
        cap = budget.cap_bytes
        self._line_max = line_max
        self._block_bytes = min(block_bytes, max(cap // bounds.BLOCK_DIVISOR, line_max + 1))
        self._memory_max = cap // bounds.BUDGET_DIVISOR
        self._turn_bytes, self._cut_bytes = cut_bytes, min(cut_bytes, cap // bounds.CUT_DIVISOR)
        self._totals, self.unparsed, self._path = Totals(), Unparsed(name, format), ""
        # After the last read: memory held; bytes that no job has read, by path; see `LogFiles.gone_us` and `Source`.
        self.nbytes, self.lag_bytes, self.poll_s = 0, dict[str, int](), 0.0
        self.gone_us: Micros = 0
        self.inodes: dict[str, tuple[int, int]] = {}
        self._pending_notices: list[str] = []
        self._notices: deque[str] = deque(maxlen=bounds.NOTICES_MAX)
        self._files = LogFiles(
            name,
            patterns,
            state_dir,
            self._pending_notices.append,
            line_max=line_max,
            block_bytes=self._block_bytes,
            grace_s=grace_s,
            start=start,
        )
        self._source, self.fileno = self._files.source, self._files.source.fileno
        self.formats = FormatChoice(
            format,
            self._pending_notices.append,
            lenient=True,
            head=lambda block: self._source.head(block.file),
        )
        self._parsing = Parsing(timezone, agent, line_max, min(strings_max, cap // bounds.STRINGS_DIVISOR))
        self._readings: dict[tuple[JobId, int], Reading] = {}
        self._types: dict[str, SqlType] = {}
        self._misfits = Misfits(name, self._pending_notices.append)
        self._front: dict[int, ParseState] = {}
        self._rescans: dict[tuple[int, int], Rescan] = {}  # by file and offset, the latest used last
        self._losses = Losses(name, self._files, grace_s, self._pending_notices.append)
        self._ends = FileEnds(self._files, self._losses, self.counters)
        self.problems: tuple[str, ...] = ()  # recent losses, for `elf mesh status`
        self.latest_us = self._files.notes.time_max  # of all lines
        self._parse_health = ParseHealth()
        self._reject: Reject | None = None
        self._lost_bytes, self._lost_us, self._spent, self._lock = 0, 0, Spent(), Lock()
        self._published = -bounds.PUBLISH_S, 0
        self._held, self._may_hold = self._files.held, False

    def read(self, read: Read, schedule: Schedule, clock_us: Micros, now_s: float) -> Cut:
        """Answer a `Read`, due or not. Takes at most some tens of milliseconds; may be called in a thread, one call at a time.

        An exception from one job's rows does not affect other jobs; that job's next `Read` reads the lines again.
        """
        cut = self.read_if_due(replace(read, due_us=0), schedule, clock_us, now_s)
        assert cut is not None
        return cut

    def read_if_due(self, read: Read, schedule: Schedule, clock_us: Micros, now_s: float) -> Cut | None:
        """Read on for all jobs at the front; answer that `Read` if it is due. Call this for each job within `ABSENT_S`."""
        with self._lock:
            self._spent.begin()
            self._files.look(clock_us, now_s, read.since_us, any(slot[1] for slot in read.positions))
            self._parse_health.begin(now_s)
            self._files.note_lost(self._lost_us)
            reading = self._resume(read, schedule)
            is_awaited = any(each.at_line for each in self._readings.values())
            self._may_hold = clock_us < read.due_us and not (read.lane or is_awaited)
            at_end = self._fill(reading, is_asked=not read.due_us)
            cut = self._cut(read, reading, at_end) if self._is_due(read, reading, at_end) else None
            if self._files.is_dirty or now_s - self._files.save_s >= SAVE_S:
                self._save()
            is_much = self.counters.read_bytes - self._published[1] > bounds.PUBLISH_BYTES
            if cut is not None or is_much or not 0 <= now_s - self._published[0] < bounds.PUBLISH_S:
                self._publish()
            self._spent.charge((read.job,))
            return cut

    def _publish(self) -> None:
        """Publish figures and notices for other threads, each by one assignment."""
        self._published = self._files.now_s, self.counters.read_bytes
        notice = self.unparsed.look(int(self._files.now_s * 1e6), self._totals, self._path, self._reject)
        if notice is not None:
            self._pending_notices.append(notice)
        self._notices.extend([*self._pending_notices, *self._source.notices, *self.formats.take_found()])
        self._pending_notices.clear()
        self._source.notices.clear()
        held = self._parsing.nbytes + sum(reading.rows.nbytes for reading in self._readings.values())
        self.nbytes = held + self._held.nbytes + self._block_bytes + len(self._rescans) * (self._line_max + 1)
        self.lag_bytes, self.problems = self._source.lag_bytes(), self._losses.problems
        self.inodes, self.poll_s = self._source.inodes(), self._source.poll_s
        self.gone_us = self._files.gone_us()
        if self.totals.lines != self._totals.lines:
            copies = {"rejects": Counter(self._totals.rejects), "lost": Counter(self._totals.lost)}
            self.totals = msgspec.structs.replace(self._totals, **copies)

    def state_was_lost(self, clock_us: Micros) -> None:
        """Note that the mesh knows an earlier life of this agent that the state folder has no record of. Does not wait."""
        self._lost_us = clock_us

    def keep_loss(self) -> None:
        """Write that to the disk, in the source's thread: if the process ends before the first read, no later one hears of it."""
        with self._lock:
            self._files.note_lost(self._lost_us)
            if self._files.is_dirty:
                self._save()

    def _save(self) -> None:
        """Save the notes. They hold the latest time of all lines that were read, so the held ones are parsed first."""
        self._pass_on_held()
        self._files.save(self.latest_us)

    def account(self) -> None:
        """Report the memory held to the budget, in the budget's thread. Raises OSError."""
        self._budget.reserve(f"source {self.name}", self.nbytes)

    def awaits_file(self, job: JobId) -> bool:
        """Whether the job's last cut waits for a file that may come back."""
        reading = self._readings.get((job, 0))
        return reading is not None and reading.awaits_file

    def take_notices(self) -> list[str]:
        """Notices for the agent's log since the last call, a line each."""
        notices = []
        while self._notices:
            notices.append(self._notices.popleft())
        return notices

    def take_spent(self) -> list[tuple[JobId, int]]:
        """Nanoseconds of processor time since the last call, by job; see `Spent.take`."""
        return self._spent.take()

    def close(self) -> None:
        """Save, and close every file. Idempotent."""
        with self._lock:
            self._files.note_lost(self._lost_us)
            if self._files.scan_s is not None or self._files.is_dirty:
                self._save()
            for scan in self._rescans.values():
                scan.close()
            self._rescans.clear()
            self._source.close()
            self._budget.reserve(f"source {self.name}", 0)

    # Jobs.

    def _resume(self, read: Read, schedule: Schedule) -> Reading:
        """The reading that this `Read` resumes, or a new one. It has a place in every known file."""
        key = (read.job, read.lane)
        reading = self._readings.get(key)
        if reading is None or not reading.is_resumed_by(read, schedule):
            counts_all, is_lost = self._files.counts_all(read)
            self._files.find_again(read.positions, read.ends, is_lost=is_lost)
            reading = self._readings[key] = Reading(read, schedule, self._worker, counts_all)
            self._ask_columns()
        reading.read_s, reading.at_line = self._files.now_s, read.at_line
        self._readings = {
            key: each for key, each in self._readings.items() if self._files.now_s - each.read_s < ABSENT_S
        }
        for note in self._files.notes.files.values():
            self._take_place(reading, note)
        return reading

    def _ask_columns(self) -> None:
        """Have the parsers fill the columns of all jobs. If these changed, settle the gathered rows first."""
        asked = frozenset[Column]().union(*(reading.rows.columns for reading in self._readings.values()))
        self._types = asked_types((column.name, column.type) for column in asked)
        columns = frozenset(self._types) | {"time"}
        if columns != self._parsing.columns or self._types != self._parsing.types:
            self._settle()
            self._parsing.ask(columns, self._types)

    def _take_place(self, reading: Reading, note: FileNote) -> None:
        """Add a place in that file to the reading, if it has none."""
        if not note.fingerprint:
            return
        front = self._files.front_of(note)
        if note.generation not in reading.places:
            reading.take_place(note, front, self._files.is_done(note))
        place = reading.places[note.generation]
        if not place.over or reading.lane:
            return
        if place.end_of_part is not None:
            reading.continue_in_next_part(place, note)
        elif front is None or self._files.on_disk(note) is None:
            return
        elif self._files.end_of(note, front) > place.offset:
            reading.reopen(place)

    def _settle(self) -> None:
        for reading in list(self._readings.values()):
            self._isolate(reading, reading.rows.settle)

    # Reading.

    def _fill(self, reading: Reading, *, is_asked: bool) -> bool:
        """Read for this job until nothing is left, or the cut is full. Returns whether nothing is left: false if a known file is
        not open yet because a rotation has just renamed it. is_asked: it will be cut now, so the bytes of its lines bound it;
        else those of its rows do, which may be few for many lines."""
        left = self._cut_bytes if is_asked else self._turn_bytes
        stuck: set[int] = set()
        while left > 0:
            place = self._next_behind(reading, stuck)
            block = None
            if place is not None:
                block = self._read_again(reading, place)
                if block is None:
                    stuck.add(place.note.generation)
                    continue
            elif reading.lane and not self._waits_for_front(reading):
                return True
            else:
                block = self._read_front()
                if block is None:
                    return not self._files.behind()
            left -= max(block.end - block.start, 1)
            if reading.error is not None:
                raise reading.error
            if not self._has_memory(reading) or (not is_asked and self._is_full(reading, bounds.FULL)):
                return False
        return False

    def _stop_of(self, place: Place) -> int | None:
        """The offset up to which lines at that place can be read; None: to the end of the file on disk."""
        front = self._files.front_of(place.note)
        ends = [end for end in (front, place.stop, place.end_of_part) if end is not None]
        return min(ends) if front is not None else None

    def _next_behind(self, reading: Reading, stuck: set[int]) -> Place | None:
        for place in reading.open_places():
            if place.note.generation in stuck:
                continue
            stop = self._stop_of(place)
            if stop is None or place.offset < stop:
                return place
        return None

    def _waits_for_front(self, reading: Reading) -> bool:
        return any(place.stop is not None and place.offset < place.stop for place in reading.open_places())

    def _read_front(self) -> Block | None:
        """Read the next block at the front, for every job whose place is there; small ones when they are many."""
        now_s = self._files.now_s
        while (block := self._source.read(now_s)) is not None:
            self.counters.front_bytes += block.end - block.start
            may_hold = self._may_hold and block.file.generation in self._front
            if not (may_hold and self._held.add(block, now_s)):
                self._pass_on_held()
                return self._pass_on(block)
        return None if self._may_hold and not self._held.is_over(now_s) else self._pass_on_held()

    def _pass_on_held(self) -> Block | None:
        return None if (block := self._held.take()) is None else self._pass_on(block)

    def _pass_on(self, block: Block) -> Block:
        generation = block.file.generation
        note = self._files.note_of(block)
        if block.last:
            file = self._source.files()[generation]
            note.length = block.end
            has_copy = not file.packed and self._files.on_disk(note) is not None
            is_cut_off = generation in self._source.cut_off and not has_copy
            note.lost |= self._source.lost_bytes > self._lost_bytes or is_cut_off
            if is_cut_off:
                self._losses.cut_off(file, note.identity())
            self._lost_bytes = self._source.lost_bytes
            self.formats.forget(block.file)
        if block.end == block.start:
            self._front.pop(generation, None)
            return block
        if note.begin < 0:
            note.begin, self._files.is_dirty = block.start, True
        state = self._front.get(generation)
        if state is None:
            state = self._front[generation] = self._state_before(self._source.files()[generation], block)
        batch = self._distribute(block, state, self._live_at(note, block))
        if block.last:
            del self._front[generation]
        self._count(batch, block)
        if batch.rows:
            latest = int(batch.columns["time"].values.max())
            note.read_to(block.start, latest)
            self.latest_us = latest if self.latest_us is None else max(self.latest_us, latest)
        self.counters.parsed_bytes += block.end - block.start
        return block

    def _state_before(self, file: Followed, block: Block) -> ParseState:
        """The parse state before the first block of a file that is read since the start."""
        format = self.formats.of(block)
        if not block.start:
            return ParseState(format)
        try:
            scan = self._files.open(file, block.start)
        except (OSError, SourceError):
            return ParseState(format)
        with closing(scan):
            return self._state_at(scan, format)

    def _state_at(self, scan: Rescan, format: Format) -> ParseState:
        return self._parsing.state_at(
            scan, format, self._files.clock_us, lambda: self._files.open(scan.file, 0)
        )

    def _read_again(self, reading: Reading, place: Place) -> Block | None:
        """Read the next block at that place, for every job at the same place; None if there is none now."""
        note, generation = place.note, place.note.generation
        file, stop = self._files.on_disk(note), self._stop_of(place)
        if file is None or file.denied:
            return None
        scan = None
        try:
            scan = self._rescans.pop((generation, place.offset), None) or self._reopen(file, place)
            block = scan.next(stop)
            if block is not None and scan.is_true() and not place.is_broken:
                takers = [(reading, place)] if reading.lane else self._live_at(note, block)
                assert scan.state is not None
                self._distribute(block, scan.state, takers)
                self.counters.again_bytes += block.end - block.start
                self._keep_open(generation, scan, stop)
                return block
            if block is None and stop is not None and scan.is_true():
                self._ends_at(file, place)
        except EndsBefore:
            self._ends_at(file, place)
        except FileNotFoundError:
            pass  # the next scan finds its new path
        except SourceError:
            self._files.damaged_at(file, place.offset)
        except OSError as error:
            self._losses.unread(file, place.slot[1], place.offset, error)
        if scan is not None:
            scan.close()
            if stop is None:
                note.length = place.offset
        return None

    def _ends_at(self, file: Followed, place: Place) -> None:
        """Note that the file holds less than was read: it is a copy of a log that grew afterwards, or a damaged archive."""
        if file.packed and file.state.generation == place.note.generation:
            self._files.damaged_at(file, place.offset)
        else:
            self._files.ends_at(file, place.offset)

    def _reopen(self, file: Followed, place: Place) -> Rescan:
        offset, scan = place.offset, self._files.open(file, place.offset)
        place.is_broken = not scan.begins_line()
        try:
            nothing = Block(file.key, file.path, offset, offset, b"", 0, offset == 0, False)
            scan.state = self._state_at(scan, self.formats.of(nothing))
        except BaseException:
            scan.close()
            raise
        return scan

    def _keep_open(self, generation: int, scan: Rescan, stop: int | None) -> None:
        """Keep the scan for the next block, unless the front reads that block."""
        before = self._rescans.pop((generation, scan.offset), None)
        if before is not None:
            before.close()
        if scan.offset == stop:
            scan.close()
            return
        self._rescans[generation, scan.offset] = scan
        while len(self._rescans) > bounds.RESCANS_MAX:
            self._rescans.pop(next(iter(self._rescans))).close()

    def _live_at(self, note: FileNote, block: Block) -> list[tuple[Reading, Place]]:
        """The live readings with their place at the start of the block."""
        found = []
        for reading in self._readings.values():
            if reading.lane:
                continue
            self._take_place(reading, note)
            place = reading.places.get(note.generation)
            if place is None or place.over:
                continue
            self._ends.enter_next_part(reading, place)
            end = place.end_of_part
            if place.offset == block.start and (end is None or block.end <= end):
                found.append((reading, place))
        return found

    def _distribute(self, block: Block, state: ParseState, takers: Sequence[tuple[Reading, Place]]) -> Batch:
        """Parse a block once and pass it to all takers."""
        before, format = Before(state.last_time, state.unread), self.formats.of(block)
        batch = self._parsing.parse(block.lines, format, state, self._files.clock_us, self._settle)
        self.counters.scans += 1
        self._misfits.look(batch, self._types)
        self._spent.charge([reading.job for reading, _ in takers])
        for reading, place in takers:
            self._isolate(reading, reading.take, place, block, batch, before)
            self._spent.charge((reading.job,))
        advance(state, batch, block.too_long)
        return batch

    def _isolate(self, reading: Reading, do: Callable[..., None], *about: Any) -> None:
        """Call `do`. If it raises, the reading may hold half a block: its next `Read` starts again. Others are not affected."""
        try:
            do(*about)
        except Exception as error:
            reading.error = error
            self._readings = {key: each for key, each in self._readings.items() if each is not reading}

    def _count(self, batch: Batch, block: Block) -> None:
        self._totals.count(batch, block)
        self._path = block.path
        if batch.samples:
            self._reject = batch.samples[-1]
        if batch.rows:
            self._parse_health.read(self._files.now_s)
        else:
            self._parse_health.rejected(len(batch.reject_rows) + block.too_long, self._files.clock_us)

    def _has_memory(self, reading: Reading) -> bool:
        """Whether this job may gather more rows. If memory is short, other jobs drop their rows and read them again later."""
        held = {key: each.rows.nbytes for key, each in self._readings.items()}
        while sum(held.values()) > self._memory_max and len(held) > 1:
            others = {key: size for key, size in held.items() if self._readings[key] is not reading}
            largest = max(others, key=lambda key: others[key])
            del self._readings[largest], held[largest]
        return sum(held.values()) <= self._memory_max

    # Answering.

    def _is_due(self, read: Read, reading: Reading, at_end: bool) -> bool:
        """Whether to cut: the watermark has reached `due_us`, a line was awaited, or jobs would soon have to drop rows."""
        if self._is_full(reading) or not read.due_us:
            return True
        if not at_end:
            return not self._held
        has_come = read.at_line and has_lines(reading.spans)
        return has_come or self._watermark(reading, at_end, True) >= read.due_us

    def _is_full(self, reading: Reading, share: int = 1) -> bool:
        held = sum(each.rows.uncut_bytes for each in self._readings.values())  # a cut empties no caches
        unsent_max = share * min(bounds.UNSENT_BYTES, 2 * self._cut_bytes)
        return reading.rows.uncut_bytes > unsent_max or 2 * held > self._memory_max

    def _cut(self, read: Read, reading: Reading, at_end: bool) -> Cut:
        self._isolate(reading, reading.rows.flush)
        if reading.error is not None:
            raise reading.error
        if at_end and not reading.lane:
            self._ends.detect_cut_short(reading)
        waits = [
            place for place in reading.open_places() if not self._ends.is_settled(reading, place, at_end)
        ]
        is_missing = self._ends.has_missing(reading)
        caught_up = at_end and not waits and not is_missing
        reading.awaits_file = at_end and not caught_up
        watermark_us = reading.watermark_us if is_missing else self._watermark(reading, at_end, caught_up)
        watermark_us = self._withhold_lost(read, reading, watermark_us)
        watermark_us, lacks = reading.promise(watermark_us)
        is_failing = (
            caught_up
            and not reading.lane
            and self._parse_health.may_cover_rejects(reading.watermark_us, watermark_us)
        )
        is_blind, newest = is_failing or lacks, reading.latest_us or 0
        # The first promise of a reading has an unknown beginning: the job's log may have promises of earlier readings.
        is_known = is_blind and reading.watermark_us > 0
        unparsed = reading.take_unparsed((reading.watermark_us, watermark_us) if is_known else None)
        reading.watermark_us = watermark_us
        parts = reading.rows.cut()
        spans = reading.take_spans()
        gaps = tuple(slot for slot, span in spans.items() if span[2] & GAP)
        self.counters.gaps += len(gaps)
        about = (read.job, read.request, read.schedule)
        untimed = 0 if reading.lane else reading.rows.untimed  # lines of a lane were counted before
        reading.rows.untimed = 0
        ends = caught_up and self._parse_health.is_failing, newest, unparsed
        return Cut(*about, spans, watermark_us, parts, caught_up, gaps, is_blind, untimed, *ends)

    def _withhold_lost(self, read: Read, reading: Reading, watermark_us: Micros) -> Micros:
        """The watermark that may be promised: it stays until one gap in the job's log covers all lost lines. Until then it has an
        open file for them; whatever this agent learns meanwhile, it closes that file with a gap."""
        slot, until_us = (self._worker, LOST_STATE, 0), self._files.notes.lacks_us
        given = reading.given.get(slot)
        is_lacking = not reading.counts_all and read.since_us < until_us
        if reading.lane or (given.closed if given is not None else not is_lacking):
            return watermark_us
        flags = FIRST if given is None else 0
        is_early = is_lacking and watermark_us < until_us
        reading.spans[slot] = 0, 0, flags if is_early else flags | GAP | CLOSED
        return reading.watermark_us if is_early else watermark_us

    def _watermark(self, reading: Reading, at_end: bool, caught_up: bool) -> Micros:
        """The latest event time, bounded by files with lines left to read. Never falls.

        For an idle source: the clock from before it was read to its end, less the grace. Rule 2*: a source whose lines cannot be
        parsed counts as idle, so that no window waits for it; but what it promises is a gap. Lines parsed before that are no gap,
        so a cut promises them separately.
        """
        latest = self.latest_us if caught_up else reading.latest_us
        unread = () if at_end else self._files.behind()
        for generation, place in reading.places.items():
            if not place.over and (generation in unread or place.offset != self._files.front_of(place.note)):
                latest = min(latest or 0, place.last_us or 0)
        scan_s, line_s = self._files.scan_s, self._parse_health.line_s
        is_quiet = scan_s is not None and line_s is not None and (scan_s - line_s) * 1e6 >= self.idle_grace_us
        is_first = self._parse_health.is_failing and reading.watermark_us < (latest or 0)
        if caught_up and is_quiet and not is_first and self._source.complete_until is not None:
            latest = max(latest or 0, self._files.scan_clock_us - self.idle_grace_us)
        return max(reading.watermark_us, min(latest or 0, self._files.clock_us))
