"""Messages between nodes over TCP: ZeroMQ sockets, encrypted, each neighbour authenticated by its key.

    send -> encode -> outbox of the neighbour -> (end of the loop's turn) stretch -> DEALER ==CURVE==> ROUTER -> decode -> deliver

The contract is that of the simulator's network: a message may be lost, and is dropped where a bound is reached (messages that
must arrive go over links, which resend); it is never changed, and its sender is authentic. `send` never blocks. Everything is
bounded: the queue of each neighbour, the number of neighbours, of connections and of unproven connections, the size of packets,
and the bytes of an incomplete message.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Callable
from time import monotonic

from elf.errors import ConfigError, PeerError
from elf.srt.codec.wire import LogForm, encode_parts
from elf.srt.link.rights import job_of
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.addresses import Address, key_text, parse_address
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import JobId, NodeId, node_id, short
from elf.srt.messages.messages import Contact, Life, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Keys, Trust
from elf.srt.transport.address_book import address_for
from elf.srt.transport.admission import Admission
from elf.srt.transport.challenges import Challenges
from elf.srt.transport.counters import Counters
from elf.srt.transport.dialer import Dialer, State
from elf.srt.transport.handshake import Gate, Proof
from elf.srt.transport.hub import HANDSHAKE_S, TWIN_S, Hub
from elf.srt.transport.listener import Listener
from elf.srt.transport.process_gone import is_gone

NEIGHBOURS_MAX = 512
"""Connections that this node opens; a new one replaces the least recently used. Leaf set, table and trees need about 100."""
TICK_S = 1.0
"""Between checks for idle connections and expired terms."""
RECHECK_TICKS = 30
"""Ticks between checks for expired certificates; a revoked one is detected at once, by `recheck`."""
_BULK = frozenset((m.Frame, r.Put, r.PutPart, r.Shown, r.ShownPart, m.GossipItems, m.Welcome, r.LedgerReport))


class Transport:
    """Sends and receives one node's messages. `keys` and `trust`: both, or None for loopback without security, where only `key`
    is sent.

    listen: "host:port"; port 0 is any. advertise: "host:port" at which others reach this node; "" is the address listened on.
    instance: of this process. contact_of: another node's contact in this node's overlay or directory. Callbacks:

    on_evidence: takes the evidence, a revocation, that a neighbour gives when it refuses this node; the caller must verify it.
    refused: called when the process of a neighbour is gone, as its host's kernel shows (`process_gone`).
    restarted: called when a neighbour whose connection was lost answers in a later life.
    refused_for: called when a neighbour refuses this process because of another one with its key: with that one's address and
    instance, and whether that one is itself the neighbour.
    """

    def __init__(
        self,
        me: NodeId,
        life: int,
        parameters: Parameters,
        *,
        keys: Keys | None,
        trust: Trust | None,
        key: bytes,
        listen: str,
        advertise: str = "",
        address_of: Callable[[NodeId], str | None],
        deliver: Callable[[NodeId, Message], None],
        notice: Callable[[Notice], None],
        log: LogForm | None = None,
        on_evidence: Callable[[bytes], None] = lambda evidence: None,
        instance: int,
        contact_of: Callable[[NodeId], Contact | None] = lambda node: None,
        refused_for: Callable[[str, int, bool], None] = lambda at, instance, is_itself: None,
        waits: Callable[[], bool] = lambda: False,
        refused: Callable[[NodeId, Life], None] = lambda node, life: None,
        restarted: Callable[[Contact], None] = lambda contact: None,
        unsendable: Callable[[JobId, Exception], None] | None = None,
    ) -> None:
        self._listen = parse_address(listen)
        if keys is None and not self._listen.is_loopback:
            raise ConfigError(
                f"listen: {listen} is not a loopback address, and there are no keys; issue keys, or listen on loopback"
            )
        if me != node_id(key) or (keys is not None and keys.curve_public != key):
            raise ConfigError("key: the node's id is not the hash of its key")
        self.id, self._key, self._advertise = me, key, advertise
        self._hub = Hub(
            Gate(key, life, instance, trust),
            keys,
            key,
            deliver=deliver,
            notice=notice,
            log=log,
            on_evidence=on_evidence,
            refused_for=refused_for,
            waits=waits,
            admission=Admission(contact_of),
        )
        self._address_of, self._refused, self._restarted = address_of, refused, restarted
        self._unsendable = unsendable  # called when encoding a job's message raises, which is a bug
        self._queue_bytes_max = 2 * parameters.link_bytes_max  # a link's window, and as much of datagrams
        self._congested_bytes = parameters.link_bytes_max // 2
        self._listener = Listener(self._hub, self._queue_bytes_max)
        self._challenges = Challenges(self._hub, self._hub.admission, self._listener.ask)
        self._hub.admit = self._challenges.admit
        self._peers: dict[NodeId, Dialer] = {}
        self._strangers: dict[str, Dialer] = {}  # by host:port, of unknown key
        self._checks: dict[NodeId, Task[bool]] = {}  # of neighbours whose connection was lost
        self._due: dict[Dialer, None] = {}  # to be flushed at the end of this turn
        self._is_due = self._is_closed = False
        self._ticks = 0
        self._timer: TimerHandle | None = None
        self._loop: AbstractEventLoop
        self.port = 0

    # Called by the host.

    def start(self) -> None:
        """Listen. Needs a running loop. Raises ConfigError."""
        self._loop = self._hub.loop = asyncio.get_running_loop()
        self.port = self._listener.open(self._listen)
        self._hub.advertised = self.address
        self._timer = self._loop.call_later(TICK_S, self._tick)

    @property
    def address(self) -> str:
        """ "host:port/KEY", for this node's `Contact`; after `start`."""
        endpoint = self._advertise or f"{self._listen.endpoint.rpartition(':')[0]}:{self.port}"
        return f"{endpoint}/{key_text(self._key)}"

    def send(self, to: NodeId, message: Message) -> None:
        """Never blocks; a message that cannot be sent or queued now is dropped and counted. O(bytes)."""
        counters = self._hub.counters
        if self._is_closed:
            return
        try:
            encoded = encode_parts(message, self._hub.log)
        except ValueError as error:
            self._hub.refuse("not encoded", f"a message to {short(to)} was not sent: {error}", to, to)
            return
        except Exception as error:
            job = job_of(message)
            if job is None or self._unsendable is None:
                raise
            self._unsendable(job, error)
            return
        counters.messages_out += 1
        is_urgent = type(message) not in _BULK
        dialer = self._dialer(to)
        reason = "no address" if dialer is None else dialer.send(encoded, is_urgent=is_urgent)
        if not reason:
            assert dialer is not None
            self._due[dialer] = None
        elif reason in ("no address", "unreachable"):
            back = self._listener.send(to, encoded, is_urgent=is_urgent)
            reason = reason if back == "no address" else back
        if reason:
            counters.dropped[reason] += 1
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def has_room(self, to: NodeId) -> bool:
        """Whether a message posted now is sent soon: less than half a link's window waits here."""
        dialer = self._peers.get(to)
        return dialer is None or dialer.waiting_bytes < self._congested_bytes

    async def ask(self, address: str) -> Contact:
        """The node at that address; the connection to it stays open. Raises PeerError: no node answers, or one with another
        key."""
        wanted = parse_address(address)
        self._check_reach(wanted)
        if wanted.id is not None:
            dialer = self._peers.get(wanted.id)
            if dialer is None or dialer.address != wanted:
                dialer = self._open(wanted.id, wanted)
        else:
            dialer = self._strangers.get(wanted.endpoint)
            if dialer is None:
                dialer = self._strangers[wanted.endpoint] = self._new_dialer(None, wanted)
        proof = dialer.proof if dialer.state is State.OPEN else None
        if proof is None:
            if dialer.state is State.CLOSED and not dialer.open():
                raise PeerError(f"{wanted.endpoint}: it could not be reached a moment ago")
            future = self._loop.create_future()
            dialer.asked.append(future)
            async with asyncio.timeout(HANDSHAKE_S + 2 * TICK_S):
                proof = await future
        assert proof is not None
        where = str(Address(wanted.endpoint, proof.key))
        return Contact(node_id(proof.key), proof.life, where, 0, proof.instance)

    def recheck(self) -> None:
        """Certificates were revoked: close the connections to their holders."""
        self._listener.recheck()
        hub = self._hub
        for dialer in list(self._peers.values()):
            if dialer.state is State.OPEN and dialer.proof is not None:
                try:
                    hub.gate.vouched(dialer.proof, hub.wall_s())
                except PeerError as error:
                    dialer.fail("proof", str(error))

    def reset_backoff(self) -> None:
        """Neighbours that refused this process may accept it now: end the pauses of all dialers."""
        for dialer in (*self._peers.values(), *self._strangers.values()):
            dialer.reset_backoff()

    async def instance_at(self, address: str) -> int:
        """The instance of the process with this node's key at an address; 0 if none answers. That process learns that this one
        runs, too."""
        answer = await self._challenges.proof_at(address, self._key)
        return 0 if answer is None else answer.instance

    @property
    def twins(self) -> dict[NodeId, str]:
        """Nodes of which a second process was refused within the last `TWIN_S`, and the message about it."""
        since_s = monotonic() - TWIN_S
        return {node: text for node, (text, at_s, _) in self._hub.twins.items() if at_s >= since_s}

    @property
    def counters(self) -> Counters:
        """The present counts."""
        counters = self._hub.counters
        counters.connections_out = sum(peer.state is State.OPEN for peer in self._peers.values())
        return counters

    @property
    def queued_bytes(self) -> dict[NodeId, int]:
        """Bytes that wait for each neighbour, where there are any."""
        return {node: peer.waiting_bytes for node, peer in self._peers.items() if peer.waiting_bytes}

    def close(self, linger_ms: int = 0) -> None:
        """Close everything. `linger_ms`: how long messages sent before may take to leave, and this call may block."""
        if self._is_closed:
            return
        self._flush()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for look in self._checks.values():
            look.cancel()
        self._challenges.close()
        for dialer in (*self._peers.values(), *self._strangers.values()):
            dialer.close(linger_ms)
        self._listener.close()
        self._hub.context.term()

    # Neighbours.

    def _dialer(self, to: NodeId) -> Dialer | None:
        """The dialer for that node, at its present address."""
        hub = self._hub
        text = self._address_of(to) or hub.address_book.of(to)
        known = self._peers.get(to)
        if known is not None and (text is None or str(known.address) == text):
            return known
        address = address_for(to, text, needs_key=hub.keys is not None)
        if address is None or (hub.keys is None and not address.is_loopback):
            return known
        return self._open(to, address)

    def _open(self, to: NodeId, address: Address) -> Dialer:
        former = self._peers.pop(to, None)
        if former is not None:
            former.close()
        if len(self._peers) >= NEIGHBOURS_MAX:
            self._drop_least_used()
        dialer = self._peers[to] = self._new_dialer(to, address)
        return dialer

    def _new_dialer(self, node: NodeId | None, address: Address) -> Dialer:
        return Dialer(self._hub, node, address, self._queue_bytes_max, self._found, self._lost)

    def _drop_least_used(self) -> None:
        """Close the connection to the neighbour that was used least recently."""
        node = min(self._peers, key=lambda node: self._peers[node].used_s)
        self._peers.pop(node).close()

    def _found(self, dialer: Dialer, proof: Proof, *, is_later: bool) -> None:
        """A neighbour has proven its identity."""
        assert dialer.node is not None
        self._hub.let_in(dialer.node, proof)
        if is_later:
            self._restarted(Contact(dialer.node, proof.life, str(dialer.address), 0, proof.instance))
        endpoint = dialer.address.endpoint
        if self._strangers.get(endpoint) is not dialer:
            return
        del self._strangers[endpoint]
        dialer.address = Address(endpoint, proof.key)
        former = self._peers.pop(dialer.node, None)
        if former is not None:
            former.close()
        self._peers[dialer.node] = dialer

    def _lost(self, dialer: Dialer, proof: Proof) -> None:
        """A proven connection to a neighbour was lost: check its process. At most one check for each neighbour runs at a time."""
        node, life = dialer.node, proof.life
        assert node is not None
        former = self._checks.get(node)
        if former is not None:
            former.cancel()
        look = self._checks[node] = self._loop.create_task(
            is_gone(dialer.address, lambda: self._listener.is_connected(node), dialer.dial_again)
        )
        dialer.is_being_checked = True
        look.add_done_callback(lambda done: self._checked(dialer, node, life, done))

    def _checked(self, dialer: Dialer, node: NodeId, life: Life, done: Task[bool]) -> None:
        if self._checks.get(node) is done:
            del self._checks[node]
            dialer.is_being_checked = False
        if not done.cancelled() and not self._is_closed and done.result():
            self._hub.notify("process gone", f"{dialer.name}: its process has ended", node, node)
            self._refused(node, life)

    def _check_reach(self, address: Address) -> None:
        if self._hub.keys is None and not address.is_loopback:
            raise PeerError(
                f"{address.endpoint}: without keys only loopback addresses are dialled; issue keys"
            )
        if self._hub.keys is not None and address.key is None:
            raise PeerError(
                f"{address.endpoint}: the key is missing; a seed is host:port/KEY, as `elf keys show` prints it"
            )

    # Turns and time.

    def _flush(self) -> None:
        self._is_due = False
        due, self._due = self._due, {}
        for dialer in due:
            dialer.flush()
        self._listener.flush()

    def _tick(self) -> None:
        now = monotonic()
        for dialer in list(self._peers.values()):
            dialer.tick(now)
        for endpoint, dialer in list(self._strangers.items()):
            dialer.tick(now)
            if dialer.state is State.CLOSED:
                del self._strangers[endpoint]
        self._listener.tick(now)
        self._ticks += 1
        if self._ticks % RECHECK_TICKS == 0:
            self.recheck()
        self._timer = self._loop.call_at(round(self._loop.time()) + TICK_S, self._tick)
