"""`elf grep`: the raw lines for which a condition holds, with grep's output and exit codes."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import msgspec

from elf.agent.commands.arguments import bounds_of, checked_timezone, values_of
from elf.agent.commands.process import standard_input
from elf.agent.commands.process.signals import stop_on_signals
from elf.agent.commands.process.streams import notices
from elf.agent.run.engine import RunOptions
from elf.agent.run.grep import Found, Grep, GrepOptions
from elf.agent.run.progress import count
from elf.errors import ElfError, QueryError, UsageError
from elf.sinks.console.cells import escape_lines
from elf.sinks.console.row_stream import flush, write

MATCHED, NONE, TROUBLE = 0, 1, 2
"""Exit codes, as grep's: lines were selected, none were, or not all could be read."""


class Form(msgspec.Struct, frozen=True):
    """What is printed. count: the number of lines of each file instead of the lines. names: the file's name before each line or
    number, if there are several files. quiet: nothing."""

    count: bool
    names: bool
    quiet: bool


def grep_command(
    condition: str,
    files: Sequence[str],
    *,
    form: Form,
    invert: bool,
    lines_max: int | None,
    format: str,
    since: str | None,
    until: str | None,
    timezone: str,
    params: Sequence[str],
) -> int:
    """Print, and return the exit code. Raises `ElfError`, `StreamClosed`."""
    zone = checked_timezone(timezone)
    since_us, until_us = bounds_of(since, until, time.time_ns() // 1_000, zone)
    if not files and sys.stdin.isatty():
        raise UsageError("no file to read; name one, or pipe lines into elf grep")
    run = RunOptions(
        query=condition,
        files=tuple(files) or ("-",),
        format=format,
        since_us=since_us,
        until_us=until_us,
        timezone=zone,
        parameters=values_of(params),
    )
    say = notices(form.quiet)
    grep = Grep(GrepOptions(run, invert, 1 if form.quiet else lines_max), say)
    with (
        stop_on_signals() as stop,
        standard_input.ends_on(stop.event) if "-" in run.files else nullcontext(),
    ):
        selected = 0
        try:
            paths = grep.files()
            for path in paths:
                prefix = _prefix(path) if form.names and len(paths) > 1 else b""
                selected += _print(grep.of_file(path, stop.event), form, prefix)
                if selected and form.quiet:
                    return MATCHED
                if stop.event.is_set():
                    break
        except ElfError as error:
            if os.path.exists(condition):
                raise UsageError(f"{condition} is a file; the condition comes before the files") from error
            if condition.strip("'\"").replace(".", "").replace("/", "").isalnum() and isinstance(
                error, QueryError
            ):
                hint = "a condition compares a column, like status = 500 or path LIKE '/api/%'; lines with a text: grep -F"
                raise UsageError(f"{condition} is no condition: {hint} {shlex.quote(condition)}") from error
            raise
    trouble = _rejected(grep, run, invert, say)
    return stop.exit_code or (TROUBLE if trouble or grep.damaged else NONE if not selected else MATCHED)


def _print(blocks: Iterator[Found], form: Form, prefix: bytes) -> int:
    """Print what one file has, as it is read. Returns the number of lines selected."""
    stream, total = sys.stdout.buffer, 0
    is_terminal = stream.isatty()
    for found in blocks:
        total += found.lines
        if found.lines and not (form.count or form.quiet):
            for start, end in found.spans:
                print_lines(stream, bytes(found.data[start:end]), prefix, is_terminal=is_terminal)
            flush(stream)
    if form.count and not form.quiet:
        print_lines(stream, b"%d" % total, prefix, is_terminal=is_terminal)
    return total


def _prefix(path: Path | str) -> bytes:
    return b"(standard input):" if path == "-" else os.fsencode(path) + b":"


def print_lines(stream: BinaryIO, lines: bytes, prefix: bytes, *, is_terminal: bool) -> None:
    """Whole lines as they are, each after the prefix; a newline where the last line of a file has none. On a terminal, characters
    that could control it become escapes; tabs stay."""
    whole = lines.removesuffix(b"\n")
    if prefix:
        whole = prefix + whole.replace(b"\n", b"\n" + prefix)
    if is_terminal:
        parts = whole.decode("utf-8", "replace").split("\t")
        whole = "\t".join(map(escape_lines, parts)).encode()
    write(stream, whole + b"\n")


def _rejected(grep: Grep, run: RunOptions, invert: bool, say: Callable[[str], None]) -> bool:
    """Say how many lines could not be read, and so could not match. Returns whether none could be read."""
    totals = grep.totals
    if not totals.rejected:
        return False
    file = "FILE" if totals.rejected_in == "-" else shlex.quote(totals.rejected_in)
    format = "" if run.format == "auto" else f" --format {shlex.quote(run.format)}"
    many = f"{totals.rejected:,} of {count(totals.lines, 'line')}" if totals.parsed else "none of the lines"
    kept = "; -v prints them too" if invert and run.bounds is None else ""
    reading = "could be read" if not totals.parsed else "could not be read, and match no condition"
    say(f"{many} {reading}{kept}; see why with: elf parse {file}{format}")
    return not totals.parsed
