"""`elf report`: Spark over a lake."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from elf.agent.commands.arguments import bounds_of, checked_timezone, values_of
from elf.errors import UsageError
from elf.sinks.console.cells import show_in


def report_command(
    lake: str,
    names: Sequence[str],
    reports: Path | None,
    sql: str | None,
    params: Sequence[str],
    every: str | None,
    master: str | None,
    output: str | None,
    display_timezone: str,
    since: str | None = None,
    until: str | None = None,
) -> None:
    """Write the report to stdout, or to a file of HTML. Raises `ElfError`."""
    from elf.sinks.report.report import report

    form = output or ("table" if sys.stdout.isatty() else "json")
    if params and sql is None and not (names or reports):
        raise UsageError("--param: only a query of --sql, or of a file, has parameters")
    if sql is not None and (names or reports):
        raise UsageError("--sql is a report of its own; leave it out, or the names of others")
    zone = checked_timezone(display_timezone, "--display-timezone")
    bounds = bounds_of(since, until, time.time_ns() // 1_000, zone)
    show_in(zone)
    report(
        lake,
        names=names,
        folder=reports,
        sql=sql,
        params=values_of(params),
        every=every,
        master=master,
        output=form,
        timezone=zone,
        bounds=bounds,
    )
