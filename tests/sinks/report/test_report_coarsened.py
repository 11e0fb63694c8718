"""Reports on days whose windows were merged into longer ones: the same answers, and a reason where they are too long."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from elf.agent.spark.verify import verify
from elf.errors import UsageError
from elf.jobmaster.plan.plan import WindowSpec
from elf.sinks.console.cells import iso
from elf.sinks.lake.frames import Level
from elf.sinks.lake.trees.coarsen import coarsen_lake
from elf.typer_cli import main
from tests.sinks.lake.lake_states import DAY, HOUR, MINUTE, START, traffic_plan
from tests.sinks.report.test_report import Lake, ask, notices, put, refused, stored

__all__ = ["stored"]
pytestmark = pytest.mark.spark


@pytest.fixture
def halved(stored: tuple[Path, Lake], tmp_path: Path) -> Path:
    """The first of the lake's two days in windows of half an hour."""
    lake = tmp_path / "lake"
    shutil.copytree(stored[0], lake)
    [merged] = coarsen_lake(lake, None, [Level(30 * MINUTE, START + DAY)])
    assert merged.days == 1
    return lake


def test_reports_are_as_before(spark: Any, stored: tuple[Path, Lake], halved: Path) -> None:
    for how in ({"every": "1h"}, {"every": "1d", "timezone": "Asia/Kolkata"}, {}):
        before, after = ask(spark, stored[0], **how), ask(spark, halved, **how)
        assert [row for row in after if row["report"] != "lake"] == [
            row for row in before if row["report"] != "lake"
        ]
        assert len(before) > 10
    sql = "SELECT path, status, sum(hits) AS n, count(*) AS windows FROM traffic GROUP BY 1, 2 ORDER BY 1, 2"
    before, after = ask(spark, stored[0], sql=sql), ask(spark, halved, sql=sql)
    assert [row["n"] for row in before] == [row["n"] for row in after]
    assert sum(row["windows"] for row in before) > sum(row["windows"] for row in after)
    [row] = ask(spark, halved, sql="SELECT min(window_start) AS a, min(window_end) AS b FROM traffic")
    assert row == {"a": iso(START), "b": iso(START + 30 * MINUTE)}


def test_a_reader_while_both_are_there_counts_once(
    spark: Any, stored: tuple[Path, Lake], halved: Path
) -> None:
    """The files whose panes were merged stay until the log shows the longer ones."""
    expected = ask(spark, halved, every="1h")
    shutil.copytree(stored[0], halved, dirs_exist_ok=True)
    assert ask(spark, halved, every="1h") == expected


def test_what_is_too_long_is_refused_with_the_reason(spark: Any, halved: Path) -> None:
    day = iso(START + DAY)[:10]
    said, error = refused(halved, "10m")
    assert said == (
        f"elf: job traffic left out: --every must be a multiple of 1800 s, the length of its panes before {day}, where they were "
        f"merged into windows of 30 minutes; give --since {day}\n"
    )
    assert "all are left out: traffic" in error
    assert len(ask(spark, halved, every="10m", bounds=(START + DAY, None))) > 10
    with pytest.raises(UsageError, match="all are left out"):
        ask(spark, halved, every="10m", bounds=(START + DAY - 1, None))
    said = notices(halved, timezone="Asia/Kathmandu")
    assert f"days of Asia/Kathmandu begin at 18:15 UTC, inside its panes of 30 minutes before {day}" in said


def test_sliding_windows_are_not_stored_any_more(spark: Any, tmp_path: Path) -> None:
    plan = traffic_plan(window=WindowSpec(10 * MINUTE, 5 * MINUTE))
    put(tmp_path, plan, {START + at * 5 * MINUTE: {("/a", 200): (1, 1)} for at in range(24)})
    assert len(ask(spark, tmp_path, sql="SELECT * FROM traffic")) == 25
    list(coarsen_lake(tmp_path, None, [Level(HOUR, 1 << 62)]))
    with pytest.raises(
        UsageError, match=r"job traffic: its own windows are not stored any more before 2026-09-22"
    ):
        ask(spark, tmp_path, sql="SELECT * FROM traffic")
    assert ask(spark, tmp_path, sql="SELECT sum(hits) AS n FROM traffic", every="1h") == [{"n": 24}]


def test_the_jobs_own_windows_are_refused_where_they_matter(
    spark: Any, halved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from elf.spark import rollup

    frame = spark.read.format("elf").load(str(halved))
    assert rollup(frame, "1 hour").count() > 10
    with pytest.raises(UsageError, match=r"every must be a multiple of 1800 s.* give the option since 2026-"):
        rollup(frame, "15 minutes")
    with pytest.raises(UsageError, match="its own windows are not stored any more before 2026-"):
        rollup(frame)
    later = spark.read.format("elf").option("since", iso(START + DAY)[:10]).load(str(halved))
    assert rollup(later).count() > 10
    log = halved / "access.log"
    log.write_text('10.0.0.1 - - [21/Sep/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 7 "-" "-"\n')
    with pytest.raises(
        UsageError, match=r"were merged into windows of 30 minutes; give --since \d{4}-\d\d-\d\d$"
    ):
        verify(spark, halved, "traffic", [str(log)])
    assert main(["lake", "show", str(halved), "--output", "json"]) == 0
    [shown] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (shown["superseded"] > 0, shown["damaged"]) == (True, 0)
