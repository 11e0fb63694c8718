"""What every kind of sink that delivers messages promises (`elf.sinks.delivery.contract`), against the real receiver of each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from elf.sinks.delivery.command import CommandCarrier
from elf.sinks.delivery.contract import Carrier, DeliveryError, WindowMessage
from elf.sinks.delivery.jsonl import JsonlCarrier
from elf.sinks.delivery.mqtt import MqttCarrier
from elf.sinks.delivery.prometheus import RemoteWriteCarrier
from elf.sinks.delivery.webhook import WebhookCarrier
from elf.sinks.results.carrier import ResultsCarrier
from elf.sinks.spec import Broker, Hook
from tests.rigs.agents.prometheus import prometheus
from tests.sinks.delivery.endpoint import Endpoint, endpoint_in_thread
from tests.sinks.delivery.mosquitto import PATIENCE_S, mosquitto, subscribed

pytestmark = pytest.mark.process
MESSAGE = WindowMessage("id", "hits", "v1", "final", "1.0.1", "ff", b"", False, 3600, ("x",))
COLUMNS = (("x", "string"), ("v", "bigint"))
BEGIN_S = int(time.time()) - 600


class Rig:
    """A sink. read: the numbers of the messages that its receiver has got since the last call, in order; waits for so many.
    set_down: stop the receiver, or start it again."""

    def __init__(
        self,
        carrier: Callable[[], Carrier],
        read: Callable[[int], list[int]],
        set_down: Callable[[bool], None],
    ) -> None:
        self.carrier, self.read, self.set_down = carrier, read, set_down


def message(n: int, size: int = 0) -> WindowMessage:
    body = b'{"n":%d,"rows":[{"x":"%s","v":%d},\n{"x":"\\n\xc3\xa9","v":%d}]}' % (n, b"x" * size, n, n)
    at_us = (BEGIN_S + n) * 1_000_000
    return replace(MESSAGE, id=f"{n:032x}", body=body, start_us=at_us, end_us=at_us, columns=COLUMNS)


def number_of(body: bytes) -> int:
    """Of a body that arrived whole."""
    found = json.loads(body)
    assert found["rows"][1] == {"x": "\n\u00e9", "v": found["n"]}
    return int(found["n"])


@contextmanager
def mqtt(folder: Path) -> Iterator[Rig]:
    with mosquitto(folder) as broker, subscribed(broker.port, durable=True) as inbox:
        about = Broker("127.0.0.1", broker.port, False)

        def read(count: int) -> list[int]:
            found = [number_of(inbox.get(timeout=PATIENCE_S).payload) for _ in range(count)]
            while True:
                try:
                    found.append(number_of(inbox.get_nowait().payload))
                except Empty:
                    return found

        def set_down(is_down: bool) -> None:
            (broker.stop if is_down else broker.start)()

        yield Rig(lambda: MqttCarrier(about, "web1", "sink"), read, set_down)


@contextmanager
def webhook(folder: Path) -> Iterator[Rig]:
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("whsec_" + "A" * 32)
    with endpoint_in_thread() as endpoint:
        hook = Hook("127.0.0.1", endpoint.port, False, "/", secret=secret, is_private=True)
        yield Rig(
            lambda: WebhookCarrier(hook),
            lambda count: _posted(endpoint, count),
            lambda down: _refuse(endpoint, down),
        )


def _posted(endpoint: Endpoint, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count or not endpoint.requests.empty():
        body = endpoint.requests.get(timeout=PATIENCE_S).body
        found.append(number_of(json.dumps(json.loads(body)["data"]).encode()))
    return found


def _refuse(endpoint: Endpoint, is_down: bool) -> None:
    endpoint.answers = [b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"] * (10 if is_down else 0)


@contextmanager
def jsonl(folder: Path) -> Iterator[Rig]:
    lines, seen = folder / "lines", [0]

    def read(count: int) -> list[int]:
        found = [number_of(line) for path in lines.iterdir() for line in path.read_bytes().splitlines()]
        seen[0], new = len(found), found[seen[0] :]
        assert len(new) >= count
        return new

    def set_down(is_down: bool) -> None:
        if is_down:
            lines.rename(folder / "away")
            lines.touch()
        else:
            lines.unlink()
            (folder / "away").rename(lines)

    yield Rig(lambda: JsonlCarrier(lines, lambda: "2026-11-24"), read, set_down)


@contextmanager
def results(folder: Path) -> Iterator[Rig]:
    """Of files that are replaced, what arrives is the end; each window has two rows."""
    files, seen = folder / "files", [0]

    def read(count: int) -> list[int]:
        rows = pq.read_table(files / "hits").to_pylist()
        assert [row["x"] for row in rows[1::2]] == ["\n\u00e9"] * (len(rows) // 2)
        found = [row["v"] for row in rows[1::2]]
        seen[0], new = len(found), found[seen[0] :]
        assert len(new) >= count
        return new

    def set_down(is_down: bool) -> None:
        if is_down:
            files.rename(folder / "away")
            files.touch()
        else:
            files.unlink()
            (folder / "away").rename(files)

    yield Rig(lambda: ResultsCarrier(files), read, set_down)


@contextmanager
def command(folder: Path) -> Iterator[Rig]:
    got, program, seen = folder / "got", folder / "program", [0]
    program.write_text(f"#!/bin/sh\n(tr -d '\\n'; echo) > {got}.part && cat {got}.part >> {got}\n")
    program.chmod(0o755)

    def read(count: int) -> list[int]:
        found = [number_of(line) for line in got.read_bytes().splitlines()]
        seen[0], new = len(found), found[seen[0] :]
        assert len(new) >= count
        return new

    yield Rig(
        lambda: CommandCarrier((str(program),)), read, lambda down: program.chmod(0o644 if down else 0o755)
    )


@contextmanager
def remote_write(folder: Path) -> Iterator[Rig]:
    seen = [0]
    with prometheus(folder) as server:
        hook = Hook("127.0.0.1", server.port, False, "/api/v1/write", is_private=True)

        def read(count: int) -> list[int]:
            (found,) = server.query('elf_result_v{x="\\n\u00e9"}[1h]')
            assert [at - BEGIN_S for at, _ in found["values"]] == [int(value) for _, value in found["values"]]
            new = [int(value) for _, value in found["values"][seen[0] :]]
            seen[0] = len(found["values"])
            assert len(new) >= count
            return new

        def set_down(is_down: bool) -> None:
            (server.stop if is_down else server.start)()

        yield Rig(lambda: RemoteWriteCarrier(hook), read, set_down)


@pytest.fixture(params=[mqtt, webhook, jsonl, results, command, remote_write], ids=lambda kind: kind.__name__)
def rig(request: Any, tmp_path: Path) -> Iterator[Rig]:
    kind: Callable[[Path], AbstractContextManager[Rig]] = request.param
    with kind(tmp_path) as rig:
        yield rig


def do(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def test_messages_arrive_whole_each_once_in_the_order_of_the_calls(rig: Rig) -> None:
    async def work() -> None:
        carrier = rig.carrier()
        await carrier.connect()
        await asyncio.gather(*(carrier.deliver(message(n, 20_000 if n == 3 else 0)) for n in range(16)))
        await carrier.deliver(message(16))
        await carrier.close()

    do(work())
    assert rig.read(17) == list(range(17))


def test_what_is_acknowledged_has_arrived(rig: Rig) -> None:
    async def work() -> None:
        carrier = rig.carrier()
        await carrier.connect()
        for n in range(3):
            await carrier.deliver(message(n))
            assert rig.read(1) == [n]
        await carrier.close()

    do(work())


async def _connected_delivery(carrier: Carrier, what: WindowMessage) -> None:
    await carrier.connect()
    await carrier.deliver(what)


def test_a_receiver_that_is_down_fails_and_the_same_carrier_delivers_when_it_is_back(rig: Rig) -> None:
    async def work() -> None:
        carrier = rig.carrier()
        await carrier.connect()
        await carrier.deliver(message(0))
        assert rig.read(1) == [0]
        await asyncio.to_thread(rig.set_down, True)
        for _ in range(2):
            with pytest.raises(DeliveryError, match=r"\w"):
                await _connected_delivery(carrier, message(1))
            await carrier.close()
            await carrier.close()
        await asyncio.to_thread(rig.set_down, False)
        await carrier.connect()
        await carrier.deliver(message(2))
        await carrier.close()

    do(work())
    assert rig.read(1)[-1] == 2


def test_a_delivery_that_is_cut_short_is_repeated_and_nothing_is_half(rig: Rig) -> None:
    async def work() -> None:
        carrier = rig.carrier()
        await carrier.connect()
        for n in range(5):
            cut = asyncio.ensure_future(carrier.deliver(message(n, 100_000)))
            for _ in range(n):
                await asyncio.sleep(0)
            cut.cancel()
            await asyncio.gather(cut, return_exceptions=True)
            await carrier.close()
            await carrier.connect()
            await carrier.deliver(message(n, 100_000))
        await carrier.close()

    do(work())
    assert set(rig.read(5)) == set(range(5))
