"""What arrives at the root of a job: bytes per second and the root's work, contributions by roster beside a plain list.

    python benchmarks/mesh_root.py [--workers 100000] [--rounds 8] [--idle 0.5] [--smoke]

One process plays the root of a tree: sixteen children, each with a sixteenth of the workers below it, send a bundle every 200 ms.
Children are synthetic, all else is the product: the encoder of each child's link, the decoder of the root's, the master's
accept, the state, and the encoder of one replica's link. In each flush half of the workers (`--idle`) are idle, the others
have 10 to 2,000 bytes of log; a line is taken to be 200 bytes, so small subtrees bring few groups, large ones all 200 (paths of a
shop, one pane, count and sum of bytes). The plain list is the same bundle with (worker, file, lane) -> (from, to, flags) as
MessagePack.

The first round, in which rosters are announced, is told apart. Times are CPU of one bundle, medians; every bundle is compared
with what was sent, and positions of all files at the end with what was written. Fixed seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import measure
import msgspec
import numpy as np

from elf.agent.simulator.world.rows import Paths, RowMaker
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import JobSpec, Version
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.master.master import Master
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.srt.codec.parts import pack_parts, unpack_parts
from elf.srt.codec.wire import Decoder, Encoder
from elf.srt.messages.messages import FIRST, NO_BALLOT, Append, Bundle, Slot, Span
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import Part

CHILDREN = 16
FLUSHES_PER_S = 5
GROUPS = 200
LINE_BYTES = 200
T0 = 1_700_000_000_000_000
QUERY = "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY window(time, '10 seconds'), path"
ROOT = b"R" * 16
BALLOT = (1, ROOT)
MB = 1e6

Plain = msgspec.defstruct(
    "Plain", [("head", Any), ("contributions", dict[Slot, Span]), ("parts", Any)], array_like=True
)


class Child:
    """A subtree of some workers, each with one file."""

    def __init__(
        self, number: int, workers: int, idle: float, rng: np.random.Generator, make: RowMaker
    ) -> None:
        self.id = bytes((number,)) * 16
        self._rng, self._make, self._idle = rng, make, idle
        files = rng.integers(1, 1 << 62, workers).tolist()
        self.slots: list[Slot] = [(rng.bytes(16), file, 0) for file in files]
        self.at = rng.integers(0, 1 << 30, workers)
        self.rounds = 0

    def bundle(self, job: bytes, schedule: int, version: str) -> Bundle:
        """The next flush."""
        rng, n = self._rng, len(self.slots)
        grown = rng.integers(10, 2_000, n) * (rng.random(n) >= self._idle)
        flag = 0 if self.rounds else FIRST
        starts, ends = self.at.tolist(), (self.at + grown).tolist()
        spans = {slot: (a, b, flag) for slot, a, b in zip(self.slots, starts, ends, strict=True)}
        self.at = self.at + grown
        self.rounds += 1
        now_us = T0 + self.rounds * 1_000_000 // FLUSHES_PER_S
        part = self._rows(max(1, int(grown.sum()) // LINE_BYTES), now_us)
        return Bundle(
            job, (self.id, 1, 2 * self.rounds), schedule, spans, now_us - 400_000, {}, {version: part}, False
        )

    def _rows(self, lines: int, now_us: int) -> Part:
        """Paths by a law of Zipf, and every one of them where there are lines enough."""
        rng = self._rng
        paths = np.minimum(rng.zipf(1.3, lines), GROUPS) - 1
        if lines > GROUPS:
            paths[:GROUPS] = np.arange(GROUPS)
        return self._make(np.full(lines, now_us), paths, rng.integers(200, 50_000, lines))


class Root:
    """The receiving end of the children's links, and the master behind it."""

    def __init__(self, spec: JobSpec) -> None:
        self.job = spec.id
        budget = Budget(256 << 20)
        self.state = JobState(spec.id, spec.name, budget)
        self._proposed: list[Any] = []
        self._index = 0
        self.master = Master(
            spec, self.state, BALLOT, Parameters(), self._propose, budget, (), lambda: 1 << 20
        )
        self.master.begin(T0)
        self._commit()

    def _propose(self, entry: Any) -> int:
        self._index += 1
        self._proposed.append((self._index, entry))
        return self._index

    def _commit(self) -> list[Any]:
        done: list[Any] = []
        while self._proposed:
            entries, self._proposed = self._proposed, []
            self.master.committed(entries, T0)
            done += [entry for _, entry in entries]
        return done

    def accept(self, child: bytes, bundle: Bundle) -> list[Any]:
        """Judge, propose, and apply, as if the replicas had answered at once. The entries."""
        self.master.bundle(child, bundle, T0)
        return self._commit()


class Measured(msgspec.Struct):
    """Bytes of each round, seconds of each bundle by step, and a hash of all positions at the end."""

    roster: list[int]
    plain: list[int]
    rows: list[int]
    log: list[int]
    seconds: dict[str, list[float]]
    result: str = ""


def timed(found: Measured, step: str, work: Callable[[], Any]) -> Any:
    began = time.thread_time()
    result = work()
    found.seconds.setdefault(step, []).append(time.thread_time() - began)
    return result


def play(workers: int, rounds: int, idle: float) -> Measured:
    """All rounds of a root. Raises SystemExit where something comes out other than it went in."""
    rng = np.random.default_rng(20_261_121)
    plan = compile_query(
        QUERY, {"access": {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT, "status": BIGINT}}
    )
    version = Version(plans.digest(plan), plans.encode(plan), plan.sql)
    make = RowMaker(plan, Paths([f"/shop/category/{i % 17}/item/{i:05}.html" for i in range(GROUPS)]))
    root = Root(JobSpec("root", 1, "access", (version,), line_us=T0))
    number = root.state.schedule[-1].number
    children = [
        Child(n, workers // CHILDREN + (n < workers % CHILDREN), idle, rng, make) for n in range(CHILDREN)
    ]
    links = [(Encoder(LOG), Decoder(LOG)) for _ in children]
    replica = Encoder(LOG)
    found = Measured([], [], [], [], {})
    for _ in range(rounds):
        totals = [0, 0, 0, 0]
        for child, (encoder, decoder) in zip(children, links, strict=True):
            bundle = child.bundle(root.job, number, version.digest)
            sizes = one(found, root, child, bundle, encoder, decoder, replica)
            totals = [total + size for total, size in zip(totals, sizes, strict=True)]
        for column, total in zip((found.roster, found.plain, found.rows, found.log), totals, strict=True):
            column.append(total)
    at = root.state.positions.at
    digest = blake2b(digest_size=8)
    for child in children:
        committed = np.array([at.get(slot, -1) for slot in child.slots], dtype=np.int64)
        digest.update(committed.tobytes())
        if (committed != child.at).any():
            sys.exit("positions at the root are not those of the workers")
    found.result = digest.hexdigest()
    return found


def one(
    found: Measured,
    root: Root,
    child: Child,
    bundle: Bundle,
    encoder: Encoder,
    decoder: Decoder,
    replica: Encoder,
) -> Sequence[int]:
    """A bundle's way; its bytes by roster, as a plain list, of its rows, and of its entry to a replica."""
    later = "" if child.rounds > 1 else " (first)"
    data = timed(found, "encode" + later, lambda: encoder.encode(bundle))
    came = timed(found, "decode" + later, lambda: decoder.decode(data))
    entries = timed(found, "accept" + later, lambda: root.accept(child.id, came))
    append = Append(root.job, BALLOT, 1, tuple(entries), 0, NO_BALLOT)
    logged = timed(found, "to a replica" + later, lambda: replica.encode(append))
    frames = pack_parts(bundle.parts)
    head = (bundle.job, bundle.id, bundle.schedule, bundle.watermark, bundle.again)
    plain = timed(
        found,
        "plain: encode" + later,
        lambda: msgspec.msgpack.encode(Plain(head, bundle.contributions, frames)),
    )
    listed = timed(found, "plain: decode" + later, lambda: read_plain(plain))
    if came.contributions != bundle.contributions or listed != bundle.contributions:
        sys.exit("a bundle came out other than it went in")
    rows = sum(len(frame) for _, trees in frames for frame in trees)
    return len(data), len(plain), rows, len(logged)


def read_plain(data: bytes) -> dict[Slot, Span]:
    plain: Any = msgspec.msgpack.decode(data, type=Plain)
    unpack_parts(plain.parts)
    spans: dict[Slot, Span] = plain.contributions
    return spans


def report(workers: int, found: Measured) -> None:
    def rate(column: Sequence[int]) -> float:
        return statistics.median(column) * FLUSHES_PER_S / MB

    roster, plain, rows, log = (rate(c[1:]) for c in (found.roster, found.plain, found.rows, found.log))
    each = statistics.median(found.roster[1:]) - statistics.median(found.rows[1:])
    print(
        f"{workers:>7,} workers: {roster:.3f} MB/s into the root, of them rows {rows:.3f}; each replica {log:.3f}"
    )
    print(f"{'':>9}with plain lists {plain:.3f} MB/s, {plain / roster:.1f} times as much")
    print(
        f"{'':>9}{each / workers:.2f} bytes a contribution, all heads included; "
        f"announcing the rosters, once: {found.roster[0] / MB:.3f} MB"
    )
    told = [f"{step} {1e3 * statistics.median(seconds):.2f}" for step, seconds in found.seconds.items()]
    print(f"{'':>9}CPU of one bundle, ms: {', '.join(step for step in told if 'first' not in step)}")
    busy = sum(statistics.median(found.seconds[step]) for step in ("decode", "accept", "to a replica"))
    print(
        f"{'':>9}root: {100 * CHILDREN * FLUSHES_PER_S * busy:.1f} % of one core for decode, accept and one replica"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, help="only this many, instead of 100 to 100,000")
    parser.add_argument("--rounds", type=int, default=8, help="flushes (default: 8)")
    parser.add_argument("--idle", type=float, default=0.5, help="share of idle workers (default: 0.5)")
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that it works")
    options = parser.parse_args()
    print(measure.machine())
    sizes = (
        [options.workers]
        if options.workers
        else [100, 1_000]
        if options.smoke
        else [100, 1_000, 10_000, 100_000]
    )
    for workers in sizes:
        report(workers, play(workers, max(2, options.rounds), options.idle))
    print("every bundle came out as it went in, positions at the end are those of the workers")


if __name__ == "__main__":
    main()
