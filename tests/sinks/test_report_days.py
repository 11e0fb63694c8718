"""Days of a time zone out of a lake: each line is in the day of its local date, as in `elf run` without a lake."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from elf.agent.run.engine import RunOptions, run
from elf.errors import UsageError
from elf.sinks.console.cells import show_in
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.reports.both import report

pytestmark = pytest.mark.spark

ZONES = ("Europe/Berlin", "Asia/Kathmandu")
"""`test_every.py` has many more: with these, Spark shows what SQLite does there."""
NOONS = [datetime(*day, 12, tzinfo=UTC) for day in ((2015, 3, 29), (2015, 10, 25))]
"""Of days around changes of Berlin."""
QUERY = (
    "SELECT window, path, count(*) AS n, sum(bytes) AS s, min(time) AS since, count(DISTINCT client_ip) AS clients, "
    "approx_percentile(bytes, 0.9) AS p FROM access GROUP BY window(time, '{}'), path"
)
JOBS = {"hours": "1 hour", "quarters": "15 minutes"}
NEEDS = {"Asia/Kathmandu": "15 minutes"}


@pytest.fixture(autouse=True)
def utc_again() -> Iterator[None]:
    yield
    show_in("UTC")


@pytest.fixture(scope="module")
def times() -> list[datetime]:
    """Times around the changes, in any order."""
    chance = random.Random(3)
    return [chance.choice(NOONS) + timedelta(seconds=chance.randrange(-100_000, 100_000)) for _ in range(900)]


@pytest.fixture(scope="module")
def stored(times: list[datetime], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log, and a lake with its hours and its quarters of an hour."""
    chance, folder = random.Random(4), tmp_path_factory.mktemp("days")
    line = '192.0.2.{} - - [{:%d/%b/%Y:%H:%M:%S} +0000] "GET /{} HTTP/1.1" 200 {} "-" "-"\n'
    log = folder / "a.log"
    rows = (line.format(chance.randrange(9), at, chance.randrange(2), chance.randrange(9999)) for at in times)
    log.write_text("".join(rows))
    for job, window in JOBS.items():
        sink = ParquetSink(folder / "lake")
        run(RunOptions(QUERY.format(window), (str(log),), "combined", job=job), [sink])
        sink.close()
    return log, folder / "lake"


def reported(lake: Path, zone: str, **how: Any) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The rows of each section of a report, and the notices."""
    out, said = io.BytesIO(), io.StringIO()
    report(str(lake), output="json", timezone=zone, stdout=out, notices=said, **how)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in out.getvalue().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("report", "sql"), []).append(row)
    return found, said.getvalue()


def from_lines(log: Path, zone: str, window: str) -> list[dict[str, Any]]:
    out = io.BytesIO()
    run(RunOptions(QUERY.format(window), (str(log),), "combined", days_of=zone), [JsonLines(out)])
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("zone", ZONES)
def test_a_lake_has_the_days_of_a_zone(
    spark: Any, times: list[datetime], stored: tuple[Path, Path], zone: str
) -> None:
    show_in(zone)
    log, lake = stored
    found, said = reported(lake, zone, every="1d")
    rows = found.pop("quarters")
    assert rows == from_lines(log, zone, "1 day")
    counted: Counter[date] = Counter()
    for row in rows:
        counted[datetime.fromisoformat(row["window"]["start"]).date()] += row["n"]
    assert counted == Counter(at.astimezone(ZoneInfo(zone)).date() for at in times)
    if zone in NEEDS:
        assert found == {}
        assert f"job hours left out: days of {zone} begin at " in said
        assert f"such days need a query with window(time, '{NEEDS[zone]}')" in said
    else:
        assert (found, said) == ({"hours": rows}, "")


def test_weeks_views_and_built_in_reports_have_days_of_the_zone(
    spark: Any, times: list[datetime], stored: tuple[Path, Path]
) -> None:
    zone, (log, lake) = "Asia/Kolkata", stored
    show_in(zone)
    assert reported(lake, zone, every="1w")[0]["quarters"] == from_lines(log, zone, "7 days")
    days = Counter(f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d}T00:00:00+05:30" for at in times)
    sql = "SELECT window_start AS day, sum(n) AS requests FROM quarters GROUP BY 1 ORDER BY 1"
    by_day = [{"day": day, "requests": n} for day, n in sorted(days.items())]
    assert reported(lake, zone, every="1d", sql=sql)[0]["sql"] == by_day
    with pytest.raises(UsageError, match=r"^job hours: days of Asia/Kolkata begin at 18:30 UTC"):
        reported(lake, zone, every="1d", sql="SELECT * FROM Hours")
    found, said = reported(lake, zone)
    assert found["traffic_by_day"] == by_day
    assert "Traffic by day" not in said


def test_a_built_in_report_says_which_windows_its_zone_needs(
    spark: Any, stored: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "hours").symlink_to(stored[1] / "hours")
    found, said = reported(tmp_path, "Asia/Kolkata")
    assert list(found) == ["traffic_by_hour", "top_paths", "bytes_by_hour", "lake"]
    assert (
        "elf: Traffic by day left out: job hours: days of Asia/Kolkata begin at 18:30 UTC, inside its "
        in said
    )
