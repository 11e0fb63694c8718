"""Real agents in one process, with keys and sockets, and what an operator sees of peers that do not keep to the rules: figures,
one line in the log, `elf mesh status`."""

from __future__ import annotations

import asyncio
import random
import re
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from elf.agent.config.config import parse
from elf.agent.control.status import nodes_to_ask, status_of
from elf.agent.control.survey import Survey
from elf.agent.host.host import Host
from elf.agent.host.metrics import metrics
from elf.agent.simulator.world.world import World
from elf.jobmaster.directory.audit import SLOTS, Audited, audit_item
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, Version, decode_agent
from elf.srt.codec.wire import encode
from elf.srt.messages.addresses import key_text
from elf.srt.messages.messages import (
    Contact,
    Frame,
    GossipItems,
    Item,
    Piece,
    Ping,
    Position,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import StatusReport, StatusRequest
from elf.srt.security.certificates import Authority, Keys, Trust
from elf.srt.security.items import sign_item
from elf.srt.transport import handshake
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.mesh_log_rig import Job, Log, Server, line_of, plan_of
from tests.rigs.transport_rig import NOW_S, Client, Rig

pytestmark = pytest.mark.process

AUTHORITY = Authority(bytes(range(32)))
CONFIG = """\
[agent]
name = "{name}"
state_dir = "state"
listen = "127.0.0.1:0"
seeds = [{seeds}]
[keys]
bundle = "x.keys"
[[source]]
name = "access"
path = "access.log"
"""


class Agent:
    """A host on the running loop."""

    def __init__(self, folder: Path, name: str, seeds: str = "", keys: Keys | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.said: list[str] = []
        self.keys = keys or AUTHORITY.issue(name, "agent", NOW_S)
        config = parse(CONFIG.format(name=name, seeds=seeds), folder / "elf.toml", environ={})
        self.host = Host(config, self.keys, Trust(AUTHORITY.public), self.said.append)
        self.stop = asyncio.Event()
        self.running = asyncio.create_task(self.host.run(self.stop))

    async def ready(self) -> Agent:
        control = self.host.config.agent.state_dir / "control.sock"
        await until(lambda: control.exists() or self.running.done())
        return self

    @property
    def address(self) -> str:
        return f'"{self.host.transport.address}"'

    def figure(self, name: str, **labels: str) -> float:
        """Of the page for Prometheus, summed where labels are left out."""
        found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", metrics(self.host, "1"), re.M)
        return sum(
            float(value) for told, value in found if all(f'{k}="{v}"' in told for k, v in labels.items())
        )

    def lines(self, text: str) -> list[str]:
        return [line for line in self.said if text in line]

    @property
    def neighbours(self) -> int:
        return len(self.host.node.overlay.acquaintances())


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.005)


class Two:
    """Two honest agents that know each other, and keys for hostile clients."""

    def __init__(self, a: Agent, b: Agent) -> None:
        self.a, self.b = a, b
        self.rig = Rig()
        self.rig.authority = AUTHORITY

    def client(self, keys: Keys | None = None) -> Client:
        return self.rig.client(self.a.host, keys or self.rig.keys("liar"))  # type: ignore[arg-type]

    async def proven(self, keys: Keys) -> Client:
        client = self.client(keys)
        client.send(client.proof(life=NOW_S))
        assert (await client.answer())[0] == handshake.PROOF
        return client

    async def keeps_working(self) -> None:
        """The two still hear each other."""
        before = self.a.host.transport.counters.messages_in, self.b.host.transport.counters.messages_in
        await until(
            lambda: (
                self.a.host.transport.counters.messages_in > before[0]
                and self.b.host.transport.counters.messages_in > before[1]
            )
        )
        assert self.a.neighbours >= 1
        assert self.b.neighbours >= 1
        assert not self.a.running.done()


def with_two(folder: Path, test: Callable[[Two], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        a = await Agent(folder / "a", "web1").ready()
        b = await Agent(folder / "b", "web2", a.address).ready()
        two = Two(a, b)
        try:
            await until(lambda: a.neighbours and b.neighbours)
            await test(two)
        finally:
            two.rig.close()
            for agent in (a, b):
                agent.stop.set()
            await asyncio.gather(a.running, b.running)

    asyncio.run(main())


def packet(*messages: bytes) -> bytes:
    return handshake.head(handshake.STRETCH) + b"".join(
        struct.pack("<I", len(each)) + each for each in messages
    )


def ping(keys: Keys) -> Ping:
    return Ping(Contact(keys.id, NOW_S), 1)


OTHER_VERSION = bytearray(encode(ping(AUTHORITY.issue("x", "agent", NOW_S))))
OTHER_VERSION[4] += 1
BAD: dict[str, tuple[Callable[[Keys], bytes], str]] = {
    "garbage": (lambda keys: b"\xff" * 50, "check the address"),
    "truncated": (lambda keys: packet(encode(ping(keys))[:-3]), "Ping"),
    "oversized": (lambda keys: packet()[:6] + struct.pack("<I", 1 << 30) + encode(ping(keys)), "a length of"),
    "another's id": (lambda keys: packet(encode(Ping(Contact(b"x" * 16, 1), 1))), "names"),
    "newer packets": (lambda keys: b"ELFT\x02\x02", "upgrade the older one"),
    "older packets": (lambda keys: b"ELFT\x00\x02", "upgrade the older one"),
    "another wire version": (lambda keys: packet(bytes(OTHER_VERSION)), "upgrade the older one"),
}


@pytest.mark.parametrize("kind", BAD)
def test_wrong_messages_of_a_certified_peer(kind: str, tmp_path: Path) -> None:
    """Refused, counted, and reported once for this peer, however often it tries."""
    make, text = BAD[kind]

    async def test(two: Two) -> None:
        keys = two.rig.keys("liar")
        for _ in range(3):
            client = await two.proven(keys)
            client.send(make(keys))
            assert (await client.answer())[0] == handshake.REFUSAL
        assert two.a.figure("elf_messages_refused_total", reason="garbage") == 3
        assert len(two.a.lines(text)) == 1, two.a.said
        await two.keeps_working()

    with_two(tmp_path, test)


def test_certificates_that_are_wrong_expired_or_revoked(tmp_path: Path) -> None:
    async def test(two: Two) -> None:
        revoked = two.rig.keys("gone")
        assert two.a.host.trust is not None
        two.a.host.trust.revoke(revoked.certificate.serial)
        cases = {
            "same authority issued": Authority().issue("x", "agent", NOW_S),
            "elf keys renew": two.rig.keys("old", now_s=NOW_S - 900_000, days=5),
            "issue new keys": revoked,
            "agents need a key with the role agent": two.rig.keys("ann", role="operator"),
        }
        for text, keys in cases.items():
            for _ in range(2):
                client = two.client(keys)
                client.send(client.proof())
                assert (await client.answer())[0] == handshake.REFUSAL
            assert len(two.a.lines(text)) == 1, (text, two.a.said)
        assert two.a.figure("elf_messages_refused_total", reason="proof") == 2 * len(cases)
        await two.keeps_working()

    with_two(tmp_path, test)


def test_an_agent_with_the_key_of_another(tmp_path: Path) -> None:
    async def test(two: Two) -> None:
        for _ in range(2):
            client = two.client(two.b.keys)
            client.send(client.proof(life=1 << 40))
            assert (await client.answer())[0] == handshake.REFUSAL
        assert len(two.a.lines("two agents run with one key")) == 1
        assert two.a.figure("elf_messages_refused_total", reason="twin") == 2
        await two.keeps_working()

    with_two(tmp_path, test)


def test_frames_that_come_again_or_too_late_are_counted(tmp_path: Path) -> None:
    async def test(two: Two) -> None:
        keys = two.rig.keys("liar")
        client = await two.proven(keys)
        mine = two.a.host.node.life << 16
        now, earlier = (NOW_S << 16, mine), ((NOW_S - 5) << 16, mine)
        for session in (now, now, now, earlier, earlier):
            client.send(packet(encode(Frame(session, 1, 0, 1 << 20, Piece(b"\x01")))))
        await until(lambda: two.a.figure("elf_frames_ignored_total", reason="earlier life") == 2)
        assert two.a.figure("elf_frames_ignored_total", reason="repeated") == 2
        client.send(packet(encode(Frame(now, 2, 0, 1 << 20, Piece(b"\xff" * 40)))))
        await until(lambda: two.a.lines("the link begins anew"))
        assert two.a.figure("elf_notices_total", kind="undecodable") == 1
        await two.keeps_working()

    with_two(tmp_path, test)


def test_items_that_are_not_believed_are_counted_by_reason(tmp_path: Path) -> None:
    async def test(two: Two) -> None:
        keys = two.rig.keys("liar")
        victim = AgentAdvert("web2", ("access",), 1 << 40).item(two.b.keys.id)
        bad = Item("agent", keys.id, (1, 0), b"\x91\xa1\x80")  # its text is no text
        directory = two.a.host.node.directory
        client = await two.proven(keys)
        for _ in range(2):
            for item in (sign_item(keys, victim, NOW_S), victim, sign_item(keys, bad, NOW_S)):
                place = directory._place(item.kind, item.name)
                client.send(packet(encode(GossipItems(place, (item,)))))
        await until(lambda: two.a.figure("elf_items_refused_total") == 4)
        assert two.a.figure("elf_items_refused_total", reason="identity") == 2
        assert two.a.figure("elf_items_refused_total", reason="forged") == 2
        await until(lambda: len(two.a.lines("their signatures are not valid")) == 1)
        await two.keeps_working()
        assert len(two.a.lines("their signatures are not valid")) == 1
        await until(lambda: directory.get("agent", two.b.keys.id) is not None)
        held = directory.get("agent", two.b.keys.id)
        assert held is not None
        assert decode_agent(held).incarnation < 1 << 40

    with_two(tmp_path, test)


def test_a_job_outside_its_operators_rights_is_logged_with_what_to_do_and_audits_are_of_their_agent(
    tmp_path: Path,
) -> None:
    async def test(two: Two) -> None:
        keys = two.rig.keys("liar")
        eve = AUTHORITY.issue("eve", "operator", NOW_S, jobs=("web-*",))
        directory = two.a.host.node.directory
        client = await two.proven(keys)

        def send(item: Item) -> None:
            place = directory._place(item.kind, item.name)
            client.send(packet(encode(GossipItems(place, (item,), agents=directory._agents))))

        def of(node: bytes, slot: int) -> Item:
            made = audit_item(directory, node, Audited("stop", "db", 1, "v", "taken", "", "ann"), NOW_S)
            return replace(made, name=node + bytes([slot]))

        # Rule Roster*: a new job is looked at only if its sender knows the same agents.
        await until(lambda: len(list(directory.items("agent"))) == 2)
        send(sign_item(eve, JobSpec("db", 1, "access", (Version("d", b"plan", "SELECT 1"),)).item(), NOW_S))
        await until(lambda: two.a.figure("elf_items_refused_total", reason="jobs") == 1)
        (line,) = two.a.lines("their signatures are not valid")
        assert line.endswith(
            "'eve' may not change job 'db', only jobs named web-*; sign it with keys of an operator who may, or issue some: elf "
            "keys issue NAME --role operator --jobs PATTERN"
        )
        send(sign_item(keys, of(two.b.keys.id, 0), NOW_S))
        await until(lambda: two.a.figure("elf_items_refused_total", reason="identity") == 1)
        send(sign_item(keys, of(keys.id, SLOTS), NOW_S))
        send(sign_item(keys, of(keys.id, SLOTS - 1), NOW_S))
        await until(lambda: list(directory.items("audit")))
        assert [item.name for item in directory.items("audit")] == [keys.id + bytes([SLOTS - 1])]
        await two.keeps_working()

    with_two(tmp_path, test)


# What `elf mesh status` says of a configuration that is wrong.


def test_a_seed_that_does_not_exist_or_is_another_is_named(tmp_path: Path) -> None:
    async def test(two: Two) -> None:
        other = two.rig.keys("other")
        endpoint, _, _ = two.a.host.transport.address.partition("/")
        wrong = f'"{endpoint}/{key_text(other.curve_public)}", "127.0.0.1:9/{key_text(other.curve_public)}"'
        c = await Agent(tmp_path / "c", "web3", wrong).ready()
        try:
            await until(lambda: len(c.host.node.status(1, 0).problems) == 2)
            problems = " | ".join(c.host.node.status(1, 0).problems)
            assert endpoint in problems
            assert "127.0.0.1:9" in problems
        finally:
            c.stop.set()
            await c.running

    with_two(tmp_path, test)


def test_a_clock_and_an_address_that_are_wrong_are_named() -> None:
    world = World(1, Parameters())
    actors = [world.add_host(f"web{n}") for n in range(3)]
    world.start(actors[0])
    node = actors[0].node
    assert node is not None
    for actor in actors[1:]:
        world.start(actor, [node.overlay.me])
    world.run_until(3_000_000)
    adverts = {item.name: decode_agent(item) for item in node.directory.items("agent")}
    assert len(adverts) == 3
    survey: Survey[StatusReport] = Survey(StatusRequest(1), nodes_to_ask(node, adverts), 10)
    asked = 10_000_000
    survey.answers = {
        actors[0].id: (StatusReport(1, asked, version="1"), asked, asked),
        actors[1].id: (StatusReport(1, asked + 9_000_000, version="1"), asked, asked + 1_000),
    }
    survey.silent = {actors[2].id}
    problems = status_of(node, adverts, survey).problems
    assert any("web1: its clock is 9.0 s ahead" in each and "NTP" in each for each in problems)
    assert any("web2: does not answer" in each and "advertise" in each for each in problems)


# A log that is shorter than its place in the mesh.


def test_a_log_shorter_than_its_position_is_reported_and_continues(tmp_path: Path) -> None:
    for folder in ("log", "state"):
        (tmp_path / folder).mkdir()
    server = Server(tmp_path / "log", random.Random(7))
    log = Log(server, tmp_path / "state")
    job = Job(log, (line_of(plan_of(), 1, 0),))
    server.write(50)
    job.settle()
    ((slot, at),) = job.committed.items()
    job.committed[slot] = Position(at.offset + 100_000)
    job.lose()
    job.settle()
    assert log.source.counters.beyond == 1
    (said,) = [text for text in log.source.take_notices() if "are counted, and it now has" in text]
    assert said == (
        f"access: {server.log}: {at.offset + 100_000} bytes of it are counted, and it now has {at.offset}: it was cut short, or "
        "a shorter one took its place; reading continues at its end, and windows that lack lines do not count this agent"
    )
    assert job.gaps == [slot]
    before = log.source.totals.parsed
    server.write(20)
    server.finish_line()
    job.settle()
    assert log.source.totals.parsed > before
    assert len(job.committed) == 2, "what follows is another part of the file"
    log.source.close()
