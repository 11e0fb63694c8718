"""The memory cap, measured: what a whole process held at most, beside the same command on an empty file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.generate import write

MIB = 1 << 20
CAP = 64 * MIB
TOLERANCE = 8 * MIB
"""What may be taken between two looks at the process: a cut of the fronts, a piece of rows."""
LINES = 400_000

CASES = {
    "groups": "SELECT client_ip, path, count(*) AS n, sum(bytes) AS b FROM access GROUP BY client_ip, path",
    "order": "SELECT client_ip, path, count(*) AS n FROM access GROUP BY client_ip, path ORDER BY n DESC, path DESC",
    "windows": "SELECT client_ip, count(*) AS n FROM access "
    "GROUP BY window(time, '5 minutes', '2 minutes'), client_ip ORDER BY n DESC",
    "distinct": "SELECT status, count(DISTINCT client_ip, path) AS n FROM access GROUP BY status",
    "percentile": "SELECT client_ip, approx_percentile(bytes, 0.99) AS p FROM access GROUP BY client_ip",
    "registers": "SELECT client_ip, approx_count_distinct(path) AS n FROM access GROUP BY client_ip",
    "doubles": "SELECT client_ip, sum(CAST(bytes AS DOUBLE) / 7) AS s FROM access GROUP BY client_ip",
}
LAKES = {"groups", "distinct"}
"""Those that also write a lake."""

# The process tells its own high-water mark: it is not that of its children, nor of whoever forked it. `elf` ends by os._exit.
COMMAND = """
import os, sys
sys.argv[0] = "elf"
leave = os._exit
def told(status):
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM:"))
    os.write(2, peak.encode())
    leave(status)
os._exit = told
from elf.__main__ import start
start()
"""


class Held(NamedTuple):
    """peak: bytes. rows: a digest of the output's lines, sorted."""

    peak: int
    rows: str


def run(query: str, log: Path, *options: str) -> Held:
    command = [sys.executable, "-c", COMMAND, "run", query, str(log), "--format", "combined", "--quiet"]
    done = subprocess.run(
        [*command, "--output", "csv", *options],
        capture_output=True,
        check=True,
        env=os.environ | {"XDG_CACHE_HOME": str(log.parent), "OMP_NUM_THREADS": "1"},
    )
    peak = [line for line in done.stderr.decode().splitlines() if line.startswith("VmHWM:")]
    lines = sorted(done.stdout.splitlines())
    return Held(int(peak[-1].split()[1]) * 1024, hashlib.sha256(b"\n".join(lines)).hexdigest())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cap") / "access.log"
    write(LINES, path)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", CASES)
def test_a_process_stays_under_its_cap_and_its_results_are_the_same(name: str, log: Path) -> None:
    query, capped = CASES[name], ["--memory-max", str(CAP)]
    empty = log.with_name("empty.log")
    empty.touch()
    free = run(query, log)  # compiles the query, which the others find in the cache
    bare = run(query, empty, *capped)
    if name in LAKES:
        capped += ["--sink", f"parquet:{log.parent / name}"]
    held = run(query, log, *capped)
    assert held.rows == free.rows
    assert held.peak <= bare.peak + CAP + TOLERANCE, (held.peak / MIB, bare.peak / MIB, free.peak / MIB)
