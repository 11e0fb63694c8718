"""`elf lake view`: readers of plain Parquet find what readers of the Delta log find."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from elf.agent.commands.lake.lake import view_command
from elf.errors import UsageError
from elf.jobmaster.values.sql_types import STRING
from elf.sinks.lake import layout, parquet
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_compact import FOREVER, put_random
from tests.sinks.lake.test_lake_delta import Shown, by_delta_rs, by_file_list, shown

pytestmark = pytest.mark.process
PLAN = traffic_plan()
Read = Callable[[Path, str], Shown]


def by_duckdb(lake: Path, job: str) -> Shown:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install duckdb")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(view_command(lake, job, "duckdb"))
        return shown(_utc(connection.sql(f'FROM "{job}"').to_arrow_table().to_pylist()))


def by_pandas(lake: Path, job: str) -> Shown:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    names: dict[str, Any] = {}
    exec(view_command(lake, job, "pandas"), names)
    rows = names["panes"].to_dict("records")
    return shown(
        _utc([{name: None if value is pandas.NA else value for name, value in row.items()} for row in rows])
    )


def _utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        if row["_pane_start"] is not None:
            row["_pane_start"] = row["_pane_start"].astimezone(UTC)
    return rows


READERS = [by_duckdb, by_pandas]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("seed", range(2))
def test_plain_readers_find_what_readers_of_the_log_find(tmp_path: Path, seed: int, read: Read) -> None:
    lake = tmp_path / "it's [a] lake"
    put_random(lake, seed)
    [table] = layout.tables(lake, "traffic")
    expected = by_file_list(table)
    assert expected == lake_states.groups(lake)
    assert expected == by_delta_rs(table)
    assert len(expected) > 20
    assert read(lake, "traffic") == expected
    parquet.compact(lake, FOREVER)
    assert read(lake, "traffic") == expected


@pytest.mark.parametrize("read", READERS)
def test_copies_of_a_pane_in_several_files_count_once(tmp_path: Path, read: Read) -> None:
    sink = ParquetSink(tmp_path)
    for minute in (0, 1):
        groups = {(path, 200): (minute + 1, 10) for path in ("/a", "/b")}
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, groups))
        sink.flush()
    expected = lake_states.groups(tmp_path)
    old = lake_states.files(tmp_path)
    saved = [Path(copy(path, tmp_path / f"{i}.saved")) for i, path in enumerate(old)]
    parquet.compact(tmp_path, FOREVER)
    for path, copied in zip(old, saved, strict=True):
        copied.rename(path)  # as by a crash before compaction had removed them
    assert len(lake_states.files(tmp_path)) == 3
    assert read(tmp_path, "traffic") == expected
    assert len(expected) == 4


@pytest.mark.parametrize("read", READERS)
def test_the_window_of_a_query_without_windows(tmp_path: Path, read: Read) -> None:
    plan, job = traffic_plan(window=None), 'a "job"/ñ'
    sink = ParquetSink(tmp_path)
    for n, hits in ((1, 3), (2, 4)):
        sink.put_state(traffic_state(plan, 0, {("/a", 200): (hits, 9)}, job=job, revision=(0, 0, n)))
        sink.flush()
    if read is by_pandas:
        assert read(tmp_path, job) == {(None, "/a", 200): (4, 9)}
    else:
        assert view_command(tmp_path, job, "duckdb").startswith('CREATE OR REPLACE VIEW "a ""job""/ñ" AS ')


def test_each_table_has_a_line_and_the_newest_has_the_name_of_the_job(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    older = traffic_plan((("path", STRING),))
    sink.put_state(traffic_state(older, START, {("/a",): (1, 1)}))
    sink.put_state(traffic_state(PLAN, START + lake_states.DAY, {("/a", 200): (2, 2)}, version="1" * 12))
    sink.flush()
    first, second = view_command(tmp_path, "traffic", "duckdb").splitlines()
    old = layout.table_folder(tmp_path, "traffic", lake_states.columns_of(older)).name
    assert first.startswith(f'CREATE OR REPLACE VIEW "traffic {old}" AS ')
    assert second.startswith('CREATE OR REPLACE VIEW "traffic" AS ')
    assert len(view_command(tmp_path, "traffic", "pandas").splitlines()) == 2


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no lake at"):
        view_command(tmp_path, "traffic", "duckdb")
    put_random(tmp_path, 1, flushes=1)
    with pytest.raises(UsageError, match="has no job traffik; it has traffic"):
        view_command(tmp_path, "traffik", "duckdb")
    with pytest.raises(UsageError, match="'excel' is none of duckdb, pandas"):
        view_command(tmp_path, "traffic", "excel")
