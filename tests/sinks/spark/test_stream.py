"""The stream of a lake: every pane's newest revision exactly once, whatever is compacted, however often it starts again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from elf.errors import ElfError, UsageError
from elf.sinks.lake import layout, parquet
from elf.sinks.lake.frames import Level
from elf.sinks.lake.index import Index
from elf.sinks.lake.trees.coarsen import coarsen_lake
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import DAY, MINUTE, START
from tests.sinks.lake.test_lake_compact import FOREVER
from tests.sinks.spark.test_source import put

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from elf.sinks.spark.source import LakeSource
from elf.sinks.spark.stream import LakeStream

pytestmark = pytest.mark.process


def stream(lake: Path, **options: Any) -> LakeStream:
    source = LakeSource({"path": str(lake), **{name: str(value) for name, value in options.items()}})
    found = source.streamReader(source.schema())
    assert isinstance(found, LakeStream)
    return found


def batch(reader: LakeStream, start: Any, end: Any) -> dict[tuple[int, str], Any]:
    """{(pane, revision's n or "gone"): {(path, status): hits}}. Offsets travel as JSON."""
    found: dict[tuple[int, str], Any] = {}
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    for partition in reader.partitions(start, end):
        for rows in reader.read(partition):
            for row in rows.to_pylist():
                minute = int(row["_pane_start"].timestamp() * 1e6 - START) // MINUTE
                n = "gone" if row["_empty"] else str(row["_revision_n"])
                groups = found.setdefault((minute, n), {})
                assert (row["path"], row["status"]) not in groups
                groups[row["path"], row["status"]] = row["_acc0"]
    return found


def one(n: int) -> dict[tuple[str, int], tuple[int, int]]:
    return {("/a", 200): (n, n)}


def seen(n: int) -> dict[tuple[str, int], int]:
    return {("/a", 200): n}


def test_a_batch_has_the_panes_that_its_commits_changed(tmp_path: Path) -> None:
    put(tmp_path, {0: one(1), 1: one(2), 2: one(3)}, 1)
    reader = stream(tmp_path)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    assert batch(reader, start, first) == {(0, "1"): seen(1), (1, "1"): seen(2), (2, "1"): seen(3)}
    assert batch(reader, first, reader.latestOffset(first, ReadAllAvailable())) == {}
    put(tmp_path, {1: one(7), 5: one(9)}, 2)  # the panes 0 and 2 are written again, into another file
    second = reader.latestOffset(first, ReadAllAvailable())
    assert batch(reader, first, second) == {(1, "2"): seen(7), (5, "2"): seen(9)}
    assert parquet.compact(tmp_path, FOREVER) > 0
    third = reader.latestOffset(second, ReadAllAvailable())
    assert third["version"] > second["version"]
    assert batch(reader, second, third) == {}  # compaction is no news
    assert batch(reader, first, second) == {(1, "2"): seen(7), (5, "2"): seen(9)}  # from the merged file
    put(tmp_path, {5: {}}, 3)
    fourth = reader.latestOffset(third, ReadAllAvailable())
    assert batch(reader, third, fourth) == {(5, "gone"): {(None, None): None}}
    assert batch(reader, start, first) == {
        (0, "1"): seen(1),
        (2, "1"): seen(3),
    }  # 1 comes at its higher revision


@pytest.mark.parametrize("seed", range(3))
def test_any_batches_give_the_newest_revision_of_each_pane_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    put(tmp_path, {0: one(1)}, 1)
    offset: Any = stream(tmp_path).initialOffset()
    held: dict[int, Any] = {}
    arrived: set[tuple[int, str]] = set()
    for number in range(2, 8):
        if chance.random() < 0.3:
            parquet.compact(tmp_path, FOREVER)
        states: Any = {
            chance.randrange(4): one(chance.randrange(9)) if chance.random() > 0.2 else {} for _ in range(3)
        }
        put(tmp_path, states, number)
        reader = stream(tmp_path, maxFilesPerTrigger=1)  # started again
        if chance.random() < 0.6:
            end = reader.latestOffset(
                offset, reader.getDefaultReadLimit() if number < 7 else ReadAllAvailable()
            )
            offset = settle(reader, offset, end, held, arrived)
    reader = stream(tmp_path)
    settle(reader, offset, reader.latestOffset(offset, ReadAllAvailable()), held, arrived)
    expected = {
        (int(at.timestamp() * 1e6 - START) // MINUTE, path, status): hits
        for (at, path, status), (hits, _) in lake_states.groups(tmp_path).items()
    }
    assert {(minute, *key): hits for minute, rows in held.items() for key, hits in rows.items()} == expected


def settle(
    reader: LakeStream, start: Any, end: Any, held: dict[int, Any], arrived: set[tuple[int, str]]
) -> Any:
    """Take a batch, twice: it is the same after a crash."""
    found = batch(reader, start, end)
    assert batch(reader, start, end) == found
    for (minute, n), rows in found.items():
        held[minute] = {} if n == "gone" else rows
        if n != "gone":
            assert (minute, n) not in arrived
            arrived.add((minute, n))
    return end


def test_days_that_have_longer_windows(tmp_path: Path) -> None:
    put(tmp_path, {minute: one(minute) for minute in range(1, 6)}, 1)
    reader = stream(tmp_path)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadAllAvailable())
    put(tmp_path, {7: one(7), 1445: one(1)}, 1)
    second = reader.latestOffset(first, ReadAllAvailable())
    assert batch(reader, first, second) == {(7, "1"): seen(7), (1445, "1"): seen(1)}
    put(tmp_path, {8: one(8)}, 1)
    [merged] = coarsen_lake(tmp_path, None, [Level(5 * MINUTE, START + DAY)])
    assert (merged.before, merged.after) == (7, 2)
    third = reader.latestOffset(second, ReadAllAvailable())
    with pytest.raises(
        ElfError, match=r"date=2026-09-21 holds longer windows by now, which contain those that the stream"
    ):
        reader.partitions(second, third)
    put(tmp_path, {1446: one(2)}, 1)
    fourth = reader.latestOffset(third, ReadAllAvailable())
    assert batch(reader, third, fourth) == {(1446, "1"): seen(2)}  # the longer windows are no news
    whole = {
        (0, "1"): seen(1 + 2 + 3 + 4),
        (5, "1"): seen(5 + 7 + 8),
        (1445, "1"): seen(1),
        (1446, "1"): seen(2),
    }
    assert batch(reader, start, fourth) == whole  # a stream that begins now
    bounded = stream(tmp_path, maxFilesPerTrigger=1)
    at, found = start, dict[tuple[int, str], Any]()
    while (end := bounded.latestOffset(at, bounded.getDefaultReadLimit())) != at:
        found |= batch(bounded, at, end)
        at = end
    assert found == whole


def test_a_stream_gives_the_windows_as_they_are(tmp_path: Path) -> None:
    put(tmp_path, {0: one(1)}, 1)
    with pytest.raises(UsageError, match="option every: a stream gives the windows as they are stored"):
        stream(tmp_path, every="1h")


def test_batches_are_bounded_by_files(tmp_path: Path) -> None:
    for number in range(1, 5):
        put(tmp_path, {number * 60: one(number)}, 1)
    reader = stream(tmp_path, maxFilesPerTrigger=2)
    reader.prepareForTriggerAvailableNow()
    put(tmp_path, {600: one(9)}, 1)  # too late for what is available now
    offset, ends = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        ends.append(len(batch(reader, offset, end)))
        offset = end
    assert ends == [2, 2]
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxFiles)
    with pytest.raises(UsageError, match="maxFilesPerTrigger: '0' is no number of files"):
        stream(tmp_path, maxFilesPerTrigger=0)


def test_offsets_that_the_log_cannot_answer_fail_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.sinks.lake.index.CHECKPOINT_EVERY", 2)
    for number in range(1, 4):
        put(tmp_path, {number: one(number)}, 1)
    [table] = layout.tables(tmp_path, "traffic")
    log = table / "_delta_log"
    index = Index(table)
    index.refresh()
    index._checkpoint()
    reader = stream(tmp_path)
    begin, newest = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for path in log.glob("0*[01].json"):
        path.unlink()
    whole = {(minute, "1"): seen(minute) for minute in (1, 2, 3)}
    assert batch(reader, begin, newest) == whole  # a new stream begins with the checkpoint
    with pytest.raises(ElfError, match=r"stands at version 0 of .*, whose log now begins at version 2"):
        reader.partitions({**newest, "version": 0}, newest)
    with pytest.raises(ElfError, match="that was made again since; begin anew"):
        reader.partitions({**newest, "log": 1}, newest)
    with pytest.raises(ElfError, match="that was made again since; begin anew"):
        reader.latestOffset({**newest, "version": 9}, ReadMaxFiles(1))


def test_spark_goes_on_where_it_stopped(spark: Any, tmp_path: Path) -> None:
    lake, out, checkpoint = (tmp_path / name for name in ("lake", "out", "checkpoint"))

    def drain() -> list[tuple[int, int]]:
        frame = spark.readStream.format("elf").option("maxFilesPerTrigger", 1).load(str(lake))
        chosen = frame.select("_revision_n", "_acc0").writeStream.format("parquet")
        chosen = chosen.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        for attempt in range(
            9
        ):  # Spark gives the stream's Python process ten seconds to start, which a busy machine may not
            try:
                chosen.start(str(out)).awaitTermination()
                break
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error) or attempt == 8:
                    raise
        return sorted(tuple(row) for row in spark.read.parquet(str(out)).collect())

    put(lake, {0: one(3), 60: one(4)}, 1)
    assert drain() == [(1, 3), (1, 4)]
    put(lake, {0: one(8)}, 2)
    parquet.compact(lake, FOREVER)
    assert drain() == [(1, 3), (1, 4), (2, 8)]
