"""The connection that this node opens to one neighbour: one DEALER, one handshake, one TCP connection at a time.

    state     what happens                                   next
    --------  ---------------------------------------------  -----------------------------------------------
    closed    a message to send, and the pause is over        opening: connect, send our proof first
    opening   the neighbour's proof arrives and is valid      open: send the queue
    opening   refusal, invalid proof, no answer in time       closed, with a pause that doubles
    open      a challenge                                     open: send our proof again, since this process lives; closed if
                                                             it waits for another process with its key
    open      connection lost                                 closed; `lost` checks whether the process is gone
    open      refusal, garbage                                closed: the queue is dropped; links send their messages again
    open      nothing to send for `IDLE_S`                    closed, without a pause

zmq's own reconnection is off: each connection must begin with a proof, and its stream at the start of a message.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from elf.errors import PeerError
from elf.srt.codec.pieces import Stream
from elf.srt.link.outbox import Outbox
from elf.srt.messages.addresses import Address
from elf.srt.messages.ids import NodeId
from elf.srt.transport import handshake
from elf.srt.transport.handshake import Proof, Refusal, TwinError
from elf.srt.transport.hub import HANDSHAKE_S, Hub
from elf.srt.transport.sockets import Driven

IDLE_S = 60
"""Neighbours in leaf set and trees get messages more often than that. Any other connection costs both ends a descriptor, and is
opened again in a few round trips."""
STOOD_S = 1.0
"""A connection that lasted longer than this before it was lost is dialled again at once, if its port accepts connections; others
after a pause."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
"""Between attempts. A neighbour that restarts is back within a second; one that is gone costs a packet every five seconds."""
_STRETCH = handshake.head(handshake.STRETCH)
_LOST = {
    int(zmq.Event.DISCONNECTED): "the connection was lost",
    int(zmq.Event.CLOSED): "nothing listens there",
    int(zmq.Event.CLOSE_FAILED): "the connection was lost",
    int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL): "it did not answer; check that an elf agent runs there",
    int(
        zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    ): "it did not answer as an elf agent with that key; security or key may differ",
    int(zmq.Event.HANDSHAKE_FAILED_AUTH): "it refuses the connection",
}
_LOST_EVENTS = sum(_LOST)


class Found(Protocol):
    def __call__(self, dialer: Dialer, proof: Proof, *, is_later: bool) -> None:
        """is_later: the dialer had reached another process of this neighbour before."""


class State(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


class Dialer:
    """`found` is called when the neighbour has proven its identity, `lost` when a connection is lost after that. node: None until
    the neighbour has proven its identity, if only host:port is known."""

    def __init__(
        self,
        hub: Hub,
        node: NodeId | None,
        address: Address,
        queue_bytes_max: int,
        found: Found,
        lost: Callable[[Dialer, Proof], None],
        *,
        for_challenge: bool = False,
    ) -> None:
        self.node, self.address = node, address
        self.state = State.CLOSED
        self.proof: Proof | None = None
        """The last one received, on any connection."""
        self.outbox = Outbox(queue_bytes_max)
        self.used_s = monotonic()
        self.is_being_checked = False
        """Whether a check of the neighbour's process is running: then a failure to connect is counted, but not reported."""
        self.asked: list[Future[Proof]] = []
        """Futures that wait for the neighbour's proof."""
        self._hub, self._found, self._lost = hub, found, lost
        self._for_challenge, self._attempt = for_challenge, 0
        self._pause_s, self._retry_s = PAUSE_S_MIN, 0.0
        self._opened_s = 0.0
        self._dealer: Driven | None = None
        self._monitor: Driven | None = None
        self._stream = Stream()
        self._packet: bytes | None = None  # made, but not taken by zmq yet
        self._is_challenged = False

    @property
    def name(self) -> str:
        return self.address.endpoint

    @property
    def waiting_bytes(self) -> int:
        """Bytes that zmq has not taken yet."""
        return self.outbox.nbytes + (0 if self._packet is None else len(self._packet))

    def send(self, message: Sequence[bytes], *, is_urgent: bool) -> str:
        """ "", or why the message is dropped. The caller must call `flush` within the turn."""
        if self.state is State.CLOSED and not self.open():
            return "unreachable"
        self.used_s = monotonic()
        return "" if self.outbox.put(message, is_urgent=is_urgent) else "queue full"

    def open(self) -> bool:
        """Connect, unless the pause after the last failure still runs."""
        now = monotonic()
        if now < self._retry_s:
            return False
        hub = self._hub
        socket = hub.socket(zmq.DEALER)
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.CONNECT_TIMEOUT, HANDSHAKE_S * 1_000)
        if hub.keys is not None:
            assert self.address.key is not None
            socket.set(zmq.CURVE_SERVERKEY, self.address.key)
        monitor = socket.get_monitor_socket(_LOST_EVENTS)
        self._packet = hub.proof(handshake.CHALLENGE if self._for_challenge else handshake.PROOF)
        self._attempt += 1
        self._stream, self._is_challenged = Stream(), False
        self._dealer = Driven(socket, hub.loop, self._receive, self._write)
        self._monitor = Driven(monitor, hub.loop, self._event)
        self.state, self._opened_s = State.OPENING, now
        socket.connect(f"tcp://{self.address.endpoint}")
        return True

    def flush(self) -> None:
        """Send as much as zmq takes now."""
        if self._dealer is not None and self.state is State.OPEN:
            wants = self._write()
            if self._dealer is not None:
                self._dealer.sent(wants=wants)

    def tick(self, now_s: float) -> None:
        """Call it about once a second: close connections that were not proven in time, or that are idle."""
        if self.state is State.OPENING and now_s - self._opened_s > HANDSHAKE_S:
            self.fail("no answer", "it does not answer; check the address, and that an agent runs there")
        elif self.state is State.OPEN and now_s - self.used_s > IDLE_S:
            self.close()

    def _write(self) -> bool:
        dealer = self._dealer
        assert dealer is not None
        while True:
            if self._packet is None and self._is_challenged:
                self._packet, self._is_challenged = self._hub.proof(), False
            if self._packet is None and self.state is State.OPEN:
                self._packet = self.outbox.stretch(_STRETCH)
            if self._packet is None:
                return False
            try:
                taken = dealer.send((self._packet,))
            except zmq.ZMQError as error:
                self.fail("connection lost", str(error))
                return False
            if not taken:
                return True
            self._hub.counters.bytes_out += len(self._packet)
            self._packet = None

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        packet = frames[0].buffer
        try:
            if len(frames) != 1:
                raise PeerError("a packet in several parts")
            kind = handshake.kind_of(packet)
            if kind == handshake.PROOF and self.state is State.OPENING:
                self._take_proof(handshake.proof_of(packet))
            elif kind == handshake.STRETCH and self.state is State.OPEN:
                assert self.node is not None
                assert self.proof is not None
                self._hub.check_process(self.node, self.proof)
                self._hub.take(self.node, self._stream, packet)
            elif kind == handshake.CHALLENGE and self.state is State.OPEN:
                if self._hub.waits():
                    self.close()
                    return
                self._is_challenged = True  # `_write` answers within this turn
            elif kind == handshake.REFUSAL:
                refusal = handshake.refusal_of(packet)
                self._refused(refusal)
            else:
                raise PeerError("unexpected packet for the state of its connection")
        except TwinError as error:
            self.fail(handshake.TWIN, str(error))
        except PeerError as error:
            self.fail("garbage", str(error))

    def _take_proof(self, proof: Proof) -> None:
        hub = self._hub
        if self.address.key is not None and proof.key != self.address.key:
            raise PeerError("it has another key than its address says; correct the address")
        node = hub.gate.check(proof, self.address.key if hub.keys else None, hub.wall_s())
        if self._for_challenge:
            self._resolve(proof)
            return
        attempt = self._attempt

        def decided(error: PeerError | None) -> None:
            if self.state is not State.OPENING or self._attempt != attempt:
                return
            if error is None:
                self._open_to(node, proof)
            else:
                self.fail(handshake.reason_of(error), str(error), node)
                if isinstance(error, TwinError):
                    hub.note_twin(node, error, proof)

        hub.admit(node, proof, str(Address(self.address.endpoint, proof.key)), decided)

    def _open_to(self, node: NodeId, proof: Proof) -> None:
        former, self.node, self.proof, self.state = self.proof, node, proof, State.OPEN
        self._pause_s = PAUSE_S_MIN
        self._found(self, proof, is_later=former is not None and proof.instance != former.instance)
        self._resolve(proof)
        self._write()

    def _resolve(self, proof: Proof) -> None:
        for future in self._waiting():
            future.set_result(proof)

    def _refused(self, refusal: Refusal) -> None:
        text = f"it refuses this agent: {refusal.text}"
        if refusal.reason == handshake.TWIN:
            self.fail(
                "refused there",
                text,
                error=TwinError(f"{self.name}: {text}", refusal.other_at, refusal.other),
            )
            self._hub.refused_for(refusal.other_at, refusal.other, self._is_at(refusal.other_at))
            return
        self.fail("refused there", text)
        if refusal.evidence:
            self._hub.on_evidence(refusal.evidence)

    def _is_at(self, address: str) -> bool:
        """Whether the neighbour that this dialer dials is the process with this agent's key at that address."""
        if self.address.key is not None:
            return self.address.key == self._hub.key
        return address.partition("/")[0] == self.address.endpoint

    def _event(self, frames: Sequence[zmq.Frame]) -> None:
        event = parse_monitor_message([frame.bytes for frame in frames])
        text = _LOST.get(int(event["event"]))
        if text is None:
            return
        if self.state is not State.OPEN:
            self.fail("no connection", text)
            return
        self.fail("connection lost", text)
        assert self.proof is not None
        self._lost(self, self.proof)

    def dial_again(self) -> bool:
        """The lost connection's port accepts connections: dial again. Returns whether the neighbour has proven its identity since
        the loss."""
        if self.state is State.CLOSED and monotonic() - self._opened_s > STOOD_S:
            self._retry_s = 0.0
            self.open()
        return self.state is State.OPEN

    def reset_backoff(self) -> None:
        """Dial without a pause next time."""
        self._pause_s, self._retry_s = PAUSE_S_MIN, 0.0

    def fail(self, reason: str, text: str, node: NodeId = b"", error: PeerError | None = None) -> None:
        """Close the connection, and pause."""
        if self.state is State.CLOSED:
            return
        error = error or PeerError(f"{self.name}: {text}")
        node = node or self.node or b""
        if self.is_being_checked and reason == "no connection":
            self._hub.counters.refused[reason] += 1
        elif not self._for_challenge:
            self._hub.refuse(reason, str(error), node or self.name.encode(), node)
        self.close()
        self._retry_s = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        for future in self._waiting():
            future.set_exception(error)

    def _waiting(self) -> list[Future[Proof]]:
        waiting, self.asked = self.asked, []
        return [future for future in waiting if not future.done()]

    def close(self, linger_ms: int = 0) -> None:
        """Close the connection, and drop the queue."""
        if self._dealer is not None and self._monitor is not None:
            self._dealer.socket.disable_monitor()
            self._monitor.close()
            self._dealer.close(linger_ms)
        self._dealer = self._monitor = self._packet = None
        if self.outbox.nbytes:
            self._hub.counters.dropped["connection lost"] += 1
        self.outbox.clear()
        self.state = State.CLOSED
