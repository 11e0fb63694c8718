"""The windows of one job: which exist, when they are final, and their contents.

There are two ways to the same results. `bounded` reads the panes of a complete input: no line is late, and each window is
published once, final, in time order. `LiveWindows` follows a watermark: windows are published as `open` while they grow,
`final` when the watermark has passed their end plus the lateness, and `revised` when a line arrives after that. No clock and no
IO here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from elf.cbt.budget import Budget
from elf.cbt.rows import MAX_EMPTY, MIN_EMPTY, Op, Rows, concat, distinct, keyless
from elf.jobmaster.plan.codec import digest
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.columns import CellColumn, ColumnRows, Row, Texts
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows.counters import lines_of, lines_within
from elf.jobmaster.windows.finish import Finished, Finisher
from elf.jobmaster.windows.lanes import family_ops, group_ops, lane_count
from elf.jobmaster.windows.order import Spool, layout_of
from elf.jobmaster.windows.panes import Panes, Piece
from elf.jobmaster.windows.result import ColumnInfo, Lines, Revision, Window

FINISH_FACTOR = 6
"""Memory for finishing a piece, as a multiple of its size: its keys as columns, dictionaries, values, and their sorted copies."""
INT64_MAX = np.iinfo(np.int64).max


class Publisher:
    """Makes `Window`s of one job version from pieces."""

    def __init__(self, job: str, plan: Plan, budget: Budget) -> None:
        self.job, self.plan, self.version = job, plan, digest(plan)
        self.finisher = Finisher(plan)
        self.columns = tuple(ColumnInfo(output.name, str(output.type)) for output in plan.select)
        self._budget = budget
        self._layout = layout_of(
            plan.order, {item.expression: i for i, item in enumerate(plan.select)}, len(plan.select)
        )

    def window(
        self, start: int | None, rows: Sequence[Row], lines: Lines, status: str, revision: Revision
    ) -> Window:
        spec = self.plan.window
        end = start + spec.size_us if spec is not None and start is not None else None
        if spec is not None and (clock := spec.clock) is not None and start is not None and end is not None:
            start, end = clock.utc_of(start), clock.utc_of(end)
        return Window(
            self.job,
            self.version,
            start,
            end,
            status,
            revision,
            lines,
            self.columns,
            rows,
            is_single=self.plan.is_single,
        )

    def key(self, window: Window) -> int:
        """The start of a window among those that `LiveWindows` knows; 0 of the one window without a start."""
        clock = self.plan.window.clock if self.plan.window is not None else None
        start = window.start or 0
        return start if clock is None else clock.local_of(start)

    def results(self, pieces: Iterable[Piece]) -> Iterator[tuple[int, Sequence[Row]]]:
        """(window start, ordered and limited rows) of each window that has a group, in time order."""
        return filter(None, self.steps(pieces))

    def steps(self, pieces: Iterable[Piece]) -> Iterator[tuple[int, Sequence[Row]] | None]:
        """Like `results`, with None after a piece that ends no window."""
        spool: Spool | None = None
        for piece in pieces:
            with self._budget.scratch(FINISH_FACTOR * piece.nbytes):
                finished = self.finisher.finish(piece)
                cells = self._cells(finished)
            width = len(self.columns)
            starts = distinct(piece.groups.pane)
            bounds = np.searchsorted(finished.starts, [*starts.tolist(), INT64_MAX]).tolist()
            for number, start in enumerate(starts.tolist()):
                low, high = bounds[number], bounds[number + 1]
                goes_on = number == len(starts) - 1 and not piece.whole
                if spool is None and not goes_on:
                    yield start, ColumnRows(cells[:width], low, high)[: self.plan.limit]
                    continue
                if spool is None:
                    spool = Spool(self._layout, self._budget, self.plan.limit)
                spool.add([cell.slice(low, high) for cell in cells])
                if not goes_on:
                    yield start, spool
                    spool = None
            if spool is not None:
                yield None

    def rows_of_other(self, rows: Rows) -> Sequence[Row]:
        """Rows of `other` as result rows: keys are NULL; HAVING, ORDER BY and LIMIT, which choose groups, do not concern them."""
        if not len(rows):
            return ()
        return list(
            ColumnRows(self._cells(self.finisher.finish_other(rows))[: len(self.columns)], 0, len(rows))
        )

    def _cells(self, finished: Finished) -> list[CellColumn]:
        """The result's columns, then those that only order it. They do not depend on the engine's dictionaries: the texts are
        copied, once for all columns."""
        copies: dict[int, Texts] = {}
        width = len(self.columns)
        extra = [v for v, at in zip(finished.order, self._layout.places, strict=True) if at >= width]
        return [_cells(vector, copies) for vector in (*finished.columns, *extra)]

    def one_window(self, pieces: Iterable[Piece]) -> Sequence[Row]:
        """The rows of the only window that the pieces hold."""
        for _, rows in self.results(pieces):
            return rows
        return []


def _cells(vector: Vector, copies: dict[int, Texts]) -> CellColumn:
    strings = vector.strings
    if strings is None:
        return CellColumn(str(vector.type), vector.values, vector.valid)
    if id(strings) not in copies:
        copies[id(strings)] = Texts(*strings.buffers())
    return CellColumn(str(vector.type), vector.values, None, copies[id(strings)])


def starts_of(pane: int, size_us: int, slide_us: int) -> range:
    """Starts of the windows that hold the pane."""
    last = pane - pane % slide_us
    first = last - (size_us - 1 - (pane - last)) // slide_us * slide_us
    return range(first, last + 1, slide_us)


def bounded(publisher: Publisher, panes: Panes) -> Iterator[Window]:
    """Every window of a bounded input, final, in time order. The panes are removed as they are read."""
    plan = publisher.plan
    counters = panes.lines()
    if plan.window is None:
        rows = publisher.one_window(_never_empty(plan, panes.pieces(drain=True, members=False)))
        yield publisher.window(None, rows, lines_of(counters), "final", (0, 0, 1))
        return
    if plan.window.size_us == plan.window.slide_us:
        found: Iterator[tuple[int, Sequence[Row]]] = publisher.results(
            panes.pieces(drain=True, members=False)
        )
    else:
        found = _sliding(publisher, panes, counters)
    yield from _with_empty(publisher, found, counters)


def _sliding(publisher: Publisher, panes: Panes, counters: Rows) -> Iterator[tuple[int, Sequence[Row]]]:
    assert publisher.plan.window is not None
    size, slide = publisher.plan.window.size_us, publisher.plan.window.slide_us
    for start in _window_starts(counters, size, slide):
        panes.drop(start)
        yield start, publisher.one_window(panes.window(start, start + size))


def _window_starts(counters: Rows, size: int, slide: int) -> list[int]:
    starts: set[int] = set()
    for pane in counters.pane.tolist():
        starts.update(starts_of(pane, size, slide))
    return sorted(starts)


def _with_empty(
    publisher: Publisher, found: Iterator[tuple[int, Sequence[Row]]], counters: Rows
) -> Iterator[Window]:
    """Add the windows that have lines but no group, so that their counters are published too."""
    assert publisher.plan.window is not None
    size, slide = publisher.plan.window.size_us, publisher.plan.window.slide_us
    following = next(found, None)
    for start in _window_starts(counters, size, slide):
        rows: Sequence[Row] = ()
        mine = following is not None and following[0] == start
        if mine:
            assert following is not None
            rows = following[1]
        yield publisher.window(start, rows, lines_within(counters, start, start + size), "final", (0, 0, 1))
        if mine:  # not earlier, so that only one window's rows are in memory
            following = next(found, None)


def _never_empty(plan: Plan, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """As in SQL, aggregates without GROUP BY return one row even for an empty input."""
    first = next(pieces, None)
    if first is not None:
        yield first
        yield from pieces
    elif not plan.keys:
        ops = group_ops(plan)
        yield Piece(
            _zero_group(ops), [concat([], lane_count(family_ops(family))) for family in plan.families]
        )


def _zero_group(ops: Sequence[Op]) -> Rows:
    empty = {Op.MIN: [MIN_EMPTY], Op.MAX: [MAX_EMPTY], Op.SUM64: [0], Op.SUM128: [0, 0]}
    lanes = [lane for op in ops for lane in empty[op]]
    return keyless(np.array(lanes, dtype=np.int64).reshape(len(lanes), 1))


class Published(msgspec.Struct):
    """What has been published of a window: the highest revision, and whether it was final."""

    n: int
    is_final: bool = False


class LiveWindows:
    """The live windows of one job version: merge deltas, advance the watermark, publish.

    Invariants (`check`): a window is published final at most once; revisions only grow; a pane is dropped only when every
    window that holds it is final and past retention.
    """

    def __init__(
        self, publisher: Publisher, panes: Panes, *, lateness_us: int, keep_us: int, epoch: int = 0
    ) -> None:
        self.publisher, self.panes = publisher, panes
        self.lateness_us, self.keep_us, self.epoch = lateness_us, keep_us, epoch
        self.watermark_us: int | None = None
        self.published: dict[int, Published] = {}
        self._changed: set[int] = set()
        self._changed_panes: set[int] = set()
        self._final_panes: set[int] = set()
        self._known_panes: set[int] = set()
        self._dropped_until: int | None = None
        self._pane_revisions = 0

    @property
    def _window(self) -> tuple[int, int, int] | None:
        spec = self.publisher.plan.window
        return None if spec is None else (spec.size_us, spec.slide_us, spec.pane_us)

    @property
    def retained_us(self) -> int | None:
        """The panes before this have been dropped, and their lines are late. None: all panes are retained."""
        return self._dropped_until

    def merge(self, rows: Sequence[Rows]) -> None:
        """Add a delta (`Delta.rows`). Raises OSError as `Panes.merge` does, with everything added."""
        self.touch(distinct(rows[1].pane).tolist())
        self.panes.merge(rows)

    def touch(self, panes: Iterable[int]) -> None:
        """Mark panes as changed since they were last published."""
        for pane in panes:
            self._known_panes.add(pane)
            self._changed_panes.add(pane)
            if self._window is None:
                self._changed.add(0)
            else:
                starts = starts_of(pane, self._window[0], self._window[1])
                self._changed.update(start for start in starts if not self._is_past(start))

    def advance(self, watermark_us: int) -> None:
        """Set the watermark, before which the source delivers no more lines. It never moves back."""
        if self.watermark_us is None or watermark_us > self.watermark_us:
            self.watermark_us = watermark_us

    def is_due(self, start: int) -> bool:
        """Whether the window is final by now."""
        if self._window is None or self.watermark_us is None:
            return False
        return start + self._window[0] + self.lateness_us <= self.watermark_us

    def has_news(self) -> bool:
        """Whether a window has changed since it was published."""
        return bool(self._changed)

    def open_count(self) -> int:
        """The number of windows that were published, and not as final ones."""
        return sum(not known.is_final for known in self.published.values())

    def due(self, *, with_open: bool) -> Iterator[Window]:
        """The windows to publish now, in time order: new finals, revisions, and with `with_open` the open ones that changed."""
        for start in self._pending(with_open):
            yield self._publish(start)

    def pass_due(self) -> None:
        """Like `due` without open windows, for a job whose windows are not read: they count as published."""
        for start in self._pending(False):
            self._mark(start)

    def _pending(self, with_open: bool) -> list[int]:
        pending = {start for start in self._open_starts() if self.is_due(start)}
        if with_open:
            pending |= self._changed
        else:
            pending |= {start for start in self._changed if self.is_due(start)}
        return sorted(pending)

    def _open_starts(self) -> set[int]:
        known = {start for start, published in self.published.items() if not published.is_final}
        return known | {start for start in self._changed if start not in self.published}

    def _is_past(self, start: int) -> bool:
        """Whether a pane of the window has been dropped: the window is not published again."""
        return self._dropped_until is not None and start < self._dropped_until

    def _publish(self, start: int) -> Window:
        status = self._mark(start)
        try:
            return self._read(start, status, (self.epoch, 0, self.published[start].n))
        except OSError:
            self._changed.add(start)
            raise

    def _mark(self, start: int) -> str:
        """Count one more revision of the window; returns its status."""
        published = self.published.setdefault(start, Published(0))
        published.n += 1
        status = "open"
        if published.is_final:
            status = "revised"
        elif self.is_due(start):
            status, published.is_final = "final", True
        self._changed.discard(start)
        return status

    def _read(self, start: int, status: str, revision: Revision) -> Window:
        publisher = self.publisher
        if self._window is None:
            rows = publisher.one_window(_never_empty(publisher.plan, self.panes.pieces(members=False)))
            return publisher.window(None, rows, lines_of(self.panes.lines()), status, revision)
        stop = start + self._window[0]
        rows = publisher.one_window(self.panes.window(start, stop))
        return publisher.window(start, rows, lines_of(self.panes.lines(start, stop)), status, revision)

    def publish_again(self, start: int | None) -> None:
        """Make this window, which a sink could not store, due again under a higher revision."""
        self._changed.add(0 if start is None else start)

    def open_windows(self) -> Iterator[Window]:
        """Every window that is not final, changed or not, for the end of a run."""
        self._changed |= self._open_starts()
        if self._window is None:
            self._changed.add(0)
        yield from self.due(with_open=True)

    def due_panes(self) -> list[tuple[int, str]]:
        """(pane start, "final" or "revised") of the panes whose state must be stored now. Marks them as stored."""
        if self._window is None or self.watermark_us is None:
            return []
        out = []
        bound = self.watermark_us - self.lateness_us - self._window[2]
        for pane in sorted(self._changed_panes):
            if pane <= bound:
                out.append((pane, "revised" if pane in self._final_panes else "final"))
                self._final_panes.add(pane)
        self._changed_panes.difference_update(pane for pane, _ in out)
        return out

    def unstored(self) -> set[int]:
        """Panes that have changed since `due_panes` returned them."""
        return self._changed_panes

    def unpublished(self) -> set[int]:
        """Starts of windows that have changed since they were published."""
        return self._changed

    def next_pane_revision(self, pane: int) -> Revision:
        """The revision of the next stored pane state: a count within the epoch, common to all panes."""
        self._pane_revisions += 1
        return (self.epoch, 0, self._pane_revisions)

    def retire(self, hold_us: int | None = None) -> None:
        """Drop the panes past retention, but none at or after `hold_us`, which a sink has not acknowledged."""
        if self._window is None or self.watermark_us is None:
            return
        size, _, pane_us = self._window
        bound = self.watermark_us - self.lateness_us - self.keep_us - size
        if hold_us is not None:
            bound = min(bound, hold_us)
        bound -= bound % pane_us
        if self._dropped_until is None or bound > self._dropped_until:
            self._dropped_until = bound
            gone = [pane for pane in self._known_panes if pane < bound]
            if not gone:
                return
            self.panes.drop(bound)
            self._known_panes.difference_update(gone)
            self._final_panes.difference_update(gone)
            self._changed_panes.difference_update(gone)
            self._changed = {start for start in self._changed if not self._is_past(start)}
            for start in [start for start in self.published if self._is_past(start)]:
                del self.published[start]

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        for start, published in self.published.items():
            assert published.n >= 1, start
        if self._dropped_until is not None:
            assert all(pane >= self._dropped_until for pane in self._known_panes)
        self.panes.check()
