"""`elf lake compact`: one file for each day; every reader sees the same before, after, at each crash, and beside a writer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from elf.agent.commands.lake.lake import compact_command
from elf.errors import UsageError
from elf.sinks.lake import compact, layout
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import DAY, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_compact import FOREVER, put_random
from tests.sinks.lake.test_lake_delta import by_file_list, by_polars
from tests.sinks.lake.test_lake_view import by_duckdb

pytestmark = pytest.mark.process
PLAN = traffic_plan()


def is_as(lake: Path, expected: Any) -> bool:
    """Whether readers of the files, of the log and of the view find this."""
    [table] = layout.tables(lake, "traffic")
    found = (lake_states.groups(lake), by_file_list(table), by_duckdb(lake, "traffic"))
    return all(each == expected for each in found)


class CrashError(Exception):
    pass


def test_a_crash_at_any_step_changes_nothing_for_readers(tmp_path: Path) -> None:
    for step in count():
        lake = tmp_path / str(step)
        put_random(lake, 7, flushes=3)
        expected, ledger = lake_states.groups(lake), layout.ledger(lake, "traffic")
        [table] = layout.tables(lake, "traffic")
        was_whole = not crashes_at(step, partial(compact.compact_table, table, FOREVER))
        assert is_as(lake, expected)
        assert layout.ledger(lake, "traffic") == ledger
        compact.compact_table(table, FOREVER)
        assert is_as(lake, expected)
        assert len(lake_states.files(lake)) == 2  # with groups, and without
        if was_whole:
            assert step > 10
            assert by_polars(table) == expected
            return


def crashes_at(step: int, work: Callable[[], object]) -> bool:
    """Work up to a step that writes, names, removes or syncs something: that one fails, and all after it."""
    steps = count()

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*about: Any, **named: Any) -> Any:
            if next(steps) >= step:
                raise CrashError
            return real(*about, **named)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for owner, name in ((os, "fsync"), (os, "rename"), (os, "link"), (Path, "unlink"), (Path, "rename")):
            patched.setattr(owner, name, failing(getattr(owner, name)))
        patched.setattr(os, "unlink", lambda *about: None)  # unfinished files stay, as after a crash
        try:
            work()
        except CrashError:
            return True
    return False


@pytest.mark.parametrize("at", ["rename", "link", "unlink"])
def test_a_revision_that_comes_meanwhile_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    sink = ParquetSink(tmp_path)
    for minute in range(4):
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (minute + 1, 1)}))
        sink.flush()
    [table] = layout.tables(tmp_path, "traffic")
    expected = {key: (7 if value == (2, 1) else value[0], 1) for key, value in by_file_list(table).items()}
    owner = Path if at == "unlink" else os
    real, is_done = getattr(owner, at), False

    def revised(*about: Any, **named: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            sink.put_state(traffic_state(PLAN, START + MINUTE, {("/a", 200): (7, 1)}, revision=(0, 0, 2)))
            sink.flush()
        return real(*about, **named)

    monkeypatch.setattr(owner, at, revised)
    compact.compact_table(table, FOREVER)
    assert is_done
    assert is_as(tmp_path, expected)
    compact.compact_table(table, FOREVER)
    assert is_as(tmp_path, expected)
    assert len(lake_states.files(tmp_path)) == 1


def test_a_revision_of_a_compacted_pane_counts_once(tmp_path: Path) -> None:
    put_random(tmp_path, 8)
    [table] = layout.tables(tmp_path, "traffic")
    compact.compact_table(table, FOREVER)
    for n, hits in ((50, 5), (51, None)):
        sink = ParquetSink(tmp_path)
        start = START + 3 * MINUTE
        sink.put_state(
            traffic_state(PLAN, start, {("/z", 200): (hits, 1)} if hits else {}, revision=(0, 0, n))
        )
        sink.flush()
        found = by_file_list(table)
        assert [value for (_, path, _), value in found.items() if path == "/z"] == [(hits, 1)] * bool(hits)
        assert is_as(tmp_path, found)


def test_days_younger_than_the_age_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    today = time.time_ns() // 1000 // DAY * DAY
    sink = ParquetSink(tmp_path)
    for start in (
        today - 3 * DAY,
        today - 3 * DAY + 5 * 60 * MINUTE,
        today - DAY,
        today - DAY + MINUTE,
        today,
    ):
        sink.put_state(traffic_state(PLAN, start, {("/a", 200): (1, 1)}))
        sink.flush()
    [table] = layout.tables(tmp_path, "traffic")
    compact_command(tmp_path, None, "2d")
    told = capsys.readouterr().out
    assert told.startswith(f"traffic  traffic/{table.name}  5 files, ")
    assert "  ->  4 files, " in told
    with pytest.raises(UsageError, match="has no job other; it has traffic"):
        compact_command(tmp_path, "other", "0s")
    compact_command(tmp_path, "traffic", "0s")
    assert "4 files, " in capsys.readouterr().out
    assert len(lake_states.files(tmp_path)) == 3
    assert len(lake_states.groups(tmp_path)) == 5


@pytest.mark.parametrize("coarsen", [(), ("1 hour after 1 day",)])
def test_a_folder_with_a_damaged_file_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], coarsen: tuple[str, ...]
) -> None:
    put_random(tmp_path, 9)
    damaged = lake_states.files(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    [table] = layout.tables(tmp_path, "traffic")
    [folder] = layout.day_folders(table)
    before = {file.path for file in layout.files(folder)}
    assert compact.compact_table(table, FOREVER) == 0
    assert before <= {file.path for file in layout.files(folder)}
    assert compact_command(tmp_path, None, "0s", coarsen) == 1
    assert before <= {file.path for file in layout.files(folder)}
    path = damaged.relative_to(table)
    about = f"traffic  traffic/{table.name}"
    assert (
        capsys.readouterr().out.splitlines()[-2]
        == f"{about}  {path} cannot be read: the files of its day stay as they are"
    )
