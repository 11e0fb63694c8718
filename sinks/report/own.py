"""Reports that users add: files `NAME.sql` of a folder, with a query over one view for each stored job, as of `--sql`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd, isfinite
from pathlib import Path
from typing import Any

import msgspec

from elf.errors import UsageError
from elf.jobmaster.values.zones import DAY_US
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.layout import HOUR_US
from elf.sinks.report.charts import COLUMNS_MAX
from elf.sinks.report.rows import Section

FOLDER = "reports"
"""Where a name that is no built-in report is looked for."""
SECOND_US = 1_000_000
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
    if kinds in (["time", "number"], ["text", "number"]) and all(_is_drawable(row[1]) for row in rows):
        if kinds[0] == "text":
            chart = "bars"
        elif all(row[0] is not None for row in rows):
            rows.sort()
            step_us = _step_of([row[0] for row in rows])
            chart = "columns" if step_us else ""
    return msgspec.structs.replace(section, rows=rows, chart=chart, step_us=step_us or section.step_us)


def _is_drawable(value: Any) -> bool:
    return value is not None and value >= 0 and isfinite(value)


def _step_of(times: Sequence[int]) -> int:
    """The longest step, in whole seconds, of which these ascending times are multiples apart; a day, if they are days of a zone
    whose clock changes. 0 if two are equal, or if the columns would be more than a chart has."""
    gaps = [b - a for a, b in pairwise(times)]
    if not gaps or min(gaps) <= 0:
        return 0
    is_daily = all(gap > HOUR_US and min(gap % DAY_US, -gap % DAY_US) <= HOUR_US for gap in gaps)
    step_us = DAY_US if is_daily else gcd(*gaps)
    fits = step_us % SECOND_US == 0 and sum(gaps) < COLUMNS_MAX * step_us
    return step_us if fits else 0


def _kind(column: ColumnInfo) -> str:
    if column.type in _NUMBERS or column.type.startswith("decimal("):
        return "number"
    return {"timestamp": "time", "string": "text"}.get(column.type, "")
