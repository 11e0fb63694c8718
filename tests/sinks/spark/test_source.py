"""The format `elf`: what its reader gives without Spark, and that Spark finds it and reads the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elf.errors import ElfError, UsageError
from elf.sinks.lake import layout
from elf.sinks.lake.parquet import ParquetSink
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import DAY, MINUTE, START, traffic_plan, traffic_state
from tests.sinks.lake.test_lake_coarsen import of_longer

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan
from pyspark.sql.pandas.types import to_arrow_schema

from elf.sinks.spark.partitions import Parts
from elf.sinks.spark.rows import read
from elf.sinks.spark.source import LakeSource, PushedReader, may_match

pytestmark = pytest.mark.process
PLAN = traffic_plan()
HEAD = ["_pane_start", "path", "status", "_acc0", "_acc2"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three minutes of a day and one of the next; then one is revised, and one has no groups any more."""
    folder = tmp_path_factory.mktemp("lake")
    first = {at: {("/a", 200): (at + 1, 10), ("/é", 404): (1, None)} for at in (0, 1, 2, 1440)}
    put(folder, first, 1)
    put(folder, {0: {("/b", 200): (7, 70)}, 1: {}}, 2)
    return folder


def put(folder: Path, states: dict[int, Any], number: int, **more: Any) -> None:
    sink = ParquetSink(folder)
    for minute, groups in states.items():
        sink.put_state(traffic_state(PLAN, START + minute * MINUTE, groups, revision=(0, 0, number), **more))
    sink.close()


def rows(**options: Any) -> list[dict[str, Any]]:
    source = LakeSource({name: str(value) for name, value in options.items()})
    schema = source.schema()
    reader = source.reader(schema)
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def groups(found: list[dict[str, Any]]) -> dict[Any, tuple[int, int]]:
    keyed = {
        (row["_pane_start"], row["path"], row["status"]): (row["_acc0"], int(row["_acc2"])) for row in found
    }
    assert len(keyed) == len(found)
    return keyed


def test_each_pane_once_at_its_newest_revision(lake: Path) -> None:
    found = rows(path=lake)
    assert groups(found) == lake_states.groups(lake)
    assert {row["version"] for row in found} == {"v0123456789ab"}
    assert len({row["date"] for row in found}) == 2


def test_options_choose_panes_versions_and_times(lake: Path) -> None:
    at = f"{datetime.fromtimestamp((START + MINUTE) / 1e6, UTC):%Y-%m-%dT%H:%M:%S}"
    whole = lake_states.groups(lake)
    times = sorted({key[0] for key in whole})
    assert set(groups(rows(path=lake, since=at))) == {key for key in whole if key[0] > times[0]}
    assert set(groups(rows(path=lake, until=at, columns=",".join(HEAD)))) == {
        key for key in whole if key[0] == times[0]
    }
    assert len(rows(path=lake, as_of=0)) == 8
    assert len(rows(path=lake, as_of=datetime.now(UTC).isoformat())) == len(whole)
    for wrong, words in (
        ({"as_of": 99}, "has no version 99; its newest is 1"),
        ({"as_of": "2001-01-01"}, "has no version of 2001-01-01T00:00:00Z; its log begins at"),
        ({"columns": "hits"}, "there is no hits; there are _pane_start"),
        ({"job": "other"}, "has no job other; it has traffic"),
        ({"table": "x"}, "has no table x; it has columns-"),
        ({"since": "soon"}, "option since: 'soon' is no time"),
        (
            {"every": "2d"},
            r"every: 2d is no day, nor a part of one; merge days with elf\.spark\.rollup\(frame, every='2d'\)",
        ),
        (
            {"every": "90s"},
            r"job traffic: the option every must be a multiple of 60 s, the length of its panes",
        ),
        ({"every": "often"}, r"every='often' is no length"),
        ({"colums": "a"}, "there is no option colums"),
    ):
        with pytest.raises(UsageError, match=words):
            rows(path=lake, **wrong)
    with pytest.raises(UsageError, match="there is no lake at"):
        rows(path=lake / "none")


@pytest.mark.parametrize(("every", "minutes"), [("2 minutes", 2), ("1h", 60), ("1 day", 1440), ("1m", 1)])
def test_windows_are_merged_into_longer_ones(lake: Path, every: str, minutes: int) -> None:
    expected = of_longer(lake_states.groups(lake), minutes * MINUTE)
    found = rows(path=lake, every=every)
    assert groups(found) == expected
    assert {row["_pane_end"] - row["_pane_start"] for row in found} == {timedelta(minutes=minutes)}
    some = rows(path=lake, every=every, columns="path,_acc0,date", since="2026-09-22")
    assert sorted((row["path"], row["_acc0"]) for row in some) == [("/a", 1441), ("/é", 1)]
    assert set(some[0]) == {"path", "_acc0", "date"}


def test_only_the_columns_asked_for_are_read_from_the_file(tmp_path: Path) -> None:
    put(tmp_path, {0: {(f"/{os.urandom(60).hex()}", status): (1, 2) for status in range(8000)}}, 1)
    (file,) = layout.tables(tmp_path, "traffic")[0].rglob("*.parquet")

    def cost(columns: str) -> int:
        source = LakeSource({"path": str(tmp_path), "columns": columns})
        schema = source.schema()
        (partition,) = source.reader(schema).partitions()
        assert isinstance(partition, Parts)
        counted = Counted(file)
        batches = list(read(counted, partition.parts[0], to_arrow_schema(schema, timezone="UTC")))
        assert [batch.schema.names for batch in batches] == [columns.split(",")]
        assert sum(batch.num_rows for batch in batches) == 8000
        return counted.bytes

    assert cost("_acc0,version") < cost("path,_acc0") / 5


class Counted:
    """A file that counts what is read of it."""

    def __init__(self, path: Path) -> None:
        self._file, self.bytes, self.closed = path.open("rb"), 0, False

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self.bytes += len(found)
        return found

    def seek(self, *place: int) -> int:
        return self._file.seek(*place)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None:
        self._file.close()
        self.closed = True


def test_pushed_filters_leave_files_out(lake: Path) -> None:
    source = LakeSource({"path": str(lake)})
    from elf.sinks.spark.tables import options

    def files(*filters: Any) -> int:
        reader = PushedReader(options({"path": str(lake)}), source.schema())
        assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark filters the rows again
        return sum(len(part.parts) for part in reader.partitions() if isinstance(part, Parts))

    day = datetime.fromtimestamp(START / 1e6, UTC).date()
    whole = files()
    assert whole >= 2
    assert files(EqualTo(("version",), "vffffffffffff")) == 0
    assert files(EqualTo(("date",), day)) == whole - 1
    assert files(In(("date",), (day,)), EqualTo(("path",), "/a")) == whole - 1
    assert (
        files(GreaterThan(("_pane_start",), datetime.fromtimestamp((START + DAY - MINUTE) / 1e6, UTC))) == 1
    )
    assert (
        files(LessThan(("_pane_start",), datetime.fromtimestamp(START / 1e6, UTC).replace(tzinfo=None))) >= 1
    )
    (partition,) = source.reader(source.schema()).partitions()
    assert isinstance(partition, Parts)
    assert may_match(partition.parts[0], EqualTo(("version",), 7))  # of another type: not judged


def test_files_that_compaction_has_removed_are_named(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, {0: {("/a", 200): (number, 1)}, 1: {}}, number)
    source = LakeSource({"path": str(tmp_path)})
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    assert isinstance(partition, Parts)
    Path(partition.parts[0].path).unlink()
    with pytest.raises(ElfError, match="is gone: the lake was compacted while it was read"):
        list(reader.read(partition))
    with pytest.raises(ElfError, match="is gone: the lake was compacted since version 1"):
        reader.partitions()


def test_a_table_without_a_log_says_how_to_get_one(tmp_path: Path) -> None:
    put(tmp_path, {0: {("/a", 200): (1, 1)}}, 1)
    for path in (layout.tables(tmp_path, "traffic")[0] / "_delta_log").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match="has no Delta log; `elf lake verify LAKE --repair` makes it"):
        rows(path=tmp_path)


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_finds_the_format_and_reads_the_same(spark: Any, lake: Path) -> None:
    frame = spark.read.format("elf").option("job", "traffic").load(str(lake))
    assert frame.schema == LakeSource({"path": str(lake)}).schema()
    found = [row.asDict() for row in frame.select(HEAD).collect()]
    for row in found:
        row["_pane_start"] = row["_pane_start"].replace(tzinfo=UTC)
    assert groups(found) == lake_states.groups(lake)


@pytest.mark.usefixtures("pushing")
def test_spark_pushes_filters_where_the_session_allows_it(spark: Any, lake: Path) -> None:
    frame = spark.read.format("elf").load(str(lake))
    day = f"{datetime.fromtimestamp(START / 1e6, UTC):%Y-%m-%d}"
    few = frame.where(f"date = '{day}' AND status = 200")
    assert {row.path for row in few.collect()} == {"/a", "/b"}
