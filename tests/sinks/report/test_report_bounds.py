"""`elf report --since --until`: the stored windows that begin in that time, in each kind of report and by both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elf.errors import UsageError
from elf.sinks.console.cells import iso
from elf.typer_cli import main
from tests.sinks.lake.lake_states import DAY, HOUR, MINUTE, START, traffic_plan
from tests.sinks.report.test_report import Lake, ask, notices, put, stored, totals

__all__ = ["stored"]
pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "bounds",
    [
        (START + 5 * HOUR + 7 * MINUTE, START + 30 * HOUR),
        (None, START + DAY),
    ],
)
def test_windows_that_begin_in_that_time(
    spark: Any, stored: tuple[Path, Lake], bounds: tuple[int | None, int | None]
) -> None:
    directory, everything = stored
    since, until = bounds
    expected = {
        at: groups
        for at, groups in everything.items()
        if (since is None or at >= since) and (until is None or at < until)
    }
    assert 0 < len(expected) < len(everything)
    rows = ask(spark, directory, every="1h", bounds=bounds)
    sums = totals(expected, HOUR, lambda path, status: (path, status))
    found = {(row["window"]["start"], row["path"], row["status"]): row["hits"] for row in rows}
    assert found == {(iso(at), *key): hits for (at, key), (hits, _, _) in sums.items()}
    rows = ask(spark, directory, bounds=bounds)
    paths = totals(expected, 1 << 62, lambda path, status: path)
    top = {row["path"]: row["requests"] for row in rows if row["report"] == "top_paths"}
    assert top == {path: hits for (_, path), (hits, _, _) in paths.items()}
    (lake,) = [row for row in rows if row["report"] == "lake"]
    assert lake["panes"] == len(expected)
    (row,) = ask(spark, directory, sql="SELECT sum(hits) AS n FROM traffic", bounds=bounds)
    assert row == {"n": sum(hits for hits, _, _ in paths.values())}


def test_a_time_of_which_nothing_is_stored(spark: Any, stored: tuple[Path, Lake]) -> None:
    bounds = (START + 9 * DAY, None)
    assert ask(spark, stored[0], bounds=bounds) == []
    assert notices(stored[0], bounds=bounds) == "elf: no window of the lake begins in that time\n"


def test_a_job_without_windows_has_no_time(spark: Any, tmp_path: Path) -> None:
    put(tmp_path, traffic_plan(window=None), {0: {("/a", 200): (7, 70)}})
    with pytest.raises(UsageError, match=r"--since and --until: no job of .* has windows"):
        ask(spark, tmp_path, bounds=(START, None))


def test_the_command(stored: tuple[Path, Lake], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ["report", str(stored[0]), "--output", "csv", "--every", "1d"]
    assert main([*words, "--since", "2026-09-22", "--until", "2026-09-23"]) == 0
    days = {line.split(b",")[1] for line in capfdbinary.readouterr().out.splitlines()[1:]}
    assert days == {b"2026-09-22T00:00:00Z"}
    assert main([*words, "--since", "2026-09-22", "--until", "2026-09-21"]) == 2
    assert b"elf: --since: 2026-09-22 is not before --until 2026-09-21" in capfdbinary.readouterr().err
