"""`elf lake expire`: days go whole, for every reader, at any crash, and beside writers; and stay away."""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from elf.agent.commands.lake.lake import expire_command
from elf.agent.config import units
from elf.errors import UsageError
from elf.jobmaster.plan.plan import WindowSpec
from elf.jobmaster.windows.result import Lines
from elf.sinks.lake import expire, files, layout, removal
from elf.sinks.lake.compact import compact_table
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.verify import verify
from tests.sinks import lake_states
from tests.sinks.lake_states import DAY, HOUR, START, Groups, traffic_plan, traffic_state
from tests.sinks.test_lake_compact import FOREVER
from tests.sinks.test_lake_compact_command import crashes_at
from tests.sinks.test_lake_delta import by_file_list, by_polars
from tests.sinks.test_lake_view import by_duckdb

PLAN = traffic_plan()
GROUPS: Groups = {("/a", 200): (1, 1)}


def put_days(lake: Path, days: int = 4, revision: tuple[int, int, int] = (0, 0, 1)) -> None:
    """Two panes in each day, and one without groups."""
    sink = ParquetSink(lake)
    for day in range(days):
        for hour, groups in ((1, GROUPS), (2, GROUPS), (23, {})):
            start = START + day * DAY + hour * HOUR
            sink.put_state(traffic_state(PLAN, start, groups, revision=revision))
    sink.flush()


def days_of(found: object) -> dict[int, int]:
    """Day -> panes with groups, counted from START."""
    out: dict[int, int] = {}
    assert isinstance(found, dict)
    for start, _, _ in found:
        at = start if isinstance(start, int) else int(start.timestamp()) * 1_000_000
        out[(at - START) // DAY] = out.get((at - START) // DAY, 0) + 1
    return out


def names(lake: Path) -> list[str]:
    """All day folders, hidden ones too."""
    return sorted(path.name for path in lake.glob("*/columns-*/version=*/*"))


@pytest.mark.process
def test_days_go_and_stay_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_days(tmp_path)
    [table] = layout.tables(tmp_path, "traffic")
    found = list(expire.expire_lake(tmp_path, None, START + 2 * DAY + 5))
    assert [(each.job, each.days, each.files, each.until, each.ended) for each in found] == [
        ("traffic", 2, 6, START + 2 * DAY, 1)
    ]
    for shown in (
        lake_states.groups(tmp_path),
        by_file_list(table),
        by_polars(table),
        by_duckdb(tmp_path, "traffic"),
    ):
        assert days_of(shown) == {2: 2, 3: 2}
    assert len(layout.ledger(tmp_path, "traffic")) == 6
    assert len(names(tmp_path)) == 2
    # A later revision of what has expired is acknowledged, and not stored; other days are.
    put_days(tmp_path, revision=(0, 0, 2))
    assert days_of(by_file_list(table)) == {2: 2, 3: 2}
    assert len(names(tmp_path)) == 2
    compact_table(table, FOREVER)
    assert [each.problems for each in verify(tmp_path)] == [()]
    # The mark never goes back, and a pane of all time has no day.
    assert list(expire.expire_lake(tmp_path, None, START)) == []
    assert layout.mark(layout.job_folder(tmp_path, "traffic")) == START + 2 * DAY
    expire_command(tmp_path, "traffic", "1s")
    told = capsys.readouterr().out
    assert told.startswith(f"traffic  traffic/{table.name}  days before ")
    assert "removed: 2, with " in told
    assert names(tmp_path) == []
    expire_command(tmp_path, None, "1s")
    assert capsys.readouterr().out == f"{tmp_path} has no day that old\n"
    with pytest.raises(UsageError, match=r"--older-than: expected a time like .*, found 'soon'"):
        expire_command(tmp_path, None, "soon")


@pytest.mark.process
def test_a_crash_at_any_step_leaves_each_day_whole_or_gone(tmp_path: Path) -> None:
    whole, left = dict.fromkeys(range(4), 2), {2: 2, 3: 2}
    for step in count():
        lake = tmp_path / str(step)
        put_days(lake)
        [table] = layout.tables(lake, "traffic")
        found = expire.expire_lake(lake, None, START + 2 * DAY)
        was_whole = not crashes_at(step, partial(list[expire.Expired], found))
        log, plain = days_of(by_file_list(table)), days_of(by_duckdb(lake, "traffic"))
        assert log in (whole, left)
        assert plain.items() <= whole.items()
        assert plain.items() >= left.items()
        put_days(lake, revision=(0, 0, 2))
        list(expire.expire_lake(lake, None, START + 2 * DAY))
        assert days_of(by_file_list(table)) == days_of(by_duckdb(lake, "traffic")) == left
        assert len(names(lake)) == 2
        assert [each.problems for each in verify(lake)] == [()]
        if was_whole:
            assert step > 8
            return


@pytest.mark.process
@pytest.mark.parametrize("at", ["before", "after"])
def test_a_writer_that_began_before_the_mark_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Its day is removed again, whether its folder goes before it has written or after."""
    from elf.sinks.lake.frames import Done, PaneFrame, Schema
    from tests.sinks.lake_states import columns_of

    put_days(tmp_path, days=1)
    [table] = layout.tables(tmp_path, "traffic")
    schema = Schema(0, str(tmp_path), "traffic", "0123456789ab", columns_of(PLAN), b"plan", b"null", "1")
    pane = PaneFrame(7, 0, START + 5 * HOUR, START + 6 * HOUR, "final", 0, f"{0:048x}", 1, 1, 1, Lines(), "d")
    real = files.write_file

    def meanwhile(*about: object) -> None:
        if at == "after":
            real(*about)  # type: ignore[arg-type]
        list(expire.expire_lake(tmp_path, None, START + 2 * DAY))
        if at == "before":
            real(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_file", meanwhile)
    touched: set[Path] = set()
    answers = list(files.write_panes({0: schema}, {pane: []}, touched))
    assert [number for answer in answers if isinstance(answer, Done) for number in answer.panes] == [7]
    assert touched == set()
    assert names(tmp_path) == []
    assert by_file_list(table) == {}


@pytest.mark.process
def test_long_windows_expire_when_they_have_ended(tmp_path: Path) -> None:
    week = WindowSpec(7 * DAY, 7 * DAY)
    plan = traffic_plan(window=week)
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(plan, START, GROUPS, job="weekly"))
    sink.put_state(traffic_state(traffic_plan(window=None), 0, GROUPS, job="total"))
    sink.flush()
    assert list(expire.expire_lake(tmp_path, None, START + 7 * DAY - 1)) == []
    assert [each.job for each in expire.expire_lake(tmp_path, None, START + 7 * DAY)] == ["weekly"]
    assert len(layout.ledger(tmp_path, "total")) == 1


def test_a_removed_folder_is_removed_once(tmp_path: Path) -> None:
    day = tmp_path / "version=v0" / "date=2026-01-01"
    day.mkdir(parents=True)
    (day / "a.parquet").write_bytes(b"123")
    assert removal.remove_day(day) == (1, 3)
    assert removal.remove_day(day) == (0, 0)
    os.mkdir(hidden := day.with_name(".date=2026-01-01.00.expired"))
    removal.remove_hidden(day.parent)
    assert not hidden.exists()
    assert not day.parent.exists()


def test_ages() -> None:
    now = 1_774_958_400_000_000  # 2026-03-31T12:00
    assert units.age("1 month").before(now) == 1_772_280_000_000_000  # 2026-02-28T12:00
    assert units.age("2 years").before(now + 7) == 1_711_886_400_000_007
    assert units.age("90 days").before(now) == units.age("90d").before(now) == now - 90 * DAY
    with pytest.raises(ValueError, match="13 months"):
        units.age("a while")
