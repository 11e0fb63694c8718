"""The live agent on real files: live is replay is replay of the archive; and no kill loses or repeats a line."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
        "approx_count_distinct(user_agent) AS a FROM access GROUP BY window(time, '1 hour'), path",
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


CONFIG = """
[agent]
name = "web1"
state_dir = "state"
[[source]]
name = "access"
path = "access.log*"
format = "combined"
start = "beginning"
[[job]]
name = "total"
sql = "SELECT count(*) AS n, sum(bytes) AS b FROM access"
sinks = ["console"]
[[job]]
name = "minutes"
sql = "SELECT window, status, count(*) AS n FROM access GROUP BY window(time, '1 minute'), status"
lateness = "1s"
sinks = ["console", "parquet:lake"]
"""


def start_agent(folder: Path, number: int) -> subprocess.Popen[bytes]:
    with (folder / f"out{number}.jsonl").open("wb") as out, (folder / f"err{number}.txt").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "elf.typer_cli", "agent", "run", "-c", "elf.toml"],
            cwd=folder,
            stdout=out,
            stderr=err,
        )


def printed(folder: Path) -> list[dict[str, Any]]:
    """Every whole JSON line of every run; a killed agent may leave half a line."""
    out = []
    for file in sorted(folder.glob("out*.jsonl")):
        for text in file.read_bytes().split(b"\n")[:-1]:
            out.append(json.loads(text))
    return out


def wait_for(what: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    limit = time.monotonic() + DEADLINE_S
    while not what():
        assert process.poll() is None, [file.read_text() for file in folder.glob("err*.txt")]
        assert time.monotonic() < limit, "nothing came"
        time.sleep(0.05)  # another process: there is no event to wait on


def newest_total(folder: Path) -> tuple[int, int]:
    rows = [row for row in printed(folder) if row["_elf"]["job"] == "total"]
    best = max(rows, key=lambda row: row["_elf"]["revision"], default=None)
    return (0, 0) if best is None else (best["n"], best["b"] or 0)


def test_totals_are_exact_after_kill_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(8)
    log = [f"{line}\n" for line in lines(6_000, 31, seconds=900, with_time=False)]
    path = tmp_path / "access.log"
    path.touch()
    (tmp_path / "elf.toml").write_text(CONFIG)
    written = threading.Event()

    def write() -> None:
        at = 0
        while at < len(log):
            n = rng.randrange(1, 120)
            with path.open("a") as file:
                text = "".join(log[at : at + n])
                cut = rng.randrange(len(text))
                file.write(text[:cut])  # a line in two writes
                file.flush()
                file.write(text[cut:])
            at += n
            if rng.random() < 0.1:
                path.rename(tmp_path / f"access.log.{at}")
            time.sleep(0.03)  # a web server that takes its time
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(4):
        process = start_agent(tmp_path, number)
        before = newest_total(tmp_path)
        wait_for(lambda before=before: newest_total(tmp_path) > before or written.is_set(), process, tmp_path)  # type: ignore[misc]
        time.sleep(rng.random() * 0.6)  # any moment
        process.kill()
        process.wait()
    writer.join()
    process = start_agent(tmp_path, 9)
    last = tmp_path / "out9.jsonl"  # it tells again what an earlier run may have told already
    wait_for(lambda: bool(last.stat().st_size) and newest_total(tmp_path)[0] >= len(log), process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=DEADLINE_S) == 0, (tmp_path / "err9.txt").read_text()
    sizes = [line.split('" ')[1].split()[1] for line in log]
    assert newest_total(tmp_path) == (len(log), sum(int(size) for size in sizes if size != "-"))
    assert last_minutes(printed(tmp_path)) == minutes_of(log)
    assert in_lake(tmp_path / "lake") <= set(minutes_of(log).items())


def last_minutes(rows: Sequence[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """The newest revision of each row: of an open window only changed rows are printed."""
    newest: dict[tuple[str, int], tuple[list[int], int]] = {}
    for row in rows:
        if row["_elf"]["job"] == "minutes":
            key = row["window"]["start"], row["status"]
            newest[key] = max(newest.get(key, ([0, 0, 0], 0)), (row["_elf"]["revision"], row["n"]))
    return Counter({key: n for key, (_, n) in newest.items()})


def minutes_of(log: Sequence[str]) -> Counter[tuple[str, int]]:
    out: Counter[tuple[str, int]] = Counter()
    for line in log:
        clock = line.split("[17/May/2015:")[1][:5]
        out[f"2015-05-17T{clock}:00Z", int(line.split('" ')[1].split()[0])] += 1
    return out


def in_lake(lake: Path) -> set[tuple[tuple[str, int], int]]:
    """The minutes in the lake, the highest revision of each."""
    import pyarrow.parquet as pq

    best: dict[Any, tuple[Any, list[tuple[tuple[str, int], int]]]] = {}
    for file in lake.rglob("date=*/*.parquet"):
        for row in pq.ParquetFile(file).read().to_pylist():
            start = row["_pane_start"].strftime("%Y-%m-%dT%H:%M:%SZ")
            revision = (row["_revision_epoch"], row["_revision_node"], row["_revision_n"])
            known = best.get(start)
            if known is None or revision > known[0]:
                best[start] = known = (revision, [])
            if revision == known[0] and row["status"] is not None:
                known[1].append(((start, row["status"]), row["_acc0"]))
    return {item for _, items in best.values() for item in items}
