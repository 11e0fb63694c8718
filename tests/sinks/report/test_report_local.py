"""Small lakes without Spark: windows of a minute merged by the engine's own trees are its windows of an hour, in every digit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from elf.agent.run.engine import RunOptions, run
from elf.errors import ElfError
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.report.report import report
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import START, traffic_plan, traffic_state
from tests.sinks.report.test_report_agreement import QUERIES, answers, log

__all__ = ["log"]
VARIANCE = (
    "SELECT window, status, variance(bytes) AS i, stddev(CAST(bytes AS DECIMAL(12,3))) AS d, "
    "var_pop(CAST(bytes AS DOUBLE) / 7) AS f, stddev(CAST(bytes AS DOUBLE) * 1E100) AS g "
    "FROM access GROUP BY window(time, '{window}'), status"
)


@pytest.mark.process
def test_merged_short_windows_are_the_long_ones(log: Path, tmp_path: Path) -> None:
    queries = {**QUERIES, "variance": VARIANCE}
    for job, query in queries.items():
        sink = ParquetSink(tmp_path)
        run(RunOptions(query.format(window="1 minute"), (str(log),), "combined", job=job), [sink])
        sink.close()
    out, said = io.BytesIO(), io.StringIO()
    report(str(tmp_path), every="1h", output="json", stdout=out, notices=said)
    found: dict[str, list[dict[str, Any]]] = {}
    for line in out.getvalue().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("report"), []).append(row)
    for job, query in queries.items():
        expected = answers(log, query, "1 hour")
        assert len(expected) > 2, job
        assert found[job] == expected, job
    assert said.getvalue() == ""


@pytest.mark.process
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    sink.put_state(traffic_state(traffic_plan(), START, {("/a", 200): (1, 1)}))
    sink.flush()
    [path] = lake_states.files(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ElfError, match="is damaged: "):
        report(str(tmp_path), every="1h", stdout=io.BytesIO())
