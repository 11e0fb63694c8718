"""Windows as messages to an MQTT broker, by aiomqtt (the extra `mqtt`), at QoS 1.

The topic is `elf/v1/MESH/JOB/window`; what separates levels or is a wildcard in a name is percent-escaped. The newest window of a
job is retained. Version 5 of the protocol adds the content type, an expiry and user properties; a broker that refuses version 5
is spoken to in 3.1.1 from then on.

Whether a sink is connected is retained on `elf/v1/MESH/AGENT/sinks/SINK`: `online`, or `offline`, by itself or as its last will.

The session begins anew with each connection: what the broker has not acknowledged is repeated by the agent, from its ledger and
not from a client's memory. One client identifier for each sink and agent, so that a broker ends the old connection before it
serves the new one, and no message of the old one comes late.

A sink may take operators' commands too, as signed items, from the topic `elf/v1/MESH/commands`; it answers each on
`elf/v1/MESH/commands/answers`, in JSON. Retained messages are ignored. A command that is published while no agent is connected is
lost, and has no answer.

aiomqtt drops the reason code of an acknowledgement, so that a message that the broker refuses would count as delivered. `_client`
waits for acknowledgements itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from elf.errors import UsageError
from elf.sinks.delivery.contract import CONTENT_TYPE, DeliveryError, RefusedError, Take, WindowMessage
from elf.sinks.spec import Broker

ANSWER_S = 20.0
"""How long the broker may take to answer a connection, and to acknowledge a message."""
GOODBYE_S = 2.0
PAYLOAD_BYTES_MAX = 268_000_000
"""The protocol's bound is 268,435,455 bytes, with the topic and properties."""
COMMANDS_MAX = 64
"""Commands that wait here. Further ones are dropped, and get no answer."""
REFUSED_PAUSE_S = 1.0
"""After a command that was not taken, before the next one."""
PACKET_BYTES_MAX = 2 << 20
"""Of packets to this client; a command has half of it at most. Brokers of version 5 keep to it."""
REFUSED_SUBSCRIPTION = 128
"""Reason codes from here on."""
UNSUPPORTED_VERSION = (1, 132)
"""Reason codes of brokers that do not know version 5: in the form of 3.1.1, and in that of 5."""


def topic_of(mesh: str, job: str, kind: str = "window") -> str:
    """The topic of a job's windows, or of its alerts."""
    return f"elf/v1/{quote(mesh, safe='')}/{quote(job, safe='')}/{kind}"


def state_topic(mesh: str, agent: str, sink: str) -> str:
    """The topic of whether a sink is connected."""
    return f"elf/v1/{quote(mesh, safe='')}/{quote(agent, safe='')}/sinks/{quote(sink, safe='')}"


def commands_topic(mesh: str) -> str:
    """The topic of signed commands. That of their answers is one level below."""
    return f"elf/v1/{quote(mesh, safe='')}/commands"


def client_id(mesh: str, agent: str, sink: str) -> str:
    """23 letters and digits, which every broker accepts."""
    return "elf" + blake2b("\0".join((mesh, agent, sink)).encode(), digest_size=10).hexdigest()


class MqttCarrier:
    """One connection to a broker. See `Carrier`. version: 5 or 4 (which is 3.1.1), learnt by the last carrier of the sink."""

    def __init__(self, broker: Broker, agent: str, sink: str, take: Take | None = None) -> None:
        """take: for commands, if the sink takes them. Raises UsageError without aiomqtt."""
        if find_spec("aiomqtt") is None:
            raise UsageError(
                f"sink {sink}: mqtt needs aiomqtt, which is not installed; pip install 'elf-mesh[mqtt]'"
            )
        self._broker, self._agent, self._sink = broker, agent, sink
        self.is_old = False
        """Whether the broker knows 3.1.1 only."""
        self._client: Any = None
        self._take = take
        self._commands: asyncio.Queue[Any] = asyncio.Queue(COMMANDS_MAX)
        self._taking: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        import aiomqtt

        try:
            identifier = client_id(self._broker.mesh, self._agent, self._sink)
            client = _client(self._broker, identifier, self._state_topic, self.is_old)
            await client.__aenter__()
            self._client = client
            if self._take is not None:
                await self._subscribe(client, self._take)
        except aiomqtt.MqttError as error:
            code = getattr(error, "rc", None)
            if not self.is_old and getattr(code, "value", code) in UNSUPPORTED_VERSION:
                self.is_old = True
                await self.connect()
                return
            raise DeliveryError(_text(error)) from None
        except (OSError, ValueError) as error:  # a file of credentials or certificates, TLS
            raise DeliveryError(_text(error)) from None
        await self._announce(b"online", ANSWER_S)

    async def _subscribe(self, client: Any, take: Take) -> None:
        """Take commands of this connection from now on. Raises MqttError."""
        from aiomqtt import MqttError
        from paho.mqtt.subscribeoptions import SubscribeOptions

        topic = commands_topic(self._broker.mesh)
        about: dict[str, Any] = {"qos": 1}
        if not self.is_old:  # and a retained message that comes while we are connected says so
            about = {"options": SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=2)}
        (code, *_) = await client.subscribe(topic, **about)
        if getattr(code, "value", code) >= REFUSED_SUBSCRIPTION:
            raise MqttError(f"the broker does not let this sink subscribe to {topic}")
        self._commands = asyncio.Queue(COMMANDS_MAX)
        self._taking = asyncio.get_running_loop().create_task(self._take_all(client, take, self._commands))

    async def _take_all(self, client: Any, take: Take, commands: asyncio.Queue[Any]) -> None:
        """Do one command after another, and answer each."""
        while True:
            message = await commands.get()
            answer = await take(message.payload)
            await self._answer(client, message, answer)
            if answer["outcome"] != "taken":  # whoever can publish costs the mesh no more than this
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _answer(self, client: Any, message: Any, answer: dict[str, Any]) -> None:
        """An answer that the broker does not take is lost: `gone` says so where the connection has ended."""
        properties = None if self.is_old else _reply(message)
        topic, body = f"{commands_topic(self._broker.mesh)}/answers", json.dumps(answer).encode()
        with suppress(DeliveryError, TimeoutError):
            await client.acknowledged(topic, body, False, properties)

    @property
    def _state_topic(self) -> str:
        return state_topic(self._broker.mesh, self._agent, self._sink)

    async def _announce(self, state: bytes, patience_s: float) -> None:
        """Say whether the sink is connected. A broker that refuses it takes windows nevertheless. Raises DeliveryError."""
        try:
            async with asyncio.timeout(patience_s):
                await self._client.acknowledged(self._state_topic, state, True, None)
        except TimeoutError:
            raise DeliveryError(f"no acknowledgement within {patience_s:.0f} s") from None

    async def deliver(self, message: WindowMessage) -> None:
        if len(message.body) > PAYLOAD_BYTES_MAX:
            raise RefusedError(f"a window of {len(message.body):,} bytes is too large for MQTT")
        topic = topic_of(self._broker.mesh, message.job, message.kind)
        properties = None if self.is_old else _properties(message)
        try:
            refusal = await self._client.acknowledged(topic, message.body, message.is_newest, properties)
        except TimeoutError:
            raise DeliveryError(f"no acknowledgement within {ANSWER_S:.0f} s") from None
        if refusal:
            raise RefusedError(f"{topic}: {refusal}")

    async def gone(self) -> None:
        import aiomqtt

        try:
            async for (
                message
            ) in self._client.messages:  # commands; there are none where nothing is subscribed to
                if not message.retain:
                    with suppress(asyncio.QueueFull):
                        self._commands.put_nowait(message)
        except aiomqtt.MqttError:
            raise DeliveryError("the broker ended the connection") from None

    async def close(self) -> None:
        import aiomqtt

        client = self._client
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
            self._taking = None
        if client is not None:
            with suppress(DeliveryError):
                await self._announce(b"offline", GOODBYE_S)
            self._client = None
            with suppress(aiomqtt.MqttError, OSError):
                await client.__aexit__(None, None, None)


def _client(broker: Broker, identifier: str, state_topic: str, is_old: bool) -> Any:
    """A client that is not connected yet. state_topic: of its last will. Raises OSError, ValueError."""
    import aiomqtt
    from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY

    class Client(aiomqtt.Client):
        """waiting: acknowledgements to come, by the number of the message."""

        waiting: dict[int, asyncio.Future[str]]

        async def acknowledged(self, topic: str, body: bytes, retain: bool, properties: Any) -> str:
            """Publish. Returns "", or why the broker refuses it. Raises TimeoutError, DeliveryError."""
            sent = self._client.publish(topic, body, 1, retain, properties)
            if sent.rc != 0:
                raise DeliveryError("the connection has ended")
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.waiting[sent.mid] = answer
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await answer
            finally:
                self.waiting.pop(sent.mid, None)

        def _on_publish(
            self, client: Any, userdata: Any, mid: int, reason_code: Any, properties: Any
        ) -> None:
            answer = self.waiting.get(mid)
            if answer is not None and not answer.done():
                answer.set_result(str(reason_code) if reason_code.is_failure else "")

    version = aiomqtt.ProtocolVersion.V311 if is_old else aiomqtt.ProtocolVersion.V5
    user, password = _credentials(broker)
    client = Client(
        broker.host,
        broker.port,
        identifier=identifier,
        protocol=version,
        username=user,
        password=password,
        timeout=ANSWER_S,
        tls_context=_tls(broker),
        will=aiomqtt.Will(state_topic, b"offline", 1, True),
        clean_session=True if is_old else None,
        clean_start=MQTT_CLEAN_START_FIRST_ONLY if is_old else True,
        properties=None if is_old else _bounds(),
    )
    client.waiting = {}
    return client


def _bounds() -> Any:
    """The properties of a connection: what this client takes."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.MaximumPacketSize = PACKET_BYTES_MAX
    return properties


def _properties(message: WindowMessage) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = CONTENT_TYPE
    properties.PayloadFormatIndicator = 1  # UTF-8
    properties.MessageExpiryInterval = min(message.keep_s, 0xFFFF_FFFF)
    names = ("id", "version", "status", "revision", "digest")
    properties.UserProperty = [(name, getattr(message, name)) for name in names]
    return properties


def _reply(message: Any) -> Any:
    """The properties of an answer: what the sender of the command marked it with comes back."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ContentType = CONTENT_TYPE
    properties.PayloadFormatIndicator = 1  # UTF-8
    correlation = getattr(message.properties, "CorrelationData", None)
    if correlation is not None:
        properties.CorrelationData = correlation
    return properties


def _credentials(broker: Broker) -> tuple[str | None, str | None]:
    """User and password from their file, which is read at each connection, so that it can be replaced. Raises OSError,
    ValueError, whose text contains none of them."""
    path = broker.credentials
    if path is None:
        return None, None
    if os.stat(path).st_mode & 0o007:
        raise ValueError(f"{path}: other users may read it; chmod 600 {path}")
    user, colon, password = path.read_bytes().decode(errors="surrogateescape").strip("\r\n").partition(":")
    if not colon or not user:
        raise ValueError(f"{path}: expected one line, USER:PASSWORD")
    return user, password


def _tls(broker: Broker) -> ssl.SSLContext | None:
    if not broker.tls:
        return None
    context = ssl.create_default_context(cafile=str(broker.ca) if broker.ca else None)
    if broker.cert is not None:
        context.load_cert_chain(broker.cert, broker.key)
    return context


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return (
        re.sub(r"^\[[^]]*\] ", "", str(error)) or type(error).__name__
    )  # without the number that libraries put in front
