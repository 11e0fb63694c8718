"""One query text, both horizons: drawn queries give the same rows in a mesh's windows, in Spark over the raw logs, and in Spark
over the lake, for windows of the job's own length and longer ones."""

from __future__ import annotations

import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

import elf
from elf.agent.run.engine import RunOptions, run
from elf.agent.spark.logs import read_logs
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.lake import layout
from tests.jobmaster.compile.test_agreement_spark import assert_same, plain, rank
from tests.rigs import agreement
from tests.rigs.agents.mesh_rig import Fleet, wait_until
from tests.rigs.lakes.reports import report
from tests.rigs.lines import NGINX_FORMAT, lines, records

pytestmark = [pytest.mark.long, pytest.mark.spark]

SEEDS = (1, 2)
WINDOW_US = 2_000_000
QUERIES = 6
CONDITIONS = [
    each for each in agreement.SCALARS if "LIKE" in each or "IN (" in each or " >= " in each or "IS " in each
]
EXACT = [each for each in agreement.AGGREGATES if "var" not in each and "stddev" not in each]
"""Variances agree but for the last digit."""
SKETCHES = (
    "SELECT window, status, approx_count_distinct(client_ip) AS c, approx_set(client_ip) AS s, mode(path) AS m, "
    "first(path) AS f, approx_percentile(bytes, 0.9) AS p, sum(bytes * 1E0 / 7) AS d, min(path) AS lo FROM web "
    "GROUP BY window(time, '{window}'), status"
)
"""Spark has other estimates."""


def drawn(rng: random.Random) -> str:
    """A query with {window} for its length."""
    keys = rng.sample(agreement.SCALARS, rng.randrange(3))
    aggregates = rng.sample(EXACT, rng.randint(1, 4))
    named = [f"{key} AS k{i}" for i, key in enumerate(keys)] + [
        f"{each} AS a{i}" for i, each in enumerate(aggregates)
    ]
    where = f" WHERE {rng.choice(CONDITIONS)}" if rng.random() < 0.4 else ""
    having = f" HAVING count(*) > {rng.randrange(4)}" if rng.random() < 0.4 else ""
    by = ", ".join(["window(time, '{window}')", *keys])
    return f"SELECT window, {', '.join(named)} FROM web{where} GROUP BY {by}{having}"


def answers(logs: list[str], query: str) -> list[dict[str, Any]]:
    out = io.BytesIO()
    run(RunOptions(in_files(query), tuple(logs), NGINX_FORMAT), [JsonLines(out)])
    return [json.loads(line) for line in out.getvalue().splitlines()]


def in_files(query: str) -> str:
    """The query as `elf run` has it, whose source is always `access`."""
    return query.replace(" FROM web ", " FROM access ")


def reported(lake: Path, every: str) -> dict[str, list[dict[str, Any]]]:
    """By job: the rows of Spark over the lake, which the rig compares with those of the engine."""
    out = io.BytesIO()
    report(str(lake), every=every, output="json", stdout=out, notices=io.StringIO())
    found: dict[str, list[dict[str, Any]]] = {}
    for text in out.getvalue().splitlines():
        row = json.loads(text)
        found.setdefault(row.pop("report"), []).append(row)
    return found


def is_stored(lake: Path, job: str, time_us: int) -> bool:
    """Whether the lake has the window of that time."""
    pane = time_us // WINDOW_US * WINDOW_US
    return pane in {key[1] for key in layout.ledger(lake, job)}


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row) for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_mesh_raw_logs_and_lake_agree(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    drawn_queries = {f"q{number}": drawn(rng) for number in range(QUERIES)}
    queries = drawn_queries | {"sketches": SKETCHES}

    def more(number: int) -> str:
        lake = '[[sink]]\nname = "lake"\nparquet = "lake"\n' if number == 1 else ""
        return f'[[source]]\nname = "web"\npath = "web.log"\nformat = \'{NGINX_FORMAT}\'\nstart = "beginning"\n{lake}'

    with Fleet(tmp_path, 3, more=more) as fleet:
        logs = [str(agent.folder / "web.log") for agent in fleet.agents]
        for job, query in queries.items():
            fleet.start_job(job, query.replace("{window}", "2 seconds"), "--sink", "lake", lateness="6s")
        begin = int(time.time()) // 10 * 10 + 20  # after the jobs' start, and after the disorder of the lines
        for number, log in enumerate(logs):
            Path(log).write_text("\n".join(lines(300, seed * 10 + number, seconds=30, start=begin)) + "\n")
        lake = fleet.agents[1].folder / "lake"
        last = max(record["time"] for log in logs for record in records(Path(log).read_text().splitlines()))
        wait_until(
            lambda: all(is_stored(lake, job, last) for job in queries),
            "the last windows are not in the lake",
            120,
        )
        for every, length in (("2s", "2 seconds"), ("10s", "10 seconds")):
            found = reported(lake, every)
            for job, query in queries.items():
                text = query.replace("{window}", length)
                assert in_order(found.get(job, [])) == in_order(answers(logs, text)), text
    read_logs(spark, logs, format=NGINX_FORMAT).createOrReplaceTempView("web")
    for query in drawn_queries.values():
        text = query.replace("{window}", "10 seconds")
        answer = elf.run(in_files(text), logs, format=NGINX_FORMAT)
        ours = [tuple(map(plain, row.values())) for row in answer.rows()]
        theirs = [tuple(plain(value) for value in row) for row in spark.sql(text).collect()]
        assert_same(text, sorted(ours, key=rank), sorted(theirs, key=rank))
    spark.catalog.dropTempView("web")
