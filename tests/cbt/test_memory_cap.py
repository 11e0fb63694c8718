"""The memory cap, measured: the peak of a whole process, compared with the same command on an empty file."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.generate import write

pytestmark = pytest.mark.process

MIB = 1 << 20
CAP = 32 * MIB
"""Without it each of the queries takes 70 MiB and more."""
TOLERANCE = 8 * MIB
"""Memory that may be allocated between two checks of the process: a cut of the fronts, a piece of rows."""
LINES = 200_000

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

# The process reports its own high-water mark, which is neither that of its children nor of its parent. `elf` ends by os._exit.
COMMAND = """
import os, sys
sys.argv[0] = "elf"
leave = os._exit
def reported(status):
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM:"))
    os.write(2, peak.encode())
    leave(status)
os._exit = reported
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


@pytest.mark.long
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


LIVE_CAP = 32 * MIB
LIVE_JOBS = """
[agent]
name = "web1"
state_dir = "state"
memory_max = "32MiB"
[[source]]
name = "access"
path = "access.log"
format = "combined"
start = "beginning"
[[job]]
name = "stored"
sql = "SELECT window, client_ip, path, count(*) AS n FROM access GROUP BY window(time, '1 minute'), client_ip, path"
sinks = ["parquet:lake"]
[[job]]
name = "total"
sql = "SELECT count(*) AS n FROM access"
sinks = ["console"]
[[job]]
name = "top"
sql = """
TOP = "SELECT client_ip, path, count(*) AS n, sum(bytes) AS b FROM access GROUP BY client_ip, path ORDER BY n DESC, b LIMIT 9"


def rows_of_all(folder: Path, lines: int) -> list[tuple[object, ...]]:
    """The top rows, once they are those of so many lines."""
    command = [sys.executable, "-m", "elf", "job", "watch", "top", "--windows", "1", "--output", "json"]
    while True:
        shown = subprocess.run(
            command, cwd=folder, env=os.environ | {"ELF_CONFIG": "elf.toml"}, capture_output=True, check=True
        )
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        if rows and all(row.pop("_elf")["lines_read"] == lines for row in rows):
            return [tuple(row.values()) for row in rows]


def follow(folder: Path, lines: int) -> tuple[int, list[tuple[object, ...]]]:
    """Let an agent read so many lines; its peak in bytes, and the top rows of them all."""
    (folder / "elf.toml").write_text(f"{LIVE_JOBS}{json.dumps(TOP)}\nsinks = ['console']\n")
    agent = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "agent", "run", "-c", "elf.toml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert agent.stdout is not None
    assert agent.stderr is not None
    try:
        for line in agent.stdout:
            row = json.loads(line)
            if row["_elf"]["job"] == "total" and row["n"] == lines:
                break
        top = rows_of_all(folder, lines)
        agent.send_signal(signal.SIGTERM)
        agent.stdout.read()
        errors = agent.stderr.read().decode()
        assert agent.wait(300) == 0, errors
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
        agent.stderr.close()
    return int(errors.rpartition("VmHWM:")[2].split()[0]) * 1024, top


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_live_agent_stays_under_its_cap_also_when_it_starts_again(log: Path, tmp_path: Path) -> None:
    """Two jobs with a group for nearly every line, which arrive as fast as they are read."""
    text = log.read_bytes()
    empty = tmp_path / "bare"
    empty.mkdir()
    (empty / "access.log").write_bytes(text[: text.index(b"\n") + 1])
    bare, _ = follow(empty, 1)
    (tmp_path / "access.log").write_bytes(text)
    first, rows = follow(tmp_path, LINES)
    again, same = follow(tmp_path, LINES)
    asked = [sys.executable, "-m", "elf", "run", TOP, str(log), "--format", "combined", "--output", "json"]
    done = subprocess.run(asked, capture_output=True, check=True)
    assert rows == same == [tuple(json.loads(line).values()) for line in done.stdout.splitlines()]
    held = [(peak - bare) / MIB for peak in (first, again)]
    assert max(held) * MIB <= LIVE_CAP + TOLERANCE, (held, bare / MIB)
