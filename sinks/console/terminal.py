"""The console: the sink that suits stdout: a table on a terminal, JSON lines in a pipe, or the format that was requested."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, BinaryIO, TextIO
from weakref import WeakSet

from elf.errors import UsageError
from elf.jobmaster.windows.result import Sink

if TYPE_CHECKING:
    from elf.sinks.console.console import Table

OUTPUTS = ("auto", "table", "json", "csv")
COLOURS = ("auto", "always", "never")

_tables: WeakSet[Table] = WeakSet()
drawing = RLock()
"""Held by a thread other than that of messages while it writes on a table."""


def console(output: str = "auto", *, color: str = "auto", meta: bool = False) -> Sink:
    """The sink that prints on stdout. All jobs of one stdout share it, because a table must know all that is on the screen.
    Arguments as for `new_console`. Raises `UsageError`.
    """
    return _shared(sys.stdout, output, color, meta)


@lru_cache(maxsize=len(OUTPUTS))
def _shared(stdout: TextIO, output: str, color: str, meta: bool) -> Sink:
    del stdout  # only a key of the cache: another stdout has another sink
    return new_console(output, color=color, meta=meta)


def new_console(
    output: str = "auto",
    *,
    color: str = "auto",
    meta: bool = False,
    opens: bool = True,
    empties: bool = False,
    stream: BinaryIO | None = None,
) -> Sink:
    """A new sink for stdout, or for a stream that stands for it. output: "table", "json", "csv", or "auto": a table on a
    terminal, JSON lines in a pipe. meta: add status, revision and line counters; in a table, the job's name. opens, empties: of
    JSON lines and CSV, see `RowStream`. Raises `UsageError`.
    """
    if output not in OUTPUTS:
        raise UsageError(f"--output: expected {', '.join(OUTPUTS)}, found {output!r}")
    if output == "auto":
        output = "table" if sys.stdout.isatty() else "json"
    if output == "table":
        from elf.sinks.console.console import Table

        table = Table(stream, colour=is_coloured(color), show_job=meta)
        _tables.add(table)
        return table
    if output == "json":
        from elf.sinks.console.jsonlines import JsonLines

        return JsonLines(stream, meta=meta, opens=opens, empties=empties)
    from elf.sinks.console.csv import Csv

    return Csv(stream, meta=meta, opens=opens, empties=empties)


def make_way() -> None:
    """Call this before a message is written to the terminal: tables erase their open windows until the next flush."""
    with drawing:
        for table in _tables:
            table.make_way()


def is_coloured(when: str) -> bool:
    """Whether to use colours on stdout. With "auto": on a terminal that is not dumb, unless NO_COLOR is set."""
    if when not in COLOURS:
        raise UsageError(f"--color: expected {', '.join(COLOURS)}, found {when!r}")
    if when != "auto":
        return when == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
