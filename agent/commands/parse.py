"""`elf parse`: the format of a log file, its first records, and every reason for which lines were rejected."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from elf.agent.commands.arguments import checked_timezone
from elf.agent.commands.process.streams import say
from elf.agent.commands.rejects import reject_lines
from elf.agent.files import inputs
from elf.agent.formats.batch import Batch, Lost, Reject
from elf.agent.formats.choice import FormatChoice, text_of
from elf.agent.formats.envelopes.kinds import is_detected
from elf.agent.formats.envelopes.wrapped import WrappedParser, make_parser
from elf.agent.formats.fields import Format, Reason
from elf.agent.formats.parser import Parser
from elf.agent.run.progress import count
from elf.agent.work.parsers import FUTURE_US, without_future
from elf.errors import UsageError
from elf.jobmaster.values.sql_types import SqlType
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.sinks.console.grid import Grid, Style, line_places, upright
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.console.terminal import is_coloured

SAMPLES_PER_REASON = 3


class Reading(msgspec.Struct):
    """The result of reading one file. records: the first ones, as tuples of `columns`."""

    format: Format | None = None
    columns: tuple[ColumnInfo, ...] = ()
    records: list[tuple[Any, ...]] = msgspec.field(default_factory=list)
    lines: int = 0
    parsed: int = 0
    invalid_utf8: int = 0
    rejects: Counter[Reason] = msgspec.field(default_factory=Counter)
    samples: dict[Reason, list[Reject]] = msgspec.field(default_factory=dict)
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    lost_samples: dict[str, list[Lost]] = msgspec.field(default_factory=dict)
    types: dict[str, SqlType] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)


def parse_command(file: str, format: str, output: str, limit: int, timezone: str, color: str) -> int:
    """Read and show; the exit code is 1 when there were lines and none parsed."""
    reading = read(file, format, limit, checked_timezone(timezone))
    if output == "json":
        _print_json(reading)
        for line in filter(None, _account(reading, format, Style(False))):
            say(line)
    else:
        for line in _report(reading, format, Style(is_coloured(color))):
            print(line)
    return 1 if reading.lines and not reading.parsed else 0


def read(file: str, format: str, limit: int, timezone: str) -> Reading:
    """Parse all of `file`, keeping `limit` records. Raises `UsageError`, `FormatError`."""
    paths = inputs.expand([file])
    if len(paths) != 1:
        raise UsageError(f"{file}: matches {len(paths)} files; name one")
    choice = FormatChoice(format, lambda _: None)
    reading = Reading()
    parser: Parser | WrappedParser | None = None
    for block in inputs.read(paths, notices=say):
        if parser is None:
            reading.format = choice.of(block)
            reading.types = choice.other_keys({block.path: text_of(block.data)})
            reading.notes = choice.notes(reading.types)
            columns = (*reading.format.columns(), *reading.types)
            parser = make_parser(reading.format, columns, timezone=timezone, types=reading.types)
            parser.begin(b"")
        elif parser.full():
            parser.clear()
        batch = without_future(parser.parse(block.lines), time.time_ns() // 1_000 + FUTURE_US)
        _count(reading, batch, block.too_long)
        if len(reading.records) < limit:
            _keep(reading, batch, limit - len(reading.records))
    return reading


def _count(reading: Reading, batch: Batch, too_long: int) -> None:
    reading.lines += batch.lines + too_long
    reading.parsed += batch.rows
    reading.invalid_utf8 += batch.invalid_utf8
    reading.rejects.update(batch.rejects)
    if too_long:
        reading.rejects[Reason.TOO_LONG] += too_long
    for name, rows in batch.lost.items():
        reading.lost[name] += len(rows)
    for lost in batch.lost_samples:
        seen = reading.lost_samples.setdefault(lost.column, [])
        if len(seen) < SAMPLES_PER_REASON:
            seen.append(lost)
    for sample in batch.samples:
        kept = reading.samples.setdefault(sample.reason, [])
        if len(kept) < SAMPLES_PER_REASON:
            kept.append(sample)


def _keep(reading: Reading, batch: Batch, room: int) -> None:
    """Keep the first `room` records of a batch. A header in mid-file may change the columns: they are then NULL or left out."""
    if not reading.columns:
        names = [*(reading.format.columns() if reading.format else batch.columns), *reading.types]
        reading.columns = tuple(
            ColumnInfo(name, str(batch.columns[name].type)) for name in names if name in batch.columns
        )
    n = min(room, batch.rows)
    values = [
        batch.columns[column.name].take(np.arange(n)).to_python()
        if column.name in batch.columns
        else [None] * n
        for column in reading.columns
    ]
    reading.records += zip(*values, strict=True)


def _print_json(reading: Reading) -> None:
    sink = JsonLines()
    lines = Lines(reading.lines, reading.parsed, sum(reading.rejects.values()))
    window = Window("parse", "", None, None, "final", (0, 0, 1), lines, reading.columns, reading.records)
    sink.put(window)
    sink.close()


def _report(reading: Reading, asked: str, style: Style) -> list[str]:
    lines = _account(reading, asked, style)
    shown = _records(reading, style)
    return [*lines[:1], "", *shown, *lines[1:]] if shown else lines


def _account(reading: Reading, asked: str, style: Style) -> list[str]:
    """The format, the counts, and the rejected lines by reason, most frequent first."""
    name = reading.format.name if reading.format else "unknown, the file is empty"
    how = " (detected)" if is_detected(asked) and reading.format else ""
    rejected = sum(reading.rejects.values())
    lines = [
        f"format: {name}{how}",
        f"{count(reading.lines, 'line')}, {reading.parsed:,} parsed, {rejected:,} rejected",
    ]
    if reading.invalid_utf8:
        lines[-1] += f", {reading.invalid_utf8:,} with bytes that are not UTF-8 (read as \\xhh, like \\xe9)"
    for reason, n in sorted(reading.rejects.items(), key=lambda item: (-item[1], item[0].value)):
        lines += ["", style.bold(f"{n:,} rejected: {reason.value}")]
        for sample in reading.samples.get(reason, []):
            head, excerpt, caret = reject_lines(sample, _width())
            lines += [f"  {head}", excerpt, style.red(caret)]
    for name, n in reading.lost.items():
        lines += [
            "",
            style.bold(f"{count(n, 'value')} of {name} did not convert to {reading.types[name]}: NULL"),
        ]
        lines += [f"  {lost.value!r} in {_excerpt(lost)}" for lost in reading.lost_samples.get(name, [])]
    return lines + (["", *reading.notes] if reading.notes else [])


def _excerpt(lost: Lost) -> str:
    shown = lost.line.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= _width() // 2 else shown[: _width() // 2] + "…"


def _records(reading: Reading, style: Style) -> list[str]:
    """The records as a table where it fits, else one under the other; columns that are NULL throughout are left out."""
    keep = [
        i for i in range(len(reading.columns)) if any(record[i] is not None for record in reading.records)
    ]
    rows = [tuple(record[i] for i in keep) for record in reading.records]
    if not rows:
        return []
    grid = Grid([reading.columns[i] for i in keep])
    cells = grid.cells(rows)
    if line_places(grid.widths) <= _width():
        return [style.bold(grid.header(grid.widths)), *(grid.line(row, grid.widths) for row in cells), ""]
    return [line for row in cells for line in upright(grid.names, row, style)]


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120
