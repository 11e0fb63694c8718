"""Several runs into one lake: the latest word on a pane counts, whatever was stored before."""

from __future__ import annotations

from pathlib import Path

import pytest

from elf.agent.run.engine import RunOptions, run
from elf.agent.run.follow import follow
from elf.agent.run.outlet import Outlet
from elf.errors import UsageError
from elf.sinks.lake.layout import ledger
from elf.sinks.lake.parquet import ParquetSink
from tests.rigs.lines import lines

pytestmark = pytest.mark.process

QUERY = "SELECT window, status, count(*) AS n FROM access GROUP BY window(time, '1 hour'), status"


def options_of(folder: Path, log: list[str], query: str = QUERY) -> RunOptions:
    path = folder / "access.log"
    path.write_text("".join(f"{line}\n" for line in log))
    return RunOptions(query, (str(path),), "combined")


def into_lake(folder: Path, log: list[str]) -> None:
    run(options_of(folder, log), [ParquetSink(folder / "lake")])


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    log = lines(60, 3, seconds=60, disorder=0, with_time=False)
    into_lake(tmp_path, log)
    assert set(ledger(tmp_path / "lake", "run").values()) == {(0, 0, 1)}
    into_lake(tmp_path, log[:10])
    assert set(ledger(tmp_path / "lake", "run").values()) == {(1, 0, 1)}
    assert ParquetSink(tmp_path / "lake").next_epoch("run") == 2
    assert ParquetSink(tmp_path / "lake").next_epoch("another") == 0


def test_a_live_query_without_windows_has_nothing_for_a_lake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs GROUP BY window"):
        follow(
            options_of(tmp_path, lines(5, 1, with_time=False), "SELECT count(*) AS n FROM access"),
            Outlet(None, lakes=[tmp_path / "lake"]),
        )
