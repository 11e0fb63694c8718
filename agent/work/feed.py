"""One source's blocks on their way to the workers: format, parse, filter, count. A block is parsed once for all jobs.

Block -> Parser (one per format) -> since/until, future -> Worker.add for every job
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.files.blocks import Block, FileKey
from elf.agent.formats.batch import Batch, Lost, Reject
from elf.agent.formats.envelopes.wrapped import WrappedParser
from elf.agent.formats.fields import Format, Reason
from elf.agent.formats.own_keys import asked_types, plain_name, typed_name
from elf.agent.formats.parser import Parser
from elf.agent.work.parsers import Parsers
from elf.cbt._strings import Strings
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

FUTURE_US = 5 * 60 * 1_000_000
"""A line further than this ahead of the clock of the machine that reads it is rejected, live or not: its time is wrong, and would
close every window that is live."""
FUTURE_EXPECTED = "a time at most 5 minutes ahead of this machine's clock (or is --timezone missing?)"
SAMPLES_MAX = 16
FILES_MAX = 1000
"""Files of which is noted whether they have keys that are asked for."""
NO_ROWS = np.empty(0, dtype=np.int64)
_NO_STRINGS = Strings()
"""The dictionary of a column that is NULL throughout."""


class ParseState(msgspec.Struct):
    """The state from which parsing resumes within a file, saved with the file's position.

    format: of the file. header: the current header line. last_time: the last event time. pending_rejects: lines rejected before
    the first event time, which are in no window. unread: lines rejected since the last event time.
    """

    format: Format | None = None
    header: bytes = b""
    last_time: int | None = None
    pending_rejects: int = 0
    unread: int = 0


class Totals(msgspec.Struct):
    """Counts of all lines, in windows or not. rejected_in: the first file that had a rejected line. lost: values that did not
    convert, by column. keyless: of the first files whose lines name their values, whether none named a column that is asked.
    keyed: the columns that any line named; None once there is a line that names none. first_us, last_us: the earliest and the
    latest time, if times were asked for."""

    lines: int = 0
    parsed: int = 0
    rejects: Counter[Reason] = msgspec.field(default_factory=Counter)
    samples: list[Reject] = msgspec.field(default_factory=list)
    invalid_utf8: int = 0
    rejected_in: str = ""
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    lost_samples: list[Lost] = msgspec.field(default_factory=list)
    keyless: dict[str, bool] = msgspec.field(default_factory=dict)
    keyed: frozenset[str] | None = frozenset()
    first_us: int | None = None
    last_us: int | None = None

    @property
    def rejected(self) -> int:
        return sum(self.rejects.values())

    def count(self, batch: Batch, block: Block) -> None:
        """Add a block's lines."""
        self.lines += batch.lines + block.too_long
        self.parsed += batch.rows
        self.invalid_utf8 += batch.invalid_utf8
        self.rejects.update(batch.rejects)
        if block.too_long:
            self.rejects[Reason.TOO_LONG] += block.too_long
        if self.rejects and not self.rejected_in:
            self.rejected_in = block.path
        if len(self.samples) < SAMPLES_MAX:
            self.samples += batch.samples[: SAMPLES_MAX - len(self.samples)]
        for column, rows in batch.lost.items():
            self.lost[plain_name(column)] += len(rows)
        if len(self.lost_samples) < SAMPLES_MAX:
            self.lost_samples += batch.lost_samples[: SAMPLES_MAX - len(self.lost_samples)]
        if batch.rows:
            self._count_keys(batch.keyed, block.path)
            if "time" in batch.columns:
                self._note_times(batch.columns["time"].values)

    def _note_times(self, times: NDArray[np.int64]) -> None:
        first, last = int(times.min()), int(times.max())
        self.first_us = first if self.first_us is None else min(self.first_us, first)
        self.last_us = last if self.last_us is None else max(self.last_us, last)

    def _count_keys(self, keyed: frozenset[str] | None, path: str) -> None:
        if keyed is None or self.keyed is None:
            self.keyed = None
        else:
            self.keyed |= keyed
        if keyed is not None and (path in self.keyless or len(self.keyless) < FILES_MAX):
            self.keyless[path] = self.keyless.get(path, True) and not keyed


class Reader(Protocol):
    """What takes batches: the worker of a job, or the reader of a query whose rows are lines."""

    @property
    def plan(self) -> Plan | RowPlan: ...

    def add(
        self,
        batch: Batch,
        *,
        pane_before: int | None = None,
    ) -> None:
        """See `elf.agent.work.worker.Worker`, as for the other methods."""

    def count_rejects_at(self, time_us: int, rejects: int) -> None: ...

    def forget(self) -> None: ...


class Feed:
    """Feeds the workers of the jobs on one source.

    format_of: the format of a block's file. bounds: event times [since, until) in microseconds; rows outside are left out.
    settle: called before the dictionaries are emptied; it must cut every worker. head: the beginning of a block's file, for
    a header above the offset where reading starts.
    """

    def __init__(
        self,
        format_of: Callable[[Block], Format],
        workers: Sequence[Reader],
        *,
        columns: frozenset[str],
        settle: Callable[[], None],
        head: Callable[[Block], bytes] = lambda block: b"",
        timezone: str = "UTC",
        agent: str = "",
        bounds: tuple[int | None, int | None] | None = None,
        strings_max: int = 8 << 20,
    ) -> None:
        self.totals = Totals()
        self.files: dict[FileKey, ParseState] = {}
        self.time_max: int | None = None
        self._format_of, self._workers, self._settle, self._head = format_of, list(workers), settle, head
        self._bounds = bounds
        types = asked_types((each.name, each.type) for worker in workers for each in worker.plan.columns)
        self._parsers = Parsers(columns | types.keys(), types, timezone, agent, strings_max)
        self._current: object = None

    @property
    def nbytes(self) -> int:
        """Memory of the dictionaries."""
        return self._parsers.nbytes

    def take(self, block: Block, *, now_us: int) -> None:
        """Parse a block and pass it to every worker. now_us: the machine's clock."""
        format = self._format_of(block)
        parser = self._parsers.of(format)
        if parser.full():
            self.empty_dictionaries()
        state = self._file(block, parser, format)
        state.format = format
        batch = without_future(parser.parse(block.lines), now_us + FUTURE_US)
        state.header = parser.header
        self.totals.count(batch, block)
        if self._bounds is not None:
            batch = _within(batch, self._bounds)
        rejected_at, too_long = state.last_time, block.too_long
        timed = batch
        if rejected_at is None:
            state.pending_rejects += too_long + int(np.count_nonzero(batch.reject_rows == 0))
            timed = without_untimed(batch)
        for worker in self._workers:
            _count_too_long(worker, rejected_at, too_long)
            mine = batch if worker.plan.window is None else timed
            worker.add(complete(mine, worker), pane_before=rejected_at)
        self._after(state, batch)

    def empty_dictionaries(self) -> None:
        """Free the dictionaries' memory, after settling every worker."""
        self._settle()
        self._parsers.empty()
        for worker in self._workers:
            worker.forget()

    def parts(self, format: Format) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """See `WrappedParser`, which reads lines in parts; None of lines that have none."""
        parser = self._parsers.of(format)
        return parser.parts() if isinstance(parser, WrappedParser) else None

    def _file(self, block: Block, parser: Parser | WrappedParser, format: Format) -> ParseState:
        if block.first or block.file not in self.files:
            self.files[block.file] = ParseState()
            if block.start and format.header:
                self.files[block.file].header = last_header(self._head(block))
            self._current = None
        state = self.files[block.file]
        if self._current != block.file:
            parser.begin(state.header)
            self._current = block.file
        return state

    def _after(self, state: ParseState, batch: Batch) -> None:
        if batch.rows and "time" in batch.columns:
            times = batch.columns["time"].values
            state.last_time = int(times[-1])
            latest = int(times.max())
            if self.time_max is None or latest > self.time_max:
                self.time_max = latest


def _count_too_long(worker: Reader, at: int | None, too_long: int) -> None:
    if worker.plan.window is None:
        worker.count_rejects_at(0, too_long)
    elif at is not None:
        worker.count_rejects_at(at, too_long)


def without_untimed(batch: Batch) -> Batch:
    """Leave out rejected lines before the first parsed line of a file: they have no time and are in no window."""
    if not len(batch.reject_rows) or int(batch.reject_rows[0]) > 0:
        return batch
    return msgspec.structs.replace(batch, reject_rows=batch.reject_rows[batch.reject_rows > 0])


def last_header(head: bytes) -> bytes:
    found = [line for line in head.splitlines() if line.startswith(b"#Fields:")]
    return found[-1] if found else b""


def without_future(batch: Batch, limit_us: int) -> Batch:
    """Reject the rows past `limit_us`."""
    if not batch.rows or "time" not in batch.columns:
        return batch
    times = batch.columns["time"].values
    if times.max() <= limit_us:
        return batch
    future = times > limit_us
    kept = select(batch, ~future)
    at = np.concatenate([kept.reject_rows, (np.cumsum(~future)[future]).astype(np.int32)])
    rejects = Counter(batch.rejects)
    rejects[Reason.FUTURE] += int(future.sum())
    first = f"{np.datetime64(int(times[future][0]), 'us')}Z".encode()  # the line's text is not at hand
    sample = Reject(Reason.FUTURE, first, 0, FUTURE_EXPECTED, "time")
    return msgspec.structs.replace(
        kept, reject_rows=np.sort(at), rejects=rejects, samples=(*kept.samples, sample)
    )


def _within(batch: Batch, bounds: tuple[int | None, int | None]) -> Batch:
    """Leave out the rows outside of [since, until)."""
    if not batch.rows:
        return batch
    times = batch.columns["time"].values
    since, until = bounds
    keep = np.ones(batch.rows, dtype=np.bool_)
    if since is not None:
        keep &= times >= since
    if until is not None:
        keep &= times < until
    return batch if keep.all() else select(batch, keep)


def select(batch: Batch, keep: NDArray[np.bool_]) -> Batch:
    rows = np.flatnonzero(keep)
    columns = {name: vector.take(rows) for name, vector in batch.columns.items()}
    before = np.concatenate([[0], np.cumsum(keep)])  # kept rows before each old row
    lost = {name: before[at[keep[at]]] for name, at in batch.lost.items()}
    return msgspec.structs.replace(
        batch,
        rows=len(rows),
        columns=columns,
        reject_rows=before[batch.reject_rows].astype(np.int32),
        lost=lost,
    )


def complete(batch: Batch, worker: Reader) -> Batch:
    """Add NULL for the worker's columns that this file's format lacks, or has with another type. A key that jobs have by several
    types is there by each."""
    missing = [
        column
        for column in worker.plan.columns
        if column.name not in batch.columns or batch.columns[column.name].type != column.type
    ]
    if not missing:
        return batch
    columns, lost = dict(batch.columns), dict(batch.lost)
    for column in missing:
        own = typed_name(column.name, column.type)
        columns[column.name] = columns[own] if own in columns else null_vector(column.type)
        lost[column.name] = lost.get(own, NO_ROWS)
    return msgspec.structs.replace(batch, columns=columns, lost=lost)


def null_vector(type: SqlType) -> Vector:
    """A single NULL, to be broadcast."""
    if type.kind is Kind.STRING:
        return Vector(type, np.full(1, -1, dtype=np.int32), None, _NO_STRINGS)
    dtype = {Kind.DOUBLE: np.float64, Kind.BOOLEAN: np.bool_}.get(type.kind, np.int64)
    return Vector(type, np.zeros(1, dtype=dtype), np.zeros(1, dtype=np.bool_))


def columns_for(workers: Sequence[Reader]) -> frozenset[str]:
    """The columns that the parser must fill: those of the jobs, and the time."""
    return frozenset({"time"}.union(column.name for worker in workers for column in worker.plan.columns))
