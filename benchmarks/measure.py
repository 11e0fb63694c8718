"""Runs whole processes on one core and measures them: wall time, CPU time, peak memory. For the scripts beside it."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

CORE = max(os.sched_getaffinity(0))


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
    prefix = [] if core is None else ["taskset", "-c", str(core)]
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


def warm(path: Path) -> None:
    """Read a file once, so that it is in the page cache."""
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass


def spread(values: Sequence[float]) -> str:
    """'median (minimum to maximum)'."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


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
    return f"{name}, {os.cpu_count()} cores, {pages >> 30} GiB, {platform.system()} {platform.release()}, Python {platform.python_version()}"
