"""`elf run`: one query over files, or live over files that grow."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from elf.agent.commands.arguments import (
    bounds_of,
    checked_timezone,
    duration,
    is_query,
    memory,
    query_of,
    sink_specs,
    values_of,
)
from elf.agent.commands.process import standard_input
from elf.agent.commands.process.signals import stop_on_signals
from elf.agent.commands.process.streams import notices, say
from elf.agent.commands.run_line import Arguments, Output
from elf.agent.config import units
from elf.agent.host.allocator import KEEP_FROM, keep_freed_memory, stay_small
from elf.agent.run.engine import EMIT_US, Progress, RunOptions, Summary, is_pipe
from elf.agent.run.engine import run as run_engine
from elf.agent.run.progress import ProgressBar, count
from elf.errors import UsageError
from elf.jobmaster.windows.result import HeadedSink, PaneState, Sink, Window
from elf.sinks.console.cells import show_in
from elf.sinks.console.terminal import new_console

if TYPE_CHECKING:
    from elf.agent.run.outlet import Outlet

ALL = "all"
"""The report of all panels."""


def run_command(arguments: Arguments) -> int:
    """Run and print. Returns the exit code. Raises `ElfError`, `StreamClosed`."""
    if arguments.report == ALL:
        return _run_page(arguments)
    if arguments.output not in (None, *Output):
        raise UsageError(
            f"--output: expected {', '.join(Output)}, or html:FILE with --report all; found {arguments.output!r}"
        )
    options = _options(arguments, time.time_ns() // 1_000)
    _check_live(arguments, options.files)
    show_in(arguments.display_timezone)
    if arguments.follow:
        return _follow(arguments, options)
    if options.memory_max >= KEEP_FROM:
        keep_freed_memory()
    bar = ProgressBar(time.monotonic)
    opened = _sinks(arguments)
    sinks = [sink if sink.wants_state else _AfterBar(sink, bar) for sink in opened]
    with (
        stop_on_signals() as stop,
        standard_input.ends_on(stop.event) if "-" in options.files else nullcontext(),
    ):
        try:
            summary = run_engine(
                options,
                sinks,
                on_progress=None if arguments.quiet else _shower(bar),
                notices=_notices(arguments.quiet, bar),
                on_lost=_notices(False, bar),
                stop=stop.event,
            )
            bar.clear()
            for sink in opened:
                if isinstance(sink, HeadedSink):
                    sink.begin(summary.columns)
        finally:
            bar.clear()
            for sink in sinks:
                sink.close()
            _tell_left_out(opened)
    if not arguments.quiet:
        _conclude(summary, options, arguments.verbose)
        shown = [sink.rows for sink in sinks if isinstance(sink, _AfterBar)]
        if summary.parsed and shown and not any(shown):
            say(_nothing(summary))
    if summary.lost:
        say("the result lacks lines: no window is final")
    return stop.exit_code or _exit_code(summary, options)


def _follow(arguments: Arguments, options: RunOptions) -> int:
    """Live. Returns the exit code. Raises `ElfError`, `StreamClosed`."""
    from elf.agent.host.startup import light_event_loop

    light_event_loop(with_uvloop=False)
    stay_small()
    from elf.agent.run.follow import follow

    outlet = _outlet(arguments)
    with (
        stop_on_signals() as stop,
        standard_input.ends_on(stop.event) if options.files == ("-",) else nullcontext(),
    ):
        summary = follow(
            options, outlet, notices=notices(arguments.quiet), on_lost=notices(False), stop=stop.event
        )
    if not arguments.quiet:
        _conclude(summary, options, arguments.verbose)
        if summary.open and not outlet.is_open:
            say(f"{count(summary.open, 'window')} not final yet, and left out; --open shows such windows")
    if summary.lost:
        say("the result lacks lines")
    return stop.exit_code or _exit_code(summary, options)


def _outlet(arguments: Arguments) -> Outlet:
    """Where live windows go: see `_sinks`."""
    from elf.agent.run.outlet import Outlet

    form, folders = _form_and_folders(arguments)
    if form is None:
        return Outlet(None, lakes=folders)

    def new(stream: BinaryIO | None) -> Sink:
        opens = arguments.open
        return new_console(
            form, color=arguments.color, meta=arguments.meta, opens=opens, empties=True, stream=stream
        )

    return Outlet(new, new(None).wants_open, folders)


def _run_page(arguments: Arguments) -> int:
    """All panels. Returns the exit code. Raises `ElfError`, `StreamClosed`."""
    from elf.agent.commands.run_page import run_page

    given = {
        "--follow": arguments.follow,
        "--sink": arguments.sink,
        "--param": arguments.param,
        "--meta": arguments.meta,
    }
    if unfit := [flag for flag, value in given.items() if value]:
        raise UsageError(f"{unfit[0]}: --report all prints tables, or a page with --output html:FILE")
    options = _options(arguments, time.time_ns() // 1_000)
    bar = ProgressBar(time.monotonic)
    zone = checked_timezone(arguments.display_timezone, "--display-timezone")
    show_in(zone)
    output = arguments.output or ("table" if sys.stdout.isatty() else "json")
    with stop_on_signals() as stop:
        try:
            summary = run_page(
                options,
                output,
                zone,
                on_progress=None if arguments.quiet else _shower(bar),
                notices=_notices(arguments.quiet, bar),
                on_lost=_notices(False, bar),
                stop=stop.event,
            )
        finally:
            bar.clear()
    if not arguments.quiet:
        _conclude(summary, options, arguments.verbose)
    if summary.lost:
        say("the result lacks lines")
    return stop.exit_code or _exit_code(summary, options)


def _has_input() -> bool:
    """Whether standard input is a file, a pipe or a socket: neither a terminal nor /dev/null."""
    mode = os.fstat(0).st_mode
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _check_live(arguments: Arguments, files: Sequence[str]) -> None:
    """Raises UsageError for arguments that need another input."""
    if arguments.follow and "-" in files and not is_pipe(files):
        raise UsageError("-: standard input can be followed if it is a pipe, and the only input; name files")
    given = {"--lateness": arguments.lateness, "--emit": arguments.emit, "--open": arguments.open}
    for flag, value in given.items():
        if value and not arguments.follow:
            raise UsageError(f"{flag}: is for live logs; give --follow too")


def _options(arguments: Arguments, now_us: int) -> RunOptions:
    query, files = _question(arguments)
    if not files and not _has_input():
        from elf.agent.commands.mistakes import no_file

        raise UsageError(no_file(query))
    zone = checked_timezone(arguments.timezone)
    since, until = bounds_of(arguments.since, arguments.until, now_us, zone)
    shown = checked_timezone(arguments.display_timezone, "--display-timezone")
    return RunOptions(
        query=query,
        files=files or ("-",),
        format=arguments.format,
        since_us=since,
        until_us=until,
        memory_max=memory(arguments.memory_max),
        timezone=zone,
        parameters=values_of(arguments.param),
        days_of="" if shown == "UTC" else shown,
        lateness_us=duration("--lateness", arguments.lateness),
        emit_us=duration("--emit", arguments.emit, least="10ms") or EMIT_US,
    )


def _question(arguments: Arguments) -> tuple[str, tuple[str, ...]]:
    """The query and the files. Raises UsageError."""
    query, files = arguments.query, arguments.files
    named = {"--report": arguments.report, "--file": arguments.file}
    given = [flag for flag, value in named.items() if value is not None]
    if given:
        if len(given) > 1 or is_query(query or ""):
            whats = " and ".join([*(["QUERY"] if is_query(query or "") else []), *given])
            raise UsageError(
                f"{whats} are {'all' if whats.count(' and ') > 1 else 'both'} given; leave one out"
            )
        files = (query, *files) if query is not None else ()
        return "" if arguments.report == ALL else query_of(arguments.report, arguments.file), files
    if query is None:
        raise UsageError(
            "missing argument 'QUERY', a file of it with --file, or a usual question with --report NAME; see elf run --help"
        )
    if not is_query(query):
        from elf.agent.commands.mistakes import no_query

        if (message := no_query(query, files)) is not None:
            raise UsageError(message)
    elif " " not in query.strip() and files:
        from elf.agent.commands.mistakes import divided

        raise UsageError(divided((query, *files)))
    return query, files


def _form_and_folders(arguments: Arguments) -> tuple[str | None, list[Path]]:
    """The console's form, and the lakes. The console unless other sinks are named; with others, only if it is named or --output
    is given."""
    specs = sink_specs(arguments.sink)
    forms = [one.output for one in specs if one.kind == "console"]
    folders = list(dict.fromkeys(one.folder for one in specs if one.folder is not None))
    if specs and not (arguments.output or forms):
        return None, folders
    return arguments.output or next(iter(forms), "auto"), folders


def _sinks(arguments: Arguments) -> list[Sink]:
    form, folders = _form_and_folders(arguments)
    sinks: list[Sink] = []
    if form is not None:
        sinks.append(new_console(form, color=arguments.color, meta=arguments.meta, opens=False))
    for folder in folders:
        from elf.sinks.lake.parquet import ParquetSink

        sinks.append(ParquetSink(folder))
    return sinks


def _tell_left_out(sinks: Sequence[Sink]) -> None:
    if any(sink.wants_state for sink in sinks):
        from elf.sinks.lake.parquet import ParquetSink

        for sink in sinks:
            if isinstance(sink, ParquetSink) and (text := sink.take_left_out()):
                say(text)


class _AfterBar:
    """A sink that takes the progress bar off the screen before it writes."""

    def __init__(self, sink: Sink, bar: ProgressBar) -> None:
        self._sink, self._bar = sink, bar
        self.rows = 0
        self.wants_open, self.wants_state = sink.wants_open, sink.wants_state

    def put(self, window: Window) -> None:
        self._bar.clear()
        self.rows += len(window.rows)
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
    rate = summary.lines / summary.reading_s if summary.reading_s else 0
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
    if summary.not_converted:
        each = ", ".join(f"{n:,} of {name}" for name, n in summary.not_converted.items())
        say(f"values that did not convert to their column's type, so NULL: {each}")
        say(f"see them with: elf parse {_example(summary, options)}")
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


def _nothing(summary: Summary) -> str:
    """What to say where lines were read and there is no row."""
    if summary.span is None:
        return "nothing fits the query"
    from elf.jobmaster.values.conversion import timestamp_text

    first, last = (timestamp_text(at - at % 1_000_000) for at in summary.span)
    return f"nothing fits the query; the lines are from {first} to {last} UTC"


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
        return 1 if summary.keyless or summary.lost else 0
    say(
        f"none of {count(summary.lines, 'line')} could be parsed ({_reasons(summary)}); see why with: "
        f"elf parse {_example(summary, options)}, or name the log's format with --format"
    )
    return 1
