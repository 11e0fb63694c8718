"""`elf report` as a library: Spark over lakes made by hand, against sums in plain Python."""

from __future__ import annotations

import io
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elf.errors import ElfError, UsageError
from elf.jobmaster.plan.plan import Call, Column, Literal, WindowSpec
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, INT, STRING
from elf.sinks.console.cells import iso, show_in
from elf.sinks.lake import layout, parquet, spark_read
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.stored import Stored
from elf.sinks.report import builtin
from elf.sinks.report.calendar import WEEKDAYS
from elf.sinks.report.report import report as report_once
from tests.rigs.lakes.reports import report
from tests.sinks.lake.lake_states import DAY, HOUR, MINUTE, START, traffic_plan, traffic_state

pytestmark = pytest.mark.spark

PATHS = ["/", "/a", "/b?x=<script>alert(1)</script>", None]
STATUSES = [200, 200, 304, 404, 500, 503]
Lake = dict[int, dict[tuple[str | None, int], tuple[int, int | None]]]
"""Pane start -> (path, status) -> (hits, bytes)."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """Two days of a job, with revisions, an emptied pane, uncompacted and overlapping files; and what counts of it."""
    directory = tmp_path_factory.mktemp("lake")
    chance, expected, sink = random.Random(5), {}, ParquetSink(directory)
    plan = traffic_plan()
    minutes = sorted(chance.sample(range(2 * 1440), 150))
    for n in (1, 2, 3):
        for minute in minutes if n == 1 else chance.sample(minutes, 25):
            start = START + minute * MINUTE
            groups: Any = {
                (path, status): (hits := chance.randrange(1, 50), None if status == 304 else hits * 999)
                for path in PATHS
                for status in set(chance.choices(STATUSES, k=2))
            }
            expected[start] = groups if n < 3 or minute % 3 else {}
            sink.put_state(traffic_state(plan, start, expected[start], revision=(0, 0, n)))
        sink.flush()
    return directory, expected


def ask(spark: Any, directory: Path, **how: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    report(str(directory), stdout=out, notices=io.StringIO(), **({"output": "json"} | how))
    return [json.loads(line) for line in out.getvalue().splitlines()]


def notices(directory: Path, **how: Any) -> str:
    said = io.StringIO()
    report(str(directory), stdout=io.BytesIO(), notices=said, **how)
    return said.getvalue()


def refused(directory: Path, every: str) -> tuple[str, str]:
    """The notices, and the error (of exit code 2), of a report that can tell nothing."""
    said, out = io.StringIO(), io.BytesIO()
    with pytest.raises(UsageError) as error:
        report(str(directory), every=every, stdout=out, notices=said)
    assert (out.getvalue(), error.value.exit_code) == (b"", 2)
    return said.getvalue(), str(error.value)


def totals(
    expected: Lake, every: int, key: Callable[[str | None, int], Any]
) -> dict[Any, tuple[int, int | None, int]]:
    """(window, key) -> (hits, bytes, hits that have bytes)."""
    sums: dict[Any, tuple[int, int | None, int]] = {}
    for start, groups in expected.items():
        for (path, status), (hits, sent) in groups.items():
            at = (start // every * every, key(path, status))
            before = sums.get(at, (0, None, 0))
            total = before[1] if sent is None else sent + (before[1] or 0)
            sums[at] = (before[0] + hits, total, before[2] + (hits if sent is not None else 0))
    return sums


@pytest.mark.parametrize(("every", "length"), [("1h", HOUR), ("1d", DAY), ("6h", 6 * HOUR)])
def test_longer_windows_are_the_sums_of_the_panes_that_count(
    spark: Any, stored: tuple[Path, Lake], every: str, length: int
) -> None:
    directory, expected = stored
    found = {}
    for row in ask(spark, directory, every=every):
        assert list(row) == ["report", "window", "path", "status", "hits", "bytes", "mean"]
        assert row["report"] == "traffic"
        found[row["window"]["start"], row["window"]["end"], row["path"], row["status"]] = row
    sums = totals(expected, length, lambda path, status: (path, status))
    assert {
        (iso(at), iso(at + length), path, status): (hits, sent, sent and sent / seen)
        for (at, (path, status)), (hits, sent, seen) in sums.items()
    } == {at: (row["hits"], row["bytes"], row["mean"]) for at, row in found.items()}


def test_rows_are_in_the_order_of_the_query(spark: Any, stored: tuple[Path, Lake]) -> None:
    rows = ask(spark, stored[0], every="1d")
    order = [(r["window"]["start"], -r["hits"], r["path"] or "", r["status"]) for r in rows]
    assert order == sorted(order)


def test_compaction_changes_no_answer(spark: Any, stored: tuple[Path, Lake], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(stored[0], tmp_path / "lake")
    assert parquet.compact(tmp_path / "lake", 1 << 62) > 0
    assert ask(spark, tmp_path / "lake", every="1h") == ask(spark, stored[0], every="1h")


def test_built_in_reports(spark: Any, stored: tuple[Path, Lake]) -> None:
    directory, expected = stored
    rows = ask(spark, directory)
    by_hour = totals(expected, HOUR, lambda *_: None)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.pop("report"), []).append(row)
    assert found["traffic_by_hour"] == [
        {"hour": iso(at), "requests": hits} for (at, _), (hits, _, _) in sorted(by_hour.items())
    ]
    by_day = totals(expected, DAY, lambda *_: None)
    assert found["traffic_by_day"] == [
        {"day": iso(at), "requests": hits} for (at, _), (hits, _, _) in sorted(by_day.items())
    ]
    assert {(r["hour"], r["bytes"]) for r in found["bytes_by_hour"]} == {
        (iso(at), sent) for (at, _), (_, sent, _) in by_hour.items()
    }
    classes = totals(expected, HOUR, lambda _, status: f"{status // 100}xx")
    assert {(r["hour"], r["class"]): r["requests"] for r in found["status_classes"]} == {
        (iso(at), name): hits for (at, name), (hits, _, _) in classes.items()
    }
    for row in found["error_rate"]:
        at = next(at for at, _ in by_hour if iso(at) == row["hour"])
        wrong = [classes.get((at, name), (0, 0, 0))[0] for name in ("4xx", "5xx")]
        assert [row["client_errors"], row["server_errors"]] == wrong
        assert row["server_error_percent"] == pytest.approx(100 * wrong[1] / row["requests"], abs=0.005001)
    paths = totals(expected, 1 << 60, lambda path, _: path)
    assert [(r["path"], r["requests"]) for r in found["top_paths"]] == sorted(
        ((path, hits) for (_, path), (hits, _, _) in paths.items()), key=lambda r: (-r[1], r[0] or "")
    )
    [held] = found["lake"]
    assert (held["job"], held["panes"]) == ("traffic", len(expected))
    assert held["lines_parsed"] == sum(h for groups in expected.values() for h, _ in groups.values())
    assert held["lines_rejected"] == len(expected)


def test_reports_of_keys_that_few_lakes_have_and_of_the_calendar(spark: Any, tmp_path: Path) -> None:
    """Nine days, of which the last one is not whole."""
    keys = (("client_ip", STRING), ("referer", STRING), ("user_agent", STRING))
    panes: Any = {
        START + n * DAY + hour: {
            ("10.0.0.1", None, "curl"): (n + 1, n + 1),
            ("10.0.0.2", "-", "curl"): (2, None),
        }
        for n in range(9)
        for hour in (0, HOUR)
    }
    put(tmp_path, traffic_plan(keys), panes)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in ask(spark, tmp_path):
        found.setdefault(row.pop("report"), []).append(row)
    assert found["top_clients"] == [
        {"client_ip": "10.0.0.1", "requests": 90},
        {"client_ip": "10.0.0.2", "requests": 36},
    ]
    assert found["top_referrers"] == [{"referer": None, "requests": 90}, {"referer": "-", "requests": 36}]
    assert found["top_agents"] == [{"user_agent": "curl", "requests": 126}]
    assert [row["bytes"] for row in found["bytes_by_day"]] == [2 * (n + 1) for n in range(9)]
    assert [(row["weekday"], row["requests"], row["days"]) for row in found["traffic_by_weekday"]] == [
        ("Monday", 6 + 20, 2),
        *((day, 2 * (n + 3), 1) for n, day in enumerate(WEEKDAYS[1:], 1)),
    ]
    assert [(row["week"], row["days"], row["change_percent"]) for row in found["traffic_by_week"]] == [
        ("2026-09-21", 7, None),
        ("2026-09-28", 1, None),
    ]
    assert "top_paths" not in found
    said = notices(tmp_path)
    assert "Top paths" in said
    assert "Top clients" not in said


def test_days_and_hours_of_another_zone(spark: Any, stored: tuple[Path, Lake]) -> None:
    """A day of 25 hours, between two midnights of Berlin."""
    sql = (
        "SELECT hour(at) AS h, date_trunc('day', at) AS day, bigint(date_trunc('day', at + INTERVAL 1 DAY)) - "
        "bigint(date_trunc('day', at)) AS seconds FROM (SELECT timestamp'2015-10-25T00:30:00Z' AS at)"
    )
    show_in("Europe/Berlin")
    try:
        assert ask(spark, stored[0], sql=sql, timezone="Europe/Berlin") == [
            {"h": 2, "day": "2015-10-25T00:00:00+02:00", "seconds": 25 * 3600}
        ]
    finally:
        show_in("UTC")
    assert ask(spark, stored[0], sql=sql) == [{"h": 0, "day": "2015-10-25T00:00:00Z", "seconds": 24 * 3600}]


def test_sql_sees_a_view_for_each_job(spark: Any, stored: tuple[Path, Lake]) -> None:
    directory, expected = stored
    sql = (
        "SELECT window_start, status, sum(hits) AS hits, sum(_acc2) AS bytes FROM traffic "
        "WHERE _date = DATE'2026-09-21' GROUP BY window_start, status ORDER BY window_start, status"
    )
    rows = ask(spark, directory, sql=sql)
    sums = totals({at: g for at, g in expected.items() if at < START + DAY}, MINUTE, lambda _, status: status)
    assert rows == [
        {"window_start": iso(at), "status": status, "hits": hits, "bytes": sent or 0}
        for (at, status), (hits, sent, _) in sorted(sums.items())
    ]
    [row] = ask(
        spark,
        directory,
        sql="SELECT sum(hits) AS n, count(DISTINCT window_start) AS w, min(_version) AS v FROM traffic",
        every="1d",
    )
    [version] = {key[0] for key in layout.ledger(directory, "traffic")}
    assert row == {"n": sum(h for g in expected.values() for h, _ in g.values()), "w": 2, "v": version}


def test_values_of_parameters(spark: Any, stored: tuple[Path, Lake]) -> None:
    sql = "SELECT sum(hits) AS n FROM traffic WHERE status >= :least AND hits * :factor > 0 AND :text LIKE 'it%s'"
    params = {"least": "400", "factor": "0.5", "text": "it's"}
    constants = sql.replace(":least", "400").replace(":factor", "0.5").replace(":text", "'its'")
    assert ask(spark, stored[0], sql=sql, params=params) == ask(spark, stored[0], sql=constants)


def test_output_as_table_and_csv(spark: Any, stored: tuple[Path, Lake]) -> None:
    out = io.BytesIO()
    report(str(stored[0]), sql="SELECT 1 AS one, NULL AS none, 'a' AS text", stdout=out)
    assert out.getvalue().decode().splitlines() == ["one  none  text", "  1  NULL  a"]
    out = io.BytesIO()
    how = {"every": "1d", "output": "csv", "stdout": out}
    report(str(stored[0]), **how)  # type: ignore[arg-type]
    lines = out.getvalue().decode().splitlines()
    assert lines[0] == "report,window_start,window_end,path,status,hits,bytes,mean"
    assert lines[1].startswith("traffic,2026-09-21T00:00:00Z,2026-09-22T00:00:00Z,")


def test_the_page_is_whole_offline_and_escaped(spark: Any, stored: tuple[Path, Lake], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    report(str(stored[0]), every="1d", output=f"html:{target}")
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert text.count("<script") == text.count("<script>const SIZES") == 1
    assert "/b?x=&lt;script&gt;alert(1)&lt;/script&gt;" in text
    for fetching in ("src=", "href=", "url(", "@import", "http:", "https:", "fetch("):
        assert fetching not in text
    assert text.count("</svg></div>") == 7
    assert text.count("<section") == text.count("</section>") == 9
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# One lake for each special case.


def put(directory: Path, plan: Any, panes: dict[int, Any], **how: Any) -> Path:
    sink = ParquetSink(directory)
    for start, groups in panes.items():
        sink.put_state(traffic_state(plan, start, groups, **how))
    sink.flush()
    return directory


def test_sliding_windows_count_each_pane_in_each_of_its_windows(spark: Any, tmp_path: Path) -> None:
    window = WindowSpec(6 * MINUTE, 4 * MINUTE)  # panes of two minutes
    chance = random.Random(3)
    panes = {START + i * 2 * MINUTE: {("/a",): (chance.randrange(9), 1)} for i in range(-7, 40) if i % 5}
    put(tmp_path, traffic_plan((("path", STRING),), window=window), panes)
    expected: dict[int, int] = {}
    for at, groups in panes.items():
        for start in range(START - HOUR, START + 3 * HOUR, 4 * MINUTE):
            if start <= at < start + 6 * MINUTE:
                expected[start] = expected.get(start, 0) + groups["/a",][0]
    rows = ask(spark, tmp_path, sql="SELECT window_start, window_end, hits FROM traffic ORDER BY 1")
    assert [(r["window_start"], r["window_end"], r["hits"]) for r in rows] == [
        (iso(at), iso(at + 6 * MINUTE), hits) for at, hits in sorted(expected.items())
    ]
    by_hour = ask(spark, tmp_path, every="1h")
    assert sum(row["hits"] for row in by_hour) == sum(g["/a",][0] for g in panes.values())


def test_having_order_and_limit_apply_again_in_each_longer_window(spark: Any, tmp_path: Path) -> None:
    plan = traffic_plan((("path", STRING),), having_above=10, limit=2)
    panes = {
        START + minute * MINUTE: {
            ("/a",): (4, 4),
            ("/b",): (1, 1),
            ("/c",): (5, 5),
            ("/d",): (5 * (minute < 61), 0),
        }
        for minute in (0, 1, 2, 60, 61)
    }
    rows = ask(spark, put(tmp_path, plan, panes), every="1h")
    assert [(r["window"]["start"][11:13], r["path"], r["hits"]) for r in rows] == [
        ("00", "/c", 15),
        ("00", "/d", 15),
    ]


def test_a_filtered_job_cannot_tell_the_traffic(spark: Any, tmp_path: Path) -> None:
    where = Call(">", (Column("status", INT), Literal(499, INT)), BOOLEAN)
    put(tmp_path, traffic_plan(where=where), {START: {("/a", 500): (1, 1)}})
    said = notices(tmp_path, output="json")
    assert "no stored job of access can answer 'Traffic by hour'; a job with this query could: SELECT" in said
    assert [row["report"] for row in ask(spark, tmp_path)] == ["lake"]


def test_a_job_without_windows(spark: Any, tmp_path: Path) -> None:
    put(tmp_path, traffic_plan(window=None), {0: {("/a", 200): (7, 70), ("/b", 200): (9, 90)}})
    assert refused(tmp_path, "1h") == (
        "elf: job traffic left out: its query has no windows to merge into longer ones\n",
        f"--every 1h: no job of {tmp_path} can be merged, all are left out: traffic",
    )
    assert ask(spark, tmp_path, sql="SELECT window_start, sum(hits) AS n FROM traffic GROUP BY 1") == [
        {"window_start": None, "n": 16}
    ]
    rows = ask(spark, tmp_path)
    assert [(r["path"], r["requests"]) for r in rows if r["report"] == "top_paths"] == [("/b", 9), ("/a", 7)]
    assert "traffic_by_hour" not in {r["report"] for r in rows}


SECOND = MINUTE // 60


def a_version(pane: int) -> Stored:
    return Stored("traffic", "0123456789ab", "", "", [], {"pane_us": pane * SECOND})


@pytest.mark.parametrize(
    ("pane", "panes", "words"),
    [
        (5, 6, "5 seconds"),
        (5, 2, "5 seconds"),  # too few points in any step: the shortest
        (5, 9, "10 seconds"),
        (1, 6, "second"),
        (2, 200, "minute"),
        (60, 40, "minute"),
        (60, 41, "10 minutes"),
        (60, 179, "10 minutes"),
        (60, 180, "hour"),
        (900, 4, "hour"),  # ten minutes are not whole panes
        (7, 4, "hour"),
    ],
)
def test_steps_suit_the_panes(pane: int, panes: int, words: str) -> None:
    by_hour, by_day = builtin.REPORTS[:2]
    start, versions = START + 23 * HOUR, [a_version(pane)]
    stepped = builtin.in_steps(by_hour, versions, start, start + panes * pane * SECOND)
    assert stepped is not None
    assert stepped.title == f"Traffic by {words}"
    told_by_day = builtin.in_steps(by_day, versions, start, start + panes * pane * SECOND)
    assert (told_by_day is None) == (pane != 7 and pane * panes < 3 * 3600)


@pytest.mark.parametrize(
    ("pane", "panes", "step", "words"), [(5, 6, 5, "5 seconds"), (60, 45, 600, "10 minutes")]
)
def test_a_short_lake_is_told_in_short_steps(
    spark: Any, tmp_path: Path, pane: int, panes: int, step: int, words: str
) -> None:
    first, length = START + 23 * HOUR, pane * SECOND
    stored: Any = {
        first + i * length: {("/a", 200): (i + 1, 10 * i), ("/b", 500): (1, 7)} for i in range(panes)
    }
    put(tmp_path, traffic_plan(window=WindowSpec(length, length)), stored)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in ask(spark, tmp_path):
        found.setdefault(row.pop("report"), []).append(row)
    name = words.replace(" ", "_")
    assert not {"traffic_by_hour", "traffic_by_day", "bytes_by_hour"} & set(found)
    sums = totals(stored, step * SECOND, lambda *_: None)
    times = [iso(at) for at, _ in sums]
    assert found[f"traffic_by_{name}"] == [
        {"time": at, "requests": hits} for at, (hits, _, _) in zip(times, sums.values(), strict=True)
    ]
    assert found[f"bytes_by_{name}"] == [
        {"time": at, "bytes": sent} for at, (_, sent, _) in zip(times, sums.values(), strict=True)
    ]
    wrong_ones = totals(stored, step * SECOND, lambda _, status: status)
    assert [(row["time"], row["server_errors"]) for row in found["error_rate"]] == [
        (iso(at), hits) for (at, status), (hits, _, _) in wrong_ones.items() if status == 500
    ]
    assert {row["time"] for row in found["status_classes"]} == set(times)


def test_steps_are_whole_panes_of_all_versions(spark: Any, tmp_path: Path) -> None:
    five, minute = WindowSpec(5 * SECOND, 5 * SECOND), WindowSpec(MINUTE, MINUTE)
    put(tmp_path, traffic_plan(window=five), {START: {("/a", 200): (1, 1)}}, version="aaaaaaaaaaaa")
    put(
        tmp_path, traffic_plan(window=minute), {START + MINUTE: {("/a", 200): (2, 2)}}, version="bbbbbbbbbbbb"
    )
    rows = ask(spark, tmp_path)
    assert [r["requests"] for r in rows if r["report"] == "traffic_by_minute"] == [1, 2]


def test_the_page_of_half_a_minute_shows_seconds(spark: Any, tmp_path: Path) -> None:
    first, five = START + 23 * HOUR, 5 * SECOND
    panes = {first + i * five: {("/a", 200): (i + 1, 10 * i)} for i in range(6)}
    put(tmp_path / "lake", traffic_plan(window=WindowSpec(five, five)), panes)
    target = tmp_path / "report.html"
    report(str(tmp_path / "lake"), output=f"html:{target}", notices=io.StringIO())
    text = target.read_text()
    assert "<h2>Traffic by 5 seconds</h2>" in text
    assert "<h2>Traffic by day</h2>" not in text
    assert "<b>2026-09-21 23:00:00</b>" in text
    assert "<b>2026-09-21 23:00:30</b>" in text
    assert "2026-09-21 23:00:25  requests: 6<" in text
    assert ">23:00:25</text>" in text


def test_versions_of_a_job_are_kept_apart_and_seen_together(spark: Any, tmp_path: Path) -> None:
    put(tmp_path, traffic_plan(), {START: {("/a", 200): (1, 1)}}, version="aaaaaaaaaaaa")
    put(tmp_path, traffic_plan(limit=5), {START + 3 * HOUR: {("/a", 200): (2, 2)}}, version="1e5000000000")
    assert ask(spark, tmp_path, sql="SELECT sum(hits) AS n FROM traffic") == [{"n": 3}]
    assert [(row["report"], row["hits"]) for row in ask(spark, tmp_path, every="1d")] == [
        ("traffic", 1),
        ("traffic", 2),
    ]
    rows = ask(spark, tmp_path)
    assert [r["requests"] for r in rows if r["report"] == "traffic_by_hour"] == [1, 2]
    put(tmp_path, traffic_plan((("host", STRING),)), {START + DAY: {("h",): (4, 4)}}, version="bbbbbbbbbbbb")
    assert ask(spark, tmp_path, sql="SELECT host, hits FROM traffic") == [{"host": "h", "hits": 4}]
    assert "2 older version(s)" in notices(tmp_path, sql="SELECT 1")


def test_keys_with_names_that_are_taken(spark: Any, tmp_path: Path) -> None:
    keys = (("path", STRING), ("status", INT), ("bytes", BIGINT))
    plan = traffic_plan(keys, names=("hour", "_empty", "odd `name`.x"))
    put(tmp_path, plan, {START: {("h", 1, 2): (3, 4)}})
    assert ask(spark, tmp_path, sql="SELECT hour, _empty, `odd ``name``.x` AS odd, hits FROM traffic") == [
        {"hour": "h", "_empty": 1, "odd": 2, "hits": 3}
    ]
    [row] = ask(spark, tmp_path, every="1d")
    assert [row["hour"], row["_empty"], row["odd `name`.x"], row["hits"]] == ["h", 1, 2, 3]


def test_jobs_and_folders_with_hostile_names(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "la ke[1]*{x}%20?"
    put(directory, traffic_plan(), {START: {("/a", 200): (5, 5)}}, job="my `job`/{a,b}*")
    [row] = ask(spark, directory, sql="SELECT hits FROM `my ``job``/{a,b}*`")
    assert row == {"hits": 5}
    assert [r["hits"] for r in ask(spark, directory, every="1d")] == [5]


# Errors: one line each.


@pytest.mark.parametrize("every", ["", "1", "h", "0h", "-1h", "1.5h", "1y", "90"])
def test_wrong_intervals(every: str) -> None:
    with pytest.raises(UsageError, match="is not an interval; give a number and s, m, h, d or w"):
        report("/nowhere", every=every)


@pytest.mark.parametrize("output", ["xml", "html:", "html", ""])
def test_wrong_outputs(output: str) -> None:
    with pytest.raises(UsageError, match="is none of table, json, csv, html:FILE and parquet:DIR"):
        report("/nowhere", output=output)


def wrong(directory: Path, **how: Any) -> str:
    with pytest.raises(ElfError) as caught:
        report(str(directory), stdout=io.BytesIO(), notices=io.StringIO(), **how)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_no_lake_and_an_empty_one(spark: Any, tmp_path: Path) -> None:
    assert "there is no lake at" in wrong(tmp_path / "none")
    assert "is empty" in wrong(tmp_path)
    (tmp_path / "x" / "columns-0" / "version=vy" / "date=2026-01-01").mkdir(parents=True)
    assert "is empty" in wrong(tmp_path)
    with pytest.raises(
        UsageError, match=r"cannot read the lake nosuch://bucket/lake: .*No FileSystem for scheme"
    ):
        report("nosuch://bucket/lake")


def test_files_that_go_while_they_are_read_and_those_of_another_layout(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panes = {START: {("/a", 200): (1, 1)}}
    put(tmp_path, traffic_plan(), panes)
    overlap = spark_read._overlap

    def compacted(files: Any) -> bool:
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()
        return overlap(files)

    with monkeypatch.context() as patched:
        patched.setattr(spark_read, "_overlap", compacted)
        with pytest.raises(ElfError, match="compacted while it was read; run the report again"):
            report_once(str(tmp_path), every="1h", master="local[*]", stdout=io.BytesIO())
    monkeypatch.setattr(layout, "LAYOUT", 3)
    put(tmp_path, traffic_plan(), panes)
    with pytest.raises(ElfError, match=r"is not of this version of elf, layout 3; elf \d"):
        ask(spark, tmp_path)


def test_wrong_sql(spark: Any, stored: tuple[Path, Lake]) -> None:
    directory = stored[0]
    assert (
        wrong(directory, sql="SELECT * FROM trafic")
        == "--sql: no job `trafic` in the lake; its jobs are traffic"
    )
    assert "nosuch" in wrong(directory, sql="SELECT nosuch FROM traffic")
    assert not logging.getLogger("SQLQueryContextLogger").isEnabledFor(
        logging.ERROR
    )  # it prints stack traces
    assert "syntax" in wrong(directory, sql="SELEC 1").lower()
    assert "must be a multiple of 60 s" in wrong(directory, sql="SELECT 1 FROM traffic", every="90s")
    assert refused(directory, "90s") == (
        "elf: job traffic left out: --every must be a multiple of 60 s, the length of its panes\n",
        f"--every 90s: no job of {directory} can be merged, all are left out: traffic",
    )


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    assert "there is no folder" in wrong(tmp_path, output=f"html:{tmp_path}/none/x.html")
