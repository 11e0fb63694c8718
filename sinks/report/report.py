"""`elf report`: queries over all that a lake stores: the built-in reports, any job in longer windows, or the user's own SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from elf.sinks.lake import spark_read
from elf.sinks.lake.every import Every, interval_us
from elf.sinks.report.output import html_file, write, write_html
from elf.sinks.report.run import NO_BOUNDS, Bounds, Run, one_line_errors


def report(
    lake: str,
    *,
    sql: str | None = None,
    params: Mapping[str, str] | None = None,
    every: str | None = None,
    master: str | None = None,
    output: str = "table",
    timezone: str = "UTC",
    bounds: Bounds = NO_BOUNDS,
    stdout: BinaryIO | None = None,
    notices: IO[str] | None = None,
) -> None:
    """Write a report of the lake at `lake` (a folder, or any URL that Spark reads) to `stdout`, or to an HTML file.

    sql: the user's own, over one view per job; params: the values of its parameters (`:name`). every: a length such as "1h": each
    job's result in windows of that length. timezone: whose days windows of days are, and of the functions of `sql` that have days
    and hours. bounds: only the stored windows that begin in [since, until), in microseconds.
    Without both: the built-in reports. `notices` (stderr) gets a line for each report that is left out.
    Spark is used for `sql`, with `master`, and for lakes that are not small folders of this machine (`local.SMALL_BYTES`).
    Raises UsageError (a wrong argument, an empty lake, an unknown job, a column that cannot be merged, no job that --every
    can merge), ElfError (no Spark).
    """
    longer = Every(interval_us(every), timezone) if every is not None else None
    target = html_file(output)
    folder = spark_read.local_folder(lake)  # a lake that is not there is refused before anything starts
    with _run(lake, folder, longer, timezone, sql, master, bounds, notices or sys.stderr) as run:
        if sql is not None:
            sections = iter([run.of_sql(sql, params or {})])
        elif every is not None and target is None:
            sections = run.of_jobs_alone(every)
        else:
            sections = run.of_lake()
        if target is not None:
            write_html(target, f"{lake}, times of {timezone}", sections, run.notes)
        else:
            write(sections, output, stdout or sys.stdout.buffer, single=sql is not None)


@contextmanager
def _run(
    lake: str,
    folder: Path | None,
    every: Every | None,
    zone: str,
    sql: str | None,
    master: str | None,
    bounds: Bounds,
    said: IO[str],
) -> Iterator[Run]:
    def say(text: str) -> None:
        print(f"elf: {text}", file=said)

    if folder is not None and master is None:
        from elf.sinks.report import local, local_read
        from elf.sinks.report.typos import refuse_typos

        if sql is not None:
            refuse_typos(sql, local_read.stored_jobs(folder))
        elif local.is_small(folder):
            yield local.LocalRun(folder, lake, every, zone, say, bounds)
            return
    from elf.sinks.report.spark import session

    spark = session(master, "elf report")
    with one_line_errors():
        run = Run(spark, lake, every, zone, say, bounds)
        spark.conf.set("spark.sql.session.timeZone", zone if sql is not None else "UTC")
        yield run
