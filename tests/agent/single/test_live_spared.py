"""A failure of one job of a live agent must not affect others: a bug of ours in it, or its absence for a while."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elf.agent.config import config
from elf.agent.single import live, node
from elf.agent.single.live import Live
from elf.agent.single.live_job import LiveJob
from elf.agent.work.worker import Worker
from elf.jobmaster.compile import query
from elf.jobmaster.windows.result import Lines, PaneState, Window
from elf.sinks.spec import SinkSpec

pytestmark = pytest.mark.process

TOTAL = "SELECT status, count(*) AS n FROM access GROUP BY status"
MINUTES = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 minute')"
NOON = datetime(2026, 10, 27, 12, tzinfo=UTC)


def line(number: int, seconds: float | None = None) -> str:
    when = NOON + timedelta(seconds=number / 10 if seconds is None else seconds)
    return f'192.0.2.1 - - [{when:%d/%b/%Y:%H:%M:%S +0000}] "GET /{number} HTTP/1.1" {200 + number % 3} 5 "-" "-"\n'


class Keep:
    """A console that keeps the windows of all jobs and all starts."""

    wants_open, wants_state = True, False

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def put(self, window: Window) -> None:
        self.windows.append(msgspec.structs.replace(window, rows=list(window.rows)))

    def put_state(self, state: PaneState) -> None:
        raise AssertionError(state)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def last(self, job: str) -> dict[int | None, Window]:
        """The newest revision of each window."""
        newest: dict[int | None, Window] = {}
        for window in self.windows:
            if window.job == job and (
                window.start not in newest or window.revision > newest[window.start].revision
            ):
                newest[window.start] = window
        return newest

    def total(self, job: str) -> dict[int, int]:
        return {row[0]: row[1] for window in self.last(job).values() for row in window.rows}


class Lake:
    """Keeps flushed states: that of each pane with the highest revision."""

    wants_open, wants_state = False, True
    pending_bytes = 0

    def __init__(self, durable: dict[tuple[str, int], PaneState]) -> None:
        self.durable = durable
        self._pending: list[PaneState] = []

    def next_epoch(self, job: str) -> int:
        return 1 + max(
            (state.revision[0] for (of, _), state in self.durable.items() if of == job), default=-1
        )

    def put(self, window: Window) -> None:
        raise AssertionError(window)

    def put_state(self, state: PaneState) -> None:
        self._pending.append(msgspec.structs.replace(state, values=[list(column) for column in state.values]))

    def flush(self) -> None:
        for state in self._pending:
            known = self.durable.get((state.job, state.start))
            if known is None or state.revision > known.revision:
                self.durable[state.job, state.start] = state
        self._pending = []

    def close(self) -> None:
        self.flush()


class Rig:
    """Starts of one agent on one folder, moved round by round."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.console, self.notices = folder, Keep(), list[str]()
        self.log = folder / "access.log"
        self.written = 0

        self.durable: dict[tuple[str, int], PaneState] = {}

        def open_sink(spec: SinkSpec) -> Any:
            return self.console if spec.folder is None else Lake(self.durable)

        monkeypatch.setattr(node, "open_sink", open_sink)
        monkeypatch.setattr(live, "SYNC_S", 0.0)
        monkeypatch.setattr(query, "compile_in_child", query.compile)  # no process for each job and start

    def write(self, count: int) -> None:
        with self.log.open("a") as file:
            file.write("".join(line(self.written + n) for n in range(count)))
        self.written += count

    def expected(self) -> dict[int, int]:
        return dict(Counter(200 + number % 3 for number in range(self.written)))

    @contextmanager
    def start(self, *, orderly: bool = False, **jobs: str) -> Iterator[Live]:
        """One start with jobs by name; at the end it is killed, or ends in an orderly way."""
        text = f"""
[agent]
name = "web1"
state_dir = {json.dumps(str(self.folder / "state"))}
[[source]]
name = "access"
path = "access.log"
format = "combined"
start = "beginning"
"""
        for name, sql in jobs.items():
            sinks = '"console", "parquet:lake"' if "window(" in sql else '"console"'
            text += f'[[job]]\nname = "{name}"\nsql = {json.dumps(sql)}\nemit = "10ms"\nlateness = "0s"\nsinks = [{sinks}]\n'
        self.notices.clear()
        agent = node._open_live(config.parse(text, self.folder / "elf.toml", environ={}), self.notices.append)
        agent.sync(now=True)
        try:
            yield agent
            if orderly:
                agent.finish(publish_open=False)
        finally:
            if agent.journal is not None:
                agent.journal.close()  # as a kill would
            for source in agent.sources:
                source.source.close()

    def settle(self, agent: Live) -> None:
        """Rounds until all is read, published and recorded."""
        for name in agent._next_emit:
            agent._next_emit[name] = 0.0
        while agent.round():
            pass
        agent.publish(0)
        agent.store(now=True)
        agent.sync(now=True)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


BREAKS = {
    "reading": (Worker, "add"),
    "cutting": (Worker, "cut"),
    "merging": (LiveJob, "cut"),
    "publishing": (LiveJob, "publish"),
    "retiring": (LiveJob, "retire"),
    "recording": (LiveJob, "record"),
}


def break_job(monkeypatch: pytest.MonkeyPatch, agent: Live, name: str, where: str) -> None:
    """From now on the job fails there, after the half of it was done where that is possible."""
    owner, method = BREAKS[where]
    job = next(job for job in agent.jobs if job.name == name)
    broken = job.worker if owner is Worker else job
    whole = getattr(owner, method)

    def fail(self: Any, *arguments: Any, **options: Any) -> Any:
        if self is broken:
            whole(self, *arguments, **options)
            raise ZeroDivisionError("of all things")
        return whole(self, *arguments, **options)

    monkeypatch.setattr(owner, method, fail)


@pytest.mark.parametrize("where", BREAKS)
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_job_that_fails_stops_alone_and_loses_nothing(
    rig: Rig, capfd: pytest.CaptureFixture[str], where: str, rewritten: bool
) -> None:
    rig.write(100)
    with pytest.MonkeyPatch.context() as patch, rig.start(bad=TOTAL, good=TOTAL) as agent:
        rig.settle(agent)
        assert rig.console.total("bad") == rig.console.total("good") == rig.expected()
        break_job(patch, agent, "bad", where)
        rig.write(50)
        rig.settle(agent)
        rig.settle(agent)
        agent.store(now=True)
        (notice,) = rig.notices
        assert notice.startswith(
            "job bad: stopped by an error of elf (ZeroDivisionError: of all things), of which"
        )
        assert [job.name for job in agent.jobs] == ["good"]
        rig.write(50)
        if rewritten:
            patch.setattr(live, "JOURNAL_GROWTH", 0)
        rig.settle(agent)
        rig.settle(agent)
        assert rig.console.total("good") == rig.expected()
        assert sum(rig.console.total("bad").values()) < 200
    error = capfd.readouterr().err
    assert error.count("Traceback") == 1
    assert "ZeroDivisionError: of all things" in error
    rig.write(10)
    with rig.start(bad=TOTAL, good=TOTAL) as agent:  # it is tried again, and fails again
        assert [source.apart for source in agent.sources] == [None, "bad"]
        with pytest.MonkeyPatch.context() as patch:
            break_job(patch, agent, "bad", "reading")
            rig.settle(agent)
        assert rig.console.total("good") == rig.expected()
        assert len(agent.jobs) == 1
    with rig.start(bad=TOTAL, good=TOTAL, orderly=True) as agent:  # then it is mended
        rig.settle(agent)
        assert rig.console.total("bad") == rig.console.total("good") == rig.expected()
        assert rig.notices == []
        rig.write(7)
        rig.settle(agent)
    with rig.start(bad=TOTAL, good=TOTAL) as agent:  # both stand at the same place again
        assert [source.apart for source in agent.sources] == [None]
        rig.write(7)
        rig.settle(agent)
        assert rig.console.total("bad") == rig.console.total("good") == rig.expected()


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_job_that_cannot_be_restored_stops_alone_and_loses_nothing(
    rig: Rig, capfd: pytest.CaptureFixture[str], rewritten: bool
) -> None:
    rig.write(100)
    with rig.start(bad=TOTAL, good=TOTAL) as agent:
        rig.settle(agent)
    whole = LiveJob.restore

    def fail(job: LiveJob, records: Any) -> None:
        whole(job, records)
        if job.name == "bad":
            raise ZeroDivisionError("of all things")

    for _ in range(2):  # also when it stands elsewhere already
        rig.write(50)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LiveJob, "restore", fail)
            if rewritten:
                patch.setattr(live, "JOURNAL_GROWTH", 0)
            with rig.start(bad=TOTAL, good=TOTAL) as agent:
                assert [job.name for job in agent.jobs] == ["good"]
                assert [notice.split(" (")[0] for notice in rig.notices] == [
                    "job bad: stopped by an error of elf"
                ]
                rig.settle(agent)
                rig.settle(agent)
        assert rig.console.total("good") == rig.expected()
        assert sum(rig.console.total("bad").values()) == 100
        assert capfd.readouterr().err.count("Traceback") == 1
    with rig.start(bad=TOTAL, good=TOTAL) as agent:
        rig.settle(agent)
        assert rig.console.total("bad") == rig.console.total("good") == rig.expected()


def test_an_agent_whose_only_job_fails_reads_no_further(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.write(30)
    with pytest.MonkeyPatch.context() as patch, rig.start(bad=TOTAL) as agent:
        rig.settle(agent)
        break_job(patch, agent, "bad", "reading")
        rig.write(30)
        rig.settle(agent)
        rig.write(30)
        rig.settle(agent)
        assert agent.jobs == []
    with rig.start(bad=TOTAL) as agent:
        rig.settle(agent)
        assert rig.console.total("bad") == rig.expected()


def coverage(rig: Rig, job: str) -> dict[int, tuple[int, int, int]]:
    """Minutes after noon -> (lines counted, agents that reported, agents expected)."""
    noon = int(NOON.timestamp()) * 1_000_000
    return {
        ((window.start or 0) - noon) // 60_000_000: (
            sum(row[1] for row in window.rows),
            window.agents_reporting,
            window.agents_expected,
        )
        for window in rig.console.last(job).values()
    }


def in_lake(rig: Rig, job: str) -> dict[int, tuple[int, int, int]]:
    """As `coverage`, of the panes that are durable."""
    noon = int(NOON.timestamp()) * 1_000_000
    return {
        (start - noon) // 60_000_000: (state.lines.parsed, state.agents_reporting, state.agents_expected)
        for (of, start), state in rig.durable.items()
        if of == job
    }


@pytest.mark.parametrize("where", ["reading", "storing", "flushing"])
def test_a_lake_of_a_job_that_failed_holds_whole_panes(rig: Rig, where: str) -> None:
    rig.write(900)
    with pytest.MonkeyPatch.context() as patch, rig.start(bad=MINUTES, good=MINUTES) as agent:
        rig.settle(agent)
        rig.write(900)
        if where == "flushing":
            patch.setattr(agent.jobs[0].sinks[1], "flush", lambda: 1 / 0)
        elif where == "storing":
            states = agent.jobs[0]._state.states

            def half(*arguments: Any) -> Iterator[PaneState]:
                for state in states(*arguments):
                    yield msgspec.structs.replace(state, lines=Lines(7, 7))
                    raise ZeroDivisionError

            patch.setattr(agent.jobs[0]._state, "states", half)
        else:
            break_job(patch, agent, "bad", where)
        rig.settle(agent)
        assert [job.name for job in agent.jobs] == ["good"]
        agent.finish(publish_open=False)
        agent.close()
    assert in_lake(rig, "good") == {0: (600, 1, 1), 1: (600, 1, 1)}
    assert in_lake(rig, "bad") == {0: (600, 1, 1)}
    with rig.start(bad=MINUTES, good=MINUTES) as agent:
        rig.write(700)
        rig.settle(agent)
    assert in_lake(rig, "bad") == in_lake(rig, "good") == dict.fromkeys(range(4), (600, 1, 1))


@pytest.mark.parametrize("compacted", [False, True])
def test_a_job_that_is_put_back_reports_which_windows_lack_lines(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    """600 lines are a minute. It leaves in the middle of minute 1, and comes back in the middle of minute 3."""
    rig.write(900)
    with rig.start(some=MINUTES, other=MINUTES) as agent:
        rig.settle(agent)
    with rig.start(other=MINUTES) as agent:
        if compacted:
            monkeypatch.setattr(live, "JOURNAL_GROWTH", 0)
        rig.write(1_200)
        rig.settle(agent)
        rig.settle(agent)
        rig.write(0)
        rig.settle(agent)
    rig.write(300)
    with rig.start(some=MINUTES, other=MINUTES) as agent:
        rig.settle(agent)
        rig.write(1_250)
        rig.settle(agent)
    with rig.start(some=MINUTES, other=MINUTES) as agent:  # it is not forgotten by another start
        rig.settle(agent)
        rig.write(600)
        rig.settle(agent)
    other = coverage(rig, "other")
    assert other == dict.fromkeys(range(7), (600, 1, 1)) | {7: (50, 1, 1)}
    some = coverage(rig, "some")
    assert some[0] == (600, 1, 1)
    assert some[1] == (300, 0, 1) if not compacted else some[1][0] == 300
    assert some[3] == (300, 0, 1)
    assert {minute: some[minute] for minute in (4, 5, 6, 7)} == {
        4: (600, 1, 1),
        5: (600, 1, 1),
        6: (600, 1, 1),
        7: (50, 1, 1),
    }
    assert in_lake(rig, "other") == dict.fromkeys(range(7), (600, 1, 1))
    stored = in_lake(rig, "some")
    assert stored == {minute: some[minute] for minute in stored}
    assert stored.keys() >= {0, 3, 4, 5, 6}
    statuses = {window.status for window in rig.console.last("some").values() if window.agents_reporting}
    assert statuses == {"final", "open"}


def test_a_job_that_was_away_while_nothing_was_read_lacks_nothing(rig: Rig) -> None:
    rig.write(900)
    with rig.start(some=MINUTES, other=MINUTES) as agent:
        rig.settle(agent)
    with rig.start(other=MINUTES) as agent:
        rig.settle(agent)
    rig.write(900)
    with rig.start(some=MINUTES, other=MINUTES) as agent:
        rig.settle(agent)
    assert coverage(rig, "some") == coverage(rig, "other") == {0: (600, 1, 1), 1: (600, 1, 1), 2: (600, 1, 1)}


def test_a_new_job_lacks_what_its_source_had_read(rig: Rig) -> None:
    rig.write(900)
    with rig.start(other=MINUTES) as agent:
        rig.settle(agent)
    with rig.start(new=MINUTES, all=TOTAL, other=MINUTES) as agent:
        rig.write(900)
        rig.settle(agent)
    assert coverage(rig, "new") == {1: (300, 0, 1), 2: (600, 1, 1)}
    (total,) = rig.console.last("all").values()  # it says no window, so it begins with the job
    assert (sum(row[1] for row in total.rows), total.agents_reporting) == (900, 1)
