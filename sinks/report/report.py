"""`elf report`: queries over all that a lake stores: the built-in reports, any job in longer windows, or the user's own SQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from elf.errors import ElfError, UsageError
from elf.jobmaster.plan.parameters import own_value
from elf.jobmaster.plan.spark_sql import identifier
from elf.jobmaster.windows.result import COUNTERS, ColumnInfo
from elf.sinks.lake import spark_read
from elf.sinks.lake.spark_read import Stored
from elf.sinks.report import builtin
from elf.sinks.report.output import html_file, write, write_html
from elf.sinks.report.rows import Section, section

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def report(
    lake: str,
    *,
    sql: str | None = None,
    params: Mapping[str, str] | None = None,
    every: str | None = None,
    master: str | None = None,
    output: str = "table",
    timezone: str = "UTC",
    stdout: BinaryIO | None = None,
    notices: IO[str] | None = None,
) -> None:
    """Write a report of the lake at `lake` (a folder, or any URL that Spark reads) to `stdout`, or to an HTML file.

    sql: the user's own, over one view per job; params: the values of its parameters (`:name`). every: a length such as "1h": each
    job's result in windows of that length. timezone: of the functions of `sql` that have days and hours.
    Without both: the built-in reports. `notices` (stderr) gets a line for each report that is left out.
    Raises UsageError (a wrong argument, an empty lake, an unknown job, a column that cannot be merged, no job that --every
    can merge), ElfError (no Spark).
    """
    every_us = spark_read.interval_us(every) if every is not None else None
    target = html_file(output)
    from elf.sinks.report.spark import session

    spark = session(master, "elf report")
    said = notices or sys.stderr
    with one_line_errors():
        run = Run(spark, lake, every_us, lambda text: print(f"elf: {text}", file=said))
        spark.conf.set("spark.sql.session.timeZone", timezone if sql is not None else "UTC")
        if sql is not None:
            sections = iter([run.of_sql(sql, params or {})])
        elif every is not None and target is None:
            sections = run.of_jobs_alone(every)
        else:
            sections = run.of_lake()
        if target is not None:
            write_html(target, lake, sections, run.notes)
        else:
            write(sections, output, stdout or sys.stdout.buffer, single=sql is not None)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise errors of Spark as an ElfError of one line."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if "FileNotFoundException" in str(error):
            raise ElfError("the lake was compacted while it was read; run the report again") from error
        raise ElfError(f"Spark: {_first_line(error)}") from error


class Run:
    """One report: the session, the stored jobs, and the notices. `say` prints one line."""

    def __init__(
        self, spark: SparkSession, lake: str, every_us: int | None, say: Callable[[str], None]
    ) -> None:
        self.spark, self.lake, self.every_us, self._say = spark, lake, every_us, say
        self.stored = spark_read.stored_jobs(spark, lake)
        self.notes: list[str] = []
        self._panes: dict[tuple[str, str], DataFrame] = {}
        self._counted: dict[tuple[str, str], tuple[Any, ...]] = {}

    def note(self, text: str) -> None:
        """Print a notice, and keep it for the HTML."""
        self.notes.append(text)
        self._say(text)

    def panes(self, stored: Stored) -> DataFrame:
        key = (stored.job, stored.version)
        if key not in self._panes:
            self._panes[key] = spark_read.panes(self.spark, stored)
        return self._panes[key]

    # The three kinds of report.

    def of_sql(self, sql: str, params: Mapping[str, str]) -> Section:
        """The user's SQL, with a temporary view for each job."""
        for job in sorted({stored.job for stored in self.stored}):
            self._view(job).createOrReplaceTempView(identifier(job))
        values = {name: own_value(text) for name, text in params.items()}
        return self._asked(lambda: section("sql", "SQL", self.spark.sql(sql, args=values)))

    def of_jobs(self) -> Iterator[Section]:
        """The result of each version of each job, in windows of `every_us`."""
        for stored in self.stored:
            if self._can_merge(stored):
                groups = spark_read.group_by_job(self.panes(stored), stored, self.every_us)
                yield section(
                    stored.job, f"{stored.job} ({stored.version})", spark_read.results(groups, stored)
                )

    def of_jobs_alone(self, every: str) -> Iterator[Section]:
        """Like `of_jobs`, for a report of nothing else. Raises UsageError if all jobs are left out."""
        answered = False
        for each in self.of_jobs():
            answered = True
            yield each
        if not answered:
            jobs = ", ".join(sorted({stored.job for stored in self.stored}))
            raise UsageError(
                f"--every {every}: no job of {self.lake} can be merged, all are left out: {jobs}"
            )

    def of_lake(self) -> Iterator[Section]:
        """The built-in reports, each job in longer windows where requested, and the list of stored jobs."""
        for source in sorted({stored.recipe["source"] for stored in self.stored}):
            for each in builtin.REPORTS:
                yield from self._builtin(each, source)
        if self.every_us is not None:
            yield from self.of_jobs()
        yield self.holdings()

    def holdings(self) -> Section:
        """One row per job and version: panes, the time they cover, and their line counters."""
        columns = (
            ColumnInfo("job", "string"),
            ColumnInfo("version", "string"),
            ColumnInfo("panes", "bigint"),
            ColumnInfo("from", "timestamp"),
            ColumnInfo("until", "timestamp"),
            *(ColumnInfo(f"lines_{name}", "bigint") for name in COUNTERS),
            ColumnInfo("incomplete", "bigint"),
        )
        rows = [(s.job, s.version, *self._counters(s)) for s in self.stored if self._counters(s)[0]]
        return Section("lake", "What is stored", columns, rows)

    def _counters(self, stored: Stored) -> tuple[Any, ...]:
        """Panes, from, until, line counters and incomplete panes of a version, counted once."""
        key = (stored.job, stored.version)
        if key not in self._counted:
            self._counted[key] = self._count(stored)
        return self._counted[key]

    def _count(self, stored: Stored) -> tuple[Any, ...]:
        names = [f"_lines_{name}" for name in COUNTERS]
        once = self.panes(stored).dropDuplicates(["_pane_start"])
        row = once.selectExpr(
            "count(1)",
            "unix_micros(min(_pane_start))",
            "unix_micros(max(_pane_end))",
            *(f"sum({name})" for name in names),
            "count_if(_agents_reporting < _agents_expected)",
        ).first()
        return tuple(row or ())

    def _builtin(self, each: builtin.Report, source: str) -> Iterator[Section]:
        versions = builtin.chosen(each, [s for s in self.stored if s.recipe["source"] == source])
        if not versions:
            self.note(
                f"no stored job of {source} can answer {each.title!r}; a job with this query could: {each.would}"
            )
            return
        if each.every_us is not None:
            counted = [counters for stored in versions if (counters := self._counters(stored))[0]]
            if not counted:
                return  # all panes were withdrawn
            start, end = min(row[1] for row in counted), max(row[2] for row in counted)
            stepped = builtin.in_steps(each, versions, start, end)
            if stepped is None:
                return
            each = stepped
        several = len({stored.recipe["source"] for stored in self.stored}) > 1
        frame = builtin.frame(each, [(stored, self.panes(stored)) for stored in versions])
        yield section(
            each.name,
            f"{each.title} of {source}" if several else each.title,
            frame,
            each.chart,
            f"From job {versions[0].job}.",
            each.every_us or builtin.DAY_US,
        )

    # Which versions can be merged.

    def _can_merge(self, stored: Stored) -> bool:
        recipe, every_us = stored.recipe, self.every_us or 0
        if stored.pane_us is None:
            self.note(f"job {stored.job} left out: its query has no windows to merge into longer ones")
        elif not spark_read.every_fits(stored, every_us):
            seconds = stored.pane_us / spark_read.SECOND_US
            self.note(
                f"job {stored.job} left out: --every must be a multiple of {seconds:g} s, the length of its panes"
            )
        elif recipe["refused"]:
            self.note(f"job {stored.job} left out: {recipe['refused']}")
        elif not any(output["sql"] for output in recipe["outputs"]):
            self.note(f"job {stored.job} left out: {recipe['outputs'][0]['refused']}")
        else:
            for output in recipe["outputs"]:
                if not output["sql"]:
                    self.note(f"column {output['name']} of job {stored.job} left out: {output['refused']}")
            return True
        return False

    def _view(self, job: str) -> DataFrame:
        """The view of a job: all versions that have the same columns and types as the newest."""
        versions = [stored for stored in self.stored if stored.job == job]
        frames = [self._version_view(stored) for stored in reversed(versions)]
        alike = [frame for frame in frames if frame.dtypes == frames[0].dtypes]
        if len(alike) < len(frames):
            count = len(frames) - len(alike)
            self.note(f"job {job}: {count} older version(s) with other columns are not in its view")
        view = alike[0]
        for frame in alike[1:]:
            view = view.unionByName(frame)
        return view

    def _version_view(self, stored: Stored) -> DataFrame:
        every_us = self.every_us
        if every_us is not None and not spark_read.every_fits(stored, every_us):
            if stored.pane_us is not None:
                seconds = stored.pane_us / spark_read.SECOND_US
                raise UsageError(
                    f"job {stored.job}: --every must be a multiple of {seconds:g} s, the length of its panes"
                )
            every_us = None
        groups = spark_read.group_by_job(self.panes(stored), stored, every_us)
        return spark_read.view(groups, stored)

    def _asked(self, query: Callable[[], Section]) -> Section:
        """Run the user's SQL; an error of Spark becomes one line."""
        from pyspark.errors import AnalysisException, ParseException

        try:
            return query()
        except ParseException as error:
            raise UsageError(f"--sql: {_first_line(error)}") from error
        except AnalysisException as error:
            raise UsageError(self._explained(error)) from error

    def _explained(self, error: Any) -> str:
        condition = error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
        if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
            jobs = ", ".join(sorted({stored.job for stored in self.stored}))
            return f"--sql: no job {parameters.get('relationName', '')} in the lake; its jobs are {jobs}"
        if condition.startswith("UNRESOLVED_COLUMN"):
            name = parameters.get("objectName", "").rpartition(".")[2].strip("`")
            for stored in self.stored:
                for output in stored.recipe["outputs"]:
                    if output["name"].lower() == name.lower() and output["refused"]:
                        return f"--sql: column {name} of job {stored.job}: {output['refused']}"
        return f"--sql: {_first_line(error)}"


def _first_line(error: Any) -> str:
    """The first line of Java's message if there is one: py4j's own begins with the name of the call that failed."""
    return str(getattr(error, "java_exception", error)).strip().split("\n", maxsplit=1)[0][:400]
