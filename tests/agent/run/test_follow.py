"""`elf run --follow` on real files and pipes: live is replay is replay of the archive."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace

import elf
from elf.agent.run.engine import DAY_US, GOES_ON, RunOptions, Summary, run
from elf.agent.run.follow import follow
from elf.agent.run.outlet import Outlet
from elf.agent.run.spool import Spool
from elf.errors import ElfError
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.windows.result import PaneState, Window
from elf.sinks.console.csv import Csv
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.lake.files import read_about
from elf.sinks.lake.layout import ledger
from elf.sinks.lake.parquet import ParquetSink, WriterProcess
from tests.rigs.lines import lines

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
MINUTES = "SELECT window, status, count(*) AS n, sum(bytes) AS b FROM access GROUP BY window(time, '1 minute'), status"
HOURS = "SELECT window, count(*) AS n, min(time) AS first FROM access GROUP BY window(time, '1 hour')"


class Collect:
    """A sink that keeps the last revision of each window, and calls `touch` with the number of lines in all of them."""

    wants_open = True
    wants_state = False

    def __init__(self, touch: Callable[[int], None] = lambda _: None) -> None:
        self.windows: dict[int | None, Window] = {}
        self._touch = touch

    def put(self, window: Window) -> None:
        known = self.windows.get(window.start)
        assert known is None or window.revision > known.revision
        self.windows[window.start] = window
        self._touch(sum(each.lines.read for each in self.windows.values()))

    def put_state(self, state: PaneState) -> None:
        raise AssertionError(state)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def answer(self) -> dict[int | None, tuple[list[Any], tuple[int, int, int]]]:
        return {
            start: (sorted(w.rows, key=repr), (w.lines.read, w.lines.parsed, w.lines.rejected))
            for start, w in self.windows.items()
        }


def followed(
    query: str,
    path: str,
    expected: int,
    touch: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> tuple[Collect, Summary]:
    """Follow until the windows hold `expected` lines."""
    stop = threading.Event()
    limit = time.monotonic() + DEADLINE_S

    def touched(read: int) -> None:
        touch(read)
        if read >= expected or time.monotonic() > limit:
            stop.set()

    sink = Collect(touched)
    about = RunOptions(query, (path,), "combined", emit_us=10_000, **options)
    summary = follow(about, Outlet(lambda _: sink, is_open=True), stop=stop)
    return sink, summary


def replay(query: str, path: Path, **options: Any) -> dict[int | None, Any]:
    sink = Collect()
    run(RunOptions(query, (str(path),), "combined", **options), [sink])
    return sink.answer()


@pytest.mark.parametrize(
    ("query", "times"),
    [
        ("SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY status", 1),
        (
            "SELECT window, path, count(*) AS hits, count(DISTINCT client_ip) AS v, approx_percentile(bytes, 0.9) AS p, "
            "approx_count_distinct(user_agent) AS a, approx_set(referer) AS s FROM access "
            "GROUP BY window(time, '1 hour'), path",
            1,
        ),
        (
            "SELECT window, status, avg(bytes) AS b FROM access GROUP BY window(time, '30 minutes', '10 minutes'), status "
            "ORDER BY b DESC LIMIT 3",
            3,
        ),
    ],
)
def test_live_is_replay_is_replay_of_the_archive(tmp_path: Path, query: str, times: int) -> None:
    made = lines(3_000, 5, seconds=20_000, with_time=False)
    text = "\n".join([*made[:2_000], "no line of a log", *made[2_000:], ""]).encode()
    log = tmp_path / "access.log"
    log.write_bytes(text)
    archive = tmp_path / "old.log.gz"
    archive.write_bytes(gzip.compress(text))
    once = replay(query, log)
    live, summary = followed(query, str(log), 3_001 * times)
    assert (summary.lines, summary.parsed, summary.rejected) == (3_001, 3_000, 1)
    assert live.answer() == once == replay(query, archive)


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
            while steps and read >= counts[-len(steps)] and len(steps) == 3:
                steps.pop(0)()  # to the renamed file, which no window shows

    live, summary = followed(MINUTES, str(tmp_path / "access.log*"), len(log), touch)
    assert summary.lines == len(log)
    whole = tmp_path / "whole.txt"
    whole.write_text("".join(log))
    assert live.answer() == replay(MINUTES, whole)


def test_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a live query keeps there is of no use to anybody after it."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    log = tmp_path / "access.log"
    log.write_text("".join(f"{each}\n" for each in lines(100, 3, with_time=False)))
    _, summary = followed(MINUTES, str(log), 100)
    assert (summary.lines, synced) == (100, [])


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def test_bounds_of_time_hold_within_windows_and_the_second_one_ends_the_run(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(f"{each}\n" for each in lines(1_000, 8, seconds=10_000, with_time=False)))
    bounds: dict[str, Any] = {
        "since_us": moment("2015-05-17T10:05:11"),
        "until_us": moment("2015-05-17T12:05:30"),
    }
    sink = Collect()
    about = RunOptions(HOURS, (str(log),), "combined", lateness_us=0, **bounds)
    summary = follow(about, Outlet(lambda _: sink))
    assert sink.answer() == replay(HOURS, log, **bounds)
    assert {window.status for window in sink.windows.values()} == {"final"}
    firsts = [window.rows[0][2] for _, window in sorted(sink.windows.items())]
    assert (summary.open, len(firsts)) == (0, 3)
    assert bounds["since_us"] <= firsts[0] < bounds["since_us"] + 120_000_000


# Pipes.

QUERY = "SELECT window, count(*) AS n FROM access WHERE status = 200 GROUP BY window(time, '1 minute')"


def line(second: int, status: int = 200) -> bytes:
    hour, minute, second = second // 3600, second // 60 % 60, second % 60
    at = f"17/May/2015:{hour:02}:{minute:02}:{second:02} +0000"
    return f'192.0.2.1 - - [{at}] "GET / HTTP/1.1" {status} 1 "-" "-"\n'.encode()


@pytest.fixture
def stdin() -> Iterator[BinaryIO]:
    """The other end of the pipe that descriptor 0 is."""
    before = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    with os.fdopen(write_end, "wb") as writer:
        yield writer
    os.dup2(before, 0)
    os.close(before)


def answer(data: bytes, stdin: BinaryIO) -> tuple[list[dict[str, Any]], Summary, list[str]]:
    """Of a pipe that ends, without --follow."""
    stdin.write(data)
    stdin.close()
    out, told = io.BytesIO(), list[str]()
    summary = run(RunOptions(QUERY, ("-",)), [JsonLines(out, opens=False)], on_lost=told.append)
    return [json.loads(row) for row in out.getvalue().splitlines()], summary, told


def test_a_pipe_is_a_plain_run_to_its_end(stdin: BinaryIO) -> None:
    rows, summary, told = answer(line(120) + line(0) + line(61, 404) + line(130)[:-1], stdin)
    assert [row["n"] for row in rows] == [1, 2]
    assert [row["window"]["start"][14:16] for row in rows] == ["00", "02"]
    assert (summary.lines, summary.lost, told) == (4, (), [])


def test_a_pipe_that_is_compressed_and_cut_short(stdin: BinaryIO) -> None:
    packed = gzip.compress(b"".join(line(n) for n in range(200)))
    rows, summary, told = answer(packed[:-9], stdin)
    assert told == ["-: the compressed data ends early (truncated); read up to there"] == list(summary.lost)
    assert {row["_elf"]["status"] for row in rows} == {"incomplete"}


def test_the_head_of_a_pipe_grows_until_a_format_is_found(stdin: BinaryIO) -> None:
    def write() -> None:
        stdin.write(line(2) + line(3))
        stdin.close()

    stdin.write(b"-- Logs begin at noon --\n")
    stdin.flush()
    later = threading.Timer(0.5, write)
    later.start()
    sink = Collect()
    summary = run(RunOptions(QUERY, ("-",)), [sink])
    later.join()
    assert (summary.lines, summary.parsed) == (3, 2)


@pytest.mark.slow
def test_a_pipe_that_goes_on_says_what_shows_its_windows(
    stdin: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.agent.run.engine.GOES_ON_S", 0.0)
    at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
    stdin.write(f'192.0.2.1 - - [{at}] "GET / HTTP/1.1" 200 1 "-" "-"\n'.encode())
    stdin.close()
    said: list[str] = []
    run(RunOptions(QUERY, ("-",)), [Collect()], notices=said.append)
    assert GOES_ON in said


def test_a_followed_pipe_ends_with_all_its_windows_final(stdin: BinaryIO, tmp_path: Path) -> None:
    log = b"".join(line(second) for second in range(0, 600, 7)) + line(590)[:-1]
    feeder = threading.Thread(target=lambda: (stdin.write(log), stdin.close()))
    feeder.start()
    sink = Collect()
    lake = tmp_path / "lake"
    said: list[str] = []
    options = RunOptions(QUERY, ("-",), lateness_us=60_000_000)
    summary = follow(options, Outlet(lambda _: sink, lakes=[lake]), notices=said.append)
    feeder.join()
    whole = tmp_path / "whole.log"
    whole.write_bytes(log)
    assert sink.answer() == replay(QUERY, whole)
    assert {window.status for window in sink.windows.values()} == {"final"}
    assert (summary.lines, summary.open, summary.lost) == (87, 0, ())
    assert len(ledger(lake, "run")) == 10
    assert said == ["windows are final 1m after their end (--lateness)", "-: format combined"]


def test_the_end_of_a_followed_pipe_that_lacks_lines_makes_nothing_final(stdin: BinaryIO) -> None:
    stdin.write(gzip.compress(b"".join(line(n) for n in range(100)))[:-9])
    stdin.close()
    sink, told = Collect(), list[str]()
    options = RunOptions(QUERY, ("-",), lateness_us=DAY_US)
    summary = follow(options, Outlet(lambda _: sink, is_open=True), on_lost=told.append)
    assert told == ["-: the compressed data ends early (truncated); read up to there"] == list(summary.lost)
    assert {window.status for window in sink.windows.values()} == {"open"}
    assert summary.open == len(sink.windows) > 0


def test_a_spool_that_cannot_be_written_makes_nothing_final_and_says_where(
    stdin: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Spool._opened

    def full(spool: Spool) -> BinaryIO:
        file = real(spool)
        flush = file.flush

        def no_room() -> None:
            flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        wrapped = io.BufferedWriter(file.raw)  # type: ignore[attr-defined]
        wrapped.flush = no_room  # type: ignore[method-assign]
        return wrapped

    monkeypatch.setattr(Spool, "_opened", full)
    stdin.write(line(0) + line(200))
    stdin.flush()
    sink = Collect()
    with pytest.raises(ElfError, match=r"No space left on device; the lines of a pipe .* with TMPDIR"):
        follow(RunOptions(QUERY, ("-",), lateness_us=DAY_US), Outlet(lambda _: sink, is_open=True))
    assert "final" not in {window.status for window in sink.windows.values()}


def test_a_full_spool_waits_for_its_reader_and_drops_what_was_read(tmp_path: Path) -> None:
    from elf.agent.files.blocks import Block, FileKey

    read, block = 0, b"x" * 99 + b"\n"
    taken: list[int] = []

    def blocks() -> Iterator[Block]:
        for n in range(40):
            taken.append(n)
            yield Block(FileKey(1, 0), "-", 100 * n, 100 * n + 100, block, 0, n == 0, n == 39)

    async def feed() -> None:
        nonlocal read
        spool = Spool(blocks(), tmp_path / "input", segment_bytes=1000)
        spool.begin(lambda: read)
        done = asyncio.create_task(spool.is_read())
        while not done.done():
            while len(taken) < min(40, read // 100 + 11):
                await asyncio.sleep(0.001)
            assert len(taken) <= read // 100 + 12
            held = sum(path.stat().st_size for path in (tmp_path / "input").iterdir())
            assert held <= 2000
            read += 500
            await asyncio.sleep(0)
        await done

    import asyncio

    asyncio.run(feed())
    assert len(taken) == 40


# What prints.


def test_an_empty_window_in_csv_has_its_bounds_only(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(line(0))
    (window,) = elf.run(QUERY, [str(log)]).windows
    out = io.BytesIO()
    sink = Csv(out, empties=True)
    empty = replace(window, rows=())
    sink.put(empty)
    sink.put(empty)  # again: no further effect
    assert out.getvalue() == b"window_start,window_end,n\n2015-05-17T00:00:00Z,2015-05-17T00:01:00Z,\n"


def test_a_lake_keeps_what_a_later_run_does_not_have_and_takes_its_word_for_the_rest(tmp_path: Path) -> None:
    """Runs of one query, with and without --follow, write one version; bounds and ends withdraw nothing of other runs."""
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(line(60 * minute) for minute in range(10)))
    lake = tmp_path / "lake"
    run(RunOptions(QUERY, (str(log),)), [ParquetSink(lake)])
    first = ledger(lake, "run")
    assert len(first) == 10
    log.write_bytes(b"".join(line(60 * minute) * 2 for minute in range(10)))
    bounds = {"since_us": moment("2015-05-17T00:03:00"), "until_us": moment("2015-05-17T00:06:00")}
    follow(RunOptions(QUERY, (str(log),), lateness_us=0, **bounds), Outlet(None, lakes=[lake]))  # type: ignore[arg-type]
    second = ledger(lake, "run")
    newer = [minute for minute, key in enumerate(sorted(first)) if second[key] > first[key]]
    assert (second.keys(), newer) == (first.keys(), [3, 4, 5])
    with WriterProcess() as writer:
        assert not set(writer.withdrawn(path for path in lake.rglob("date=*")))
    texts = {decode(b64decode(read_about(path)["plan"])).sql for path in lake.rglob("*.parquet")}
    assert texts == {QUERY}, "elf verify runs it in Spark"
