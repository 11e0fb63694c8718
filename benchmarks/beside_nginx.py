"""nginx under wrk, with and without an agent beside it: does the agent move its throughput or its 99th percentile?

    python benchmarks/beside_nginx.py [--runs 8] [--seconds 10] [--smoke]

nginx has one worker on one core, wrk keeps 64 connections busy from another. The agent is one of a mesh with keys on and has
three jobs of ten-second windows that nobody watches, of which it is the master too. It runs on any core, at the priority that
the unit of examples/elf-mesh.service gives it (CPUWeight=20, here nice 7), or under SCHED_IDLE. Runs of both kinds and without
it take turns; without it the same process stands still (SIGSTOP), and reads what it missed before the next run begins. Told are
all, the difference of the medians, and beside that the noise: the standard deviation of the runs without it. In the end the
agent must have counted every line of the log once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import measure
import msgspec
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from elf.agent.control import protocol as w
from elf.agent.demo.server import free_port, wait_until_ready
from tests.rigs.agents.mesh_rig import FORMAT, Agent, Fleet, wait_until

CONNECTIONS = 64
PAGE_BYTES = 1_024
NICE = 7
"""The kernel's weight of it is a fifth of what others have, as that of CPUWeight=20 is."""
CATCH_UP_S = 60.0
PATH = f"{os.environ['PATH']}:/usr/sbin"
JOBS = {
    "traffic": "status, count(*) AS hits, sum(bytes) AS bytes FROM access {window}, status",
    "paths": "path, count(*) AS hits, sum(bytes) AS bytes FROM access {window}, path ORDER BY hits DESC LIMIT 20",
    "errors": "path, status, count(*) AS hits, approx_percentile(bytes, 0.99) AS p99 FROM access WHERE status >= 400 "
    "{window}, path, status",
}
CONFIGURATION = """\
{user}worker_processes 1;
worker_cpu_affinity {mask};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log {log} combined;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


WITHOUT, NICED, IDLE = KINDS = ("without", "at nice 7", "SCHED_IDLE")


class Load(msgspec.Struct, frozen=True):
    """What wrk measured. p99_ms: of all answers. cpu_s: processor time of the agent meanwhile. lag_bytes: not read at the end."""

    per_s: float
    p99_ms: float
    cpu_s: float
    lag_bytes: int


class CombinedFleet(Fleet):
    """One agent, whose log is nginx's."""

    def _prefix(self, number: int) -> Sequence[str]:
        return ["nice", "-n", str(NICE)]

    def _config(self, number: int, name: str, port: int) -> str:
        return super()._config(number, name, port).replace(f"'{FORMAT}'", '"combined"')


def nginx(folder: Path, log: Path, port: int, core: int) -> subprocess.Popen[bytes]:
    """Ready to answer. Raises PeerError."""
    folder.mkdir()
    (folder / "page").write_bytes(b"x" * PAGE_BYTES)
    user = "user root;\n" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    mask = format(1 << core, "b")
    configuration.write_text(CONFIGURATION.format(user=user, mask=mask, folder=folder, log=log, port=port))
    program = shutil.which("nginx", path=PATH)
    assert program is not None
    errors = str(folder / "error.log")
    process = subprocess.Popen([program, "-p", str(folder), "-e", errors, "-c", str(configuration)])
    wait_until_ready(process, port)
    return process


def load(port: int, seconds: int, core: int, agent: Agent) -> Load:
    """Run wrk."""
    before = agent.cpu_s()
    url = f"http://127.0.0.1:{port}/page"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}", "--latency", url]
    told = subprocess.run(
        [measure.taskset(), "-c", str(core), *command], capture_output=True, text=True, check=True
    ).stdout
    per_s, p99 = re.search(r"Requests/sec:\s+([\d.]+)", told), re.search(r" 99%\s+([\d.]+)(us|ms|s)", told)
    assert per_s is not None, told
    assert p99 is not None, told
    scale = {"us": 0.001, "ms": 1.0, "s": 1_000.0}[p99[2]]
    return Load(float(per_s[1]), float(p99[1]) * scale, agent.cpu_s() - before, 0)


def lag_bytes(agent: Agent) -> int:
    """What it has not read of its log."""
    status = agent.ask(w.MeshStatus())
    assert isinstance(status, w.Status)
    return status.members[0].lag_bytes


def set_policy(agent: Agent, policy: int) -> None:
    """Of all its threads."""
    for thread in os.listdir(f"/proc/{agent.pid}/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(0))


def rounds(agent: Agent, port: int, seconds: int, core: int, runs: int) -> dict[str, list[Load]]:
    """`runs` of each kind, in turn; which is first changes too."""
    found: dict[str, list[Load]] = {kind: [] for kind in KINDS}
    for number in range(len(KINDS) * runs):
        kind = KINDS[(number + number // len(KINDS)) % len(KINDS)]
        wait_until(lambda: not lag_bytes(agent), "the agent does not catch up", CATCH_UP_S)
        if kind == WITHOUT:
            agent.signal(signal.SIGSTOP)
        elif kind == IDLE:
            set_policy(agent, os.SCHED_IDLE)
        measured = load(port, seconds, core, agent)
        agent.signal(signal.SIGCONT)
        set_policy(agent, os.SCHED_OTHER)
        found[kind].append(replace(measured, lag_bytes=lag_bytes(agent)))
    return found


def tell(name: str, unit: str, without: Sequence[float], kind: str, beside: Sequence[float]) -> None:
    """A figure with and without the agent, and how much it moved beside how much it moves by itself."""
    base, moved = statistics.median(without), statistics.median(beside)
    noise = statistics.stdev(without) / base if len(without) > 1 else 0.0
    change = moved / base - 1
    for label, values in ((WITHOUT, without), (kind, beside)):
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"  {name}, {label:16}  {middle:10,.2f} {unit}  ({low:,.2f} to {high:,.2f})")
    verdict = "less than the noise" if abs(change) < noise else "MORE than the noise"
    print(f"  {name} moves by {change:+.1%}, {verdict} of {noise:.1%} from run to run")


def counted(folder: Path) -> int:
    """Lines in all final windows of the job `traffic`, of the latest revision of each."""
    latest: dict[str, int] = {}
    for path in folder.glob("traffic.*.jsonl"):
        for line in path.read_bytes().splitlines():
            window = msgspec.json.decode(line)
            latest[window["_elf"]["window"]["start"]] = sum(row["hits"] for row in window["rows"])
    return sum(latest.values())


def check(agent: Agent) -> bool:
    """Whether every line was counted once; says so. nginx logs the last answers after wrk has ended."""

    def lines() -> int:
        with agent.log.open("rb") as log:
            return sum(1 for _ in log)

    windows = agent.folder / "windows"
    try:
        wait_until(lambda: counted(windows) == lines(), "", CATCH_UP_S)
    except AssertionError:
        print(f"  WRONG: the log has {lines():,} lines, the windows {counted(windows):,}")
        return False
    print(f"  the windows have every one of {lines():,} lines, once: equal")
    return True


def run(folder: Path, runs: int, seconds: int) -> bool:
    """All of it. Whether the agent counted right."""
    cores = sorted(os.sched_getaffinity(0))
    sink = '[[sink]]\nname = "rows"\njsonl = "windows"\n'
    with CombinedFleet(folder, 1, timings={}, security="curve", more=lambda number: sink) as fleet:
        agent = fleet.agents[0]
        window = "GROUP BY window(time, '10 seconds')"
        for name, sql in JOBS.items():
            sinks = ("--sink", "rows") if name == "traffic" else ()
            fleet.start_job(name, "SELECT window, " + sql.format(window=window), *sinks, lateness="5s")
        port = free_port()
        server = nginx(folder / "nginx", agent.log, port, cores[0])
        try:
            load(port, 1, cores[-1], agent)
            report(rounds(agent, port, seconds, cores[-1], runs), seconds)
            return check(agent)
        finally:
            server.terminate()
            server.wait(10)


def report(found: dict[str, list[Load]], seconds: int) -> None:
    without = found[WITHOUT]
    print(f"  {len(without)} runs of {seconds} s of each kind, in turn; medians, minimum and maximum")
    for kind in (NICED, IDLE):
        beside = found[kind]
        tell("requests", "/s", [each.per_s for each in without], kind, [each.per_s for each in beside])
        tell("p99", "ms", [each.p99_ms for each in without], kind, [each.p99_ms for each in beside])
        shares = [each.cpu_s / seconds for each in beside]
        took = f"{statistics.median(shares):.1%} of a core ({min(shares):.1%} to {max(shares):.1%})"
        lag = max(each.lag_bytes for each in beside) / 1e6
        print(f"  {kind}, the agent took {took}, and was at most {lag:.1f} MB behind at the end of a run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8, help="of each kind")
    parser.add_argument("--seconds", type=int, default=10, help="of each run")
    parser.add_argument("--smoke", action="store_true", help="two runs of one second")
    arguments = parser.parse_args()
    runs, seconds = (2, 1) if arguments.smoke else (arguments.runs, arguments.seconds)
    print(measure.machine())
    for program in ("nginx", "wrk"):
        if shutil.which(program, path=PATH) is None:
            print(f"  skipped: {program} is not installed")
            return 0
    with tempfile.TemporaryDirectory(prefix="elf-nginx-") as folder:
        return 0 if run(Path(folder) / "mesh", runs, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
