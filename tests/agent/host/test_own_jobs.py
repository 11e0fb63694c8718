"""The jobs of an agent's own file, when the agent is a mesh of one: it submits them to itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elf.agent.config.config import parse
from elf.agent.host import own_jobs
from elf.agent.host.host import Host
from elf.errors import ConfigError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import ALL_TIME, JobSpec, decode_job
from elf.jobmaster.directory.versions import started, version_of
from elf.srt.messages.ids import job_id
from tests.agent.host.test_alone import ALONE
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.mesh_lines import SOURCES

pytestmark = pytest.mark.process

HEAD = ALONE + '[[sink]]\nname = "out"\nconsole = "json"\n'
SQL = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '10 seconds'), path"
NOW_US = 1_700_000_000_000_000


def job(name: str, sql: str = SQL, more: str = "") -> str:
    return f'[[job]]\nname = "{name}"\nsql = "{sql}"\n{more}\n'


class Agent:
    """An agent whose file changes between its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        (folder / "access.log").touch()

    def run(
        self, text: str, until: Callable[[], bool], begun: Callable[[Host], None] = lambda host: None
    ) -> None:
        asyncio.run(asyncio.wait_for(self._run(text, until, begun), WAIT_S))

    async def _run(self, text: str, until: Callable[[], bool], begun: Callable[[Host], None]) -> None:
        self.said.clear()
        self.host = Host(parse(text, self.folder / "elf.toml", environ={}), None, None, self.said.append)
        stop = asyncio.Event()
        running = asyncio.create_task(self.host.run(stop))
        while not (running.done() or self.host.is_started):
            await asyncio.sleep(0.001)
        if not running.done():
            begun(self.host)
        while not (running.done() or until()):
            await asyncio.sleep(0.001)
        stop.set()
        await running

    def spec(self, name: str) -> JobSpec:
        item = self.host.node.directory.get("job", job_id(name))
        assert item is not None
        return decode_job(item)

    def has_said(self, *texts: str) -> Callable[[], bool]:
        return lambda: all(any(text in said for said in self.said) for text in texts)


def test_the_file_says_which_jobs_run(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    first = HEAD + job("hits", more='sinks = "out"\nlateness = "2s"') + job("few")
    agent.run(first, agent.has_said("job hits: started, from", "job few: started, from"))
    hits, few = agent.spec("hits"), agent.spec("few")
    assert (hits.label, hits.since_us, hits.sinks, hits.lateness_us) == (
        "elf.toml",
        ALL_TIME,
        ("out",),
        2_000_000,
    )
    assert (few.label, few.since_us, few.sinks) == ("elf.toml", ALL_TIME, ("console",))
    assert few.lateness_us == 60_000_000, "what its format asks"

    second = HEAD + job("hits", SQL + " HAVING hits > 5") + job("late") + job("mine")
    said = agent.has_said(
        "hits: changed", "late: started", "few: is being stopped", "a command started a job mine"
    )

    def start_mine(host: Host) -> None:
        version = version_of(compile_query(SQL, SOURCES), SQL)
        spec = started(JobSpec("mine", 1, "access", (version,), since_us=NOW_US, line_us=NOW_US))
        host.submit(spec.item())

    agent.run(second, said, start_mine)
    assert agent.spec("late").since_us > NOW_US, (
        "it is new in the file: it counts from now on, as with a command"
    )
    changed = agent.spec("hits")
    assert (changed.number > hits.number, changed.since_us, changed.sinks) == (True, ALL_TIME, ("console",))
    assert (changed.lateness_us, changed.query.text) == (60_000_000, SQL + " HAVING hits > 5")
    assert (agent.spec("mine").label, agent.spec("mine").number) == ("", 1)
    (refusal,) = [text for text in agent.said if "mine" in text and "command" in text]
    assert refusal.startswith(f"{tmp_path / 'elf.toml'}:")
    assert "elf job stop mine" in refusal
    assert agent.spec("few").is_finishing or agent.spec("few").stopped

    agent.run(HEAD, agent.has_said("hits: is being stopped", "late: is being stopped"))
    assert not any("mine" in text and "stopped" in text for text in agent.said), "a command started it"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (job("bad", SQL.replace("count(*)", "cuont(*)")), "elf.toml:15: query: "),
        (
            job("bad", "SELECT count(*) FROM access", 'sinks = "out"'),
            "elf.toml:15: sinks: without a window nothing is ever final",
        ),
    ],
)
def test_a_job_that_cannot_run_ends_the_agent_and_none_is_started(
    tmp_path: Path, broken: str, expected: str
) -> None:
    agent = Agent(tmp_path)
    with pytest.raises(ConfigError) as caught:
        agent.run(HEAD + broken + job("hits"), lambda: False)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert agent.host.node.directory.get("job", job_id("hits")) is None


def test_an_agent_that_stops_as_the_submitting_process_ends_stops_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has ended, and the agent stops before it has taken note of that."""
    create, has_ended = asyncio.create_subprocess_exec, asyncio.Event()

    async def created(*about: Any, **more: Any) -> asyncio.subprocess.Process:
        child = await create(*about, **more)
        communicate = child.communicate

        async def communicate_late(data: bytes) -> tuple[bytes, bytes]:
            said = await communicate(data)
            has_ended.set()
            await asyncio.Event().wait()
            return said

        monkeypatch.setattr(child, "communicate", communicate_late)
        return child

    async def stop() -> None:
        config = parse(HEAD + job("hits"), tmp_path / "elf.toml", environ={})
        submitting = asyncio.create_task(own_jobs.submit_own(config, tmp_path / "socket", print))
        await has_ended.wait()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting

    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", created)
    asyncio.run(asyncio.wait_for(stop(), WAIT_S))
