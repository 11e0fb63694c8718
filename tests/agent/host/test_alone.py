"""An agent in no mesh: the node of a mesh of one, without a transport, whose state a mesh takes over later."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from types import MappingProxyType
from typing import Any

import pytest

from elf.agent.config.config import parse
from elf.agent.control import protocol as w
from elf.agent.host.host import Host
from elf.agent.host.identity import SECRET, read_secret
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import ALL_TIME, JobSpec
from elf.jobmaster.directory.versions import version_of
from elf.srt.codec import wire
from elf.srt.messages.results import Put
from elf.srt.security.certificates import Authority, Keys, Trust
from elf.srt.security.items import sign_item
from tests.agent.host.test_streams import Output, stand_in
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.mesh_lines import SOURCES

ALONE = """\
[agent]
name = "web1"
state_dir = "state"

[[source]]
name = "access"
path = "access.log"
format = "combined"
start = "beginning"
"""
JOINED = ALONE.replace("[agent]", '[agent]\nlisten = "127.0.0.1:0"\nsecurity = "none"')
SECURE = ALONE.replace("[agent]", '[agent]\nlisten = "127.0.0.1:0"') + '[keys]\nbundle = "web1.keys"\n'
SQL = "SELECT window, count(*) AS hits FROM access GROUP BY window(time, '10 seconds')"
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
AGES_US = 10**15
"""A new log begins with the oldest pane that is kept, and these lines are old."""
WINDOW_US = 10_000_000


class Log:
    """A log, and the truth about it. write: lines of these seconds after noon."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.log"
        self.hits: Counter[int] = Counter()

    def write(self, seconds: range) -> None:
        with self.path.open("a") as file:
            for second in seconds:
                at = NOON + timedelta(seconds=second)
                file.write(f'192.0.2.7 - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET /a HTTP/1.1" 200 12 "-" "-"\n')
                self.hits[int(at.timestamp()) * 1_000_000 // WINDOW_US * WINDOW_US] += 1


async def serve(
    folder: Path,
    text: str,
    last: int,
    start: Keys | None = None,
    keys: Keys | None = None,
    about: Mapping[str, Any] = MappingProxyType({"keep_us": AGES_US}),
    until: Callable[[], bool] = lambda: True,
) -> tuple[Host, dict[int, int]]:
    """Run an agent until the window that begins `last` seconds after noon is final. Returns it with the hits in final windows.
    start: start the job, signed by these keys. about: what its spec has. until: then it ends."""
    config = parse(text, folder / "elf.toml", environ={})
    host = Host(config, keys, Trust(keys.authority) if keys is not None else None, lambda _: None)
    stop = asyncio.Event()
    running = asyncio.create_task(host.run(stop))
    control = folder / "state" / "control.sock"
    while not control.exists() and not running.done():
        await asyncio.sleep(0.001)
    seen: dict[int, int] = {}
    if not running.done():
        if start is not None:
            version = version_of(compile_query(SQL, SOURCES), SQL)
            spec = JobSpec("hits", 1, "access", (version,), lateness_us=1_000_000, **about)
            host.submit(sign_item(start, spec.item()))
        async with aclosing(host.service.serve(w.JobWatch("hits"))) as answers:
            async for answer in answers:
                if isinstance(answer, w.Published):
                    put = wire.decode(answer.put)
                    assert isinstance(put, Put)
                    assert (put.agents_reporting, put.agents_expected) == (1, 1)
                    if put.status == "final":
                        seen[put.start] = put.rows[0][-1]
                if NOON_US + last * 1_000_000 in seen:
                    break
        while not until():
            await asyncio.sleep(0.001)
        stop.set()
    await running
    return host, seen


def test_an_agent_alone_goes_on_in_a_mesh_with_its_jobs_its_places_and_its_open_windows(
    tmp_path: Path,
) -> None:
    """First in one without keys, then in one with keys, which were issued for its id."""
    log, authority = Log(tmp_path), Authority()
    operator = authority.issue("ann", "operator", int(time()))

    async def main() -> None:
        log.write(range(37))  # the fourth window is open
        alone, first = await asyncio.wait_for(serve(tmp_path, ALONE, 20, start=operator), WAIT_S)
        assert alone.transport.address == ""
        log.write(range(37, 55))
        joined, second = await asyncio.wait_for(serve(tmp_path, JOINED, 40), WAIT_S)
        assert joined.node.id == alone.node.id
        assert joined.transport.address.startswith("127.0.0.1:")
        log.write(range(55, 65))
        secret = read_secret(tmp_path / "state" / SECRET)
        keys = authority.issue("web1", "agent", int(time()), secret=secret)
        secure, third = await asyncio.wait_for(serve(tmp_path, SECURE, 50, keys=keys), WAIT_S)
        assert (secure.node.id, keys.id) == (alone.node.id, alone.node.id)
        assert set(first.items()) <= set(second.items())
        assert first | second | third == {at: hits for at, hits in log.hits.items() if at != max(log.hits)}

    asyncio.run(main())


def test_a_job_of_all_time_counts_lines_older_than_it_retains_and_a_restart_writes_no_window_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two months and two hours old, and in a file that was rotated before the agent ran first; it keeps an hour."""
    log, output = Log(tmp_path), Output()
    stand_in(monkeypatch, output)
    text = ALONE.replace("access.log", "access.log*") + '[[sink]]\nname = "out"\nconsole = "json"\n'
    operator = Authority().issue("ann", "operator", int(time()))

    def printed() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in output.rows:
            at = datetime.fromisoformat(row["window"]["start"])
            assert row["_elf"]["status"] == "final"
            found.setdefault(int(at.timestamp()) * 1_000_000, []).append(row["hits"])
        return found

    async def main() -> None:
        log.write(range(-5_200_000, -5_199_900))
        log.write(range(-7_205, -7_100))
        log.write(range(300))
        log.path.rename(tmp_path / "access.log.1")
        log.write(range(300, 395))
        about = {"sinks": ("out",), "since_us": ALL_TIME}
        last = NOON_US + 370_000_000
        await asyncio.wait_for(
            serve(tmp_path, text, 370, start=operator, about=about, until=lambda: last in printed()), WAIT_S
        )
        before = printed()
        assert min(before) == NOON_US - 5_200_000_000_000
        log.write(range(395, 440))
        last = NOON_US + 420_000_000
        await asyncio.wait_for(serve(tmp_path, text, 420, until=lambda: last in printed()), WAIT_S)
        found = printed()
        assert found.keys() > before.keys()
        assert found == {at: [hits] for at, hits in log.hits.items() if at in found}
        assert log.hits.keys() - found.keys() <= set(sorted(log.hits)[-2:])

    asyncio.run(main())


@pytest.mark.slow
def test_a_backlog_of_many_more_windows_than_are_retained_reaches_its_sink_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule Backlog*: its windows are read far faster than standard output takes them, and only a minute is retained."""
    log, output = Log(tmp_path), Output()
    stand_in(monkeypatch, output)
    text = (
        ALONE
        + '[mesh]\nframe_max = "64KiB"\noutbox_max = "64KiB"\n[[sink]]\nname = "out"\nconsole = "json"\n'
    )
    operator = Authority().issue("ann", "operator", int(time()))
    log.write(range(0, 6_000, 10))
    about = {"sinks": ("out",), "since_us": ALL_TIME, "keep_us": 60_000_000}

    def printed() -> list[int]:
        return [int(datetime.fromisoformat(row["window"]["start"]).timestamp()) for row in output.rows]

    last = int(NOON.timestamp()) + 5_970

    async def main() -> None:
        done = serve(tmp_path, text, 5_970, start=operator, about=about, until=lambda: last in printed())
        await asyncio.wait_for(done, WAIT_S)

    asyncio.run(main())
    assert printed()[:598] == [int(NOON.timestamp()) + at for at in range(0, 5_980, 10)]
    assert {row["hits"] for row in output.rows} == {1}


@pytest.mark.process
def test_it_loads_neither_sockets_nor_an_event_loop_of_the_mesh() -> None:
    code = (
        "import sys; from elf.agent.host.startup import light_event_loop; light_event_loop(with_uvloop=False); "
        "import elf.agent.host.process, elf.agent.host.host; print(sorted({'zmq', 'uvloop', 'nacl', '_ssl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
