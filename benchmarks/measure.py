"""Runs whole processes on one core and measures them: wall time, CPU time, peak memory. For the scripts beside it."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from generate import write

CORE = max(os.sched_getaffinity(0))
ELF = str(Path(sys.executable).with_name("elf"))
FOLDER = Path("/tmp/elf-bench")
"""Where generated logs stay for the next run: 2.7 GB for 10 million lines."""


class Run(msgspec.Struct):
    """seconds: wall. cpu: user + system. rss: peak resident bytes."""

    seconds: float
    cpu: float
    rss: int


def run(
    command: Sequence[str],
    *,
    core: int | None = CORE,
    stdout: Path | None = None,
    env: Mapping[str, str] = {},
) -> Run:
    """Run to the end on one core. Raises RuntimeError with its standard error when it fails."""
    prefix = [] if core is None else [taskset(), "-c", str(core)]
    began = time.perf_counter()
    with open(stdout or os.devnull, "wb") as out:
        process = subprocess.Popen(
            [*prefix, *command], stdout=out, stderr=subprocess.PIPE, env={**os.environ, **env}
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {errors.decode()[-2000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def run_elf(query: str, file: Path, out: Path, *, cache: Path | None = None) -> Run:
    """`elf run` with CSV as its output. Without `cache` the query is one that was never asked before, and compiled anew."""
    command = [ELF, "run", query, str(file), "--format", "combined", "--output", "csv", "-q"]
    with tempfile.TemporaryDirectory(prefix="elf-cache-") as fresh:
        return run(command, stdout=out, env={"XDG_CACHE_HOME": str(cache or fresh)})


def taskset() -> str:
    """The command that pins a process to a core."""
    found = shutil.which("taskset")
    if found is None:
        raise SystemExit("taskset is not installed (Debian: util-linux); the benchmarks need it")
    return found


def alternate(contenders: Mapping[str, Callable[[], Run]], runs: int) -> dict[str, list[Run]]:
    """`runs` rounds in which each contender runs once, so that a slow minute of the machine meets all of them."""
    found: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, measured in contenders.items():
            found[name].append(measured())
    return found


def median(runs: Sequence[Run]) -> float:
    """The median of the wall times, seconds."""
    return statistics.median(each.seconds for each in runs)


def digest(rows: Iterable[Sequence[object]]) -> str:
    """A hash of rows, whatever their order; rows that occur twice count twice."""
    total = 0
    for row in rows:
        text = "\t".join(map(str, row)).encode()
        total += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return f"{total % (1 << 64):016x}"


def generated(folder: Path, lines: int) -> Path:
    """The log of `lines` lines, made now unless it is there from an earlier run; in the page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"combined-{lines}.log"
    if not file.exists():
        partial = file.with_suffix(".partial")
        write(lines, partial)
        partial.rename(file)
    warm(file)
    return file


def warm(path: Path) -> None:
    """Read a file once, so that it is in the page cache."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass


def spread(values: Sequence[float]) -> str:
    """'median (minimum to maximum)'."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def line(name: str, runs: Sequence[Run], more: str = "") -> str:
    """One contender's figures."""
    seconds, cpu = spread([each.seconds for each in runs]), statistics.median(each.cpu for each in runs)
    peak = max(each.rss for each in runs) >> 20
    return f"  {name:18} {seconds:22} s, cpu {cpu:6.2f} s, {peak:5} MiB{more}"


def target(what: str, value: float, bound: float, *, at_most: bool = False) -> str:
    """A figure beside its target, as a line."""
    met = value <= bound if at_most else value >= bound
    sign = "<=" if at_most else ">="
    return f"  {what:46} {value:7.2f}  target {sign} {bound:g}: {'met' if met else 'NOT MET'}"


def options(description: str | None, runs: int = 5) -> argparse.ArgumentParser:
    """What every script takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where generated logs are kept")
    parser.add_argument("--smoke", action="store_true", help="small, one run: does it still work?")
    return parser


def run_parts(parts: Mapping[str, Callable[[bool], None]], wrong: Sequence[str]) -> int:
    """Run the parts of a script that `--only` names, or all. wrong: what they find not exact. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="small: does it still work?")
    parser.add_argument("--only", default=",".join(parts), help="some of: %(default)s")
    options = parser.parse_args()
    for name in options.only.split(","):
        parts[name](options.smoke)
    for each in wrong:
        print(f"NOT EXACT: {each}")
    return 1 if wrong else 0


def machine() -> str:
    """What the figures were measured on."""
    name = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{name}, {os.cpu_count()} cores, {pages >> 30} GiB, {system}"
