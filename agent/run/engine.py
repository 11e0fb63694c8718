"""One-shot: files in, final windows out. What `elf run` does without --follow, and `elf.run` from Python.

files -> Feed -> Worker -> Panes -> windows -> sinks
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import cast

import msgspec

from elf.agent.files import inputs
from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Reject
from elf.agent.formats.choice import HEAD_BYTES, FormatChoice, head_of
from elf.agent.formats.fields import Reason
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.plan_cache import compiled
from elf.agent.work.feed import Feed, columns_for
from elf.agent.work.worker import CUT_FACTOR, Worker
from elf.cbt.budget import Budget
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import SqlType
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import ColumnInfo, Sink, StateSink, Window
from elf.jobmaster.windows.windows import Publisher, bounded

MEMORY_MAX = 256 << 20
STORE_BYTES = 16 << 20
"""Bytes that a lake sink gathers before it writes: the writer's process holds all of them."""


class RunOptions(msgspec.Struct, frozen=True):
    query: str
    files: tuple[str, ...]
    format: str = "auto"
    since_us: int | None = None
    until_us: int | None = None
    memory_max: int = MEMORY_MAX
    timezone: str = "UTC"
    job: str = "run"
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)


class Progress(msgspec.Struct):
    """bytes_total: None where it cannot be known (standard input)."""

    bytes_done: int
    bytes_total: int | None
    lines: int


class Summary(msgspec.Struct):
    """The totals of a run. `rejects`: counts by reason; `rejected_in`: the first file that had one; `overflows`: results made
    NULL because they did not fit their type; `invalid_utf8`: lines with bytes that are not UTF-8; `formats`: those used, by file;
    `columns`: of the result, also where it has no row."""

    files: int = 0
    lines: int = 0
    parsed: int = 0
    rejected: int = 0
    late: int = 0
    spilled_bytes: int = 0
    overflows: int = 0
    invalid_utf8: int = 0
    seconds: float = 0.0
    rejects: Mapping[Reason, int] = msgspec.field(default_factory=dict)
    samples: Sequence[Reject] = ()
    rejected_in: str = ""
    formats: Mapping[str, str] = msgspec.field(default_factory=dict)
    columns: tuple[ColumnInfo, ...] = ()


class OneShot:
    """A bounded run: `feed` the blocks, then take the `windows`."""

    def __init__(self, options: RunOptions, plan: Plan, formats: FormatChoice) -> None:
        self.budget = Budget(options.memory_max, None, resident_bytes)
        self.panes = Panes(plan, self.budget)
        self.worker = Worker(plan)
        self.publisher = Publisher(options.job, plan, self.budget)
        bounds = (options.since_us, options.until_us)
        has_bounds = bounds != (None, None)
        self.feed = Feed(
            formats.of,
            [self.worker],
            columns=columns_for([self.worker], need_time=has_bounds),
            settle=self.settle,
            timezone=options.timezone,
            bounds=bounds if has_bounds else None,
            strings_max=max(1 << 18, min(8 << 20, options.memory_max // 16)),
        )
        self.overflows = 0
        self._front_max = max(1 << 20, min(32 << 20, options.memory_max // 8))

    def take(self, block: Block) -> None:
        self.feed.take(block)
        held = self.worker.nbytes
        if held > self._front_max:
            # Settles the groups into the trees first; then no group holds a code of the dictionaries.
            self.feed.empty_dictionaries()
            held = self.worker.nbytes
        self.budget.reserve("worker", held + self.feed.nbytes)

    def settle(self) -> None:
        """Move what the worker holds into the trees."""
        with self.budget.scratch(CUT_FACTOR * self.worker.nbytes):
            deltas = self.worker.cut()
        for delta in deltas:
            self.panes.merge(delta.rows)
            self.overflows += delta.overflows

    def store(self, sinks: Sequence[StateSink]) -> None:
        """Give every pane's state to the sinks that want it. The panes stay."""
        from elf.jobmaster.windows.state import StateMaker

        self.feed.empty_dictionaries()
        maker = StateMaker(self.publisher.job, self.publisher.version, self.publisher.plan, self.budget)
        epoch = max(sink.next_epoch(self.publisher.job) for sink in sinks)
        for state in maker.states(self.panes.pieces(split=True), self.panes.lines(), "final", (epoch, 0, 1)):
            for sink in sinks:
                sink.put_state(state)
                if sink.pending_bytes > STORE_BYTES:
                    sink.flush()

    def windows(self) -> Iterator[Window]:
        self.feed.empty_dictionaries()
        self.budget.reserve("worker", self.worker.nbytes + self.feed.nbytes)
        yield from bounded(self.publisher, self.panes)
        self.overflows += self.publisher.finisher.overflows

    def close(self) -> None:
        self.panes.close()


def run(
    options: RunOptions,
    sinks: Sequence[Sink],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    notices: Callable[[str], None] = lambda _: None,
    stop: Event | None = None,
) -> Summary:
    """Run a query over files and give every window to the sinks; see `RunOptions`.

    Raises QueryError, UsageError, FormatError before anything is read; OSError from a sink. A set `stop` ends the reading,
    and what was read is published.
    """
    began = time.monotonic()
    paths = inputs.expand(options.files)
    formats = FormatChoice(options.format, notices)
    blocks = inputs.read(paths, notices=notices)
    first = next(blocks, None)  # only one: each block is a view that is valid until the next one is read
    plan = compile_plan(options, formats.schema(_heads(paths, first)))
    shot = OneShot(options, plan, formats)
    total = inputs.total_bytes(paths)
    try:
        for block in itertools.chain([first] if first is not None else [], blocks):
            shot.take(block)
            if on_progress is not None:
                on_progress(Progress(block.size_done, total, shot.feed.totals.lines))
            if stop is not None and stop.is_set():
                break
        stores = [cast(StateSink, sink) for sink in sinks if sink.wants_state]
        if stores:
            shot.store(stores)
        for window in shot.windows():
            put(sinks, window)
        for sink in sinks:
            sink.flush()
        return _summary(shot, formats, len(paths), time.monotonic() - began)
    finally:
        shot.close()


def _heads(paths: Sequence[inputs.Input], first: Block | None) -> dict[str, bytes]:
    """The beginnings of the files. Of standard input or a pipe, from which it would be missing then: only if it is first."""
    if first is None:
        return {}
    heads = {first.path: bytes(first.data[:HEAD_BYTES])}
    for path in paths:
        if path != "-" and path.is_file() and str(path) not in heads:
            heads[str(path)] = head_of(path)
    return heads


def compile_plan(options: RunOptions, schema: Mapping[str, SqlType]) -> Plan:
    """The plan of the query. Its FROM is any name: with one set of files there is one source."""
    return compiled(options.query, {"access": schema}, options.parameters)


def put(sinks: Sequence[Sink], window: Window) -> None:
    for sink in sinks:
        if not sink.wants_state and (sink.wants_open or window.status != "open"):
            sink.put(window)


def _summary(shot: OneShot, formats: FormatChoice, files: int, seconds: float) -> Summary:
    totals = shot.feed.totals
    return Summary(
        files=files,
        lines=totals.lines,
        parsed=totals.parsed,
        rejected=totals.rejected,
        spilled_bytes=shot.budget.spilled_total,
        overflows=shot.overflows,
        invalid_utf8=totals.invalid_utf8,
        seconds=seconds,
        rejects=dict(totals.rejects),
        samples=tuple(totals.samples),
        rejected_in=totals.rejected_in,
        formats=formats.chosen,
        columns=shot.publisher.columns,
    )
