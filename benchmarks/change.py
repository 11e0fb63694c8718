"""Jobs that change while they run: how soon a change is in force, how soon a job shows something, what a restate costs others.

    python benchmarks/change.py [--smoke] [--only update,start,restate,simulated]

`update`, `start` and `restate` are real agents on loopback, each a process with keys and CURVE; all share this machine's cores.
`simulated` is 1,000 agents in the simulator, with links of 1 ms: its figures are virtual time, a function of the seed, and every
window must equal one pass over all lines, else this exits with 1. A restate must count all lines again. Whether windows of real
agents are exact while their job changes is for tests/system/jobs, not for this script.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import measure
from mesh_live import PER_AGENT, Writer, start_us, watched

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from elf.agent.control.changing import Submission
from elf.agent.control.follow import Watcher
from elf.agent.node.job_seat import JobSeat
from elf.agent.simulator.checks.oracle import Log, Stretch
from elf.agent.simulator.fleet.fleet import CALM_US, WINDOW_US
from elf.agent.simulator.fleet.fleet import Fleet as VirtualFleet
from elf.agent.simulator.fleet.report import Plan
from elf.agent.simulator.mesh import version_of
from elf.agent.simulator.world.network import Weather
from elf.jobmaster.directory.changes import next_spec_number
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.versions import changed
from elf.jobmaster.log.schedule import AFTER_ALL, number_of
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import NO_BALLOT, Message
from elf.srt.messages.parameters import MS, SECOND
from tests.rigs.agents.mesh_rig import SQL, Fleet
from tests.rigs.agents.seen import Seen

AGENTS, RATE = 16, 10
TOOK = re.compile(r"that took ([\d.,]+) (ms|s)")
HOUR_S = 3_600
READ_S_MAX = 1_200.0
CHANGED_US = 4 * SECOND
STEP_US = MS // 2
"""How often the simulation is looked at."""
WRONG: list[str] = []


# Real agents.


def update(smoke: bool) -> None:
    """Two queries that a job has in turn, under traffic. Each change compiles its query."""
    agents, changes = (3, 2) if smoke else (AGENTS, 100)
    print(f"\nelf job update: {agents} agents, {RATE} lines/s each, CURVE, {changes} changes")
    took: list[float] = []
    whole: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", agents, timings={}, security="curve") as fleet,
    ):
        fleet.start_job("hits", PER_AGENT, lateness="1s")
        queries = PER_AGENT.replace("GROUP BY", "WHERE status >= 100 GROUP BY"), PER_AGENT
        with Writer(fleet.agents, RATE):
            for number in range(changes):
                seconds, answer = command(fleet, "job", "update", "hits", "--sql", queries[number % 2])
                whole.append(seconds * 1e3)
                took.append(milliseconds(answer))
    show("in force, ms", took, 300, 700)
    rest = [all_ms - force_ms for all_ms, force_ms in zip(whole, took, strict=True)]
    print(
        measure.target("the whole command less that, ms, median", statistics.median(rest), 300, at_most=True)
    )


def start(smoke: bool) -> None:
    """From the end of `elf job start` to the first row of `elf job watch`."""
    agents, jobs = (3, 1) if smoke else (AGENTS, 20)
    print(f"\nelf job start: {agents} agents, {RATE} lines/s each, CURVE, {jobs} jobs")
    took: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", agents, timings={}, security="curve") as fleet,
        Writer(fleet.agents, RATE),
    ):
        for number in range(jobs):
            command(fleet, "job", "start", f"hits{number}", "--sql", PER_AGENT, "--lateness", "1s")
            began, first = time.time(), list[float]()
            watched(
                fleet,
                f"hits{number}",
                lambda first=first: bool(first),
                lambda at, _, first=first: first.append(at),
            )
            took.append(first[0] - began)
            command(fleet, "job", "stop", f"hits{number}")
    print(measure.target("seconds to the first row, median", statistics.median(took), 1, at_most=True))
    print(f"  worst {max(took):.2f} s; the start of elf job watch, some 0.2 s, is in all of them", flush=True)


def restate(smoke: bool) -> None:
    """Windows of another job are watched while one reads an hour again."""
    agents, size, seconds = (2, 4 << 20, 1) if smoke else (3, 1 << 30, 20)
    print(f"\nrestate of an hour: {agents} agents with {size >> 20:,} MiB of log each, CURVE")
    while not 60 < time.time() % HOUR_S < HOUR_S - (120 if smoke else 600):
        time.sleep(1)  # the hour must not end meanwhile
    now_s = int(time.time())
    began_s = now_s // HOUR_S * HOUR_S
    hour = SQL.replace("'1 second'", "'1 hour'")
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", agents, timings={}, security="curve") as fleet,
    ):
        lines = sum(fill(agent.log, size, began_s, now_s) for agent in fleet.agents)
        fleet.start_job("hour", hour, lateness="1s")
        fleet.start_job("live", PER_AGENT, lateness="1s")
        with fleet.watch("hour") as seen:
            seen.wait(lambda: counted(seen) >= lines, seconds=READ_S_MAX)
            before = latencies(fleet, seconds)
            former, began = seen.puts[-1][1].version, time.time()
            _, answer = command(fleet, "job", "update", "hour", "--at", "restate", "--sql", other(hour))
            print(f"  {answer.splitlines()[0]}")
            during = latencies(fleet, seconds)
            seen.wait(lambda: counted(seen, former) >= lines, seconds=READ_S_MAX)
            took = time.time() - began
    print(f"  all of the {lines:,} lines were counted again within {took:.1f} s")
    for name, values in (("before", before), ("during", during)):
        print(f"  live, a line to its watch, {name:7} median {statistics.median(values) * 1e3:.0f} ms")
    growth = statistics.median(during) / statistics.median(before)
    print(measure.target("median during / before", growth, 1.2, at_most=True), flush=True)


def other(sql: str) -> str:
    """Another query over the same lines."""
    return sql.replace("sum(bytes) AS bytes", "max(bytes) AS bytes")


def fill(log: Path, size: int, began_s: int, now_s: int) -> int:
    """Write so many bytes of lines with times from `began_s` to `now_s`, evenly. Returns how many lines."""
    path = "/shop/" + "x" * 150
    each = [f'{n % 1_000:03} "GET {path}/{n % 97} HTTP/1.1" 200 {n % 9_000}\n' for n in range(1_000)]
    per_second = size // (now_s - began_s) // len(each[0]) + 1
    count = 0
    with log.open("w") as file:
        for second in range(began_s, now_s):
            file.writelines(f"{second}.{text}" for text in islice(cycle(each), per_second))
            count += per_second
    return count


def counted(seen: Seen, except_of: str = "") -> int:
    """Lines in the newest window, of another version than that."""
    put = seen.puts[-1][1] if seen.puts else None
    return put.lines[1] if put is not None and put.version != except_of else 0


def latencies(fleet: Fleet, seconds: float) -> list[float]:
    """Seconds from each line to the row of the job `live` that counts it."""
    shown: dict[tuple[str, int], int] = {}
    taken: list[float] = []
    with Writer(fleet.agents, RATE) as writer:
        until_s = time.time() + seconds

        def heard(now_s: float, row: dict[str, object]) -> None:
            key, hits = (str(row["agent"]), start_us(row)), row["hits"]
            assert isinstance(hits, int)
            times = writer.at.get(key, [])
            first = max(0, shown.get(key, hits - len(times)))
            taken.extend(now_s - at for at in times[first:hits])
            shown[key] = max(hits, shown.get(key, 0))

        watched(fleet, "live", lambda: bool(taken) and time.time() > until_s, heard)
    return taken


def command(fleet: Fleet, *arguments: str) -> tuple[float, str]:
    """A command at the first agent, signed by the operator, as a process of its own: its wall time in seconds, and its output."""
    signed = ("--keys", str(fleet.operator), "--agent", str(fleet.agents[0].socket))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "elf", *arguments, *signed], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"elf {' '.join(arguments[:3])}: {done.stderr}")
    return seconds, done.stdout


def milliseconds(answer: str) -> float:
    """What a command says a change took."""
    found = TOOK.search(answer)
    assert found is not None, answer
    return float(found[1].replace(",", "")) * (1e3 if found[2] == "s" else 1)


def show(what: str, values: Sequence[float], median: float, p99: float) -> None:
    """Two figures beside their targets."""
    ordered = sorted(values)
    print(measure.target(f"{what}, median", statistics.median(ordered), median, at_most=True))
    print(measure.target(f"{what}, p99", ordered[int(len(ordered) * 0.99)], p99, at_most=True), flush=True)


# Simulated agents.


class Changed(VirtualFleet):
    """A fleet whose job changes once, `CHANGED_US` after its start; everything is in virtual microseconds.

    committed_us: the master has the change in its log. known_us: when each worker has it. shown_us: a watcher has the first
    window under it.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.committed_us = self.shown_us = 0
        self.known_us: dict[bytes, int] = {}
        self.version = version_of(f"{WINDOW_US // SECOND} seconds", 1)
        self.oracle.numbers[self.version.digest] = 1
        [self._job] = self.specs
        self._asked: Submission | None = None
        self._number = 0  # of the schedule before the change
        self._watcher: Watcher | None = None
        self.world.at(CALM_US, self._watch)
        self.world.at(CALM_US + CHANGED_US, self._change)
        self.world.at(CALM_US + STEP_US, self._act)

    def _begin(self) -> None:
        super()._begin()
        self.world.network.weather = Weather(delay_us=MS, jitter_us=0)

    def _watch(self) -> None:
        """`elf job watch` at the first host."""
        host = self.hosts[0]
        assert host.node is not None
        self._watcher = Watcher(self._job.id, host.id, 1, self.parameters)
        host.node.listener = self._receive

    def _receive(self, source: NodeId, message: Message) -> None:
        now = self.world.clock(self.hosts[0])
        if self._watcher is not None:
            self._watcher.step(source, message, now)
        if self._asked is not None:
            self._asked.step(source, message, now)

    def _change(self) -> None:
        """`elf job update` at the first host."""
        host = self.hosts[0]
        assert host.node is not None
        held = JobItems(host.node.directory, self._job.id)
        item, now_us = held.item(), self.world.clock(host)
        assert item is not None
        spec = decode_job(item)
        number, former = next_spec_number(held.ballot(), spec.number), spec.versions[-1].digest
        new = changed(spec, self.version, "split", now_us, held.schedule(), number, former)
        self._asked = Submission(new.id, 1, new.item(), now_us)
        self._number = max(
            number_of(seat.worker.schedule) for seat in self._seats() if seat.worker is not None
        )

    def _act(self) -> None:
        """Let command and watch act, and note what is known by now."""
        if not self.shown_us:
            self.world.at(self.world.now_us + STEP_US, self._act)
        world, host = self.world, self.hosts[0]
        now = world.clock(host)
        for each in (self._asked, self._watcher):
            if each is not None and (each.deadline is None or each.deadline <= now):
                world.carry(host, each.tick(now))
        if self._watcher is not None:
            puts = self._watcher.take()
            self._watcher.check()
            if not self.shown_us and any(put.version == self.version.digest for put in puts):
                self.shown_us = world.now_us
        if self._asked is not None and len(self.known_us) < len(self.hosts):
            for seat in self._seats():
                self._look_at(seat)

    def _seats(self) -> Iterator[JobSeat]:
        for actor in self.hosts:
            assert actor.node is not None
            seat = actor.node.seats[self._job.id]
            assert isinstance(seat, JobSeat)
            yield seat

    def _look_at(self, seat: JobSeat) -> None:
        if (
            not self.committed_us
            and seat.master is not None
            and number_of(seat.master.state.schedule) > self._number
        ):
            self.committed_us = self.world.now_us
        if (
            seat.me not in self.known_us
            and seat.worker is not None
            and number_of(seat.worker.schedule) > self._number
        ):
            self.known_us[seat.me] = self.world.now_us

    def _unfinished(self, spec: JobSpec) -> str:
        """The oracle's first error, of both versions."""
        held = JobItems(self.hosts[0].node.directory, spec.id).schedule()  # type: ignore[union-attr]
        assert held is not None
        first, second = held.lines
        stretches = [
            Stretch(first.version, WINDOW_US, WINDOW_US, spec.line_us, second.from_us),
            Stretch(second.version, WINDOW_US, WINDOW_US, second.from_us, AFTER_ALL),
        ]
        return self.oracle.unfinished(Log(spec.id, NO_BALLOT, stretches), self.world.now_us)


def simulated(smoke: bool) -> None:
    """One change of a large mesh."""
    nodes = 20 if smoke else 1_000
    print(f"\nelf job update: {nodes:,} simulated agents, links of 1 ms")
    fleet = Changed(Plan(nodes=nodes, jobs=1, seconds=8, seed=7))
    fleet.run()
    if fleet.wrong:
        WRONG.append(fleet.wrong)
    changed_us = CALM_US + CHANGED_US
    known = [(at - fleet.committed_us) / MS for at in fleet.known_us.values()]
    print(
        f"  committed {(fleet.committed_us - changed_us) / MS:.1f} ms after the command; exact: {not fleet.wrong}"
    )
    print(measure.target(f"known by all {len(known):,} agents, ms after that", max(known), 60, at_most=True))
    print(f"  known by half of them after {statistics.median(known):.1f} ms")
    shown = (fleet.shown_us - fleet.committed_us) / SECOND
    print(measure.target("first window under it, s after that", shown, 1, at_most=True), flush=True)


PARTS: dict[str, Callable[[bool], None]] = {
    "update": update,
    "start": start,
    "restate": restate,
    "simulated": simulated,
}


if __name__ == "__main__":
    sys.exit(measure.run_parts(PARTS, WRONG))
