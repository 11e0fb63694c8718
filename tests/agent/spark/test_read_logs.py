"""One query text over raw logs: Spark's answer is that of `elf run`."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import elf
from elf.agent.spark import pieces
from elf.errors import FormatError, UsageError
from elf.spark import count_lines, read_logs
from tests.rigs.lines import lines

QUERIES = (
    "SELECT window.start AS s, status, count(*) AS n, sum(request_time) AS t, count(DISTINCT path) AS p, max(user) AS u, "
    "avg(bytes) AS b FROM access WHERE method <> 'HEAD' GROUP BY window(time, '30 seconds', '10 seconds'), status",
    "SELECT path, method, query, count(*) AS n FROM access GROUP BY path, method, query HAVING n > 2",
    "SELECT time, client_ip, user, path, status, bytes, referer, user_agent, request_time FROM access WHERE status >= 500",
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A log that is cut, with a line that is no line, and the older one, compressed."""
    folder, text = tmp_path_factory.mktemp("logs"), lines(1500, 7)
    new, old = folder / "access.log", folder / "access.log.1.gz"
    new.write_text("\n".join([*text[:900], "no line", *text[900:1000]]))
    old.write_bytes(gzip.compress(("\n".join(text[1000:]) + "\n").encode()))
    return [str(new), str(old), str(new)]  # one file twice


def multiset(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(aware(value) for value in row) for row in rows)


def aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def test_spark_answers_as_elf_run(spark: Any, logs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 1 << 16)
    frame = read_logs(spark, logs)
    assert frame.rdd.getNumPartitions() > 2
    frame.createOrReplaceTempView("access")
    for query in QUERIES:
        found = multiset(spark.sql(query).collect())
        assert found == multiset(row.values() for row in elf.run(query, logs).rows()), query
        assert len(found) > 5


def test_only_the_columns_asked_for_are_parsed(spark: Any, logs: list[str]) -> None:
    frame = read_logs(spark, logs[0], columns=["Status", "time"])
    assert frame.dtypes == [("status", "bigint"), ("time", "timestamp")]
    assert frame.count() == 1000
    assert read_logs(spark, logs[0], columns=[]).count() == 1000
    with pytest.raises(
        UsageError, match="these logs have no nothing; their columns are client_ip, user, time"
    ):
        read_logs(spark, logs[0], columns=["nothing"])


def test_rejected_lines_are_counted_and_shown(spark: Any, logs: list[str]) -> None:
    rows = {Path(row.path).name: row for row in count_lines(spark, logs).collect()}
    new, old = rows["access.log"], rows["access.log.1.gz"]
    assert (new.lines, new.parsed, new.rejected) == (1001, 1000, 1)
    assert sum(new.reasons.values()) == 1
    assert [sample.line for sample in new.samples] == ["no line"]
    assert (old.lines, old.parsed, old.reasons, old.samples) == (500, 500, {}, [])


def test_keys_of_json_lines_are_columns(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    at = "2026-01-02T03:04:05Z"
    path.write_text(
        "".join(json.dumps({"time": at, "took": n / 4, "ok": n > 1, "id": n}) + "\n" for n in range(3))
    )
    frame = read_logs(spark, path, format="json", columns=["id", "took", "ok", "later"])
    assert frame.dtypes == [("id", "bigint"), ("took", "double"), ("ok", "boolean"), ("later", "string")]
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [
        (0, 0.0, False, None), (1, 0.25, False, None), (2, 0.5, True, None)]  # fmt: skip


def test_what_is_no_log_is_refused_before_anything_runs(tmp_path: Path) -> None:
    spark: Any = None
    with pytest.raises(UsageError, match="no such file"):
        read_logs(spark, tmp_path / "none.log")
    with pytest.raises(UsageError, match="no file to read"):
        read_logs(spark, [])
    path = tmp_path / "some.log"
    path.write_text("no line\nof a log\n")
    with pytest.raises(FormatError, match="no line fits the format combined"):
        read_logs(spark, path, format="combined")
