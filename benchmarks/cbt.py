"""The group-by alone: many rows, each key once, count and sum, beside DuckDB and a Python dict, with and without a cap.

    python benchmarks/cbt.py [--rows 10000000] [--runs 5] [--cap 256]        (smoke: --rows 100000 --runs 1)

Each measurement is its own process on one core; runs alternate. All get the same pieces of 65,536 rows from one generator
(fixed seed), whose time is taken out; what is timed is the way from a piece of keys and values to the last row of the
result: for the tree `make_rows`, `insert`, `drain`, as in the product. Prints seconds (median, minimum, maximum), peak memory
of the whole process, ratios, and a hash of the result that must be the same for all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_ROWS = 1 << 16
KEY_BYTES = 40
MIX = np.uint64(0x9E3779B97F4A7C15)
Piece = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""(keys (n, 40) uint8, values (n,) int64)"""


def pieces(kind: str, rows: int) -> Iterator[Piece]:
    """`hex`: 160 random bits as text. `shop`: paths of one shop that differ in an item's number. Every key once."""
    rng = np.random.default_rng(20_250_101)
    step = 1 + 2 * (rows // 3)  # odd, so that items are visited in a scattered order
    size = 1 << max(rows - 1, 1).bit_length()
    for start in range(0, rows, PIECE_ROWS):
        n = min(PIECE_ROWS, rows - start)
        if kind == "hex":
            keys = np.frombuffer(rng.bytes(n * KEY_BYTES // 2).hex().encode(), np.uint8).reshape(n, KEY_BYTES)
        else:
            keys = np.empty((n, KEY_BYTES), np.uint8)
            keys[:] = np.frombuffer(b"/shop/category/shoes/item/00000000?ref=a", np.uint8)
            item = np.arange(start, start + n, dtype=np.int64) * step % size
            for digit in range(8):
                keys[:, 33 - digit] = 48 + item % 10
                item //= 10
        yield keys, rng.integers(0, 1_000_000, n)


class Digest:
    """A hash of a result that does not depend on the order of its rows."""

    def __init__(self) -> None:
        self.rows, self.total = 0, 0

    def add(self, keys: NDArray[np.uint8], counts: NDArray[Any], sums: NDArray[Any]) -> None:
        words = np.ascontiguousarray(keys.reshape(-1, KEY_BYTES)).view(np.uint64)
        row = counts.astype(np.uint64)
        for column in (*words.T, sums.astype(np.uint64)):
            row = (row ^ column) * MIX
            row ^= row >> np.uint64(29)
        self.rows += len(row)
        self.total = (self.total + int(row.sum(dtype=np.uint64))) % (1 << 64)

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:016x}"


class Clock:
    """Time at work, by the wall and of the processor: the generator's and the digest's are left out."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0
        self.resume()

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._since
        self.cpu += time.process_time() - self._cpu_since

    def resume(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.process_time()

    def feed(self, source: Iterator[Piece]) -> Iterator[Piece]:
        while True:
            self.pause()
            piece = next(source, None)
            self.resume()
            if piece is None:
                return
            yield piece


def by_tree(source: Iterator[Piece], cap: int, clock: Clock, digest: Digest) -> None:
    from elf.agent.host.allocator import resident_bytes
    from elf.cbt._kernel import make_rows
    from elf.cbt.budget import Budget
    from elf.cbt.rows import Op
    from elf.cbt.tree import Tree

    ops = [Op.SUM64, Op.SUM128]
    budget = Budget(cap or 1 << 40, resident=resident_bytes)
    tree = Tree(ops, budget)
    for keys, values in clock.feed(source):
        n = len(values)
        lanes = np.stack([np.ones(n, np.int64), values, np.zeros(n, np.int64)])
        ends = np.arange(KEY_BYTES, KEY_BYTES * (n + 1), KEY_BYTES, dtype=np.uint64)
        tree.insert(make_rows(0, keys.reshape(-1), ends, None, lanes, ops))
    for rows in tree.drain():
        clock.pause()
        digest.add(rows.keys, rows.lanes[0], rows.lanes[1])
        clock.resume()
    clock.pause()
    print(f"spilled {budget.spilled_total >> 20} MiB", file=sys.stderr)


def by_duckdb(source: Iterator[Piece], cap: int, clock: Clock, digest: Digest) -> None:
    import duckdb
    import pyarrow as pa

    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])

    def batches() -> Iterator[Any]:
        for keys, values in clock.feed(source):
            n = len(values)
            offsets = np.arange(0, KEY_BYTES * (n + 1), KEY_BYTES, dtype=np.int32)
            text = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(keys))
            yield pa.record_batch([text, pa.array(values)], schema=schema)

    with tempfile.TemporaryDirectory() as folder:
        connection = duckdb.connect(config={"threads": 1, "temp_directory": folder})
        if cap:
            connection.execute(f"SET memory_limit = '{cap}B'")
        connection.execute("SET preserve_insertion_order = false")
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        connection.register("rows", reader)
        clock.resume()
        result = connection.sql("SELECT key, count(*) AS n, sum(value)::BIGINT AS s FROM rows GROUP BY key")
        for batch in result.to_arrow_reader(PIECE_ROWS):
            clock.pause()
            n, text = len(batch), batch.column(0).buffers()[2]
            keys = np.frombuffer(text, np.uint8)[: n * KEY_BYTES]
            digest.add(keys, batch.column(1).to_numpy(), batch.column(2).to_numpy())
            clock.resume()
        clock.pause()
        connection.close()


def by_dict(source: Iterator[Piece], cap: int, clock: Clock, digest: Digest) -> None:
    groups: dict[bytes, list[int]] = {}
    for keys, values in clock.feed(source):
        text = keys.tobytes()
        for i, value in enumerate(values.tolist()):
            key = text[i * KEY_BYTES : (i + 1) * KEY_BYTES]
            group = groups.get(key)
            if group is None:
                groups[key] = [1, value]
            else:
                group[0] += 1
                group[1] += value
    clock.pause()
    items = iter(groups.items())
    while chunk := [item for _, item in zip(range(PIECE_ROWS), items, strict=False)]:
        lanes = np.array([group for _, group in chunk], np.int64)
        digest.add(np.frombuffer(b"".join(key for key, _ in chunk), np.uint8), lanes[:, 0], lanes[:, 1])


WAYS: dict[str, Callable[[Iterator[Piece], int, Clock, Digest], None]] = {
    "tree": by_tree,
    "duckdb": by_duckdb,
    "dict": by_dict,
}


def measured(way: str, kind: str, rows: int, cap: int) -> None:
    """One measurement, in this process; prints it as JSON."""
    source = pieces(kind, rows)
    clock, digest = Clock(), Digest()
    WAYS[way](source, cap, clock, digest)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": clock.seconds, "cpu": clock.cpu, "peak": peak, "digest": str(digest)}))


def compare(kind: str, rows: int, runs: int, cap: int) -> bool:
    """All ways on one kind of key; returns whether all results were the same."""
    import measure

    contenders = {
        "tree": ("tree", 0),
        "duckdb": ("duckdb", 0),
        "dict": ("dict", 0),
        "tree, capped": ("tree", cap),
        "duckdb, capped": ("duckdb", cap),
    }
    got: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    with tempfile.NamedTemporaryFile() as out:
        for _ in range(runs):
            for name, (way, bound) in contenders.items():
                options = ["--way", way, "--kind", kind, "--rows", str(rows), "--bound", str(bound)]
                measure.run([sys.executable, __file__, *options], stdout=Path(out.name))
                got[name].append(json.loads(Path(out.name).read_text()))
    seconds = {name: statistics.median(run["seconds"] for run in some) for name, some in got.items()}
    peaks = {name: max(run["peak"] for run in some) / (1 << 20) for name, some in got.items()}
    digests = {run["digest"] for some in got.values() for run in some}
    print(f"\n{kind}: {rows:,} rows, cap {cap >> 20} MiB, {runs} runs, result {' '.join(sorted(digests))}")
    for name, some in got.items():
        spread = measure.spread([run["seconds"] for run in some])
        cpu = statistics.median(run["cpu"] for run in some)
        speed = rows / seconds[name] / 1e6
        print(f"  {name:15} {spread:24} s, cpu {cpu:5.2f} s {speed:6.2f} M rows/s {peaks[name]:6.0f} MiB")
    limit = (cap >> 20) + 64
    for what, value, bound, at_most in (
        ("memory / DuckDB's", peaks["tree"] / peaks["duckdb"], 0.5, True),
        ("memory / the dict's", peaks["tree"] / peaks["dict"], 0.25, True),
        (f"capped memory / {limit} MiB", peaks["tree, capped"] / limit, 1.0, True),
        ("capped speed / uncapped", seconds["tree"] / seconds["tree, capped"], 0.6, False),
        ("capped speed / DuckDB's, capped", seconds["duckdb, capped"] / seconds["tree, capped"], 1.0, False),
        ("speed / DuckDB's", seconds["duckdb"] / seconds["tree"], 0.0, False),
    ):
        met = value <= bound if at_most else value >= bound
        target = f"target {'<=' if at_most else '>='} {bound}: {'met' if met else 'NOT MET'}" if bound else ""
        print(f"  {what:33} {value:6.2f}  {target}")
    return len(digests) == 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cap", type=int, default=256, help="MiB")
    parser.add_argument("--kind", choices=["shop", "hex"], help="only these keys")
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--bound", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measured(options.way, options.kind, options.rows, options.bound)
        return
    import measure

    print(measure.machine())
    kinds = [options.kind] if options.kind else ["shop", "hex"]
    same = [compare(kind, options.rows, options.runs, options.cap << 20) for kind in kinds]
    if not all(same):
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
