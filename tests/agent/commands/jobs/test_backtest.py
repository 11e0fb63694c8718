"""`elf alerts backtest` over logs and over a lake of the same lines: one answer, that of a count by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elf.typer_cli import main

LINE = '10.0.0.1 - - [24/Nov/2026:13:{:02}:{:02} +0000] "GET {} HTTP/1.1" 500 7 "-" "-"\n'
COUNTS = {
    0: {"/a": 3, "/b": 1},
    1: {"/a": 3},
    2: {"/a": 1, "/b": 4},
    3: {"/b": 5},
    7: {"/a": 9},
    8: {"/b": 1},
}
"""Of each ten seconds from 13:00 on: lines by path."""
JOB = """\
source = "web"
sql = '''
SELECT window, path, count(*) AS hits FROM web GROUP BY window(time, {}), path HAVING hits >= :least
'''

[params]
least = 1

[[alert]]
name = "many"
when = "hits >= 3"
for = "{}"
text = "{{path}} had {{hits}}"

[[alert]]
name = "quiet"
when = "no data"
for = "1m"
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    lines = [
        LINE.format(at // 60, at % 60, name)
        for tens, counts in COUNTS.items()
        for at in (10 * tens,)
        for name, count in counts.items()
        for _ in range(count)
    ]
    path.write_text("".join(lines))
    return path


def job(folder: Path, window: str = "'10 seconds'", for_: str = "10s") -> Path:
    path = folder / "errors.toml"
    path.write_text(JOB.format(window, for_))
    return path


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["alerts", "backtest", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def changes(text: str) -> list[tuple[Any, ...]]:
    """(state, seconds past 13:00 of the end and of the beginning, path, text)"""
    hour_us = 1_795_525_200_000_000
    return [
        (
            each["state"],
            (each["at_us"] - hour_us) // 1_000_000,
            (each["since_us"] - hour_us) // 1_000_000,
            each["keys"]["path"],
            each["text"],
        )
        for each in json.loads(text)["changes"]
    ]


EXPECTED = [
    ("firing", 10, 0, "/a", "/a had 3"),
    ("resolved", 30, 0, "/a", "/a had 3"),
    ("firing", 30, 20, "/b", "/b had 4"),
    ("resolved", 50, 20, "/b", "/b had 4"),
    ("firing", 80, 70, "/a", "/a had 9"),
    ("resolved", 90, 70, "/a", "/a had 9"),
]


@pytest.mark.process
def test_windows_that_were_merged_are_no_windows_to_judge(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, lake = job(tmp_path), tmp_path / "lake"
    query = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '10 seconds'), path"
    assert main(["run", "-q", query, str(log), "--sink", f"parquet:{lake}"]) == 0
    assert main(["lake", "compact", str(lake), "--coarsen", "1m after 0s", "--after", "0s"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  1 day: 6 windows  ->  2 windows")
    text = (
        file.read_text()
        .replace("least = 1", "least = 0")
        .replace('source = "web"', 'name = "run"\nsource = "access"')
    )
    file.write_text(text.replace("FROM web", "FROM access"))
    code, out, err = asked(capsys, "many", "-f", str(file), "--lake", str(lake))
    assert (code, out) == (2, "")
    assert err.endswith(
        "job run: its own windows are not stored any more before 2026-11-25, where they were merged into windows of 1 minute; "
        "give --since 2026-11-25\n"
    )


def test_over_logs(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(job(tmp_path))
    code, out, err = asked(capsys, "many", "-f", file, "--logs", str(log), "--output", "json")
    assert (code, err, changes(out)) == (0, "", EXPECTED)
    since = "2026-11-24T13:00:20Z"
    _, later, _ = asked(capsys, "many", "-f", file, "--logs", str(log), "--since", since, "--output", "json")
    assert changes(later) == EXPECTED[2:]
    _, longer, _ = asked(
        capsys, "many", "-f", str(job(tmp_path, for_="20s")), "--logs", str(log), "--output", "json"
    )
    assert changes(longer) == [
        ("firing", 20, 0, "/a", "/a had 3"),
        ("resolved", 30, 0, "/a", "/a had 3"),
        ("firing", 40, 20, "/b", "/b had 5"),
        ("resolved", 50, 20, "/b", "/b had 5"),
    ]


@pytest.mark.process
@pytest.mark.parametrize("window", ["'10 seconds'", "'30 seconds', '10 seconds'"])
def test_over_a_lake_of_the_same_lines(
    tmp_path: Path, log: Path, window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, lake = job(tmp_path, window), tmp_path / "lake"
    sql = JOB.format(window, "0s").split("'''")[1].replace("FROM web", "FROM access").replace(":least", "1")
    assert main(["run", sql, str(log), "--sink", f"parquet:{lake}", "-q"]) == 0
    capsys.readouterr()
    source = "-f", str(file), "--output", "json"
    code, found, err = asked(capsys, "many", *source, "--lake", str(lake), "--job", "run")
    _, by_logs, _ = asked(capsys, "many", *source, "--logs", str(log))
    assert (code, err, changes(found)) == (0, "", changes(by_logs))
    assert len(changes(found)) >= 4
    if window == "'10 seconds'":
        assert changes(found) == EXPECTED


def test_as_a_table(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, "many", "-f", str(job(tmp_path)), "--logs", str(log), "--output", "table")
    head, first, *_, last = out.splitlines()
    assert head.split() == ["state", "at", "since", "keys", "text"]
    assert first == "firing    2026-11-24 13:00:10  2026-11-24 13:00:00  path=/a  /a had 3"
    assert last == (
        "alert many of job errors: 6 windows from 2026-11-24 13:00:00 to 2026-11-24 13:01:30 UTC: would have fired 3 times"
    )


def test_what_cannot_be_replayed_is_said(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, logs = str(job(tmp_path)), ("--logs", str(log))
    for argv, said in (
        (("quiet", "-f", file, *logs), 'alert quiet says "no data" by a clock'),
        (("mny", "-f", file, *logs), "errors.toml has no alert mny; it has many, quiet"),
        (("many", "-f", file), "name what holds the past: --lake FOLDER, or --logs FILE"),
        (("many", "-f", file, *logs, "--lake", "x"), "not both"),
        (("many", "-f", file, "--lake", str(tmp_path / "none")), "there is no lake at"),
        (("many", "-f", file, "--logs", str(tmp_path / "none.log")), "none.log: no such file"),
    ):
        code, out, err = asked(capsys, *argv)
        assert (code, out, said in err) == (2, "", True), err
