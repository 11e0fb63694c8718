"""`elf lake copy`: the copy holds what counts, after a crash at any step and beside compaction; a later one brings the rest."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from elf.agent.commands.lake.lake import copy_command
from elf.errors import UsageError
from elf.sinks.lake import copy, layout
from elf.sinks.lake.compact import compact_table
from elf.sinks.lake.copy import copy_lake
from elf.sinks.lake.expire import expire_lake
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.verify import verify
from tests.sinks import lake_states
from tests.sinks.lake_states import DAY, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.test_lake_compact import FOREVER, put_random
from tests.sinks.test_lake_compact_command import crashes_at, is_as

pytestmark = pytest.mark.process


def test_a_copy_holds_what_counts_and_a_later_one_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, to = tmp_path / "lake", tmp_path / "copy"
    put_random(lake, 3)
    assert copy_command(lake, to, None) == 0
    assert " were there, 0 replaced  ->  " in capsys.readouterr().out
    assert is_as(to, lake_states.groups(lake))
    [again] = copy_lake(lake, to, "traffic")
    assert (again.files, again.bytes, again.replaced) == (0, 0, 0)
    assert again.there == len(lake_states.files(to))
    # A revision, a new pane, and compaction, whose file replaces the small ones of the copy.
    sink = ParquetSink(lake)
    sink.put_state(
        traffic_state(traffic_plan(), START + MINUTE, {("/new", 200): (5, 1)}, revision=(0, 0, 99))
    )
    sink.put_state(traffic_state(traffic_plan(), START + DAY, {("/next", 200): (6, 1)}))
    sink.flush()
    compact_table(layout.tables(lake, "traffic")[0], FOREVER)
    [found] = copy_lake(lake, to, None)
    assert found.replaced > 0
    assert is_as(to, lake_states.groups(lake))
    assert [path.name for path in lake_states.files(to)] == [path.name for path in lake_states.files(lake)]
    # Days that have expired expire in the copy.
    list(expire_lake(lake, None, START + DAY))
    list(copy_lake(lake, to, None))
    assert layout.mark(to / "traffic") == START + DAY
    assert is_as(to, lake_states.groups(lake))
    assert [each.problems for each in verify(to)] == [()]


def test_a_crash_at_any_step_is_gone_on_from(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    put_random(lake, 7, flushes=2)
    expected = lake_states.groups(lake)
    for step in count():
        to = tmp_path / str(step)
        was_whole = not crashes_at(step, partial(list[copy.Copied], copy_lake(lake, to, None)))
        list(copy_lake(lake, to, None))
        assert is_as(to, expected)
        assert [each.problems for each in verify(to)] == [()]
        if was_whole:
            assert step > 8
            return


def test_files_that_compaction_merges_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, to = tmp_path / "lake", tmp_path / "copy"
    put_random(lake, 4)
    [table] = layout.tables(lake, "traffic")
    real, calls = copy._copy_file, count()

    def meanwhile(*about: Any) -> int:
        if next(calls) == 2:
            compact_table(table, FOREVER)
        return real(*about)

    monkeypatch.setattr(copy, "_copy_file", meanwhile)
    list(copy_lake(lake, to, None))
    assert is_as(to, lake_states.groups(lake))


def test_what_cannot_be_copied_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    put_random(lake, 9)
    [folder] = layout.day_folders(layout.tables(lake, "traffic")[0])
    damaged = copy._wanted(folder)[0][0].path
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert copy_command(lake, tmp_path / "copy", None) == 1
    assert "; 1 cannot be read, and are not copied\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="one is in the other"):
        copy_command(lake, lake / "copy", None)
    with pytest.raises(UsageError, match="has no job other; it has traffic"):
        copy_command(lake, tmp_path / "copy", "other")
    # A copy of which a file was cut is mended by the next one.
    shutil.rmtree(tmp_path / "copy")
    put_random(tmp_path / "whole", 5)
    list(copy_lake(tmp_path / "whole", tmp_path / "copy", None))
    cut = lake_states.files(tmp_path / "copy")[0]
    cut.write_bytes(cut.read_bytes()[:-1])
    [found] = copy_lake(tmp_path / "whole", tmp_path / "copy", None)
    assert found.files == 1
    assert is_as(tmp_path / "copy", lake_states.groups(tmp_path / "whole"))
