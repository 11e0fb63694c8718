"""One-shot: files in, final windows out. What `elf run` does without --follow, and `elf.run` from Python.

files -> Feed -> Worker -> Panes -> windows -> sinks; without groups: files -> Feed -> RowReader -> sinks
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from elf.agent.files import inputs
from elf.agent.files.blocks import Block
from elf.agent.files.stream import Stream
from elf.agent.formats.batch import Reject
from elf.agent.formats.choice import FormatChoice, head_of, text_of
from elf.agent.formats.fields import Reason
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.lost_values import LostValues
from elf.agent.run.plan_cache import compiled
from elf.agent.work.feed import Feed, Reader, columns_for
from elf.agent.work.worker import CUT_FACTOR, Worker
from elf.cbt.budget import Budget
from elf.errors import FormatError, UsageError
from elf.jobmaster.plan.codec import digest
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values.sql_types import SqlType
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import INCOMPLETE, ColumnInfo, Sink, StateSink, Window
from elf.jobmaster.windows.windows import Publisher, bounded

if TYPE_CHECKING:
    from elf.agent.run.rows import RowShot

MEMORY_MAX = 256 << 20
INTERRUPTED = "interrupted; what was read up to there follows"
EMIT_US = 200_000
LINES_ONLY = (
    "--sink parquet keeps groups, and this query returns lines; add GROUP BY, or print with --output csv"
)
GOES_ON = "the log goes on: --follow shows windows as they become final, and not only at its end"
GOES_ON_S, NEAR_US = 5.0, 60_000_000
"""A pipe goes on whose lines, after so long, are from the last minute."""
DAY_US = 86_400_000_000
STORE_BYTES = 16 << 20
"""Bytes that a lake sink gathers before it writes: the writer's process holds all of them."""


class RunOptions(msgspec.Struct, frozen=True):
    """What to run. days_of: the time zone whose days windows of whole days are. lateness_us, emit_us: of a live run, as of a job;
    without a lateness that of the formats. source: what the query calls the files."""

    query: str
    files: tuple[str, ...]
    format: str = "auto"
    since_us: int | None = None
    until_us: int | None = None
    memory_max: int = MEMORY_MAX
    timezone: str = "UTC"
    job: str = "run"
    days_of: str = ""
    lateness_us: int | None = None
    emit_us: int = EMIT_US
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)
    source: str = "access"

    @property
    def bounds(self) -> tuple[int | None, int | None] | None:
        """Event times [since, until); None for all."""
        bounds = (self.since_us, self.until_us)
        return None if bounds == (None, None) else bounds


class Progress(msgspec.Struct):
    """bytes_total: None where it cannot be known (standard input)."""

    bytes_done: int
    bytes_total: int | None
    lines: int


class Lost:
    """Input that is missing from the result: keeps each message, and passes it on."""

    def __init__(self, notices: Callable[[str], None]) -> None:
        self.what: list[str] = []
        self.notices = notices

    def __call__(self, message: str) -> None:
        self.what.append(message)
        self.notices(message)


class Summary(msgspec.Struct):
    """The totals of a run. `rejects`: counts by reason; `rejected_in`: the first file that had one; `overflows`: results made
    NULL because they did not fit their type; `not_converted`: values made NULL because they did not convert to their column's
    type, by column; `keyless`: files whose lines name their values, none of which the query asks for; `invalid_utf8`: lines
    with bytes that are not UTF-8; `formats`: those used, by file; `columns`: of the result, also where it has no row; `lost`:
    input that is missing from the result, one text for each file, or for the rest after an interruption: with any of these no
    window is final; `open`: windows that a live run left open; `reading_s`: of `seconds`, without the start; `span`: the earliest
    and the latest time of a line, if the query asks for times."""

    files: int = 0
    lines: int = 0
    parsed: int = 0
    rejected: int = 0
    late: int = 0
    spilled_bytes: int = 0
    overflows: int = 0
    not_converted: Mapping[str, int] = msgspec.field(default_factory=dict)
    keyless: Sequence[str] = ()
    invalid_utf8: int = 0
    seconds: float = 0.0
    rejects: Mapping[Reason, int] = msgspec.field(default_factory=dict)
    samples: Sequence[Reject] = ()
    rejected_in: str = ""
    formats: Mapping[str, str] = msgspec.field(default_factory=dict)
    columns: tuple[ColumnInfo, ...] = ()
    lost: Sequence[str] = ()
    open: int = 0
    reading_s: float = 0.0
    span: tuple[int, int] | None = None


class Log(NamedTuple):
    """What is to be read, of which nothing is read but the beginning. files: how many. total: their bytes; None: not known."""

    formats: FormatChoice
    heads: Mapping[str, bytes]
    blocks: Iterator[Block]
    files: int = 1
    total: int | None = None
    is_pipe: bool = False


def is_pipe(files: Sequence[str]) -> bool:
    """Whether the only input is a pipe, a socket or a terminal on descriptor 0."""
    return tuple(files) == ("-",) and not stat.S_ISREG(os.fstat(0).st_mode)


def piped(options: RunOptions, notices: Callable[[str], None], lost: Lost) -> Log:
    """Descriptor 0. Waits for its first lines."""
    stream = Stream(0, lost)
    heads = {stream.name: stream.gather_head()}
    formats = FormatChoice(
        options.format,
        notices,
        lenient=not stream.has_whole_head,  # a live log may begin with other lines
        head=lambda block: stream.head(block.file),
    )
    return Log(formats, heads, stream.blocks(), is_pipe=True)


def _of_files(options: RunOptions, notices: Callable[[str], None], lost: Lost) -> Log:
    paths = inputs.expand(options.files, lost)
    formats = FormatChoice(options.format, notices)
    blocks = inputs.read(paths, notices=notices, lost=lost)
    first = next(blocks, None)  # only one: each block is a view that is valid until the next one is read
    rest = itertools.chain([first] if first is not None else [], blocks)
    return Log(formats, heads(paths, first), rest, len(paths), inputs.total_bytes(paths))


class OneShot:
    """A bounded run: `take` the blocks, then the `windows`."""

    is_done = False
    """Whether no further line can change the result."""

    def __init__(
        self, options: RunOptions, plan: Plan, formats: FormatChoice, budget: Budget | None = None
    ) -> None:
        self.budget = budget or Budget(options.memory_max, None, resident_bytes)
        self.panes = Panes(plan, self.budget)
        self.worker = Worker(plan)
        # As agents call it, whose plans have no text: so a lake has one version of one query.
        version = digest(replace(plan, sql=""))
        self.publisher = Publisher(options.job, plan, self.budget, version)
        self.columns = self.publisher.columns
        self.feed = new_feed(options, formats, self.worker, self.settle)
        self.overflows, self.lost_values = 0, LostValues()
        self._front_max = max(1 << 20, min(32 << 20, options.memory_max // 8))

    def take(self, block: Block) -> None:
        self.feed.take(block, now_us=time.time_ns() // 1_000)
        held = self.worker.nbytes
        if held > self._front_max:
            # Settles the groups into the trees first; then no group holds a code of the dictionaries.
            self.feed.empty_dictionaries()
            held = self.worker.nbytes
        self.budget.reserve("worker", held + self.feed.nbytes)

    def ready(self) -> Iterator[Window]:
        """Results that the blocks so far settle: of a group there are none before the last line."""
        return iter(())

    def settle(self) -> None:
        """Move what the worker holds into the trees."""
        with self.budget.scratch(CUT_FACTOR * self.worker.nbytes):
            deltas = self.worker.cut()
        for delta in deltas:
            self.panes.merge(delta.rows)
            self.overflows += delta.overflows
            self.lost_values.add(delta.lost)

    def deliver(self, sinks: Sequence[Sink], lost: Lost) -> None:
        """Give every window to the sinks, and every pane's state to those that want it."""
        self.feed.empty_dictionaries()
        self.budget.reserve("worker", self.worker.nbytes + self.feed.nbytes)
        deliver(self.publisher, self.panes, self.budget, sinks, lost)
        self.overflows += self.publisher.finisher.overflows

    def close(self) -> None:
        self.panes.close()


def new_feed(
    options: RunOptions,
    formats: FormatChoice,
    reader: Reader,
    settle: Callable[[], None] = lambda: None,
    head: Callable[[Block], bytes] = lambda block: b"",
) -> Feed:
    """The feed of a run with one reader. head: the beginning of a block's file."""
    return Feed(
        formats.of,
        [reader],
        columns=columns_for([reader]),
        settle=settle,
        head=head,
        timezone=options.timezone,
        bounds=options.bounds,
        strings_max=max(1 << 18, min(8 << 20, options.memory_max // 16)),
    )


def _new_shot(
    options: RunOptions, plan: Plan | RowPlan, formats: FormatChoice, sinks: Sequence[Sink]
) -> OneShot | RowShot:
    if isinstance(plan, Plan):
        return OneShot(options, plan, formats)
    from elf.agent.run.rows import RowReader, RowShot

    refuse_states(sinks)
    budget = Budget(options.memory_max, None, resident_bytes)
    reader = RowReader(plan, budget)
    return RowShot(options.job, plan, budget, reader, new_feed(options, formats, reader))


def refuse_states(sinks: Sequence[Sink]) -> None:
    """Raises UsageError if a sink takes states of windows, of which a query whose rows are lines has none."""
    if any(sink.wants_state for sink in sinks):
        raise UsageError(LINES_ONLY)


def run(
    options: RunOptions,
    sinks: Sequence[Sink],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    notices: Callable[[str], None] = lambda _: None,
    on_lost: Callable[[str], None] = lambda _: None,
    on_plan: Callable[[Plan | RowPlan], None] = lambda _: None,
    stop: Event | None = None,
    log: Log | None = None,
) -> Summary:
    """Run a query over files, or over a pipe to its end, and give every window to the sinks; see `RunOptions`. log: they, if they
    are open.

    Raises QueryError, UsageError, FormatError before anything is read; OSError from a sink. A set `stop` ends the reading,
    and what was read is published. `on_lost` gets input that is missing from the result (`Summary.lost`): then no window
    is final, and sinks that take states get none. `on_plan` is called with the plan before anything is read.
    """
    began = time.monotonic()
    lost = Lost(on_lost)
    if log is None:
        log = (piped if is_pipe(options.files) else _of_files)(options, notices, lost)
    formats = log.formats
    plan = compile_plan(options, formats.schema(log.heads))
    for note in formats.notes(column.name for column in plan.columns):
        notices(note)
    check_lakes(plan, sinks)
    on_plan(plan)
    reading = time.monotonic()
    shot = _new_shot(options, plan, formats, sinks)
    may_go_on = log.is_pipe and isinstance(plan, Plan) and plan.window is not None
    try:
        for block in log.blocks:
            shot.take(block)
            put_ready(shot, sinks)
            if on_progress is not None:
                on_progress(Progress(block.size_done, log.total, shot.feed.totals.lines))
            if may_go_on and time.monotonic() - reading > GOES_ON_S:
                may_go_on = False
                if (shot.feed.time_max or 0) > time.time_ns() // 1_000 - NEAR_US:
                    notices(GOES_ON)
            if shot.is_done or (stop is not None and stop.is_set()):
                break
        if stop is not None and stop.is_set():
            lost(INTERRUPTED)
        else:
            _check_keys(shot, plan, formats, notices)
        if isinstance(shot, OneShot):
            shot.deliver(sinks, lost)
        else:
            put_last(shot, sinks, lost)
        summary = summary_of(shot, formats, log.files, time.monotonic() - began)
        return replace(summary, lost=tuple(lost.what), reading_s=time.monotonic() - reading)
    finally:
        shot.close()


def _check_keys(
    shot: OneShot | RowShot, plan: Plan | RowPlan, formats: FormatChoice, notices: Callable[[str], None]
) -> None:
    """Report the columns that no line named, and the files that name none. Raises FormatError if no file names any: the
    result would be of nothing but NULL."""
    totals = shot.feed.totals
    keyless = [path for path, is_keyless in totals.keyless.items() if is_keyless]
    asked = [column.name for column in plan.columns if column.name not in ("time", "agent")]
    if keyless and len(keyless) == len(formats.chosen):
        raise FormatError(formats.no_key(keyless[0], asked))
    for path in keyless:
        notices(formats.no_key(path, asked))
    if totals.parsed and totals.keyed is not None and isinstance(plan, Plan):
        for name in sorted(set(asked) - totals.keyed):
            notices(formats.never(name))


def heads(paths: Sequence[inputs.Input], first: Block | None) -> dict[str, bytes]:
    """The beginnings of the files. Of standard input or a pipe, from which it would be missing then: only if it is first."""
    if first is None:
        return {}
    heads = {first.path: text_of(first.data)}
    for path in paths:
        if path != "-" and path.is_file() and str(path) not in heads:
            heads[str(path)] = head_of(path)
    return heads


def put_ready(shot: OneShot | RowShot, sinks: Sequence[Sink]) -> None:
    """Rows appear as they are read, so each block's are flushed."""
    ready = list(shot.ready())
    for window in ready:
        put(sinks, window)
    for sink in sinks if ready else ():
        sink.flush()


def put_last(shot: RowShot, sinks: Sequence[Sink], lost: Lost) -> None:
    """Give the sinks the rows that only the end of the input settles."""
    for window in shot.windows(whole=not lost.what):
        put(sinks, window)
    for sink in sinks:
        sink.flush()


def compile_plan(options: RunOptions, schema: Mapping[str, SqlType]) -> Plan | RowPlan:
    """The plan of the query. With one set of files there is one source."""
    plan = compiled(options.query, {options.source: schema}, options.parameters)
    if isinstance(plan, RowPlan):
        return plan
    spec = plan.window
    if not options.days_of or spec is None or spec.size_us % DAY_US or spec.slide_us % DAY_US:
        return plan
    return replace(plan, window=replace(spec, zone=options.days_of))


def check_lakes(plan: Plan | RowPlan, sinks: Sequence[Sink]) -> None:
    """Raises UsageError for a lake that would get days of a time zone."""
    if isinstance(plan, RowPlan) or plan.window is None or not (zone := plan.window.zone):
        return
    if any(sink.wants_state for sink in sinks):
        from elf.sinks.lake.every import finest_us, words

        now_us, days = time.time_ns() // 1_000, plan.window.slide_us // DAY_US
        panes = words(finest_us(zone, (now_us, now_us)))
        raise UsageError(
            f"--display-timezone: a lake keeps windows of UTC; run the query with window(time, '{panes}'), "
            f"then elf report LAKE --every {days}d --display-timezone {zone} has days of {zone}"
        )


def deliver(
    publisher: Publisher,
    panes: Panes,
    budget: Budget,
    sinks: Sequence[Sink],
    lost: Lost,
) -> None:
    """Give the windows of a complete input to the sinks: all final, or, if input is missing, none, since its lines may be of any
    time. The panes are removed."""
    stores = [cast(StateSink, sink) for sink in sinks if sink.wants_state]
    if stores and lost.what:
        lost.notices(
            "the lake gets nothing of this run, since windows there would pass for whole ones; run it again"
        )
    elif stores:
        _store(publisher, panes, budget, stores)
    for window in bounded(publisher, panes):
        put(sinks, replace(window, status=INCOMPLETE, agents_reporting=0) if lost.what else window)
    for sink in sinks:
        sink.flush()


def _store(publisher: Publisher, panes: Panes, budget: Budget, sinks: Sequence[StateSink]) -> None:
    """Give every pane's state to the sinks. The panes stay."""
    from elf.jobmaster.windows.state import StateMaker

    maker = StateMaker(publisher.job, publisher.version, publisher.plan, budget)
    epoch = max(sink.next_epoch(publisher.job) for sink in sinks)
    for state in maker.states(panes.pieces(split=True), panes.lines(), "final", (epoch, 0, 1)):
        for sink in sinks:
            sink.put_state(state)
            if sink.pending_bytes > STORE_BYTES:
                sink.flush()


def put(sinks: Sequence[Sink], window: Window) -> None:
    for sink in sinks:
        if not sink.wants_state and (sink.wants_open or window.status != "open"):
            sink.put(window)


def summary_of(shot: OneShot | RowShot, formats: FormatChoice, files: int, seconds: float) -> Summary:
    totals = shot.feed.totals
    return Summary(
        files=files,
        lines=totals.lines,
        parsed=totals.parsed,
        rejected=totals.rejected,
        spilled_bytes=shot.budget.spilled_total,
        overflows=shot.overflows,
        not_converted=dict(shot.lost_values.totals if isinstance(shot, OneShot) else totals.lost),
        keyless=[path for path, is_keyless in totals.keyless.items() if is_keyless],
        invalid_utf8=totals.invalid_utf8,
        seconds=seconds,
        rejects=dict(totals.rejects),
        samples=tuple(totals.samples),
        rejected_in=totals.rejected_in,
        formats=formats.chosen,
        columns=shot.columns,
        span=None if totals.first_us is None or totals.last_us is None else (totals.first_us, totals.last_us),
    )
