"""The raw lines of log files for which a condition holds: what `elf grep` prints.

    block of lines -> Feed -> rows for which the condition is true -> their lines -> spans of the block

The filter runs on columns, a block at a time. Lines are copied from the block as they stood in the file, neighbours as one span.
A line that a container's runtime divided into parts counts as one, and all of its parts are printed, where they stood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Event

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.files import inputs
from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Batch
from elf.agent.formats.choice import FormatChoice, text_of
from elf.agent.run.engine import RunOptions, new_feed
from elf.agent.run.plan_cache import compiled
from elf.agent.work.feed import Feed, Totals
from elf.agent.work.worker import truth_of
from elf.errors import QueryError, UsageError
from elf.jobmaster.functions.expressions import Cache, evaluate
from elf.jobmaster.plan.plan import Column, RowPlan
from elf.jobmaster.values.sql_types import TIMESTAMP, SqlType

Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
_BEFORE = "SELECT true AS matches FROM access WHERE\n"
"""The query of a condition. The condition begins on a line of its own, so that its places in messages are known."""


class GrepOptions(msgspec.Struct, frozen=True):
    """run: as of `elf run`; its query is the condition. invert: the other lines instead, rejected ones among them. lines_max: at
    most that many lines of each file."""

    run: RunOptions
    invert: bool = False
    lines_max: int | None = None


class Found(msgspec.Struct):
    """What one block has: `spans` of its data, each of whole lines, and how many `lines` they are."""

    path: str
    data: memoryview | bytes
    spans: list[tuple[int, int]]
    lines: int


class Matches:
    """What the feed gives batches to: it keeps which rows of the last batch match."""

    def __init__(self, plan: RowPlan, bounds: tuple[int | None, int | None] | None) -> None:
        self._bounds = bounds
        timed = bounds is not None and all(column.name != "time" for column in plan.columns)
        columns = (*plan.columns, Column("time", TIMESTAMP)) if timed else plan.columns
        self.plan = msgspec.structs.replace(plan, columns=columns)
        self._cache = Cache()
        self.rows = self.within = np.empty(0, dtype=np.bool_)
        self.reject_rows = np.empty(0, dtype=np.int32)
        self.count = 0
        """Lines of the last batch."""

    def add(
        self,
        batch: Batch,
        *,
        pane_before: int | None = None,
    ) -> None:
        """Evaluate the condition. `rows`: where it is true; `within`: rows between --since and --until."""
        del pane_before
        self.within = np.ones(batch.rows, dtype=np.bool_)
        for bound, keeps in zip(self._bounds or (), (np.greater_equal, np.less), strict=False):
            if bound is not None:
                self.within &= keeps(batch.columns["time"].full(batch.rows).values, bound)
        assert self.plan.where is not None
        truth = truth_of(evaluate(self.plan.where, batch.columns, batch.rows, self._cache), batch.rows)
        self.rows, self.reject_rows = truth & self.within, batch.reject_rows
        self.count = batch.lines

    def lines(self, count: int, *, invert: bool) -> Mask:
        """Which of the block's `count` lines to print. Rejected lines match nothing, and have no time."""
        rejected = np.zeros(count, dtype=np.bool_)
        rejected[self.reject_rows + np.arange(len(self.reject_rows))] = True
        out = np.zeros(count, dtype=np.bool_)
        out[~rejected] = self.within & ~self.rows if invert else self.rows
        return out | rejected if invert and self._bounds is None else out

    def count_rejects_at(self, time_us: int, rejects: int) -> None:
        """Does nothing: the feed counts rejected lines."""

    def forget(self) -> None:
        self._cache.clear()


class Grep:
    """One search: `of_file` for each of the `files`. totals: of the lines read so far. damaged: whether a file could not be read,
    or not to its end."""

    def __init__(self, options: GrepOptions, notices: Callable[[str], None]) -> None:
        self._options, self._notices = options, notices
        self._formats = FormatChoice(options.run.format, lambda _: None)
        self._feeds: dict[tuple[tuple[str, SqlType], ...], tuple[Feed, Matches]] = {}
        self.damaged = False

    @property
    def totals(self) -> Totals:
        total = Totals()
        for feed, _ in self._feeds.values():
            each = feed.totals
            total.lines, total.parsed = total.lines + each.lines, total.parsed + each.parsed
            total.rejects.update(each.rejects)
            total.rejected_in = total.rejected_in or each.rejected_in
        return total

    def files(self) -> list[inputs.Input]:
        """The files to search. Raises UsageError."""
        return inputs.distinct(inputs.expand(self._options.run.files, self._damage), self._notices)

    def of_file(self, path: inputs.Input, stop: Event) -> Iterator[Found]:
        """What each of the file's blocks has. Raises QueryError, UsageError, FormatError and SourceError."""
        left = self._options.lines_max
        parts: tuple[Feed, Matches] | None = None
        for block in inputs.read([path], notices=self._notices, lost=self._damage):
            if parts is None:
                self._formats.forget(block.file)  # each file is number 1 of its own reading
                parts = self._parts(block)
            found = self._of_block(block, *parts, left)
            left = None if left is None else left - found.lines
            yield found
            if left == 0 or stop.is_set():
                return

    def _damage(self, message: str) -> None:
        self.damaged = True
        self._notices(message)

    def _parts(self, block: Block) -> tuple[Feed, Matches]:
        """The feed and the compiled condition for files of the block's columns."""
        schema = self._formats.schema({block.path: text_of(block.data)})
        shape = tuple(sorted(schema.items()))
        if shape not in self._feeds:
            run = self._options.run
            matches = Matches(condition(run.query, schema, run.parameters), run.bounds)
            # Without bounds: rows that the feed leaves out could not be distinguished from rejected lines.
            unbounded = msgspec.structs.replace(run, since_us=None, until_us=None)
            self._feeds[shape] = new_feed(unbounded, self._formats, matches), matches
        return self._feeds[shape]

    def _of_block(self, block: Block, feed: Feed, matches: Matches, left: int | None) -> Found:
        feed.take(block, now_us=time.time_ns() // 1_000)
        format = self._formats.of(block)
        starts, ends = lines_of(block.data, format.comment.encode())
        chosen = np.flatnonzero(matches.lines(matches.count, invert=self._options.invert))[:left]
        raw = chosen
        if len(starts) != matches.count:  # some are in parts
            parts = feed.parts(format)
            assert parts is not None
            raw = _raw_lines(starts, *parts, chosen)
        return Found(block.path, block.data, spans_of(raw, starts, ends), len(chosen))


def condition(text: str, schema: Mapping[str, SqlType], parameters: Mapping[str, str]) -> RowPlan:
    """The plan of a condition. Raises QueryError with places within `text`, UsageError for what is no condition."""
    if text[:7].upper() == "SELECT ":
        raise UsageError('elf grep takes a condition, as in "status >= 500"; elf run takes a query')
    try:
        plan = compiled(_BEFORE + text, {"access": schema}, parameters)
    except QueryError as error:
        line = max(0, error.line - 1)
        hint = "write it as after WHERE" if error.hint.startswith("one SELECT") else error.hint
        raise QueryError(error.reason, line=line, column=error.column if line else 0, hint=hint) from None
    if not isinstance(plan, RowPlan) or plan.order or plan.limit is not None:
        raise UsageError(
            "elf grep takes a condition alone; for ORDER BY, LIMIT and GROUP BY there is elf run"
        )
    return plan


def _raw_lines(starts: Places, begins: Places, further: Places, chosen: Places) -> Places:
    """The raw lines of the chosen lines, as numbers in `starts`, in the order of the block. O(lines log lines)."""
    line_of = starts.copy()  # by where its first part begins
    line_of[np.searchsorted(starts, further[:, 0])] = further[:, 1]
    return np.flatnonzero(np.isin(line_of, begins[chosen]))


def lines_of(data: memoryview | bytes, comment: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(start, end) of each line, the newline included, without those that begin with `comment`. O(bytes)."""
    view = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(view == ord("\n")) + 1
    if len(view) and (not len(ends) or ends[-1] < len(view)):
        ends = np.append(ends, len(view))
    starts = np.concatenate([ends[:0], [0], ends[:-1]])[: len(ends)]
    if comment and len(starts):
        is_comment = np.ones(len(starts), dtype=np.bool_)
        for at, byte in enumerate(comment):
            is_comment &= view[np.minimum(starts + at, len(view) - 1)] == byte
        starts, ends = starts[~is_comment], ends[~is_comment]
    return starts, ends


def spans_of(
    chosen: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """The chosen lines, those that follow one another in the data as one span."""
    if not len(chosen):
        return []
    begin, end = starts[chosen], ends[chosen]
    breaks = np.flatnonzero(begin[1:] != end[:-1]) + 1
    firsts, lasts = np.concatenate([[0], breaks]), np.concatenate([breaks - 1, [len(chosen) - 1]])
    return list(zip(begin[firsts].tolist(), end[lasts].tolist(), strict=True))
