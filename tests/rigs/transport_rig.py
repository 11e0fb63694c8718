"""Transports in one process, and clients that do not keep to the rules."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import zmq

from elf.srt.codec.wire import encode
from elf.srt.messages.addresses import parse_address
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact, Message, Ping
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Authority, Keys, Trust
from elf.srt.transport import handshake
from elf.srt.transport.handshake import Proof
from elf.srt.transport.transport import Transport

PATIENCE_S = 60.0
NOW_S = int(time.time())
PARAMETERS = Parameters()


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], *, secure: bool = True) -> None:
    """A test as a coroutine, with a rig that is closed behind it."""

    async def inside() -> None:
        rig = Rig(secure)
        try:
            await asyncio.wait_for(test(rig), 2 * PATIENCE_S)
        finally:
            rig.close()

    asyncio.run(inside())


async def until(holds: Callable[[], object]) -> None:
    """Let the loop run until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.002)


class End:
    """A node's transport and its output."""

    def __init__(
        self,
        rig: Rig,
        keys: Keys | None,
        key: bytes,
        life: int,
        listen: str = "127.0.0.1:0",
        trust: Trust | None = None,
        instance: int = 1,
        advertise: str = "",
    ) -> None:
        self.id, self.key, self.life, self.keys = node_id(key), key, life, keys
        self.instance = instance
        self.rivals: list[tuple[str, int, bool]] = []
        self.waits = False
        self.got: list[tuple[NodeId, Message]] = []
        self.notices: list[Notice] = []
        self.gone: list[tuple[NodeId, int]] = []
        """Lives of neighbours whose process is gone."""
        self.restarted: list[Contact] = []
        self.trust = trust
        self.transport = Transport(
            self.id,
            life,
            PARAMETERS,
            keys=keys,
            trust=trust,
            key=key,
            listen=listen,
            advertise=advertise,
            address_of=rig.addresses.get,
            deliver=lambda source, message: self.got.append((source, message)),
            notice=self.notices.append,
            refused=lambda node, life: self.gone.append((node, life)),
            restarted=self.restarted.append,
            instance=instance,
            refused_for=lambda *rival: self.rivals.append(rival),
            waits=lambda: self.waits,
        )
        self.transport.start()
        self.contact = Contact(self.id, life, self.transport.address, 0, instance)

    def ping(self, to: End | NodeId, number: int = 0) -> Ping:
        ping = Ping(self.contact, number)
        self.transport.send(to.id if isinstance(to, End) else to, ping)
        return ping

    @property
    def numbers(self) -> list[int]:
        """Of the pings that came."""
        return [message.number for _, message in self.got if isinstance(message, Ping)]

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.transport.counters.refused)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.transport.counters.dropped)


class Rig:
    """`addresses`: those of each node's directory."""

    def __init__(self, secure: bool = True) -> None:
        self.authority = Authority()
        self.secure = secure
        self.addresses: dict[NodeId, str] = {}
        self.ends: list[End] = []
        self.clients: list[Client] = []

    def keys(self, name: str = "web", role: Any = "agent", now_s: int = NOW_S, days: int = 365) -> Keys:
        return self.authority.issue(name, role, now_s, days)

    def end(
        self,
        keys: Keys | None = None,
        *,
        life: int = 1,
        listen: str = "127.0.0.1:0",
        key: bytes | None = None,
        is_listed: bool = True,
        advertise: str = "",
    ) -> End:
        if self.secure and keys is None:
            keys = self.keys()
        if key is None:
            key = keys.curve_public if keys is not None else len(self.ends).to_bytes(32)
        trust = Trust(self.authority.public) if self.secure else None
        end = End(self, keys, key, life, listen, trust, 1 + len(self.ends), advertise)
        self.ends.append(end)
        if is_listed:
            self.addresses[end.id] = end.transport.address
        return end

    def client(self, to: End, keys: Keys | None = None, routing_id: bytes = b"") -> Client:
        client = Client(
            to.transport.address, keys if keys is not None or not self.secure else self.keys(), routing_id
        )
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for end in self.ends:
            end.transport.close()


class Client:
    """A bare DEALER with a key, which may send anything."""

    def __init__(self, address: str, keys: Keys | None, routing_id: bytes = b"") -> None:
        target = parse_address(address)
        assert target.key is not None
        self.keys = keys
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, 2)
        if routing_id:
            self.socket.set(zmq.ROUTING_ID, routing_id)
        if keys is not None:
            self.socket.set(zmq.CURVE_SERVERKEY, target.key)
            self.socket.set(zmq.CURVE_PUBLICKEY, keys.curve_public)
            self.socket.set(zmq.CURVE_SECRETKEY, keys.curve_secret)
        self.socket.connect(f"tcp://{target.endpoint}")

    def proof(self, **other: Any) -> bytes:
        """Its own, as it should be; `other` fields."""
        assert self.keys is not None
        key, certificate = self.keys.curve_public, self.keys.proof
        fields = {"life": 1, "instance": 99, "address": "", "key": key, "certificate": certificate}
        return handshake.pack(handshake.PROOF, Proof(**{**fields, **other}))

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts, zmq.NOBLOCK)

    async def answer(self) -> tuple[int, bytes]:
        """Kind and whole of the next packet that comes back."""
        end = time.monotonic() + PATIENCE_S
        while not self.socket.poll(0):
            assert time.monotonic() < end, "no answer"
            await asyncio.sleep(0.002)
        packet: bytes = self.socket.recv()
        return handshake.kind_of(packet), packet

    def close(self) -> None:
        self.context.destroy(0)


def stretch(*messages: Message) -> bytes:
    encoded = [encode(message) for message in messages]
    return handshake.head(handshake.STRETCH) + b"".join(
        struct.pack("<I", len(each)) + each for each in encoded
    )


async def goes_on(rig: Rig, end: End) -> None:
    """Others reach it as ever."""
    other = rig.end()
    sent = other.ping(end, 77)
    await until(lambda: (other.id, sent) in end.got)


async def proven(rig: Rig, end: End) -> Client:
    client = rig.client(end)
    client.send(client.proof())
    assert (await client.answer())[0] == handshake.PROOF
    return client
