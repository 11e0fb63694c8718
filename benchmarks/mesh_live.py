"""Real agents on loopback: from a line to `elf job watch`, a master that dies under load, agents with nothing to do.

    python benchmarks/mesh_live.py [--smoke] [--only latency,kill,idle]

Every agent is a process of its own with keys, CURVE and its own live log. All of them, the web servers' writers and the watching
command share this machine's cores, so figures are of the whole, not of one agent on a host of its own. What windows say in the
end is held against one pass over all logs; if it differs this exits with 1.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.rigs.agents.mesh_rig import Agent, Fleet, line
from tests.rigs.agents.seen import Totals

AGENTS = 16
RATE = 10
"""Lines per second at each agent."""
SECONDS = 20
WINDOW_S = 10
PER_AGENT = (
    f"SELECT window, agent, count(*) AS hits FROM access GROUP BY window(time, '{WINDOW_S} seconds'), agent"
)
FASTER = {
    "faster": {"flush": "100ms", "combine_max": "20ms", "emit": "100ms"},
    "fastest": {"flush": "60ms", "combine_max": "12ms", "emit": "60ms", "append": "5ms"},
}
"""Timings of [mesh], each with what it reaches and costs."""
WRONG: list[str] = []


class Writer:
    """Writes lines one at a time to the logs in turn, and notes when: (agent, window) -> moments, in order."""

    def __init__(self, agents: Sequence[Agent], rate: float) -> None:
        self.at: dict[tuple[str, int], list[float]] = {}
        self._agents, self._pause_s = agents, 1 / rate / len(agents)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        logs = [agent.log.open("a", buffering=1) for agent in self._agents]
        due, n = time.monotonic(), 0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            now_s = round(time.time(), 3)
            agent = self._agents[n % len(logs)]
            start = int(now_s) // WINDOW_S * WINDOW_S
            logs[n % len(logs)].write(line(now_s, 200, n % 1_000) + "\n")
            self.at.setdefault((agent.name, start), []).append(now_s)
            n += 1
            due += self._pause_s
        for log in logs:
            log.close()


def watched(
    fleet: Fleet, job: str, until: Callable[[], bool], heard: Callable[[float, dict[str, object]], None]
) -> None:
    """Rows of `elf job watch` at agent 0 with the moment at which each was read, until told to end."""
    command = [
        sys.executable,
        "-m",
        "elf",
        "job",
        "watch",
        job,
        "--output",
        "json",
        "--agent",
        str(fleet.agents[0].socket),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            heard(time.time(), json.loads(text))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    while not until():
        time.sleep(0.05)
    process.terminate()
    process.wait()
    thread.join()


def start_us(row: dict[str, object]) -> int:
    """Start of the row's window."""
    from datetime import UTC, datetime

    window = row["window"]
    assert isinstance(window, dict)
    moment = datetime.fromisoformat(str(window["start"]))
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def latency(smoke: bool) -> None:
    """Point 1."""
    for name, timings in {"default": {}, **FASTER}.items():
        _latency(name, timings, 3 if smoke else AGENTS, 1 if smoke else SECONDS)
        if smoke:
            return


def _latency(name: str, timings: Mapping[str, str], agents: int, seconds: float) -> None:
    print(
        f"\nFrom a line to elf job watch: {agents} agents, {RATE} lines/s each, CURVE, {name} timings {dict(timings)}"
    )
    emit = timings.get("emit", "200ms")
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", agents, timings=timings, security="curve") as fleet,
    ):
        fleet.start_job("hits", PER_AGENT, "--emit", emit, lateness="1s")
        shown: dict[tuple[str, int], int] = {}
        taken: list[float] = []
        with Writer(fleet.agents, RATE) as writer:
            until_s = time.time() + seconds + 3
            warm_s = time.time() + 3
            cpu = [agent.cpu_s() for agent in fleet.agents]

            def heard(now_s: float, row: dict[str, object]) -> None:
                key, hits = (str(row["agent"]), start_us(row)), row["hits"]
                assert isinstance(hits, int)
                for at in writer.at.get(key, [])[shown.get(key, 0) : hits]:
                    if at > warm_s:
                        taken.append(now_s - at)
                shown[key] = max(hits, shown.get(key, 0))

            watched(fleet, "hits", lambda: bool(taken) and time.time() > until_s, heard)
            used = [agent.cpu_s() - before for agent, before in zip(fleet.agents, cpu, strict=True)]
        memory = max(agent.memory_bytes() for agent in fleet.agents)
    taken.sort()
    median, p99 = statistics.median(taken) * 1e3, taken[int(len(taken) * 0.99)] * 1e3
    if name == "default":
        print(measure.target("median, ms", median, 400, at_most=True))
        print(measure.target("p99, ms", p99, 900, at_most=True))
    else:
        print(f"  median {median:.0f} ms, p99 {p99:.0f} ms")
    share = [100 * each / (seconds + 3) for each in used]
    print(
        f"  {len(taken):,} lines; max {taken[-1] * 1e3:.0f} ms; cpu of an agent: mean {statistics.mean(share):.1f} %, "
        f"max {max(share):.1f} %; memory at most {memory / 2**20:.0f} MiB",
        flush=True,
    )


def kill(smoke: bool) -> None:
    """Point 2."""
    agents = 3 if smoke else 5
    times: list[float] = []
    print(f"\nkill -9 of the master under load: {agents} agents, default timings")
    for _ in range(1 if smoke else 5):
        with (
            tempfile.TemporaryDirectory() as folder,
            Fleet(Path(folder) / "mesh", agents, timings={}, security="curve") as fleet,
        ):
            times.append(_kill(fleet))
    print(f"  seconds until windows of the next master: {', '.join(f'{each:.2f}' for each in times)}")
    print(measure.target("worst, s", max(times), 3, at_most=True), flush=True)


def _kill(fleet: Fleet) -> float:
    fleet.start_job("hits", lateness="1s")
    master = fleet.master("hits")
    with fleet.watch("hits", next(n for n, agent in enumerate(fleet.agents) if agent is not master)) as seen:
        with fleet.traffic(200):
            seen.wait_finals(2)
            ballot = seen.puts[-1][1].ballot
            killed_s = time.time()
            master.kill()
            seen.wait(lambda: seen.puts[-1][1].ballot > ballot)
            took = next(at for at, put in seen.puts if put.ballot > ballot) - killed_s
            master.start()
            master.wait_ready()
            seen.wait_finals(2)
        compare(fleet.settled(seen), fleet.counted())
    return took


def compare(shown: Totals, counted: Totals) -> None:
    """Windows against one pass over all lines."""
    exact = shown == counted
    lines = sum(hits for row in counted.values() for hits, _ in row.values())
    print(f"  {len(counted)} windows of {lines:,} lines; exact: {exact}")
    if not exact:
        WRONG.append(f"{shown} where the logs say {counted}")


def idle(smoke: bool) -> None:
    """Point 4."""
    agents, seconds = (3, 3) if smoke else (AGENTS, 30)
    print(f"\nNothing to do: {agents} agents, CURVE, default timings, {seconds} s")
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", agents, timings={}, security="curve") as fleet,
    ):
        time.sleep(5)  # until they have met
        before, began = [agent.cpu_s() for agent in fleet.agents], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        used = [100 * (agent.cpu_s() - cpu) / took for agent, cpu in zip(fleet.agents, before, strict=True)]
        memory = max(agent.memory_bytes() for agent in fleet.agents) / 2**20
    print(measure.target("% of a core, the busiest", max(used), 1, at_most=True))
    print(measure.target("% of a core, all together", sum(used), 10, at_most=True))
    print(measure.target("MiB, the largest", memory, 64, at_most=True), flush=True)


PARTS: dict[str, Callable[[bool], None]] = {"latency": latency, "kill": kill, "idle": idle}


if __name__ == "__main__":
    sys.exit(measure.run_parts(PARTS, WRONG))
