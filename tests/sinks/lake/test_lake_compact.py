"""Compaction of the lake: fewer files, the same answer at every moment."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from elf.agent.config import units
from elf.agent.host.compaction import AGE_US, Care, Compaction
from elf.sinks.lake import compact, layout, parquet
from elf.sinks.lake import files as lake_files
from elf.sinks.lake.frames import CompactFrame, Level
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake.lake_states import (
    DAY,
    HOUR,
    MINUTE,
    START,
    files,
    groups,
    rows,
    traffic_plan,
    traffic_state,
)

pytestmark = pytest.mark.process

PLAN = traffic_plan()
VERSION = "0123456789ab"
FOREVER = 1 << 62


def put_random(directory: Path, seed: int, flushes: int = 6) -> dict[tuple[int, str], int]:
    """Panes with growing revisions over several flushes; {(start, path): hits} of the highest."""
    chance = random.Random(seed)
    sink = ParquetSink(directory)
    expected: dict[int, dict[str, int]] = {}
    n: dict[int, int] = {}
    for _ in range(flushes):
        for start in {START + chance.randrange(100) * MINUTE for _ in range(12)}:
            n[start] = n.get(start, 0) + 1
            found = {f"/{i}": chance.randrange(100) for i in range(chance.randrange(4))}
            expected[start] = found
            counts = {(path, 200): (hits, hits * 10) for path, hits in found.items()}
            sink.put_state(traffic_state(PLAN, start, counts, revision=(0, 0, n[start])))
        sink.flush()
    return {(start, path): hits for start, found in expected.items() for path, hits in found.items()}


def hits(directory: Path) -> dict[tuple[int, str], int]:
    return {
        (round(at.timestamp()) * 1_000_000, path): count
        for (at, path, _), (count, _) in groups(directory).items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_compaction_keeps_the_highest_revisions_and_nothing_else(tmp_path: Path, seed: int) -> None:
    expected = put_random(tmp_path, seed)
    ledger = layout.ledger(tmp_path, "traffic")
    before = len(files(tmp_path))
    assert hits(tmp_path) == expected
    removed = parquet.compact(tmp_path, FOREVER)
    assert hits(tmp_path) == expected
    assert layout.ledger(tmp_path, "traffic") == ledger
    assert len(files(tmp_path)) == 2  # with groups, and without
    assert removed >= before - 2
    assert len(rows(tmp_path)) == sum(len(list_) or 1 for list_ in by_pane(tmp_path).values())
    assert parquet.compact(tmp_path, FOREVER) == 0


def by_pane(directory: Path) -> dict[object, list[object]]:
    """Per pane the rows that have a group; a pane without any is an empty list."""
    found: dict[object, list[object]] = {}
    for row in rows(directory):
        panes = found.setdefault(row["_pane_start"], [])
        if not row["_empty"]:
            panes.append(row)
    return found


def test_hours_that_are_not_over_are_left_alone(tmp_path: Path) -> None:
    put_random(tmp_path, 1)
    count = len(files(tmp_path))
    assert parquet.compact(tmp_path, START + HOUR - 1) == 0
    assert len(files(tmp_path)) == count
    assert parquet.compact(tmp_path, START + HOUR) > 0
    found = [file for path in files(tmp_path) if (file := layout.parse(path))]
    assert sum(max(file.panes) < START + HOUR for file in found) == 2  # with groups, and without
    assert sum(min(file.panes) >= START + HOUR for file in found) > 2


def test_a_reader_between_any_two_steps_sees_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = put_random(tmp_path, 2)
    seen = []
    unlink, rename = Path.unlink, os.rename

    def observed_unlink(path: Path, missing_ok: bool = False) -> None:
        seen.append(hits(tmp_path))
        unlink(path, missing_ok=missing_ok)
        seen.append(hits(tmp_path))

    def observed_rename(old: Path, new: Path) -> None:
        seen.append(hits(tmp_path))
        rename(old, new)
        seen.append(hits(tmp_path))

    monkeypatch.setattr(Path, "unlink", observed_unlink)
    monkeypatch.setattr(os, "rename", observed_rename)
    compact.compact_table(layout.tables(tmp_path, "traffic")[0], FOREVER)
    assert len(seen) > 10
    assert all(each == expected for each in seen)


def test_a_crash_before_the_old_files_go_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = put_random(tmp_path, 3)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        compact.compact_table(layout.tables(tmp_path, "traffic")[0], FOREVER)
    assert hits(tmp_path) == expected
    parquet.compact(tmp_path, FOREVER)
    assert hits(tmp_path) == expected
    assert len(files(tmp_path)) == 2


def test_a_folder_that_another_process_compacts_is_left_to_it(tmp_path: Path) -> None:
    put_random(tmp_path, 4)
    [table] = layout.tables(tmp_path, "traffic")
    [folder] = layout.day_folders(table)
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert compact.compact_table(table, FOREVER) == 0
    finally:
        os.close(fd)
    assert compact.compact_table(table, FOREVER) > 0


def test_large_files_stay_and_still_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path)
    large = {(f"/{i}", i): (i, i) for i in range(3000)}
    sink.put_state(traffic_state(PLAN, START, large, revision=(0, 0, 3)))
    sink.flush()
    [large_file] = files(tmp_path)
    for minute in (1, 2):
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (1, 1)}))
        sink.flush()
    monkeypatch.setattr(compact, "SMALL_BYTES", large_file.stat().st_size)
    expected = hits(tmp_path)
    assert compact.compact_table(layout.tables(tmp_path, "traffic")[0], FOREVER) == 2
    assert large_file in files(tmp_path)
    assert len(files(tmp_path)) == 2
    assert hits(tmp_path) == expected


def test_a_compacted_file_is_the_one_that_a_single_flush_writes(tmp_path: Path) -> None:
    once, often = tmp_path / "once", tmp_path / "often"
    one, many = ParquetSink(once), ParquetSink(often)
    for minute in range(4):
        state = traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (minute, minute)})
        one.put_state(state)
        many.put_state(state)
        many.flush()
    one.flush()
    parquet.compact(often, FOREVER)
    [left], [right] = files(once), files(often)
    assert left.name == right.name
    assert lake_files.read_about(left) == lake_files.read_about(right)


def test_an_agent_compacts_every_hour_what_is_over_and_goes_on_meanwhile(tmp_path: Path) -> None:
    expected = put_random(tmp_path / "lake", 3)
    before = len(files(tmp_path / "lake"))
    compaction = Compaction([Care(tmp_path / "lake")], 0.0)
    now_us = START + 2 * HOUR + AGE_US
    assert compaction.look(3599.9, now_us) == []
    compaction.wait()
    assert len(files(tmp_path / "lake")) == before
    assert compaction.look(3600.0, now_us) == []
    compaction.wait()
    assert len(files(tmp_path / "lake")) == 4  # of two hours, with groups and without
    assert hits(tmp_path / "lake") == expected


def test_an_agent_lets_days_expire_and_compacts_as_its_file_says(tmp_path: Path) -> None:
    """Of three days one is too old, one old enough to be one file, one neither."""
    sink = ParquetSink(tmp_path)
    for day in range(3):
        for hour in range(2):
            start = START + day * DAY + hour * HOUR
            sink.put_state(traffic_state(PLAN, start, {("/a", 200): (1, 1)}))
    sink.flush()
    now_us = START + 2 * DAY + 12 * HOUR
    care = Care(tmp_path, keep=units.age("1 day"), compact_after_us=12 * HOUR)
    compaction = Compaction([care], 0.0)
    assert compaction.look(3600.0, now_us) == []
    compaction.wait()
    assert compaction.look(3601.0, now_us) == []
    assert [
        len(layout.files(folder)) for folder in layout.day_folders(layout.tables(tmp_path, "traffic")[0])
    ] == [1, 2]
    assert len(groups(tmp_path)) == 4
    care = Care(tmp_path)
    assert care.request(now_us) == CompactFrame(str(tmp_path), now_us - AGE_US)


def test_an_agent_merges_old_windows_once_they_take_no_corrections(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for day in range(2):
        for minute in range(9):
            sink.put_state(traffic_state(PLAN, START + day * DAY + minute * MINUTE, {("/a", 200): (1, 1)}))
    sink.flush()
    care = Care(tmp_path, coarsen=(units.coarser("5m after 1 day"), units.coarser("traffic: 3m after 1 day")))
    now_us = START + 2 * DAY
    assert care.request(now_us, 3 * DAY).levels == tuple(
        Level(length * MINUTE, START - DAY, job) for length, job in ((5, None), (3, "traffic"))
    )
    late_us = [DAY + 1, DAY]
    compaction = Compaction([care], 0.0, late_us=late_us.pop)
    for moment, expected in ((3600.0, 3), (7200.0, 3)):
        assert compaction.look(moment, now_us) == []
        compaction.wait()
        lengths = [
            layout.files(folder)[0].pane_us
            for folder in layout.day_folders(*layout.tables(tmp_path, "traffic"))
        ]
        assert lengths == [expected * MINUTE, MINUTE]
    assert late_us == []
    assert len(groups(tmp_path)) == 3 + 9


def test_a_compaction_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def fail(request: CompactFrame) -> int:
        asked.append(Path(request.directory))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet, "care_for", fail)
    compaction = Compaction([Care(tmp_path)], 0.0)
    told = compaction.look(3600.0, 0)
    compaction.wait()
    (failure,) = told + compaction.look(3601.0, 0)
    assert "No space left on device" in failure
    compaction.look(7200.0, 0)
    compaction.wait()
    assert asked == [tmp_path, tmp_path]
