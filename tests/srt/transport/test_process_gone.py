"""A neighbour's process that ends is known to be gone by its closed sockets; and by nothing less than all of them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elf.srt.messages.addresses import parse_address
from elf.srt.security.files import save_keys
from elf.srt.transport import process_gone
from elf.srt.transport.process_gone import is_refused
from tests.rigs.transport_rig import End, Rig, run, until

pytestmark = pytest.mark.process

CHILD = """
import asyncio, sys
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Contact, Ping
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Trust
from elf.srt.security.files import load_keys
from elf.srt.transport.transport import Transport

async def serve(path):
    keys = load_keys(path)
    trust = Trust(keys.authority)
    me = node_id(keys.curve_public)
    transport = Transport(me, 7, Parameters(), keys=keys, trust=trust, key=keys.curve_public, listen="127.0.0.1:0", instance=7,
        address_of=lambda node: None, notice=print,
        deliver=lambda source, message: transport.send(source, Ping(Contact(me, 7), message.number)))
    transport.start()
    print(transport.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve(sys.argv[1]))
"""


class Relay:
    """A proxy before a node. `close`: it is gone; `reset`: what goes through it is cut off, and it goes on."""

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self.accepted = 0

    async def open(self, port: int) -> str:
        """To that port; where it is reached itself."""

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                while data := await reader.read(1 << 16):
                    writer.write(data)
            except OSError:
                pass
            finally:
                writer.close()
                self._writers.discard(writer)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted += 1
            to, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pass_on(reader, back), pass_on(to, writer), return_exceptions=True)

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def close(self) -> None:
        self._server.close()
        self.reset()


async def relayed(rig: Rig, end: End) -> Relay:
    """A proxy before that end, whose address others know instead of the end's own."""
    relay = Relay()
    endpoint = await relay.open(end.transport.port)
    rig.addresses[end.id] = f"{endpoint}/{end.transport.address.partition('/')[2]}"
    return relay


async def met(a: End, b: End) -> None:
    """`a` has a connection to `b`."""
    a.ping(b, 1)
    await until(lambda: 1 in b.numbers)


def test_a_process_that_ends_is_gone_and_its_life_is_reported_once() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end(life=5)
        await met(a, b)
        b.transport.close()
        await until(lambda: a.gone)
        assert a.gone == [(b.id, 5)]
        assert not a.transport._checks
        endpoint = b.transport.address.partition("/")[0]
        assert [notice.text for notice in a.notices] == [
            f"{endpoint}: the connection was lost",
            f"{endpoint}: its process has ended",
        ]

    run(test)


def test_both_directions_of_a_process_that_ends_are_looked_at() -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end(life=5)
        await met(a, b)
        await met(b, a)
        b.transport.close()
        await until(lambda: a.gone)
        assert a.gone == [(b.id, 5)]

    run(test)


def child(rig: Rig, tmp_path: Path) -> tuple[subprocess.Popen[str], str]:
    """A process with a transport, and its address."""
    keys = rig.keys()
    save_keys(keys, tmp_path / "child.keys")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "child.keys")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    node = parse_address(address).id
    assert node is not None
    rig.addresses[node] = address
    return process, address


def test_a_process_that_is_killed_is_gone_and_one_that_is_stopped_is_not(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        process, address = child(rig, tmp_path)
        try:
            node = parse_address(address).id
            assert node is not None
            a.ping(node, 1)
            await until(lambda: a.numbers == [1])  # it has connected to here, too
            process.send_signal(signal.SIGSTOP)
            # Its kernel still accepts, so a stopped process looks like a slow one: neither to connected nodes …
            assert await is_refused(parse_address(address)) is False
            # … nor to who dials it now.
            b.ping(node, 1)
            assert a.gone == b.gone == []
            process.kill()
            await until(lambda: a.gone)
            assert a.gone == [(node, 7)]
            # Only who had its proof on a connection says so of it.
            await until(lambda: b.refused.get("no connection"))
            assert b.gone == []
        finally:
            process.kill()
            process.wait()

    run(test)


def test_a_connection_that_is_reset_on_the_way_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.srt.transport.dialer.STOOD_S", 0.0)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        relay = await relayed(rig, b)
        await met(a, b)
        accepted = relay.accepted
        relay.reset()
        await until(lambda: a.refused.get("connection lost"))
        await until(lambda: not a.transport._checks)
        assert relay.accepted >= accepted + 2  # a plain connect, and a new connection
        assert a.transport.counters.connections_out == 1
        assert a.gone == []
        assert a.restarted == []
        a.ping(b, 2)
        await until(lambda: 2 in b.numbers)
        relay.close()

    run(test)


def test_a_process_with_an_open_connection_to_here_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy before it, or its port, is; the process is not."""
    monkeypatch.setattr(process_gone, "PATIENCE_S", 0.05)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        relay = await relayed(rig, b)
        await met(a, b)
        await met(b, a)
        relay.close()
        await until(lambda: a.refused.get("connection lost"))
        await until(lambda: not a.transport._checks)
        assert a.gone == []
        b.ping(a, 2)
        await until(lambda: 2 in a.numbers)

    run(test)


def test_another_program_at_its_port_is_not_taken_for_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_gone, "PATIENCE_S", 0.1)
    monkeypatch.setattr("elf.srt.transport.dialer.STOOD_S", 0.0)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        await met(a, b)
        port = b.transport.port
        b.transport.close()
        other = rig.end(listen=f"127.0.0.1:{port}", is_listed=False)
        await until(lambda: a.refused.get("no connection"))
        await until(lambda: not a.transport._checks)
        assert a.gone == []
        assert a.restarted == []
        assert other.numbers == []

    run(test)


def test_a_later_life_that_answers_is_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.srt.transport.dialer.STOOD_S", 0.0)

    async def test(rig: Rig) -> None:
        a = rig.end()
        keys = rig.keys()
        b = rig.end(keys, life=5)
        await met(a, b)
        port = b.transport.port
        b.transport.close()
        again = rig.end(keys, life=6, listen=f"127.0.0.1:{port}")
        await until(lambda: a.restarted)
        assert a.restarted == [again.contact]
        assert a.gone == []

    run(test)


def test_a_process_that_never_proved_its_identity_cannot_be_gone() -> None:
    """A connection to an address that was only claimed; what happens to it proves nothing about the node."""

    async def test(rig: Rig) -> None:
        a, b, other = rig.end(), rig.end(), rig.end()
        rig.addresses[b.id] = f"127.0.0.1:{other.transport.port}/{b.transport.address.partition('/')[2]}"
        a.ping(b, 1)
        await until(lambda: a.refused.get("no connection"))
        other.transport.close()
        a.ping(b, 2)
        assert not a.transport._checks
        assert a.gone == []

    run(test)


def test_an_idle_connection_that_is_closed_here_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.srt.transport.dialer.IDLE_S", -1)

    async def test(rig: Rig) -> None:
        a, b = rig.end(), rig.end()
        await met(a, b)
        await until(lambda: a.transport.counters.connections_out == 0)
        assert not a.transport._checks
        assert a.gone == []

    run(test)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_plain_connect(host: str) -> None:
    async def test() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        address = parse_address(f"{host}:{server.sockets[0].getsockname()[1]}")
        assert await is_refused(address) is False
        server.close()
        await server.wait_closed()
        assert await is_refused(address) is True

    asyncio.run(test())


def test_a_name_that_leads_nowhere_is_no_refusal() -> None:
    assert asyncio.run(is_refused(parse_address("nowhere.invalid:1"))) is None
