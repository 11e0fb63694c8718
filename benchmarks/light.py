"""What an agent costs beside its web server, and how long a line takes to the screen: targets beside measured figures.

    python benchmarks/light.py [--smoke] [--only lone,idle,mesh,many,latency,start] [--agents 16] [--seconds 60] [--warm-up 20]

lone: an agent without a mesh, three jobs with windows of 10 s and a lake, 10,000 lines a second. idle: agents of a mesh without
jobs. mesh: the same agents with three jobs and a lake, 60 lines a second at each, first unwatched, then with one job watched.
many: a mesh of one with 100 jobs, 10 lines a second. latency: one line at a time, and when it passed each stage of its way, as
the agents themselves note (`legs/sitecustomize.py`). start: from the end of `elf job start` to the first window of the job.

Real agents on loopback, with keys and CURVE but for `lone` and `many`. Processor time is what the kernel charged to the process
(user and system), so that it means something on a busy machine too; times until something is shown do not.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import measure
import msgspec
from mesh_live import PER_AGENT, Writer, start_us, watched

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.agent import measured as measured_lone
from benchmarks.agent import sample
from tests.rigs.agents.mesh_rig import Agent, Fleet, line

LEGS = Path(__file__).with_name("legs")
STAGES = ("noticed", "cut", "hop", "committed", "published", "arrived", "shown")
JOBS = {
    "hits": PER_AGENT,
    "paths": "SELECT window, path, count(*) AS hits, approx_count_distinct(bytes) AS sizes FROM access "
    "GROUP BY window(time, '10 seconds'), path",
    "sizes": "SELECT window, status, approx_percentile(bytes, 0.99) AS p99 FROM access "
    "GROUP BY window(time, '10 seconds'), status",
}
MANY = "SELECT window, status, count(*) AS hits FROM access WHERE status >= {} GROUP BY window(time, '10 seconds'), status"
SHOWN_S_MAX = 5.0
PAUSE_S = (0.3, 0.6)
"""Between two lines of `latency`, at random: a line after a pause, at any phase of the agents' beats."""


class Options(msgspec.Struct, frozen=True):
    """agents: of the meshes. seconds: of each steady measurement, after `warm_up`. jobs: of `many`. lines: of `latency`. starts:
    of `start`. rate: lines a second at each agent of `mesh`."""

    agents: int
    seconds: float
    warm_up: float
    jobs: int = 100
    lines: int = 200
    starts: int = 20
    rate: float = 60.0


SMOKE = Options(agents=1, seconds=0.1, warm_up=0.0, jobs=2, lines=2, starts=1)


class Cost(msgspec.Struct, frozen=True):
    """Of one agent over a span. percent: of a core, user and system; children: the same of its child processes that ended."""

    percent: float
    children: float
    megabytes: float


def costs(agents: Sequence[Agent], seconds: float) -> list[Cost]:
    """What each process takes from now on."""
    before = [sample(agent.pid) for agent in agents]
    time.sleep(seconds)
    after = [sample(agent.pid) for agent in agents]
    return [
        Cost(
            100 * (last.cpu - first.cpu) / (last.at - first.at),
            100 * (last.children_cpu - first.children_cpu) / (last.at - first.at),
            last.resident / 1e6,
        )
        for first, last in zip(before, after, strict=True)
    ]


def show(what: str, found: Sequence[Cost], percent: float, megabytes: float | None = None) -> None:
    """Means beside their targets."""
    print(measure.target(f"{what}, % of a core", mean(found), percent, at_most=True))
    if megabytes is not None:
        largest = max(cost.megabytes for cost in found)
        print(measure.target(f"{what}, MB of the largest", largest, megabytes, at_most=True))
    children = sum(cost.children for cost in found)
    print(f"    from {min(c.percent for c in found):.2f} to {max(c.percent for c in found):.2f} %", end="")
    print(f"; children that ended {children:.2f} %", flush=True)


def mean(found: Sequence[Cost]) -> float:
    return statistics.mean(cost.percent for cost in found)


@contextmanager
def fleet_of(
    agents: int, security: str = "curve", has_lake: bool = False, legs: bool = False
) -> Iterator[Fleet]:
    """Joined agents with default timings. legs: they note the legs of lines."""

    def lake(number: int) -> str:
        return '[[sink]]\nname = "lake"\nparquet = "lake"\n' if has_lake and number == 0 else ""

    with tempfile.TemporaryDirectory(prefix="elf-light-") as folder:
        fleet = Fleet(Path(folder) / "mesh", agents, timings={}, security=security, more=lake)
        for agent in fleet.agents if legs else ():
            agent.python_path = LEGS
        with fleet:
            yield fleet


# The parts.


def lone(options: Options) -> None:
    """`benchmarks/agent.py` with the issue's bounds."""
    print("\nAn agent alone, 3 jobs, lake, 10,000 lines/s")
    templates = measure.generated(measure.FOLDER, 20_000)
    with tempfile.TemporaryDirectory(prefix="elf-light-") as folder:
        found = measured_lone(Path(folder), templates, 10_000, options.seconds, options.warm_up)
    cost = Cost(found.percent, found.children_percent, found.after.resident / 1e6)
    show("alone", [cost], 2, 50)


def idle(options: Options) -> None:
    """Agents of a mesh without jobs."""
    print(f"\nNothing to do: {options.agents} agents, CURVE")
    with fleet_of(options.agents) as fleet:
        time.sleep(options.warm_up)
        show("idle", costs(fleet.agents, options.seconds), 0.3, 55)


def mesh(options: Options) -> None:
    """Three jobs, first unwatched, then one of them watched."""
    print(f"\n{options.agents} agents, CURVE, 3 jobs, lake, {options.rate:g} lines/s at each")
    with fleet_of(options.agents, has_lake=True) as fleet:
        for name, sql in JOBS.items():
            fleet.start_job(name, sql, "--sink", "lake", lateness="1s")
        with Writer(fleet.agents, options.rate) as writer:
            time.sleep(options.warm_up)
            show("none watched", costs(fleet.agents, options.seconds), 0.7, 55)
            found, taken = watched_costs(fleet, writer, options)
            show("one watched", found, 1.5)
            master = found[fleet.agents.index(fleet.master("hits"))]
    print(measure.target("its master, % of a core", master.percent, 5, at_most=True))
    if taken:
        show_times("line to watch, ms", [1e3 * each for each in taken], 120, 250)


def watched_costs(fleet: Fleet, writer: Writer, options: Options) -> tuple[list[Cost], list[float]]:
    """Costs with a watcher, and the seconds from each line to its row, without the first ones after the watcher came."""
    shown: dict[tuple[str, int], int] = {}
    taken: list[float] = []
    found: list[Cost] = []
    has_begun = threading.Event()

    def heard(now_s: float, row: dict[str, object]) -> None:
        key, hits = (str(row["agent"]), start_us(row)), row["hits"]
        assert isinstance(hits, int)
        if has_begun.is_set() and key in shown:
            taken.extend(now_s - at for at in writer.at.get(key, [])[shown[key] : hits])
        shown[key] = max(hits, shown.get(key, 0))

    def take() -> bool:
        if shown and not has_begun.is_set():
            time.sleep(options.warm_up / 4)
            has_begun.set()
            found.extend(costs(fleet.agents, options.seconds))
        return bool(found)

    watched(fleet, "hits", take, heard)
    return found, taken


def many(options: Options) -> None:
    """A mesh of one with many jobs."""
    print(f"\nA mesh of one, {options.jobs} jobs, none watched, 10 lines/s")
    with fleet_of(1, security="none") as fleet:
        for number in range(options.jobs):
            fleet.start_job(f"job{number}", MANY.format(number), lateness="1s")
        with Writer(fleet.agents, 10):
            time.sleep(options.warm_up)
            show("a mesh of one", costs(fleet.agents, options.seconds), 3, 80)


def start(options: Options) -> None:
    """From the end of the command to the first window, at a watcher that is there as soon as the job is."""
    print(f"\nelf job start: {options.agents} agents, CURVE, 10 lines/s each, {options.starts} jobs")
    taken: list[float] = []
    with fleet_of(options.agents) as fleet, Writer(fleet.agents, 10):
        for number in range(options.starts):
            name = f"hits{number}"
            signed = ("--keys", str(fleet.operator))
            fleet.elf("job", "start", name, "--sql", PER_AGENT, "--lateness", "1s", *signed)
            began = time.time()
            with fleet.watch(name) as seen:
                seen.wait(lambda seen=seen: seen.puts)
                taken.append(1e3 * (seen.puts[0][0] - began))
            fleet.elf("job", "stop", name, *signed)
    show_times("job start to its first window, ms", taken, 600, 1_000)


def latency(options: Options) -> None:
    """Each leg of a line's way, one line at a time."""
    print(
        f"\nA line to elf job watch, leg by leg: {options.agents} agents, CURVE, {options.lines} lines, one at a time"
    )
    found: dict[str, list[float]] = {}
    with fleet_of(options.agents, legs=True) as fleet:
        fleet.start_job("hits", PER_AGENT, lateness="1s")
        written: list[tuple[str, float]] = []
        shown = Shown(written)
        watched(
            fleet,
            "hits",
            lambda: write_lines(fleet, written, shown, options.lines, options.warm_up / 20),
            shown.heard,
        )
        notes = {agent.name: notes_of(agent) for agent in fleet.agents}
    for (name, at_s), seen_s in zip(written, shown.at_s, strict=False):
        before = at_s
        for leg, passed_s in way(notes, name, at_s, seen_s):
            found.setdefault(leg, []).append(1e3 * (passed_s - before))
            before = passed_s
        found.setdefault("in all", []).append(1e3 * (seen_s - at_s))
    print(f"  {'leg':<12}{'lines':>6}{'median, ms':>12}{'p99, ms':>10}")
    for leg in sorted(found, key=place):
        times = found[leg]
        print(f"  {leg:<12}{len(times):>6}{statistics.median(times):>12.1f}{p99(times):>10.1f}")
    show_times("line to watch, ms", found["in all"], 120, 250)


class Shown:
    """When `elf job watch` showed each line, in the order of `written`; only the newest may be missing."""

    def __init__(self, written: Sequence[tuple[str, float]]) -> None:
        self.at_s: list[float] = []
        self.changed = threading.Event()
        self._written = written
        self._hits: dict[tuple[str, int], int] = {}

    def heard(self, now_s: float, row: dict[str, object]) -> None:
        """A row of an agent: if it has more hits than before, the newest line is among them."""
        key, hits = (str(row["agent"]), start_us(row)), row["hits"]
        assert isinstance(hits, int)
        is_more, self._hits[key] = hits > self._hits.get(key, 0), hits
        if is_more and len(self.at_s) < len(self._written):
            self.at_s.append(now_s)
            self.changed.set()


def write_lines(
    fleet: Fleet, written: list[tuple[str, float]], shown: Shown, lines: int, pause_s: float
) -> bool:
    """Write one line after the other, each once the one before is shown. Returns True: that is all."""
    rng = random.Random(1)
    time.sleep(pause_s)  # until the watcher has come
    for agent in itertools.islice(itertools.cycle(fleet.agents), lines):
        shown.changed.clear()
        written.append((agent.name, time.time()))
        agent.write([line(written[-1][1], 200, 100)])
        if not shown.changed.wait(SHOWN_S_MAX):
            raise SystemExit(f"a line of {agent.name} was not shown within {SHOWN_S_MAX:.0f} s")
        time.sleep(rng.uniform(*PAUSE_S))
    return True


def place(leg: str) -> tuple[int, str]:
    """For sorting: where a leg is on a line's way."""
    stage = leg.partition(" ")[0]
    return (STAGES.index(stage) if stage in STAGES else len(STAGES)), leg


def notes_of(agent: Agent) -> list[tuple[str, float]]:
    """(leg, moment) of each stage that lines passed at that agent, in order."""
    path = agent.folder / "legs"
    pairs = [text.split() for text in path.read_text().splitlines()] if path.exists() else []
    return [(leg, float(at)) for leg, at in pairs]


def way(
    notes: dict[str, list[tuple[str, float]]], name: str, at_s: float, seen_s: float
) -> list[tuple[str, float]]:
    """(leg, moment) of one line, in the order of its way; hops are numbered."""

    def during(who: str | None, leg: str) -> list[float]:
        of = notes.values() if who is None else [notes[who]]
        return sorted(at for each in of for each_leg, at in each if each_leg == leg and at_s <= at <= seen_s)

    out = [(leg, times[0]) for leg in ("noticed", "cut") if (times := during(name, leg))]
    out += [(f"hop {number}", at) for number, at in enumerate(during(None, "hop"), 1)]
    out += [(leg, times[0]) for leg in ("committed", "published", "arrived") if (times := during(None, leg))]
    return [*out, ("shown", seen_s)]


def show_times(what: str, values: Sequence[float], median: float, highest: float) -> None:
    """A median and a p99 beside their targets."""
    print(measure.target(f"{what}, median", statistics.median(values), median, at_most=True))
    print(measure.target(f"{what}, p99", p99(values), highest, at_most=True), flush=True)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


PARTS: dict[str, Callable[[Options], None]] = {
    "lone": lone,
    "idle": idle,
    "mesh": mesh,
    "many": many,
    "latency": latency,
    "start": start,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small: does it still work?")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each steady measurement")
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=100, help="of the mesh of one")
    parser.add_argument("--lines", type=int, default=200, help="of latency")
    parser.add_argument("--starts", type=int, default=20, help="jobs of start")
    given = parser.parse_args()
    options = Options(given.agents, given.seconds, given.warm_up, given.jobs, given.lines, given.starts)
    print(measure.machine())
    for name in given.only.split(","):
        PARTS[name](SMOKE if given.smoke else options)


if __name__ == "__main__":
    main()
