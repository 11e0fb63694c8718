"""Spark whose workers are processes of their own, and Spark behind a Connect server: raw logs and the lake as in one process."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import paths
from tests.sinks.lake import lake_states
from tests.sinks.lake.lake_states import MINUTE
from tests.sinks.lake.test_lake_coarsen import of_longer
from tests.sinks.spark.test_source import put

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.spark]
PROGRAM = [sys.executable, "-m", "tests.rigs.lakes.elsewhere"]
LINE = '192.0.2.1 - - [22/Sep/2026:10:00:{second:02d} +0000] "GET /{path} HTTP/1.1" {status} 10 "-" "-"\n'


@contextmanager
def connect_server() -> Iterator[str]:
    """A Spark Connect server in a process of its own. Gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, "serve", port], cwd=paths.ROOT, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n"
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.stdin.close()


def answers(master: str, lake: Path, log: Path) -> dict[str, Any]:
    """{question: rows}, as `tests.rigs.lakes.elsewhere` prints them."""
    command = [*PROGRAM, master, str(lake), str(log)]
    done = subprocess.run(command, check=False, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three minutes, one of them revised."""
    folder = tmp_path / "lake"
    put(folder, {at: {("/a", 200): (at + 1, 10), ("/é", 404): (1, None)} for at in (0, 1, 70)}, 1)
    put(folder, {0: {("/b", 200): (7, 70)}}, 2)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "access.log"
    lines = [LINE.format(second=n % 60, path=n % 7, status=(200, 404, 500)[n % 3]) for n in range(1_000)]
    log.write_text("".join([*lines, "no line of this format\n"]))
    return log


def check(found: dict[str, Any], lake: Path, log: Path) -> None:
    statuses = Counter(int(status) for status in re.findall(r'" (\d{3}) ', log.read_text()))
    assert sorted(found["statuses"]) == [[status, count] for status, count in sorted(statuses.items())]
    assert found["counts"] == [[1_001, 1_000, 1]]
    panes = lake_states.groups(lake)
    assert groups(found["panes"]) == groups(found["landed"]) == as_text(panes)
    assert groups(found["hours"]) == as_text(of_longer(panes, 60 * MINUTE))
    assert sorted(found["days"]) == [["/a", 200, 73], ["/b", 200, 7], ["/é", 404, 2]]
    assert sorted(row[:2] for row in found["paths"]) == [["/a", 73], ["/b", 7], ["/é", 2]]


def as_text(groups: dict[Any, tuple[int, int]]) -> dict[Any, tuple[int, int]]:
    return {(str(at.replace(tzinfo=None)), *key): values for (at, *key), values in groups.items()}


def groups(rows: list[Any]) -> dict[Any, tuple[int, int]]:
    keyed = {(at, path, status): (hits, int(nbytes or 0)) for at, path, status, hits, nbytes in rows}
    assert len(keyed) == len(rows)
    return keyed


def test_on_a_cluster_of_two_workers(lake: Path, log: Path) -> None:
    check(answers("local-cluster[2,1,1024]", lake, log), lake, log)


def test_over_spark_connect(lake: Path, log: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    with connect_server() as address:
        check(answers(address, lake, log), lake, log)
