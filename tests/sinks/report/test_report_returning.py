"""New and returning visitors by week against sets in plain Python, by both engines."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from elf.agent.run.engine import RunOptions, run
from elf.cbt.aggregates import hashes_of_ints
from elf.errors import UsageError
from elf.sinks.console.cells import show_in
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.sketch import theta_sketch
from elf.sinks.lake.theta import hashes_of
from elf.sinks.report.returning import by_week
from tests.rigs.lakes.reports import report

QUERY = "SELECT window, status, approx_set(client_ip) AS clients FROM access {where}GROUP BY window(time, '1 hour'), status"
Visits = list[tuple[datetime, str]]


@pytest.fixture(scope="module")
def visits() -> Visits:
    """Over five weeks, from a Wednesday on; the fourth week has hardly any."""
    chance = random.Random(16)
    found = []
    for _ in range(3_000):
        at = datetime(2026, 3, 4, 9, tzinfo=UTC) + timedelta(minutes=chance.randrange(33 * 1440))
        week = (at - datetime(2026, 3, 2, tzinfo=UTC)).days // 7
        if week != 3 or chance.random() < 0.02:
            found.append(
                (
                    at,
                    f"10.0.{week // 2}.{chance.randrange(250)}"
                    if chance.random() < 0.5
                    else f"10.9.9.{chance.randrange(90)}",
                )
            )
    return sorted(found)


@pytest.fixture(scope="module")
def lake(visits: Visits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("returning")
    line = '{1} - - [{0:%d/%b/%Y:%H:%M:%S} +0000] "GET / HTTP/1.1" {2} 7 "-" "-"\n'
    text = "".join(line.format(at, client, 404 if n % 3 else 200) for n, (at, client) in enumerate(visits))
    (folder / "access.log").write_text(text)
    for job, where in (("clients", ""), ("failing", "WHERE status = 404 ")):
        sink = ParquetSink(folder / "lake")
        run(RunOptions(QUERY.format(where=where), (str(folder / "access.log"),), "combined", job=job), [sink])
        sink.close()
    return folder / "lake"


def expected(visits: Visits, zone: str) -> list[dict[str, Any]]:
    weeks: dict[date, set[str]] = defaultdict(set)
    for at, client in visits:
        day = at.astimezone(ZoneInfo(zone)).date()
        weeks[day - timedelta(days=day.weekday())].add(client)
    rows, before = [], set[str]()
    for week, clients in sorted(weeks.items()):
        back = len(clients & before)
        share = f"{100 * back / len(clients):.1f}"
        rows.append(
            {
                "week": f"{week}",
                "visitors": len(clients),
                "returning": back,
                "new": len(clients) - back,
                "returning_percent": float(share),
            }
        )
        before |= clients
    return rows


def asked(lake: Path, **how: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    report(str(lake), stdout=out, notices=io.StringIO(), output="json", **how)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    for row in rows:
        if "returning_percent" in row:
            row["returning_percent"] = float(row["returning_percent"])
    return rows


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_few_visitors_are_counted_exactly(spark: Any, lake: Path, visits: Visits, zone: str) -> None:
    show_in(zone)
    try:
        assert asked(lake, names=["returning"], timezone=zone) == expected(visits, zone)
    finally:
        show_in("UTC")


@pytest.mark.spark
def test_it_is_one_of_the_built_in_reports_where_a_job_has_the_sets(
    spark: Any, lake: Path, visits: Visits
) -> None:
    rows = [row for row in asked(lake) if row.pop("report") == "returning"]
    assert rows == expected(visits, "UTC")
    with pytest.raises(
        UsageError,
        match=r"^returning: no job of .* can answer it; it needs approx_set\(client_ip\), without WHERE",
    ):
        asked(lake, names=["returning"], timezone="Asia/Kolkata")


def test_many_visitors_are_estimated() -> None:
    """40,000 of a week, of which 30,000 were there before."""
    day, first = 86_400_000_000, int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1_000_000
    sets = [range(35_000), range(5_000, 45_000)]
    days = {
        first + n * 7 * day: hashes_of(theta_sketch(hashes_of_ints(np.array(each)).tolist()))
        for n, each in enumerate(sets)
    }
    section = by_week(days, "UTC", "From job x.")
    assert [row[0] for row in section.rows] == ["2026-03-02", "2026-03-09"]
    _, (_, visitors, returning, new, share) = section.rows
    assert visitors == pytest.approx(40_000, rel=0.05)
    assert returning == pytest.approx(30_000, rel=0.08)
    assert visitors == returning + new
    assert float(share) == pytest.approx(75, abs=5)
