"""Results: windows for people and streams, pane states for the lake. Sinks receive nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

import msgspec

COUNTERS = ("read", "parsed", "rejected", "late")


class Lines(msgspec.Struct, frozen=True):
    """Line counters of a window: every line read is parsed or rejected; late lines are parsed, but arrived past retention.
    not_converted: values that became NULL because they did not convert to their column's type, by column, in order of names."""

    read: int = 0
    parsed: int = 0
    rejected: int = 0
    late: int = 0
    not_converted: tuple[tuple[str, int], ...] = ()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Lines read, parsed, rejected and late."""
        return (self.read, self.parsed, self.rejected, self.late)

    @property
    def named(self) -> dict[str, Any]:
        """The counters by name; values that did not convert only if there are any."""
        lost = {"not_converted": dict(self.not_converted)} if self.not_converted else {}
        return dict(zip(COUNTERS, self.counts, strict=True)) | lost


INCOMPLETE = "incomplete"
Revision = tuple[int, int, int]
"""(epoch, node, n), compared in order; n counts from 1. Without a mesh the node is 0."""


class ColumnInfo(msgspec.Struct, frozen=True):
    """A result column. `type` is Spark's name for it: "bigint", "decimal(18,6)", "string", "array<bigint>", …;
    "struct<start:timestamp,end:timestamp>" for the window."""

    name: str
    type: str


class Window(msgspec.Struct, frozen=True):
    """One window's whole result after HAVING, ORDER BY and LIMIT.

    status: "open", "final", "revised" (a final one published again), "withdrawn" (a change of the job gave its time to
    another version or to other windows: its earlier result is void, and it has no rows) or "incomplete" (of `elf run`: input is
    missing, and no better result will follow). start, end: microseconds UTC, or None
    for the one window of a query without `window`. rows: tuples in the order of `columns`; values None, bool, int, float,
    Decimal, str, a list (array), int microseconds (timestamp), (start, end) microseconds (window). Usually they are
    `ColumnRows` (`elf.jobmaster.values.columns`), which make their tuples on demand, and which a sink can write as columns.
    left_out: the number of rows after these that were not sent, because the window is too large. others: how many of the last
    rows (0 or 1) are no groups, but the rest of all groups past the job's limit, with NULL for their keys.
    is_single: the query gives each window one row at most, so windows can be the rows of one table.
    """

    job: str
    version: str  # digest of the plan, 12 hex digits
    start: int | None
    end: int | None
    status: str
    revision: Revision
    lines: Lines
    columns: tuple[ColumnInfo, ...]
    rows: Sequence[tuple[Any, ...]]
    agents_reporting: int = 1
    agents_expected: int = 1
    left_out: int = 0
    others: int = 0
    is_single: bool = False


class StateColumn(msgspec.Struct, frozen=True):
    """A column of mergeable state in the lake.

    role: "key"; or how readers merge it: "sum", "min", "max"; or a family's: "distinct" (list of member values), "buckets"
    (map bucket -> count), "counts" (map value -> count), "exact_sum" (map bin -> total), "registers" (map register -> value,
    which the lake stores as a sketch). `type` as the lake has it; 128-bit sums are decimal(38, s).
    """

    name: str
    type: str
    role: str


class StateValues(Sequence[Sequence[Any]], ABC):
    """A pane's values, encoded by `encode_part` and not held as Python objects. They can be read repeatedly.

    As a sequence, of one sequence per column, it decodes them, decimals as text: for tests and inspection.
    """

    @property
    @abstractmethod
    def raw_bytes(self) -> int:
        """Size of all parts in bytes."""

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """A hash of the values, which does not depend on their division into parts."""

    @abstractmethod
    def parts(self) -> Iterator[tuple[bytes, bool]]:
        """The parts: each some groups' values, and whether the next part begins with more members of the same groups."""

    def __getitem__(self, at: Any) -> Any:
        columns: list[list[Any]] = [[] for _ in range(len(self))]
        for part in whole_parts(self.parts()):
            for column, values in zip(columns, part, strict=True):
                column.extend(values)
        return columns[at]


def whole_parts(parts: Iterable[tuple[bytes, bool]]) -> Iterator[list[list[Any]]]:
    """Decoded columns of parts; parts whose groups continue in the next part are joined with it."""
    held: list[list[Any]] | None = None
    for part, more in parts:
        values = msgspec.msgpack.decode(part, strict=False)
        if held is not None:
            for first, column in zip(held, values, strict=True):
                column[: len(first)] = map(_with_members, first, column)
        held = values
        if not more:
            yield values
            held = None


def _with_members(first: Any, rest: Any) -> Any:
    """The members of a group of two parts; any other value is the same in both."""
    if isinstance(first, list):
        first.extend(rest)
        return first
    return first | rest if isinstance(first, dict) else rest


def encode_column(type: str, values: Sequence[Any]) -> bytes:
    """A state column's values as MessagePack; decimals as text."""
    if type.startswith("decimal"):
        values = [value if value is None or isinstance(value, Decimal) else str(value) for value in values]
    return msgspec.msgpack.encode(values)


def encode_part(columns: Sequence[bytes]) -> bytes:
    """Encoded columns of the same groups as one part: an array of them."""
    return msgspec.msgpack.encode([msgspec.Raw(column) for column in columns])


class PaneState(msgspec.Struct, frozen=True):
    """Every group's mergeable state in one pane, before HAVING, ORDER BY and LIMIT, as the lake stores it.

    plan: the encoded plan (readers re-apply its last stages). values: one list per state column, each of n groups; the engine
    makes them as `StateValues`. recipe: how a reader without plans computes the query's outputs from merged state columns, as
    Spark SQL (JSON, see `elf.jobmaster.plan.recipe`). start and end are both 0 for the one pane of a query without `window`.
    """

    job: str
    version: str
    start: int
    end: int
    status: str  # "final", "revised", or "withdrawn" without groups: readers leave the pane out
    revision: Revision
    lines: Lines
    columns: tuple[StateColumn, ...]
    values: Sequence[Sequence[Any]]
    plan: bytes
    agents_reporting: int = 1
    agents_expected: int = 1
    recipe: bytes = b""


class StreamClosed(Exception):  # noqa: N818 (not an error, see below)
    """The reader of an output stream has closed it (`| head -1`). Not an error: the run stops, and ends with success.

    It is not an OSError, after which the caller would retry.
    """


class Sink(Protocol):
    """Receives results. One thread calls it; a slow sink blocks its caller, which is the back-pressure.

    A sink that raises OSError keeps the results that it has acknowledged; the caller keeps the others and tries again later.
    """

    wants_open: bool
    """Whether `open` windows are offered (a console, a stream), or only final and revised ones (files)."""
    wants_state: bool
    """Whether pane states are offered (`put_state`) instead of windows."""

    def put(self, window: Window) -> None:
        """Take one window. May buffer; repeating a (job, version, window, revision) has no further effect."""

    def put_state(self, state: PaneState) -> None:
        """Take one pane's state, in the same way."""

    def flush(self) -> None:
        """Make all results put so far durable and visible: on return they are acknowledged. Raises OSError if that fails."""

    def close(self) -> None:
        """Flush, then release. Idempotent."""


@runtime_checkable
class HeadedSink(Protocol):
    """A sink whose output begins with the names of its columns."""

    def begin(self, columns: tuple[ColumnInfo, ...]) -> None:
        """Write the names, unless they are written. Also called at the end of a run, which may have no window."""


class StateSink(Sink, Protocol):
    """A sink that receives pane states (`wants_state`)."""

    @property
    def pending_bytes(self) -> int:
        """Memory held by results that are not durable yet."""

    def next_epoch(self, job: str) -> int:
        """The first epoch above all stored results of the job: a new run's results replace those of earlier runs."""
