"""`elf.spark.read_logs`: log files as a DataFrame. The driver looks at the head of each file, the executors parse.

Rows come by `mapInArrow` over one number for each task, whose pieces travel with the function. A Python data source moves the
same batches at the same speed, does not learn which columns a query reads either, and needs a process of its own to be planned.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elf.agent.files import inputs
from elf.agent.formats.choice import FormatChoice, head_of
from elf.agent.formats.envelopes.wrapped import make_parser
from elf.agent.formats.fields import Format
from elf.agent.formats.own_keys import ANY
from elf.agent.spark.pieces import Piece, piece_bytes, pieces, tasks
from elf.errors import FormatError, UsageError
from elf.jobmaster.plan.plan import Column
from elf.jobmaster.plan.spark_sql import identifier
from elf.jobmaster.values.sql_types import STRING, SqlType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

PARALLEL = 8
"""Tasks at least, if files are large enough, where Spark does not say how many it can run."""
COUNTS = (
    "path string, format string, lines bigint, parsed bigint, rejected bigint, reasons map<string,bigint>, "
    "not_converted map<string,bigint>, samples array<struct<reason:string,expected:string,line:string>>"
)
SAMPLES_MAX = 3


class Logs(msgspec.Struct, frozen=True):
    """Log files as the driver found them. schema: of a query over all of them; with `ANY` if lines may have other keys."""

    formats: Mapping[str, Format]
    schema: Mapping[str, SqlType]
    bytes: int
    timezone: str

    def columns(self, asked: Iterable[str] | None) -> tuple[Column, ...]:
        """The columns asked for, without case; None: all. Raises UsageError."""
        known = {name.lower(): name for name in self.schema if name != ANY}
        if asked is None:
            return tuple(Column(name, self.schema[name]) for name in known.values() if name != "agent")
        found: dict[str, Column] = {}
        for name in asked:
            own = known.get(name.lower())
            if own is None and ANY not in self.schema:
                raise UsageError(
                    f"columns: these logs have no {name}; their columns are {', '.join(known.values())}"
                )
            found[name.lower()] = Column(own or name, self.schema[own] if own else STRING)
        return tuple(found.values())

    def tasks(self, spark: SparkSession) -> list[list[Piece]]:
        size = piece_bytes(self.bytes, _parallel(spark))
        return tasks(list(pieces(self.formats, size)), size)


def found(paths: Paths, format: str = "auto", timezone: str = "UTC") -> Logs:
    """Look at the files: names and globs, without copies of one another. Reads the first 64 KiB of each. Raises UsageError
    for files that are missing or cannot be read, FormatError for a format that is unknown or fits no line."""
    many = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    if not many:
        raise UsageError("no file to read; name one")
    names = inputs.distinct(inputs.expand([fspath(path) for path in many]), lambda _: None)
    files = [Path(name).absolute() for name in names]
    for path in files:
        if not path.is_file():
            raise UsageError(f"{path}: Spark reads files that each of its tasks can open; name a file")
    choice = FormatChoice(format, lambda _: None)
    heads = {str(path): head_of(path) for path in files}
    schema = choice.schema(heads)
    formats = {path: choice.of_head(path, head) for path, head in heads.items()}
    _must_fit(formats, heads)
    return Logs(formats, schema, sum(path.stat().st_size for path in files), timezone)


def read_logs(
    spark: SparkSession,
    paths: Paths,
    *,
    format: str = "auto",
    columns: Iterable[str] | None = None,
    timezone: str = "UTC",
) -> DataFrame:
    """The lines of log files as rows, with the columns and types that `elf run` gives a query, so that one text has one answer:

        read_logs(spark, "/logs/*.gz", columns=["time", "path", "status"]).createOrReplaceTempView("access")
        spark.sql("SELECT window, path, count(*) AS hits FROM access WHERE status >= 500 GROUP BY window(time, '1 day'), path")

    paths: files or globs, which each executor opens by the same path. format: as `elf run --format`. columns: the ones to parse;
    Spark cannot say which a query reads, so fewer are faster. Rejected lines are no rows; `count_lines` counts and shows them.
    The files are those of this call, up to their present ends. A file that cannot be read to its end, or is another one by then,
    fails the query.

    Raises UsageError, FormatError; the query, SourceError within an exception of Spark.
    """
    logs = found(paths, format, timezone)
    chosen = logs.columns(columns)
    schema = ", ".join(f"{identifier(column.name)} {column.type}" for column in chosen)
    work = logs.tasks(spark)

    def rows(numbers: Iterator[Any]) -> Iterator[Any]:
        from elf.agent.spark.batches import Task

        task = Task(chosen, timezone)
        for each in numbers:
            for number in each.column(0).to_pylist():
                yield from task.rows(work[number])

    return _numbers(spark, len(work)).mapInArrow(rows, schema)


def count_lines(
    spark: SparkSession, paths: Paths, *, format: str = "auto", timezone: str = "UTC"
) -> DataFrame:
    """What `read_logs` makes of each file, one row for each: its format, how many lines it has, how many were parsed and
    rejected, by reason, values that did not convert, by column, and some rejected lines. Reads the files once more."""
    logs = found(paths, format, timezone)
    work = logs.tasks(spark)
    keys = tuple(Column(name, type) for name, type in logs.schema.items() if name not in (ANY, "agent"))

    def counts(numbers: Iterator[Any]) -> Iterator[Any]:
        from elf.agent.spark.counts import counted

        for each in numbers:
            yield from counted(
                keys, timezone, [p for number in each.column(0).to_pylist() for p in work[number]]
            )

    from pyspark.sql import functions as f

    parts = _numbers(spark, len(work)).mapInArrow(counts, COUNTS)
    summed = ("lines", "parsed", "rejected")
    return parts.groupBy("path", "format").agg(
        *(f.sum(name).alias(name) for name in summed),
        *(_added(name) for name in ("reasons", "not_converted")),
        f.expr(f"slice(flatten(collect_list(samples)), 1, {SAMPLES_MAX}) AS samples"),
    )


def _added(name: str) -> Any:
    """SQL that adds maps of counts."""
    from pyspark.sql import functions as f

    entries = f"flatten(collect_list(map_entries({name})))"
    keys = f"array_distinct(transform({entries}, e -> e.key))"
    return f.expr(
        f"map_from_arrays({keys}, transform({keys}, k -> "
        f"aggregate(filter({entries}, e -> e.key = k), 0L, (total, e) -> total + e.value))) AS {name}"
    )


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """0 to count - 1, each in a task of its own."""
    return spark.range(0, count, 1, max(1, count))


def _parallel(spark: SparkSession) -> int:
    """How many tasks run at once; a guess where there is no JVM to ask, as with Spark Connect."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception:
        return PARALLEL


def _must_fit(formats: Mapping[str, Format], heads: Mapping[str, bytes]) -> None:
    """Raises FormatError if no line of any head can be parsed, and warns of each file whose head has none."""
    misfits = [path for path, head in heads.items() if head.strip() and not _fits(formats[path], head)]
    if misfits and len(misfits) == sum(bool(head.strip()) for head in heads.values()):
        raise FormatError(
            f"{misfits[0]}: no line fits the format {formats[misfits[0]].name}; name the log's format with format="
        )
    for path in misfits:
        warnings.warn(f"{path}: no line fits the format {formats[path].name}", RuntimeWarning, stacklevel=3)


def _fits(format: Format, head: bytes) -> bool:
    parser = make_parser(format, frozenset({"time"}))
    parser.begin(b"")
    batch = parser.parse(head[: head.rfind(b"\n") + 1] or head)
    return batch.rows > 0 or not batch.lines
