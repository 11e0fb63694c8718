"""The change of the most frequent keys, by both engines, against sums in plain Python."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elf.sinks.console.cells import show_in
from elf.sinks.report.change import before, last_weeks
from tests.rigs.lakes.reports import report
from tests.sinks.lake.lake_states import DAY, HOUR, START, traffic_plan
from tests.sinks.report.test_report import put

Hits = dict[int, dict[str, int]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hits]:
    """Sixteen days and six hours: three panes of a day with some of five paths, one of which comes in the last week alone."""
    chance = random.Random(8)
    hits: Hits = {}
    for day in range(17):
        for hour in (0, 5) if day == 16 else (0, 5, 22):
            paths = [f"/{n}" for n in range(4) if chance.random() < 0.7] + ["/new"] * (day > 11) or ["/0"]
            hits[START + day * DAY + hour * HOUR] = {path: chance.randrange(1, 99) for path in paths}
    panes = {at: {(path, 200): (count, None) for path, count in of.items()} for at, of in hits.items()}
    return put(tmp_path_factory.mktemp("change"), traffic_plan(), panes), hits


def sums(hits: Hits, since: int, until: int) -> Counter[str]:
    found = Counter[str]()
    for at, of in hits.items():
        if since <= at < until:
            found.update(of)
    return found


def asked(lake: Path, **how: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    report(str(lake), names=["top_paths"], stdout=out, notices=io.StringIO(), output="json", **how)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def percent(now: int, former: int) -> float | None:
    return None if not former else round(100 * (now - former) / former, 1)


def tops(whole: Counter[str]) -> list[tuple[str, int]]:
    return sorted(whole.items(), key=lambda item: (-item[1], item[0]))


@pytest.mark.spark
@pytest.mark.parametrize(("zone", "end"), [("UTC", 16 * DAY), ("Asia/Tokyo", 16 * DAY - 9 * HOUR)])
def test_the_last_whole_days_against_the_seven_before(
    spark: Any, lake: tuple[Path, Hits], zone: str, end: int
) -> None:
    folder, hits = lake
    show_in(zone)
    try:
        rows = asked(folder, timezone=zone)
    finally:
        show_in("UTC")
    now = sums(hits, START + end - 7 * DAY, START + end)
    former = sums(hits, START + end - 14 * DAY, START + end - 7 * DAY)
    assert [
        {**row, "change_percent": row["change_percent"] and float(row["change_percent"])} for row in rows
    ] == [
        {
            "path": path,
            "requests": count,
            "last_7_days": now[path],
            "days_before": former[path],
            "change_percent": percent(now[path], former[path]),
        }
        for path, count in tops(sums(hits, 0, 1 << 62))
    ]


@pytest.mark.spark
def test_a_range_against_the_time_before_it(spark: Any, lake: tuple[Path, Hits]) -> None:
    folder, hits = lake
    since, until = START + 5 * DAY, START + 9 * DAY
    rows = asked(folder, bounds=(since, until))
    former = sums(hits, since - 4 * DAY, since)
    assert [(row["path"], row["requests"], row["before"]) for row in rows] == [
        (path, count, former[path]) for path, count in tops(sums(hits, since, until))
    ]
    assert [row["change_percent"] and float(row["change_percent"]) for row in rows] == [
        percent(row["requests"], row["before"]) for row in rows
    ]
    for bounds in ((START + DAY, None), (None, until)):
        assert all(list(row) == ["path", "requests"] for row in asked(folder, bounds=bounds))


def test_spans_are_whole_days_of_the_zone_within_the_lake() -> None:
    def days(*spans: tuple[int, int]) -> list[tuple[float, float]]:
        return [((since - START) / DAY, (until - START) / DAY) for since, until in spans]

    assert days(*(last_weeks((START, START + 16 * DAY + HOUR), "UTC") or ())) == [(9, 16), (2, 9)]
    assert days(*(last_weeks((START, START + 14 * DAY), "UTC") or ())) == [(7, 14), (0, 7)]
    assert last_weeks((START + 1, START + 14 * DAY), "UTC") is None
    assert before((0, 100), 60, 90) == (30, 60)
    assert before((0, 100), 60, None) == (20, 60)
    assert before((0, 100), 40, None) is None
