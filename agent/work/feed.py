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
from elf.agent.work.parsers import Parsers, ParseState, advance, between
from elf.cbt._strings import Strings
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values.sql_types import Kind, SqlType
from elf.jobmaster.values.vector import Vector

EARLIEST, LATEST = -(1 << 62), 1 << 62
"""Before and past every event time, in microseconds."""
SAMPLES_MAX = 16
FILES_MAX = 1000
"""Files of which is noted whether they have keys that are asked for."""
NO_ROWS = np.empty(0, dtype=np.int64)
_NO_STRINGS = Strings()
"""The dictionary of a column that is NULL throughout."""


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
        since, until = bounds or (None, None)
        self._bounds = (
            None
            if since is None and until is None
            else (EARLIEST if since is None else since, LATEST if until is None else until)
        )
        types = asked_types((each.name, each.type) for worker in workers for each in worker.plan.columns)
        self._parsers = Parsers(columns | types.keys(), types, timezone, agent, strings_max)

    @property
    def nbytes(self) -> int:
        """Memory of the dictionaries."""
        return self._parsers.nbytes

    def take(self, block: Block, *, now_us: int) -> None:
        """Parse a block and pass it to every worker. now_us: the machine's clock."""
        format, state = self._format_of(block), self._state(block)
        batch = self._parsers.parse(block.lines, format, state, now_us, self._empties)
        self.totals.count(batch, block)
        before, too_long, timed = state.last_time, block.too_long, batch
        if before is None:
            state.pending_rejects += too_long + int(np.count_nonzero(batch.reject_rows == 0))
            timed = without_untimed(batch)
        for worker in self._workers:
            has_window = worker.plan.window is not None
            self._pass(worker, timed if has_window else batch, before, too_long, has_window)
        advance(state, batch, too_long)
        if batch.rows and "time" in batch.columns:
            latest = int(batch.columns["time"].values.max())
            self.time_max = latest if self.time_max is None else max(self.time_max, latest)

    def _pass(
        self, worker: Reader, batch: Batch, before: int | None, too_long: int, has_window: bool
    ) -> None:
        if self._bounds is None:
            within: Batch | None = batch
        else:
            low, stop = self._bounds
            timed = "time" in batch.columns and batch.rows > 0
            times = batch.columns["time"].values if timed else np.empty(0, dtype=np.int64)
            first = before if before is not None else int(times[0]) if timed else None
            if first is None:
                return
            too_long = too_long if low <= first < stop else 0
            within = between(batch, times, first, low, stop)
        if not has_window:
            worker.count_rejects_at(0, too_long)
        elif before is not None:
            worker.count_rejects_at(before, too_long)
        if within is not None:
            worker.add(complete(within, worker), pane_before=before)

    def empty_dictionaries(self) -> None:
        """Free the dictionaries' memory, after settling every worker."""
        self._empties()
        self._parsers.empty()

    def _empties(self) -> None:
        self._settle()
        for worker in self._workers:
            worker.forget()

    def parts(self, format: Format) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """See `WrappedParser`, which reads lines in parts; None of lines that have none."""
        parser = self._parsers.of(format)
        return parser.parts() if isinstance(parser, WrappedParser) else None

    def _state(self, block: Block) -> ParseState:
        """That of the block's file before the block."""
        if block.first or block.file not in self.files:
            format = self._format_of(block)
            state = self.files[block.file] = ParseState(format)
            if block.start and format.header:
                state.header = last_header(self._head(block))
        return self.files[block.file]


def without_untimed(batch: Batch) -> Batch:
    """Leave out rejected lines before the first parsed line of a file: they have no time and are in no window."""
    if not len(batch.reject_rows) or int(batch.reject_rows[0]) > 0:
        return batch
    return msgspec.structs.replace(batch, reject_rows=batch.reject_rows[batch.reject_rows > 0])


def last_header(head: bytes) -> bytes:
    found = [line for line in head.splitlines() if line.startswith(b"#Fields:")]
    return found[-1] if found else b""


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
