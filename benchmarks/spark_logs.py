"""Raw logs in Spark: `elf.spark.read_logs` beside Spark's own regular expressions and `elf run`, on one core, alternating.

    python benchmarks/spark_logs.py [--lines 2000000] [--runs 3] [--folder /tmp/elf-bench] [--smoke]

One query that reads three columns (time, path, status) and groups by status, over the same lines. The first two run in one warm
session with one task at a time, JVM and Python workers on the same core; each has two rounds before that do not count. Spark's
own way is `spark.read.text`, `regexp_extract` for each column, and `to_timestamp`. `elf run` is a process of its own, whose
start counts.
Targets are of processor time, of the session's driver, JVM and workers together. The results must be equal.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import measure

from elf.spark import read_logs, session

QUERY = "SELECT status, count(*) AS hits, count(path) AS paths, max(time) AS last FROM access GROUP BY status"
COLUMNS = ["time", "path", "status"]
LINE = r'^\S+ \S+ \S+ \[([^\]]+)\] "\S+ ([^" ?]*)[^"]*" (\d+) '


def by_regex(spark: Any, file: Path) -> Any:
    """The three columns as a user of Spark alone would get them."""
    from pyspark.sql import functions as f

    part = [f.regexp_extract("value", LINE, group) for group in (1, 2, 3)]
    return spark.read.text(str(file)).select(
        f.to_timestamp(part[0], "dd/MMM/yyyy:HH:mm:ss Z").alias("time"),
        f.nullif(part[1], f.lit("")).alias("path"),
        part[2].cast("bigint").alias("status"),
    )


def timed(work: Callable[[], object]) -> measure.Run:
    began, spent = time.perf_counter(), tree_cpu(os.getpid())
    work()
    return measure.Run(time.perf_counter() - began, tree_cpu(os.getpid()) - spent, 0)


def tree_cpu(root: int) -> float:
    """Seconds of processor time of a process and all below it, ended ones included once their parent has waited for them."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {root}
    while found := {pid for pid, (parent, _) in stats.items() if parent in tree and pid not in tree}:
        tree |= found
    return sum(stats[pid][1] for pid in tree) / os.sysconf("SC_CLK_TCK")


def answer(spark: Any, frame: Any, found: dict[str, str], name: str) -> None:
    frame.createOrReplaceTempView("access")
    rows = spark.sql(QUERY).collect()
    found[name] = measure.digest(
        (row.status, row.hits, row.paths, f"{row.last:%Y-%m-%d %H:%M:%S}") for row in rows
    )


def compare(file: Path, lines: int, runs: int, folder: Path) -> bool:
    spark = session("local[1]", "elf-benchmark")
    out, found = folder / "elf.csv", dict[str, str]()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    ours, theirs = "read_logs", "regexp_extract"
    contenders = {
        ours: lambda: timed(
            partial(answer, spark, read_logs(spark, file, format="combined", columns=COLUMNS), found, ours)
        ),
        theirs: lambda: timed(partial(answer, spark, by_regex(spark, file), found, theirs)),
        "elf run": lambda: measure.run_elf(QUERY, file, out, cache=folder / "cache"),
    }
    measure.alternate(contenders, 1 if runs == 1 else 2)
    runs_of = measure.alternate(contenders, runs)
    spark.stop()
    found["elf run"] = by_csv(out)
    print(f"{lines:,} lines, {file.stat().st_size >> 20} MiB, {runs} alternating runs")
    cpu = {name: statistics.median(one.cpu for one in each) for name, each in runs_of.items()}
    for name, each in runs_of.items():
        seconds = measure.spread([one.seconds for one in each])
        rate = f"{lines / cpu[name] / 1e6:5.2f} million lines/s"
        print(f"  {name:16} {seconds:24} s, cpu {cpu[name]:6.2f} s, {rate}, result {found[name]}")
    print(measure.target("speed / Spark's own", cpu[theirs] / cpu[ours], 5))
    print(measure.target("speed / elf run's", cpu["elf run"] / cpu[ours], 0.2))
    is_same = len(set(found.values())) == 1
    print(f"  results {'equal' if is_same else 'DIFFER'}", flush=True)
    return is_same


def by_csv(path: Path) -> str:
    import csv

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = (row["last"].replace("T", " ").removesuffix("Z") for row in rows)
    return measure.digest(
        (row["status"], row["hits"], row["paths"], last) for row, last in zip(rows, times, strict=True)
    )


def main() -> None:
    parser = measure.options(__doc__, runs=3)
    parser.add_argument("--lines", type=int, default=2_000_000)
    options = parser.parse_args()
    lines, runs = (20_000, 1) if options.smoke else (options.lines, options.runs)
    file = measure.generated(options.folder, lines)
    os.sched_setaffinity(0, {measure.CORE})  # the JVM and its workers inherit it
    print(measure.machine())
    with tempfile.TemporaryDirectory(prefix="elf-spark-") as folder:
        if not compare(file, lines, runs, Path(folder)):
            sys.exit("the results differ")


if __name__ == "__main__":
    main()
