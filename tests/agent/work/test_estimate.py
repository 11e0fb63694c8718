"""Estimates from the end of a log: what a plan counts there, and what its bundles would take."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from random import Random

import pytest

from elf.agent.work.estimate import FLUSHES_MAX, SAMPLE_BYTES, Estimated, estimate
from elf.errors import PeerError, SourceError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP

TYPES = {"access": {"time": TIMESTAMP, "path": STRING, "status": BIGINT, "bytes": BIGINT}}
FORMAT = '$msec "$request" $status $body_bytes_sent'
NOW_US = 1_700_000_000_000_000
FLUSH_US = 200_000


def plan(where: str = "", window: str = "10 seconds") -> bytes:
    text = f"SELECT window, path, count(*) AS n FROM access {where} GROUP BY window(time, '{window}'), path"
    return encode(compile_query(text, TYPES))


def line(at_us: int, path: str) -> str:
    return f'{at_us / 1e6:.3f} "GET {path} HTTP/1.1" 200 7\n'


def log(folder: Path, seconds: int, a_second: int, paths: int) -> list[tuple[int, str]]:
    rng = Random(seconds)
    lines = [
        (NOW_US - seconds * 1_000_000 + at * 1_000_000 // a_second, f"/{rng.randrange(paths)}")
        for at in range(seconds * a_second)
    ]
    (folder / "access.log").write_text("".join(line(*each) for each in lines))
    return lines


def of(folder: Path, encoded: bytes, format: str = FORMAT) -> Estimated:
    return estimate([str(folder / "access.log*")], format, "UTC", "web1", encoded, FLUSH_US, NOW_US)


def test_groups_are_those_of_the_fullest_pane(tmp_path: Path) -> None:
    lines = log(tmp_path, seconds=60, a_second=20, paths=50)
    found = of(tmp_path, plan())
    panes: dict[int, set[str]] = {}
    for at_us, path in lines:
        panes.setdefault(at_us // 10_000_000, set()).add(path)
    assert found.groups == max(map(len, panes.values()))
    assert found.lines == len(lines)
    assert found.read_bytes == (tmp_path / "access.log").stat().st_size
    assert found.span_us == lines[-1][0] - lines[0][0]


def test_bytes_follow_the_plan(tmp_path: Path) -> None:
    log(tmp_path, seconds=60, a_second=200, paths=5000)
    every, few = of(tmp_path, plan()), of(tmp_path, plan("WHERE path = '/1'"))
    assert few.groups == 1
    assert every.sent_bytes > 2 * few.sent_bytes > 0
    idle_bytes = 100 * 1_000_000 // FLUSH_US  # the heads of five bundles
    assert few.sent_bytes >= idle_bytes
    assert every.sent_bytes < 200 * 200, "a line takes less than 200 bytes"


def test_a_slow_log_sends_empty_bundles_mostly(tmp_path: Path) -> None:
    log(tmp_path, seconds=600, a_second=1, paths=3)
    busy = tmp_path / "busy"
    busy.mkdir()
    log(busy, seconds=60, a_second=100, paths=3)
    assert 0 < of(tmp_path, plan()).sent_bytes < of(busy, plan()).sent_bytes


def test_only_the_end_of_the_newest_file_is_read(tmp_path: Path) -> None:
    count = 2 * SAMPLE_BYTES // len(line(NOW_US, "/new"))
    (tmp_path / "access.log").write_text("".join(line(NOW_US - count + at, "/new") for at in range(count)))
    (tmp_path / "access.log.1").write_text(line(NOW_US, "/old") * 99)
    os.utime(tmp_path / "access.log.1", (1, 1))
    packed = tmp_path / "access.log.2.gz"
    packed.write_bytes(gzip.compress(line(NOW_US, "/packed").encode()))
    found = of(tmp_path, plan())
    assert SAMPLE_BYTES - 100 < found.read_bytes <= SAMPLE_BYTES
    assert found.groups == 1
    assert found.lines > FLUSHES_MAX


@pytest.mark.parametrize("text", ["", "no line\nof this format\n"])
def test_without_lines_there_is_no_estimate(tmp_path: Path, text: str) -> None:
    (tmp_path / "access.log").write_text(text)
    with pytest.raises(
        SourceError, match="no lines yet" if not text else "none of its last lines can be parsed"
    ):
        of(tmp_path, plan())


def test_bytes_that_are_no_plan_are_refused(tmp_path: Path) -> None:
    log(tmp_path, seconds=1, a_second=5, paths=1)
    for encoded in (b"", b"rm -rf", plan()[:-1], plan() + b"x"):
        with pytest.raises(PeerError):
            of(tmp_path, encoded)
