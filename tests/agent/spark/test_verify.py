"""A lake against its raw logs: equal where the lines are the same, and shown where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elf.agent.commands.lake.verify import lines_of, verify_command
from elf.agent.run.engine import RunOptions, run
from elf.agent.spark.verify import Verified, without_order
from elf.errors import UsageError
from elf.sinks.lake.parquet import ParquetSink
from tests.rigs.lines import lines

QUERY = (
    "SELECT window, status, count(*) AS n, avg(bytes) AS mean, sum(request_time) AS took, approx_percentile(bytes, 0.9) AS p90 "
    "FROM access WHERE method <> :method GROUP BY window(time, '1 minute'), status HAVING n > 1 ORDER BY n DESC, status LIMIT 2"
)


def stored(lake: Path, log: Path) -> None:
    sink = ParquetSink(lake)
    run(RunOptions(QUERY, (str(log),), job="traffic", parameters={"method": "HEAD"}), [sink])
    sink.close()


@pytest.mark.process
def test_the_same_lines_are_equal_and_others_are_shown(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, log = tmp_path / "lake", tmp_path / "access.log"
    text = [each for each in lines(900, 4, seconds=240) if '] "HEAD' not in each]
    log.write_text("\n".join(text) + "\n")
    stored(lake, log)

    victim = next(i for i, each in enumerate(text) if "10:08:" in each and '" 200 ' in each)
    log.write_text("\n".join(text[:victim] + text[victim + 1 :]) + "\n")
    since = "2015-05-17T10:06:00Z"
    assert verify_command("traffic", lake, [str(log)], since, None, "auto", "UTC", None) == 1
    said = capsys.readouterr().out
    assert "3 windows from 2015-05-17T10:06:00Z to 2015-05-17T10:10:00Z\n2 equal, 1 DIFFER\n" in said
    assert "compared: window, status, n, mean, took\nnot compared: p90 (Spark's estimate is another)" in said
    shown = [line for line in said.splitlines() if line.startswith("only in")]
    assert [line.split(": ")[0] for line in shown] == ["only in the logs", "only in the lake"]
    assert all(": 2015-05-17T10:08:00Z/2015-05-17T10:09:00Z, 200, " in line for line in shown)


def test_what_is_equal_is_said() -> None:
    answer = Verified("traffic", "0123456789ab", 4, 4, 0, 60_000_000, 1, 9, 2, 0, ("n",), (), ())
    assert lines_of(answer) == [
        "job traffic, version 0123456789ab: 4 windows from 1970-01-01T00:00:00Z to 1970-01-01T00:01:00Z",
        "all equal",
        "lines in the lake: 9 parsed, 2 rejected, 0 late",
        "windows that lack an agent: 1",
        "compared: n",
    ]


@pytest.mark.process
def test_mistakes_are_told_before_spark_starts(tmp_path: Path) -> None:
    lake, log = tmp_path / "lake", tmp_path / "access.log"
    log.write_text("\n".join(lines(20, 4)) + "\n")
    with pytest.raises(UsageError, match="there is no lake at"):
        verify_command("traffic", lake, [str(log)], None, None, "auto", "UTC", None)
    stored(lake, log)
    with pytest.raises(UsageError, match="has no job trafic; it has traffic"):
        verify_command("trafic", lake, [str(log)], None, None, "auto", "UTC", None)
    with pytest.raises(UsageError, match="no such file"):
        verify_command("traffic", lake, [str(tmp_path / "none")], None, None, "auto", "UTC", None)


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("SELECT count(*) FROM a", "SELECT count(*) FROM a"),
        ("SELECT x FROM a GROUP BY x ORDER BY x LIMIT 3", "SELECT x FROM a GROUP BY x "),
        ("SELECT 'ORDER BY' AS o FROM a LIMIT 3;", "SELECT 'ORDER BY' AS o FROM a "),
        ("SELECT count(*) FILTER (WHERE x > 1) FROM a;", "SELECT count(*) FILTER (WHERE x > 1) FROM a"),
    ],
)
def test_order_and_limit_are_taken_off(sql: str, kept: str) -> None:
    assert without_order(sql) == kept
