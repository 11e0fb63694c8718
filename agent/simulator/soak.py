"""New seeds for as long as told, on all cores; what fails is shrunk and kept.

    python -m elf.agent.simulator.soak SECONDS FOLDER
    python -m elf.agent.simulator.soak --again FILE
    python -m elf.agent.simulator.soak --stats FIRST COUNT

`--stats` tells how often each fault and each way of the protocol occurs in those seeds. Of each failing seed two files are
kept: the shrunk scenario as JSON, which `--again` runs again, and its transcript.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from elf.agent.simulator.census import table
from elf.agent.simulator.run import Outcome, simulate
from elf.agent.simulator.scenario import decode, random_scenario
from elf.agent.simulator.shrink import shrink
from elf.agent.simulator.transcript import transcript

BATCH = 48
"""Seeds between two looks at the clock: less than a minute's."""


def run_seed(seed: int) -> Outcome:
    return simulate(random_scenario(seed))


def keep(seed: int, folder: Path) -> Path:
    """Shrink a failing seed; its scenario and transcript go into the folder. Minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    short = shrink(random_scenario(seed))
    path = folder / f"seed-{seed}.json"
    path.write_bytes(short.encode())
    path.with_suffix(".txt").write_text(transcript(short)[1])
    return path


def soak(seconds: float, folder: Path, first: int) -> int:
    """How many seeds failed. Prints each of them, and a sum every now and then."""
    begun = time.monotonic()
    done, failed, delivered = 0, list[int](), 0
    with get_context("fork").Pool() as pool:
        while time.monotonic() < begun + seconds:
            batch = range(first + done, first + done + BATCH)
            for outcome in pool.imap_unordered(run_seed, batch):
                done, delivered = done + 1, delivered + outcome.delivered
                if not outcome.is_exact:
                    failed.append(outcome.seed)
                    print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
            print(_sum(done, failed, delivered, time.monotonic() - begun), flush=True)
    for seed in failed:
        print(f"seed {seed}: kept as {keep(seed, folder)}", flush=True)
    return len(failed)


def stats(first: int, count: int) -> int:
    """How many seeds failed. Prints for each kind in how many seeds, and how often, it occurs."""
    with get_context("fork").Pool() as pool:
        outcomes = pool.map(run_seed, range(first, first + count), chunksize=4)
    print(table(outcome.went for outcome in outcomes))
    failed = [outcome for outcome in outcomes if not outcome.is_exact]
    for outcome in failed:
        print(f"seed {outcome.seed}: {outcome.violation}")
    return len(failed)


def _sum(done: int, failed: list[int], delivered: int, seconds: float) -> str:
    return f"{done} seeds, {len(failed)} failed, {60 * done / seconds:.0f} a minute, {delivered / seconds:.0f} messages a second"


def main(arguments: list[str]) -> int:
    """Exit code: 1 if a seed failed, 2 if that is not how it is called."""
    match arguments:
        case ["--again", path]:
            outcome, text = transcript(decode(Path(path).read_bytes()))
            print(text)
            return int(not outcome.is_exact)
        case ["--stats", first, count]:
            return int(stats(int(first), int(count)) > 0)
        case [seconds, folder] if seconds.isdecimal():
            base = int.from_bytes(os.urandom(4)) << 16
            print(f"seeds from {base} on, for {seconds} s")
            return int(soak(float(seconds), Path(folder), base) > 0)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
