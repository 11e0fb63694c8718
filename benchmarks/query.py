"""Whole processes: `elf run` beside DuckDB on the same file, writing the same CSV, one core each, alternating.

    python benchmarks/query.py [--lines 2000000 10000000] [--runs 5] [--folder /tmp/elf-bench] [--smoke]

DuckDB has one thread, reads the file with its CSV reader (the log as columns separated by spaces) and need not keep the
order of lines. Prints, of both: seconds (median, minimum, maximum), peak memory, start-up (the same command on an empty
file), and the hash of the result, which must be the same, approximate columns apart. Then the ratio of the medians, whole
and less start-up. elf compiles the query in every run, but for the start-up of a query that was asked before.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import measure

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

STARTUP_MAX_S = 0.25


def duck_command(query: str, file: Path, out: Path) -> list[str]:
    return [sys.executable, "-c", DUCK, query.replace("{file}", str(file)), str(out)]


def rows_of(out: Path) -> Iterator[list[str]]:
    """The rows of a CSV, without its header."""
    with out.open(newline="") as file:
        rows = csv.reader(file)
        next(rows, None)
        yield from rows


def windowed_elf(row: Sequence[str]) -> Sequence[str]:
    return row[0].rstrip("Z").replace("T", " ")[:19], *row[2:5]


def windowed_duck(row: Sequence[str]) -> Sequence[str]:
    return row[0][:19], *row[1:4]


class Question:
    """A query in both languages. `exact`: what of a result's row must be the same, of ours and of theirs. wanted: the ratio."""

    def __init__(
        self,
        name: str,
        elf: str,
        duck: str,
        exact: tuple[Callable[[Sequence[str]], Sequence[str]], Callable[[Sequence[str]], Sequence[str]]],
        wanted: float,
    ) -> None:
        self.name, self.elf, self.duck, self.exact, self.wanted = name, elf, duck, exact, wanted


QUESTIONS = {
    "group": Question("GROUP BY path, status: count, sum", GROUP_ELF, GROUP_DUCK, (tuple, tuple), 2.0),
    "window": Question(
        "window 10 s, path: count, sum, p99, distinct",
        WINDOW_ELF,
        WINDOW_DUCK,
        (windowed_elf, windowed_duck),
        1.0,
    ),
}


def compare(question: Question, file: Path, runs: int, cache: Path) -> bool:
    """Alternate the two and print their figures; returns whether their results are the same. cache: an empty folder."""
    out = {name: file.with_suffix(f".{name}.csv") for name in ("elf", "DuckDB")}
    empty = file.with_name("empty.log")
    empty.write_bytes(b"")

    def contenders(log: Path) -> dict[str, Callable[[], measure.Run]]:
        return {
            "elf": lambda: measure.run_elf(question.elf, log, out["elf"]),
            "DuckDB": lambda: measure.run(duck_command(question.duck, log, out["DuckDB"])),
        }

    start = measure.alternate(contenders(empty), runs)
    again = [measure.run_elf(question.elf, empty, out["elf"], cache=cache) for _ in range(1 + runs)][1:]
    found = measure.alternate(contenders(file), runs)
    results = [
        measure.digest(map(exact, rows_of(out[name])))
        for name, exact in zip(out, question.exact, strict=True)
    ]
    for path in out.values():
        path.unlink()
    for name, result in zip(found, results, strict=True):
        more = f", start-up {measure.median(start[name]):.2f} s, result {result}"
        print(measure.line(name, found[name], more))
    whole = [measure.median(found[name]) for name in ("DuckDB", "elf")]
    net = [
        seconds - measure.median(start[name]) for seconds, name in zip(whole, ("DuckDB", "elf"), strict=True)
    ]
    print(measure.target("speed / DuckDB's", whole[0] / whole[1], question.wanted))
    print(f"  {'the same less start-up':46} {net[0] / net[1]:7.2f}")
    for what, started in (("first time", start["elf"]), ("asked again", again)):
        seconds = measure.median(started)
        print(measure.target(f"elf on an empty file, {what}, s", seconds, STARTUP_MAX_S, at_most=True))
    print(f"  results {'equal' if results[0] == results[1] else 'DIFFER'}", flush=True)
    return results[0] == results[1]


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[2_000_000, 10_000_000])
    parser.add_argument("--only", choices=tuple(QUESTIONS))
    options = parser.parse_args()
    lines, runs = ([20_000], 1) if options.smoke else (options.lines, options.runs)
    print(measure.machine())
    same = True
    for each in lines:
        file = measure.generated(options.folder, each)
        for key, question in QUESTIONS.items():
            if options.only in (None, key):
                size = f"{each:,} lines, {file.stat().st_size / 1e6:.0f} MB"
                print(f"\n{question.name}; {size}, {runs} alternating runs")
                with tempfile.TemporaryDirectory(prefix="elf-cache-") as cache:
                    same &= compare(question, file, runs, Path(cache))
    if not same:
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
