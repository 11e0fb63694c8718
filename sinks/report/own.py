"""Reports that users add: files `NAME.sql` of a folder, with a query over one view for each stored job, as of `--sql`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from elf.errors import UsageError
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.report.rows import Section

FOLDER = "reports"
"""Where a name that is no built-in report is looked for."""
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")


class OwnReport(msgspec.Struct, frozen=True):
    """A query from a file. title: the file's first line, if it is a comment, else its name."""

    name: str
    title: str
    sql: str
    path: Path


def own_reports(folder: Path) -> dict[str, OwnReport]:
    """The reports of a folder by name, sorted. Raises UsageError if it, or one of its files, cannot be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".sql")
    except OSError as error:
        raise UsageError(f"--reports {folder}: {error.strerror}") from error
    if not paths:
        raise UsageError(f"--reports {folder}: there is no file whose name ends in .sql")
    return {path.stem: own_report(path) for path in paths}


def own_report(path: Path) -> OwnReport:
    """The report in a file. Raises UsageError if it cannot be read, or has no query."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path}: {why}") from error
    lines = text.splitlines()
    if not any(line.strip() and not line.lstrip().startswith("--") for line in lines):
        raise UsageError(f"{path}: it has no query")
    first = lines[0].strip()
    title = first.removeprefix("--").strip() if first.startswith("--") else ""
    return OwnReport(path.stem, title or path.stem, text.rstrip().removesuffix(";"), path)


def with_chart(section: Section) -> Section:
    """The section with the chart that suits its columns: a time and a number, or a text and a number."""
    kinds = [_kind(column) for column in section.columns]
    rows = list(section.rows)
    chart, step_us = "", section.step_us
    if kinds == ["time", "number"]:
        rows.sort(key=lambda row: (row[0] is not None, row[0]))
        times = sorted({row[0] for row in rows if row[0] is not None})
        if len(times) == len(rows) > 1:
            chart, step_us = "columns", min(b - a for a, b in pairwise(times))
    elif kinds == ["text", "number"] and all(row[1] is not None and row[1] >= 0 for row in rows):
        chart = "bars"
    return msgspec.structs.replace(section, rows=rows, chart=chart, step_us=step_us)


def _kind(column: ColumnInfo) -> str:
    if column.type in _NUMBERS or column.type.startswith("decimal("):
        return "number"
    return {"timestamp": "time", "string": "text"}.get(column.type, "")
