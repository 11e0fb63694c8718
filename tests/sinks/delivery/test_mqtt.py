"""One connection to an MQTT broker: what it accepts, what it refuses, and what nobody sees."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.sinks.console.jsonlines import JsonLines, window_object
from elf.sinks.delivery.contract import DeliveryError, RefusedError, WindowMessage
from elf.sinks.delivery.mqtt import MqttCarrier, state_topic, topic_of
from elf.sinks.spec import BROKER_EXPECTED, Broker, parse_broker
from tests.sinks.delivery.mosquitto import PATIENCE_S, free_port, mosquitto, subscribed

COLUMNS = (ColumnInfo("path", "string"), ColumnInfo("hits", "bigint"))
MESSAGE = WindowMessage("id1", "hits", "v1", "final", "1.0.1", "ff", b'{"rows":[]}', True, 3600)


def local(port: int, **about: Any) -> Broker:
    return Broker("127.0.0.1", port, False, **about)


def do(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def deliver(broker: Broker, *messages: WindowMessage) -> MqttCarrier:
    carrier = MqttCarrier(broker, "web1", "broker")
    await carrier.connect()
    try:
        await asyncio.gather(*(carrier.deliver(each) for each in messages))
    finally:
        await carrier.close()
    return carrier


# What needs no broker.


def test_names_cannot_change_the_level_of_a_topic_nor_be_wildcards() -> None:
    assert topic_of("main", "hits-1_a.b") == "elf/v1/main/hits-1_a.b/window"
    assert topic_of("a/b", "+#/$SYS\n\0é%") == "elf/v1/a%2Fb/%2B%23%2F%24SYS%0A%00%C3%A9%25/window"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mqtt://b", Broker("b", 1883, False)),
        ("mqtts://b.example.com/", Broker("b.example.com", 8883, True)),
        ("mqtts://10.0.0.1:1", Broker("10.0.0.1", 1, True)),
        ("mqtt://[::1]:1884", Broker("::1", 1884, False)),
    ],
)
def test_addresses_of_brokers(text: str, expected: Broker) -> None:
    assert parse_broker(text) == expected
    assert parse_broker(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "b", "b:1883", "http://b", "mqtt://", "mqtt://u:p@b", "mqtt://b:0", "mqtt://b:x", "mqtt://b/t", 7],
)
def test_what_is_no_address_of_a_broker(text: object) -> None:
    with pytest.raises(ValueError, match="mqtt://HOST:PORT") as caught:
        parse_broker(text)
    assert str(caught.value) == BROKER_EXPECTED


class _Lines:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.text = b""

    def isatty(self) -> bool:
        return False

    def write(self, block: bytes) -> int:
        self.text += block
        return len(block)


@pytest.mark.parametrize("status", ["final", "withdrawn"])
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_message_has_the_rows_that_watch_prints(status: str, others: int, count: int) -> None:
    if (status == "withdrawn" or not count) and (others or count):
        return  # there is no such window
    rows = [(f"/a\n\u2028{at}", at) for at in range(count)]
    window = Window("hits", "v", 0, 1_000_000, status, (1, 7, 2), Lines(3, 3), COLUMNS, rows, others=others)
    stream: Any = _Lines()
    JsonLines(stream, meta=True).put(window)
    lines = [json.loads(line) for line in stream.text.splitlines()] if count else []
    found = json.loads(window_object(window))
    told = [*found["rows"], *([found["other"]] if others else [])]
    assert told == [{key: value for key, value in line.items() if key != "_elf"} for line in lines]
    assert all({**found["_elf"], **line["_elf"]} == line["_elf"] for line in lines)
    assert (found["_elf"]["status"], found["_elf"]["revision"]) == (status, [1, f"{7:048x}", 2])


# With a broker.


@pytest.mark.process
def test_only_the_newest_window_is_retained(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        older = replace(MESSAGE, id="id0", body=b"older", is_newest=False)
        do(deliver(local(broker.port), MESSAGE, older))
        with subscribed(broker.port) as inbox:
            kept = inbox.get(timeout=PATIENCE_S)
            assert (kept.payload, kept.retain, inbox.empty()) == (MESSAGE.body, True, True)


@pytest.mark.process
def test_who_may_connect_and_write_is_the_brokers_word(tmp_path: Path) -> None:
    import subprocess

    passwords, rules, own = tmp_path / "passwords", tmp_path / "rules", tmp_path / "own"
    passwords.touch(mode=0o600)
    subprocess.run(
        ["mosquitto_passwd", "-b", str(passwords), "elf", "s3cret:x"], check=True, capture_output=True
    )
    rules.write_text("user elf\ntopic write elf/v1/main/hits/window\n")
    for file in (passwords, rules):
        file.chmod(0o644)
    own.write_text("elf:s3cret:x\n")
    own.chmod(0o600)
    lines = "allow_anonymous false", f"password_file {passwords}", f"acl_file {rules}"
    with mosquitto(tmp_path, *lines) as broker:
        with pytest.raises(DeliveryError, match="Not authorized"):
            do(deliver(local(broker.port), MESSAGE))
        do(deliver(local(broker.port, credentials=own), MESSAGE))
        with pytest.raises(RefusedError) as refused:
            do(deliver(local(broker.port, credentials=own), replace(MESSAGE, job="other")))
        assert str(refused.value) == "elf/v1/main/other/window: Not authorized"
        own.write_text("elf:wrong\n")
        with pytest.raises(DeliveryError) as error:
            do(deliver(local(broker.port, credentials=own), MESSAGE))
        assert "wrong" not in str(error.value)
        own.chmod(0o644)
        with pytest.raises(DeliveryError, match="other users may read it; chmod 600"):
            do(deliver(local(broker.port, credentials=own), MESSAGE))
        own.write_text("s3cret")
        own.chmod(0o600)
        with pytest.raises(DeliveryError) as error:
            do(deliver(local(broker.port, credentials=own), MESSAGE))
        assert str(error.value) == f"{own}: expected one line, USER:PASSWORD"
        own.unlink()
        with pytest.raises(DeliveryError, match="No such file"):
            do(deliver(local(broker.port, credentials=own), MESSAGE))


@pytest.mark.process
def test_a_broker_that_is_not_there_is_an_error_of_the_connection() -> None:
    with pytest.raises(DeliveryError, match="refused"):
        do(deliver(local(free_port()), MESSAGE))


@pytest.mark.process
def test_the_end_of_a_connection_is_noticed_while_nothing_is_sent(tmp_path: Path) -> None:
    async def lose() -> None:
        carrier = MqttCarrier(local(broker.port), "web1", "broker")
        await carrier.connect()
        gone = asyncio.ensure_future(carrier.gone())
        await asyncio.to_thread(broker.stop)
        try:
            await gone
        finally:
            await carrier.close()
            await carrier.close()

    with mosquitto(tmp_path) as broker, pytest.raises(DeliveryError, match="ended the connection"):
        do(lose())


@pytest.mark.process
def test_a_sink_says_that_it_is_connected_and_its_last_will_that_it_is_not(tmp_path: Path) -> None:
    topic = state_topic("main", "web1", "broker")
    assert topic == "elf/v1/main/web1/sinks/broker"

    async def work() -> None:
        def told() -> tuple[bytes, bool]:
            message = inbox.get(timeout=PATIENCE_S)
            return message.payload, message.topic == topic

        carrier = MqttCarrier(local(broker.port), "web1", "broker")
        await carrier.connect()
        assert await asyncio.to_thread(told) == (b"online", True)
        await carrier.close()
        assert await asyncio.to_thread(told) == (b"offline", True)
        await carrier.connect()
        assert await asyncio.to_thread(told) == (b"online", True)
        gone = asyncio.ensure_future(carrier.gone())
        carrier._client._client.socket().shutdown(socket.SHUT_RDWR)  # as when its process is killed
        assert await asyncio.to_thread(told) == (b"offline", True)
        with pytest.raises(DeliveryError, match="ended the connection"):
            await gone
        await carrier.close()

    with mosquitto(tmp_path) as broker:
        with subscribed(broker.port, topic="#") as inbox:
            do(work())
        with subscribed(broker.port, topic="#") as inbox:
            kept = inbox.get(timeout=PATIENCE_S)
            assert (kept.payload, kept.retain) == (b"offline", True)


class OldBroker:
    """Knows 3.1.1 only, and refuses version 5 as amqtt does. acknowledges: whether it acknowledges messages."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self.acknowledges = acknowledges
        self.versions: list[int] = []
        self.topics: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                kind = (await reader.readexactly(1))[0]
                size, shift = 0, 0
                while True:
                    (byte,) = await reader.readexactly(1)
                    size, shift = size | (byte & 127) << shift, shift + 7
                    if byte < 128:
                        break
                body = await reader.readexactly(size)
                if kind >> 4 == 1:
                    self.versions.append(body[6])
                    is_old = body[6] == 4
                    writer.write(b"\x20\x02\x00\x00" if is_old else b"\x20\x03\x00\x84\x00")
                    if not is_old:
                        break
                elif kind >> 4 == 3:
                    (length,) = struct.unpack_from(">H", body)
                    self.topics.append(body[2 : 2 + length].decode())
                    if self.acknowledges:
                        writer.write(b"\x40\x02" + body[2 + length : 4 + length])
                elif kind >> 4 == 14:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


@pytest.mark.process
def test_a_broker_that_knows_311_only_is_spoken_to_in_it() -> None:
    async def both() -> MqttCarrier:
        server = await asyncio.start_server(old.serve, "127.0.0.1", 0)
        async with server:
            return await deliver(local(server.sockets[0].getsockname()[1]), MESSAGE)

    old = OldBroker()
    assert do(both()).is_old
    state = "elf/v1/main/web1/sinks/broker"
    assert (old.versions, old.topics) == ([5, 4], [state, "elf/v1/main/hits/window", state])


@pytest.mark.process
def test_a_broker_that_does_not_acknowledge_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.sinks.delivery.mqtt.ANSWER_S", 0.2)

    async def both() -> None:
        server = await asyncio.start_server(OldBroker(acknowledges=False).serve, "127.0.0.1", 0)
        async with server:
            await deliver(local(server.sockets[0].getsockname()[1]), MESSAGE)

    with pytest.raises(DeliveryError, match="no acknowledgement within"):
        do(both())
