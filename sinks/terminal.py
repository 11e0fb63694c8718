"""The console: whichever sink suits stdout. A table on a terminal, JSON lines in a pipe, or as asked."""

from __future__ import annotations

import os
import sys
from functools import cache

from elf.errors import UsageError
from elf.sinks.console import Table
from elf.sinks.csv import Csv
from elf.sinks.jsonlines import JsonLines
from elf.sinks.result import Sink

OUTPUTS = ("auto", "table", "json", "csv")
COLOURS = ("auto", "always", "never")


@cache
def console(output: str = "auto", *, color: str = "auto", meta: bool = False) -> Sink:
    """The sink that prints on stdout, one per process and choice: jobs that share a terminal must share the sink, which
    has to know all that is on the screen. `meta` adds status, revision and line counters, in a table the job's name.

    Raises `UsageError`.
    """
    if output not in OUTPUTS:
        raise UsageError(f"--output: expected {', '.join(OUTPUTS)}, found {output!r}")
    if output == "auto":
        output = "table" if sys.stdout.isatty() else "json"
    if output == "table":
        return Table(colour=is_coloured(color), show_job=meta)
    return JsonLines(meta=meta) if output == "json" else Csv(meta=meta)


def is_coloured(when: str) -> bool:
    """Whether stdout takes colours: as told, else on a terminal that is not dumb, unless NO_COLOR is set."""
    if when not in COLOURS:
        raise UsageError(f"--color: expected {', '.join(COLOURS)}, found {when!r}")
    if when != "auto":
        return when == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
