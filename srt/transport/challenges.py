"""Processes that wait for admission while the known process with their key is challenged: does it still run?

A challenge is a separate connection to the known address, with one packet each way, and one packet each way over the connection
that the known process has opened to this node, if there is one. Newcomers with the same key are decided one after the other, each
against the process that is known by then.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from elf.errors import PeerError
from elf.srt.messages.addresses import Address, parse_address
from elf.srt.messages.ids import NodeId
from elf.srt.transport.admission import CHALLENGE_S, Admission
from elf.srt.transport.dialer import Dialer
from elf.srt.transport.handshake import Proof
from elf.srt.transport.hub import Hub

NODES_MAX = 512
"""Nodes challenged at once: as many as a node has neighbours, all of which may have restarted."""
WAITING_MAX = 4
"""Waiting newcomers with one key: a process has at most two connections to another."""
PACKET_BYTES_MAX = 1 << 10
"""Queue of a connection for a challenge, which sends no messages."""

Inbound = Callable[[NodeId], Awaitable[Proof | None]]
Decided = Callable[[PeerError | None], None]
"""Called with the reason of a refusal, or None."""


class Challenges:
    """Sends challenges and collects the answers, by which `admission` decides. `inbound` challenges over the connection that a
    node has opened (`Listener.ask`)."""

    def __init__(self, hub: Hub, admission: Admission, inbound: Inbound) -> None:
        self._hub, self._admission, self._inbound = hub, admission, inbound
        self._waiting: dict[NodeId, deque[tuple[Proof, str, Decided]]] = {}
        self._tasks: dict[NodeId, Task[None]] = {}
        self._dialers: set[Dialer] = set()
        self._is_closed = False

    def admit(self, node: NodeId, proof: Proof, dialed: str, decided: Decided) -> None:
        """Decide whether to admit that process; `decided` is called at once where no challenge is needed."""
        waiting = self._waiting.get(node)
        if waiting is not None and len(waiting) < WAITING_MAX:
            waiting.append((proof, dialed, decided))
            return
        try:
            challenged = self._admission.ask(node, proof, dialed, monotonic()) if waiting is None else [""]
        except PeerError as error:
            decided(error)
            return
        if not challenged:
            decided(None)
        elif waiting is not None or len(self._waiting) >= NODES_MAX:
            decided(PeerError("too many processes with its key connect at once; it may try again"))
        else:
            self._waiting[node] = deque([(proof, dialed, decided)])
            self._tasks[node] = self._hub.loop.create_task(self._decide(node))

    async def _decide(self, node: NodeId) -> None:
        waiting = self._waiting[node]
        try:
            while waiting:
                proof, dialed, decided = waiting[0]
                error = await self._verdict(node, proof, dialed)
                waiting.popleft()
                decided(error)
        finally:
            del self._waiting[node], self._tasks[node]

    async def _verdict(self, node: NodeId, proof: Proof, dialed: str) -> PeerError | None:
        try:
            addresses = self._admission.ask(node, proof, dialed, monotonic())
            if addresses:
                self._admission.decide(
                    node, proof, await self._answers(node, addresses, proof.key), monotonic()
                )
        except PeerError as error:
            return error
        return None

    async def _answers(self, node: NodeId, addresses: Sequence[str], key: bytes) -> list[tuple[str, Proof]]:
        """(address, proof) of the processes that answer; the dialled ones first."""
        dialed = [address for address in addresses if address]
        asked = (self.proof_at(address, key) for address in dialed)
        *found, back = await asyncio.gather(*asked, self._inbound_proof(node))
        answers = [(address, answer) for address, answer in zip(dialed, found, strict=True) if answer]
        return answers if back is None else [*answers, (back.address, back)]

    async def _inbound_proof(self, node: NodeId) -> Proof | None:
        """The answer over the connection that the node has opened; None if there is none in time."""
        try:
            async with asyncio.timeout(CHALLENGE_S):
                return await self._inbound(node)
        except (PeerError, TimeoutError):
            return None

    async def proof_at(self, address: str, key: bytes) -> Proof | None:
        """The proof of the process at that address; None if no process answers with that key in time."""
        hub = self._hub
        try:
            where = Address(parse_address(address).endpoint, key)
        except PeerError:
            return None
        if self._is_closed or (hub.keys is None and not where.is_loopback):
            return None
        dialer = Dialer(hub, None, where, PACKET_BYTES_MAX, _nothing, _nothing, for_challenge=True)
        future: asyncio.Future[Proof] = hub.loop.create_future()
        dialer.asked.append(future)
        self._dialers.add(dialer)
        try:
            dialer.open()
            async with asyncio.timeout(CHALLENGE_S):
                return await future
        except (PeerError, TimeoutError):
            return None
        finally:
            self._dialers.discard(dialer)
            dialer.close()

    def close(self) -> None:
        """Close the connections at once: a cancelled task closes its own only when the loop runs again, and libzmq waits for each
        socket when its context ends."""
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        for dialer in self._dialers:
            dialer.close()


def _nothing(dialer: Dialer, proof: Proof, *, is_later: bool = False) -> None:
    """A connection for a challenge belongs to no neighbour."""
