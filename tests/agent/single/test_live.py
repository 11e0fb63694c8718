"""`elf run --follow` on real files: live is replay is replay of the archive."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elf
from elf.agent.run.engine import Progress, RunOptions, Summary
from elf.agent.single.follow import follow as follow_files
from elf.jobmaster.windows.result import PaneState, Window
from tests.rigs import paths
from tests.rigs.lines import lines

pytestmark = pytest.mark.process

REAL_LOG = paths.DATA / "apache_combined_10k.log"
DEADLINE_S = 120.0


class Collect:
    """A sink that keeps the last revision of each window."""

    wants_open = True
    wants_state = False

    def __init__(self) -> None:
        self.windows: dict[int | None, Window] = {}

    def put(self, window: Window) -> None:
        known = self.windows.get(window.start)
        assert known is None or window.revision > known.revision
        self.windows[window.start] = window

    def put_state(self, state: PaneState) -> None:
        raise AssertionError(state)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def answer(self) -> dict[int | None, tuple[list[Any], tuple[int, int, int]]]:
        return {
            start: (list(w.rows), (w.lines.read, w.lines.parsed, w.lines.rejected))
            for start, w in self.windows.items()
        }


def follow(
    query: str, path: str, expected: int, touch: Callable[[int], None] = lambda _: None
) -> tuple[Collect, Summary]:
    """Follow until `expected` lines were read. `touch` is called with the number of lines read so far."""
    stop, sink = threading.Event(), Collect()
    limit = time.monotonic() + DEADLINE_S

    def progress(at: Progress) -> None:
        touch(at.lines)
        if at.lines >= expected or time.monotonic() > limit:
            stop.set()

    options = RunOptions(query, (path,), "combined")
    summary = follow_files(options, [sink], on_progress=progress, stop=stop)
    assert summary.lines == expected
    return sink, summary


def replay(query: str, path: Path) -> dict[int | None, tuple[list[Any], tuple[int, int, int]]]:
    sink = Collect()
    for window in elf.run(query, path, format="combined"):
        sink.put(window)
    return sink.answer()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY status",
        "SELECT window, path, count(*) AS hits, count(DISTINCT client_ip) AS v, approx_percentile(bytes, 0.9) AS p, "
        "approx_count_distinct(user_agent) AS a, approx_set(referer) AS s FROM access GROUP BY window(time, '1 hour'), path",
        "SELECT window, status, avg(bytes) AS b FROM access GROUP BY window(time, '30 minutes', '10 minutes'), status "
        "ORDER BY b DESC LIMIT 3",
    ],
)
def test_live_is_replay_is_replay_of_the_archive(tmp_path: Path, query: str) -> None:
    if not REAL_LOG.exists():
        pytest.skip("the real log is not beside this checkout (shared/data)")
    log = tmp_path / "access.log"
    log.write_bytes(REAL_LOG.read_bytes())
    archive = tmp_path / "old.log.gz"
    archive.write_bytes(gzip.compress(REAL_LOG.read_bytes()))
    once = replay(query, log)
    live, summary = follow(query, str(log), 10_000)
    assert (summary.parsed, summary.rejected) == (9_999, 1)
    assert live.answer() == once == replay(query, archive)
    if "GROUP BY status" in query and "window" not in query:
        assert (200, 9_125) in {(row[0], row[1]) for row in once[None][0]}


def test_a_rotation_while_following(tmp_path: Path) -> None:
    """Rename and create, in the middle of a line's life: nothing twice, nothing missing."""
    log = [f"{line}\n" for line in lines(2_000, 21, seconds=600, with_time=False)]
    path = tmp_path / "access.log"
    path.write_text("".join(log[:700]))
    steps: list[Callable[[], object]] = [
        lambda: path.open("a").write("".join(log[700:900])),
        lambda: path.rename(tmp_path / "access.log.1"),
        lambda: (tmp_path / "access.log.1").open("a").write("".join(log[900:950])),
        lambda: path.write_text("".join(log[950:1500])),
        lambda: path.open("a").write("".join(log[1500:])),
    ]
    counts = [700, 900, 900, 950, 1500]

    def touch(read: int) -> None:
        if steps and read >= counts[-len(steps)]:
            steps.pop(0)()

    query = "SELECT window, status, count(*) AS n, sum(bytes) AS b FROM access GROUP BY window(time, '1 minute'), status"
    live, _ = follow(query, str(tmp_path / "access.log*"), len(log), touch)
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(log))
    assert live.answer() == replay(query, whole)
