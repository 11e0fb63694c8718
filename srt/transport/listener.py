"""The listener: one ROUTER for the connections that neighbours open, and the socket by which libzmq authenticates them (ZAP, RFC
27).

libzmq requests authentication before it passes on packets of a connection. The reply numbers the connection, and each of its
packets carries that number. So a proof on one connection counts for no other, whatever routing id a client chooses.

    authentication request   too many connections, or too many from this host: refuse; else number it and record its key
    first packet             a valid proof: send ours back, the connection is now its node's; else refuse
    later packets            on a proven connection: stretches of its stream, and its proof again when it is challenged; on
                             others: refuse without reading

The ROUTER receives and replies. Messages are sent over it only to neighbours that cannot be dialled.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections.abc import Sequence
from time import monotonic

import zmq

from elf.errors import ConfigError, PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.link.outbox import Outbox
from elf.srt.messages.addresses import Address
from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.transport import handshake
from elf.srt.transport.handshake import Proof, Refusal, TwinError
from elf.srt.transport.hub import HANDSHAKE_S, Hub
from elf.srt.transport.sockets import Driven

CONNECTIONS_MAX = 4_096
"""Two connections for each of a few hundred neighbours, and as many again that are not proven yet."""
SILENT_S_MAX = 150
"""A silent connection is forgotten after this; the other side closes it after 60 s. A later packet on it is refused, and the peer
begins again with a proof."""
RATE = 100.0
BURST = 400.0
"""Connections that one host may open per second, and at once: where a mesh on one host restarts, all of them come at once."""
HOSTS_MAX = 1_024
"""Hosts whose rate is remembered: twice the neighbours. A host that is dropped has `BURST` again."""
ZAP = "inproc://zeromq.zap.01"
CHECK_S = 0.02
"""Between checks of a challenged connection: its process may have ended, which libzmq detects a moment later, and reports only on
a send."""
RETRY_S = 0.01
"""A ROUTER does not report when a full pipe has room again."""
_STRETCH = handshake.head(handshake.STRETCH)
WAITING = Refusal("waiting", "it waits until another process with its key has ended")


class Connection:
    """One incoming TCP connection. key: as CURVE has proven it. proof, node: None until the peer has proven its identity."""

    __slots__ = ("asked", "heard_s", "host", "key", "node", "outbox", "packet", "proof", "routing", "stream")

    def __init__(self, host: str, key: bytes | None, now_s: float) -> None:
        self.host, self.key, self.heard_s = host, key, now_s
        self.routing = b""
        self.node: NodeId | None = None
        self.proof: Proof | None = None
        self.stream = Stream()
        self.outbox: Outbox | None = None
        self.packet: bytes | None = None
        self.asked: Future[Proof] | None = None


class Listener:
    """`proven`: the latest proven connection of each node."""

    def __init__(self, hub: Hub, queue_bytes_max: int) -> None:
        self._hub, self._bytes_max = hub, queue_bytes_max
        self._connections: dict[bytes, Connection] = {}
        self.proven: dict[NodeId, Connection] = {}
        self._count = 0
        self._hosts: dict[str, tuple[float, float]] = {}  # -> connections that it may open, and as of when
        self._pending: dict[Connection, None] = {}  # connections with messages to send
        self._retry: TimerHandle | None = None
        self._router: Driven | None = None
        self._zap: Driven | None = None

    def open(self, listen: Address) -> int:
        """Bind; returns the port. Raises ConfigError."""
        hub = self._hub
        zap = hub.context.socket(zmq.ROUTER)
        zap.set(zmq.LINGER, 0)
        zap.bind(ZAP)
        router = hub.socket(zmq.ROUTER)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ZAP_DOMAIN, b"elf")
        if hub.keys is not None:
            router.set(zmq.CURVE_SERVER, 1)
        try:
            router.bind(f"tcp://{listen.endpoint}")
        except zmq.ZMQError as error:
            zap.close()
            router.close()
            raise ConfigError(f"listen: {listen.endpoint}: {error}; free the port or name another") from error
        port = int(bytes(router.get(zmq.LAST_ENDPOINT)).decode().rpartition(":")[2].rstrip("\0"))
        self._zap = Driven(zap, hub.loop, self._authenticate)
        self._router = Driven(router, hub.loop, self._receive, self._write)
        return port

    # Authentication.

    def _authenticate(self, frames: Sequence[zmq.Frame]) -> None:
        """libzmq requests authentication of a new connection."""
        parts = [frame.bytes for frame in frames]
        _, _, _, request, _, host_bytes, _, mechanism, *credentials = parts
        host = host_bytes.decode("latin-1")
        key = credentials[0] if mechanism == b"CURVE" else None
        status, number = b"200", b""
        now = monotonic()
        if (key is None) == (self._hub.keys is not None):
            status = b"400"
        elif not self._has_room(host, now):
            status = b"300"
        else:
            self._count += 1
            number = b"%d" % self._count
            self._connections[number] = Connection(host, key, now)
            self._hub.counters.connections_in += 1
        assert self._zap is not None
        self._zap.send((*parts[:3], request, status, b"", number, b""))

    def _has_room(self, host: str, now: float) -> bool:
        """Whether that host may open another connection now."""
        if len(self._connections) >= CONNECTIONS_MAX:
            self._hub.refuse("too many connections", f"{host}: {CONNECTIONS_MAX} connections are open", b"")
            return False
        left, at = self._hosts.get(host, (BURST, now))
        left = min(BURST, left + (now - at) * RATE)
        has_room = left >= 1
        put_last(self._hosts, host, (left - has_room, now), HOSTS_MAX)
        if not has_room:
            text = f"{host}: it connects more than {RATE:.0f} times a second; check what runs there"
            self._hub.refuse("too many handshakes", text, host.encode())
        return has_room

    # Incoming packets.

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        routing, packet = frames[0].bytes, frames[-1].buffer
        number = str(frames[-1].get("User-Id")).encode()
        connection = self._connections.get(number)
        if connection is None:
            self._hub.counters.refused["not proven"] += 1
            self._send(
                routing, handshake.pack(handshake.REFUSAL, Refusal("not proven", "begin again with a proof"))
            )
            return
        if connection.node is None and self._hub.waits():
            self._hub.counters.refused["waiting"] += 1
            self._connections.pop(number, None)
            self._send(routing, handshake.pack(handshake.REFUSAL, WAITING))
            return
        try:
            if len(frames) != 2:
                raise PeerError("a packet in several parts")
            kind = handshake.kind_of(packet)
            if connection.node is None:
                if kind == handshake.CHALLENGE and connection.proof is None:
                    self._answer(number, connection, routing, handshake.proof_of(packet))
                elif kind == handshake.PROOF and connection.proof is None:
                    self._prove(number, connection, routing, handshake.proof_of(packet))
                else:
                    raise PeerError("it sends messages before it has proven its identity")
            elif kind == handshake.PROOF and routing == connection.routing:
                self._take_answer(connection, handshake.proof_of(packet))
            elif kind == handshake.STRETCH and routing == connection.routing:
                self._check_process(connection)
                self._hub.take(connection.node, connection.stream, packet)
            else:
                raise PeerError("unexpected packet for the state of its connection")
        except PeerError as error:
            reason = (
                "garbage"
                if connection.node is not None and not isinstance(error, TwinError)
                else handshake.reason_of(error)
            )
            self._refuse(reason, number, connection, routing, error)

    def _check_process(self, connection: Connection) -> None:
        """Raises TwinError if another process has been admitted for the node since."""
        assert connection.node is not None
        assert connection.proof is not None
        connection.heard_s = monotonic()
        self._hub.check_process(connection.node, connection.proof)

    def _answer(self, number: bytes, connection: Connection, routing: bytes, proof: Proof) -> None:
        """Answer a challenge, which comes from another node, or from another process with this agent's key."""
        hub = self._hub
        node = hub.gate.check(proof, connection.key, hub.wall_s())
        if node == hub.gate.me and proof.instance != hub.gate.instance:
            self._report_twin(connection, proof)
        self._connections.pop(number, None)
        self._send(routing, hub.proof())

    def _prove(self, number: bytes, connection: Connection, routing: bytes, proof: Proof) -> None:
        hub = self._hub
        node = hub.gate.check(proof, connection.key, hub.wall_s())
        connection.proof, connection.routing = proof, routing
        if node == hub.gate.me and proof.instance != hub.gate.instance:
            raise hub.own_twin(proof)

        def decided(error: PeerError | None) -> None:
            if number not in self._connections:
                return
            if error is None:
                self._let_in(connection, node, proof)
            else:
                self._refuse(handshake.reason_of(error), number, connection, routing, error)

        hub.admit(node, proof, "", decided)

    def _let_in(self, connection: Connection, node: NodeId, proof: Proof) -> None:
        """The connection is the node's now. Packets that another process of that node sends from now on are refused."""
        connection.node = node
        self.proven[node] = connection
        self._hub.let_in(node, proof)
        self._send(connection.routing, self._hub.proof())

    def _report_twin(self, connection: Connection, proof: Proof) -> None:
        node, error = self._hub.gate.me, self._hub.own_twin(proof)
        self._hub.note_twin(node, error, proof)
        self._hub.refuse(handshake.TWIN, f"{connection.host}: {error}", node, node)

    def _refuse(
        self, reason: str, number: bytes, connection: Connection, routing: bytes, error: PeerError
    ) -> None:
        """Report the reason here, and to the peer; later packets of that connection are not read."""
        key = connection.key or (connection.proof.key if connection.proof else None)
        node = b"" if key is None else node_id(key)
        if isinstance(error, TwinError) and connection.proof is not None:
            self._hub.note_twin(node, error, connection.proof)
        text = f"{connection.host}: {error}"
        self._hub.refuse(reason, text, node or connection.host.encode(), node)
        self._connections.pop(number, None)
        self._forget(connection)
        evidence = error.evidence[: handshake.EVIDENCE_BYTES_MAX]
        at, other = (error.at, error.instance) if isinstance(error, TwinError) else ("", 0)
        refusal = Refusal(reason, str(error)[:500], evidence, at, other)
        self._send(routing, handshake.pack(handshake.REFUSAL, refusal))

    def _forget(self, connection: Connection) -> None:
        for number, other in list(self._connections.items()):
            if other is connection:
                del self._connections[number]
        if connection.node is not None and self.proven.get(connection.node) is connection:
            del self.proven[connection.node]
        self._pending.pop(connection, None)

    # Outgoing messages.

    def send(self, node: NodeId, message: Sequence[bytes], *, is_urgent: bool) -> str:
        """Queue a message for the connection that the node has opened. Returns "", or why the message is dropped. The caller then
        calls `flush`."""
        connection = self.proven.get(node)
        if connection is None:
            return "no address"
        if connection.outbox is None:
            connection.outbox = Outbox(self._bytes_max)
        self._pending[connection] = None
        return "" if connection.outbox.put(message, is_urgent=is_urgent) else "queue full"

    def flush(self) -> None:
        if self._pending and self._router is not None and self._retry is None:
            self._write()
            self._router.sent()

    def _write(self) -> bool:
        """Send to all connections with messages. A full pipe is tried again soon: the socket's events do not report single
        pipes."""
        for connection in list(self._pending):
            if self._empty(connection):
                self._pending.pop(connection, None)
        if self._pending and self._retry is None:
            self._retry = self._hub.loop.call_later(RETRY_S, self._write_again)
        return False

    def _write_again(self) -> None:
        self._retry = None
        self.flush()

    def _empty(self, connection: Connection) -> bool:
        """Send the queue of one connection; False: a part of it is left."""
        assert connection.outbox is not None
        assert self._router is not None
        while True:
            packet = connection.packet or connection.outbox.stretch(_STRETCH)
            if packet is None:
                return True
            try:
                taken = self._router.send((connection.routing, packet))
            except zmq.ZMQError:  # EHOSTUNREACH: it is gone
                self._hub.counters.dropped["connection lost"] += 1
                self._forget(connection)
                return True
            connection.packet = None if taken else packet
            if not taken:
                return False
            self._hub.counters.bytes_out += len(packet)

    def _send(self, routing: bytes, packet: bytes) -> None:
        """Send a proof or a refusal. It is dropped if the peer is gone or does not read."""
        assert self._router is not None
        try:
            self._router.send((routing, packet))
        except zmq.ZMQError:
            self._hub.counters.dropped["connection lost"] += 1

    def is_connected(self, node: NodeId) -> bool:
        """Whether a connection that the node has opened exists, also one of another process with its key. libzmq reports this
        only on a send, so an empty stretch is sent."""
        connection = self.proven.get(node)
        if connection is None:
            return False
        assert self._router is not None
        try:
            self._router.send((connection.routing, _STRETCH))
        except zmq.ZMQError:  # EHOSTUNREACH: it is gone
            self._forget(connection)
            return False
        finally:
            self._router.sent()
        return True

    async def ask(self, node: NodeId) -> Proof | None:
        """Challenge over the connection that the node has opened, and wait for the proof; None if there is no such connection."""
        connection = self.proven.get(node)
        if connection is None:
            return None
        answer: Future[Proof] = self._hub.loop.create_future()
        connection.asked = answer
        self._send(connection.routing, self._hub.proof(handshake.CHALLENGE))
        while not answer.done():
            if self.proven.get(node) is not connection or not self.is_connected(node):
                return None
            await asyncio.wait([answer], timeout=CHECK_S)
        return answer.result()

    def _take_answer(self, connection: Connection, proof: Proof) -> None:
        """Take the answer to a challenge; a late one has no effect. Raises PeerError: there was no challenge, or the proof is of
        another key."""
        answer = connection.asked
        if answer is None:
            raise PeerError("unexpected packet for the state of its connection")
        self._hub.gate.check(proof, connection.key, self._hub.wall_s())
        connection.heard_s = monotonic()
        if not answer.done():
            answer.set_result(proof)

    # Time.

    def tick(self, now_s: float) -> None:
        """About once a second: forget connections that were not proven in time, or have been silent for long."""
        for connection in list(self._connections.values()):
            patience = HANDSHAKE_S if connection.node is None else SILENT_S_MAX
            if now_s - connection.heard_s > patience:
                if connection.node is None:
                    self._hub.counters.refused["no proof in time"] += 1
                self._forget(connection)

    def recheck(self) -> None:
        """Refuse connections whose certificates have expired or were revoked since."""
        hub = self._hub
        for number, connection in list(self._connections.items()):
            if connection.proof is not None:
                try:
                    hub.gate.vouched(connection.proof, hub.wall_s())
                except PeerError as error:
                    self._refuse("proof", number, connection, connection.routing, error)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        for driven in (self._router, self._zap):
            if driven is not None:
                driven.close()
