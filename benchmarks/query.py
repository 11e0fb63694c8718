"""Whole processes: `elf run` beside DuckDB on the same file, writing the same CSV, one core each, alternating.

    python benchmarks/query.py [--lines 10000000] [--runs 5] [--folder /tmp/elf-bench] [--smoke]

Prints a table: seconds (median, minimum, maximum), ratio, peak memory, start-up (the same command on an empty file), and the hash of the
result, which must be the same for both.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import measure
from generate import write

ELF = str(Path(sys.executable).with_name("elf"))

COLUMNS = (
    "{'ip':'VARCHAR','ident':'VARCHAR','user':'VARCHAR','t1':'VARCHAR','t2':'VARCHAR','request':'VARCHAR',"
    "'status':'BIGINT','bytes':'BIGINT','referer':'VARCHAR','agent':'VARCHAR'}"
)
READ = (
    "read_csv('{file}', delim=' ', quote='\"', header=false, auto_detect=false, nullstr='-', columns="
    + COLUMNS
    + ")"
)
PATH = "split_part(split_part(request, ' ', 2), '?', 1)"

GROUP_ELF = "SELECT path, status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY path, status"
GROUP_DUCK = (
    f"SELECT {PATH} AS path, status, count(*) AS hits, sum(bytes)::BIGINT AS bytes FROM {READ} GROUP BY 1, 2"
)

WINDOW_ELF = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, approx_percentile(bytes, 0.99) AS p99, "
    "approx_count_distinct(client_ip) AS visitors FROM access GROUP BY window(time, '10 seconds'), path"
)
WINDOW_DUCK = (
    "SELECT time_bucket(INTERVAL '10 seconds', strptime(substr(t1, 2), '%d/%b/%Y:%H:%M:%S')) AS w, "
    f"{PATH} AS path, count(*) AS hits, sum(bytes)::BIGINT AS bytes, approx_quantile(bytes, 0.99) AS p99, "
    f"approx_count_distinct(ip) AS visitors FROM {READ} GROUP BY 1, 2"
)

DUCK = (
    "import duckdb, sys; c = duckdb.connect(); c.execute('SET threads = 1'); "
    "c.execute('SET preserve_insertion_order = false'); "
    'c.execute("COPY (" + sys.argv[1] + ") TO \'" + sys.argv[2] + "\' (HEADER)")'
)


def elf_command(query: str, file: Path) -> list[str]:
    return [ELF, "run", query, str(file), "--format", "combined", "--output", "csv", "-q"]


def duck_command(query: str, file: Path, out: Path) -> list[str]:
    return [sys.executable, "-c", DUCK, query.replace("{file}", str(file)), str(out)]


def digest(out: Path, normal: Callable[[Sequence[str]], tuple[str, ...]]) -> str:
    """A hash of the rows of a CSV, whatever their order."""
    total = 0
    with out.open(newline="") as file:
        rows = csv.reader(file)
        next(rows, None)
        for row in rows:
            text = "\t".join(normal(row)).encode()
            total += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return f"{total % (1 << 64):016x}"


def windowed_elf(row: Sequence[str]) -> tuple[str, ...]:
    return (row[0].rstrip("Z").replace("T", " ")[:19], *row[2:5])


def windowed_duck(row: Sequence[str]) -> tuple[str, ...]:
    return (row[0][:19], *row[1:4])


def compare(name: str, elf_query: str, duck_query: str, file: Path, runs: int, windowed: bool) -> None:
    """Alternate the two, compare their results, print a line each."""
    elf_out, duck_out = file.with_suffix(".elf.csv"), file.with_suffix(".duck.csv")
    empty = file.with_name("empty.log")
    empty.write_bytes(b"")
    elf: list[measure.Run] = []
    duck: list[measure.Run] = []
    for _ in range(runs):
        elf.append(measure.run(elf_command(elf_query, file), stdout=elf_out))
        duck.append(measure.run(duck_command(duck_query, file, duck_out)))
    start_elf = measure.run(elf_command(elf_query, empty)).seconds
    start_duck = measure.run(duck_command(duck_query, empty, duck_out.with_suffix(".empty"))).seconds
    hashes = (
        digest(elf_out, windowed_elf if windowed else tuple),
        digest(duck_out, windowed_duck if windowed else tuple),
    )
    ratio = statistics.median(r.seconds for r in duck) / statistics.median(r.seconds for r in elf)
    print(f"{name}")
    for who, found, start, result in (
        ("elf", elf, start_elf, hashes[0]),
        ("DuckDB", duck, start_duck, hashes[1]),
    ):
        seconds = [r.seconds for r in found]
        print(
            f"  {who:7} {measure.spread(seconds)} s, start-up {start:.2f} s, "
            f"peak {max(r.rss for r in found) >> 20} MiB, result {result}"
        )
    print(
        f"  elf is {ratio:.2f}x DuckDB; results {'equal' if hashes[0] == hashes[1] else 'DIFFER'}", flush=True
    )
    if hashes[0] != hashes[1]:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elf-bench"))
    parser.add_argument("--smoke", action="store_true", help="20,000 lines, one run: does it still work?")
    parser.add_argument("--only", choices=("group", "window"))
    arguments = parser.parse_args()
    lines, runs = (20_000, 1) if arguments.smoke else (arguments.lines, arguments.runs)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / f"combined-{lines}.log"
    if not file.exists():
        write(lines, file)
    measure.warm(file)
    print(f"{measure.machine()}\n{lines} lines, {file.stat().st_size / 1e6:.0f} MB, {runs} alternating runs")
    if arguments.only != "window":
        compare("GROUP BY path, status: count, sum", GROUP_ELF, GROUP_DUCK, file, runs, False)
    if arguments.only != "group":
        compare("window 10 s, path: count, sum, p99, distinct", WINDOW_ELF, WINDOW_DUCK, file, runs, True)


if __name__ == "__main__":
    main()
