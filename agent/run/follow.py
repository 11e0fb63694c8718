"""`elf run --follow`: one query over files that grow, or over a pipe, until a signal or the input's end.

It is an agent in this process, without a mesh, that lives for one job: the node, the source and the sinks of `elf agent run`. Its
state is in a temporary folder, and nothing reads it again. A query whose rows are lines has no windows, and needs no node
(`followed_rows`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Event

from msgspec.structs import replace

from elf.agent.config.units import duration_text
from elf.agent.files.listing import refused
from elf.agent.files.source import Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import LATENESS_MAX_US
from elf.agent.run.engine import LINES_ONLY, Lost, RunOptions, Summary, compile_plan, piped
from elf.agent.run.engine import run as run_once
from elf.agent.run.outlet import Outlet
from elf.errors import UsageError
from elf.jobmaster.plan.plan import Plan, RowPlan

Notices = Callable[[str], None]
NEVER_FINAL = "--sink parquet with --follow needs GROUP BY window(time, …): without one nothing is ever final"
NO_DAYS = (
    "--display-timezone: with --follow, windows of days are days of UTC; ask for window(time, '1 hour'), whose times are shown "
    "in that zone, or leave --follow out"
)


def follow(
    options: RunOptions,
    outlet: Outlet,
    *,
    notices: Notices = lambda _: None,
    on_lost: Notices = lambda _: None,
    stop: Event | None = None,
) -> Summary:
    """Follow the files from their beginning, or the pipe on descriptor 0, until `stop` is set; then open windows are shown. At
    the end of a pipe all windows are final.

    Raises QueryError, UsageError, FormatError before anything is read; StreamClosed.
    """
    stop = stop or Event()
    if options.files == ("-",):
        return _follow_pipe(options, outlet, notices, on_lost, stop)
    if (why := refused(options.files)) is not None:
        raise UsageError(why)
    source = Source(options.source, options.files, state=None, start="beginning")
    try:
        source.scan(time.monotonic())
        formats = FormatChoice(
            options.format, notices, lenient=True, head=lambda block: source.head(block.file)
        )
        heads = {options.source: source.head()}
        plan = _plan_of(options, outlet, formats, heads)
        if isinstance(plan, RowPlan):
            from elf.agent.run.followed_rows import follow_rows

            return follow_rows(options, plan, source, formats, outlet.printers(), notices=notices, stop=stop)
    finally:
        source.close()
    options = _with_lateness(options, formats, heads)
    _announce(plan, options, formats, notices)
    from elf.agent.run.one_job import OneJob

    return OneJob(options, outlet, plan, notices).run(stop)


def _follow_pipe(
    options: RunOptions, outlet: Outlet, notices: Notices, on_lost: Notices, stop: Event
) -> Summary:
    lost = Lost(on_lost)
    log = piped(options, notices, lost)
    plan = _plan_of(options, outlet, log.formats, log.heads)
    if isinstance(plan, RowPlan):  # its rows come as the lines do anyway
        return run_once(options, outlet.printers(), notices=notices, on_lost=on_lost, stop=stop, log=log)
    options = _with_lateness(options, log.formats, log.heads)
    _announce(plan, options, log.formats, notices)
    from elf.agent.run.one_job import OneJob

    return OneJob(options, outlet, plan, notices, lines=log.blocks, lost=lost).run(stop)


def _plan_of(
    options: RunOptions, outlet: Outlet, formats: FormatChoice, heads: Mapping[str, bytes]
) -> Plan | RowPlan:
    plan = compile_plan(options, formats.schema(heads))
    if isinstance(plan, RowPlan):
        if outlet.lakes:
            raise UsageError(LINES_ONLY)
    elif plan.window is None:
        if outlet.lakes:
            raise UsageError(NEVER_FINAL)
    elif plan.window.zone:
        raise UsageError(NO_DAYS)
    return plan


def _with_lateness(options: RunOptions, formats: FormatChoice, heads: Mapping[str, bytes]) -> RunOptions:
    """Without --lateness, that of the log's format."""
    if options.lateness_us is not None:
        return options
    return replace(options, lateness_us=formats.lateness_us(heads) or LATENESS_MAX_US)


def _announce(plan: Plan, options: RunOptions, formats: FormatChoice, notices: Notices) -> None:
    for note in formats.notes(column.name for column in plan.columns):
        notices(note)
    if plan.window is not None:
        assert options.lateness_us is not None
        notices(f"windows are final {duration_text(options.lateness_us)} after their end (--lateness)")
