"""Runs new seeds for a given time, on all cores; failing ones are kept, shrunk and printed.

    python -m tests.soak SECONDS FOLDER
    python -m tests.soak --kept
    python -m tests.soak --keep SEED FOLDER
    python -m tests.soak --stats FIRST COUNT
    python -m tests.soak --choose FIRST COUNT

`--kept` runs all scenarios that failed once, whole. `--keep` does for one seed what a soak does for each that fails. `--stats`
counts how often each fault and each path of the protocol occurs in those seeds; `--choose` prints the few of them that the tests
should run (`tests.soak.choice`), after some 3 s of a processor for each. A failing seed N gives three files in the folder:
`seed-N.json`, the scenario as found, at once; `seed-N-short.json`, the shrunk one, which fails in the same way if any shorter one
does; and `seed-N-short.txt`, its transcript.
`elf simulate --replay FILE` runs either again. Ctrl-C ends a soak early, and scenarios that are not shrunk yet stay so.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

from elf.agent.simulator.run import Outcome, simulate
from elf.agent.simulator.scenario.scenario import Scenario
from elf.agent.simulator.transcript import transcript
from elf.errors import UsageError
from tests.soak import choice
from tests.soak.census import counted, table
from tests.soak.drawn import random_scenario
from tests.soak.kept import KEPT, whole
from tests.soak.shrink import shrink_alike

BATCH = 48
"""Seeds between two checks of the time limit: less than a minute."""
SHRINK_S = 180
"""Seconds to shrink one seed, on one core, while other seeds run: about a hundred runs."""
SHRUNK_MAX = 8
"""Seeds that one soak shrinks. If more fail, they probably share a cause, and 24 minutes of a core are enough for it."""
SHOWN = 25
"""Number of a transcript's last lines that are printed."""
USAGE = "python -m tests.soak SECONDS FOLDER | --kept | --keep SEED FOLDER | --stats FIRST COUNT | --choose FIRST COUNT"

Short = tuple[Scenario, str]
"""A shrunk scenario and its transcript."""


def run_seed(seed: int) -> Outcome:
    return simulate(random_scenario(seed))


def count_seed(seed: int) -> tuple[Outcome, Counter[str]]:
    return counted(random_scenario(seed))


def shorten(seed: int, violation: str) -> Short:
    """The shrunk scenario; takes minutes."""
    short = shrink_alike(random_scenario(seed), violation, SHRINK_S)
    return short, transcript(short)[1]


def keep_found(outcome: Outcome, folder: Path) -> None:
    """Keep a failing scenario, then print it: the file exists even if the soak is stopped then."""
    (folder / f"seed-{outcome.seed}.json").write_bytes(random_scenario(outcome.seed).encode())
    print(f"seed {outcome.seed}: {outcome.violation}", flush=True)


def keep_short(seed: int, short: Short, folder: Path) -> None:
    """Keep the shrunk scenario beside the one found, and print the end of its transcript."""
    scenario, text = short
    path = folder / f"seed-{seed}-short.json"
    path.write_bytes(scenario.encode())
    path.with_suffix(".txt").write_text(text)
    print(f"seed {seed}: shrunk, kept as {path}", *text.splitlines()[-SHOWN:], sep="\n", flush=True)


class Shrinking:
    """Shrinks failing seeds in the pool, on half of the cores, while other seeds run."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._left = SHRUNK_MAX
        self._waiting: deque[Outcome] = deque()
        self._running: dict[int, AsyncResult[Short]] = {}

    def add(self, outcome: Outcome) -> None:
        if self._left:
            self._left -= 1
            self._waiting.append(outcome)

    def look(self, at_once: int = max(1, (os.cpu_count() or 1) // 2)) -> None:
        """Keep the shrunk scenarios that are finished, and start to shrink others."""
        for seed in [seed for seed, result in self._running.items() if result.ready()]:
            keep_short(seed, self._running.pop(seed).get(), self._folder)
        while self._waiting and len(self._running) < at_once:
            outcome = self._waiting.popleft()
            self._running[outcome.seed] = self._pool.apply_async(shorten, (outcome.seed, outcome.violation))

    def finish(self) -> None:
        """Shrink all that is left, on all cores; takes minutes."""
        self.look(SHRUNK_MAX)
        if self._running:
            print(f"{len(self._running)} scenarios are being shrunk; Ctrl-C leaves them as found", flush=True)
        for result in list(self._running.values()):
            result.wait()
            self.look(SHRUNK_MAX)


def soak(seconds: float, folder: Path, first: int, batch: int = BATCH) -> int:
    """Run seeds, at least one batch. Prints each failing seed, and totals after each batch. Returns how many failed."""
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
                        shrinking.add(outcome)
                    shrinking.look()
                print(_sum(done, failed, delivered, time.monotonic() - begun), flush=True)
            shrinking.finish()
        except KeyboardInterrupt:
            shrinking.look(0)
            print(f"stopped; {_sum(done, failed, delivered, time.monotonic() - begun)}", flush=True)
    return failed


def keep(seed: int, folder: Path) -> int:
    """Run one seed, and keep it if it fails. Returns how many seeds failed."""
    outcome = run_seed(seed)
    if outcome.is_exact:
        print(f"seed {seed}: every window is exact; nothing is kept")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    keep_found(outcome, folder)
    keep_short(seed, shorten(seed, outcome.violation), folder)
    return 1


def run_kept(path: Path) -> Outcome:
    return simulate(whole(path))


def kept(paths: Sequence[Path] = KEPT) -> int:
    """Run scenarios that failed once, whole. Returns how many fail."""
    with _pool() as pool:
        outcomes = pool.map(run_kept, paths, chunksize=1)
    failed = [
        f"{path.stem}: {run.violation}" for path, run in zip(paths, outcomes, strict=True) if run.violation
    ]
    print(f"{len(paths)} kept scenarios, {len(failed)} failed", *failed, sep="\n", flush=True)
    return len(failed)


def stats(first: int, count: int) -> int:
    """Print in how many seeds, and how often, each kind occurs. Returns how many seeds failed."""
    with _pool() as pool:
        counted_runs = pool.map(count_seed, range(first, first + count), chunksize=4)
    print(table(counts for _, counts in counted_runs))
    failed = [outcome for outcome, _ in counted_runs if not outcome.is_exact]
    for outcome in failed:
        print(f"seed {outcome.seed}: {outcome.violation}")
    return len(failed)


def choose(first: int, count: int) -> int:
    """Print the seeds that the tests should run, and what occurs in too few of all. Returns how many seeds failed."""
    with _pool() as pool:
        outcomes = pool.map(count_seed, range(first, first + count), chunksize=1)
    runs = {
        outcome.seed: choice.Ran(outcome.cpu_s, frozenset(name for name, times in counts.items() if times))
        for outcome, counts in outcomes
        if outcome.is_exact
    }
    wanted = choice.wanted(runs.values())
    chosen = choice.choose(runs, wanted)
    print(*chosen, sep=", ")
    seconds = (sum(runs[seed].cpu_s for seed in seeds) for seeds in (chosen, runs))
    print("{} of {} seeds, {:.0f} of {:.0f} s of a processor".format(len(chosen), len(runs), *seconds))
    for name, found in choice.missing(runs, chosen, wanted).items():
        print(f"{name}: in {found} instead of {wanted[name]}")
    return count - len(runs)


def _pool() -> Pool:
    """Ctrl-C reaches all processes of a terminal; workers ignore it, and the parent ends them."""
    return get_context("fork").Pool(initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


def _sum(done: int, failed: int, delivered: int, seconds: float) -> str:
    return f"{done} seeds, {failed} failed, {60 * done / seconds:.0f} a minute, {delivered / seconds:.0f} messages a second"


def _number(name: str, text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name}: expected a whole number from {least} on, found {text!r}")
    return int(text)


def _called(arguments: list[str]) -> int:
    """Run the command that the arguments name. Returns how many seeds failed. Raises UsageError."""
    match arguments:
        case ["--kept"]:
            return kept()
        case ["--keep", seed, folder]:
            return keep(_number("SEED", seed), Path(folder))
        case ["--stats", first, count]:
            return stats(_number("FIRST", first), _number("COUNT", count, 1))
        case ["--choose", first, count]:
            return choose(_number("FIRST", first), _number("COUNT", count, 1))
        case [seconds, folder] if not seconds.startswith("-"):
            length, base = _number("SECONDS", seconds, 1), int.from_bytes(os.urandom(4)) << 16
            print(f"seeds from {base} on, for {length} s", flush=True)
            return soak(length, Path(folder), base)
    raise UsageError("wrong arguments")


def main(arguments: list[str]) -> int:
    """Exit code: 1 if a seed failed, 2 for wrong arguments, 130 if another than the soak was stopped."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background commands start with it ignored
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
