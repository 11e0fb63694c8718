"""`elf run`: one query over files, or live over files that grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from elf.agent.commands.arguments import (
    checked_timezone,
    memory,
    moment,
    report_query,
    sink_specs,
    values_of,
)
from elf.agent.commands.process import standard_input
from elf.agent.commands.process.signals import stop_on_signals
from elf.agent.commands.process.streams import notices, say
from elf.agent.commands.run_line import Arguments
from elf.agent.config import units
from elf.agent.host.allocator import KEEP_FROM, keep_freed_memory
from elf.agent.run.engine import Progress, RunOptions, Summary
from elf.agent.run.engine import run as run_engine
from elf.agent.run.progress import ProgressBar, count
from elf.errors import UsageError
from elf.jobmaster.windows.result import HeadedSink, PaneState, Sink, Window
from elf.sinks.console.terminal import new_console


def run_command(arguments: Arguments) -> int:
    """Run and print. Returns the exit code. Raises `ElfError`, `StreamClosed`."""
    options = _options(arguments, time.time_ns() // 1_000)
    if options.memory_max >= KEEP_FROM:
        keep_freed_memory()
    bar = ProgressBar(time.monotonic)
    opened = _sinks(arguments)
    sinks = [sink if sink.wants_state else _AfterBar(sink, bar) for sink in opened]
    show = _shower(bar) if not (arguments.quiet or arguments.follow) else None
    with (
        stop_on_signals() as stop,
        standard_input.ends_on(stop.event) if "-" in options.files else nullcontext(),
    ):
        try:
            summary = _engine(arguments.follow)(
                options, sinks, on_progress=show, notices=_notices(arguments.quiet, bar), stop=stop.event
            )
            bar.clear()
            for sink in opened:
                if isinstance(sink, HeadedSink):
                    sink.begin(summary.columns)
        finally:
            bar.clear()
            for sink in sinks:
                sink.close()
    if not arguments.quiet:
        _conclude(summary, options, arguments.verbose)
    return stop.exit_code or _exit_code(summary, options)


def _engine(is_live: bool) -> Callable[..., Summary]:
    """The engine: reads files once, or follows them until a signal comes."""
    if not is_live:
        return run_engine
    from elf.agent.single.node import follow

    return follow


def _options(arguments: Arguments, now_us: int) -> RunOptions:
    query, files = arguments.query, arguments.files
    if arguments.report is not None:
        if query is not None and query[:6].upper() == "SELECT":
            raise UsageError("QUERY and --report are both given; leave one of them out")
        query, files = report_query(arguments.report), (query, *files) if query is not None else ()
    if query is None:
        raise UsageError(
            "missing argument 'QUERY', or a usual question with --report NAME; see elf run --help"
        )
    if not files:
        raise UsageError("no file to read; name one, or - for stdin")
    zone = checked_timezone(arguments.timezone)
    since = moment("--since", arguments.since, now_us, zone)
    until = moment("--until", arguments.until, now_us, zone)
    if since is not None and until is not None and since >= until:
        raise UsageError(
            f"--since: {arguments.since} is not before --until {arguments.until}; no line can be between them"
        )
    return RunOptions(
        query=query,
        files=files,
        format=arguments.format,
        since_us=since,
        until_us=until,
        memory_max=memory(arguments.memory_max),
        timezone=zone,
        parameters=values_of(arguments.param),
    )


def _sinks(arguments: Arguments) -> list[Sink]:
    """The console unless other sinks are named; with others, the console only if it is named or --output is given."""
    specs = sink_specs(arguments.sink)
    forms = [one.output for one in specs if one.kind == "console"]
    sinks: list[Sink] = []
    if not specs or arguments.output or forms:
        form = arguments.output or next(iter(forms), "auto")
        sinks.append(new_console(form, color=arguments.color, meta=arguments.meta))
    for folder in {one.folder for one in specs if one.folder is not None}:
        from elf.sinks.lake.parquet import ParquetSink

        sinks.append(ParquetSink(folder))
    return sinks


class _AfterBar:
    """A sink that takes the progress bar off the screen before it writes."""

    def __init__(self, sink: Sink, bar: ProgressBar) -> None:
        self._sink, self._bar = sink, bar
        self.wants_open, self.wants_state = sink.wants_open, sink.wants_state

    def put(self, window: Window) -> None:
        self._bar.clear()
        self._sink.put(window)

    def put_state(self, state: PaneState) -> None:
        raise AssertionError("only sinks that print are wrapped")

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self._sink.close()


def _shower(bar: ProgressBar) -> Callable[[Progress], None]:
    return lambda progress: bar.update(progress.bytes_done, progress.bytes_total, progress.lines)


def _notices(quiet: bool, bar: ProgressBar) -> Callable[[str], None]:
    show = notices(quiet)

    def notice(message: str) -> None:
        bar.clear()
        show(message)

    return notice


def _conclude(summary: Summary, options: RunOptions, verbose: bool) -> None:
    """Print the closing lines on stderr."""
    rate = summary.lines / summary.seconds if summary.seconds else 0
    parts = [
        count(summary.files, "file"),
        count(summary.lines, "line"),
        f"{summary.rejected:,} rejected",
        f"{summary.late:,} late",
        f"{units.size_text(summary.spilled_bytes)} spilled",
        f"{summary.seconds:.2f} s ({rate:,.0f} lines/s)",
    ]
    say(", ".join(parts))
    if summary.overflows:
        say(
            f"{count(summary.overflows, 'result')} overflowed and became NULL; try a wider type, like CAST(x AS DOUBLE)"
        )
    if summary.rejected and summary.parsed:
        say(f"rejected: {_reasons(summary)}; see them with: elf parse {_example(summary, options)}")
    if summary.invalid_utf8:
        say(f"{count(summary.invalid_utf8, 'line')} with bytes that are not UTF-8, read as \\xhh, like \\xe9")
    if verbose:
        from elf.agent.commands.rejects import reject_lines

        for reject in summary.samples:
            place, *excerpt = reject_lines(reject, width=100)
            for line in (f"{reject.reason.value} {place}", *excerpt):
                say(line)


def _reasons(summary: Summary) -> str:
    most = sorted(summary.rejects.items(), key=lambda item: (-item[1], item[0].value))
    return ", ".join(f"{n:,} {reason.value}" for reason, n in most)


def _example(summary: Summary, options: RunOptions) -> str:
    import shlex

    format = "" if options.format == "auto" else f" --format {shlex.quote(options.format)}"
    file = summary.rejected_in or options.files[0]
    return ("FILE" if file == "-" else shlex.quote(file)) + format


def _exit_code(summary: Summary, options: RunOptions) -> int:
    if summary.lines == 0 or summary.parsed:
        return 0
    say(
        f"none of {count(summary.lines, 'line')} could be parsed ({_reasons(summary)}); see why with: "
        f"elf parse {_example(summary, options)}, or name the log's format with --format"
    )
    return 1
