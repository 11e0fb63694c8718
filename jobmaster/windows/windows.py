"""The windows of one job: which exist, when they are final, and their contents.

`bounded` reads the panes of a complete input: no line is late, and each window is published once, final, in time order. Of a
live log a master decides that (`elf.jobmaster.master.publication`). No clock and no IO here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    """Makes `Window`s of one job version from pieces. version: None for the digest of the plan."""

    def __init__(self, job: str, plan: Plan, budget: Budget, version: str | None = None) -> None:
        self.job, self.plan, self.version = job, plan, version or digest(plan)
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
