"""Where the time goes between a master's kill -9 and the next window: each phase, of real agents on loopback.

    python benchmarks/recovery.py [--smoke] [--only kill,quiet,calm] [--agents 5] [--runs 5] [--busy 0] [--minutes 60]

kill: a job's master is killed while all servers log; who sees its sockets close, who takes over, when a watcher elsewhere gets a
window with a line that was logged later. quiet: traffic stops after load; when the mesh says nothing new any more. calm: nobody
dies, and busy loops take the processors; nobody may be taken for dead.

Agents have keys, CURVE and the timings that ship. Each notes what it sees, as it sees it, in a file of its own (`traced`); all
clocks are this machine's. `--busy N`: so many busy loops beside them. What windows say in the end is held against one pass over
all logs; if it differs, or somebody was taken for dead in a calm, this exits with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.rigs.agents.busy import busy
from tests.rigs.agents.mesh_rig import Fleet, line, wait_until
from tests.rigs.agents.seen import Seen, rows_of

RATE = 20.0
"""Lines per second at each agent."""
LATER = 599
"""Status of lines that are logged after the kill."""
QUIET_S = 2.0
"""A watcher that gets nothing new for so long has all."""
MEDIAN_S, WORST_S = 0.8, 1.5
PHASES = (
    ("closed", "its socket is closed, seen first"),
    ("closed*", "… and by the last survivor"),
    ("refused", "a plain connect is refused, seen first"),
    ("dead", "known to be dead by the next master"),
    ("dead*", "… and by the last survivor"),
    ("asks", "the next master asks who holds what"),
    ("promises", "… and under a ballot of its own"),
    ("log", "it holds the highest log"),
    ("serves", "it serves"),
    ("committed", "first bundle committed"),
    ("told", "first window told to a watcher"),
    ("window", "first window at the watcher"),
    ("later", "first window there with a later line"),
)
WRONG: list[str] = []

Event = tuple[float, str, str]
"""(time, what, about which node)."""


# In an agent's process.


def traced(path: str, arguments: Sequence[str]) -> None:
    """`elf` with these arguments, noting in the file what recovery consists of."""
    out = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(what: str, about: bytes = b"") -> None:
        os.write(out, f"{time.time():.6f} {what} {about.hex() or '-'}\n".encode())

    _trace_the_edge(note)
    _trace_the_job(note)
    sys.argv = ["elf", *arguments]
    runpy.run_module("elf", run_name="__main__")


def _before(owner: Any, name: str, note: Callable[..., None]) -> None:
    """`note` is called with the method's arguments before it is."""
    method = getattr(owner, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        note(*arguments, **named)
        return method(*arguments, **named)

    setattr(owner, name, noted)


def _trace_the_edge(note: Callable[..., None]) -> None:
    from elf.agent.host.host import Host
    from elf.srt.overlay.overlay import Overlay
    from elf.srt.transport.dialer import Dialer, State

    def fails(dialer: Dialer, reason: str, text: str) -> None:
        if dialer.state is State.OPEN:
            note("closed", dialer.node or b"")

    _before(Dialer, "fail", fails)
    if hasattr(Host, "_refused"):
        _before(Host, "_refused", lambda host, node, life: note("refused", node))
    _before(Host, "_begin", lambda host, me, records: note("me", me.id))
    take = Overlay.take_changes

    def take_changes(overlay: Overlay) -> Any:
        changes = take(overlay)
        for what, contact in changes:
            note(what, contact.id)
        return changes

    Overlay.take_changes = take_changes  # type: ignore[method-assign]


def _trace_the_job(note: Callable[..., None]) -> None:
    from elf.agent.node.job_seat import JobSeat
    from elf.jobmaster.delivery.watchers import Watchers
    from elf.jobmaster.log.entries import Accept
    from elf.jobmaster.log.succession import Succession
    from elf.jobmaster.master.master import Master

    _before(Succession, "_query", lambda core, now, pause_us=0: note("asks"))
    _before(Succession, "_promise", lambda core, now: note("promises"))
    _before(Succession, "_raise", lambda core, record, now: note("log"))
    _before(JobSeat, "_serve", lambda seat, serve, now: note("serves"))
    _before(Watchers, "_send_window", lambda watchers, watcher, put, nbytes: note("told", watcher.to))

    def committed(master: Master, entries: Any, now: int) -> None:
        if any(isinstance(entry, Accept) for _, entry in entries):
            note("committed")

    _before(Master, "committed", committed)


# The fleet.


class Traced(Fleet):
    """Agents that note what they see."""

    def trace(self, number: int) -> Path:
        return self.folder / f"a{number}.trace"

    def _prefix(self, number: int) -> Sequence[str]:
        return (sys.executable, __file__, "--traced", str(self.trace(number)))

    def events(self, number: int) -> list[Event]:
        """In the order in which that agent noted them."""
        path = self.trace(number)
        if not path.exists():
            return []
        fields = (text.split(" ") for text in path.read_text().splitlines())
        return [(float(at), what, about) for at, what, about in fields]

    def id_of(self, number: int) -> str:
        return next(about for _, what, about in self.events(number) if what == "me")


class Server:
    """Lines at each agent's server, `status` by `status`, until told to end."""

    def __init__(self, fleet: Fleet, rate: float) -> None:
        import threading

        self.status = 200
        self._fleet, self._pause_s = fleet, 1 / rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            now_s, size = time.time(), random.randrange(10_000)
            self._fleet.last_s = max(self._fleet.last_s, now_s)
            for agent in self._fleet.agents:
                if agent.is_running:
                    agent.write([line(now_s, self.status, size)])


@contextmanager
def mesh(options: argparse.Namespace) -> Iterator[Traced]:
    with tempfile.TemporaryDirectory(prefix="elf-recovery-") as folder:
        fleet = Traced(Path(folder) / "mesh", options.agents, timings={}, security="curve")
        with fleet, busy(options.busy):
            yield fleet


# A master's death.


def kill(options: argparse.Namespace) -> None:
    """kill -9 of the master, several times."""
    print(f"\nkill -9 of a master: {options.agents} agents, {options.busy} busy loops, milliseconds after it")
    taken: dict[str, list[float]] = {name: [] for name, _ in PHASES}
    for _ in range(options.runs):
        with mesh(options) as fleet:
            for name, took in _kill(fleet).items():
                taken[name].append(took)
    for name, text in PHASES:
        _tell(text, taken[name])
    later = taken["later"]
    print(measure.target("median, s", statistics.median(later), MEDIAN_S, at_most=True))
    print(measure.target("worst, s", max(later), WORST_S, at_most=True), flush=True)


def _tell(text: str, times: Sequence[float]) -> None:
    if not times:
        print(f"  {text:42} not seen")
        return
    ms = [1e3 * each for each in times]
    print(f"  {text:42} median {statistics.median(ms):7.1f}, {min(ms):.1f} to {max(ms):.1f}")


def _kill(fleet: Traced) -> dict[str, float]:
    fleet.start_job("hits", lateness="1s")
    master = fleet.master("hits")
    victim = fleet.agents.index(master)
    watching = next(n for n, agent in enumerate(fleet.agents) if agent is not master)
    with fleet.watch("hits", watching) as seen:
        with Server(fleet, RATE) as server:
            seen.wait_finals(2)
            ballot = seen.puts[-1][1].ballot
            killed_s = time.time()
            master.kill()
            server.status = LATER
            seen.wait(lambda: _later(seen) is not None)
            later_s = _later(seen)
            assert later_s is not None
            window_s = next(at for at, put in seen.puts if put.ballot > ballot)
            wait_until(lambda: _all_know(fleet, victim, killed_s), "a survivor does not see that it is dead")
            master.start()
            master.wait_ready()
            seen.wait_finals(2)
        exact = fleet.settled(seen) == fleet.counted()
    if not exact:
        WRONG.append(f"{seen.totals()} where the logs say {fleet.counted()}")
    phases = {"window": window_s - killed_s, "later": later_s - killed_s}
    return phases | _phases(fleet, victim, killed_s)


def _later(seen: Seen) -> float | None:
    """When a window came that holds a line of after the kill."""
    return next((at for at, put in seen.puts if any(int(row[1]) == LATER for row in rows_of(put))), None)


def _noted(fleet: Traced, victim: int, killed_s: float) -> dict[int, list[Event]]:
    """What each survivor has noted since the kill."""
    return {
        number: [each for each in fleet.events(number) if killed_s - 0.01 <= each[0]]
        for number in range(len(fleet.agents))
        if number != victim
    }


def _all_know(fleet: Traced, victim: int, killed_s: float) -> bool:
    """Whether each survivor has seen its sockets close, its port refuse, and called it dead."""
    gone = fleet.id_of(victim)
    return all(
        {"closed", "refused", "dead"} <= {what for _, what, about in events if about == gone}
        for events in _noted(fleet, victim, killed_s).values()
    )


def _phases(fleet: Traced, victim: int, killed_s: float) -> dict[str, float]:
    """What survivors noted of it, in seconds after the kill."""
    gone = fleet.id_of(victim)
    seen = _noted(fleet, victim, killed_s)

    def first(what: str, of: Sequence[Event], about: str = "") -> float | None:
        return next((at - killed_s for at, w, who in of if w == what and about in ("", who)), None)

    phases: dict[str, float | None] = {}
    for what in ("closed", "refused", "dead"):
        times = [at for events in seen.values() if (at := first(what, events, gone)) is not None]
        phases[what] = min(times, default=None)
        if len(times) == len(seen):
            phases[f"{what}*"] = max(times)
    served = [(at, number) for number, events in seen.items() if (at := first("serves", events)) is not None]
    if served:
        next_master = seen[min(served)[1]]
        phases["dead"] = first("dead", next_master, gone)
        begun = phases["dead"] or 0.0
        for what in ("asks", "promises", "log", "serves", "committed", "told"):
            phases[what] = first(what, [each for each in next_master if each[0] - killed_s >= begun])
    return {name: took for name, took in phases.items() if took is not None and name in dict(PHASES)}


# After load.


def quiet(options: argparse.Namespace) -> None:
    """The traffic stops."""
    print(f"\nTraffic stops after load: {options.agents} agents, {options.busy} busy loops, seconds after it")
    taken: dict[str, list[float]] = {"last": [], "final": []}
    for _ in range(options.runs):
        with mesh(options) as fleet:
            for name, took in _quiet(fleet, options).items():
                taken[name].append(took)
    for name, text in (("last", "last change of an open window"), ("final", "all windows are final")):
        _tell(f"{text}, ms", taken[name])


def _quiet(fleet: Traced, options: argparse.Namespace) -> dict[str, float]:
    fleet.start_job("hits", lateness="1s")
    with fleet.watch("hits") as seen:
        with Server(fleet, 10 * RATE):
            seen.wait_finals(2 if options.smoke else 10)
        stopped_s = time.time()
        counted = fleet.counted()
        wait_until(lambda: time.time() - seen.puts[-1][0] > QUIET_S, "windows still change", 120.0)
        last_s = max(at for at, put in seen.puts if put.start in counted) - stopped_s
        wait_until(lambda: set(counted) <= seen.final_starts, "windows are not final", 120.0)
        final_s = max(at for at, put in seen.puts if put.start in counted) - stopped_s
        exact = {start: seen.totals().get(start) for start in counted} == counted
    if not exact:
        WRONG.append(f"{seen.totals()} where the logs say {counted}")
    return {"last": max(0.0, last_s), "final": max(0.0, final_s)}


# Nobody dies.


def calm(options: argparse.Namespace) -> None:
    """Nobody dies, and nobody may be taken for dead."""
    seconds = 2.0 if options.smoke else 60 * options.minutes
    print(f"\nNobody dies: {options.agents} agents, {options.busy} busy loops, {seconds / 60:g} minutes")
    with mesh(options) as fleet:
        fleet.start_job("hits", lateness="1s")
        since_s = time.time()
        with Server(fleet, RATE):
            wait_until(lambda: time.time() - since_s > seconds, "", seconds + 60)
        told = [each for n in range(options.agents) for each in fleet.events(n) if each[0] >= since_s]
        ended = [agent.name for agent in fleet.agents if not agent.is_running]
    counts = {
        what: sum(each[1] == what for each in told) for what in ("closed", "refused", "suspect", "dead")
    }
    print(f"  {', '.join(f'{what} {count}' for what, count in counts.items())}", flush=True)
    if ended or counts["dead"] or counts["refused"]:
        WRONG.append(f"in a calm: {counts}, ended: {ended}")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"kill": kill, "quiet": quiet, "calm": calm}


def main() -> int:
    if sys.argv[1:2] == ["--traced"]:
        path, *command = sys.argv[2:]
        traced(path, command[command.index("agent") :])
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the agents")
    parser.add_argument("--minutes", type=float, default=2.0, help="of calm")
    options = parser.parse_args()
    if options.smoke:
        options.agents, options.runs = 3, 1
    for name in options.only.split(","):
        PARTS[name](options)
    for wrong in WRONG:
        print(f"NOT RIGHT: {wrong}")
    return 1 if WRONG else 0


if __name__ == "__main__":
    sys.exit(main())
