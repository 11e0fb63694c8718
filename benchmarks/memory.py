"""What mesh agents hold, by owner: under a flood of distinct paths, when they start again, and over a long run.

    python benchmarks/memory.py [--smoke] [--only flood,soak] [--seconds N] [--paths N]

flood: one agent with `memory_max` of 64 MiB whose log names a path per line, then kill -9 and a start: what it has at most. soak:
three agents with three jobs and a lake at 60 lines a second each, for `--seconds`, one job watched for a minute of ten; a line of
the table each minute, by `elf mesh status`. Ends with 1 where an agent held more than its bare process and its cap.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from elf.agent.control import protocol as w
from tests.rigs.agents.mesh_rig import Agent, Fleet, line, peak_bytes

CAP_MIB = 64
TOLERANCE_MIB = 8
"""What may be taken between two looks at the process."""
MIB = 1 << 20
PATHS = 2_700_000
PATHS_PER_S = 45_000
RATE = 60
SECONDS = 3_600
BY_PATH = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes FROM access "
    "GROUP BY window(time, '1 minute'), path"
)
JOBS = {
    "hits": "SELECT window, status, count(*) AS hits FROM access GROUP BY window(time, '10 seconds'), status",
    "paths": "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '1 minute'), path",
    "sizes": "SELECT window, status, approx_percentile(bytes, 0.99) AS p99 FROM access "
    "GROUP BY window(time, '10 seconds'), status",
}
WATCHED_S = 60
UNWATCHED_S = 540
LAKE = '[[sink]]\nname = "lake"\nparquet = "lake"\n'
AGENT = f'memory_max = "{CAP_MIB}MiB"'
OVER: list[str] = []


def told(agent: Agent) -> dict[str, w.Member]:
    """All members as that agent's status tells them."""
    status = agent.ask(w.MeshStatus())
    assert isinstance(status, w.Status)
    return {member.name: member for member in status.members}


def held(what: str, agent: Agent) -> None:
    """One line of the table: what the kernel says, and what the agent says."""
    member = told(agent)[agent.name]
    owners = sorted((member.memory or {}).items(), key=lambda each: -each[1])
    shown = ", ".join(f"{name} {size / MIB:.1f}" for name, size in owners if size >= MIB // 20)
    bare, peak = (member.memory_bare or 0) / MIB, peak_bytes(agent) / MIB
    print(
        f"  {what:<14} {agent.name} resident {agent.memory_bytes() / MIB:.0f}, at most {peak:.0f}; "
        f"bare {bare:.0f}; {shown}",
        flush=True,
    )
    if peak > bare + CAP_MIB + TOLERANCE_MIB:
        OVER.append(f"{agent.name}, {what}: {peak:.0f} MiB where {bare:.0f} and {CAP_MIB} are allowed")


def distinct(count: int, rng: random.Random) -> list[str]:
    """Lines of now, each with a path that no other has."""
    now_s = time.time()
    return [
        line(now_s, 200, 100).replace("/p", f"/{rng.getrandbits(64):x}/{rng.getrandbits(32):x}", 1)
        for _ in range(count)
    ]


def flood(paths: int, seconds: float) -> None:
    """A client that makes up URLs, and a restart behind it."""
    print(f"\n{paths:,} distinct paths at {PATHS_PER_S:,} a second, memory_max {CAP_MIB} MiB (MiB)")
    rng = random.Random(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", 1, timings={}, agent=AGENT) as fleet,
    ):
        agent = fleet.agents[0]
        fleet.start_job("paths", BY_PATH, lateness="30s")
        written, began, shown_s = 0, time.monotonic(), 0.0
        while written < paths:
            agent.write(distinct(PATHS_PER_S // 5, rng))
            written += PATHS_PER_S // 5
            time.sleep(max(0.0, began + written / PATHS_PER_S - time.monotonic()))
            if time.monotonic() - shown_s > 10:
                held(f"{written:,}", agent)
                shown_s = time.monotonic()
        _wait_read(agent)
        time.sleep(min(2, seconds / 5))
        held("read", agent)
        agent.kill()
        agent.start()
        agent.wait_ready()
        _wait_served(fleet, agent)
        time.sleep(min(5, seconds / 5))
        held("started again", agent)


def _wait_read(agent: Agent) -> None:
    """Until the agent has read its log."""
    while (told(agent)[agent.name].lag_bytes or 0) > 0:
        time.sleep(0.2)


def _wait_served(fleet: Fleet, agent: Agent) -> None:
    while not fleet.master_name("paths", agent):
        time.sleep(0.1)


def soak(paths: int, seconds: float) -> None:
    """Ordinary traffic, for long."""
    del paths
    print(f"\nThree agents, three jobs, a lake, {RATE} lines/s each, for {seconds:,.0f} s (MiB)")

    def lake(number: int) -> str:
        return "" if number else LAKE

    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(Path(folder) / "mesh", 3, timings={}, agent=AGENT, security="curve", more=lake) as fleet,
    ):
        for name, sql in JOBS.items():
            fleet.start_job(name, sql, "--sink", "lake", lateness="5s")
        with watched_at_times(fleet, "hits"):
            _write(fleet.agents, time.monotonic(), seconds)
        for agent in fleet.agents:
            agent.kill()
        for agent in fleet.agents:
            agent.start()
            agent.wait_ready()
        fleet.wait_joined()
        time.sleep(min(10, seconds / 5))
        for agent in fleet.agents:
            held("started again", agent)


@contextlib.contextmanager
def watched_at_times(fleet: Fleet, job: str) -> Iterator[None]:
    """A watcher that comes and goes."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(UNWATCHED_S):
            with fleet.watch(job):
                ended.wait(WATCHED_S)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(agents: Sequence[Agent], began: float, seconds: float) -> None:
    rng, n, shown_s = random.Random(1), 0, 0.0
    while (passed := time.monotonic() - began) < seconds:
        n += 1
        now_s = time.time()
        for agent in agents:
            sizes = (rng.randrange(100, 100_000) for _ in range(RATE // 10))
            lines = (line(now_s, rng.choice((200, 200, 304, 404, 500)), size) for size in sizes)
            agent.write([each.replace("/p", f"/page/{rng.randrange(5_000)}", 1) for each in lines])
        if passed - shown_s >= min(60, seconds / 2):
            shown_s = passed
            for agent in agents:
                held(f"{passed:.0f} s", agent)
        time.sleep(max(0.0, began + n / 10 - time.monotonic()))
    for agent in agents:
        held("at the end", agent)


PARTS: dict[str, Callable[[int, float], None]] = {"flood": flood, "soak": soak}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--paths", type=int, default=PATHS)
    options = parser.parse_args()
    paths, seconds = (20_000, 2.0) if options.smoke else (options.paths, options.seconds)
    for name in options.only.split(","):
        PARTS[name](paths, seconds)
    for over in OVER:
        print(f"OVER THE CAP: {over}")
    return 1 if OVER else 0


if __name__ == "__main__":
    sys.exit(main())
