"""Several queries in one pass over files: each answers as it does alone, however little memory there is."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from elf.agent.run.engine import RunOptions, run
from elf.agent.run.together import run_together
from elf.errors import FormatError, UsageError
from elf.jobmaster.compile.panels import PANELS, SPAN, STEPS, step_for
from elf.jobmaster.windows.result import Window
from tests.rigs.lines import START, line

HOUR = 3_600_000_000
QUERIES = {panel.name: panel.sql.replace("{step}", "1 minute") for panel in PANELS} | {"span": SPAN}


def log(path: Path, lines: int, seed: int = 0) -> Path:
    rng = Random(seed)
    text = "".join(f"{line(rng, START + at // 7)}\n" for at in range(lines))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


class Rows:
    """A sink that keeps rows."""

    wants_open = wants_state = False

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.columns: tuple[Any, ...] = ()

    def put(self, window: Window) -> None:
        self.columns = window.columns
        self.rows += window.rows

    def put_state(self, state: object) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("memory_max", [1 << 20, 64 << 20])
def test_each_query_answers_as_it_does_alone(tmp_path: Path, memory_max: int) -> None:
    files = (str(log(tmp_path / "a.log", 6_000)), str(log(tmp_path / "b.log.gz", 3_000, 1)))
    options = RunOptions("", files, memory_max=memory_max)
    found = run_together(options, QUERIES)
    assert not found.left_out
    assert list(found.by_name) == list(QUERIES)
    for name, query in QUERIES.items():
        alone = Rows()
        summary = run(RunOptions(query, files), [alone])
        assert found.by_name[name].rows == alone.rows, name
        assert found.by_name[name].columns == alone.columns == summary.columns
        assert alone.rows, name
    assert (found.summary.lines, found.summary.parsed, found.summary.files) == (9_000, 9_000, 2)


def test_a_query_for_a_column_that_the_log_has_not_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(
        '{"time":"2026-01-01T00:00:00Z","path":"/a"}\n{"time":"2026-01-01T00:00:01Z","path":"/b"}\n'
    )
    queries = {
        "paths": "SELECT path, count(*) AS n FROM access GROUP BY path ORDER BY path",
        "status": "SELECT status, count(*) AS n FROM access GROUP BY status",
    }
    found = run_together(RunOptions("", (str(path),)), queries)
    assert found.by_name["paths"].rows == [("/a", 1), ("/b", 1)]
    assert found.left_out == {"status": "no line has status"}
    combined = tmp_path / "combined.log"
    combined.write_text(f"{line(Random(3), START, with_time=False)}\n")
    found = run_together(RunOptions("", (str(combined),)), QUERIES)
    assert found.left_out.keys() == {"latency", "slow_paths"}
    assert "the log's format has no request_time" in found.left_out["latency"]


def test_input_that_is_missing_and_an_end_from_outside_are_said(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log.gz", 500)
    path.write_bytes(path.read_bytes()[:-20])
    lost: list[str] = []
    found = run_together(RunOptions("", (str(path),)), {"span": SPAN}, on_lost=lost.append)
    assert len(found.summary.lost) == len(lost) == 1
    stop = Event()
    stop.set()
    whole = str(log(tmp_path / "b.log", 500))
    found = run_together(RunOptions("", (whole,)), {"span": SPAN}, stop=stop)
    assert found.summary.lost == ("interrupted; what was read up to there follows",)
    with pytest.raises(UsageError, match="no such file"):
        run_together(RunOptions("", (str(tmp_path / "none.log"),)), {"span": SPAN})
    (tmp_path / "odd.log").write_text("what is this\n" * 9)
    with pytest.raises(FormatError):
        run_together(RunOptions("", (str(tmp_path / "odd.log"),)), {"span": SPAN})


def test_steps_are_as_short_as_a_chart_allows() -> None:
    found = [step_for(0, span)[2] for span in (0, 199_999_999, 200_000_000, 40 * HOUR, 24 * 150 * HOUR)]
    assert found == ["second", "second", "10 seconds", "hour", "day"]
    assert step_for(0, 9_000 * 24 * HOUR) == STEPS[-1]
