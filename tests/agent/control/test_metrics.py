"""An agent's pages: metrics in Prometheus' format, its health, and errors for all other requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.host import metrics as p
from elf.agent.host.job_costs import JobCosts
from elf.agent.host.memory import Memory
from elf.agent.host.metrics import MetricsServer, exposition, health, metrics
from elf.agent.simulator.world.world import World
from elf.agent.work.feed import Totals
from elf.agent.work.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.srt.messages.addresses import parse_address
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import Failing
from elf.srt.transport.counters import Counters
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of

SECOND = 1_000_000


@pytest.fixture
def host() -> Any:
    """A host for the metrics of a simulated node, with plausible values for the rest."""
    world = World(1, Parameters())
    actors = [world.add_host(f"web{i}") for i in range(2)]
    world.start(actors[0])
    assert actors[0].node is not None
    world.start(actors[1], [actors[0].node.overlay.me])
    world.run_until(3 * SECOND)
    world.start_job(actors[0], spec_of(plan_of()))
    world.run_until(6 * SECOND)
    nodes = [actor.node for actor in actors if actor.node is not None]
    node = next(node for node in nodes if any(seat.master for seat in node.seats.values()))
    counters = Counters(messages_in=7, bytes_out=99)
    counters.refused["id"] += 2
    source = SimpleNamespace(
        lag_bytes={'/var/log/a "b"\\c\n.log': 17},
        totals=Totals(lines=10, parsed=10),
        counters=SimpleNamespace(front_bytes=1, again_bytes=2, gaps=0, beyond=1),
        unparsed=Unparsed("access"),
    )
    budget = Budget(64 << 20)
    budget.reserve("source access", 3_000)
    budget.charge(500)
    owns = iter([1_000_000])
    memory = Memory(64 << 20, lambda: 8_000_000, lambda: next(owns, 6_000_000))
    costs = JobCosts()
    costs.spent([(next(iter(node.seats)), 2_500_000_000)])
    for at_s in range(2):
        costs.look(at_s, node.sent_bytes)
    return SimpleNamespace(
        node=node,
        memory=memory,
        transport=SimpleNamespace(counters=counters, queued_bytes={nodes[1].id: 5}),
        sources={"access": source},
        budget=budget,
        store=SimpleNamespace(writes=3, syncs=2, is_refused=False, queued_bytes=40),
        notice_log=SimpleNamespace(counts={"link": 4}),
        notary=SimpleNamespace(refused={"forged": 3}),
        sinks=SimpleNamespace(
            stored=8, is_refused=False, queued_bytes=70, delivering=lambda now: (), families=tuple
        ),
        single_instance=SimpleNamespace(rival=None),
        service=SimpleNamespace(held_bytes=0),
        clock_us=lambda: 0,
        started_s=1.5,
        costs=costs,
        peers=SimpleNamespace(name_of=lambda peer: peer.hex()[:4]),
        failing=lambda: (Failing(next(iter(node.seats)), "KeyError: 'x'", 2, 1_000_000),),
    )


def parsed(text: str) -> dict[str, float]:
    """Each sample by its name and labels. The format is checked on the way: HELP, TYPE, then samples of that name."""
    found: dict[str, float] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert not any(key.split("{")[0] == name for key in found), "a family comes twice"
        elif line.startswith("# TYPE "):
            assert line.split()[2:] in ([name, "counter"], [name, "gauge"])
            assert name.endswith("_total") == line.endswith("counter")
        else:
            sample = re.fullmatch(r'(\w+)(\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (\S+)', line)
            assert sample is not None, line
            assert sample[1] == name
            key = sample[1] + (sample[2] or "")
            assert key not in found
            found[key] = float(sample[3])
    return found


def test_figures(host: Any) -> None:
    found = parsed(metrics(host, "1.2.3"))
    assert found['elf_build_info{version="1.2.3"}'] == 1
    assert found['elf_source_lag_bytes{source="access",file="/var/log/a \\"b\\"\\\\c\\n.log"}'] == 17
    assert found['elf_source_lines_total{source="access",outcome="parsed"}'] == 10
    assert found['elf_job_role{job="hits",role="master"}'] == 1
    assert found['elf_job_takeovers_total{job="hits"}'] == 1
    assert found['elf_job_epoch{job="hits"}'] >= 1
    assert found['elf_job_late_lines_total{job="hits"}'] == 0
    assert found['elf_job_failing{job="hits",reason="KeyError: \'x\'"}'] == 1
    assert found['elf_job_cpu_seconds_total{job="hits"}'] == 2.5
    assert found['elf_job_sent_bytes_total{job="hits"}'] == host.node.sent_bytes[next(iter(host.node.seats))]
    assert found['elf_job_groups{job="hits"}'] == 0
    assert found['elf_job_memory_bytes{job="hits"}'] == 0
    assert found["elf_memory_max_bytes"] == 64 << 20
    assert found["elf_memory_bare_bytes"] == 3_000_000
    assert found["elf_memory_bytes"] == 5_000_000
    owners = {name: size for name, size in found.items() if name.startswith("elf_memory_owner_bytes")}
    assert sum(owners.values()) == 5_000_000
    known = {"panes": 500, "source access": 3_000, "journal": 40, "windows": 70}
    for owner, size in known.items():
        assert owners[f'elf_memory_owner_bytes{{owner="{owner}"}}'] == size
    assert owners['elf_memory_owner_bytes{owner="links"}'] >= 5
    assert found['elf_messages_total{direction="in"}'] == 7
    assert found['elf_messages_refused_total{reason="id"}'] == 2
    assert found['elf_items_refused_total{reason="forged"}'] == 3
    assert found['elf_source_beyond_total{source="access"}'] == 1
    assert found['elf_frames_ignored_total{reason="repeated"}'] >= 0
    assert sum(key.startswith("elf_queue_bytes{") for key in found) == 1
    assert sum(key.startswith("elf_link_credit_bytes{") for key in found) == len(host.node.links) > 0
    assert found["elf_neighbours"] == 1
    assert found["elf_disk_syncs_total"] == 2
    assert found["elf_sink_windows_total"] == 8


def test_a_family_without_samples_is_left_out() -> None:
    assert exposition(iter([("a", "A.", []), ("b", "B.", [({}, 0.5)]), ("c_total", "C.", [({}, 2)])])) == (
        "# HELP b B.\n# TYPE b gauge\nb 0.5\n# HELP c_total C.\n# TYPE c_total counter\nc_total 2\n"
    )


def test_health(host: Any) -> None:
    assert health(host) == ""
    host.sinks.is_refused = True
    assert "sink" in health(host)
    host.store.is_refused = True
    assert "disk" in health(host)
    alone = World(2, Parameters())
    actor = alone.add_host("web9")
    alone.start(actor, [host.node.overlay.me])
    host.node = actor.node
    assert "seed" in health(host)


def with_server(trouble: str, do: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        server = MetricsServer(parse_address("127.0.0.1:0"), lambda: "figures\n", lambda: trouble)
        await server.start()
        try:
            await do(server.port)
        finally:
            await server.close()

    asyncio.run(run())


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /metrics HTTP/1.1", "200 OK", "figures\n"),
        ("GET /metrics?x=1 HTTP/1.0", "200 OK", "figures\n"),
        ("HEAD /metrics HTTP/1.1", "200 OK", ""),
        ("GET /healthz HTTP/1.1", "503 Service Unavailable", "no disk\n"),
        ("GET / HTTP/1.1", "404 Not Found", "there are /metrics and /healthz\n"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed", "only GET\n"),
        ("GET /metrics", "400 Bad Request", "not a request of HTTP/1\n"),
        ("\x16\x03\x01", "400 Bad Request", "not a request of HTTP/1\n"),
    ],
)
def test_pages(request_line: str, status: str, body: str) -> None:
    async def do(port: int) -> None:
        head, _, found = (await ask(port, f"{request_line}\r\nHost: a\r\n\r\n".encode())).partition(
            b"\r\n\r\n"
        )
        assert head.decode().splitlines()[0] == f"HTTP/1.1 {status}"
        assert found.decode() == body
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        assert int(length[1]) == len(body) or request_line.startswith("HEAD")

    with_server("no disk", do)


@pytest.mark.process
def test_all_is_well() -> None:
    async def do(port: int) -> None:
        assert (await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nok\n")

    with_server("", do)


@pytest.mark.process
def test_who_sends_too_much_or_nothing_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "REQUEST_S", 0.05)

    async def do(port: int) -> None:
        assert await ask(port, b"GET /" + b"x" * 2 * p.REQUEST_BYTES_MAX) == b""
        assert await ask(port, b"") == b""
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n") == b""
        assert b"figures" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    with_server("", do)


@pytest.mark.process
def test_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "CONNECTIONS_MAX", 2)

    async def do(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        for _ in range(100):
            if b"figures" in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"):
                return
        raise AssertionError("no room again")

    with_server("", do)
