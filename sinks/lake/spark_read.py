"""The lake in Spark: what is stored, the valid panes, and their state merged to any longer window.

    lake folder -> `stored_jobs` (names and recipes) -> `panes` (highest revision of each) -> `merged` -> `results` or a view

A recipe (`elf.jobmaster.plan.recipe`) computes outputs from merged state, in Spark SQL, so this module does not depend on plans.
Listing and reading of footers go through Hadoop's file systems in the driver's JVM: a lake may be on any of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from elf.errors import ElfError, UsageError
from elf.jobmaster.plan.spark_sql import identifier
from elf.jobmaster.values.zones import DAY_US
from elf.sinks.lake import layout
from elf.sinks.lake.every import Every, local_sql, utc_sql
from elf.sinks.lake.stored import EPOCH_DAY, Stored, days_span, longer_days

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START, END = "`#window_start`", "`#window_end`"
PANE_COLUMNS = (
    "_pane_start timestamp, _pane_end timestamp, _status string, _revision_epoch bigint, _revision_node string, "
    "_revision_n bigint, _digest string, _agents_reporting int, _agents_expected int, _lines_read bigint, "
    "_lines_parsed bigint, _lines_rejected bigint, _lines_late bigint, "
    "_not_converted map<string,bigint>, _empty boolean"
)


# What is stored.


def stored_jobs(spark: SparkSession, directory: str) -> list[Stored]:
    """All versions of all jobs, by job and age. Reads one footer for each. Raises UsageError if there is no lake."""
    root = _root(directory)
    try:
        found = [
            stored
            for job in _folders(spark, root, "")
            for table in _folders(spark, job, "columns-")
            for version in _folders(spark, table, "version=v")
            if (stored := _stored(spark, version)) is not None
        ]
    except ElfError:
        raise
    except Exception as error:  # py4j's: an unreachable store, a missing folder, no permission
        reason = str(getattr(error, "java_exception", error)).split("\n", maxsplit=1)[0][:300]
        raise UsageError(f"cannot read the lake {directory}: {reason}") from error
    if not found:
        raise UsageError(f"the lake {directory} is empty: no job has written a final window yet")
    return sorted(found, key=lambda s: (s.job, s.newest, s.version))


def local_folder(directory: str) -> Path | None:
    """The folder of a lake on this machine; None for a URL. Raises UsageError if there is no lake."""
    if urlsplit(directory).scheme and not Path(directory).exists():
        return None
    path = Path(directory)
    if not path.is_dir():
        raise UsageError(f"there is no lake at {directory}; a job writes one with --sink parquet:{directory}")
    if not layout.jobs(path):
        raise UsageError(f"the lake {directory} is empty: no job has written a final window yet")
    return path


def _root(directory: str) -> str:
    path = local_folder(directory)
    return directory.rstrip("/") if path is None else f"file:{path.absolute()}"


def _folders(spark: SparkSession, parent: str, prefix: str) -> list[str]:
    """Full paths of the folders in `parent` whose name begins with `prefix`, by name."""
    return [f"{parent}/{name}" for name in _names(spark, parent) if name.startswith(prefix)]


def _names(spark: SparkSession, parent: str) -> list[str]:
    path = _jvm(spark).org.apache.hadoop.fs.Path(parent)
    statuses = path.getFileSystem(_hadoop(spark)).listStatus(path)
    return sorted(status.getPath().getName() for status in statuses)


def _stored(spark: SparkSession, version: str) -> Stored | None:
    """A version, from the metadata of its newest file; None for a version without files."""
    days = {day: _files(spark, day) for day in _folders(spark, version, "date=")}
    for day, files in reversed(days.items()):
        if files:
            newest = max(files, key=lambda file: (file.until, file.path.name))
            about = _about(spark, f"{day}/{newest.path.name}")
            own_us = about["recipe"]["pane_us"]
            return Stored(
                about["job"],
                about["version"],
                version,
                f"{day[len(version) :]}/{newest.until:020}",
                about["columns"],
                about["recipe"],
                days_span(days, own_us),
                longer=longer_days(
                    ((each, layout.longest_us(found)) for each, found in days.items()), own_us
                ),
            )
    return None


def _files(spark: SparkSession, day: str) -> list[layout.LakeFile]:
    return [file for name in _names(spark, day) if (file := layout.parse(Path(name)))]


def _about(spark: SparkSession, file: str) -> dict[str, Any]:
    hadoop, jvm = _hadoop(spark), _jvm(spark)
    parquet = jvm.org.apache.parquet.hadoop
    source = parquet.util.HadoopInputFile.fromPath(jvm.org.apache.hadoop.fs.Path(file), hadoop)
    reader = parquet.ParquetFileReader.open(source)
    try:
        text = reader.getFileMetaData().getKeyValueMetaData().get("elf")
    finally:
        reader.close()
    about: dict[str, Any] = json.loads(text or "{}")
    if about.get("layout") != layout.LAYOUT or not about.get("recipe"):
        path, wrote = file.removeprefix("file:"), f"elf {about.get('elf_version')} wrote it"
        raise ElfError(f"{path} is not of this version of elf, layout {layout.LAYOUT}; {wrote}")
    return about


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _hadoop(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext._jsc
    return context.hadoopConfiguration()


# The valid panes.


def panes(spark: SparkSession, stored: Stored) -> DataFrame:
    """Every row of the valid panes, including empty panes: pane columns, `_date`, keys as `#k0`…, state by name.

    Of a pane that is in several files only the highest (revision, digest) is valid; of equal copies, that with the highest file
    name. A pane whose status is `withdrawn` is no result, and is left out. Filters on `_date` prune folders.
    """
    columns = ", ".join(f"{identifier(c['stored'])} {c['type']}" for c in stored.columns)
    schema = ", ".join([PANE_COLUMNS, *filter(None, [columns]), "date date"])
    frame = spark.read.schema(schema).parquet(re.sub(r"([\[\]{}*?\\])", r"\\\1", stored.folder))
    names = [column.split()[0] for column in PANE_COLUMNS.split(", ")]
    keys = [f"{identifier(c['stored'])} AS `#k{i}`" for i, c in enumerate(stored.keys)]
    states = [f"{unmerged_sql(c)} AS {identifier(c['name'])}" for c in stored.states]
    frame = frame.selectExpr(*names, "date AS _date", *keys, *states, "_metadata.file_name AS `#file`")
    files = [layout.parse(Path(unquote(file.rpartition("/")[2]))) for file in frame.inputFiles()]
    found = [file for file in files if file is not None]
    if len({file.pane_us for file in found}) > 1:
        frame = _longest(frame)
    if _overlap(found):
        frame = _highest(frame, stored)
    frame = frame.where("_status <> 'withdrawn'").drop("#file")
    for bound, at in zip((">=", "<"), stored.bounds, strict=True):
        if at is not None:
            day = date.fromordinal(EPOCH_DAY + at // DAY_US)
            frame = frame.where(f"unix_micros(_pane_start) {bound} {at} AND _date {bound[0]}= DATE '{day}'")
    return frame


def unmerged_sql(column: dict[str, str]) -> str:
    """SQL that turns a map into (key, value) pairs, which can be concatenated; other columns unchanged."""
    name = identifier(column["stored"])
    return f"map_entries({name})" if column["type"].startswith("map<") and column["role"] != "key" else name


def _overlap(files: Iterable[layout.LakeFile]) -> bool:
    """Whether any pane is in more than one file, by the files' names."""
    starts = Counter(start for file in files for start in file.panes)
    return any(count > 1 for count in starts.values())


def _longest(frame: DataFrame) -> DataFrame:
    """Of each day the longest panes that have groups, as `layout.longest_us`."""
    from pyspark.sql import functions as f

    length = "unix_micros(_pane_end) - unix_micros(_pane_start)"
    best = f"coalesce(max({length}) FILTER (WHERE NOT _empty), max({length}))"
    days = frame.groupBy("_date").agg(f.expr(best).alias("#longest"))
    kept = frame.join(f.broadcast(days), ["_date"]).where(f"{length} = `#longest`")
    return kept.drop("#longest")


def _highest(frame: DataFrame, stored: Stored) -> DataFrame:
    from pyspark.sql import functions as f

    place = ["_date", "_pane_start"] if stored.pane_us else []
    order = f.expr("struct(_revision_epoch, _revision_node, _revision_n, _digest, `#file`)")
    heads = frame.groupBy(*place).agg(f.max(order).alias("#head"))
    heads = heads.select(
        *place, f.col("`#head`.`#file`").alias("#file")
    ).cache()  # for all sections of a report
    return frame.join(f.broadcast(heads), [*place, "#file"])


# Merging.

_MERGED = {
    "min": "min({0})",
    "max": "max({0})",
    "distinct": "array_distinct(flatten(collect_list({0})))",
    "buckets": "flatten(collect_list({0}))",
    "counts": "flatten(collect_list({0}))",
    "exact_sum": "flatten(collect_list({0}))",
    "registers": "hll_union_agg({0})",
    "hashes": "theta_union_agg({0})",
}
_SUM = "sum({0})"
_WIDE_SUM = "CASE WHEN count({0}) = count(1) THEN sum({0}) END"
"""A NULL among 128-bit sums is a sum that did not fit: then the total is unknown."""


def merge_sql(column: dict[str, str]) -> str | None:
    """The SQL aggregate that merges a state column, or None if the column cannot be merged."""
    name = identifier(column["name"])
    if column["role"] == "sum":
        return (_WIDE_SUM if column["type"].startswith("decimal") else _SUM).format(name)
    template = _MERGED.get(column["role"])
    return template and template.format(name)


def with_windows(frame: DataFrame, stored: Stored, every: Every | None) -> DataFrame:
    """Rows with `#window_start` and `#window_end`: such windows, or those that are stored; sliding ones, of which a pane may have
    several."""
    window = stored.recipe["window"]
    if window is None:
        none = "CAST(NULL AS timestamp)"
        return frame.selectExpr("*", f"{none} AS {START}", f"{none} AS {END}")
    start, offsets = "unix_micros(_pane_start)", [(0, 0)]
    if every is not None:
        offsets = every.offsets(stored.span, every.us + DAY_US)  # bounds of windows may be outside
        local = local_sql(start, offsets)
        size, starts = every.us, f"{local} - pmod({local}, {every.us}L)"
    elif window["slide_us"] == window["size_us"]:
        if stored.longer:  # of these days the longer windows into which they were merged
            return frame.selectExpr("*", f"_pane_start AS {START}", f"_pane_end AS {END}")
        size, starts = window["size_us"], start
    else:
        size, slide = window["size_us"], window["slide_us"]
        low = f"{start} + {stored.pane_us}L - {size}L"
        first = f"{low} + pmod(- ({low}), {slide}L)"
        starts = f"explode(sequence({first}, {start} - pmod({start}, {slide}L), {slide}L))"
    frame = frame.selectExpr("*", f"{starts} AS `#start`")
    bounds = (utc_sql(local, offsets) for local in ("`#start`", f"(`#start` + {size}L)"))
    both = (f"timestamp_micros({sql}) AS {name}" for sql, name in zip(bounds, (START, END), strict=True))
    return frame.selectExpr("*", *both).drop("#start")


def merged(frame: DataFrame, by: Sequence[str], columns: Iterable[dict[str, str]]) -> DataFrame:
    """One row per distinct `by` (SQL names or aliased expressions), with these state columns merged under their names."""
    from pyspark.sql import functions as f

    rows = frame.where("NOT _empty")
    sums = [f.expr(sql).alias(c["name"]) for c in columns if (sql := merge_sql(c)) is not None]
    groups = rows.groupBy(*(f.expr(each) for each in by))
    return groups.agg(*(sums or [f.count(f.lit(1)).alias("#rows")]))


def group_by_job(frame: DataFrame, stored: Stored, every: Every | None) -> DataFrame:
    """The job's groups in each window, its own or one of `every`, with all state that can be merged."""
    rows = with_windows(frame, stored, every)
    window = stored.recipe["window"]
    if every is None and window and window["slide_us"] == window["size_us"]:
        return rows.where("NOT _empty")
    return merged(rows, [START, END, *(f"`#k{i}`" for i in range(len(stored.keys)))], stored.states)


def results(groups: DataFrame, stored: Stored) -> DataFrame:
    """The query's result from the groups: HAVING, ORDER BY and LIMIT within each window, then SELECT; windows in time order.

    Columns that cannot be merged are left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    recipe = stored.recipe
    if recipe["having"]:
        groups = groups.where(recipe["having"])
    order = [_order(item) for item in recipe["order"]]
    order = order or [f.col(f"`#k{i}`").asc_nulls_first() for i in range(len(stored.keys))]
    if recipe["limit"] is not None:
        rank = f.row_number().over(Window.partitionBy(START).orderBy(*(order or [f.lit(1)])))
        groups = groups.withColumn("#rank", rank).where(f"`#rank` <= {int(recipe['limit'])}")
        order = [f.col("`#rank`")]
    kept = [output for output in recipe["outputs"] if output["sql"]]
    ordered = groups.orderBy(f.col(START), *order)
    return ordered.selectExpr(*(f"{output['sql']} AS {identifier(output['name'])}" for output in kept))


def _order(item: dict[str, Any]) -> Any:
    from pyspark.sql import functions as f

    column = f.expr(item["sql"])
    if item["descending"]:
        return column.desc_nulls_first() if item["nulls_first"] else column.desc_nulls_last()
    return column.asc_nulls_first() if item["nulls_first"] else column.asc_nulls_last()


def view(groups: DataFrame, stored: Stored) -> DataFrame:
    """A job's view for the user's SQL: window_start, window_end, outputs, keys, state, version; the first of a name only."""
    columns = {"window_start": START, "window_end": END}
    outputs = [o for o in stored.recipe["outputs"] if o["sql"] and not o["type"].startswith("struct")]
    wanted = [(o["name"], o["sql"]) for o in outputs]
    wanted += [(key["name"], f"`#k{i}`") for i, key in enumerate(stored.keys)]
    wanted += [(c["name"], identifier(c["name"])) for c in stored.states if c["name"] in groups.columns]
    wanted += [(name, name) for name in ("_date",) if name in groups.columns]
    wanted.append(("_version", f"'{stored.version}'"))
    taken = set(columns)
    for name, sql in wanted:
        if name.lower() not in taken:
            taken.add(name.lower())
            columns[name] = sql
    return groups.selectExpr(*(f"{sql} AS {identifier(name)}" for name, sql in columns.items()))
