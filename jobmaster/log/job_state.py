"""The state that a job's log produces: committed positions and their rows, final windows, the roster, the schedule.

The machine in one sentence: entries of the log go in, and the same entries in the same order give the same state on every node.

| entry | what it does |
|---|---|
| Begin | sets the schedule, and the time from which the job counts |
| Serve | records which windows may have been final in entries that the log lacks |
| Proven | more than half of the roster has reported under that ballot |
| Accept | merges rows into panes (late ones are only counted), advances positions and watermarks, records gaps: atomically |
| Add, Left, Gone, Forget | change the roster |
| ControlEntry | with a lane: drops panes at or past the lane, of every version that the lane touches; opens the lane. Without |
| | one: rows at or past its line become the new version's if that counts alike. Withdraws windows that the schedule lacks then |
| Final | records the window's revision, digest and coverage |
| Retire | drops panes, finals and positions of closed files that retention has passed |
| Judged | records the states of alerts, and which windows they were judged by |

Invariants (`check`): those of `Positions`; a watermark never falls; a touched pane is retained and its version known; a revision
of a final window only grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import intern

import msgspec
import numpy as np

from elf.cbt._kernel import lower_bound, make_rows
from elf.cbt.budget import Budget
from elf.cbt.frame import FRAME_BYTES_MAX, pack, unpack
from elf.cbt.rows import Op, Rows, concat
from elf.errors import PeerError
from elf.jobmaster.alerts.book import EMPTY, Book, BookState
from elf.jobmaster.log.entries import (
    NO_LANE,
    Accept,
    AnyEntry,
    Begin,
    ControlEntry,
    Final,
    Forget,
    Gone,
    Judged,
    Left,
    Proven,
    Retire,
    Serve,
    SpecRank,
)
from elf.jobmaster.log.job_log import NO_MAJORITY, Majorities, proved
from elf.jobmaster.log.positions import UNABLE_US, Positions, PositionsState
from elf.jobmaster.log.schedule import (
    AFTER_ALL,
    BEFORE_ALL,
    Shape,
    counts_alike,
    in_force,
    interval,
    past,
    plan_of,
    speaks_for,
    times_within,
)
from elf.jobmaster.log.state_rows import RowPiece, StateRows
from elf.jobmaster.windows.lanes import LINE_OPS, lane_count
from elf.jobmaster.windows.panes import Panes
from elf.srt.messages.bundles import summed
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import (
    CLOSED,
    GAP,
    MASTERS_MAX,
    NO_BALLOT,
    NO_WATERMARK,
    Ballot,
    Count,
    Line,
    Maker,
    Micros,
    Schedule,
    Slot,
    Span,
    under,
)
from elf.srt.messages.sizes import CONTRIBUTION_BYTES

HOT_WINDOWS = 2
"""So many windows behind the newest line, panes are packed: they are read once more when they are final, and for late lines."""
FRAME_ROWS = 1 << 16
"""Rows of one frame of a snapshot: a few MiB unpacked."""

WindowKey = tuple[str, Micros]
"""(version, start)."""


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A final window in the log. at: the entry up to which its rows count. is_revised: see `Final`."""

    revision: tuple[int, Maker, int]
    digest: int
    passed: int
    expected: int
    at: int
    covers: tuple[Micros, Micros]
    is_revised: bool = False

    @property
    def status(self) -> str:
        """Rule Final*: a revision has one status, whichever master publishes it and whenever."""
        return "revised" if self.is_revised else "final"


class StateSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A `JobState` as a value, after entry `index`. panes: version -> frames of each of its trees; empty if the rows come
    `in_pieces` (`elf.jobmaster.log.state_rows`), as those of a large state do. Its dicts must not be changed."""

    index: int
    ballot: Ballot
    spec: SpecRank
    front_us: Micros
    positions: PositionsState
    watermarks: dict[NodeId, Micros]
    gaps: dict[NodeId, tuple[Micros, Micros]]
    finals: dict[WindowKey, Published]
    touched: dict[str, dict[Micros, int]]
    panes: dict[str, tuple[tuple[bytes, ...], ...]]
    proven: tuple[Ballot, Ballot] = (NO_BALLOT, NO_BALLOT)
    unknown_us: Micros = 0
    taken_back: tuple[WindowKey, ...] = ()
    untimed: dict[NodeId, int] = {}
    in_pieces: bool = False
    served: Ballot = NO_BALLOT
    whole: tuple[Ballot, ...] = ()
    signer: bytes = b""
    left: tuple[Count, Count] = (0, 0)
    alerts: BookState = EMPTY

    @property
    def nbytes(self) -> int:
        frames = sum(len(frame) for trees in self.panes.values() for tree in trees for frame in tree)
        files = len(self.positions.at) + len(self.positions.closed)
        return frames + CONTRIBUTION_BYTES * (files + len(self.watermarks) + len(self.finals))


class JobState:
    """The state of one job."""

    def __init__(self, job: JobId, name: str, budget: Budget) -> None:
        self.job, self.name = job, name
        self.late = 0
        """How many lines came after their pane was dropped, in entries that this process applied."""
        self._budget = budget
        self._clear()

    def _clear(self) -> None:
        self.index = 0
        self.ballot: Ballot = NO_BALLOT
        self.proven: Majorities = (NO_MAJORITY, NO_MAJORITY)
        self.spec: SpecRank = (-1, b"")
        self.signer = b""
        """The serial of the certificate under which that spec was signed."""
        self.front_us: Micros = (
            BEFORE_ALL  # the highest watermark of a whole bundle: about "now" in event time
        )
        self.positions = Positions()
        self.watermarks: dict[NodeId, Micros] = {}
        self.gaps: dict[NodeId, tuple[Micros, Micros]] = {}
        self.untimed: dict[NodeId, int] = {}  # rejected lines in no window, of each worker
        self.finals: dict[WindowKey, Published] = {}
        self.touched: dict[str, dict[Micros, int]] = {}  # version -> pane -> the last entry that changed it
        self.panes: dict[str, Panes] = {}
        self.withdrawn: dict[WindowKey, Micros] = {}
        """Windows that the last CONTROL withdrew, and their ends, for the sinks. Not part of snapshots."""
        self.taken_back: set[WindowKey] = set()
        """All retained windows that were final before a CONTROL withdrew them."""
        self.unknown_us: Micros = 0
        self.served: Ballot = NO_BALLOT
        self.alerts = Book()
        self.whole: tuple[Ballot, ...] = ()
        """The ballots of the latest masters of which this log has everything that they published."""

    @property
    def schedule(self) -> Schedule:
        return self.positions.schedule

    def shape(self, version: str) -> Shape:
        return self.positions.shapes[version]

    def covers(self, version: str, start: Micros) -> tuple[Micros, Micros]:
        """The event times that a window covers: a control line, or the job's beginning, may cut it short."""
        since, size = self.positions.since_us, self.shape(version).size_us
        if not size:
            low, until = interval(self.schedule, version)
            return max(low, since), until
        low, until = times_within(self.schedule, version, start, start + size)
        return max(low, min(since, start + size)), until

    def is_past(self, version: str, start: Micros) -> bool:
        """Whether lines that the window covers are dropped: then the window stays as it was published last. The same holds for a
        window of a control line that is no longer retained, even if its version came back: the window covers nothing any more."""
        shape = self.positions.shapes.get(version)
        if shape is None:
            return True
        low, until = self.covers(version, start)
        if low >= until and start < self.schedule[0].from_us:
            return True  # also while the end of its pane is retained
        return shape.is_before(shape.floor(low if low < until else start), self.positions.retained_us)

    def none_past_from(self, version: str) -> Micros:
        """No window of that version that starts at this time or later `is_past`."""
        if version not in self.positions.shapes:
            return AFTER_ALL
        return max(self.positions.retained_us, self.schedule[0].from_us if self.schedule else 0)

    def is_withdrawn(self, version: str, start: Micros) -> bool:
        """Exactly one version per result: whether the schedule no longer has a window that was published. Windows before the
        schedule's first line, or before this log, are unknown, and stay as they were published."""
        schedule = self.schedule
        if not schedule or start < max(schedule[0].from_us, self.positions.since_us):
            return False
        shape = self.positions.shapes.get(version)
        if shape is None or not shape.size_us:
            return shape is None
        return len(schedule) > 1 and not speaks_for(schedule, version, start, start + shape.size_us)

    def was_final(self, key: WindowKey) -> bool:
        """Rule Final*: whether readers may have a final result of a window: from this log, even if a change withdrew it later, or
        from entries that were lost when another master took over."""
        version, start = key
        if key in self.finals or key in self.taken_back:
            return True
        return start + self.shape(version).size_us <= self.unknown_us

    # ---- entries ----

    def apply(self, index: int, entry: AnyEntry) -> None:
        """Entry `index` of the log is committed. Each index is one above the last; a restored state continues from its own."""
        self.index = index
        if isinstance(entry, Accept):
            self._advance(entry)
            self._merge(entry)
            if entry.untimed:
                self.untimed = summed((self.untimed, entry.untimed))
            self.positions.apply(entry)
            return
        if isinstance(entry, ControlEntry):
            self._drop_lane_rows(entry)
            self._keep_rows(entry)
            self.spec, self.signer = entry.spec, entry.signer
        if isinstance(entry, Left | Gone | Forget):
            self._note_lost_lane(entry.worker)
            if entry.until_us != UNABLE_US:
                self._note_unread_end(entry, isinstance(entry, Left) and entry.unread)
        shapes = self.positions.shapes
        self.positions.apply(entry)
        if isinstance(entry, ControlEntry):
            self._withdraw(shapes)
            for worker, until_us in self.positions.lost_to_lane(entry.lane_us).items():
                self._note_gap(worker, entry.lane_us, until_us)
        if isinstance(entry, Begin):
            self.ballot, self.spec, self.signer = entry.ballot, entry.spec, entry.signer
        elif isinstance(entry, Serve):
            self._serve(entry)
        elif isinstance(entry, Proven):
            self.proven = proved(self.proven, entry.majority)
        elif isinstance(entry, Final):
            self._note_final(entry)
        elif isinstance(entry, Retire):
            self._retire()
        elif isinstance(entry, Judged):
            self.alerts.apply(entry.judgement)
        self._open_versions()

    def _serve(self, entry: Serve) -> None:
        self.unknown_us = max(self.unknown_us, entry.unknown_us)
        if not entry.unknown_us and self.served != NO_BALLOT:
            self.whole = (*self.whole, self.served)[-MASTERS_MAX:]
        self.served = entry.ballot

    def _note_final(self, entry: Final) -> None:
        """Windows*: record the result, unless an earlier CONTROL or Retire entry dropped the window's panes: it could not be
        read again."""
        if entry.version in self.panes and not self.is_past(entry.version, entry.start):
            self.finals[intern(entry.version), entry.start] = Published(
                under(self.served, entry.revision),
                entry.digest,
                entry.passed,
                entry.expected,
                entry.at,
                entry.covers,
                entry.is_revised,
            )

    def majorities(self, tail: Sequence[AnyEntry]) -> Majorities:
        """The log's majorities. tail: the entries that are not applied yet."""
        proven = self.proven
        for entry in tail:
            if isinstance(entry, Proven):
                proven = proved(proven, entry.majority)
        return proven

    def _withdraw(self, shapes: Mapping[str, Shape]) -> None:
        """Withdraw the final windows that the schedule no longer has."""
        self.withdrawn = {
            (version, start): start + shapes[version].size_us
            for version, start in self.finals
            if self.is_withdrawn(version, start)
        }
        for key in self.withdrawn:
            del self.finals[key]
        self.taken_back.update(self.withdrawn)

    def _open_versions(self) -> None:
        """Open trees for the versions of the schedule, and close those of others."""
        lines = {line.version: line for line in self.schedule}
        for version in self.panes.keys() - lines.keys():
            self.panes.pop(version).close()
            del self.touched[version]
            self.finals = {key: final for key, final in self.finals.items() if key[0] != version}
        for version, line in lines.items():
            if version not in self.panes:
                self._open(line)

    def _open(self, line: Line) -> None:
        hot_us = HOT_WINDOWS * Shape.of(plan_of(line.plan)).size_us
        self.panes[line.version] = Panes(plan_of(line.plan), self._budget, hot_us)
        self.touched[line.version] = {}

    def _advance(self, entry: Accept) -> None:
        """Rule 2*: a watermark counts only inside an accepted contribution, and for its worker. It never falls."""
        marks, low, lagging = self.watermarks, entry.watermark, entry.lagging
        if entry.promises and self.front_us < low < NO_WATERMARK:
            self.front_us = low
        for worker, (from_us, until_us) in entry.unparsed.items():
            if until_us > self.positions.reread_us:
                self._note_gap(worker, from_us, until_us)
        for slot, span in entry.contributions.items():
            if span[2] & GAP and not self._is_known(slot, span, entry):
                self._note_lost(slot, span, lagging.get(slot[0], low))
        for worker, _, lane in entry.contributions if entry.promises else ():
            mark, known = lagging.get(worker, low), marks.get(worker)
            if not lane and (known is None or mark > known) and mark < NO_WATERMARK:
                marks[worker] = mark

    def _is_known(self, slot: Slot, span: Span, entry: Accept) -> bool:
        """Whether a GAP is that of unparsed lines, whose time is named, in a promise that the log has passed already."""
        worker, mark = slot[0], entry.lagging.get(slot[0], entry.watermark)
        is_past = mark <= self.watermarks.get(worker, BEFORE_ALL)
        return worker in entry.unparsed and not span[2] & CLOSED and is_past

    def _note_lost(self, slot: Slot, span: Span, mark: Micros) -> None:
        """Record a gap from the worker's last watermark to its present one. Workers report the lost end of a closed file to every
        master; a log that has the file's end has recorded the gap already."""
        _, end, flags = span
        if flags & CLOSED and slot in self.positions.closed and end <= self.positions.closed[slot][0]:
            return
        worker, _, lane = slot
        if lane:
            self._note_lost_lane(worker)
        else:
            self._note_gap(worker, self.watermarks.get(worker, BEFORE_ALL), mark)

    def _note_gap(self, worker: NodeId, from_us: Micros, to_us: Micros) -> None:
        before = self.gaps.get(worker)
        if before is not None:
            from_us, to_us = min(before[0], from_us), max(before[1], to_us)
        self.gaps[worker] = (from_us, max(to_us, from_us))

    def _note_unread_end(self, entry: Left | Gone | Forget, is_unread: bool) -> None:
        """Record a gap from the worker's last watermark to its end if it could parse none of its last lines, or if it has a gap
        that reaches its last watermark."""
        promised_us = self.watermarks.get(entry.worker, BEFORE_ALL)
        gap = self.gaps.get(entry.worker)
        if is_unread or (gap is not None and gap[1] >= promised_us):
            self._note_gap(entry.worker, promised_us, entry.until_us)

    def _note_lost_lane(self, worker: NodeId) -> None:
        """Record a gap over the lane's lines if the worker leaves, or loses some of them, before it has read them all again."""
        lane = self.positions.lane
        if lane is not None and worker in lane.open:
            self._note_gap(worker, lane.from_us, self.positions.latest_us(AFTER_ALL >> 1))

    def _merge(self, entry: Accept) -> None:
        for version, part in entry.parts.items():
            if len(part.rows[1]) or any(len(rows) for rows in part.rows):
                kept = part.since(self.shape(version).first_in_time(self.positions.retained_us))
                touched = self.touched[version]
                for pane in kept.rows[1].pane.tolist():
                    touched[pane] = self.index
                self.panes[version].merge(kept.rows)
                if kept is not part:
                    self._count_late(version, part.rows[1].slice(0, len(part.rows[1]) - len(kept.rows[1])))

    def _count_late(self, version: str, past: Rows) -> None:
        """Lines past retention are in no window; the current window counts them as late.

        Lines before `since_us` are not part of this log, and are not counted: a worker that read for an earlier log may still
        send them, and sinks may have them from that log.
        """
        late = past.slice(lower_bound(past, self.shape(version).floor(self.positions.since_us)), len(past))
        if not len(late):
            return
        now_us = max(self.front_us, self.positions.retained_us)
        version = in_force(self.schedule, now_us).version
        total = late.lanes.sum(axis=1)
        self.late += int(total[1])
        total[3] += total[1]
        pane = self.shape(version).floor(now_us) if self.shape(version).pane_us else 0
        no_key = np.empty(0, np.uint8), np.zeros(1, np.uint64), None
        self.panes[version].insert(1, make_rows(pane, *no_key, total.reshape(len(LINE_OPS), 1), LINE_OPS))
        self.touched[version][pane] = self.index

    def _drop_lane_rows(self, entry: ControlEntry) -> None:
        """CONTROL: drop the rows that the lane will read again, and all rows of versions that never come into force."""
        if entry.lane_us >= NO_LANE:
            return
        for version, panes in self.panes.items():
            first = self._first_dropped(version, entry)
            if first is None:
                continue
            panes.discard(first)
            self._touch(version, first)

    def _keep_rows(self, entry: ControlEntry) -> None:
        """Rule Keep*: rows at or past a control line without a lane become the new version's, which counts as theirs did."""
        new, from_us = entry.line, entry.line.from_us
        shapes = self.positions.shapes
        if entry.lane_us < NO_LANE or not counts_alike(self.schedule, shapes, new.plan, from_us):
            return
        if new.version not in self.panes:
            self._open(new)
        for version in {line.version for line in past(self.schedule, from_us)} - {new.version}:
            for rows in self.panes[version].taken(from_us):
                self.panes[new.version].merge(rows)
                self.touched[new.version] |= dict.fromkeys(rows[1].pane.tolist(), self.index)
            self._touch(version, from_us)

    def _touch(self, version: str, first: Micros) -> None:
        """The rows of the version's panes from `first` on have changed."""
        touched = self.touched[version]
        for pane in touched:
            if pane >= first:
                touched[pane] = self.index

    def _first_dropped(self, version: str, entry: ControlEntry) -> Micros | None:
        """The first pane of the version that the lane touches; None for a version that was replaced before."""
        schedule = self.schedule
        last = max(i for i, line in enumerate(schedule) if line.version == version)
        if last + 1 < len(schedule) and schedule[last + 1].from_us <= entry.lane_us:
            return None
        shape = self.shape(version)
        return shape.floor(entry.lane_us)

    def _retire(self) -> None:
        before = self.positions.retained_us
        for version, panes in self.panes.items():
            pane_us = self.positions.shapes[version].pane_us if version in self.positions.shapes else 1
            if not pane_us:
                continue
            stop = before - before % pane_us
            touched = self.touched[version]
            gone = [pane for pane in touched if pane < stop]
            for pane in gone:
                del touched[pane]
            if gone:
                panes.drop(stop)
        for key in [key for key in self.finals if self.is_past(*key)]:
            del self.finals[key]
        longest_us = self.positions.longest_us
        self.taken_back = {key for key in self.taken_back if key[1] + longest_us > before}
        for worker in (self.watermarks.keys() | self.untimed.keys()) - self.positions.roster.keys():
            if not self.positions.files_of(worker):
                self.watermarks.pop(worker, None)
                self.untimed.pop(worker, None)
        for worker, (_, until) in list(self.gaps.items()):
            if until <= self.positions.reread_us:
                del self.gaps[worker]

    # ---- as a value ----

    def parted(self, piece_bytes: int) -> tuple[StateSnapshot, StateRows] | None:
        """The state without its rows, and the rows; None if the rows take at most `piece_bytes`. O(fragments). Raises OSError."""
        if sum(panes.raw_bytes for panes in self.panes.values()) <= piece_bytes:
            return None
        return self._value({}, in_pieces=True), StateRows(self.panes, self._budget, piece_bytes)

    def add(self, piece: RowPiece) -> None:
        """Add a piece of the rows of a state that comes in pieces. Raises PeerError for rows that are not this state's."""
        panes = self.panes.get(piece.version)
        if panes is None or not 0 <= piece.tree < len(panes.ops):
            raise PeerError("state: rows of a version or a tree that the state does not have")
        rows, ops = unpack(piece.frame, FRAME_BYTES_MAX)
        if tuple(ops) != panes.ops[piece.tree]:
            raise PeerError("state: rows of operations other than those of the state's plan")
        panes.insert(piece.tree, rows)

    def snapshot(self) -> StateSnapshot:
        """The state as a value; equal for equivalent states. O(rows)."""
        return self._value({version: _frames(panes) for version, panes in self.panes.items()})

    def _value(
        self, panes: dict[str, tuple[tuple[bytes, ...], ...]], in_pieces: bool = False
    ) -> StateSnapshot:
        return StateSnapshot(
            self.index,
            self.ballot,
            self.spec,
            self.front_us,
            self.positions.snapshot(),
            dict(self.watermarks),
            dict(self.gaps),
            dict(self.finals),
            {version: dict(touched) for version, touched in self.touched.items()},
            panes,
            (self.proven[0][0], self.proven[1][0]),
            self.unknown_us,
            tuple(sorted(self.taken_back)),
            dict(self.untimed),
            in_pieces,
            self.served,
            self.whole,
            self.signer,
            (self.proven[0][1], self.proven[1][1]),
            self.alerts.state(),
        )

    def restore(self, snapshot: StateSnapshot) -> None:
        """Replace this state by the snapshot's. Raises PeerError for invalid frames."""
        self.close()
        self._clear()
        self.index, self.ballot = snapshot.index, snapshot.ballot
        (twice, once), (left_twice, left_once) = snapshot.proven, snapshot.left
        self.proven = (twice, left_twice), (once, left_once)
        self.spec, self.signer, self.front_us = snapshot.spec, snapshot.signer, snapshot.front_us
        self.positions = Positions.of(snapshot.positions)
        self.alerts = Book(snapshot.alerts)
        self.watermarks, self.gaps = dict(snapshot.watermarks), dict(snapshot.gaps)
        self.finals = dict(snapshot.finals)
        self.untimed = dict(snapshot.untimed)
        self.unknown_us, self.taken_back = snapshot.unknown_us, set(snapshot.taken_back)
        self.served, self.whole = snapshot.served, snapshot.whole
        self._open_versions()
        self.touched = {version: dict(touched) for version, touched in snapshot.touched.items()}
        for version, trees in snapshot.panes.items():
            for tree, frames in enumerate(trees):
                for frame in frames:
                    self.panes[version].insert(tree, unpack(frame)[0])

    def close(self) -> None:
        """Release all rows."""
        for panes in self.panes.values():
            panes.close()
        self.panes = {}

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.positions.check()
        self.alerts.check()
        assert self.panes.keys() == self.touched.keys() == {line.version for line in self.schedule}
        for version, panes in self.panes.items():
            panes.check()
            shape = self.shape(version)
            known = set(panes.lines().pane.tolist())
            assert known <= self.touched[version].keys()
            assert not any(
                shape.is_before(pane, self.positions.retained_us) for pane in self.touched[version]
            )
        assert all(published.at <= self.index for published in self.finals.values())


def _frames(panes: Panes) -> tuple[tuple[bytes, ...], ...]:
    return tuple(
        tuple(pack(rows, ops) for rows in _even(chunks, ops))
        for chunks, ops in zip(panes.rows(), panes.ops, strict=True)
    )


def _even(chunks: Iterator[Rows], ops: Sequence[Op]) -> Iterator[Rows]:
    """The same rows in chunks of `FRAME_ROWS`, however the tree divided them."""
    held: list[Rows] = []
    count = 0
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            stop = min(len(chunk), at + FRAME_ROWS - count)
            held.append(chunk.slice(at, stop))
            count, at = count + stop - at, stop
            if count == FRAME_ROWS:
                yield concat(held, lane_count(tuple(ops)))
                held, count = [], 0
    if held:
        yield concat(held, lane_count(tuple(ops)))
