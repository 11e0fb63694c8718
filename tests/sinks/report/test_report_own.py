"""Reports by name, of files of SQL, and as Parquet."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from elf.errors import UsageError
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.report.output import write_parquet
from elf.sinks.report.own import own_report, own_reports, with_chart
from elf.sinks.report.rows import Section
from tests.rigs.lakes.reports import report
from tests.sinks.lake.lake_states import HOUR, START, traffic_plan
from tests.sinks.report.test_report import put

TIME, NUMBER, TEXT = ColumnInfo("t", "timestamp"), ColumnInfo("n", "bigint"), ColumnInfo("s", "string")
BUSY = "-- Busy hours\nSELECT date_trunc('hour', window_start) AS hour, sum(hits) AS hits FROM traffic GROUP BY 1 ORDER BY 1;\n"
OFTEN = (
    "SELECT path, sum(hits) AS hits FROM traffic GROUP BY path HAVING sum(hits) > :least ORDER BY hits DESC\n"
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, int]]]:
    """Five hours of a job: hits of two paths."""
    folder = tmp_path_factory.mktemp("lake")
    hits = {START + n * HOUR: {"/": 10 + n, "/a": n} for n in range(1, 6)}
    panes = {at: {(path, 200): (count, count) for path, count in of.items()} for at, of in hits.items()}
    return put(folder, traffic_plan(), panes), hits


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "busy.sql").write_text(BUSY)
    (folder / "often.sql").write_text(OFTEN)
    (folder / "notes.txt").write_text("no report")
    return folder


def rows(lake: Path, *names: str, **how: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    report(str(lake), names=names, stdout=out, notices=io.StringIO(), **({"output": "json"} | how))
    return [json.loads(line) for line in out.getvalue().splitlines()]


def iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.spark
def test_built_in_reports_by_name(spark: Any, lake: tuple[Path, dict[int, dict[str, int]]]) -> None:
    folder, hits = lake
    by_path = sum((Counter(of) for of in hits.values()), Counter[str]())
    assert rows(folder, "top_paths") == [{"path": p, "requests": n} for p, n in by_path.most_common()]
    both = rows(folder, "traffic_by_hour", "top_paths", "traffic_by_hour")
    assert [row["report"] for row in both] == ["traffic_by_hour"] * 5 + ["top_paths"] * 2
    assert [row["requests"] for row in both[:5]] == [sum(of.values()) for of in hits.values()]
    assert [row["panes"] for row in rows(folder, "lake")] == [5]
    with pytest.raises(
        UsageError,
        match=r"^traffic_by_week: no job of .* can answer it, or its time is too short; it needs count",
    ):
        rows(folder, "traffic_by_week")


@pytest.mark.spark
def test_files_have_titles_parameters_and_days_of_the_zone(
    spark: Any, lake: tuple[Path, dict[int, dict[str, int]]], files: Path, tmp_path: Path
) -> None:
    folder, hits = lake
    expected = [{"hour": iso(at), "hits": sum(of.values())} for at, of in hits.items()]
    assert rows(folder, "busy", folder=files) == expected
    assert rows(folder, "often", folder=files, params={"least": "20"}) == [{"path": "/", "hits": 65}]
    mixed = rows(folder, "top_paths", "often", folder=files, params={"least": "20"})
    assert [row.pop("report") for row in mixed] == ["top_paths", "top_paths", "often"]
    (files / "days.sql").write_text("SELECT DISTINCT hour(window_start) AS h FROM traffic ORDER BY h")
    utc = [row["h"] for row in rows(folder, "days", folder=files)]
    local = [row["h"] for row in rows(folder, "days", folder=files, timezone="Asia/Tokyo")]
    assert local == sorted((h + 9) % 24 for h in utc)
    report(
        str(folder),
        folder=files,
        params={"least": "0"},
        output=f"html:{tmp_path / 'page.html'}",
        notices=io.StringIO(),
    )
    page = (tmp_path / "page.html").read_text()
    for title in (
        "<h2>Traffic by hour</h2>",
        '<h2>Busy hours</h2><div class="drawing"',
        '<h2>often</h2><div class="drawing"',
        '<h2>days</h2><div class="drawing"',
    ):
        assert (title in page) == ("days" not in title)


@pytest.mark.spark
def test_mistakes_are_one_line(
    spark: Any, lake: tuple[Path, dict[int, dict[str, int]]], files: Path, tmp_path: Path
) -> None:
    def wrong(*names: str, **how: Any) -> str:
        with pytest.raises(UsageError) as error:
            rows(lake[0], *names, **how)
        assert error.value.exit_code == 2
        return str(error.value)

    assert wrong("top_path", folder=files).startswith(
        f"no report top_path, since there is no {files}/top_path.sql; there are top_paths, "
    )
    assert wrong("top_path").startswith("no report top_path, since there is no reports/top_path.sql; ")
    assert (
        wrong("bussy", folder=files)
        == f"no report bussy, since there is no {files}/bussy.sql; there are busy"
    )
    assert (
        wrong("often", folder=files)
        == f"{files}/often.sql: the query has the parameter :least; give --param least=VALUE"
    )
    assert wrong("top_paths", every="1h") == "--every: top_paths has steps of its own"
    (files / "typo.sql").write_text("SELECT hist FROM traffic")
    assert wrong("typo", folder=files) == f"{files}/typo.sql: no column `hist`; there are hits"
    (files / "typo.sql").write_text("SELECT hits FORM traffic")
    assert wrong("typo", folder=files).startswith(f"{files}/typo.sql: ")
    (files / "typo.sql").write_text("-- nothing\n\n")
    assert wrong(folder=files) == f"{files}/typo.sql: it has no query"
    (files / "typo.sql").write_bytes(b"SELECT '\xff'")
    assert wrong("typo", folder=files) == f"{files}/typo.sql: it is not UTF-8"
    (files / "typo.sql").rename(files / "lake.sql")
    (files / "lake.sql").write_text("SELECT 1")
    assert wrong("lake", folder=files) == f"{files}/lake.sql: lake is a built-in report; rename the file"
    assert wrong(folder=tmp_path / "none").startswith(f"--reports {tmp_path}/none: No such file")
    (tmp_path / "empty").mkdir()
    assert (
        wrong(folder=tmp_path / "empty")
        == f"--reports {tmp_path}/empty: there is no file whose name ends in .sql"
    )


@pytest.mark.spark
def test_parquet_has_the_types_of_the_rows(
    spark: Any, lake: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    folder, hits = lake
    report(str(folder), output=f"parquet:{tmp_path / 'out'}", notices=io.StringIO())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f"{name}.parquet"
        for name in (
            "traffic_by_hour",
            "status_classes",
            "error_rate",
            "top_paths",
            "bytes_by_hour",
            "lake",
            "traffic_by_day",
            "bytes_by_day",
        )
    )
    table = pq.read_table(tmp_path / "out" / "traffic_by_hour.parquet")
    assert table.schema.metadata == {b"title": b"Traffic by hour"}
    assert [str(field.type) for field in table.schema] == ["timestamp[us, tz=UTC]", "int64"]
    assert table.column("requests").to_pylist() == [sum(of.values()) for of in hits.values()]
    rates = pq.read_table(tmp_path / "out" / "error_rate.parquet")
    assert str(rates.schema.field("client_error_percent").type) == "decimal128(5, 2)"


def test_sections_of_one_name_and_columns_of_one_name_have_numbers(tmp_path: Path) -> None:
    section = Section("a/b", "A", (NUMBER, NUMBER), [(1, 2)])
    paths = write_parquet(str(tmp_path), [section, section])
    assert [Path(path).name for path in paths] == ["a%2Fb.parquet", "a%2Fb~2.parquet"]
    assert pq.read_table(paths[1]).to_pylist() == [{"n": 1, "n_1": 2}]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file: "):
        write_parquet(str(tmp_path / "file"), [section])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a%2Fb.parquet", "a%2Fb~2.parquet", "file"]


def test_a_folder_has_its_reports_by_name(files: Path) -> None:
    found = own_reports(files)
    assert list(found) == ["busy", "often"]
    assert (found["busy"].title, found["often"].title) == ("Busy hours", "often")
    assert found["busy"].sql == BUSY.rstrip().removesuffix(";")
    assert own_report(files / "often.sql") == found["often"]


def test_a_chart_follows_from_the_columns() -> None:
    def chart(columns: tuple[ColumnInfo, ...], *rows: tuple[Any, ...]) -> tuple[str, int]:
        made = with_chart(Section("x", "X", columns, rows))
        return made.chart, made.step_us

    assert chart((TIME, NUMBER), (3 * HOUR, 1), (HOUR, 2)) == ("columns", 2 * HOUR)
    assert chart((TIME, NUMBER), (HOUR, 1), (HOUR, 2)) == ("", HOUR)
    assert chart((TEXT, NUMBER), ("a", 1), (None, 0)) == ("bars", HOUR)
    assert chart((TIME, NUMBER), (HOUR, 1), (3 * HOUR, 2), (6 * HOUR, 2)) == ("columns", HOUR)
    assert chart((TIME, NUMBER), (HOUR, 1), (HOUR + 7, 2)) == ("", HOUR)
    assert chart((TIME, NUMBER), (HOUR, 1), (None, 2)) == ("", HOUR)
    assert chart((TIME, NUMBER), (HOUR, 1), (2 * HOUR, 2), (900 * HOUR, 2)) == ("", HOUR)
    days = [(0, 1), (24 * HOUR, 2), (47 * HOUR, 3), (400 * 24 * HOUR - HOUR, 4)]
    assert chart((TIME, NUMBER), *days[:3]) == ("columns", 24 * HOUR)
    assert chart((TIME, NUMBER), *days) == ("", HOUR)
    assert chart((TEXT, NUMBER), ("a", -1)) == ("", HOUR)
    assert (
        chart((TEXT, NUMBER), ("a", float("nan"))) == chart((TEXT, NUMBER), ("a", float("inf"))) == ("", HOUR)
    )
    assert chart((TEXT, NUMBER), ("a", None)) == ("", HOUR)
    assert chart((TEXT, TEXT), ("a", "b")) == ("", HOUR)
    assert chart((NUMBER,), (1,)) == ("", HOUR)
