"""`elf run` live: one job over files that grow, or over standard input, whose lines come from a pipe.

A pipe may bring an old log (`zcat … |`) as well as a live one (`kubectl logs -f … |`). An old one is read to its end, in any
order of time, and its windows are as exact as those of files; so no window is final before the stream proves to be live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event

from elf.agent.config.units import duration_text
from elf.agent.files.listing import refused
from elf.agent.files.source import Source
from elf.agent.files.stream import Stream
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import LATENESS_MAX_US
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.engine import (
    INTERRUPTED,
    Lost,
    Progress,
    RunOptions,
    Summary,
    check_lakes,
    compile_plan,
    deliver,
)
from elf.agent.single.live import Live
from elf.agent.single.live_job import JobOptions, LiveJob, first_epoch
from elf.agent.single.live_source import QUIET_US, Input, LiveSource, wire
from elf.cbt.budget import Budget
from elf.errors import UsageError
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.windows.result import Sink

Notices = Callable[[str], None]
NEAR_US = 60_000_000
NEAR_S = 2.0
"""A stream is live when its lines have been within `NEAR_US` of the clock for so long, or none came for `QUIET_US`."""
FOREVER_US = 1 << 62


class StreamSource(LiveSource):
    """Standard input: it promises no watermark before it `is_live`."""

    is_live = False
    _near_since: float | None = None

    def watermark_us(self, now_us: int) -> int | None:
        self.is_live = self.is_live or self._proves_live(now_us)
        return super().watermark_us(now_us) if self.is_live else None

    def _proves_live(self, now_us: int) -> bool:
        now_s, complete = self._scanned.steady_s, self.source.complete_until
        is_quiet = complete is not None and (complete - (self._last_line_s or now_s)) * 1e6 >= QUIET_US
        last = max((state.last_time or 0 for state in self.feed.files.values()), default=0)
        if last < now_us - NEAR_US:
            self._near_since = None
        elif self._near_since is None:
            self._near_since = now_s
        return is_quiet or (self._near_since is not None and now_s - self._near_since >= NEAR_S)


def follow(
    options: RunOptions,
    sinks: Sequence[Sink],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    notices: Notices = lambda _: None,
    on_lost: Notices = lambda _: None,
    stop: Event | None = None,
) -> Summary:
    """`elf run --follow`: one job over followed files, from their beginning, until `stop`; the open windows leave last."""
    del on_lost  # a source reports lines that it lost by a notice
    if (why := refused(options.files)) is not None:
        raise UsageError(why)
    source = Source("access", options.files, state=None, start="beginning")
    source.scan(time.monotonic())
    formats = FormatChoice(options.format, notices, lenient=True, head=lambda block: source.head(block.file))
    heads = {"access": source.head()}
    plan = compile_plan(options, formats.schema(heads))
    for note in formats.notes(column.name for column in plan.columns):
        notices(note)
    check_lakes(plan, sinks)
    if isinstance(plan, RowPlan):
        from elf.agent.single.live_rows import follow_rows

        stop = stop or Event()
        return follow_rows(
            options, plan, source, formats, sinks, notices=notices, on_progress=on_progress, stop=stop
        )
    if plan.window is None and any(sink.wants_state for sink in sinks):
        raise UsageError(
            "--sink parquet with --follow needs GROUP BY window(time, …): without one nothing is ever final"
        )
    run = _Run(options, sinks, source, formats, plan, heads)
    if plan.window is not None:
        notices(run.note)
    try:
        live = run.live(notices, on_progress)
        live.run(stop or Event())
        live.finish()
    finally:
        run.close()
    return run.summary(lost=())


def follow_stream(
    options: RunOptions,
    sinks: Sequence[Sink],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    notices: Notices = lambda _: None,
    on_lost: Notices = lambda _: None,
    stop: Event | None = None,
) -> Summary:
    """`elf run` on a pipe: one job over descriptor 0 until it ends, as it has to soon after `stop` is set.

    As `elf.agent.run.engine.run` when the pipe ends without having been live; otherwise windows become final as lines come, and
    the rest at the end.
    """
    stop = stop or Event()
    lost = Lost(on_lost)
    stream = Stream(0, lost)
    heads = {stream.name: stream.gather_head()}
    formats = FormatChoice(
        options.format,
        notices,
        lenient=not stream.has_whole_head,  # a live log may begin with other lines
        head=lambda block: stream.head(block.file),
    )
    plan = compile_plan(options, formats.schema(heads))
    for note in formats.notes(column.name for column in plan.columns):
        notices(note)
    check_lakes(plan, sinks)
    if isinstance(plan, RowPlan):
        from elf.agent.single.live_rows import follow_rows

        return follow_rows(
            options,
            plan,
            stream,
            formats,
            sinks,
            notices=notices,
            on_progress=on_progress,
            stop=stop,
            is_over=lambda: stream.is_over,
            lost=lost,
        )
    run = _Run(options, sinks, stream, formats, plan, heads, StreamSource)
    try:
        _follow_pipe(run, stream, sinks, run.live(notices, on_progress), notices, lost, stop)
    finally:
        run.close()
    return run.summary(lost=lost.what)


def _follow_pipe(
    run: _Run,
    stream: Stream,
    sinks: Sequence[Sink],
    live: Live,
    notices: Notices,
    lost: Lost,
    stop: Event,
) -> None:
    """Read the pipe to its end, and deliver what is still open then."""
    source, job = run.source, run.job
    assert isinstance(source, StreamSource)
    has_windows = job.publisher.plan.window is not None
    said = not has_windows

    def is_over() -> bool:
        nonlocal said
        if source.is_live and not said:
            said = True
            notices(run.note)
        return stream.is_over

    # Not until `stop`: that ends the pipe, and lines that have come are read.
    live.run(Event(), until=is_over)
    if source.is_live and has_windows:
        if not (stop.is_set() or lost.what):
            job.windows.advance(FOREVER_US)
        live.finish()
        return
    if stop.is_set():
        lost(INTERRUPTED)
    source.settle()
    deliver(job.publisher, job.panes, run.budget, sinks, lost, job.windows.published)
    job.overflows += job.publisher.finisher.overflows


class _Run:
    """One job on one source, from its beginning to its summary. `note`: the notice about its lateness."""

    def __init__(
        self,
        options: RunOptions,
        sinks: Sequence[Sink],
        source: Input,
        formats: FormatChoice,
        plan: Plan,
        heads: Mapping[str, bytes],
        kind: type[LiveSource] = LiveSource,
    ) -> None:
        self._began = time.monotonic()
        self._formats = formats
        lateness = options.lateness_us
        if lateness is None:
            lateness = formats.lateness_us(heads) or LATENESS_MAX_US
        self.note = f"windows are final {duration_text(lateness)} after their end (--lateness)"
        job_options = JobOptions(lateness, options.emit_us)
        self.budget = Budget(options.memory_max, None, resident_bytes)
        epoch = first_epoch(options.job, sinks)
        self.job = LiveJob(options.job, plan, job_options, sinks, self.budget, epoch)
        bounds = (options.since_us, options.until_us)
        self.source = wire(
            source,
            formats,
            [self.job],
            options.timezone,
            "",
            bounds=bounds if bounds != (None, None) else None,
            kind=kind,
        )
        self._live: Live | None = None

    def live(self, notices: Notices, on_progress: Callable[[Progress], None] | None) -> Live:
        def progress(lines: int) -> None:
            if on_progress is not None:
                on_progress(Progress(0, None, lines))

        self._live = Live(self.source, budget=self.budget, notices=notices, on_progress=progress)
        return self._live

    def close(self) -> None:
        if self._live is not None:
            self._live.close()

    def summary(self, lost: Sequence[str]) -> Summary:
        totals = self.source.feed.totals
        return Summary(
            files=len(self._formats.chosen),
            lines=totals.lines,
            parsed=totals.parsed,
            rejected=totals.rejected,
            late=self.job.late,
            spilled_bytes=self.budget.spilled_total,
            overflows=self.job.overflows,
            not_converted=dict(self.job.lost.totals),
            invalid_utf8=totals.invalid_utf8,
            seconds=time.monotonic() - self._began,
            reading_s=time.monotonic() - self._began,
            rejects=dict(totals.rejects),
            samples=tuple(totals.samples),
            rejected_in=totals.rejected_in,
            formats=self._formats.chosen,
            columns=self.job.publisher.columns,
            lost=tuple(lost),
            open=self.job.windows.open_count() if self._live is not None else 0,
        )
