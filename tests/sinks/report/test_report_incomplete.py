"""Windows that lack an agent are marked in every kind of report, by both engines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from elf.sinks.console.cells import iso
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake.lake_states import DAY, HOUR, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.report.test_report import ask, notices

pytestmark = pytest.mark.spark
LACKING = {5 * HOUR, 5 * HOUR + 30 * MINUTE, 3 * DAY}
FROM, TO = iso(START + 5 * HOUR), iso(START + 3 * DAY + 30 * MINUTE)
SAID = f"elf: job traffic: 3 windows lack an agent's lines, from {FROM} to {TO}\n"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen days of half hours, of which three lack an agent."""
    from elf.jobmaster.plan.plan import WindowSpec

    folder = tmp_path_factory.mktemp("lake")
    sink, plan = ParquetSink(folder), traffic_plan(window=WindowSpec(30 * MINUTE, 30 * MINUTE))
    for at in range(0, 15 * DAY, 30 * MINUTE):
        state = traffic_state(plan, START + at, {("/a", 200): (10, 1), ("/b", 500): (1, 1)})
        sink.put_state(replace(state, agents_reporting=2, agents_expected=3 if at in LACKING else 2))
    sink.flush()
    return folder


def rows_of(found: list[dict[str, Any]], report: str) -> dict[str, Any]:
    return {
        str(row.get("hour", row.get("day"))): row.get("incomplete")
        for row in found
        if row["report"] == report
    }


def test_steps_with_such_windows_say_how_many(spark: Any, lake: Path) -> None:
    found = ask(spark, lake)
    hours = rows_of(found, "traffic_by_hour")
    assert {at: count for at, count in hours.items() if count} == {
        iso(START + 5 * HOUR): 2,
        iso(START + 3 * DAY): 1,
    }
    assert len(hours) == 15 * 24
    days = rows_of(found, "traffic_by_day")
    assert [count for _, count in sorted(days.items())][:5] == [2, 0, 0, 1, 0]
    assert {row["incomplete"] for row in found if row["report"] == "error_rate"} == {0, 1, 2}
    weekdays = {row["weekday"]: row["days"] for row in found if row["report"] == "traffic_by_weekday"}
    assert sum(weekdays.values()) == 13  # of fifteen days
    assert notices(lake).count(SAID) == 1


@pytest.mark.parametrize(
    "how",
    [
        {"every": "1d"},
        {"sql": "SELECT sum(hits) FROM traffic"},
        {"sql": "SELECT 1 FROM traffic LIMIT 1", "every": "1h"},
    ],
)
def test_a_notice_says_when(spark: Any, lake: Path, how: dict[str, Any]) -> None:
    assert notices(lake, **how) == SAID


def test_longer_windows_say_how_many(spark: Any, lake: Path) -> None:
    found = {(row["window"]["start"], row["path"]): row["incomplete"] for row in ask(spark, lake, every="1h")}
    assert len(found) == 2 * 15 * 24
    assert {key: count for key, count in found.items() if count} == {
        (iso(START + at), path): count for at, count in ((5 * HOUR, 2), (3 * DAY, 1)) for path in ("/a", "/b")
    }


def test_a_time_without_such_windows_says_nothing(spark: Any, lake: Path) -> None:
    bounds = (START + 4 * DAY, None)
    assert notices(lake, every="1d", bounds=bounds) == ""
    assert "incomplete" not in next(
        row for row in ask(spark, lake, bounds=bounds) if row["report"] == "traffic_by_hour"
    )


def test_the_page_shows_them_pale_and_names_them(lake: Path, tmp_path: Path) -> None:
    from elf.sinks.report.report import report

    file = tmp_path / "page.html"
    report(str(lake), output=f"html:{file}", notices=io.StringIO())
    page = file.read_text()
    assert "Incomplete, since an agent&#x27;s lines are missing: " in page
    assert ", incomplete</title>" in page
    assert "Some windows lack an agent&#x27;s lines." in page
    assert "3 windows lack an agent&#x27;s lines" in page
