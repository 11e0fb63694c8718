"""A live run never counts a line twice, loses one, or stores a pane with less than before. Driven step by step."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from elf.agent.files.blocks import Block, FileKey
from elf.agent.files.source import GRACE_S, Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import Reason
from elf.agent.formats.formats import column_types, resolve
from elf.agent.single.live import Live
from elf.agent.single.live_job import JobOptions, LiveJob
from elf.agent.single.live_source import LiveSource, Moment, wire
from elf.agent.work.feed import Totals
from elf.agent.work.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.windows.result import PaneState, Revision, Window

pytestmark = pytest.mark.process

SECOND = 1_000_000
NOON = int(datetime(2026, 10, 27, 12, tzinfo=UTC).timestamp()) * SECOND
BY_STATUS = "SELECT status, count(*) AS n FROM access GROUP BY window(time, '1 minute'), status"
EVER = float("inf")


def at(seconds: float) -> int:
    return NOON + int(seconds * SECOND)


def moment(seconds: float) -> Moment:
    return Moment(at(seconds), seconds)


def line(seconds: float, status: int = 200) -> str:
    when = datetime(2026, 10, 27, 12, tzinfo=UTC) + timedelta(seconds=seconds)
    return f'192.0.2.1 - - [{when:%d/%b/%Y:%H:%M:%S +0000}] "GET / HTTP/1.1" {status} 5 "-" "-"\n'


class Lake:
    """Keeps the state of each pane with the highest revision, as a reader of the lake would."""

    wants_open, wants_state = False, True
    pending_bytes = 0

    def __init__(self) -> None:
        self.panes: dict[int, tuple[Revision, PaneState]] = {}

    def put(self, window: Window) -> None:
        raise AssertionError(window)

    def put_state(self, state: PaneState) -> None:
        known = self.panes.get(state.start)
        if known is None or state.revision > known[0]:
            self.panes[state.start] = state.revision, state

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def counts(self) -> dict[int, int]:
        """Seconds after noon of each pane, and how many lines its groups hold."""
        return {(start - NOON) // SECOND: sum(state.values[1]) for start, (_, state) in self.panes.items()}

    def lines(self) -> dict[int, tuple[int, int, int]]:
        found = {(start - NOON) // SECOND: state.lines for start, (_, state) in self.panes.items()}
        return {start: (each.parsed, each.rejected, each.late) for start, each in found.items()}


class Agent:
    """A live run on `folder`, moved by `step` alone."""

    def __init__(
        self, folder: Path, sinks: Sequence[Any], patterns: Sequence[str] = ("access.log",), keep_s: int = 600
    ) -> None:
        self.notices: list[str] = []
        paths = [str(folder / pattern) for pattern in patterns]
        source = Source("access", paths, state=None, start="beginning", block_bytes=512)
        plan = compile_query(BY_STATUS, {"access": column_types(resolve("combined"))})
        budget = Budget(64 << 20, folder)
        self.job = LiveJob("job", plan, JobOptions(keep_us=keep_s * SECOND), sinks, budget, 0)
        formats = FormatChoice("combined", self.notices.append, lenient=True)
        self.source: LiveSource = wire(source, formats, [self.job], "UTC", "web1")
        self.live = Live(self.source, budget=budget, notices=self.notices.append)

    def step(self, seconds: float, *, publish: bool = True, store: bool = True) -> None:
        """All that a round does, at a time, read to the end."""
        self.source.scan(moment(seconds))
        self.source.read(moment(seconds), EVER)
        if publish:
            self.job.publish(self.source.watermark_us(at(seconds)))
        if store:
            self.live.store(now=True)


def write(folder: Path, *texts: str, name: str = "access.log") -> None:
    with (folder / name).open("a") as file:
        file.write("".join(texts))


def test_a_reject_after_hours_of_quiet_does_not_empty_the_stored_pane_of_the_line_before(
    tmp_path: Path,
) -> None:
    lake = Lake()
    agent = Agent(tmp_path, [lake])
    write(tmp_path, line(0), line(1))
    agent.step(2)
    agent.step(10)
    for hour in (1, 2, 3):
        agent.step(3600 * hour)  # quiet: the watermark follows the clock, and the pane of noon is forgotten
    assert lake.counts() == {0: 2}
    write(tmp_path, "no line of this format\n")
    agent.step(3 * 3600 + 1)
    agent.step(3 * 3600 + 200)
    assert lake.counts()[0] == 2
    assert sorted(lake.lines().values()) == [(0, 1, 0), (2, 0, 0)]


def test_lines_that_are_too_late_do_not_empty_a_stored_pane_either(tmp_path: Path) -> None:
    lake = Lake()
    agent = Agent(tmp_path, [lake])
    write(tmp_path, line(0), line(1))
    agent.step(2)
    for hour in (1, 2, 3):
        agent.step(3600 * hour)
    write(tmp_path, line(-60), line(2), "not one\n")
    agent.step(3 * 3600 + 1)
    write(tmp_path, "not one\n")
    agent.step(3 * 3600 + 2)
    agent.step(3 * 3600 + 200)
    assert lake.counts()[0] == 2
    late = [counts for start, counts in lake.lines().items() if start]
    assert [sum(column) for column in zip(*late, strict=True)] == [2, 2, 2]


def test_what_was_read_for_a_pane_is_in_it_when_the_pane_is_retired(tmp_path: Path) -> None:
    lake = Lake()
    agent = Agent(tmp_path, [lake], keep_s=60)
    write(tmp_path, line(0), line(170))
    agent.step(170)
    write(tmp_path, line(400))
    agent.step(400, store=False)  # the watermark is far beyond the pane of noon now, which is still held
    write(tmp_path, line(1))
    agent.step(401, publish=False)
    agent.step(402)
    assert lake.counts()[0] == 2


def test_a_file_that_is_still_to_be_read_holds_the_watermark_back(tmp_path: Path) -> None:
    """Two logs in one source, of which the short one reaches today in its first block: the long one is not late for that."""
    lake = Lake()
    write(tmp_path, *(line(10 * number) for number in range(2_000)), name="long.log")
    write(tmp_path, line(5), line(20_000), name="short.log")
    agent = Agent(tmp_path, [lake], patterns=["long.log", "short.log"], keep_s=60)
    agent.source.scan(moment(20_001))
    while agent.source.read(moment(20_001), 0.0):  # one block at a time
        agent.job.publish(agent.source.watermark_us(at(20_001)))
        agent.live.store(now=True)
    for seconds in (20_002, 20_040, 20_200):
        agent.step(seconds)
    assert sum(lake.counts().values()) == 2_002
    assert sum(late for _, _, late in lake.lines().values()) == 0


def test_memory_that_cannot_give_way_to_a_full_disk_stops_reading_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake()
    agent = Agent(tmp_path, [lake])
    full = True

    def refuse(budget: Budget) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Budget, "settle", refuse)
    write(tmp_path, line(0), line(1), line(200))
    agent.live.run(Event(), until=lambda: any("memory: No space" in each for each in agent.notices))
    write(tmp_path, line(201))
    agent.live.round()
    assert agent.source.feed.totals.lines in (0, 3)  # nothing is read while it lasts
    full = False
    agent.live.run(Event(), until=lambda: agent.source.feed.totals.lines == 4)
    assert any("memory: works again" in each for each in agent.notices)
    agent.step(202)
    assert lake.counts() == {0: 2}
    assert lake.lines() == {0: (2, 0, 0)}


def test_lines_that_cannot_be_parsed_at_all_are_reported_once(tmp_path: Path) -> None:
    totals, unparsed = Totals(), Unparsed("access")

    def look(second: int, lines: int, parsed: int) -> str | None:
        totals.lines += lines
        totals.parsed += parsed
        totals.rejects[Reason.LITERAL] += lines - parsed
        return unparsed.look(at(second), totals, "/var/log/access.log")

    assert look(0, 50, 50) is None
    assert look(11, 0, 0) is None
    assert look(12, 3, 0) is None  # a few say nothing
    assert look(30, 20, 20) is None
    assert look(35, 60, 0) is None
    told = look(41, 40, 0)
    assert told == (
        "access: none of the last 100 lines could be parsed: separator missing; see where with: elf parse /var/log/access.log"
    )
    assert look(60, 100, 0) is None
    assert look(80, 100, 1) == "access: lines can be parsed again"


def test_an_undetectable_format_is_reported_once_and_tried_again_with_more_lines() -> None:
    said: list[str] = []
    head = b"no log\n"
    choice = FormatChoice("auto", said.append, lenient=True, head=lambda block: head)
    block = Block(FileKey(1, 2), "access.log", 0, 7, b"no log\n", 0, True, False)
    for _ in range(3):
        assert choice.of(block).name == "combined"
    head += b"no log either\n"
    choice.of(block)
    assert len(said) == 1
    head = (line(0) * 50).encode()
    assert choice.of(block).name == "combined"
    assert len(said) == 1
    assert choice.take_found() == ["access.log: format combined"]
    assert choice.take_found() == []


def test_a_clock_that_is_set_back_stretches_no_grace_and_holds_no_window_open(tmp_path: Path) -> None:
    """Some minutes back, while a rotated file waits for its last bytes and a window for its end."""
    lake = Lake()
    agent = Agent(tmp_path, [lake], patterns=["access.log", "access.log.1"])
    followed = agent.source.source
    assert isinstance(followed, Source)

    def step(seconds: float, wall: float) -> None:
        now = Moment(at(wall), seconds)
        agent.source.scan(now)
        agent.source.read(now, EVER)
        agent.job.publish(agent.source.watermark_us(now.wall_us))
        agent.live.store(now=True)

    write(tmp_path, line(0), line(200))
    step(0, 200)
    (tmp_path / "access.log").rename(tmp_path / "access.log.1")
    write(tmp_path, line(201))
    step(1, 201)
    write(tmp_path, line(202)[:-1], name="access.log.1")  # the last line lacks its end
    step(2, 202)
    assert agent.source.feed.totals.lines == 3
    step(5, 205 - 200)
    assert agent.source.feed.totals.lines == 3
    step(2 + GRACE_S, 212 - 200)  # the grace is over, whatever the calendar says
    assert agent.source.feed.totals.lines == 4
    assert followed.lag_bytes().keys() == {str(tmp_path / "access.log")}
    assert agent.source.feed.totals.parsed == 4
    assert agent.job.windows.watermark_us == at(201)  # never past the clock, and never back
    step(30, 600)
    assert lake.counts() == {0: 1, 180: 3}


def test_a_source_is_quiet_by_the_clock_that_is_not_set_back(tmp_path: Path) -> None:
    agent = Agent(tmp_path, [Lake()])
    write(tmp_path, line(0))
    for seconds, wall, expected in (
        (0, 7_200, 0),
        (3, 3_603, 0),  # the calendar went an hour back
        (6, 3_606, 3_601),  # six seconds without a line: the calendar, less the grace
        (8, 3_608, 3_603),
    ):
        now = Moment(at(wall), seconds)
        agent.source.scan(now)
        agent.source.read(now, EVER)
        assert agent.source.watermark_us(now.wall_us) == at(expected)
