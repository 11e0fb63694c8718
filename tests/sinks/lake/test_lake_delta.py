"""The Delta logs of a lake: what a commit holds, and what other readers find through them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.commands.lake.lake import verify_command
from elf.errors import UsageError
from elf.sinks.lake import delta, layout, parquet
from elf.sinks.lake.delta import Action, Add, State, changes, cover
from elf.sinks.lake.index import Index
from elf.sinks.lake.layout import LakeFile
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_compact import FOREVER, put_random

PLAN = traffic_plan()
Shown = dict[tuple[datetime | None, str, int], tuple[int, int]]


# What a commit holds.

revisions = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 3))
some_files = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 9), revisions, min_size=1), st.booleans()), max_size=8
).map(
    lambda found: [
        LakeFile(Path(f"t/version=v1/date=2026-01-01/{i}"), 1, panes, is_empty)
        for i, (panes, is_empty) in enumerate(found)
    ]
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(some_files, st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_each_pane_is_shown_once_and_at_its_highest_revision(
    files: list[LakeFile], shown: set[int], lost: set[int]
) -> None:
    paths = {file.path for i, file in enumerate(files) if i in shown}
    unread = {file.path for i, file in enumerate(files) if i in lost}
    highest: dict[int, Any] = {}
    for file in files:
        for start, revision in file.panes.items():
            highest[start] = max(revision, highest.get(start, revision))
    held = {
        start
        for file in files
        if not file.is_empty and file.path not in unread
        for start, revision in file.panes.items()
        if revision == highest[start]
    }
    chosen, rest = cover(files, paths, unread)
    found = [start for file in chosen for start in file.panes] + list(rest)
    assert sorted(found) == sorted(held)
    assert all(file.panes[start] == highest[start] for file in chosen for start in file.panes)
    assert all(file.panes[start] == highest[start] for start, file in rest.items())
    assert not any(file.is_empty or file.path in unread for file in [*chosen, *rest.values()])
    assert cover(files, {file.path for file in chosen}, unread) == (chosen, rest)


paths = st.sets(st.sampled_from("abcdef"))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(paths, max_size=6), st.booleans())
def test_commits_lead_from_one_set_of_files_to_the_next(sets: list[set[str]], is_news: bool) -> None:
    state = State()
    state.apply(0, delta.decode(delta.encode(delta.beginning("job", "columns-0", [("x", "void")], 7))))
    news = {""} if is_news else set()
    for version, wanted in enumerate(sets, 1):
        added = [Add(path, {"date": None}, 1, 2, True) for path in sorted(wanted)]
        actions = changes(state.shown, wanted, added, news, 9)
        assert bool(actions) == (wanted != state.shown.keys())
        files = [action.add or action.remove for action in actions]
        assert {file.data_change for file in files if file} <= {is_news}
        state.apply(version, delta.decode(delta.encode(actions)))
        assert state.shown.keys() == wanted
        assert changes(state.shown, wanted, added, news, 9) == []


def test_what_is_no_log_of_ours_is_refused() -> None:
    begun = delta.beginning("job", "columns-0", [], 0)
    newer = [*begun, Action(protocol=delta.Protocol(3, 7))]
    for actions, why in ((newer, "protocol 3/7"), ([], "no schema")):
        with pytest.raises(delta.LogError, match=why):
            State().apply(0, actions)
    with pytest.raises(delta.LogError, match="cannot be read"):
        delta.decode(b'{"add":{"path":')


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bigint", "long"),
        ("decimal(38,6)", "decimal(38,6)"),
        ("void", None),
        (
            "array<struct<_0:string,_1:int>>",
            {
                "type": "array",
                "elementType": {
                    "type": "struct",
                    "fields": [
                        {"name": "_0", "type": "string", "nullable": True, "metadata": {}},
                        {"name": "_1", "type": "integer", "nullable": True, "metadata": {}},
                    ],
                },
                "containsNull": True,
            },
        ),
        (
            "map<int,decimal(38,0)>",
            {"type": "map", "keyType": "integer", "valueType": "decimal(38,0)", "valueContainsNull": True},
        ),
    ],
)
def test_types_as_delta_names_them(text: str, kind: Any) -> None:
    assert delta.delta_type(text) == kind


# What readers find.


def by_file_list(table: Path, version: int | None = None) -> Shown:
    """By our own reading of the log."""
    import pyarrow.parquet as pq

    state = State()
    for path in sorted((table / "_delta_log").glob("*.json"))[: None if version is None else version + 1]:
        state.apply(int(path.stem), delta.decode(path.read_bytes()))
    return shown(row for path in state.shown for row in pq.ParquetFile(table / path).read().to_pylist())


def by_delta_rs(table: Path, version: int | None = None) -> Shown:
    deltalake = pytest.importorskip("deltalake", reason="delta-rs is not installed: pip install deltalake")
    found = deltalake.DeltaTable(str(table), version=version)
    return shown(found.to_pyarrow_table().to_pylist())


def by_polars(table: Path, version: int | None = None) -> Shown:
    polars = pytest.importorskip("polars", reason="Polars is not installed: pip install polars")
    return shown(polars.read_delta(str(table), version=version).to_dicts())


def shown(rows: Any) -> Shown:
    found: Shown = {}
    for row in rows:
        key = (row["_pane_start"], row["path"], row["status"])
        assert key not in found
        found[key] = (row["_acc0"], int(row["_acc2"]))
    return found


READERS = [by_file_list, by_delta_rs, by_polars]
pytestmark = pytest.mark.process


@pytest.mark.parametrize("read", READERS)
def test_readers_of_delta_see_the_newest_revisions_and_travel_in_time(
    tmp_path: Path, read: Callable[..., Shown]
) -> None:
    sink = ParquetSink(tmp_path)
    first = {minute: {("/a", 200): (minute + 1, 10)} for minute in range(3)}
    second: dict[int, Any] = {0: {("/a", 200): (7, 70), ("/b", 404): (1, 1)}, 1: {}}
    for number, states in enumerate((first, second), 1):
        for minute, groups in states.items():
            sink.put_state(traffic_state(PLAN, START + minute * MINUTE, groups, revision=(0, 0, number)))
        sink.flush()
    [table] = layout.tables(tmp_path, "traffic")

    def rows(states: dict[int, Any]) -> Shown:
        return {
            (datetime.fromtimestamp((START + minute * MINUTE) // 10**6, UTC), *key): value
            for minute, groups in states.items()
            for key, value in groups.items()
        }

    assert read(table) == rows(first | second) == lake_states.groups(tmp_path)
    assert read(table, version=0) == rows(first)
    assert parquet.compact(tmp_path, FOREVER) > 0
    assert read(table) == rows(first | second)
    [*_, last] = sorted((table / "_delta_log").glob("*.json"))
    compacted = [each.add or each.remove for each in delta.decode(last.read_bytes())]
    assert {file.data_change for file in compacted if file} == {False}


@pytest.mark.parametrize("seed", range(3))
def test_a_log_made_again_shows_the_same(tmp_path: Path, seed: int) -> None:
    put_random(tmp_path, seed)
    [table] = layout.tables(tmp_path, "traffic")
    assert by_file_list(table) == lake_states.groups(tmp_path)
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    assert Index(table).update([])
    assert by_file_list(table) == lake_states.groups(tmp_path)
    assert not Index(table).update(layout.day_folders(table))


def test_a_checkpoint_stands_for_the_commits_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elf.sinks.lake import index

    monkeypatch.setattr(index, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(index, "KEPT_MS", -1)
    sink = ParquetSink(tmp_path)
    [table] = [layout.table_folder(tmp_path, "traffic", lake_states.columns_of(PLAN))]
    for minute in range(5):
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (minute, 1)}))
        sink.flush()
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    [folder] = layout.day_folders(table)
    files = [file.path for file in layout.files(folder)]
    for count in range(1, 6):
        assert Index(table).update([folder], files[count:])
    names = sorted(path.name for path in (table / "_delta_log").iterdir())
    assert names == [f"{4:020}.checkpoint.parquet", f"{4:020}.json", "_last_checkpoint"]
    log = Index(table)
    log.refresh()
    assert (log.state.version, len(log.state.shown)) == (4, 5)
    for read in (by_delta_rs, by_polars):
        assert read(table) == lake_states.groups(tmp_path)


def test_of_two_writers_of_one_version_the_second_lists_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_random(tmp_path, 4)
    [table] = layout.tables(tmp_path, "traffic")
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    slow, quick = Index(table), Index(table)
    listed = slow._actions

    def late(*about: Any) -> list[Action]:
        actions = listed(*about)
        if quick.state.version < 0:
            assert quick.update([])
        return actions

    monkeypatch.setattr(slow, "_actions", late)
    assert not slow.update([])
    assert by_file_list(table) == lake_states.groups(tmp_path)
    assert len(list((table / "_delta_log").iterdir())) == 1


def test_a_crash_at_any_step_shows_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    sink = ParquetSink(tmp_path)
    for minute in range(4):
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (minute, 1)}))
    sink.flush()
    [table] = layout.tables(tmp_path, "traffic")
    old = by_file_list(table)
    steps = ("fsync", "rename", "link")
    chance = random.Random(1)
    for number in range(2, 8):
        groups = {("/a", 200): (number * 10, 1)}
        state = traffic_state(PLAN, START + number % 4 * MINUTE, groups, revision=(0, 0, number))
        sink.put_state(state)
        new = old | {key: (number * 10, 1) for key in old if key[0] == _time(number % 4)}
        left = chance.randrange(8)

        def crash(real: Callable[..., None], *about: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "crash")
            real(*about)

        with monkeypatch.context() as patched:
            for step in steps:
                real = getattr(os, step)
                patched.setattr(os, step, lambda *about, real=real: crash(real, *about))
            try:
                sink.flush()
            except OSError:
                assert left < 0
        assert by_file_list(table) in (old, new)
        sink.flush()
        Index(table).update(layout.day_folders(table))
        assert by_file_list(table) == new == lake_states.groups(tmp_path)
        old = new


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp((START + minute * MINUTE) // 10**6, UTC)


def test_a_file_that_cannot_be_read_is_left_out_and_hides_older_revisions(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for number, minute in ((1, 0), (1, 1), (2, 0)):
        sink.put_state(
            traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (5, 5)}, revision=(0, 0, number))
        )
        sink.flush()
    [table] = layout.tables(tmp_path, "traffic")
    [folder] = layout.day_folders(table)
    [newest] = [file.path for file in layout.files(folder) if (0, 0, 2) in file.panes.values()]
    newest.write_bytes(newest.read_bytes()[:-9])
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    assert Index(table).update([])
    assert by_file_list(table) == {(_time(1), "/a", 200): (5, 5)}


def test_verify_finds_what_is_wrong_and_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_random(tmp_path, 5)
    [table] = layout.tables(tmp_path, "traffic")
    commits = sorted((table / "_delta_log").iterdir())

    def verified(repair: bool) -> tuple[int, str]:
        return verify_command(tmp_path, repair), capsys.readouterr().out

    assert verified(False) == (0, f"traffic  {_table(table)}  as the files\n")
    commits[-1].unlink()  # as by a crash before the last commit
    code, told = verified(False)
    assert code == 1
    assert "wrong: the log shows" in told
    assert "--repair" in told
    assert verified(True)[0] == 0
    assert by_file_list(table) == lake_states.groups(tmp_path)
    commits[0].write_bytes(b'{"add":{"pa')
    assert verified(False)[1].startswith(f"traffic  traffic/{table.name}  no log  wrong: ")
    code, told = verified(True)
    assert (code, "mended: the log is damaged: a commit cannot be read" in told) == (0, True)
    assert verified(False) == (0, f"traffic  {_table(table)}  as the files\n")
    assert by_file_list(table) == lake_states.groups(tmp_path)
    with pytest.raises(UsageError, match="there is no lake at"):
        verify_command(tmp_path / "none", False)


def _table(table: Path) -> str:
    log = Index(table)
    log.refresh()
    return f"traffic/{table.name}  version {log.state.version}, {len(log.state.shown)} files"


@pytest.mark.spark
def test_plain_spark_takes_no_partition_for_a_number(spark: Any, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    versions = ("12345e678901", "0f0000000000", "404040404040")
    for version in versions:
        sink.put_state(traffic_state(PLAN, START, {("/a", 200): (1, 1)}, job="404", version=version))
    sink.flush()
    found = spark.read.parquet(str(tmp_path / "404")).select("version", "date", "_acc0").collect()
    assert sorted(tuple(row) for row in found) == sorted(
        (f"v{version}", datetime.fromtimestamp(START // 10**6, UTC).date(), 1) for version in versions
    )
    [table] = layout.tables(tmp_path, "404")
    log = Index(table)
    log.refresh()
    active = spark.read.option("basePath", str(table)).parquet(
        *(str(table / path) for path in log.state.shown)
    )
    assert active.where("version = 'v12345e678901'").count() == 1
    assert (
        msgspec.json.decode(log.state.meta_data.schema_string if log.state.meta_data else b"")["type"]
        == "struct"
    )
