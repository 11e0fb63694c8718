"""Runs that lack input: interrupted, cut short, or with an unreadable file. No window of theirs passes for a whole one."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from threading import Event

import pytest

import elf
from elf.__main__ import main
from elf.agent.run.engine import Progress, RunOptions, run
from elf.sinks.console.console import Table
from elf.sinks.lake.parquet import ParquetSink

QUERY = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 minute')"


def content(count: int) -> bytes:
    chance = random.Random(7)
    line = '192.0.2.7 - - [17/May/2015:10:{:02}:00 +0000] "GET /{} HTTP/1.1" 200 5 "-" "curl/8"\n'
    return "".join(line.format(n * 3 // count, chance.getrandbits(64)) for n in range(count)).encode()


@pytest.fixture
def whole(tmp_path: Path) -> str:
    path = tmp_path / "whole.log"
    path.write_bytes(content(300))
    return str(path)


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """An archive that ends in the midst of its data."""
    path = tmp_path / "cut.log.gz"
    packed = gzip.compress(content(3_000), mtime=0)
    path.write_bytes(packed[: len(packed) * 9 // 10])
    return str(path)


def test_an_archive_cut_short_makes_every_window_incomplete(
    capfd: pytest.CaptureFixture[str], whole: str, cut: str
) -> None:
    code = main(["run", "-q", QUERY, whole, cut])
    out, err = capfd.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [(row["_elf"]["status"], row["_elf"]["agents_reporting"]) for row in rows] == [
        ("incomplete", 0)
    ] * 3
    assert rows[0]["n"] == 1_100
    assert 0 < rows[2]["n"] < 1_100
    assert err.splitlines() == [
        f"elf: {cut}: the compressed data ends early (truncated); read up to there",
        "elf: the result lacks lines: no window is final",
    ]


def test_csv_and_the_table_say_it_too(capfd: pytest.CaptureFixture[str], cut: str) -> None:
    assert main(["run", "-q", QUERY, cut, "--output", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert {(row["elf_status"], row["elf_agents_reporting"]) for row in rows} == {("incomplete", "0")}
    assert main(["run", "-q", QUERY, cut, "--output", "table"]) == 1
    assert all(line.endswith("incomplete") for line in capfd.readouterr().out.splitlines()[1:])
    assert main(["run", "-q", "SELECT count(*) AS n FROM access", cut, "--output", "table"]) == 1
    assert capfd.readouterr().out.startswith("── incomplete · 2,")


def test_a_bad_file_among_several_is_named_and_the_others_are_read(
    capfd: pytest.CaptureFixture[str], whole: str, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing.log")
    folder = str(tmp_path)
    code = main(["run", "-q", "SELECT count(*) AS n FROM access", missing, whole, folder, f"{missing}*"])
    out, err = capfd.readouterr()
    row = json.loads(out)
    assert (code, row["n"], row["_elf"]["status"]) == (1, 300, "incomplete")
    assert [line.rpartition("; ")[2] for line in err.splitlines()[:3]] == ["it is left out"] * 3
    assert missing in err.splitlines()[0]
    assert folder in err.splitlines()[1]
    assert "no file matches" in err.splitlines()[2]


def test_with_no_file_left_it_is_a_mistake(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", QUERY, str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert capfd.readouterr() == (
        "",
        f"elf: {tmp_path / 'a'}: no such file; check the name, or quote a glob for elf to expand\n",
    )


def test_an_interrupted_run_gives_the_lake_nothing_and_says_so(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.log").write_bytes(content(300) + f"# {name}\n".encode())
    stop = Event()

    def progress(done: Progress) -> None:
        if done.lines > 301:
            stop.set()

    stream = io.BytesIO()
    told: list[str] = []
    lake = ParquetSink(tmp_path / "lake")
    files = tuple(str(tmp_path / f"{name}.log") for name in "abc")
    summary = run(
        RunOptions(QUERY, files), [Table(stream), lake], on_progress=progress, on_lost=told.append, stop=stop
    )
    lake.close()
    assert list(summary.lost) == ["interrupted; what was read up to there follows"] == told[:1]
    assert told[1].startswith("the lake gets nothing of this run")
    assert list((tmp_path / "lake").rglob("*.parquet")) == []
    shown = stream.getvalue().decode().splitlines()
    assert [line.split()[-2:] for line in shown[1:]] == [["200", "incomplete"]] * 3
    assert summary.lines == 602


def test_from_python(whole: str, cut: str) -> None:
    with pytest.warns(RuntimeWarning, match="incomplete.*ends early"):
        result = elf.run(QUERY, [whole, cut])
    assert [window.status for window in result] == ["incomplete"] * 3
    assert result.lost == (f"{cut}: the compressed data ends early (truncated); read up to there",)
    intact = elf.run(QUERY, whole)
    assert (intact.lost, [window.status for window in intact]) == ((), ["final"] * 3)
