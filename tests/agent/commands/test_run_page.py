"""`elf run --report all`: the panels as tables, JSON and CSV, and as one page."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from elf.typer_cli import main
from tests.rigs.lines import START, line

HOSTILE = (
    '10.0.0.1 - - [17/May/2015:10:05:40 +0000] "GET /<script>alert(1)</script> HTTP/1.1" 404 1 "-" "curl/8"\n'
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = Random(5)
    path = tmp_path / "access.log"
    lines = [f"{line(rng, START + at // 10, with_time=False)}\n" for at in range(900)]
    path.write_text("".join([*lines, HOSTILE]))
    return path


def run(*words: object) -> int:
    return main(["run", "--report", "all", *map(str, words)])


def test_each_panel_is_a_report_in_json(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(log, "--output", "json") == 0
    out, err = capfd.readouterr()
    rows = [json.loads(each) for each in out.splitlines()]
    assert sum(row["requests"] for row in rows if row["report"] == "traffic") == 901
    assert sum(row["requests"] for row in rows if row["report"] == "status_classes") == 901
    assert {row["report"] for row in rows} == {
        *(
            "traffic",
            "visitors",
            "bytes",
            "status_classes",
            "error_rate",
            "paths",
            "status",
            "errors",
            "clients",
        ),
        *("referrers", "agents", "robots"),
    }
    assert "elf: Request time left out: the log's format has no request_time\n" in err
    assert "elf: 1 file, 901 lines, 0 rejected" in err
    assert run(log, "--output", "csv", "-q") == 0
    out, err = capfd.readouterr()
    assert (out.splitlines()[0], err) == ("report,time,requests", "")


def test_the_page_is_one_file_that_fetches_nothing(
    log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert run(log, "--output", f"html:{page}", "--display-timezone", "Europe/Berlin") == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert f"elf: {page} was written\n" in err
    text = page.read_text()
    assert "times of Europe/Berlin" in text
    assert "2015-05-17 12:05:03" in text
    assert text.count("<script") == text.count("<script>const SIZES") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not [each for each in ("src=", "url(", "<link", "@import") if each in text]
    assert text.count("</svg></div>") == 11
    for part in text.split("<svg")[1:]:
        ElementTree.fromstring(f"<svg{part[: part.index('</svg>')]}</svg>")
    assert "Requests by second" in text
    assert "@media print" in text


def test_the_first_and_the_last_step_are_marked_where_the_log_begins_or_ends_within_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = Random(6)
    path, page = tmp_path / "access.log", tmp_path / "report.html"
    path.write_text("".join(f"{line(rng, START + 17 * at, with_time=False)}\n" for at in range(900)))
    assert run(path, "--output", f"html:{page}", "-q") == 0
    text = page.read_text()
    assert "Requests by 10 minutes" in text
    partial = "Incomplete, since the log begins or ends there: 2015-05-17T10:00:00Z and 2015-05-17T14:10:00Z."
    assert text.count(partial) == 5
    assert 'class="main partial"' in text
    assert ", incomplete" in text


def test_steps_that_the_log_fills_are_not_marked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = Random(7)
    path, page = tmp_path / "access.log", tmp_path / "report.html"
    begin = START // 600 * 600
    path.write_text(
        "".join(f"{line(rng, begin + at, with_time=False)}\n" for at in range(9_000))
    )  # to 12:29:59
    assert run(path, "--output", f"html:{page}", "-q") == 0
    assert "Requests by minute" in page.read_text()
    assert "Incomplete" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "html:"], "--output 'html:' is none of table, json, csv, html:FILE and parquet:DIR"),
        (["--output", "pdf"], "--output 'pdf' is none of table, json, csv, html:FILE and parquet:DIR"),
        (["--output", "html:/no/such/folder/x.html"], "cannot write /no/such/folder/x.html"),
        (["--follow"], "--follow: --report all prints tables, or a page with --output html:FILE"),
        (["--sink", "parquet:x"], "--sink: --report all prints tables, or a page with --output html:FILE"),
        (["--meta"], "--meta: --report all prints tables, or a page with --output html:FILE"),
    ],
)
def test_mistakes(log: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert run(log, *words) == 2
    out, err = capfd.readouterr()
    assert (out, f"elf: {message}" in err) == ("", True)


def test_standard_input_and_other_reports_are_refused(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("-") == 2
    assert "elf: --report all reads its files twice, and standard input only once" in capfd.readouterr().err
    assert main(["run", "--report", "paths", str(log), "--output", "html:x.html"]) == 2
    assert "elf: --output" in capfd.readouterr().err


def test_a_log_without_a_line_that_can_be_read_has_no_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "access.log", tmp_path / "report.html"
    path.write_text("")
    assert run(path, "--output", f"html:{page}") == 0
    assert not page.exists()
    assert "elf: no line was read, so nothing was written\n" in capfd.readouterr().err
