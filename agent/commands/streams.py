"""What the commands share of the terminal: messages on stderr, results on stdout, and which sink prints them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from elf.errors import UsageError
from elf.sinks import spec
from elf.sinks.result import Sink
from elf.sinks.spec import SinkSpec

COLOURS = ("auto", "always", "never")


def say(message: str) -> None:
    """One line on stderr, safe for a terminal."""
    from elf.sinks.cells import escape

    print(f"elf: {escape(message)}", file=sys.stderr, flush=True)


def notices(quiet: bool) -> Callable[[str], None]:
    return _silence if quiet else say


def _silence(message: str) -> None:
    del message


def is_coloured(when: str) -> bool:
    """Whether stdout takes colours: as told, else on a terminal that is not dumb, unless NO_COLOR is set."""
    if when not in COLOURS:
        raise UsageError(f"--color: expected {', '.join(COLOURS)}, found {when!r}")
    if when != "auto":
        return when == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(output: str | None, *, color: str = "auto", meta: bool = False, show_job: bool = False) -> Sink:
    """The sink that prints on stdout: a table on a terminal, JSON lines in a pipe, or as `output` says."""
    from elf.sinks.console import Table
    from elf.sinks.csv import Csv
    from elf.sinks.jsonlines import JsonLines

    form = output or ("table" if sys.stdout.isatty() else "json")
    if form == "table":
        return Table(colour=is_coloured(color), show_job=show_job)
    if form == "json":
        return JsonLines(meta=meta)
    if form == "csv":
        return Csv(meta=meta)
    raise UsageError(f"--output: expected table, json or csv, found {output!r}")


def sink_specs(texts: Sequence[str]) -> list[SinkSpec]:
    """The sinks of `--sink`. Raises `UsageError`."""
    try:
        return [spec.parse(text) for text in texts]
    except ValueError as error:
        raise UsageError(f"--sink: expected {error}, found {', '.join(texts)!r}") from error
