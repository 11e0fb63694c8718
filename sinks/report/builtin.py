"""The built-in reports: the usual questions of operators, each answered from a stored job that has what it needs.

A report needs the state of all lines (a job with a WHERE does not cover all traffic), and a key that is a plain column of the
log. A report that no job can answer is left out, with a notice that gives a query whose job could answer it. If a lake is too
short for hours and days, the reports use shorter steps (`in_steps`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from elf.jobmaster.plan.spark_sql import identifier
from elf.jobmaster.values.zones import DAY_US
from elf.sinks.lake import layout
from elf.sinks.lake.every import Every
from elf.sinks.lake.spark_read import START, merged, with_windows
from elf.sinks.lake.stored import Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOP_PATHS = 20
SHORT_US = 3 * layout.HOUR_US
"""Lakes that span less than this are not reported by hour and day: charts would have one or two bars."""
POINTS_MIN = 5
STEPS = (
    (layout.HOUR_US, "hour"),
    (600_000_000, "10 minutes"),
    (60_000_000, "minute"),
    (10_000_000, "10 seconds"),
    (5_000_000, "5 seconds"),
    (1_000_000, "second"),
)
"""The steps for a short lake, longest first, with the names that titles use."""
ROWS_MAX = 100_000
"""Ten years of hours. With a limit Spark sorts in one pass; without one it first samples, for a sort across machines."""


class Report(msgspec.Struct, frozen=True):
    """A report: SQL over the merged sums `requests` and `bytes`, grouped by time and `key`.

    every_us: the length of a step; None: one row per key over all time. chart: the kind of its chart in HTML. would: a query
    whose job could answer it; "" for a report of which few lakes have the key, so that it is no news that one has not.
    """

    name: str
    title: str
    every_us: int | None
    key: str | None  # the log's column
    needs: tuple[str, ...]  # "requests", "bytes"
    by: tuple[str, ...]  # SQL of the groups, over `start` and `key`
    select: tuple[str, ...]  # SQL of the columns, over the groups, `requests` and `bytes`
    order: str
    chart: str
    would: str
    limit: int = ROWS_MAX
    more: tuple[str, ...] = ()  # further SQL aggregates over `key` and the measures

    @property
    def needed(self) -> str:
        """What a job's query needs to answer it."""
        measures = " and ".join({"requests": "count(*)", "bytes": "sum(bytes)"}[need] for need in self.needs)
        return measures + (f" by {self.key}" if self.key else "") + ", without WHERE"


_HOUR, _DAY = ("start AS hour",), ("start AS day",)
_SHARE = "CAST(100 * {0} / requests AS decimal(5,2))"
_AMONG = "coalesce(sum(requests) FILTER (WHERE key BETWEEN {0} AND {1}), 0L) AS {2}"
_COUNT = (
    "SELECT window, {0}count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY window(time, '1 minute'){1}"
)
_BY_STATUS = _COUNT.format("status, ", ", status")
_ALL, _BY_PATH = _COUNT.format("", ""), _COUNT.format("path, ", ", path")

REPORTS = (
    Report(
        "traffic_by_hour", "Traffic by hour", layout.HOUR_US, None, ("requests",), _HOUR, ("hour", "requests"),
        "hour", "columns", _ALL,
    ),
    Report(
        "traffic_by_day", "Traffic by day", DAY_US, None, ("requests",), _DAY, ("day", "requests"),
        "day", "columns", _ALL,
    ),
    Report(
        "status_classes", "Status classes", layout.HOUR_US, "status", ("requests",),
        ("start AS hour", "CASE WHEN key BETWEEN 100 AND 599 THEN concat(key div 100, 'xx') ELSE 'other' END AS class"),
        ("hour", "class", "requests"), "hour, class", "stacked", _BY_STATUS,
    ),
    Report(
        "error_rate", "Error rate", layout.HOUR_US, "status", ("requests",), ("start AS hour",),
        (
            "hour", "requests", "client_errors", "server_errors",
            _SHARE.format("client_errors") + " AS client_error_percent",
            _SHARE.format("server_errors") + " AS server_error_percent",
        ),
        "hour", "lines", _BY_STATUS,
        more=(_AMONG.format(400, 499, "client_errors"), _AMONG.format(500, 599, "server_errors")),
    ),
    Report(
        "top_paths", "Top paths", None, "path", ("requests",), ("key AS path",), ("path", "requests"),
        "requests DESC, path", "bars", _BY_PATH, TOP_PATHS,
    ),
    Report(
        "bytes_by_hour", "Bytes sent by hour", layout.HOUR_US, None, ("bytes",), _HOUR, ("hour", "bytes"),
        "hour", "columns", _ALL,
    ),
    Report(
        "bytes_by_day", "Bytes sent by day", DAY_US, None, ("bytes",), _DAY, ("day", "bytes"),
        "day", "columns", _ALL,
    ),
    *(
        Report(
            name, title, None, key, ("requests",), (f"key AS {key}",), (key, "requests"),
            f"requests DESC, {key}", "bars", "", TOP_PATHS,
        )
        for name, title, key in (
            ("top_clients", "Top clients", "client_ip"),
            ("top_referrers", "Top referrers", "referer"),
            ("top_agents", "Top user agents", "user_agent"),
        )
    ),
)  # fmt: skip


def measure(stored: Stored, needed: str) -> dict[str, Any] | None:
    """The job's aggregate that is `requests` (count(*)) or `bytes` (sum(bytes)) over all lines, or None."""
    function, column = {"requests": ("count", "*"), "bytes": ("sum", "bytes")}[needed]
    for aggregate in stored.recipe["aggregates"]:
        same = aggregate["function"] == function and aggregate["input"] == column
        if same and not aggregate["filtered"] and aggregate["sql"]:
            found: dict[str, Any] = aggregate
            return found
    return None


def key_index(stored: Stored, column: str) -> int | None:
    """Which key of the job is that column of the log, or None."""
    sources = [key["source"] for key in stored.recipe["keys"]]
    return sources.index(column) if column in sources else None


def can_answer(report: Report, stored: Stored, zone: str) -> bool:
    """Whether this version of a job has the measures, the key and the panes that the report needs."""
    return (
        not stored.recipe["filtered"]
        and (report.every_us is None or stored.misfit(Every(report.every_us, zone)) is None)
        and (report.key is None or key_index(stored, report.key) is not None)
        and all(measure(stored, needed) for needed in report.needs)
    )


def chosen(report: Report, versions: Sequence[Stored], zone: str) -> list[Stored]:
    """The versions that can answer the report, with days of `zone`; of one job: that with the fewest keys (the least to read), of
    these the first by name."""
    able = [stored for stored in versions if can_answer(report, stored, zone)]
    if not able:
        return []
    best = min(able, key=lambda s: (len(s.keys), s.job))
    return [stored for stored in able if stored.job == best.job]


def in_steps(report: Report, versions: Sequence[Stored], start: int, end: int) -> Report | None:
    """The report in steps that suit panes of these versions from `start` to `end` (microseconds).

    If the lake is shorter than `SHORT_US`, a report by hour uses the longest of `STEPS` that consists of whole panes and gives
    `POINTS_MIN` points, else the shortest that consists of whole panes; its column `hour` becomes `time`. A report by day would
    have one point: returns None.
    """
    steps = [step for step in STEPS if not any(stored.misfit(Every(step[0])) for stored in versions)]
    if report.every_us is None or end - start >= SHORT_US or not steps:
        return report
    if report.every_us == DAY_US:
        return None
    enough = (step for step in steps if (end - 1) // step[0] - start // step[0] + 1 >= POINTS_MIN)
    every_us, words = next(enough, steps[-1])
    if every_us == report.every_us:
        return report
    return msgspec.structs.replace(
        report,
        name=report.name.replace("hour", words.replace(" ", "_")),
        title=report.title.replace("hour", words),
        every_us=every_us,
        by=tuple(sql.replace("hour", "time") for sql in report.by),
        select=tuple(sql.replace("hour", "time") for sql in report.select),
        order=report.order.replace("hour", "time"),
    )


def frame(
    report: Report,
    parts: Iterable[tuple[Stored, DataFrame]],
    zone: str,
    keys: Collection[str | None] | None = None,
) -> DataFrame:
    """The report's rows, from the panes of the versions that `chosen` gave; of these keys alone, unless None."""
    rows = reduce(lambda a, b: a.unionByName(b), [_measures(report, *part, zone) for part in parts])
    sums = [f"sum({needed}) AS {needed}" for needed in report.needs]
    from pyspark.sql import functions as f

    if keys is not None:
        among = f.col("key").isin([key for key in keys if key is not None])
        rows = rows.where(among | f.col("key").isNull() if None in keys else among)
    grouped = rows.groupBy(*map(f.expr, report.by)).agg(*map(f.expr, [*sums, *report.more]))
    ordered = grouped.orderBy(*(_ordering(item) for item in report.order.split(", ")))
    return ordered.limit(report.limit).selectExpr(*report.select)


def _ordering(item: str) -> Any:
    from pyspark.sql import functions as f

    name, _, direction = item.partition(" ")
    return f.desc(name) if direction == "DESC" else f.asc(name)


def _measures(report: Report, stored: Stored, panes: DataFrame, zone: str) -> DataFrame:
    """`start`, `key`, and the measures of one version, merged."""
    index = key_index(stored, report.key) if report.key else None
    key = f"`#k{index}`" if index is not None else "CAST(NULL AS string)"
    found = {needed: measure(stored, needed) or {} for needed in report.needs}
    columns = {name for aggregate in found.values() for name in aggregate["columns"]}
    states = [column for column in stored.states if column["name"] in columns]
    rows = with_windows(panes, stored, Every(report.every_us, zone)) if report.every_us else panes
    start = START if report.every_us else "CAST(NULL AS timestamp)"
    groups = merged(rows, [f"{start} AS start", f"{key} AS key"], states)
    return groups.selectExpr("start", "key", *(f"{a['sql']} AS {identifier(n)}" for n, a in found.items()))
