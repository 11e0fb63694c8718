"""`elf lake show`: what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from elf.agent.commands.lake.lake import show_command
from elf.errors import UsageError
from elf.sinks.lake import layout, parquet
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.show import show
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import DAY, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_compact import FOREVER

pytestmark = pytest.mark.process
PLAN = traffic_plan()
GROUPS = {("/a", 200): (1, 1), ("/b", 200): (2, 2)}


def put(lake: Path) -> None:
    """Two days: of the first a minute that is published twice, one of whose agents is missing, one empty, one withdrawn."""
    sink = ParquetSink(lake)
    sink.put_state(traffic_state(PLAN, START, GROUPS))
    sink.put_state(
        replace(traffic_state(PLAN, START + MINUTE, GROUPS), agents_reporting=1, agents_expected=2)
    )
    sink.put_state(traffic_state(PLAN, START + 2 * MINUTE, {}))
    sink.put_state(traffic_state(PLAN, START + 3 * MINUTE, GROUPS))
    sink.put_state(traffic_state(PLAN, START + DAY, GROUPS))
    sink.flush()
    sink.put_state(traffic_state(PLAN, START, GROUPS, revision=(0, 0, 2)))
    gone = traffic_state(PLAN, START + 3 * MINUTE, {}, revision=(0, 0, 2))
    sink.put_state(replace(gone, status="withdrawn"))
    sink.flush()


def test_what_is_in_a_lake(tmp_path: Path) -> None:
    put(tmp_path)
    files = lake_states.files(tmp_path)
    [found] = show(tmp_path)
    [table] = layout.tables(tmp_path, "traffic")
    # Files of panes 0, 1 and 3; of 2; of the next day; of 0 again; of 3, withdrawn; of 1 alone, which the Delta log needs.
    assert msgspec.structs.asdict(found) == {
        "job": "traffic",
        "columns": table.name,
        "version": "0123456789ab",
        "log": 1,
        "since": START,
        "until": START + DAY + MINUTE,
        "windows": 4,
        "incomplete": 1,
        "withdrawn": 1,
        "superseded": 3,
        "rows": 3 * 2 + 1 + 2 + 2 + 1 + 2,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "damaged": 0,
    }
    assert len(files) == 6
    parquet.compact(tmp_path, FOREVER)
    [found] = show(tmp_path, "traffic")
    counts = (found.windows, found.incomplete, found.withdrawn, found.superseded, found.rows, found.files)
    assert counts == (4, 1, 1, 0, 2 * 2 + 2 + 2, 3)


def test_a_file_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    put(tmp_path)
    last = lake_states.files(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:-9])
    [found] = show(tmp_path)
    assert (found.windows, found.files, found.damaged) == (4, 6, 1)


def test_a_row_for_each_version_in_three_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = ParquetSink(tmp_path)
    for version in ("a" * 12, "b" * 12):
        sink.put_state(traffic_state(PLAN, START, GROUPS, version=version))
    sink.put_state(traffic_state(traffic_plan(window=None), 0, GROUPS, job="all"))
    sink.flush()
    show_command(tmp_path, None, "json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["job"], row["version"], row["windows"]) for row in rows] == [
        ("all", "0123456789ab", 1),
        ("traffic", "a" * 12, 1),
        ("traffic", "b" * 12, 1),
    ]
    assert (rows[0]["since"], rows[0]["until"]) == (None, None)
    show_command(tmp_path, "traffic", "csv")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "job,columns,version,log,since,until,windows,incomplete,withdrawn,superseded,rows,"
    )
    assert len(lines) == 3
    show_command(tmp_path, "all", "table")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no lake at"):
        show_command(tmp_path, None, "json")
    put(tmp_path)
    with pytest.raises(UsageError, match="has no job traffik; it has traffic"):
        show_command(tmp_path, "traffik", "json")
    with pytest.raises(UsageError, match="'html:x' is none of table, json and csv"):
        show_command(tmp_path, None, "html:x")
