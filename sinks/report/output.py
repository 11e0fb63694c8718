"""A report's sections as text: tables, JSON lines, CSV, or one HTML file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from elf.errors import UsageError
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.sinks.console.cells import iso
from elf.sinks.console.csv import Csv
from elf.sinks.console.grid import table
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.report.builtin import ROWS_MAX
from elf.sinks.report.page import TABLE_ROWS, page
from elf.sinks.report.rows import Section

TABLE_LINES = 100
"""The most rows of one table as text; CSV and JSON have no bound."""
BLOCK_ROWS = 10_000
MINUTE_US = 60_000_000


def html_file(output: str) -> str | None:
    """The FILE of `html:FILE`; None for the other outputs. Raises UsageError for an unknown output, or a missing folder."""
    if output in ("table", "json", "csv"):
        return None
    if output.startswith("html:") and len(output) > 5:
        folder = Path(output[5:]).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"cannot write {output[5:]}: there is no folder {folder}")
        return output[5:]
    raise UsageError(f"--output {output!r} is none of table, json, csv and html:FILE")


def write(sections: Iterable[Section], output: str, stdout: BinaryIO, *, single: bool) -> None:
    """Write the sections in sequence. In JSON and CSV each row begins with its report's name, unless `single`."""
    if output == "table":
        for section in sections:
            _write_table(section, stdout, titled=not single)
        return
    sink = JsonLines(stdout) if output == "json" else Csv(stdout)
    number = count(1)  # each window needs another revision: a sink prints a revision once
    for section in sections:
        columns, rows = section.columns, iter(section.rows)
        if not single:
            columns = (ColumnInfo("report", "string"), *columns)
            rows = ((section.name, *row) for row in rows)
        first = True
        while (block := list(islice(rows, BLOCK_ROWS))) or first:
            status, revision = "final", (0, 0, next(number))
            sink.put(Window(section.name, "", None, None, status, revision, Lines(), columns, block))
            first = False
    sink.close()


def _write_table(section: Section, stdout: BinaryIO, *, titled: bool) -> None:
    rows = list(islice(section.rows, TABLE_LINES + 1))
    width = shutil.get_terminal_size().columns if stdout.isatty() else None
    lines = [f"{section.title}"] if titled else []
    lines += table(section.columns, rows[:TABLE_LINES], width)
    if len(rows) > TABLE_LINES:
        lines.append("… and more; --output csv gives all")
    stdout.write(("\n".join(lines) + ("\n\n" if titled else "\n")).encode())
    stdout.flush()


def write_html(target: str, subtitle: str, sections: Iterable[Section], notes: list[str]) -> None:
    """Write one HTML file, whole or not at all. `notes` may grow while the sections are made. Raises UsageError if it fails."""
    held = [_held(section) for section in sections]
    write_page(target, "Web traffic report", subtitle, _cards(held), held, notes)


def write_page(
    target: str,
    title: str,
    subtitle: str,
    cards: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    notes: Sequence[str],
) -> None:
    """Write one HTML file, whole or not at all; into a device or a pipe, as /dev/stdout, as it is. A symbolic link stays one.
    Raises UsageError if it fails."""
    text = page(title, subtitle, cards, sections, notes)
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="replace")
            return
        path = path.resolve()
        fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error


def _held(section: Section) -> Section:
    """The section, with only as many rows as the page shows."""
    rows = list(islice(section.rows, ROWS_MAX if section.chart else TABLE_ROWS + 1))
    return replace(section, rows=rows)


def _cards(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """The figures at the top: those of the job that has read the most lines, because jobs of one source count the same lines."""
    held = next((list(section.rows) for section in sections if section.name == "lake"), [])
    if not held:
        return []
    _, _, _, start, end, read, parsed, rejected, late, _ = max(held, key=lambda row: row[5])
    whole_minutes = all((at or 0) % MINUTE_US == 0 for at in (start, end))
    shown = len("2026-09-21T00:00") if whole_minutes else len("2026-09-21T00:00:00")
    span = [(name, iso(at)[:shown].replace("T", " ")) for name, at in (("from", start), ("until", end)) if at]
    counted = {"lines read": read, "parsed": parsed, "rejected": rejected, "late": late}
    return [*span, *((name, f"{lines:,}") for name, lines in counted.items())]
