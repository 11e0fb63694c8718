"""`elf report`: queries over all that a lake stores: the built-in reports, any job in longer windows, or the user's own SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import IO, BinaryIO

from elf.errors import UsageError
from elf.sinks.lake import spark_read
from elf.sinks.lake.every import Every, interval_us
from elf.sinks.report.output import target_of, write, write_html, write_parquet
from elf.sinks.report.own import FOLDER, OwnReport, own_report, own_reports
from elf.sinks.report.rows import Section
from elf.sinks.report.run import NAMES, NO_BOUNDS, TIMEZONE, Bounds, Run, one_line_errors


def report(
    lake: str,
    *,
    names: Sequence[str] = (),
    folder: Path | None = None,
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

    names: built-in reports, and files NAME.sql of `folder`, or of `reports`. folder: without names, all its reports follow the
    built-in ones. sql: the user's own, over one view per job; params: the values of parameters (`:name`) of it, and of files.
    every: a length such as "1h": each job's result in windows of that length. timezone: whose days windows of days are, and of
    the functions of SQL that have days and hours. bounds: only the stored windows that begin in [since, until), in microseconds.
    Without all of these: the built-in reports. `notices` (stderr) gets a line for each report that is left out.
    Spark is used for SQL, with `master`, and for lakes that are not small folders of this machine (`local.SMALL_BYTES`).

    Raises UsageError (a wrong argument, an empty lake, an unknown job or report, a column that cannot be merged, no job that
    --every can merge), ElfError (no Spark).
    """
    longer = Every(interval_us(every), timezone) if every is not None else None
    target = target_of(output)
    own = _own(names, folder)
    texts = {"--sql": sql} if sql is not None else {str(each.path): each.sql for each in own.values()}
    if every is not None and (builtin := [name for name in names if name not in own]):
        raise UsageError(f"--every: {builtin[0]} has steps of its own")
    local = spark_read.local_folder(lake)  # a lake that is not there is refused before anything starts
    with _run(lake, local, longer, timezone, texts, master, bounds, notices or sys.stderr) as run:
        if sql is not None:
            sections = iter([run.of_sql(sql, params or {})])
        elif names:
            sections = _named(run, names, own, params or {})
        elif every is not None and target.form != "html" and not own:
            sections = run.of_jobs_alone(every)
        else:
            sections = chain(run.of_lake(), run.of_files(tuple(own.values()), params or {}))
        if target.form == "html":
            write_html(target.path, f"{lake}, times of {timezone}", sections, run.notes)
        elif target.form == "parquet":
            paths = write_parquet(target.path, sections)
            run.note(f"{len(paths)} files written to {target.path}")
        else:
            single = sql is not None or len(names) == 1
            write(sections, target.form, stdout or sys.stdout.buffer, single=single)


def _own(names: Sequence[str], folder: Path | None) -> dict[str, OwnReport]:
    """The users' reports that are asked for. Raises UsageError for a name that is none, or a built-in report's."""
    there = {} if folder is None else own_reports(folder)
    if taken := sorted(there.keys() & set(NAMES)):
        raise UsageError(f"{there[taken[0]].path}: {taken[0]} is a built-in report; rename the file")
    if not names:
        return there
    found = {}
    for name in names:
        if name in NAMES:
            continue
        path = Path(folder or FOLDER, f"{name}.sql")
        if name not in there and not path.is_file():
            known = [*NAMES, *sorted(each.stem for each in path.parent.glob("*.sql"))]
            near = get_close_matches(name, known, 3) or known
            raise UsageError(f"no report {name}, since there is no {path}; there are {', '.join(near)}")
        found[name] = there[name] if name in there else own_report(path)
    return found


def _named(
    run: Run, names: Sequence[str], own: Mapping[str, OwnReport], params: Mapping[str, str]
) -> Iterator[Section]:
    for name in dict.fromkeys(names):
        yield from run.of_files([own[name]], params) if name in own else run.of_name(name)


@contextmanager
def _run(
    lake: str,
    folder: Path | None,
    every: Every | None,
    zone: str,
    sqls: Mapping[str, str],
    master: str | None,
    bounds: Bounds,
    said: IO[str],
) -> Iterator[Run]:
    def say(text: str) -> None:
        print(f"elf: {text}", file=said)

    if folder is not None and master is None:
        from elf.sinks.report import local, local_read
        from elf.sinks.report.typos import refuse_typos

        for where, sql in sqls.items():
            refuse_typos(sql, local_read.stored_jobs(folder), where)
        if not sqls and local.is_small(folder):
            yield local.LocalRun(folder, lake, every, zone, say, bounds)
            return
    from elf.sinks.report.spark import session

    spark = session(master, "elf report")
    with one_line_errors():
        run = Run(spark, lake, every, zone, say, bounds)
        spark.conf.set(TIMEZONE, zone if "--sql" in sqls else "UTC")
        yield run
