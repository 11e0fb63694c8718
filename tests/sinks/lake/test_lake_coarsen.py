"""Days in longer panes: the states of the longer query, exactly; one step for every reader; and refusals of what is gone."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from elf.agent.run.engine import RunOptions, run
from elf.jobmaster.windows.result import PaneState
from elf.sinks.lake import compact, layout, parquet
from elf.sinks.lake.copy import copy_lake
from elf.sinks.lake.frames import CompactFrame, Level
from elf.sinks.lake.index import Index
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.show import show
from elf.sinks.lake.trees.coarsen import coarsen_lake
from elf.typer_cli import main
from tests.sinks.lake.lake_states import DAY, HOUR, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_compact import FOREVER, put_random
from tests.sinks.lake.test_lake_compact_command import crashes_at
from tests.sinks.lake.test_lake_delta import by_delta_rs, by_file_list, by_polars
from tests.sinks.lake.test_lake_view import by_duckdb, by_pandas

pytestmark = pytest.mark.process
PLAN = traffic_plan()
READERS = [by_file_list, by_delta_rs, by_polars]
ALL = """SELECT window, path, count(*) AS hits, sum(bytes) AS b, avg(bytes) AS m, count(DISTINCT client_ip) AS v,
  approx_percentile(bytes, 0.9) AS p, approx_count_distinct(client_ip) AS a, approx_set(client_ip) AS s, mode(status) AS mo,
  max_by(client_ip, bytes) AS mb, variance(bytes) AS va, min(time) AS mi, sum(bytes * 1.5e0) AS d, max(user_agent) AS ua
  FROM access WHERE status >= 400 GROUP BY window(time, '{}'), path"""


def coarsened(lake: Path, pane_us: int, before: int = FOREVER) -> list[tuple[int, int, int]]:
    """(days, panes before, panes after) of each table."""
    found = coarsen_lake(lake, None, [Level(pane_us, before)])
    return [(table.days, table.before, table.after) for table in found]


def of_longer(panes: dict[Any, Any], length_us: int) -> dict[Any, tuple[int, int]]:
    """{(longer pane, path, status): (hits, bytes)}, added up by hand."""
    found: dict[Any, tuple[int, int]] = {}
    for (start, path, status), (hits, size) in panes.items():
        begin = start - timedelta(microseconds=int(start.timestamp() * 1e6) % length_us)
        known = found.get((begin, path, status), (0, 0))
        found[begin, path, status] = (known[0] + hits, known[1] + size)
    return found


def lines(seed: int, count: int, step_s: float) -> str:
    chance, at, text = random.Random(seed), datetime(2026, 3, 1, tzinfo=UTC), ""
    for _ in range(count):
        at += timedelta(seconds=chance.random() * 2 * step_s)
        text += (
            f"10.0.0.{chance.randrange(40)} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"GET /p{chance.randrange(4)} HTTP/1.1" {chance.choice([200, 404, 500])} {chance.randrange(5000)} '
            f'"-" "Agent/{chance.randrange(5)}"\n'
        )
    return text


def states(lake: Path) -> list[str]:
    """Every row of the lake, but for its revision and digest."""
    rows = [row for path in lake.rglob("date=*/*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(
        repr({k: v for k, v in row.items() if k != "_digest" and not k.startswith("_rev")}) for row in rows
    )


def filled(folder: Path, log: Path, window: str) -> Path:
    sink = ParquetSink(folder)
    run(RunOptions(query=ALL.format(window), files=(str(log),)), [sink])
    sink.close()
    return folder


def test_longer_panes_hold_what_the_longer_query_holds(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(lines(1, 4000, 20) + "no line\n")
    lake = filled(tmp_path / "fine", log, "10 seconds")
    minutes, hours = (
        states(filled(tmp_path / name, log, window)) for name, window in (("m", "1 minute"), ("h", "1 hour"))
    )
    assert coarsened(lake, MINUTE) == [(1, 3520, 1327)]
    assert states(lake) == minutes
    assert coarsened(lake, HOUR)[0][2] == 23
    assert states(lake) == hours
    assert coarsened(lake, HOUR) == coarsened(lake, MINUTE) == []


@pytest.mark.parametrize("seed", range(3))
def test_each_reader_finds_the_longer_panes(tmp_path: Path, seed: int) -> None:
    put_random(tmp_path, seed)
    [table] = layout.tables(tmp_path, "traffic")
    expected = of_longer(by_file_list(table), 5 * MINUTE)
    panes = len(layout.ledger(tmp_path, "traffic"))
    [(days, before, after)] = coarsened(tmp_path, 5 * MINUTE)
    assert (days, before, after) == (1, panes, after)
    assert after <= 20 < before
    for read in READERS:
        assert read(table) == expected
    for view in (by_duckdb, by_pandas):
        assert view(tmp_path, "traffic") == expected
    [shown] = show(tmp_path)
    assert (shown.windows, shown.superseded, shown.incomplete, shown.damaged) == (after, 0, 0, 0)
    commit = sorted((table / "_delta_log").glob("*.json"))[-1].read_text()
    assert '"dataChange":true' not in commit
    assert '"operation":"OPTIMIZE"' in commit
    assert parquet.compact(tmp_path, FOREVER) == 0
    assert by_file_list(table) == expected
    assert list(coarsen_lake(tmp_path, "traffic", [Level(7 * MINUTE, FOREVER)])) == []


def test_counters_and_coverage_of_longer_panes(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from elf.jobmaster.windows.result import Lines

    def state(minute: int, status: str, agents: tuple[int, int], lost: int, hits: int) -> PaneState:
        counted = Lines(10, 8, 2, 1, (("bytes", lost),) if lost else ())
        made = traffic_state(
            PLAN, START + minute * MINUTE, {("/a", 200): (hits, 1)} if hits else {}, lines=counted
        )
        return replace(made, status=status, agents_reporting=agents[0], agents_expected=agents[1])

    sink = ParquetSink(tmp_path)
    for each in (
        state(0, "final", (3, 3), 2, 1),
        state(1, "revised", (1, 3), 0, 4),
        state(2, "final", (2, 3), 5, 0),
        state(5, "final", (2, 2), 0, 0),
        state(6, "withdrawn", (2, 2), 0, 0),
        state(10, "withdrawn", (2, 2), 0, 0),
    ):
        sink.put_state(each)
    sink.flush()
    assert coarsened(tmp_path, 5 * MINUTE) == [(1, 6, 3)]
    rows = [
        row for path in tmp_path.rglob("date=*/*.parquet") for row in pq.ParquetFile(path).read().to_pylist()
    ]
    found = {
        int(row["_pane_start"].timestamp() * 1e6 - START) // MINUTE: (
            row["_status"],
            (row["_agents_reporting"], row["_agents_expected"]),
            tuple(row[f"_lines_{name}"] for name in ("read", "parsed", "rejected", "late")),
            row["_not_converted"],
            row["_acc0"],
        )
        for row in rows
    }
    assert found == {
        0: ("revised", (1, 3), (30, 24, 6, 3), [("bytes", 7)], 5),
        5: ("final", (2, 2), (10, 8, 2, 1), None, None),
        10: ("withdrawn", (0, 0), (0, 0, 0, 0), None, None),
    }


def test_panes_far_apart_are_one_file_too(tmp_path: Path) -> None:
    """Their list is too long for a name, which then has all panes between."""
    sink = ParquetSink(tmp_path)
    for second in range(0, 24 * 60, 3):
        at = START + second * MINUTE
        state = traffic_state(traffic_plan(), at, {("/a", 200): (second, 1)} if second % 2 else {})
        sink.put_state(state)
    sink.flush()
    [table] = layout.tables(tmp_path, "traffic")
    expected = of_longer(by_file_list(table), 2 * MINUTE)
    coarsened(tmp_path, 2 * MINUTE)
    [folder] = layout.day_folders(table)
    assert len([file for file in layout.files(folder) if not file.is_empty]) == 1
    assert by_file_list(table) == by_delta_rs(table) == by_duckdb(tmp_path, "traffic") == expected
    assert parquet.compact(tmp_path, FOREVER) <= 5  # of the panes without groups
    assert parquet.compact(tmp_path, FOREVER) == 0
    assert by_file_list(table) == by_duckdb(tmp_path, "traffic") == expected
    [shown] = show(tmp_path)
    assert (shown.windows, shown.superseded) == (480, 0)


def test_a_crash_at_any_step_shows_the_old_or_the_new(tmp_path: Path) -> None:
    for step in count():
        lake = tmp_path / str(step)
        put_random(lake, 7, flushes=3)
        [table] = layout.tables(lake, "traffic")
        old = by_file_list(table)
        new = of_longer(old, 5 * MINUTE)
        was_whole = not crashes_at(step, partial(coarsened, lake, 5 * MINUTE))
        for found in (by_file_list(table), by_duckdb(lake, "traffic"), by_pandas(lake, "traffic")):
            assert found in (old, new)
        Index(table).update(layout.day_folders(table))
        assert by_file_list(table) == by_duckdb(lake, "traffic")
        compact.compact_table(table, FOREVER)
        assert by_file_list(table) == by_duckdb(lake, "traffic")
        coarsened(lake, 5 * MINUTE)
        compact.compact_table(table, FOREVER)
        assert by_file_list(table) == by_duckdb(lake, "traffic") == new
        assert len(list(lake.rglob("date=*/*.parquet"))) <= 2
        if was_whole:
            assert step > 8
            return


def test_a_late_revision_of_a_merged_pane_is_not_stored(tmp_path: Path) -> None:
    put_random(tmp_path, 8)
    [table] = layout.tables(tmp_path, "traffic")
    expected = of_longer(by_file_list(table), 5 * MINUTE)
    late = traffic_state(PLAN, START + 3 * MINUTE, {("/z", 200): (9, 9)}, revision=(0, 0, 99))

    def put() -> None:
        sink = ParquetSink(tmp_path)
        sink.put_state(late)
        sink.flush()
        assert sink.pending_bytes == 0
        told = f"1 window was left out of the lake {tmp_path}: the windows there are longer, since old days were merged"
        assert sink.take_left_out() == told
        assert sink.take_left_out() == ""

    coarsened(tmp_path, 5 * MINUTE)
    put()
    assert by_file_list(table) == by_duckdb(tmp_path, "traffic") == expected
    # One that was written by a writer that had looked before.
    [folder] = layout.day_folders(table)
    stray = tmp_path / "other"
    sink = ParquetSink(stray)
    sink.put_state(late)
    sink.flush()
    [file] = stray.rglob("date=*/*.parquet")
    (folder / file.name).write_bytes(file.read_bytes())
    assert by_duckdb(tmp_path, "traffic") == by_pandas(tmp_path, "traffic") == expected
    assert Index(table).update([folder]) is False
    [shown] = show(tmp_path, "traffic")
    assert shown.superseded == 1
    assert parquet.compact(tmp_path, FOREVER) == 1
    assert by_file_list(table) == by_duckdb(tmp_path, "traffic") == expected


def test_a_run_into_a_day_of_longer_panes_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(lines(5, 600, 0.5))
    lake, query = (
        tmp_path / "lake",
        "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 minute')",
    )
    told = f"elf: 5 windows were left out of the lake {lake}: the windows there are longer, since old days were merged"
    for is_told in (False, True):
        assert main(["run", query, str(tmp_path / "log"), "--sink", f"parquet:{lake}"]) == 0
        assert (told in capsys.readouterr().err.splitlines()) is is_told
        coarsened(lake, 60 * MINUTE)


def test_levels_follow_the_age_and_the_job(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for job in ("traffic", "errors"):
        for day in range(3):
            for minute in range(0, 120, 7):
                sink.put_state(
                    traffic_state(PLAN, START + day * DAY + minute * MINUTE, {("/a", 200): (1, 1)}, job=job)
                )
    sink.flush()
    levels = (
        Level(HOUR, START + DAY),
        Level(10 * MINUTE, START + 2 * DAY),
        Level(HOUR, START + 2 * DAY, "errors"),
    )
    parquet.care_for(CompactFrame(str(tmp_path), START, levels=levels))
    lengths = {
        job: [
            layout.files(folder)[0].pane_us // MINUTE
            for table in layout.tables(tmp_path, job)
            for folder in layout.day_folders(table)
        ]
        for job in ("traffic", "errors")
    }
    assert lengths == {"traffic": [60, 10, 1], "errors": [60, 60, 1]}
    assert {table.name for table in layout.tables(tmp_path, "errors")} == {
        table.name for table in layout.tables(tmp_path, "traffic")
    }
    copied = tmp_path.parent / f"{tmp_path.name}-copy"
    assert sum(table.panes for table in copy_lake(tmp_path, copied, None)) == 2 + 12 + 18 + 2 + 2 + 18


def test_a_copy_follows(tmp_path: Path) -> None:
    lake, to = tmp_path / "lake", tmp_path / "copy"
    put_random(lake, 4)
    list(copy_lake(lake, to, None))
    coarsened(lake, 5 * MINUTE)
    [copied] = copy_lake(lake, to, None)
    [table], [its] = layout.tables(lake, "traffic"), layout.tables(to, "traffic")
    assert by_file_list(its) == by_duckdb(to, "traffic") == by_file_list(table)
    assert {path.name for path in to.rglob("date=*/*.parquet")} == {
        path.name for path in lake.rglob("date=*/*.parquet")
    }
    assert copied.replaced > 0


def test_a_day_of_which_no_group_is_left(tmp_path: Path) -> None:
    """Its file with a group goes by compaction; then the day becomes coarser."""
    sink = ParquetSink(tmp_path)
    for n, groups in ((1, {("/a", 200): (1, 1)}), (2, {})):
        sink.put_state(traffic_state(PLAN, START, groups, revision=(0, 0, n)))
        sink.flush()
    assert coarsened(tmp_path, HOUR) == []
    assert parquet.compact(tmp_path, FOREVER) == 1
    assert coarsened(tmp_path, HOUR) == [(1, 1, 1)]
    [shown] = show(tmp_path)
    assert (shown.windows, shown.superseded, shown.files) == (1, 0, 1)
