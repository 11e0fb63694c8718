"""One report in Spark: the stored jobs, which of them can answer what, and the sections.

`elf.sinks.report.local` has the same report without Spark: it finds, counts and merges in its own way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from elf.errors import ElfError, UsageError
from elf.jobmaster.plan.parameters import own_value
from elf.jobmaster.plan.spark_sql import identifier
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.values.zones import DAY_US
from elf.jobmaster.windows.result import COUNTERS, ColumnInfo
from elf.sinks.console.cells import iso
from elf.sinks.lake import spark_read
from elf.sinks.lake.every import Every, Span
from elf.sinks.lake.stored import Stored
from elf.sinks.lake.theta import Hashes, hashes_of, united
from elf.sinks.report import builtin, calendar, returning
from elf.sinks.report.change import before, compared, last_weeks
from elf.sinks.report.own import OwnReport, with_chart
from elf.sinks.report.rows import Rows, Section, rows_of

Bounds = tuple[int | None, int | None]
NO_BOUNDS: Bounds = (None, None)
Keys = frozenset[Any]
TIMEZONE = "spark.sql.session.timeZone"

_FURTHER = {"traffic_by_day": calendar.by_calendar, "traffic_by_hour": calendar.unusual_hours}
"""What follows from the rows of a report."""
INCOMPLETE = "incomplete"
"""The column that counts windows which lack an agent."""
STORED = "lake"
"""The name of the list of stored jobs."""
NAMES = (
    *(each.name for each in builtin.REPORTS),
    *calendar.NAMES["traffic_by_day"],
    *calendar.NAMES["traffic_by_hour"],
    returning.NAME,
    STORED,
)
"""Of all built-in reports."""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    """One report: the session, the stored jobs, and the notices. zone: of days. `say` prints one line. bounds: see `Stored`."""

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        every: Every | None,
        zone: str,
        say: Callable[[str], None],
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self.spark, self.lake, self.every, self.zone, self._say = spark, lake, every, zone, say
        self.notes: list[str] = []
        self.stored = self._within(self._find(), bounds)
        self._panes: dict[tuple[str, str, Bounds], DataFrame] = {}
        self._has_views = False
        self._misfits: dict[str, str] = {}
        self._counted: dict[tuple[str, str, Bounds], tuple[Any, ...]] = {}
        self._incomplete: dict[tuple[str, str, Bounds], list[Span]] = {}

    def _find(self) -> list[Stored]:
        return spark_read.stored_jobs(self.spark, self.lake)

    def _within(self, found: list[Stored], bounds: Bounds) -> list[Stored]:
        """The versions with these bounds. Raises UsageError if none has windows that could be bounded."""
        if bounds == NO_BOUNDS:
            return found
        timed = [replace(stored, bounds=bounds) for stored in found if stored.pane_us is not None]
        for job in sorted({stored.job for stored in found if stored.pane_us is None}):
            self.note(f"job {job} left out: its query has no windows, so it cannot be cut to a time")
        if not timed:
            raise UsageError(f"--since and --until: no job of {self.lake} has windows")
        return timed

    def note(self, text: str) -> None:
        """Print a notice, and keep it for the HTML."""
        self.notes.append(text)
        self._say(text)

    def panes(self, stored: Stored) -> DataFrame:
        key = (stored.job, stored.version, stored.bounds)
        if key not in self._panes:
            self._panes[key] = spark_read.panes(self.spark, stored)
        return self._panes[key]

    # The three kinds of report.

    def of_sql(self, sql: str, params: Mapping[str, str], where: str = "--sql") -> Section:
        """The user's SQL, with a temporary view for each job. where: what messages name."""
        if not self._has_views:
            self._make_views()
        values = {name: own_value(text) for name, text in params.items()}
        columns, rows = self._asked(lambda: rows_of(self.spark.sql(sql, args=values)), where)
        return Section("sql", "SQL", columns, rows)

    def _make_views(self) -> None:
        self._has_views = True
        for job in sorted({stored.job for stored in self.stored}):
            if (view := self._view(job)) is not None:
                view.createOrReplaceTempView(identifier(job))
            else:
                self.spark.catalog.dropTempView(job)  # an earlier report's of this session

    def of_files(self, reports: Sequence[OwnReport], params: Mapping[str, str]) -> Iterator[Section]:
        """The users' reports, in days and hours of the zone."""
        for each in reports:
            self.spark.conf.set(TIMEZONE, self.zone)
            try:
                found = with_chart(self.of_sql(each.sql, params, str(each.path)))
            finally:
                self.spark.conf.set(TIMEZONE, "UTC")
            yield replace(found, name=each.name, title=each.title)

    def of_jobs(self) -> Iterator[Section]:
        """The result of each version of each job, in windows of `every`."""
        for stored in self.stored:
            if self._can_merge(stored):
                columns, rows = self._marked(stored, *self._results(stored))
                yield Section(stored.job, f"{stored.job} ({stored.version})", columns, rows)

    def _results(self, stored: Stored) -> Rows:
        groups = spark_read.group_by_job(self.panes(stored), stored, self.every)
        return rows_of(spark_read.results(groups, stored))

    def _marked(
        self, stored: Stored, columns: tuple[ColumnInfo, ...], rows: Iterable[tuple[Any, ...]]
    ) -> Rows:
        """With a column of how many of the panes in each longer window lack an agent, if some do."""
        lacking = self._lacking(stored)
        at = next((i for i, column in enumerate(columns) if column.type == WINDOW_TYPE), None)
        if not lacking or at is None or self.every is None:
            return columns, rows
        counts = Counter(self.every.start_of(start) for start, _ in lacking)
        marked = ((*row, counts[row[at][0]]) for row in rows)
        return (*columns, ColumnInfo(INCOMPLETE, "bigint")), marked

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
        for source in self._sources():
            for each in builtin.REPORTS:
                yield from self._builtin(each, source)
            yield from self._returning(source)
        if self.every is not None:
            yield from self.of_jobs()
        yield self.holdings()

    def of_name(self, name: str) -> Iterator[Section]:
        """One built-in report, of each source. Raises UsageError if no stored job can answer it."""
        if name == STORED:
            yield self.holdings()
            return
        if name == returning.NAME:
            found = [section for source in self._sources() for section in self._returning(source)]
            if not found:
                raise UsageError(f"{name}: no job of {self.lake} can answer it; it needs {returning.NEEDED}")
            yield from found
            return
        each = next(
            each for each in builtin.REPORTS if name in (each.name, *calendar.NAMES.get(each.name, ()))
        )
        answered = False
        for source in self._sources():
            sections = list(self._builtin(each, source))
            for section in sections[:1] if name == each.name else sections[1:]:
                if name in (each.name, section.name):
                    answered = True
                    yield section
        if not answered:
            raise UsageError(
                f"{name}: no job of {self.lake} can answer it, or its time is too short; it needs {each.needed}"
            )

    def _sources(self) -> list[str]:
        return sorted({stored.recipe["source"] for stored in self.stored})

    def holdings(self) -> Section:
        """One row per job and version: panes, the time they cover, and their line counters."""
        columns = (
            ColumnInfo("job", "string"),
            ColumnInfo("version", "string"),
            ColumnInfo("panes", "bigint"),
            ColumnInfo("from", "timestamp"),
            ColumnInfo("until", "timestamp"),
            *(ColumnInfo(f"lines_{name}", "bigint") for name in COUNTERS),
            ColumnInfo(INCOMPLETE, "bigint"),
        )
        rows = [(s.job, s.version, *self._counters(s)) for s in self.stored if self._counters(s)[0]]
        if not rows and self.stored[0].bounds != NO_BOUNDS:
            self.note("no window of the lake begins in that time")
        return Section("lake", "What is stored", columns, rows)

    def _counters(self, stored: Stored) -> tuple[Any, ...]:
        """Panes, from, until, line counters and incomplete panes of a version, counted once."""
        key = (stored.job, stored.version, stored.bounds)
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

    def _lacking(self, stored: Stored) -> list[Span]:
        """The windows of a version that lack an agent, in order, looked for once; a notice says so."""
        key = (stored.job, stored.version, stored.bounds)
        if key not in self._incomplete:
            found = self._incomplete[key] = sorted(self._find_incomplete(stored))
            if found:
                lack = "window lacks" if len(found) == 1 else "windows lack"
                self.note(
                    f"job {stored.job}: {len(found):,} {lack} an agent's lines, from {iso(found[0][0])} to {iso(found[-1][1])}"
                )
        return self._incomplete[key]

    def _find_incomplete(self, stored: Stored) -> list[Span]:
        rows = self.panes(stored).where("_agents_reporting < _agents_expected AND _pane_start IS NOT NULL")
        times = rows.selectExpr("unix_micros(_pane_start)", "unix_micros(_pane_end)")
        return [(row[0], row[1]) for row in times.distinct().collect()]

    def _builtin(self, each: builtin.Report, source: str) -> Iterator[Section]:
        of_source = [s for s in self.stored if s.recipe["source"] == source]
        versions = builtin.chosen(each, of_source, self.zone)
        if not versions:
            if each.would:
                self.note(self._unanswered(each, of_source, source))
            return
        span = 0, 0
        if each.every_us is not None:
            counted = [counters for stored in versions if (counters := self._counters(stored))[0]]
            if not counted:
                return  # all panes were withdrawn
            span = min(row[1] for row in counted), max(row[2] for row in counted)
            stepped = builtin.in_steps(each, versions, *span)
            if stepped is None:
                return
            each = stepped
        several = len({stored.recipe["source"] for stored in self.stored}) > 1
        title, note = f"{each.title} of {source}" if several else each.title, f"From job {versions[0].job}."
        columns, rows = self._answer(each, versions)
        lacking = Counter[int]()
        for stored in versions:
            for start, _ in self._lacking(stored):
                lacking[Every(each.every_us or DAY_US, self.zone).start_of(start)] += 1
        if lacking and each.every_us is None:
            note += " Some windows lack an agent's lines."
        elif lacking:
            columns = (*columns, ColumnInfo(INCOMPLETE, "bigint"))
            rows = [(*row, lacking.get(row[0], 0)) for row in rows]
        if each.key is not None and each.every_us is None:
            columns, rows, note = self._with_change(each, versions, columns, list(rows), note)
        further = _FURTHER.get(each.name)
        if further is not None:
            rows = list(rows)
        yield Section(
            each.name,
            title,
            columns,
            rows,
            each.chart,
            note,
            each.every_us or DAY_US,
            lacking=tuple(sorted(lacking)) if each.every_us else (),
            adds_up=True,
        )
        if further is not None:
            for section in further(calendar.counts_of(rows), self.zone, span, note, lacking):
                yield replace(section, title=f"{section.title} of {source}" if several else section.title)

    def _with_change(
        self, each: builtin.Report, versions: Sequence[Stored], columns: Any, rows: Any, note: str
    ) -> tuple[Any, Any, str]:
        """A list of the most frequent keys with their change, where the lake is long enough, and its note."""
        whole = [replace(stored, bounds=NO_BOUNDS) for stored in versions]
        counted = [counters for stored in whole if stored.pane_us and (counters := self._counters(stored))[0]]
        if not counted or any(stored.misfit(Every(DAY_US, self.zone)) for stored in whole):
            return columns, rows, note
        stored = min(row[1] for row in counted), max(row[2] for row in counted)
        since, until = versions[0].bounds
        if since is None and until is None:
            weeks = last_weeks(stored, self.zone)
            spans = {} if weeks is None else dict(zip(("last_7_days", "days_before"), weeks, strict=True))
            about = "The change is that of the last seven whole days against the seven before."
        else:
            former = None if since is None else before(stored, since, until)
            spans = {} if former is None else {"before": former}
            about = "The change is that against the time before, as long."
        if not spans:
            return columns, rows, note
        keys = frozenset(row[0] for row in rows)
        counts: dict[str, dict[Any, int]] = {
            name: dict(self._answer(each, [replace(stored, bounds=span) for stored in whole], keys)[1])
            for name, span in spans.items()
        }
        return *compared(columns, rows, counts), f"{about} {note}"

    def _returning(self, source: str) -> Iterator[Section]:
        """New and returning visitors, if a job has their sets: of several the one with the fewest keys."""
        able = [
            (stored, column)
            for stored in self.stored
            if stored.recipe["source"] == source
            and stored.pane_us
            and (column := returning.set_column(stored)) is not None
            and stored.misfit(Every(DAY_US, self.zone)) is None
        ]
        if not able:
            return
        job = min(able, key=lambda each: (len(each[0].keys), each[0].job))[0].job
        days: dict[int, Hashes] = {}
        for stored, column in able:
            if stored.job == job:
                self._lacking(stored)
                for day, hashes in self._sets_by_day(stored, column):
                    days[day] = united(days[day], hashes) if day in days else hashes
        section = returning.by_week(days, self.zone, f"From job {job}.")
        several = len(self._sources()) > 1
        yield replace(section, title=f"{section.title} of {source}") if several else section

    def _sets_by_day(self, stored: Stored, column: str) -> Iterator[tuple[int, Hashes]]:
        """(begin of the day, its set)"""
        rows = spark_read.with_windows(self.panes(stored), stored, Every(DAY_US, self.zone))
        states = [each for each in stored.states if each["name"] == column]
        frame = spark_read.merged(rows, [f"{spark_read.START} AS day"], states)
        for day, sketch in frame.selectExpr("unix_micros(day)", identifier(column)).toLocalIterator():
            yield day, hashes_of(bytes(sketch))

    def _answer(self, each: builtin.Report, versions: Sequence[Stored], keys: Keys | None = None) -> Rows:
        """The rows of a report; of these keys alone, unless None."""
        parts = [(stored, self.panes(stored)) for stored in versions]
        return rows_of(builtin.frame(each, parts, self.zone, keys))

    def _unanswered(self, each: builtin.Report, versions: Sequence[Stored], source: str) -> str:
        """Why no version can answer the report: most have other keys; some have only panes that are too long for the zone."""
        as_written = [replace(stored, longer=()) for stored in versions]
        for found in builtin.chosen(each, as_written, "UTC"):
            reason = versions[as_written.index(found)].misfit(Every(each.every_us or DAY_US, self.zone))
            return f"{each.title} left out: job {found.job}: {reason}"
        return (
            f"no stored job of {source} can answer {each.title!r}; a job with this query could: {each.would}"
        )

    # Which versions can be merged.

    def _can_merge(self, stored: Stored) -> bool:
        recipe = stored.recipe
        if self.every is not None and (misfit := stored.misfit(self.every)) is not None:
            self.note(f"job {stored.job} left out: {misfit}")
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

    def _view(self, job: str) -> DataFrame | None:
        """The view of a job: all versions that have the same columns and types as the newest. None if `every` does not fit, or if
        its sliding windows are not stored any more."""
        versions = [stored for stored in self.stored if stored.job == job]
        for stored in versions:
            if stored.pane_us and (misfit := self._view_misfit(stored)):
                self._misfits[identifier(job).lower()] = f"job {job}: {misfit}"
                return None
        for stored in versions:
            self._lacking(stored)
        frames = [self._version_view(stored) for stored in reversed(versions)]
        alike = [frame for frame in frames if frame.dtypes == frames[0].dtypes]
        if len(alike) < len(frames):
            count = len(frames) - len(alike)
            self.note(f"job {job}: {count} older version(s) with other columns are not in its view")
        view = alike[0]
        for frame in alike[1:]:
            view = view.unionByName(frame)
        return view

    def _view_misfit(self, stored: Stored) -> str | None:
        if self.every is not None:
            return stored.misfit(self.every)
        misfit = stored.own_misfit() if stored.slides else None
        return misfit and f"{misfit}, or --every for longer windows"

    def _version_view(self, stored: Stored) -> DataFrame:
        every = self.every if stored.pane_us is not None else None
        groups = spark_read.group_by_job(self.panes(stored), stored, every)
        return spark_read.view(groups, stored)

    def _asked(self, query: Callable[[], Rows], where: str) -> Rows:
        """Run the user's SQL; an error of Spark becomes one line."""
        from pyspark.errors import AnalysisException, ParseException

        try:
            return query()
        except ParseException as error:
            raise UsageError(f"{where}: {_first_line(error)}") from error
        except AnalysisException as error:
            raise UsageError(self._explained(error, where)) from error

    def _explained(self, error: Any, where: str) -> str:
        condition = error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
        if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
            if misfit := self._misfits.get(parameters.get("relationName", "").lower()):
                return misfit
            jobs = ", ".join(sorted({stored.job for stored in self.stored}))
            return f"{where}: no job {parameters.get('relationName', '')} in the lake; its jobs are {jobs}"
        if condition == "UNBOUND_SQL_PARAMETER":
            name = parameters.get("name", "")
            return f"{where}: the query has the parameter :{name}; give --param {name}=VALUE"
        if condition.startswith("UNRESOLVED_COLUMN"):
            name = parameters.get("objectName", "").rpartition(".")[2].strip("`")
            for stored in self.stored:
                for output in stored.recipe["outputs"]:
                    if output["name"].lower() == name.lower() and output["refused"]:
                        return f"{where}: column {name} of job {stored.job}: {output['refused']}"
        return f"{where}: {_first_line(error)}"


def _first_line(error: Any) -> str:
    """The first line of Java's message if there is one: py4j's own begins with the name of the call that failed."""
    return str(getattr(error, "java_exception", error)).strip().split("\n", maxsplit=1)[0][:400]
