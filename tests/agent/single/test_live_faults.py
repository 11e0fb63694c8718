"""A live agent in trouble: a full disk, lines from the future, a query that changed, another agent on its folder."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elf.agent.config import config
from elf.agent.single import node
from elf.agent.single.node import serve
from elf.errors import ConfigError, StateError
from elf.jobmaster.windows.result import PaneState, Window
from elf.sinks.spec import SinkSpec
from tests.rigs.lines import lines

pytestmark = pytest.mark.process

DEADLINE_S = 120.0
TOTAL = "SELECT count(*) AS n, sum(bytes) AS b FROM access"


class Keep:
    """A console that keeps windows."""

    wants_open = True
    wants_state = False

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def put(self, window: Window) -> None:
        self.windows.append(window)

    def put_state(self, state: PaneState) -> None:
        raise AssertionError(state)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def total(self) -> int:
        return max((row[0] for window in self.windows for row in window.rows), default=0)


class Agent:
    """An agent in a thread of this process, with its notices and its console."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, state_dir: Path, sql: str = TOTAL
    ) -> None:
        self.notices: list[str] = []
        self.console = Keep()
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        text = f"""
[agent]
name = "web1"
state_dir = {json.dumps(str(state_dir))}
[[source]]
name = "access"
path = "access.log*"
format = "combined"
start = "beginning"
[[job]]
name = "total"
sql = {json.dumps(sql)}
sinks = ["console"]
"""
        self._config = config.parse(text, folder / "elf.toml", environ={})

        def open_sink(spec: SinkSpec) -> Any:
            return self.console

        monkeypatch.setattr(node, "open_sink", open_sink)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            serve(self._config, self.notices.append, self._stop)
        except BaseException as error:
            self.failure = error

    def wait(self, what: Callable[[], bool]) -> None:
        limit = time.monotonic() + DEADLINE_S
        while not what():
            assert self.failure is None, self.failure
            assert time.monotonic() < limit, (self.notices, self.console.total())
            self._stop.wait(0.02)

    def __enter__(self) -> Agent:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_is_reported_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [f"{line}\n" for line in lines(900, 41, with_time=False)]
    access = tmp_path / "access.log"
    access.write_text("".join(log[:300]))
    with small_disk(tmp_path / "disk", "256k") as disk:
        with Agent(tmp_path, monkeypatch, disk / "state") as agent:
            agent.wait(lambda: agent.console.total() == 300)
            agent.wait(lambda: (disk / "state" / "journal").stat().st_size > 100)
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as room, suppress(OSError):
                while room.write(bytes(4096)):  # the agent writes meanwhile, too
                    pass
            sent = 300

            def send_until_full() -> bool:
                # A record of each second fills what is left of the journal's last page.
                nonlocal sent
                with access.open("a") as file:
                    file.write(log[sent % len(log)])
                sent += 1
                return any("No space left" in notice for notice in agent.notices)

            agent.wait(send_until_full)
            agent.wait(lambda: agent.console.total() == sent)  # it goes on meanwhile
            filler.unlink()
            agent.wait(lambda: any("works again" in notice for notice in agent.notices))
        assert sum("No space left" in notice for notice in agent.notices) == 1
        with access.open("a") as file:
            file.write("".join(log[:100]))
        with Agent(tmp_path, monkeypatch, disk / "state") as again:
            again.wait(lambda: again.console.total() >= sent + 100)
        assert again.console.total() == sent + 100


def test_lines_from_the_future_are_rejected_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    times = [
        now - timedelta(seconds=1),
        now + timedelta(minutes=4),
        now + timedelta(minutes=6),
        now - timedelta(hours=1),
    ]
    (tmp_path / "access.log").write_text(
        "".join(
            f'10.0.0.1 - - [{time:%d/%b/%Y:%H:%M:%S +0000}] "GET / HTTP/1.1" 200 5 "-" "-"\n'
            for time in times
        )
    )
    with Agent(tmp_path, monkeypatch, tmp_path / "state") as agent:
        agent.wait(lambda: agent.console.total() == 3)
    last = agent.console.windows[-1]
    assert (last.lines.read, last.lines.parsed, last.lines.rejected) == (4, 3, 1)


def test_late_lines_are_counted_and_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def at(time: datetime) -> str:
        return f'10.0.0.1 - - [{time:%d/%b/%Y:%H:%M:%S +0000}] "GET / HTTP/1.1" 200 5 "-" "-"\n'

    now = datetime.now(UTC)
    access = tmp_path / "access.log"
    access.write_text(at(now))
    query = "SELECT count(*) AS n FROM access GROUP BY window(time, '1 day')"
    with Agent(tmp_path, monkeypatch, tmp_path / "state", query) as agent:
        agent.wait(lambda: agent.console.total() == 1)
        with access.open("a") as file:
            file.write(at(now - timedelta(days=40)) * 3)
        agent.wait(lambda: any("older than the windows" in notice for notice in agent.notices))
        agent.wait(lambda: agent.console.windows[-1].lines.late == 3)
    assert agent.console.windows[-1].lines.parsed == 4
    assert agent.console.total() == 1
    assert sum("older than the windows" in notice for notice in agent.notices) == 1


def test_a_changed_query_starts_again_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = [f"{line}\n" for line in lines(200, 42, with_time=False)]
    (tmp_path / "access.log").write_text("".join(log[:150]))
    with Agent(tmp_path, monkeypatch, tmp_path / "state") as agent:
        agent.wait(lambda: agent.console.total() == 150)
    with (tmp_path / "access.log").open("a") as file:
        file.write("".join(log[150:]))
    with Agent(tmp_path, monkeypatch, tmp_path / "state", "SELECT count(*) AS n FROM access") as other:
        other.wait(lambda: other.console.total() == 50)
    assert any("its query changed" in notice for notice in other.notices)


def test_two_agents_on_one_state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "access.log").write_text("".join(f"{line}\n" for line in lines(10, 1, with_time=False)))
    with Agent(tmp_path, monkeypatch, tmp_path / "state") as first:
        first.wait(lambda: first.console.total() == 10)
        second = Agent(tmp_path, monkeypatch, tmp_path / "state")
        with second:
            pass
        assert isinstance(second.failure, StateError)
        assert "another" in str(second.failure)


def test_a_query_that_cannot_run_names_its_place_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(
        tmp_path, monkeypatch, tmp_path / "state", "SELECT nothing, count(*) FROM access GROUP BY nothing"
    )
    with agent:
        pass
    assert isinstance(agent.failure, ConfigError)
    assert "elf.toml" in str(agent.failure)
    assert "nothing" in str(agent.failure)
    assert agent.failure.exit_code == 78
