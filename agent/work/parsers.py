"""Blocks to batches: the parsers of one source, one for each format of its files. They share what is asked of them, and are
emptied together. How a block continues its file is in a `ParseState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.batch import Batch, Reject
from elf.agent.formats.envelopes.wrapped import WrappedParser, make_parser
from elf.agent.formats.fields import Format, Reason
from elf.agent.formats.parser import LINE_MAX, Parser
from elf.jobmaster.values.sql_types import SqlType

FUTURE_US = 5 * 60 * 1_000_000
"""A line further than this ahead of the clock of the machine that reads it is rejected, live or not: its time is wrong, and would
close every window that is live."""
FUTURE_EXPECTED = "a time at most 5 minutes ahead of this machine's clock (or is --timezone missing?)"


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


class Parsers:
    """columns: the ones that all parsers fill; types: of those that keys of the lines may fill. strings_max: bytes of a
    parser's dictionary, past which it is full."""

    needs_time = False
    """Whether lines without a time are rejected: see `timed`."""

    def __init__(
        self,
        columns: Collection[str],
        types: Mapping[str, SqlType],
        timezone: str,
        agent: str,
        strings_max: int,
        line_max: int = LINE_MAX,
    ) -> None:
        self._timezone, self._agent = timezone, agent
        self._strings_max, self._line_max = strings_max, line_max
        self._made: dict[Format, Parser | WrappedParser] = {}
        self.ask(columns, types)

    def ask(self, columns: Collection[str], types: Mapping[str, SqlType]) -> None:
        """Fill these columns from now on. The caller first settles everything that holds codes of the dictionaries."""
        self.columns, self.types = frozenset(columns), dict(types)
        self._made.clear()

    def of(self, format: Format) -> Parser | WrappedParser:
        """The parser of a format, made at its first use."""
        parser = self._made.get(format)
        if parser is None:
            parser = self._made[format] = make_parser(
                format,
                self.columns,
                timezone=self._timezone,
                line_max=self._line_max,
                agent=self._agent,
                strings_max=self._strings_max,
                types=self.types,
            )
        return parser

    def parse(
        self,
        data: memoryview | bytes,
        format: Format,
        state: ParseState,
        now_us: int,
        settle: Callable[[], None],
    ) -> Batch:
        """Parse whole lines of one file. state: of the file before them; its header is then that after them (`advance` moves the
        rest). now_us: the machine's clock. settle: called before the dictionaries are emptied; it must settle all that holds
        their codes."""
        parser = self.of(format)
        if parser.full():
            settle()
            self.empty()
        batch = parsed(parser, data, state, now_us)
        return timed(batch) if self.needs_time else batch

    def empty(self) -> None:
        """Free the dictionaries. The caller first settles everything that holds their codes."""
        for parser in self._made.values():
            parser.clear()

    @property
    def nbytes(self) -> int:
        """Memory of the dictionaries."""
        return sum(parser.nbytes for parser in self._made.values())


def parsed(parser: Parser | WrappedParser, data: memoryview | bytes, state: ParseState, now_us: int) -> Batch:
    """What that parser makes of whole lines; see `Parsers.parse`."""
    parser.begin(state.header)
    batch = parser.parse(data)
    state.header = parser.header
    return without_future(batch, now_us + FUTURE_US)


def advance(state: ParseState, batch: Batch, too_long: int = 0) -> None:
    """Move the state past that block."""
    if batch.rows and "time" in batch.columns:
        state.last_time = int(batch.columns["time"].values[-1])
        state.unread = int(np.count_nonzero(batch.reject_rows == batch.rows))
    else:
        state.unread += too_long + len(batch.reject_rows)


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


def timed(batch: Batch) -> Batch:
    """The batch; all its lines rejected if their format has no time, since none of them belongs to a window."""
    if "time" in batch.columns:
        return batch
    at = np.zeros(batch.rows + len(batch.reject_rows), dtype=np.int32)
    return msgspec.structs.replace(batch, rows=0, columns={}, reject_rows=at)


def between(batch: Batch, times: NDArray[np.int64], first: int, low: int, stop: int) -> Batch | None:
    """The lines in [low, stop), including rejected ones, whose time is that of the line before; None if there are none. times: of
    the batch's rows. first: the time of the line before the batch."""
    if len(times) and low <= min(first, int(times.min())) and max(first, int(times.max())) < stop:
        return batch
    rows = (times >= low) & (times < stop)
    at = batch.reject_rows
    when = np.where(at > 0, times[np.maximum(at, 1) - 1], first) if len(times) else np.full(len(at), first)
    rejects = (when >= low) & (when < stop)
    if rows.all() and rejects.all():
        return batch if len(rows) or len(rejects) else None
    if not (rows.any() or rejects.any()):
        return None
    kept = select(batch, rows)
    return msgspec.structs.replace(kept, reject_rows=kept.reject_rows[rejects])


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
