"""A report's sections as text (tables, JSON lines, CSV), as one HTML file, or as a folder of Parquet files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

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


class Target(NamedTuple):
    """Where a report goes. form: table, json or csv, to stdout; html, to a file; parquet, to files of a folder."""

    form: str
    path: str = ""


def target_of(output: str) -> Target:
    """Raises UsageError for an unknown output, for a missing folder, and for Parquet without pyarrow."""
    if output in ("table", "json", "csv"):
        return Target(output)
    form, _, path = output.partition(":")
    if form not in ("html", "parquet") or not path:
        raise UsageError(f"--output {output!r} is none of table, json, csv, html:FILE and parquet:DIR")
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if form == "parquet" and Path(path).exists() and not Path(path).is_dir():
        raise UsageError(f"cannot write {path}: it is a file, and reports as Parquet need a folder")
    if form == "parquet" and not find_spec("pyarrow"):
        raise UsageError("--output parquet needs pyarrow: pip install 'elf-mesh[lake]'")
    return Target(form, path)


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


def write_parquet(folder: str, sections: Iterable[Section]) -> list[str]:
    """Write each section to FOLDER/NAME.parquet, whole or not at all; its title is in the file's metadata. Returns the paths.

    Raises UsageError if it fails.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from elf.sinks.results.arrow import table as arrow_table

    written: list[str] = []
    try:
        Path(folder).mkdir(exist_ok=True)
        for section in sections:
            names = [
                f"{section.name}.parquet",
                *(f"{section.name}~{n}.parquet" for n in range(2, len(written) + 2)),
            ]
            path = next(
                path for name in names if (path := str(Path(folder, quote(name, safe="~ ")))) not in written
            )
            columns = tuple(
                replace(each, name=name)
                for each, name in zip(section.columns, _distinct_names(section.columns), strict=True)
            )
            rows = arrow_table(columns, [list(section.rows)]).replace_schema_metadata(
                {"title": section.title}
            )
            with unfinished(Path(path)) as file:
                pq.write_table(rows, file, compression="zstd")
            written.append(path)
    except (OSError, pa.ArrowException) as error:
        why = (
            error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        )
        raise UsageError(f"cannot write {folder}: {why}") from error
    return written


def _distinct_names(columns: Sequence[ColumnInfo]) -> list[str]:
    """The columns' names, with a number behind one that is there already."""
    names: list[str] = []
    for column in columns:
        name, n = column.name, 1
        while name in names:
            name, n = f"{column.name}_{n}", n + 1
        names.append(name)
    return names


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
        with unfinished(path.resolve()) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error


@contextmanager
def unfinished(path: Path) -> Iterator[BinaryIO]:
    """A file that appears as `path` when the block ends, and not at all if it fails. Raises OSError."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


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
