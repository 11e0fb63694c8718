"""What all connections of one transport share: who this node is, whom it lets in, what is counted, and to whom messages go."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable
from time import monotonic, time

import msgspec
import zmq

from elf.errors import PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.codec.wire import LogForm, decode
from elf.srt.link.rights import check_datagram
from elf.srt.messages.addresses import KEY_BYTES
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Message
from elf.srt.transport import handshake
from elf.srt.transport.address_book import AddressBook
from elf.srt.transport.admission import Admission, both, twin
from elf.srt.transport.handshake import Gate, Keys, Proof, TwinError

PACKET_BYTES_MAX = 1 << 20
"""libzmq hangs up on anything larger before it is read: twice a stretch."""
PACKETS_MAX = 16
"""High-water mark of each connection, a backstop: 8 MiB each way."""
BUFFER_BYTES = 1 << 20
"""Of the kernel, each way: what a probe waits behind is bounded, and 10 Gbit/s within a datacenter still fills the line."""
SILENCE_S = 15
"""A connection whose other end's kernel answers nothing is over after so long. The kernel finds out, not zmq: libzmq 4.3.5 aborts
the process when its heartbeat is due on a connection that broke while nobody took what had come, as after a pause of 15 s."""
PROBE_S = 5
"""Between the kernel's probes of a silent connection: three in `SILENCE_S`."""
HANDSHAKE_S = 5
"""CURVE takes two round trips and a millisecond; a busy host gets 5 s."""
NOTICE_S = 60
"""The same of the same neighbour is told once a minute."""
NOTICES_MAX = 1_024
"""Remembered as told: three reasons of each neighbour."""


TWINS_MAX = 64
TWIN_S = 60.0
"""Two processes with one key are a problem that is shown for so long after one was refused: it knocks at least twice as often."""

Admit = Callable[[NodeId, Proof, str, Callable[[PeerError | None], None]], None]
"""(node, proof, dialed, decided): whether that process may come in; see `elf.srt.transport.challenges`."""


class Counters(msgspec.Struct):
    """Since the start. refused, dropped: by reason; what was refused came from outside, what was dropped was to go there."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections_in: int = 0
    connections_out: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    dropped: Counter[str] = msgspec.field(default_factory=Counter)


class Hub:
    """See the module. `advertised`: the address that proofs tell."""

    def __init__(
        self,
        gate: Gate,
        keys: Keys | None,
        key: bytes,
        *,
        deliver: Callable[[NodeId, Message], None],
        notice: Callable[[Notice], None],
        log: LogForm | None,
        heed: Callable[[bytes], None],
        refused_for: Callable[[str, int], None],
        admission: Admission,
    ) -> None:
        self.heed = heed
        """Takes what a neighbour shows for its refusal; nobody has checked it."""
        self.refused_for = refused_for
        """Told for which other process, at which address, a neighbour refuses this one; nobody has checked it."""
        self.admit: Admit
        self.twins: dict[NodeId, tuple[str, float, str]] = {}
        """Two processes with one key: what is said of them, when one was refused last, and its address; oldest first."""
        self.gate, self.keys, self.key, self.log = gate, keys, key, log
        self.admission = admission
        self.counters = Counters()
        self.address_book = AddressBook()
        self.advertised = ""
        self.context = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 4_096)
        self.loop: AbstractEventLoop
        self._deliver, self._notice = deliver, notice
        self._notified: dict[tuple[str, bytes], float] = {}  # (reason, about whom) -> when; oldest first

    def proof(self, kind: int = handshake.PROOF) -> bytes:
        """This node's first packet."""
        gate, certificate = self.gate, self.keys.proof if self.keys is not None else b""
        proof = Proof(gate.life, gate.instance, self.advertised, self.key, certificate)
        return handshake.pack(kind, proof)

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        """With every bound set."""
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        for option, value in _OPTIONS:
            socket.set(option, value)
        if self.keys is not None:
            assert len(self.keys.curve_secret) == KEY_BYTES
            socket.set(zmq.CURVE_PUBLICKEY, self.keys.curve_public)
            socket.set(zmq.CURVE_SECRETKEY, self.keys.curve_secret)
        return socket

    def take(self, source: NodeId, stream: Stream, packet: memoryview) -> None:
        """Deliver the messages that a stretch completes. Raises PeerError: the connection is of no further use."""
        counters = self.counters
        counters.bytes_in += len(packet)
        deliver, log = self._deliver, self.log
        for data in stream.step(packet[handshake.HEAD_BYTES :]):
            message = decode(data, log)
            check_datagram(message, source)
            self.address_book.hear(message)
            counters.messages_in += 1
            deliver(source, message)

    def own_twin(self, proof: Proof) -> TwinError:
        """Of a process that has proven to have this node's key."""
        return TwinError(both(self.advertised, proof.address), self.advertised, self.gate.instance)

    def check_process(self, node: NodeId, proof: Proof) -> None:
        """Raises TwinError where another process speaks for the node by now. O(1)."""
        known = self.admission.other_process(node, proof)
        if known is not None:
            raise twin(proof, known)

    def note_twin(self, node: NodeId, error: TwinError, refused: Proof) -> None:
        """Somebody may want to know for a while."""
        self.twins.pop(node, None)
        if len(self.twins) >= TWINS_MAX:
            del self.twins[next(iter(self.twins))]
        self.twins[node] = str(error), monotonic(), refused.address

    def let_in(self, node: NodeId, proof: Proof) -> None:
        """That process speaks for the node; if it was refused before at that address, then the other one has ended."""
        if node in self.twins and self.twins[node][2] == proof.address:
            del self.twins[node]
        self.address_book.learn(node, proof.life, proof.address)

    def refuse(self, reason: str, text: str, about: bytes, node: NodeId = b"") -> None:
        """Count it, and say so. `about`: node or host."""
        self.counters.refused[reason] += 1
        self.notify(reason, text, about, node)

    def notify(self, reason: str, text: str, about: bytes, node: NodeId = b"") -> None:
        """Say so once per reason, peer and interval."""
        key, now = (reason, about), monotonic()
        last = self._notified.get(key)
        if last is not None and now - last < NOTICE_S:
            return
        self._notified.pop(key, None)
        if len(self._notified) >= NOTICES_MAX:
            del self._notified[next(iter(self._notified))]
        self._notified[key] = now
        self._notice(Notice(reason, text, node))

    @staticmethod
    def wall_s() -> float:
        return time()


_OPTIONS: tuple[tuple[int, int], ...] = (
    (zmq.LINGER, 0),
    (zmq.IPV6, 1),
    (zmq.SNDHWM, PACKETS_MAX),
    (zmq.RCVHWM, PACKETS_MAX),
    (zmq.SNDBUF, BUFFER_BYTES),
    (zmq.RCVBUF, BUFFER_BYTES),
    (zmq.MAXMSGSIZE, PACKET_BYTES_MAX),
    (zmq.HANDSHAKE_IVL, HANDSHAKE_S * 1_000),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, PROBE_S),
    (zmq.TCP_KEEPALIVE_INTVL, PROBE_S),
    (zmq.TCP_KEEPALIVE_CNT, SILENCE_S // PROBE_S - 1),
    (zmq.TCP_MAXRT, SILENCE_S * 1_000),
)
