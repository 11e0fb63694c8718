"""A live agent beside a log that grows steadily: processor, memory, and whether every line was counted.

    python benchmarks/agent.py [--rate 10000] [--seconds 60] [--smoke] [--profile FILE]

A writer on another core appends combined lines with the present time, every 10 ms, as a busy server does. The agent
(`elf agent run`, on one core) keeps three jobs of ten-second windows in a Parquet lake. Measured over the steady seconds,
after a warm-up: the agent's processor time and resident memory, and apart from them those of the child processes that
write the lake. At the end the sums in the lake must be the writer's. With `--profile` the agent runs under cProfile, which
costs about as much again, and the statistics are written to FILE.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measure
import msgspec

TICK_S = 0.01
SAMPLE_S = 0.1
WINDOW_S, LATENESS_S, FINAL_S_MAX = 10, 5, 120
"""The windows' size, the jobs' lateness, and how long the last window may take to come into the lake."""
TEMPLATES = 200_000
"""Different lines that the writer has."""
CPU_MAX_PERCENT, RESIDENT_MAX_MB = 4.0, 64

# The process itself takes 42 MB; 12 MiB of panes leave room for what the allocator keeps, also after hours, when they are full.
HEAD = """\
[agent]
name = "bench"
state_dir = "state"
memory_max = "12MiB"

[[source]]
name = "access"
path = "logs/access.log*"
format = "combined"
start = "beginning"
"""

JOB = """
[[job]]
name = "{name}"
sql = "SELECT window, {select} FROM access {where} GROUP BY window(time, '{size} seconds'), {keys}"
lateness = "{lateness}s"
sinks = ["parquet:lake"]
"""

JOBS = (
    ("traffic", "status, count(*) AS hits, sum(bytes) AS bytes", "", "status"),
    ("paths", "path, count(*) AS hits, sum(bytes) AS bytes", "", "path ORDER BY hits DESC LIMIT 20"),
    (
        "errors",
        "path, status, count(*) AS hits, approx_percentile(bytes, 0.99) AS p99",
        "WHERE status >= 400",
        "path, status",
    ),
)

PROFILED = (
    "import cProfile, os, pathlib, sys; from elf.agent.commands.agent import agent_command; "
    "profile = cProfile.Profile(); "
    "code = profile.runcall(agent_command, pathlib.Path(sys.argv[1]), {}, False); "
    "profile.dump_stats(sys.argv[2]); sys.exit(code)"
)


def configuration(window: int, lateness: int) -> str:
    """The agent's TOML. window, lateness: of the jobs, seconds."""
    jobs = [
        JOB.format(name=name, select=select, where=where, keys=keys, size=window, lateness=lateness)
        for name, select, where, keys in JOBS
    ]
    return HEAD + "".join(jobs)


class Sample(msgspec.Struct):
    """Of a process at one moment. cpu, children_cpu: seconds, user and system; a child's once it has ended."""

    at: float
    cpu: float
    children_cpu: float
    resident: int
    peak: int


class Written(msgspec.Struct):
    """What the writer did. statuses: status, lines and bytes, by status. slowest_s: how far it ever fell behind."""

    lines: int
    seconds: float
    slowest_s: float
    statuses: list[tuple[int, int, int]]


class Measured(msgspec.Struct):
    """One measurement. stored: what the lake holds in the end, as `Written.statuses`."""

    before: Sample
    after: Sample
    children_peak: int
    written: Written
    stored: list[tuple[int, int, int]]

    @property
    def percent(self) -> float:
        return 100 * (self.after.cpu - self.before.cpu) / (self.after.at - self.before.at)

    @property
    def children_percent(self) -> float:
        return 100 * (self.after.children_cpu - self.before.children_cpu) / (self.after.at - self.before.at)


def sample(pid: int) -> Sample:
    """Read from /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    user, system, children_user, children_system = map(int, fields[11:15])
    cpu, children_cpu = (user + system) / ticks, (children_user + children_system) / ticks
    return Sample(time.monotonic(), cpu, children_cpu, *_memory(pid))


def _memory(pid: int) -> tuple[int, int]:
    """(resident, highest resident), bytes."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    found = {line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmRSS:", "VmHWM:")}
    return found.get("VmRSS:", 0), found.get("VmHWM:", 0)


def _children_peak(pid: int) -> int:
    """The highest resident memory of the children that live now."""
    peak = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            peak = max(peak, _memory(int(child))[1])
        except OSError:  # it has ended meanwhile
            continue
    return peak


def append_lines(log: Path, templates: Path, rate: int, seconds: float) -> Written:
    """The writer: lines at a steady rate with the present time."""
    lines = templates.read_text(encoding="ascii").splitlines(keepends=True)
    parts = [(line[: line.index("[") + 1], line[line.index("]") :]) for line in lines]
    used = Counter[int]()
    total, written, slowest = int(rate * seconds), 0, 0.0
    began = time.monotonic()
    with log.open("a", encoding="ascii", buffering=1 << 20) as out:
        while written < total:
            ahead = began + written / rate - time.monotonic()
            slowest = max(slowest, -ahead)
            time.sleep(max(0.0, ahead))
            due = min(int((time.monotonic() - began + TICK_S) * rate), total)
            now = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
            chosen = [number % len(parts) for number in range(written, due)]
            out.write("".join([f"{parts[i][0]}{now}{parts[i][1]}" for i in chosen]))
            out.flush()
            used.update(chosen)
            written = due
    return Written(written, time.monotonic() - began, slowest, _statuses(lines, used))


def _statuses(lines: list[str], used: Counter[int]) -> list[tuple[int, int, int]]:
    hits, sizes = Counter[int](), Counter[int]()
    for i, times in used.items():
        status, size = map(int, lines[i].split('" ', 1)[1].split(" ", 2)[:2])
        hits[status] += times
        sizes[status] += times * size
    return sorted((status, hits[status], sizes[status]) for status in hits)


def in_lake(lake: Path) -> list[tuple[int, int, int]]:
    """Status, lines and bytes of the job `traffic`, from each pane's highest revision, by status."""
    import duckdb

    if not any(lake.glob("traffic/**/date=*/*.parquet")):
        return []
    newest = "max((_revision_epoch, _revision_n)) OVER (PARTITION BY _pane_start)"
    return duckdb.execute(
        f"WITH newest AS (FROM '{lake}/traffic/*/*/date=*/*.parquet' QUALIFY (_revision_epoch, _revision_n) = {newest}) "
        "SELECT status, sum(_acc0)::BIGINT, sum(_acc2)::BIGINT FROM newest WHERE status IS NOT NULL GROUP BY 1 ORDER BY 1"
    ).fetchall()


@contextmanager
def _process(command: list[str], core: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def measured(
    folder: Path,
    templates: Path,
    rate: int,
    seconds: float,
    warm_up: float,
    window: int = WINDOW_S,
    lateness: int = LATENESS_S,
    profile: Path | None = None,
) -> Measured:
    """One agent and one writer, from start to stop."""
    log = folder / "logs" / "access.log"
    log.parent.mkdir()
    log.touch()
    (folder / "elf.toml").write_text(configuration(window, lateness), encoding="utf-8")
    agent_command = [measure.ELF, "agent", "run", "-c", "elf.toml"]
    if profile is not None:
        agent_command = [sys.executable, "-c", PROFILED, "elf.toml", str(profile.absolute())]
    writer_command = [sys.executable, __file__, "--write", str(log), "--templates", str(templates)]
    writer_command += ["--rate", str(rate), "--seconds", str(warm_up + seconds)]
    other = min(os.sched_getaffinity(0))
    with (
        _process(agent_command, measure.CORE, folder) as agent,
        _process(writer_command, other, folder) as writer,
    ):
        while not log.stat().st_size:
            _expect_alive(agent)
            time.sleep(SAMPLE_S)
        peak = _watch(agent, warm_up)
        before = sample(agent.pid)
        peak = max(peak, _watch(agent, seconds))
        after = sample(agent.pid)
        written = msgspec.json.decode(writer.communicate()[0], type=Written)
        final_s = time.monotonic() + FINAL_S_MAX
        while in_lake(folder / "lake") != written.statuses and time.monotonic() < final_s:
            _watch(agent, SAMPLE_S)
        agent.send_signal(signal.SIGTERM)
        errors = agent.communicate(timeout=FINAL_S_MAX)[1]
        if agent.returncode:
            raise SystemExit(f"the agent ended with {agent.returncode}: {errors.decode()}")
    return Measured(before, after, peak, written, in_lake(folder / "lake"))


def _watch(agent: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait, and return the highest memory of a child meanwhile."""
    peak, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        _expect_alive(agent)
        peak = max(peak, _children_peak(agent.pid))
        time.sleep(SAMPLE_S)
    return peak


def _expect_alive(agent: subprocess.Popen[bytes]) -> None:
    if agent.poll() is not None:
        assert agent.stderr is not None
        raise SystemExit(f"the agent ended with {agent.returncode}: {agent.stderr.read().decode()}")


def report(rate: int, found: Measured) -> bool:
    """Print a measurement beside its targets; returns whether the lake holds what was written."""
    written, after = found.written, found.after
    equal = found.stored == written.statuses
    seconds = after.at - found.before.at
    print(f"A live agent, {len(JOBS)} jobs, Parquet lake, {rate} lines/s, steady for {seconds:.0f} s")
    print(measure.target("processor, % of one core", found.percent, CPU_MAX_PERCENT, at_most=True))
    print(measure.target("resident, MB", after.resident / 1e6, RESIDENT_MAX_MB, at_most=True))
    print(measure.target("resident at most, MB", after.peak / 1e6, RESIDENT_MAX_MB, at_most=True))
    print(
        f"  children: {found.children_percent:.2f} % of one core, {found.children_peak / 1e6:.0f} MB while they live"
    )
    print(
        f"  writer: {written.lines} lines in {written.seconds:.1f} s, at most {written.slowest_s:.2f} s behind"
    )
    print(f"  lines and bytes by status, lake and writer: {'equal' if equal else 'DIFFER'}", flush=True)
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=10_000, help="lines a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=25.0)
    parser.add_argument("--folder", type=Path, default=measure.FOLDER)
    parser.add_argument("--smoke", action="store_true", help="three seconds: does it still work?")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--templates", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        told = append_lines(options.write, options.templates, options.rate, options.seconds)
        sys.stdout.buffer.write(msgspec.json.encode(told))
        return
    templates = measure.generated(options.folder, 20_000 if options.smoke else TEMPLATES)
    print(measure.machine())
    with tempfile.TemporaryDirectory(prefix="elf-agent-") as folder:
        if options.smoke:
            found = measured(
                Path(folder), templates, options.rate, seconds=2, warm_up=1, window=1, lateness=1
            )
        else:
            steady, warm_up, profile = options.seconds, options.warm_up, options.profile
            found = measured(Path(folder), templates, options.rate, steady, warm_up=warm_up, profile=profile)
    if not report(options.rate, found):
        sys.exit("the lake does not hold what was written")


if __name__ == "__main__":
    main()
