"""The benchmarks still work: each at its smoke size, with results equal to its peers'. Their figures are for a quiet machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs import paths

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
BENCHMARKS = paths.ROOT / "benchmarks"
SECONDS_MAX = 600
"""None takes a tenth of it, unless it stands still."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not part of an installed package"),
    pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset (util-linux) is not installed"),
]


def run(script: str, *options: str) -> str:
    """What the script prints. Fails with it unless it ends with exit code 0."""
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


def test_the_log_is_the_same_everywhere(folder: Path) -> None:
    log = folder / "some.log"
    run("generate.py", "2000", str(log))
    content = log.read_bytes()
    assert content.count(b"\n") == 2000
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == "fa34a362fa0f240f"


def test_query_equals_duckdb(folder: Path) -> None:
    told = run("query.py", "--smoke", "--folder", str(folder))
    assert told.count("results equal") == 2
    assert told.count("elf on an empty file") == 4


def test_peers_tell_the_same(folder: Path) -> None:
    told = run("peers.py", "--smoke", "--folder", str(folder)).splitlines()
    for name, program in (("mtail", "mtail"), ("GoAccess", "goaccess"), ("mawk", "mawk")):
        line = next(line for line in told if line.strip().startswith(name))
        if shutil.which(program):
            assert line.endswith(", equal")
        else:
            assert "skipped" in line


def test_grep_prints_the_same_lines(folder: Path) -> None:
    told = run("grep.py", "--smoke", "--folder", str(folder))
    assert told.count("results equal") == 2


@pytest.mark.spark
def test_spark_tells_the_same(folder: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    told = run("spark_logs.py", "--smoke", "--folder", str(folder))
    assert "results equal" in told
    assert told.count("million lines/s") == 3


@pytest.mark.spark
def test_both_engines_report_the_same(folder: Path) -> None:
    said = run("report.py", "--smoke", "--folder", str(folder))
    assert "equal" in said
    assert "DIFFERENT" not in said


@pytest.mark.spark
def test_a_lake_is_written_compacted_and_merged(folder: Path) -> None:
    said = run("lake.py", "--smoke", "--folder", str(folder))
    assert "10,000 rows of 1,000 groups a minute" in said
    assert "visitors of 20 days" in said


@pytest.mark.spark
def test_a_year_in_days_beside_plain_spark(folder: Path) -> None:
    said = run("year.py", "--smoke", "--folder", str(folder))
    assert "10,000 rows" in said
    assert said.count(" s (") == 2


def test_the_tree_equals_duckdb_and_a_dict() -> None:
    told = run("cbt.py", "--rows", "20000", "--runs", "1")
    results = [line.rsplit("result ", 1)[1].split() for line in told.splitlines() if ", result " in line]
    assert [len(hashes) for hashes in results] == [1, 1]


def test_an_agent_counts_every_line(folder: Path) -> None:
    told = run("agent.py", "--smoke", "--folder", str(folder))
    assert "lines and bytes by status, lake and writer: equal" in told
    assert "processor, % of one core" in told


def test_a_mesh_of_each_kind_is_exact() -> None:
    told = run("mesh.py", "--smoke")
    assert told.count("exact: True") == 7
    assert "exact: False" not in told
    assert "NOT MET" not in told


def test_a_line_of_a_real_agent_reaches_a_watching_command() -> None:
    told = run("mesh_live.py", "--smoke", "--only", "latency")
    assert "median, ms" in told
    assert " 0 lines;" not in told


def test_a_line_is_timed_leg_by_leg() -> None:
    told = run("light.py", "--smoke", "--only", "latency").splitlines()
    legs = [line.split()[:-2] for line in told if len(line.split()) in (4, 5) and line.split()[-3] == "2"]
    assert [" ".join(words[:-1]) for words in legs] == [
        "noticed",
        "cut",
        "committed",
        "published",
        "arrived",
        "shown",
        "in all",
    ]


def test_a_live_query_has_the_rows_of_a_plain_one() -> None:
    told = run("follow.py", "--smoke")
    assert told.count("equal to elf run: yes") == 2


def test_a_backlog_reaches_its_sinks_whole() -> None:
    told = run("backlog.py", "--smoke")
    assert told.count("windows/s; equal to elf run: yes") == 2


def test_jobs_that_change_are_timed() -> None:
    told = run("change.py", "--smoke")
    assert "were counted again within" in told
    assert told.count("exact: True") == 1
    assert "NOT EXACT" not in told


def test_a_masters_death_is_told_phase_by_phase() -> None:
    told = run("recovery.py", "--smoke")
    assert "not seen" not in told
    assert "NOT RIGHT" not in told
    assert "refused 0, suspect" in told


def test_an_edge_is_measured_beside_libzmq() -> None:
    told = run("edge.py", "--smoke", "--runs", "1")
    rates = [line for line in told.splitlines() if " MB/s, " in line and "thousand frames/s" in line]
    assert [line.split()[0] for line in rates] == ["libzmq", "sent", "link"] * 2


@pytest.mark.skipif(None in (NGINX, shutil.which("wrk")), reason="nginx or wrk is not installed")
def test_an_agent_beside_nginx_counts_every_answer() -> None:
    told = run("beside_nginx.py", "--smoke")
    assert "once: equal" in told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_agents_tell_who_holds_their_memory() -> None:
    told = run("memory.py", "--smoke")
    assert "OVER THE CAP" not in told
    assert [told.count(f"  {what:<14} a") for what in ("read", "at the end", "started again")] == [1, 3, 4]
