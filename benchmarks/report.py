"""`elf report --every 1h` over lakes of growing size: merged by elf's own engine, and by Spark. Both print the same bytes.

    python benchmarks/report.py [--smoke] [--rows 60000 600000 3000000] [--folder /tmp/elf-bench]

A lake has windows of a minute with 1,000 paths each: hits, a sum, a quantile and, in every tenth path, an approximate number of
visitors. Seconds are of the whole command, start of Python and of the JVM included; the JVM's CPU is not known.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.recipe import recipe
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.jobmaster.windows.result import Lines, PaneState
from elf.jobmaster.windows.state import state_columns
from elf.sinks.lake.parquet import ParquetSink

QUERY = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, approx_percentile(bytes, 0.95) AS p95, "
    "approx_count_distinct(client_ip) AS visitors FROM access GROUP BY window(time, '1 minute'), path"
)
WHATEVER_SIZE = """\
import sys
from elf.sinks.report import local
from elf.typer_cli import main
local.SMALL_BYTES = 1 << 60
sys.exit(main(sys.argv[1:]))
"""
MINUTE_US, START_US, GROUPS = 60_000_000, 1_790_000_000_000_000 // 86_400_000_000 * 86_400_000_000, 1_000


def lake_of(rows: int, folder: Path) -> Path:
    """The lake of so many rows, made now unless it is there from an earlier run."""
    lake = folder / f"report-lake-{rows}"
    if lake.exists():
        return lake
    source = {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT, "client_ip": STRING}
    plan = compile_query(QUERY, {"access": source})
    columns, sink = tuple(state_columns(plan)), ParquetSink(folder / f"{lake.name}.partial")
    for minute in range(max(1, rows // GROUPS)):
        sink.put_state(pane(plan, columns, START_US + minute * MINUTE_US))
        if minute % 60 == 59:
            sink.flush()
    sink.close()
    (folder / f"{lake.name}.partial").rename(lake)
    return lake


def pane(plan, columns, start):  # type: ignore[no-untyped-def]
    """One pane: the values follow from its time and the path's number."""
    seed = start // MINUTE_US
    values = []
    for column in columns:
        made = [_value(column, seed, group) for group in range(GROUPS)]
        values.append(made)
    lines = Lines(GROUPS, GROUPS, 0, 0)
    return PaneState(
        "traffic", "0123456789ab", start, start + MINUTE_US, "final", (0, 0, 1), lines, columns, values,
        encode(plan), recipe=recipe(plan),
    )  # fmt: skip


def _value(column, seed, group):  # type: ignore[no-untyped-def]
    n = seed * 31 + group * 17
    if column.role == "key":
        return f"/path/{group}"
    if column.role == "registers":
        return {n * 7 % 4096: n % 20 + 1, n * 13 % 4096: n % 9 + 1} if group % 10 == 0 else {}
    if column.role == "buckets":
        return {65_000 + n % 500: 3, 66_000 + n % 90: 2}
    if column.role == "sum":
        return 5 if column.type == "bigint" else 100 + n % 1_000  # five lines, as many as the buckets hold
    return 1 if column.role == "min" else 10**6


def measured(lake: Path, *more: str) -> tuple[bytes, float, float, int]:
    """What `elf report` prints, its seconds, those of CPU, and the MB of its largest process."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [
        sys.executable,
        "-c",
        WHATEVER_SIZE,
        "report",
        str(lake),
        "--every",
        "1h",
        "--output",
        "csv",
        *more,
    ]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ).stdout
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return told, seconds, cpu, after.ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[60_000, 600_000, 3_000_000])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elf-bench"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only-own", action="store_true", help="without Spark")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for rows in [5_000] if options.smoke else options.rows:
        lake = lake_of(rows, options.folder)
        size = sum(path.stat().st_size for path in lake.rglob("date=*/*.parquet"))
        print(f"{rows:,} rows, {size / 1e6:.1f} MB", flush=True)
        own, seconds, cpu, most = measured(lake)
        print(f"  elf    {seconds:8.2f} s  {cpu:8.2f} s of CPU  {most} MB", flush=True)
        if not options.only_own:
            spark, seconds, _, _ = measured(lake, "--master", "local[*]")
            equal = "equal" if own == spark else "DIFFERENT"
            print(f"  Spark  {seconds:8.2f} s  {equal}", flush=True)
            if own != spark:
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
