"""The lake's own work: its writer, compaction, the size of its files beside DuckDB's, and visitors of a year from daily sketches.

    python benchmarks/lake.py [--smoke] [--runs 3] [--rows 3000000] [--folder /tmp/elf-bench]

A table has windows of a minute with 1,000 paths each: two counts, a sum, a minimum and a maximum. Encoded panes are made before
the clock starts, as a job's master has made them. CPU is that of the writer's process, its start and imports included. DuckDB
writes the table's rows, all columns, sorted as they are, with zstd.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import measure
import numpy as np

from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.plan.recipe import recipe
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.jobmaster.windows.result import Lines, PaneState, StateColumn
from elf.jobmaster.windows.state import state_columns
from elf.sinks.lake.parquet import ParquetSink

TABLE = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, min(bytes) AS least, max(bytes) AS most FROM access "
    "GROUP BY window(time, '1 minute'), path"
)
VISITORS = (
    "SELECT window, approx_count_distinct(client_ip) AS visitors FROM access GROUP BY window(time, '1 day')"
)
MINUTE_US, DAY_US, GROUPS = 60_000_000, 86_400_000_000, 1_000
START_US = 1_735_689_600_000_000  # 2025-01-01
FLUSH_PANES = 500
DAYS = 365
MIB = 1 << 20


def planned(query: str) -> tuple[Plan, tuple[StateColumn, ...]]:
    source = {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT, "client_ip": STRING}
    plan = compile_query(query, {"access": source})
    return plan, tuple(state_columns(plan))


def state(
    plan: Plan, columns: tuple[StateColumn, ...], start: int, length: int, values: list[list[object]]
) -> PaneState:
    revision, lines = (0, 0, 1), Lines(GROUPS, GROUPS, 0, 0)
    return PaneState(
        "traffic", "0123456789ab", start, start + length, "final", revision, lines, columns, values, encode(plan),
        recipe=recipe(plan),
    )  # fmt: skip


def cells(column: StateColumn, minute: int) -> list[object]:
    """Values at random, the same in each run: paths have hits as unlike as those of a shop, and sizes as unlike as its pages'."""
    rng = np.random.default_rng(minute)
    usual = 2_000 / (1 + np.arange(GROUPS))
    hits = 1 + rng.poisson(usual)
    size = 200 + 37 * (np.arange(GROUPS) % 211)
    if column.role == "key":
        return [f"/shop/{group % 40}/item-{group}" for group in range(GROUPS)]
    if column.role == "min":
        return list((size - rng.integers(0, 150, GROUPS)).tolist())
    if column.role == "max":
        return list((size + rng.integers(0, 20_000, GROUPS)).tolist())
    if column.type == "bigint":
        return list(hits.tolist())
    return [str(total) for total in (hits * size + rng.integers(0, 5_000, GROUPS)).tolist()]


def children() -> tuple[float, int]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def written(lake: Path, rows: int) -> tuple[float, float]:
    """(rows a second of the clock, rows a second of the writer's CPU). The lake is made anew."""
    shutil.rmtree(lake, ignore_errors=True)
    plan, columns = planned(TABLE)
    sink, seconds, cpu = ParquetSink(lake), 0.0, 0.0
    for minute in range(rows // GROUPS):
        sink.put_state(
            state(
                plan, columns, START_US + minute * MINUTE_US, MINUTE_US, [cells(c, minute) for c in columns]
            )
        )
        if minute % FLUSH_PANES == FLUSH_PANES - 1 or minute == rows // GROUPS - 1:
            began, before = time.perf_counter(), children()[0]
            sink.flush()
            seconds, cpu = seconds + time.perf_counter() - began, cpu + children()[0] - before
    sink.close()
    return rows / seconds, rows / cpu


def compacted(lake: Path, rows: int) -> tuple[float, float, int]:
    """(rows a second of the clock, rows a second of CPU, bytes of memory) of `elf lake compact`, its start included."""
    command = [
        "taskset",
        "-c",
        "0",
        sys.executable,
        "-c",
        PEAK,
        "lake",
        "compact",
        str(lake),
        "--after",
        "0s",
    ]
    before, began = children()[0], time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    seconds, cpu = time.perf_counter() - began, children()[0] - before
    return rows / seconds, rows / cpu, int(done.stderr.split()[-1])


PEAK = """\
import re, sys
from elf.typer_cli import main
code = main(sys.argv[1:])
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s*(\\d+)", status)[1]) * 1024, file=sys.stderr)
sys.exit(code)
"""
"""Not `ru_maxrss`, which a process inherits from the one that started it."""


def bytes_of(lake: Path) -> int:
    return sum(path.stat().st_size for path in lake.rglob("date=*/*.parquet"))


def duckdbs(lake: Path, folder: Path) -> int:
    """The bytes that DuckDB writes for the same rows."""
    import duckdb

    file = folder / "lake-duckdb.parquet"
    source = f"read_parquet('{lake}/traffic/columns-*/version=*/date=*/*.parquet', hive_partitioning = false)"
    duckdb.sql(f"COPY (SELECT * FROM {source}) TO '{file}' (FORMAT parquet, COMPRESSION zstd)")
    size = file.stat().st_size
    file.unlink()
    return size


def visitors(lake: Path, days: int) -> list[float]:
    """Seconds of a report of all days in one, in Spark: the first of a session, and two more."""
    from elf.sinks.report import local
    from elf.sinks.report.report import report

    shutil.rmtree(lake, ignore_errors=True)
    plan, columns = planned(VISITORS)
    sink = ParquetSink(lake)
    for day in range(days):
        registers = {(day * 7 + n * 31) % 4096: (day + n) % 20 + 1 for n in range(3_000)}
        values: list[list[object]] = [[1] if c.role == "sum" else [registers] for c in columns]
        sink.put_state(state(plan, columns, START_US + day * DAY_US, DAY_US, values))
    sink.close()
    found = []
    with measure_spark(local):
        for _ in range(3):
            began = time.perf_counter()
            report(str(lake), every="400d", output="csv", stdout=io.BytesIO(), notices=io.StringIO())
            found.append(time.perf_counter() - began)
    return found


@contextlib.contextmanager
def measure_spark(local):  # type: ignore[no-untyped-def]
    """Reports of small lakes in Spark, too."""
    is_small, local.is_small = local.is_small, lambda folder: False
    try:
        yield
    finally:
        local.is_small = is_small


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elf-bench"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    rows, runs = (10_000, 1) if options.smoke else (options.rows, options.runs)
    options.folder.mkdir(parents=True, exist_ok=True)
    lake = options.folder / "lake-table"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sink, merges, sizes = [], [], []
    for _ in range(runs):
        sink.append(written(lake, rows))
        merges.append(compacted(lake, rows))
        sizes.append(bytes_of(lake) / duckdbs(lake, options.folder))
    print(f"{rows:,} rows of 1,000 groups a minute, {runs} runs, one core")
    print(
        f"  writer, million rows/s of the clock              {measure.spread([each[0] / 1e6 for each in sink])}"
    )
    print(
        measure.target(
            "writer, million rows/s of its CPU", statistics.median(each[1] for each in sink) / 1e6, 1
        )
    )
    print(
        f"  compaction, million rows/s of the clock          {measure.spread([each[0] / 1e6 for each in merges])}"
    )
    print(
        measure.target(
            "compaction, million rows/s of its CPU", statistics.median(each[1] for each in merges) / 1e6, 2
        )
    )
    print(measure.target("compaction, MiB", max(each[2] for each in merges) / MIB, 512, at_most=True))
    print(measure.target("bytes / DuckDB's", max(sizes), 1.2, at_most=True))
    print(f"  bytes a row                                      {bytes_of(lake) / rows:.2f}")
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    days = 20 if options.smoke else DAYS
    first, *warm = visitors(options.folder / "lake-visitors", days)
    print(f"visitors of {days} days, from daily sketches, in Spark")
    print(f"  first report of a session, s                     {first:.2f}")
    print(measure.target("the next ones, s", max(warm), 10, at_most=True))
    shutil.rmtree(lake)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
