"""A live agent never counts a line twice, loses one, or stores a pane with less than before. Driven step by step."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Timer
from typing import Any

import msgspec
import pytest

from elf.agent.commands import validate
from elf.agent.config import config
from elf.agent.config.config import Config
from elf.agent.disk.journal import Journal
from elf.agent.files.blocks import Block, FileKey
from elf.agent.files.source import GRACE_S, Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import Reason
from elf.agent.formats.formats import column_types, resolve
from elf.agent.single import live
from elf.agent.single.live import Live, Record
from elf.agent.single.live_job import JobOptions, LiveJob
from elf.agent.single.live_source import LiveSource, Moment, wire
from elf.agent.single.node import History, serve
from elf.agent.work.feed import Totals
from elf.agent.work.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.errors import ConfigError
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


class Console:
    """Keeps windows; its disk can be full."""

    wants_open, wants_state = False, False

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.is_full = False

    def put(self, window: Window) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.windows.append(window)

    def put_state(self, state: PaneState) -> None:
        raise AssertionError(state)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Agent:
    """One start of an agent on `folder`, moved by `step` alone; leaving it as it is is a kill -9."""

    def __init__(
        self,
        folder: Path,
        sinks: Sequence[Any],
        patterns: Sequence[str] = ("access.log",),
        keep_s: int = 600,
        lakes: Sequence[str] = ("lake",),
    ) -> None:
        self.notices: list[str] = []
        journal, encoded = Journal.open(folder / "journal")
        history = History(encoded)
        saved = history.sources.get("access")
        source = Source(
            "access",
            [str(folder / pattern) for pattern in patterns],
            state=saved.position if saved else None,
            start="beginning",
            block_bytes=512,
        )
        plan = compile_query(BY_STATUS, {"access": column_types(resolve("combined"))})
        budget = Budget(64 << 20, folder)
        options = JobOptions(keep_us=keep_s * SECOND)
        self.job = LiveJob("job", plan, options, sinks, budget, history.epoch, lakes)
        self.job.restore(history.jobs.get("job", []))
        formats = FormatChoice("combined", self.notices.append, lenient=True)
        self.source: LiveSource = wire(source, formats, [self.job], "UTC", "web1", saved)
        self.live = Live(
            [self.source], budget=budget, epoch=history.epoch, journal=journal, notices=self.notices.append
        )
        self.live.sync(now=True)

    def step(self, seconds: float, *, publish: bool = True, store: bool = True, sync: bool = True) -> None:
        """All that a round does, at a time, read to the end."""
        self.source.scan(moment(seconds))
        self.source.read(moment(seconds), EVER)
        if publish:
            self.job.publish(self.source.watermark_us(at(seconds)))
        if store:
            self.live.store(now=True)
        if sync:
            self.live.sync(now=True)

    def kill(self) -> None:
        assert self.live.journal is not None
        self.live.journal.close()


def job(name: str, sql: str = BY_STATUS, sinks: str = "[]") -> str:
    return f'[[job]]\nname = "{name}"\nsql = "{sql}"\nsinks = {sinks}\n'


def configured(folder: Path, *jobs: str, source: str = 'path = "access.log"\nformat = "combined"') -> Config:
    text = f"""
[agent]
name = "web1"
state_dir = "{folder}/state"
[[source]]
name = "access"
{source}
"""
    return config.parse(text + "".join(jobs), folder / "elf.toml", environ={})


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
    agent.kill()


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
    agent.kill()


def test_a_line_that_came_after_its_pane_was_stored_survives_a_kill_before_the_next_store(
    tmp_path: Path,
) -> None:
    lake, console = Lake(), Console()
    agent = Agent(tmp_path, [lake, console])
    write(tmp_path, line(0), line(200))
    agent.step(200)
    agent.step(201)  # the record knows that the lake holds it
    assert lake.counts() == {0: 1}
    write(tmp_path, line(1))
    agent.step(202, publish=False, store=False)  # read and recorded, and nothing more
    agent.kill()
    agent = Agent(tmp_path, [lake, console])
    agent.step(203)
    assert lake.counts() == {0: 2}
    assert lake.panes[NOON][1].status == "revised"
    newest = max((each for each in console.windows if each.start == NOON), key=lambda each: each.revision)
    assert (newest.status, [list(row) for row in newest.rows]) == ("revised", [[200, 2]])
    agent.kill()


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
    agent.kill()


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
    agent.kill()


def test_a_console_that_cannot_write_neither_stops_the_journal_nor_loses_a_window(tmp_path: Path) -> None:
    console = Console()
    agent = Agent(tmp_path, [console])
    console.is_full = True
    write(tmp_path, line(0), line(200))
    agent.live.run(Event(), until=lambda: any("No space left" in each for each in agent.notices))
    recorded = agent.live.journal.size if agent.live.journal is not None else 0
    write(tmp_path, line(201))
    rounds = 0

    def is_recorded() -> bool:
        nonlocal rounds
        rounds += 1
        assert rounds < 300
        return agent.live.journal is not None and agent.live.journal.size > recorded

    agent.live.run(Event(), until=is_recorded)
    agent.kill()
    console.is_full = False
    agent = Agent(tmp_path, [console])
    agent.step(202)
    assert [(each.start, each.status) for each in console.windows] == [(NOON, "revised")]
    agent.kill()


def test_a_query_that_was_changed_and_changed_back_starts_again_for_good(tmp_path: Path) -> None:
    """See `node._job`: only the records behind the last change are taken up."""
    from elf.agent.config.config import JobSection
    from elf.agent.single.node import _job

    def run(sql: str, records: list[Any]) -> tuple[LiveJob, list[str]]:
        notices: list[str] = []
        plan = compile_query(sql, {"access": column_types(resolve("combined"))})
        history = History([msgspec.msgpack.encode(Record(0, {}, {"job": record})) for record in records])
        section = JobSection("job", sql, 0, 0, 0, (), "elf.toml:1")
        return _job(section, plan, Budget(64 << 20, tmp_path), history, notices.append), notices

    total = "SELECT count(*) AS n FROM access"
    first = run(total, [])[0].record()
    other = run("SELECT sum(bytes) AS n FROM access", [first])[0].record()
    first.windows = msgspec.structs.replace(first.windows, published=[(0, 7, False)])
    again, notices = run(total, [first, other])
    assert len(notices) == 1
    assert again.windows.published == {}
    later, notices = run(total, [first, other, again.record()])
    assert notices == []
    assert later.windows.published == {}


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
    agent.kill()


def test_a_lake_that_would_stay_empty_is_refused(tmp_path: Path) -> None:
    total = job("total", "SELECT count(*) AS n FROM access", '["console", "parquet:lake"]')
    for check in (validate.check, lambda settings: serve(settings, print, Event())):
        with pytest.raises(ConfigError, match=r"elf.toml:11: job total: without a window .* stay empty; add"):
            check(configured(tmp_path, total))


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


def test_a_lake_that_cannot_be_made_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where a folder should be")
    settings = configured(tmp_path, job("minutes", sinks='["parquet:lake"]'))
    with pytest.raises(ConfigError, match=r"elf.toml:11: job minutes: cannot make the lake's folder"):
        serve(settings, print, Event())


def test_a_long_journal_is_rewritten_at_the_next_start_with_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each start would allow it to double once more."""
    lake = Lake()
    agent = Agent(tmp_path, [lake])
    for second in range(0, 40):
        write(tmp_path, line(second), line(second, 404))
        agent.step(second)
    agent.kill()
    long = (tmp_path / "journal").stat().st_size
    monkeypatch.setattr(live, "JOURNAL_GROWTH", long // 2)
    agent = Agent(tmp_path, [lake])
    assert (tmp_path / "journal").stat().st_size < long // 2
    agent.kill()
    agent = Agent(tmp_path, [lake])
    write(tmp_path, line(200))
    agent.step(200)
    assert lake.counts() == {0: 80}
    assert agent.live.epoch == 2
    agent.kill()


def test_a_lake_that_is_added_takes_what_is_retained(tmp_path: Path) -> None:
    first, second = Lake(), Lake()
    agent = Agent(tmp_path, [first])
    write(tmp_path, line(0), line(60), line(300))
    agent.step(300)
    agent.step(301)
    agent.kill()
    agent = Agent(tmp_path, [first, second], lakes=["lake", "other"])
    agent.step(302)
    agent.step(303)
    assert first.counts() == second.counts() == {0: 1, 60: 1}
    agent.kill()
    again = Lake()
    agent = Agent(tmp_path, [again], lakes=["other"])
    agent.step(304)
    assert again.counts() == {}  # it holds them
    agent.kill()


def test_a_job_that_was_left_out_for_a_while_reports_it_once(tmp_path: Path) -> None:
    def notices(names: str) -> list[str]:
        said: list[str] = []
        stop = Event()
        stop.set()
        serve(configured(tmp_path, *map(job, names)), said.append, stop)
        return said

    assert notices("ab") == []
    assert notices("b") == []
    (said,) = notices("ab")
    assert said.startswith("job a: goes on from where it was left out")
    assert notices("ab") == []


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
    agent.kill()


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
    agent.kill()


def test_files_of_one_format_are_reported_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    for number in range(40):
        write(tmp_path, line(number) * 3, name=f"access.{number:02}.log")
    write(tmp_path, '{"time":"2026-10-27T12:00:00Z","status":200,"path":"/"}\n', name="zz.json")
    stop = Event()
    source = 'path = ["access.*.log", "zz.json"]\nstart = "beginning"'

    def hear(notice: str) -> None:
        said.append(notice)
        if len(said) == 2:
            stop.set()

    limit = Timer(120.0, stop.set)
    limit.start()
    serve(configured(tmp_path, job("minutes"), source=source), hear, stop)
    limit.cancel()
    (many,) = [notice for notice in said if "40 files" in notice]
    assert many == (
        f"40 files: format combined ({tmp_path}/access.00.log, {tmp_path}/access.01.log, {tmp_path}/access.02.log and 37 more)"
    )
    assert [notice for notice in said if notice != many] == [f"{tmp_path}/zz.json: format json"]


def test_notices_come_in_the_order_of_what_happened(tmp_path: Path) -> None:
    said: list[str] = []
    stop = Event()
    source = 'path = "access.log"\nstart = "beginning"'

    def hear(text: str) -> None:
        said.append(text)
        if "waiting for it" in text:
            write(tmp_path, line(0))
        if "format combined" in text:
            stop.set()

    limit = Timer(120.0, stop.set)
    limit.start()
    serve(configured(tmp_path, job("minutes"), source=source), hear, stop)
    limit.cancel()
    assert ["waiting for it" in text for text in said] == [True, False]
