"""`elf report`: Spark over a lake."""

from __future__ import annotations

import sys


def report_command(
    lake: str, sql: str | None, every: str | None, master: str | None, output: str | None
) -> None:
    """Write the report to stdout, or to a file of HTML. Raises `ElfError`."""
    from elf.sinks.report.report import report

    form = output or ("table" if sys.stdout.isatty() else "json")
    report(lake, sql=sql, every=every, master=master, output=form)
