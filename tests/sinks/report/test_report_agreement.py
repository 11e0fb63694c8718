"""One query, two horizons: windows of a minute stored and merged in Spark are the engine's own windows of an hour.

Each query runs over the same lines twice: with short windows into a lake, which the report merges, and with long ones, which the
engine answers itself. So this covers the recipe: aggregates from merged state, and the result stage as Spark SQL.
"""

from __future__ import annotations

import io
import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elf.agent.run.engine import RunOptions, run
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.lake.frames import Level
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.trees.coarsen import coarsen_lake
from tests.rigs.lakes.reports import report

pytestmark = pytest.mark.spark

QUERIES = {
    "counts": (
        "SELECT window, status, count(*) AS n, count(bytes) AS nb, sum(bytes) AS s, avg(bytes) AS a, min(bytes) AS lo, "
        "max(bytes) AS hi, count_if(bytes > 500) AS big, sum(bytes) FILTER (WHERE status < 400) AS ok "
        "FROM access GROUP BY window(time, '{window}'), status ORDER BY n DESC, status"
    ),
    "limited": (
        "SELECT window, path, method, count(*) AS n FROM access GROUP BY window(time, '{window}'), path, method "
        "HAVING n > 2 AND path IS NOT NULL AND path LIKE '/%' ORDER BY n % 3, length(path) DESC, path DESC LIMIT 3"
    ),
    "decimals": (
        "SELECT window, status, sum(CAST(bytes AS DECIMAL(18,6)) / 7) AS s, avg(CAST(bytes AS DECIMAL(18,6))) AS a, "
        "avg(-CAST(bytes AS DECIMAL(12,2)) / 3) AS m, min(CAST(bytes AS DECIMAL(18,6))) AS lo, "
        "round(avg(CAST(bytes AS DECIMAL(18,6))), 1) AS r, floor(sum(bytes) / 10) AS f, max(time) AS last, "
        "min(bytes > 100) AS b FROM access GROUP BY window(time, '{window}'), status"
    ),
    "texts": (
        "SELECT window, status, min(path) AS lo, max(path) AS hi, min(user) AS u, md5(max(path)) AS h, "
        "element_at(split(min(path), '/'), -1) AS tail, substring_index(max(path), '/', 2) AS head, "
        "first(path) AS f, last(user, true) AS l, max_by(path, bytes) AS mb, min_by(status, bytes / 7) AS ms, last(user) AS lu, "
        "concat_ws('-', min(user), max(path)) AS both, date_format(max(time), 'HH:mm') AS at, greatest(min(bytes), 300) AS g, "
        "max(time) + INTERVAL '5 minutes' AS later, timestampdiff(SECOND, min(time), max(time)) AS span, "
        "from_utc_timestamp(min(time), 'Europe/Berlin') AS local, url_decode(min(path)) AS decoded "
        "FROM access GROUP BY window(time, '{window}'), status"
    ),
    "distinct": (
        "SELECT window, count(DISTINCT path) AS p, count(DISTINCT client_ip, status) AS pairs, "
        "count(DISTINCT CAST(bytes AS DECIMAL(12,2))) AS d FROM access GROUP BY window(time, '{window}')"
    ),
    "expressions": (
        "SELECT window.start AS since, upper(substring(path, 2, 3)) AS p, count(*) + 1 AS n1, -sum(bytes) AS neg, "
        "sum(bytes) * 3 - count(*) AS t, sum(bytes) / count(*) AS ratio, sum(bytes) % 7 AS modulo, sum(bytes) div 7 AS whole, "
        "CASE WHEN count(*) > 9 THEN 'it\\'s \\\\many' WHEN count(*) > 4 THEN 'some' ELSE concat('few:', count(*)) END AS word, "
        "coalesce(nullif(max(status), 404), -1) AS c, if(min(bytes) IS NULL, 'none', CAST(min(bytes) AS STRING)) AS txt, "
        "count(*) IN (1, 2, 3) AS few, CAST(sum(bytes) AS DOUBLE) * 1.5E0 AS dbl, abs(-max(bytes)) AS ab, "
        "try_cast('x' AS INT) AS none, hour(max(time)) AS h, date_trunc('MINUTE', min(time)) AS m, "
        "sum(bytes) * 9223372036854775807 AS over, trim(LEADING 'a' FROM min(status) || 'a') AS tr "
        "FROM access GROUP BY window(time, '{window}'), p"
    ),
    "percentiles": (
        "SELECT window, status, approx_percentile(bytes, 0.5) AS p50, approx_percentile(bytes, array(0.0, 0.33, 0.99, 1)) AS ps, "
        "approx_percentile(-bytes, 0.1) AS neg, approx_percentile(bytes * 100000000000, 0.7) AS large, "
        "approx_percentile(CAST(bytes AS DECIMAL(18,6)), 0.9) AS dec, approx_percentile(status, 0.4) AS i "
        "FROM access GROUP BY window(time, '{window}'), status"
    ),
    "by_typed_keys": (
        "SELECT window, status > 399 AS bad, CAST(bytes AS DOUBLE) / 4 AS quarter, CAST(bytes AS DECIMAL(10,2)) AS dec, "
        "date_trunc('DAY', time) AS day, count(*) AS hits FROM access WHERE bytes < 40 OR bytes IS NULL "
        "GROUP BY window(time, '{window}'), 2, 3, 4, 5"
    ),
}
QUERIES["sketches"] = (
    "SELECT window, approx_count_distinct(path) AS p, approx_count_distinct(bytes) AS b, mode(path) AS common, "
    "mode(CAST(bytes AS DECIMAL(12,2))) AS size, mode(CAST(bytes AS DOUBLE) / 7) AS part, mode(user) AS nobody, "
    "approx_count_distinct(CAST(bytes AS DOUBLE) / 3) FILTER (WHERE status = 404) AS d, approx_count_distinct(user) AS none, "
    "approx_set(path) AS paths, approx_set(time) FILTER (WHERE status > 200) AS times, "
    "approx_set(CAST(bytes AS DOUBLE) / 3) AS thirds "
    "FROM access GROUP BY window(time, '{window}') HAVING p > 2 ORDER BY b DESC"
)
QUERIES["doubles"] = (
    "SELECT window, status, sum(CAST(bytes AS DOUBLE) / 7) AS s, avg(CAST(-bytes AS DOUBLE) / 7) AS a, "
    "sum(CAST(user AS DOUBLE)) AS none, approx_percentile(CAST(bytes AS DOUBLE) / 7, array(0.0, 0.5, 0.9, 1)) AS ps, "
    "approx_percentile(CAST(bytes - 1000 AS DOUBLE) * 1E-320, 0.3) AS tiny, sum(CAST(bytes AS DOUBLE) * 1E303) AS huge "
    "FROM access GROUP BY window(time, '{window}'), status"
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three thousand lines over three hours, some without a size, some not requests at all."""
    chance, lines = random.Random(11), []
    start = datetime(2026, 3, 1, 22, 10, tzinfo=UTC)
    for i in range(3000):
        at = start + timedelta(seconds=i * 3.6)
        path = chance.choice(["/", "/a", "/abc", "/api/v1", "/é?q=1", "/'quoted'"])
        request = f"{chance.choice(['GET', 'POST'])} {path} HTTP/1.1" if chance.random() > 0.02 else "-"
        size = chance.choice(["-", str(chance.randrange(60)), str(chance.randrange(10**6))])
        lines.append(
            f"10.0.0.{chance.randrange(9)} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"{request}" {chance.choice([200, 200, 301, 404, 500])} {size} "-" "test"'
        )
    file = tmp_path_factory.mktemp("log") / "access.log"
    file.write_text("\n".join(lines) + "\n")
    return file


def answers(log: Path, query: str, window: str) -> list[dict[str, Any]]:
    out = io.BytesIO()
    run(RunOptions(query.format(window=window), (str(log),), "combined"), [JsonLines(out)])
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.usefixtures("generated_code")
def test_merged_short_windows_are_the_long_ones(spark: Any, log: Path, tmp_path: Path) -> None:
    for job, query in QUERIES.items():
        sink = ParquetSink(tmp_path)
        options = RunOptions(query.format(window="1 minute"), (str(log),), "combined", job=job)
        run(options, [sink])
        sink.close()
    expected = {job: answers(log, query, "1 hour") for job, query in QUERIES.items()}
    assert min(map(len, expected.values())) > 2
    assert merged(tmp_path) == expected
    merged_days = list(coarsen_lake(tmp_path, None, [Level(15 * 60_000_000, 1 << 62)]))
    assert {table.job for table in merged_days} == set(QUERIES)
    assert merged(tmp_path) == expected


def merged(lake: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each job in windows of an hour, which both engines tell without a notice."""
    out, said = io.BytesIO(), io.StringIO()
    report(str(lake), every="1h", output="json", stdout=out, notices=said)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in out.getvalue().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("report"), []).append(row)
    assert said.getvalue() == ""
    return found


def alike(one: bytes, other: bytes) -> bool:
    """Whether all numbers are the same but for the last digit."""
    texts = [re.split(rb"[,:}\]]", each) for each in (one, other)]
    return len(texts[0]) == len(texts[1]) and all(
        a == b or float(a) == pytest.approx(float(b), rel=1e-15) for a, b in zip(*texts, strict=True)
    )


def test_variance_agrees_but_for_the_last_digit(spark: Any, log: Path, tmp_path: Path) -> None:
    each = ("variance", "var_pop", "stddev", "stddev_pop")
    types = (
        "bytes) AS i_{f}",
        "CAST(bytes AS DECIMAL(12,3))) AS d_{f}",
        "CAST(bytes AS DOUBLE) / 7) AS f_{f}",
    )
    parts = [f"{f}({type.format(f=f)}" for f in each for type in types]
    query = (
        f"SELECT window, status, {', '.join(parts)} FROM access GROUP BY window(time, '{{window}}'), status"
    )
    sink = ParquetSink(tmp_path)
    run(RunOptions(query.format(window="1 minute"), (str(log),), "combined"), [sink])
    sink.close()
    out = io.BytesIO()
    report(str(tmp_path), every="1h", output="json", stdout=out, notices=io.StringIO(), same=alike)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    expected = answers(log, query, "1 hour")
    assert len(found) == len(expected) > 8
    for row, right in zip(found, expected, strict=True):
        for name in right:
            if name[1] == "_":
                assert row[name] == pytest.approx(right[name], rel=1e-15)
            else:
                assert row[name] == right[name]
