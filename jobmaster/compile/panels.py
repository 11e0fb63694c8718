"""The queries of `elf run --report all`: each is a panel of the page, a plain query over the source `access`."""

from __future__ import annotations

import msgspec

from elf.jobmaster.values.zones import DAY_US

STEPS = (
    (1_000_000, "1 second", "second"),
    (10_000_000, "10 seconds", "10 seconds"),
    (60_000_000, "1 minute", "minute"),
    (600_000_000, "10 minutes", "10 minutes"),
    (3_600_000_000, "1 hour", "hour"),
    (DAY_US, "1 day", "day"),
    (7 * DAY_US, "7 days", "7 days"),
)
"""Lengths of steps in microseconds, as in `window(time, …)`, and as titles say them; the shortest first."""
POINTS_MAX = 200
TOP = 15
ROBOT = "(?i)bot|crawl|spider|slurp|curl|wget|python|scrapy|http.?client"
"""User agents of programs, by the words that they use for themselves. Who pretends to be a browser is not found."""

_CLASS = "CASE WHEN status BETWEEN 100 AND 599 THEN concat(status div 100, 'xx') ELSE 'other' END"
_PERCENT = "CAST(100 * {0} / count(*) AS decimal(5,2))"
_AMONG = "count_if(status BETWEEN {0} AND {1})"
_CLIENT, _SERVER = _AMONG.format(400, 499), _AMONG.format(500, 599)
_TOP = "FROM access WHERE {0} IS NOT NULL GROUP BY {0} ORDER BY requests DESC, {0} LIMIT " + str(TOP)


class Panel(msgspec.Struct, frozen=True):
    """name: as in JSON and CSV. title, sql: with {step}. chart: the kind of chart, "" for a table alone. is_timed: rows are of
    steps of time, and begin with it. adds_up: the values of longer steps are the sums of these."""

    name: str
    title: str
    sql: str
    chart: str = ""
    is_timed: bool = False
    note: str = ""
    adds_up: bool = False


def _timed(
    name: str, title: str, columns: str, chart: str = "columns", by: str = "", adds_up: bool = True
) -> Panel:
    sql = f"SELECT window.start AS time, {columns} FROM access GROUP BY window(time, '{{step}}'){by}"
    return Panel(name, f"{title} by {{step}}", sql, chart, is_timed=True, adds_up=adds_up)


def _most(name: str, title: str, key: str, columns: str, note: str = "") -> Panel:
    return Panel(
        name, title, f"SELECT {key}, count(*) AS requests{columns} {_TOP.format(key)}", "bars", note=note
    )


SPAN = "SELECT min(time) AS first, max(time) AS last, count(*) AS requests FROM access"
PANELS = (
    _timed("traffic", "Requests", "count(*) AS requests"),
    _timed("visitors", "Visitors", "approx_count_distinct(client_ip) AS visitors", adds_up=False),
    _timed("bytes", "Bytes sent", "sum(bytes) AS bytes"),
    _timed(
        "status_classes",
        "Status classes",
        f"{_CLASS} AS class, count(*) AS requests",
        "stacked",
        f", {_CLASS}",
    ),
    _timed(
        "error_rate",
        "Error rate",
        f"count(*) AS requests, {_CLIENT} AS client_errors, {_SERVER} AS server_errors, "
        f"{_PERCENT.format(_CLIENT)} AS client_error_percent, {_PERCENT.format(_SERVER)} AS server_error_percent",
        "lines",
    ),
    _timed(
        "latency",
        "Request time",
        "approx_percentile(request_time, 0.5) AS p50, approx_percentile(request_time, 0.95) AS p95, "
        "approx_percentile(request_time, 0.99) AS p99",
        "quantiles",
        adds_up=False,
    ),
    _most(
        "paths",
        "Top paths",
        "path",
        ", sum(bytes) AS bytes, approx_count_distinct(client_ip) AS visitors, count_if(status >= 400) AS errors",
    ),
    _most("status", "Status codes", "status", ", approx_count_distinct(client_ip) AS visitors"),
    Panel(
        "errors",
        "What fails",
        "SELECT status, path, count(*) AS requests, approx_count_distinct(client_ip) AS visitors, min(time) AS first_seen, "
        "max(time) AS last_seen FROM access WHERE status >= 400 GROUP BY status, path "
        f"ORDER BY requests DESC, status, path LIMIT {TOP}",
    ),
    Panel(
        "slow_paths",
        "Slowest paths",
        "SELECT path, count(request_time) AS requests, approx_percentile(request_time, 0.5) AS p50, "
        "approx_percentile(request_time, 0.95) AS p95, approx_percentile(request_time, 0.99) AS p99, "
        "max(request_time) AS slowest FROM access GROUP BY path HAVING requests > 0 "
        f"ORDER BY p95 DESC, path LIMIT {TOP}",
    ),
    _most("clients", "Top clients", "client_ip", ", sum(bytes) AS bytes, count_if(status >= 400) AS errors"),
    _most("referrers", "Referrers", "referer", ", approx_count_distinct(client_ip) AS visitors"),
    _most("agents", "User agents", "user_agent", ", approx_count_distinct(client_ip) AS visitors"),
    Panel(
        "robots",
        "Robots",
        "SELECT user_agent, count(*) AS requests, sum(bytes) AS bytes, count_if(status >= 400) AS errors FROM access "
        f"WHERE user_agent RLIKE '{ROBOT}' GROUP BY user_agent ORDER BY requests DESC, user_agent LIMIT {TOP}",
        "bars",
        note="By the words that programs use for themselves; one that pretends to be a browser is not among them.",
    ),
)


def step_for(first_us: int, last_us: int) -> tuple[int, str, str]:
    """The shortest of `STEPS` that cuts that time into `POINTS_MAX` at most; else the longest."""
    return next((step for step in STEPS if (last_us - first_us) // step[0] < POINTS_MAX), STEPS[-1])
