"""`elf report --every 1d` in Spark over lakes of many rows, beside plain Spark over a bare Parquet copy of the same columns.

    python benchmarks/year.py [--smoke] [--rows 5000000 50000000] [--runs 3] [--folder /tmp/elf-bench]

A lake has windows of a minute with 1,000 paths each, as in lake.py, compacted into days. The copy has the same rows in the same
folders, in files of the same number and with the same codec, but only the begin of the window, the path and the state of the
query; the plain query sums them by day and path. Both are whole commands, start of Python and of the JVM included, with the same
settings of Spark, and print the same rows as CSV.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import lake as table

from elf.sinks.lake.parquet import ParquetSink, compact

KINDS = 500
"""Panes of different values; then they come again, in files of their own."""
ELF = """\
import sys
from elf.sinks.report import local
from elf.typer_cli import main
local.is_small = lambda folder: False
sys.exit(main(["report", sys.argv[1], "--every", "1d", "--output", "csv"]))
"""
PLAIN = """\
import csv, sys
from elf.sinks.report.spark import session
spark = session(None, "plain")
frame = spark.read.parquet(sys.argv[1])
frame.createOrReplaceTempView("copy")
rows = spark.sql('''
  SELECT date_trunc('day', _pane_start) AS day, path, sum(_acc0), sum(_acc2), min(_acc3), max(_acc4)
  FROM copy GROUP BY 1, 2 ORDER BY 1, 2''')
out = csv.writer(sys.stdout)
for row in rows.toLocalIterator():
    out.writerow(row)
"""


def lake_of(rows: int, folder: Path) -> tuple[Path, Path]:
    """The lake and its bare copy, made now unless they are there from an earlier run."""
    lake, bare = folder / f"year-{rows}", folder / f"year-{rows}-bare"
    if bare.exists():
        return lake, bare
    shutil.rmtree(lake, ignore_errors=True)
    plan, columns = table.planned(table.TABLE)
    values = functools.cache(lambda kind: [table.cells(column, kind) for column in columns])
    sink = ParquetSink(lake)
    for minute in range(rows // table.GROUPS):
        start = table.START_US + minute * table.MINUTE_US
        sink.put_state(table.state(plan, columns, start, table.MINUTE_US, values(minute % KINDS)))
        if minute % 720 == 719:
            sink.flush()
    sink.close()
    compact(lake, 1 << 62)
    copied(lake, folder / f"{bare.name}.partial")
    (folder / f"{bare.name}.partial").rename(bare)
    return lake, bare


def copied(lake: Path, bare: Path) -> None:
    import pyarrow.parquet as pq

    shutil.rmtree(bare, ignore_errors=True)
    names = ["_pane_start", "path", *(f"_acc{i}" for i in range(5))]
    for path in lake.rglob("date=*/*.parquet"):
        with pq.ParquetFile(path) as file:
            to = bare / path.parent.name / path.name
            to.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(
                to, file.schema_arrow.empty_table().select(names).schema, compression="zstd"
            ) as writer:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group, columns=names))


def seconds(code: str, folder: Path) -> tuple[float, int]:
    """(seconds, lines of output)"""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    return time.perf_counter() - began, done.stdout.count(b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[5_000_000, 50_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elf-bench"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for rows in [10_000] if options.smoke else options.rows:
        lake, bare = lake_of(rows, options.folder)
        found: dict[str, list[float]] = {"elf": [], "plain": []}
        for _ in range(1 if options.smoke else options.runs):
            for name, code, folder in (("elf", ELF, lake), ("plain", PLAIN, bare)):
                took, lines = seconds(code, folder)
                found[name].append(took)
                assert lines >= rows // table.GROUPS // 1440 * table.GROUPS, (name, lines)
        size = sum(path.stat().st_size for path in lake.rglob("*.parquet")) / 1e6
        print(f"{rows:,} rows, {size:,.0f} MB", flush=True)
        for name, took in found.items():
            print(f"  {name:<8} {statistics.median(took):7.1f} s ({min(took):.1f} to {max(took):.1f})")
        ratio = statistics.median(found["elf"]) / statistics.median(found["plain"])
        print(f"  ratio    {ratio:7.2f}    target <= 1.3: {'met' if ratio <= 1.3 else 'NOT MET'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
