"""New seeds for as long as told, on all cores; what fails is kept, shrunk and printed.

    python -m elf.agent.simulator.soak SECONDS FOLDER
    python -m elf.agent.simulator.soak --keep SEED FOLDER
    python -m elf.agent.simulator.soak --stats FIRST COUNT

`--keep` does for one seed what a soak does for each that fails; `--stats` tells how often each fault and each way of the protocol
occurs in those seeds. Of a failing seed N the folder gets three files: `seed-N.json`, the scenario as it was found, at once;
`seed-N-short.json`, the shrunk one, which fails in the same way if anything shorter does; and `seed-N-short.txt`, its transcript.
`elf simulate --replay FILE` runs either again. Ctrl-C ends a soak as the time does, and leaves what is not shrunk yet.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

from elf.agent.simulator.census import table
from elf.agent.simulator.run import Outcome, simulate
from elf.agent.simulator.scenario import Scenario, random_scenario
from elf.agent.simulator.shrink import shrink_alike
from elf.agent.simulator.transcript import transcript
from elf.errors import UsageError

BATCH = 48
"""Seeds between two looks at the clock: less than a minute's."""
SHRINK_S = 180
"""For one seed, on one core, beside the other seeds: some hundred runs."""
SHRUNK_MAX = 16
"""Seeds that one soak shrinks. Where more fail it is one mistake, and 48 minutes of a core tell enough of it."""
SHOWN = 25
"""Lines of a transcript that are printed: its end."""
USAGE = "python -m elf.agent.simulator.soak SECONDS FOLDER | --keep SEED FOLDER | --stats FIRST COUNT"

Short = tuple[Scenario, str]
"""A shrunk scenario and its transcript."""


def run_seed(seed: int) -> Outcome:
    return simulate(random_scenario(seed))


def shorten(seed: int, violation: str) -> Short:
    """Minutes."""
    short = shrink_alike(random_scenario(seed), violation, SHRINK_S)
    return short, transcript(short)[1]


def keep_found(outcome: Outcome, folder: Path) -> None:
    """Before it is told: who stops a soak then has it."""
    (folder / f"seed-{outcome.seed}.json").write_bytes(random_scenario(outcome.seed).encode())
    print(f"seed {outcome.seed}: {outcome.violation}", flush=True)


def keep_short(seed: int, short: Short, folder: Path) -> None:
    """Beside the one that was found; the end of the transcript is printed."""
    scenario, text = short
    path = folder / f"seed-{seed}-short.json"
    path.write_bytes(scenario.encode())
    path.with_suffix(".txt").write_text(text)
    print(f"seed {seed}: shrunk, kept as {path}", *text.splitlines()[-SHOWN:], sep="\n", flush=True)


class Shrinking:
    """Failing seeds that the pool shrinks beside running others."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._begun: dict[int, AsyncResult[Short]] = {}
        self._done: set[int] = set()

    def begin(self, outcome: Outcome) -> None:
        if len(self._begun) < SHRUNK_MAX:
            self._begun[outcome.seed] = self._pool.apply_async(shorten, (outcome.seed, outcome.violation))

    def keep(self, *, wait: bool) -> None:
        """Write down what has been shrunk; with `wait` everything, in the end."""
        for seed in [seed for seed in self._begun if seed not in self._done]:
            if wait or self._begun[seed].ready():
                keep_short(seed, self._begun[seed].get(), self._folder)
                self._done.add(seed)


def soak(seconds: float, folder: Path, first: int, batch: int = BATCH) -> int:
    """How many seeds failed, of one batch at least. Prints each of them, and a sum every now and then."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    done, failed, delivered = 0, 0, 0
    with _pool() as pool:
        shrinking = Shrinking(pool, folder)
        try:
            while not done or time.monotonic() < begun + seconds:
                for outcome in pool.imap_unordered(run_seed, range(first + done, first + done + batch)):
                    done, delivered = done + 1, delivered + outcome.delivered
                    if not outcome.is_exact:
                        failed += 1
                        keep_found(outcome, folder)
                        shrinking.begin(outcome)
                shrinking.keep(wait=False)
                print(_sum(done, failed, delivered, time.monotonic() - begun), flush=True)
            shrinking.keep(wait=True)
        except KeyboardInterrupt:
            shrinking.keep(wait=False)
            print(f"stopped; {_sum(done, failed, delivered, time.monotonic() - begun)}", flush=True)
    return failed


def keep(seed: int, folder: Path) -> int:
    """Whether it failed."""
    outcome = run_seed(seed)
    if outcome.is_exact:
        print(f"seed {seed}: every window is exact; nothing is kept")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    keep_found(outcome, folder)
    keep_short(seed, shorten(seed, outcome.violation), folder)
    return 1


def stats(first: int, count: int) -> int:
    """How many seeds failed. Prints for each kind in how many seeds, and how often, it occurs."""
    with _pool() as pool:
        outcomes = pool.map(run_seed, range(first, first + count), chunksize=4)
    print(table(outcome.went for outcome in outcomes))
    failed = [outcome for outcome in outcomes if not outcome.is_exact]
    for outcome in failed:
        print(f"seed {outcome.seed}: {outcome.violation}")
    return len(failed)


def _pool() -> Pool:
    """Ctrl-C goes to all processes of a terminal; the first one ends the others."""
    return get_context("fork").Pool(initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


def _sum(done: int, failed: int, delivered: int, seconds: float) -> str:
    return f"{done} seeds, {failed} failed, {60 * done / seconds:.0f} a minute, {delivered / seconds:.0f} messages a second"


def _number(name: str, text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name}: expected a whole number from {least} on, found {text!r}")
    return int(text)


def _called(arguments: list[str]) -> int:
    """How many seeds failed. Raises UsageError."""
    match arguments:
        case ["--keep", seed, folder]:
            return keep(_number("SEED", seed), Path(folder))
        case ["--stats", first, count]:
            return stats(_number("FIRST", first), _number("COUNT", count, 1))
        case [seconds, folder] if not seconds.startswith("-"):
            length, base = _number("SECONDS", seconds, 1), int.from_bytes(os.urandom(4)) << 16
            print(f"seeds from {base} on, for {length} s", flush=True)
            return soak(length, Path(folder), base)
    raise UsageError("wrong arguments")


def main(arguments: list[str]) -> int:
    """Exit code: 1 if a seed failed, 2 if that is not how it is called, 130 if it was stopped before anything was found."""
    try:
        return int(_called(arguments) > 0)
    except UsageError as error:
        print(f"soak: {error}; usage: {USAGE}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"soak: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
