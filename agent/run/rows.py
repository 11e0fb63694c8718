"""Queries whose rows are lines: batches in, result rows out, without groups.

    Feed -> RowReader: WHERE -> SELECT -> rows, as they are read
                                ORDER BY -> ordered runs in a Spool, merged at the end

Without ORDER BY rows leave with their block, and nothing is kept. With it, each block is one ordered run, of at most LIMIT rows,
and the spool keeps the runs within the memory budget and merges them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Batch
from elf.agent.work.feed import Feed
from elf.agent.work.worker import truth_of
from elf.cbt.budget import Budget
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.plan.plan import Column, Expression, Order, RowPlan
from elf.jobmaster.values.columns import CellColumn, ColumnRows, Row, Texts, column_of
from elf.jobmaster.values.sql_types import BIGINT, STRING
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows._order import sorted_index
from elf.jobmaster.windows.order import Layout, Spool, compact, layout_of
from elf.jobmaster.windows.result import INCOMPLETE, ColumnInfo, Lines, Window

LINE = Column("#line", BIGINT)
"""The number of a line in the order of reading: it orders rows that are equal otherwise."""
FEW = 16
"""A dictionary this many times longer than a block's rows is not copied: their values are decoded one by one."""


class RowReader:
    """What the feed gives batches to. `ready` are rows that were not taken yet; ordered ones are in `spool`.

    is_done: as many rows as LIMIT asks for were read, so that no further line can change the result.
    """

    def __init__(self, plan: RowPlan, budget: Budget) -> None:
        self.plan, self.cache = plan, Cache()
        self.ready: list[Sequence[CellColumn]] = []
        self.spool: Spool | None = None
        self._left, self._lines = plan.limit, 0
        self._order = (*plan.order, Order(LINE))
        self._width = len(plan.select)
        self._layout = layout_of(
            self._order, {item.expression: i for i, item in enumerate(plan.select)}, self._width
        )
        if plan.order:
            self.spool = Spool(self._layout, budget, plan.limit)

    @property
    def is_done(self) -> bool:
        return self.plan.limit == 0 or (self.spool is None and self._left == 0)

    def add(
        self,
        batch: Batch,
        *,
        pane_before: int | None = None,
    ) -> None:
        """Take the rows of a batch. There are no panes here."""
        del pane_before
        rows, columns = batch.rows, batch.columns
        first, self._lines = self._lines, self._lines + rows
        if not rows or self.is_done:
            return
        chosen = np.arange(rows)
        if self.plan.where is not None:
            chosen = np.flatnonzero(truth_of(evaluate(self.plan.where, columns, rows, self.cache), rows))
        if self.spool is None:
            chosen = chosen[: self._left]
            self._left = None if self._left is None else self._left - len(chosen)
        if not len(chosen):
            return
        columns = {column.name: columns[column.name].take(chosen) for column in self.plan.columns}
        columns[LINE.name] = Vector(BIGINT, first + chosen)
        if self.spool is None:
            self.ready.append(
                self._cells([item.expression for item in self.plan.select], columns, len(chosen))
            )
        else:
            self._put_ordered(self.spool, columns, len(chosen))

    def _put_ordered(self, spool: Spool, columns: dict[str, Vector], rows: int) -> None:
        """Add one ordered run. Only the columns that order are evaluated for all of its rows."""
        order = Layout(self._order, tuple(range(len(self._order))), len(self._order))
        keys = self._cells([item.expression for item in self._order], columns, rows)
        first = sorted_index(*order.keys(keys))[: self.plan.limit]
        columns = {name: vector.take(first) for name, vector in columns.items()}
        extra = [
            item.expression
            for item, at in zip(self._order, self._layout.places, strict=True)
            if at >= self._width
        ]
        select = [item.expression for item in self.plan.select]
        spool.add(self._cells([*select, *extra], columns, len(first)))

    def _cells(
        self, expressions: Sequence[Expression], columns: dict[str, Vector], rows: int
    ) -> list[CellColumn]:
        """The values, independent of the parser's dictionaries, which change with the next block."""
        copies: dict[int, Texts] = {}
        return [_cell(evaluate(each, columns, rows, self.cache).full(rows), copies) for each in expressions]

    def count_rejects_at(self, time_us: int, rejects: int) -> None:
        """Does nothing: the feed counts rejected lines, and no window needs them."""

    def forget(self) -> None:
        """Drop all that depends on the parser's dictionaries, before they are cleared."""
        self.cache.clear()


def _cell(vector: Vector, copies: dict[int, Texts]) -> CellColumn:
    strings = vector.strings
    if strings is None:
        return CellColumn(str(vector.type), vector.values, vector.valid)
    if len(strings) > FEW * len(vector):
        return column_of(str(STRING), vector.to_python())
    if id(strings) not in copies:
        copies[id(strings)] = Texts(*strings.buffers())
    codes: NDArray[np.int32] = vector.values
    return compact(CellColumn(str(vector.type), codes, None, copies[id(strings)]))


class RowShot:
    """A bounded run whose rows are lines, with the methods of `elf.agent.run.engine.OneShot`.

    The rows come in several windows, parts of one result: final, without bounds, with the revisions 1, 2, 3, …
    """

    def __init__(self, job: str, plan: RowPlan, budget: Budget, reader: RowReader, feed: Feed) -> None:
        self.budget, self.feed, self._reader, self._job = budget, feed, reader, job
        self.columns = tuple(ColumnInfo(output.name, str(output.type)) for output in plan.select)
        self._parts = 0

    @property
    def overflows(self) -> int:
        return int(self._reader.cache.overflows)

    @property
    def is_done(self) -> bool:
        return self._reader.is_done

    def take(self, block: Block) -> None:
        self.feed.take(block, now_us=time.time_ns() // 1_000)
        self.budget.reserve("worker", self._reader.cache.nbytes + self.feed.nbytes)

    def ready(self) -> Iterator[Window]:
        """The rows since the last call."""
        ready, self._reader.ready = self._reader.ready, []
        for cells in ready:
            yield self._window(ColumnRows(cells, 0, len(cells[0])))

    def windows(self, *, whole: bool = True) -> Iterator[Window]:
        """The rows that only the end of the input settles; without any row at all, an empty window. Not `whole`: input is
        missing, so that other rows could be among them, and their window says so."""
        yield from self.ready()
        spool = self._reader.spool
        if spool is not None or not self._parts:
            window = self._window(spool or ())
            yield window if whole else replace(window, status=INCOMPLETE, agents_reporting=0)

    def _window(self, rows: Sequence[Row]) -> Window:
        self._parts += 1
        totals = self.feed.totals
        lines = Lines(totals.lines, totals.parsed, totals.rejected)
        return Window(self._job, "", None, None, "final", (0, 0, self._parts), lines, self.columns, rows)

    def close(self) -> None:
        if self._reader.spool is not None:
            self._reader.spool.close()
