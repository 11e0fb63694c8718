"""Agents without a mesh, as processes: no kill loses or repeats a line, on standard output and in the lake."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.lines import lines

pytestmark = pytest.mark.process

DEADLINE_S = 120.0


def recent(count: int, seed: int) -> list[str]:
    """Lines of a quarter of an hour, half an hour ago: in retained windows whenever they are read, and final soon after."""
    return lines(count, seed, seconds=900, with_time=False, start=int(time.time()) - 1800)


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


@pytest.mark.long
def test_totals_are_exact_after_kill_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(8)
    log = [f"{line}\n" for line in recent(6_000, 31)]
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
    wait_for(lambda: last_minutes(printed(tmp_path)) == minutes_of(log), process, tmp_path)
    wait_for(lambda: in_lake(tmp_path / "lake") == set(minutes_of(log).items()), process, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=DEADLINE_S) == 0, (tmp_path / "err9.txt").read_text()
    sizes = [line.split('" ')[1].split()[1] for line in log]
    assert newest_total(tmp_path) == (len(log), sum(int(size) for size in sizes if size != "-"))
    finals = Counter(
        (row["window"]["start"], row["status"], *row["_elf"]["revision"])
        for row in printed(tmp_path)
        if row["_elf"]["status"] == "final"
    )
    assert sum(finals.values()) - len(finals) <= len(finals) // 2, "few are written again"


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
        at = datetime.strptime(line.split("[")[1].split("]")[0], "%d/%b/%Y:%H:%M:%S %z")
        out[f"{at:%Y-%m-%dT%H:%M}:00Z", int(line.split('" ')[1].split()[0])] += 1
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


def test_it_ends_when_the_reader_of_its_console_has_gone_and_goes_on_later(tmp_path: Path) -> None:
    """As in `elf agent run | head -1`."""
    log = [f"{line}\n" for line in recent(40, 5)]
    (tmp_path / "access.log").write_text("".join(log[:20]))
    (tmp_path / "elf.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "elf", "agent", "run", "-c", "elf.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["_elf"]["status"] in ("open", "final")
        process.stdout.close()
        with (tmp_path / "access.log").open("a") as file:
            file.write("".join(log[20:]))
        assert process.wait(timeout=DEADLINE_S) == 0
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert "Broken pipe" not in said
        assert "Traceback" not in said
    process = start_agent(tmp_path, 1)
    wait_for(lambda: newest_total(tmp_path)[0] == len(log), process, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=DEADLINE_S) == 130


def test_a_state_of_another_form_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "access.log").touch()
    (tmp_path / "elf.toml").write_text(CONFIG)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "journal").write_bytes(b"of before")
    for command in ("validate", "agent run"):
        done = subprocess.run(
            [sys.executable, "-m", "elf", *command.split(), "-c", "elf.toml"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode
        assert done.stderr == (
            "elf: state/journal: the journal of an agent of an earlier elf, which this one cannot read; move it away, and the "
            "agent begins as a new one\n"
        )
