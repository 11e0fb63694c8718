"""The Parquet lake: names, the sink and its writer process, retries, crashes, full disks."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import ElfError, UsageError
from elf.jobmaster.windows.result import Lines, PaneState, Revision, StateColumn, Window
from elf.sinks.lake import files as lake_files
from elf.sinks.lake import layout, parquet
from elf.sinks.lake.cells import tables
from elf.sinks.lake.frames import Answer, CompactFrame, Done, read_frames, write_frame
from elf.sinks.lake.layout import Pane
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.lake.types import arrow_array, arrow_type
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


# Names.

panes_in_an_hour = st.lists(
    st.tuples(
        st.integers(0, 3599),
        st.tuples(st.integers(0, 3), st.integers(0, 2**128 - 1), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=120,
    unique_by=lambda pane: pane[0],
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(panes_in_an_hour)
def test_file_names_hold_the_panes_and_their_revisions(found: list[tuple[int, Revision]]) -> None:
    second = 1_000_000
    panes = [Pane(START + i * second, START + (i + 1) * second, rev, f"{i:016x}") for i, rev in found]
    named = list(layout.files_of("job", VERSION, panes))
    read: dict[int, Revision] = {}
    for name, part in named:
        assert len(name.encode()) <= 255
        file = layout.parse(Path(name))
        assert file is not None
        assert file.panes == {pane.start: pane.revision for pane in part}
        assert not read.keys() & file.panes.keys()
        read |= file.panes
    assert read == {pane.start: pane.revision for pane in panes}
    assert named == list(layout.files_of("job", VERSION, reversed(panes)))


def test_a_dense_hour_is_one_file_with_a_short_name() -> None:
    panes = [Pane(START + i * 1_000_000, START + (i + 1) * 1_000_000, (0, 0, 1), "d") for i in range(3600)]
    [(name, part)] = layout.files_of("job", VERSION, panes)
    assert len(part) == 3600
    assert name.startswith(f"{START}-1000000-0x3600r0.0.1-")


@pytest.mark.parametrize(
    "name", [".1-1-0r0.0.1-0123456789abcdef.parquet", "x.parquet", "1-1-0-0123456789abcdef.parquet"]
)
def test_other_names_are_not_the_lakes(name: str) -> None:
    assert layout.parse(Path(name)) is None


def test_folders_take_any_job_name_and_no_window() -> None:
    root = Path("/lake")
    table = layout.table_folder(root, "a/b c=é..", (StateColumn("_acc0", "bigint", "sum"),))
    assert (str(table.parent), len(table.name)) == ("/lake/a%2Fb%20c%3D%C3%A9..", len("columns-") + 12)
    folder = layout.pane_folder(table, VERSION, START + 3 * HOUR + MINUTE, START + 3 * HOUR + 2 * MINUTE)
    assert folder == table / f"version=v{VERSION}/date=2026-09-21"
    assert (layout.job_of(table), layout.version_of(folder)) == ("a/b c=é..", VERSION)
    assert layout.pane_folder(table, VERSION, 0, 0).name == "date=__HIVE_DEFAULT_PARTITION__"
    assert layout.pane_folder(table, VERSION, -1, 0).name == "date=1969-12-31"
    assert [layout.job_folder(root, name).name for name in ("..", "_a")] == ["%2E.", "%5Fa"]
    assert table != layout.table_folder(root, "a/b c=é..", (StateColumn("_acc0", "int", "sum"),))


# The sink.


def test_panes_of_one_hour_share_a_file_and_keep_their_values(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    expected = {}
    for minute in range(90):
        state = traffic_state(
            PLAN, START + minute * MINUTE, {("/a", 200): (minute + 1, 10**6 * minute), (None, 404): (1, 5)}
        )
        sink.put_state(state)
        expected[minute] = (minute + 1, 10**6 * minute)
    sink.flush()
    assert [path.parent.name for path in files(tmp_path)] == ["date=2026-09-21"] * 2
    found = {row["_pane_start"]: row for row in rows(tmp_path) if row["path"] == "/a"}
    assert len(found) == 90
    for at, row in found.items():
        minute = int(at.timestamp() * 1_000_000 - START) // MINUTE
        assert (row["_acc0"], row["_acc2"]) == expected[minute]
        assert (row["_pane_end"] - at).seconds == 60
        assert (row["_status"], row["_revision_n"], row["_lines_read"]) == ("final", 1, minute + 3)
    assert sum(row["path"] is None for row in rows(tmp_path)) == 90


def test_an_empty_pane_is_a_row_and_replaces_its_forerunner(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (3, 30)}))
    sink.flush()
    sink.put_state(traffic_state(PLAN, START, {}, revision=(0, 0, 2), lines=Lines(9, 7, 2, 1, (("ms", 3),))))
    sink.flush()
    [row] = rows(tmp_path)
    assert row["_empty"]
    assert row["_status"] == "revised"
    assert [row[f"_lines_{name}"] for name in ("read", "parsed", "rejected", "late")] == [9, 7, 2, 1]
    assert row["_not_converted"] == [("ms", 3)]
    assert row["path"] is row["_acc0"] is None


def test_the_pane_of_a_query_without_windows(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(traffic_plan(window=None), 0, {("/a", 200): (3, 30)}))
    sink.flush()
    [path] = files(tmp_path)
    assert path.parent.name == "date=__HIVE_DEFAULT_PARTITION__"
    assert [(row["_pane_start"], row["_acc0"]) for row in rows(tmp_path)] == [(None, 3)]
    assert layout.ledger(tmp_path, "traffic") == {(VERSION, 0): (0, 0, 1)}


def test_a_retry_writes_the_same_file_and_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for attempt in ("one", "two", "two"):  # the last is the retry
        sink = ParquetSink(tmp_path / attempt)
        for minute in range(5):
            sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (minute, 7)}))
        sink.flush()
        written.append(
            {
                str(path.relative_to(tmp_path / attempt)): path.read_bytes()
                for path in files(tmp_path / attempt)
            }
        )
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 1


def test_the_highest_revision_counts_in_any_order(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    revisions: list[Revision] = [(0, 0, 2), (1, 2**127, 1), (1, 5, 9), (0, 7, 7), (1, 2**127, 1)]
    for n, revision in enumerate(revisions):
        sink.put_state(traffic_state(PLAN, START, {("/a", 200): (n, n)}, revision=revision))
        if n != 1:
            sink.flush()
    assert layout.ledger(tmp_path, "traffic") == {(VERSION, START): (1, 2**127, 1)}
    found = rows(tmp_path)
    assert len(found) == 1
    assert found[0]["_revision_node"] == f"{2**127:048x}"
    assert layout.jobs(tmp_path) == ["traffic"]


def test_a_lower_revision_is_acknowledged_and_not_written(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (2, 2)}, revision=(0, 0, 2)))
    sink.flush()
    before = files(tmp_path)
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (1, 1)}))
    sink.flush()
    assert files(tmp_path) == before
    assert sink.pending_bytes == 0


def test_names_that_are_taken_are_stored_under_others(tmp_path: Path) -> None:
    columns = tuple(
        StateColumn(name, "bigint", "key") for name in ("date", "_lines_read", "DATE", "date_1", "_empty")
    )
    assert tables.stored_names(columns) == ["date_1", "_lines_read_1", "DATE_2", "date_1_1", "_empty_1"]
    state = PaneState(
        "j",
        VERSION,
        START,
        START + MINUTE,
        "final",
        (0, 0, 1),
        Lines(),
        columns,
        [[i] for i in range(5)],
        b"",
    )
    sink = ParquetSink(tmp_path)
    sink.put_state(state)
    sink.flush()
    [row] = rows(tmp_path)
    assert [row[name] for name in tables.stored_names(columns)] == [0, 1, 2, 3, 4]
    about = lake_files.read_about(files(tmp_path)[0])
    assert [column["name"] for column in about["columns"]] == [column.name for column in columns]


TYPED: list[tuple[str, list[Any], list[Any]]] = [
    ("boolean", [True, None], [True, None]),
    ("int", [-(2**31), None], [-(2**31), None]),
    ("bigint", [2**63 - 1, None], [2**63 - 1, None]),
    ("double", [float("inf"), -0.0], [float("inf"), -0.0]),
    ("string", ["é\x00\ufffd", ""], ["é\x00\ufffd", ""]),
    ("decimal(38,0)", [10**38 - 1, Decimal(-1)], [Decimal(10**38 - 1), Decimal(-1)]),
    ("decimal(38,6)", [Decimal("1E-6"), None], [Decimal("0.000001"), None]),
    ("decimal(18,6)", [Decimal("123456789012.123456"), 0], [Decimal("123456789012.123456"), Decimal(0)]),
    ("array<bigint>", [[1, 2], []], [[1, 2], []]),
    ("array<decimal(18,6)>", [[Decimal("0.5")], None], [[Decimal("0.5")], None]),
    ("array<struct<_0:string,_1:bigint>>", [[("a", 1)], []], [[{"_0": "a", "_1": 1}], []]),
    ("map<int,bigint>", [{2: 3, -1: 4}, {}], [[(-1, 4), (2, 3)], []]),
]


@pytest.mark.parametrize(("kind", "given_", "expected"), TYPED, ids=[kind for kind, _, _ in TYPED])
def test_every_type_through_the_process(
    tmp_path: Path, kind: str, given_: list[Any], expected: list[Any]
) -> None:
    columns = (StateColumn("c", kind, "sum"),)
    sink = ParquetSink(tmp_path)
    sink.put_state(
        PaneState("j", VERSION, START, START + MINUTE, "final", (0, 0, 1), Lines(), columns, [given_], b"")
    )
    sink.flush()
    assert [row["c"] for row in rows(tmp_path)] == expected


@pytest.mark.parametrize("text", ["", "text", "array<>", "decimal(5)", "map<int>", "array<int", "struct<a>"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a Spark type|unpack"):
        arrow_type(text)


def test_a_number_that_does_not_fit_is_an_error_and_not_another_number() -> None:
    with pytest.raises(pa.ArrowInvalid):
        arrow_array([2**31], arrow_type("int"))


def test_open_windows_and_windows_for_people_stay_out(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    state = traffic_state(PLAN, START, {("/a", 200): (1, 1)})
    sink.put_state(
        PaneState(**{name: getattr(state, name) for name in state.__struct_fields__} | {"status": "open"})
    )
    sink.put(Window("j", VERSION, START, START + MINUTE, "final", (0, 0, 1), Lines(), (), []))
    sink.close()
    assert files(tmp_path) == []
    assert (sink.wants_open, sink.wants_state) == (False, True)


def test_a_pane_with_more_groups_than_a_row_group(tmp_path: Path) -> None:
    count = tables.ROWS_PER_GROUP * 2 + 5
    sink = ParquetSink(tmp_path)
    for minute in range(2):
        sink.put_state(
            traffic_state(PLAN, START + minute * MINUTE, {(f"/{i}", 200): (i, i) for i in range(count)})
        )
    sink.flush()
    [path] = files(tmp_path)
    table = pq.read_table(path, columns=["_acc0"])
    assert len(table) == 2 * count
    assert sum(table.column("_acc0").to_pylist()) == count * (count - 1)


# Failures.


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow past `size`: a full disk as any user can have it (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def many_groups(n: int) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {(f"/{i * 7919 % 100_003}", i): (i, i * i) for i in range(n)}


@pytest.mark.usefixtures("bare_writers")
def test_a_failed_flush_keeps_everything_and_the_next_one_writes_it(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(PLAN, START, many_groups(20_000)))
    with largest_file(10_000), pytest.raises(OSError) as caught:  # noqa: PT011
        sink.flush()
    assert caught.value.errno == errno.EFBIG
    assert files(tmp_path) == []
    assert sink.pending_bytes > 0
    sink.flush()
    assert sink.pending_bytes == 0
    assert len(groups(tmp_path)) == 20_000


@pytest.mark.usefixtures("bare_writers")
def test_what_was_durable_before_the_failure_is_not_sent_again(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (1, 1)}))
    sink.put_state(traffic_state(PLAN, START + DAY, many_groups(20_000)))
    before = sink.pending_bytes
    with largest_file(10_000), pytest.raises(OSError):  # noqa: PT011
        sink.flush()
    assert [path.parent.name for path in files(tmp_path)] == ["date=2026-09-21"]
    assert 0 < sink.pending_bytes < before
    sink.put_state(traffic_state(PLAN, START + 2 * DAY, {("/a", 200): (1, 1)}))
    sink.flush()
    days = ["date=2026-09-21", "date=2026-09-22", "date=2026-09-23"]
    assert [path.parent.name for path in files(tmp_path)] == days


def test_a_disk_without_room_is_enospc(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small tmpfs")
    try:
        sink = ParquetSink(tmp_path)
        sink.put_state(traffic_state(PLAN, START, many_groups(20_000)))
        with pytest.raises(OSError) as caught:  # noqa: PT011
            sink.flush()
        assert caught.value.errno == errno.ENOSPC
        assert files(tmp_path) == []
        subprocess.run(["mount", "-o", "remount,size=16m", str(tmp_path)], check=True)
        sink.flush()
        assert len(groups(tmp_path)) == 20_000
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_writer_that_is_killed_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (1, 1)}))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(_killed_python(tmp_path)))
        with pytest.raises(OSError, match=f"signal {signal.SIGKILL.value}"):
            sink.flush()
    assert sink.pending_bytes > 0
    sink.flush()
    assert len(groups(tmp_path)) == 1


def _killed_python(folder: Path) -> Path:
    """A Python that dies as by the out-of-memory killer."""
    script = folder / "python"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    return script


def test_a_crash_between_write_and_rename_leaves_nothing_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's own code, stopped at the rename as by a power cut: the file is there, under its hidden name."""
    code = (
        "import os, sys\n"
        "def crash(*_): os._exit(9)\n"
        "os.rename = crash\n"
        "from elf.sinks.lake import writer\n"
        "writer.main()\n"
    )
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}'\n")
    script.chmod(0o755)
    sink = ParquetSink(tmp_path / "lake")
    sink.put_state(traffic_state(PLAN, START, {("/a", 200): (1, 1)}))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(script))
        with pytest.raises(OSError, match="exit code 9"):
            sink.flush()
    [unfinished] = files(tmp_path / "lake")
    assert unfinished.name.startswith(".")
    assert unfinished.stat().st_size > 0
    assert layout.ledger(tmp_path / "lake", "traffic") == {}
    sink.flush()
    [path] = files(tmp_path / "lake")
    assert path.suffix == ".parquet"
    assert len(groups(tmp_path / "lake")) == 1


def test_a_writer_whose_agent_was_killed_says_nothing(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for minute in range(2):
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, {("/a", 200): (1, 1)}))
        sink.flush()
    request = io.BytesIO()
    write_frame(request, CompactFrame(str(tmp_path), START + 2 * HOUR))
    nobody_reads, answers = os.pipe()
    os.close(nobody_reads)
    writer = subprocess.run(
        [sys.executable, "-m", "elf.sinks.lake.writer"],
        input=request.getvalue(),
        stdout=answers,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(answers)
    assert (writer.returncode, writer.stderr) == (1, b"")


def test_the_unfinished_file_of_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    living, dead = tmp_path / ".a.tmp", tmp_path / ".b.tmp"
    for path in (living, dead):
        path.touch()
    with living.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        layout.remove_abandoned(tmp_path)
    assert living.exists()
    assert not dead.exists()


def test_a_value_that_does_not_fit_is_an_error_that_names_it(tmp_path: Path) -> None:
    columns = (StateColumn("c", "int", "sum"),)
    sink = ParquetSink(tmp_path)
    sink.put_state(
        PaneState("j", VERSION, START, START + MINUTE, "final", (0, 0, 1), Lines(), columns, [[2**40]], b"")
    )
    with pytest.raises(OSError, match=r"ArrowInvalid.*1099511627776"):
        sink.flush()


def test_no_pyarrow_and_no_folder_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the lake's folder"):
        ParquetSink(tmp_path / "file" / "lake")
    monkeypatch.setattr(parquet, "find_spec", lambda _: None)
    with pytest.raises(ElfError, match=r"pip install 'elf-mesh\[lake\]'"):
        ParquetSink(tmp_path)


def test_the_sink_itself_never_loads_pyarrow() -> None:
    code = "import sys, elf.sinks.lake.parquet, elf.sinks.lake.layout; print('pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_a_torn_answer_is_no_answer() -> None:
    whole = io.BytesIO()
    write_frame(whole, Done((1, 2)))
    write_frame(whole, Done((3,)))
    for length in range(len(whole.getvalue()) + 1):
        found = list(read_frames(io.BytesIO(whole.getvalue()[:length]), Answer))
        assert found == [Done((1, 2)), Done((3,))][: len(found)]
        assert (len(found) == 2) == (length == len(whole.getvalue()))


def test_nothing_pending_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "WriterProcess", None)
    sink = ParquetSink(tmp_path)
    sink.flush()
    sink.close()
    assert os.listdir(tmp_path) == []
