"""State that all connections of one transport share: this node's identity, admission, counters, and where messages are
delivered."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import monotonic, time

import zmq

from elf.errors import PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.codec.wire import LogForm, decode
from elf.srt.link.rights import check_datagram
from elf.srt.messages.addresses import KEY_BYTES
from elf.srt.messages.bounded import put_last
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Message
from elf.srt.security.certificates import Keys
from elf.srt.transport import handshake
from elf.srt.transport.address_book import AddressBook
from elf.srt.transport.admission import Admission, both, twin
from elf.srt.transport.counters import Counters
from elf.srt.transport.handshake import Gate, Proof, TwinError

PACKET_BYTES_MAX = 1 << 20
"""libzmq closes a connection whose peer announces a larger packet, and does not read it. Twice a stretch."""
PACKETS_MAX = 16
"""High-water mark of each connection, a backstop: 8 MiB each way."""
BUFFER_BYTES = 1 << 20
"""Kernel buffers, each way: they bound what a probe waits behind, and still allow 10 Gbit/s within a datacenter."""
DEAD_S = 15
"""A connection is closed if the other kernel does not answer for this long. The kernel's keep-alive detects that, not zmq:
libzmq 4.3.5 aborts the process when its heartbeat is due on a connection that broke while received messages were not read, as
after a pause of 15 s."""
PROBE_S = 5
"""Between the kernel's probes of a silent connection: three in `DEAD_S`."""
HANDSHAKE_S = 5
"""CURVE takes two round trips and a millisecond; a busy host gets 5 s."""
NOTICE_S = 60
"""The same notice about the same neighbour is logged once a minute."""
NOTICES_MAX = 1_024
"""Notices remembered as logged: three reasons for each neighbour."""


TWINS_MAX = 64
TWIN_S = 60.0
"""How long status reports show two processes with one key after one was refused. The refused one retries twice in that time, or
more often."""

Admit = Callable[[NodeId, Proof, str, Callable[[PeerError | None], None]], None]
"""(node, proof, dialed, decided): decide whether to admit that process; see `elf.srt.transport.challenges`."""


class Hub:
    """See the module. `advertised`: the address in this node's proofs."""

    def __init__(
        self,
        gate: Gate,
        keys: Keys | None,
        key: bytes,
        *,
        deliver: Callable[[NodeId, Message], None],
        notice: Callable[[Notice], None],
        log: LogForm | None,
        on_evidence: Callable[[bytes], None],
        refused_for: Callable[[str, int, bool], None],
        waits: Callable[[], bool],
        admission: Admission,
    ) -> None:
        self.on_evidence = on_evidence
        """Called with the evidence that a neighbour gives for its refusal, not yet verified."""
        self.refused_for = refused_for
        """Called when a neighbour refuses this process because of another one with its key: with that one's address and instance,
        not verified, and whether that one is itself the neighbour that refuses."""
        self.waits = waits
        """Whether this process waits until another one with its key has ended: then it represents no node."""
        self.admit: Admit
        self.twins: dict[NodeId, tuple[str, float, str]] = {}
        """Node -> (message about its two processes, when one was last refused, the refused one's address); oldest first."""
        self.gate, self.keys, self.key, self.log = gate, keys, key, log
        self.admission = admission
        self.counters = Counters()
        self.address_book = AddressBook()
        self.advertised = ""
        self.context = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 4_096)
        self.loop: AbstractEventLoop
        self._deliver, self._notice = deliver, notice
        self._notified: dict[tuple[str, bytes], float] = {}  # (reason, node or host) -> when; oldest first

    def proof(self, kind: int = handshake.PROOF) -> bytes:
        """This node's first packet."""
        gate, certificate = self.gate, self.keys.proof if self.keys is not None else b""
        proof = Proof(gate.life, gate.instance, self.advertised, self.key, certificate)
        return handshake.pack(kind, proof)

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        """A socket with all bounds and keys set."""
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        for option, value in _OPTIONS:
            socket.set(option, value)
        if self.keys is not None:
            assert len(self.keys.curve_secret) == KEY_BYTES
            socket.set(zmq.CURVE_PUBLICKEY, self.keys.curve_public)
            socket.set(zmq.CURVE_SECRETKEY, self.keys.curve_secret)
        return socket

    def take(self, source: NodeId, stream: Stream, packet: memoryview) -> None:
        """Deliver the messages that a stretch completes. Raises PeerError; after that the connection is unusable."""
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
        """The error for another process that has proven that it holds this node's key."""
        return TwinError(both(self.advertised, proof.address), self.advertised, self.gate.instance)

    def check_process(self, node: NodeId, proof: Proof) -> None:
        """Raises TwinError if another process has been admitted for the node since. O(1)."""
        known = self.admission.other_process(node, proof)
        if known is not None:
            raise twin(proof, known)

    def note_twin(self, node: NodeId, error: TwinError, refused: Proof) -> None:
        """Record that a second process of a node was refused, for status reports."""
        put_last(self.twins, node, (str(error), monotonic(), refused.address), TWINS_MAX)

    def let_in(self, node: NodeId, proof: Proof) -> None:
        """That process is admitted for the node. If a process at that address was refused before, the other one has ended."""
        if node in self.twins and self.twins[node][2] == proof.address:
            del self.twins[node]
        self.address_book.learn(node, proof.life, proof.address)

    def refuse(self, reason: str, text: str, about: bytes, node: NodeId = b"") -> None:
        """Count and report a refusal. `about`: node or host."""
        self.counters.refused[reason] += 1
        self.notify(reason, text, about, node)

    def notify(self, reason: str, text: str, about: bytes, node: NodeId = b"") -> None:
        """Report a notice, at most once per reason, peer and interval."""
        key, now = (reason, about), monotonic()
        last = self._notified.get(key)
        if last is not None and now - last < NOTICE_S:
            return
        put_last(self._notified, key, now, NOTICES_MAX)
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
    (zmq.TCP_KEEPALIVE_CNT, DEAD_S // PROBE_S - 1),
    (zmq.TCP_MAXRT, DEAD_S * 1_000),
)
