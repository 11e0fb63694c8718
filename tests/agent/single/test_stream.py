"""A pipe as the input of `elf run`: exact to its end while it may be old, windows that become final once it is live."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from elf.agent.files.stream import Stream
from elf.agent.formats.choice import FormatChoice
from elf.agent.run.engine import RunOptions, Summary, compile_plan
from elf.agent.single.follow import NEAR_S, NEAR_US, StreamSource, follow_stream
from elf.agent.single.live_job import JobOptions, LiveJob
from elf.agent.single.live_source import QUIET_US, Moment, wire
from elf.cbt.budget import Budget
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import Lines, Window
from elf.sinks.console.csv import Csv
from elf.sinks.console.jsonlines import JsonLines

QUERY = "SELECT window, count(*) AS n FROM access WHERE status = 200 GROUP BY window(time, '1 minute')"
DAY = 1_431_820_800  # 2015-05-17


def line(second: int, status: int = 200) -> bytes:
    hour, minute, second = second // 3600, second // 60 % 60, second % 60
    at = f"17/May/2015:{hour:02}:{minute:02}:{second:02} +0000"
    return f'192.0.2.1 - - [{at}] "GET / HTTP/1.1" {status} 1 "-" "-"\n'.encode()


class Pipe:
    """A stream with a job, and a clock that the test sets: seconds of the day."""

    def __init__(self, first: bytes) -> None:
        read_end, self.writer = os.pipe()
        self.write(first)
        self.lost: list[str] = []
        self.stream = Stream(read_end, self.lost.append)
        heads = {"-": self.stream.gather_head()}
        formats = FormatChoice("auto", print, lenient=True, head=lambda block: self.stream.head(block.file))
        plan = compile_plan(RunOptions(QUERY, ("-",)), formats.schema(heads))
        assert isinstance(plan, Plan)
        self.windows: list[Window] = []
        self.job = LiveJob("run", plan, JobOptions(lateness_us=0), [_Keep(self.windows)], Budget(1 << 28), 0)
        self.source = wire(self.stream, formats, [self.job], "UTC", "", kind=StreamSource)
        assert isinstance(self.source, StreamSource)
        self.live: StreamSource = self.source

    def write(self, data: bytes) -> None:
        os.write(self.writer, data)

    def step(self, second: float) -> list[tuple[str, int]]:
        """One round at this time of the day. The windows that became final: (status, lines)."""
        now = Moment(int((DAY + second) * 1e6), second)
        self.source.scan(now)
        self.source.read(now, float("inf"))
        self.job.publish(self.source.watermark_us(now.wall_us))
        found = [(window.status, window.lines.parsed) for window in self.windows]
        self.windows.clear()
        return found


class _Keep:
    wants_open = wants_state = False

    def __init__(self, windows: list[Window]) -> None:
        self._windows = windows

    def put(self, window: Window) -> None:
        self._windows.append(window)

    def put_state(self, state: Any) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_an_old_log_makes_nothing_final_before_its_end() -> None:
    pipe = Pipe(line(3600) + line(60))
    hours = 12 * 3600
    assert pipe.step(hours) == []
    for n in range(100):  # in any order of time, for longer than a live log needs
        pipe.write(line(7200 - n * 60))
        assert pipe.step(hours + n / 10) == []
    assert not pipe.live.is_live


def test_lines_near_the_clock_make_it_live() -> None:
    pipe = Pipe(line(0) + line(3600))
    near = 3600 + NEAR_US // 1_000_000
    assert pipe.step(near) == []
    pipe.write(line(3700))
    assert 3700 - near >= NEAR_S
    assert pipe.step(3700) == [("final", 1), ("final", 1)]
    assert pipe.live.is_live
    pipe.write(line(3605, 404))
    assert pipe.step(3701) == [("revised", 2)]


def test_silence_makes_it_live_and_windows_final_without_lines() -> None:
    pipe = Pipe(line(0))
    hours = 12 * 3600
    assert pipe.step(hours) == []
    assert pipe.step(hours + QUIET_US / 1e6 - 0.1) == []
    assert pipe.step(hours + QUIET_US / 1e6) == [("final", 1)]


def test_the_head_grows_until_a_format_is_found() -> None:
    pipe = Pipe(b"-- Logs begin at noon --\n")
    pipe.step(1)
    pipe.write(line(2) + line(3)[:20])
    pipe.step(2)
    pipe.write(line(3)[20:])
    pipe.step(3)
    os.close(pipe.writer)
    pipe.step(4)
    assert (pipe.source.feed.totals.lines, pipe.source.feed.totals.parsed) == (3, 2)
    assert pipe.stream.is_over


@pytest.fixture
def stdin() -> Iterator[list[int]]:
    """Descriptor 0 is a pipe; the list has its other end."""
    before = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    yield [write_end]
    os.dup2(before, 0)
    os.close(before)


def answer(data: bytes, writer: int) -> tuple[list[dict[str, Any]], Summary, list[str]]:
    os.write(writer, data)
    os.close(writer)
    out, told = io.BytesIO(), list[str]()
    summary = follow_stream(
        RunOptions(QUERY, ("-",)), [JsonLines(out, opens=False, empties=True)], on_lost=told.append
    )
    return [json.loads(row) for row in out.getvalue().splitlines()], summary, told


def test_to_its_end_it_is_a_plain_run(stdin: list[int]) -> None:
    rows, summary, told = answer(line(120) + line(0) + line(61, 404) + line(130)[:-1], stdin[0])
    assert [row["n"] for row in rows] == [1, None, 2]
    assert [row.get("_elf", {}).get("rows") for row in rows] == [None, 0, None]
    assert [row["window"]["start"][14:16] for row in rows] == ["00", "01", "02"]
    assert (summary.lines, summary.lost, told, summary.open) == (4, (), [], 0)


def test_compressed_and_cut_short(stdin: list[int]) -> None:
    packed = gzip.compress(b"".join(line(n) for n in range(200)))
    rows, summary, told = answer(packed[:-9], stdin[0])
    assert told == ["-: the compressed data ends early (truncated); read up to there"] == list(summary.lost)
    assert {row["_elf"]["status"] for row in rows} == {"incomplete"}


def test_an_empty_window_in_csv_has_its_bounds_only() -> None:
    out = io.BytesIO()
    sink = Csv(out, empties=True)
    plan = compile_plan(RunOptions(QUERY, ("-",)), FormatChoice("combined", print).schema({}))
    assert isinstance(plan, Plan)
    job = LiveJob("run", plan, JobOptions(), [], Budget(1 << 28), 0)
    empty = job.publisher.window(DAY * 1_000_000, [], Lines(3, 3), "final", (0, 0, 1))
    sink.put(empty)
    sink.put(empty)  # again: no further effect
    assert out.getvalue() == (b"window_start,window_end,n\n2015-05-17T00:00:00Z,2015-05-17T00:01:00Z,\n")


def test_nothing_is_no_record_without_windows() -> None:
    query = "SELECT status, count(*) AS n FROM access GROUP BY status"
    plan = compile_plan(RunOptions(query, ("-",)), FormatChoice("combined", print).schema({}))
    assert isinstance(plan, Plan)
    job = LiveJob("run", plan, JobOptions(), [], Budget(1 << 28), 0)
    out = io.BytesIO()
    JsonLines(out, empties=True).put(job.publisher.window(None, [], Lines(), "final", (0, 0, 1)))
    assert out.getvalue() == b""
