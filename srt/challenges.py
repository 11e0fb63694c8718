"""Newcomers that wait at the door while the process that is known by their key is challenged: who runs at its address?

A challenge is a connection of its own, with one packet each way. Several newcomers of one node are decided one after the other,
each by what is known then.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Callable
from time import monotonic

from elf.errors import PeerError
from elf.srt.addresses import Address, parse_address
from elf.srt.admission import CHALLENGE_S, Admission
from elf.srt.handshake import Proof
from elf.srt.ids import NodeId
from elf.srt.outward import Outward
from elf.srt.station import Station

NODES_MAX = 512
"""Nodes under challenge at once: as many as a node has neighbours, all of which may have been restarted."""
WAITING_MAX = 4
"""Newcomers of one node: a process has two connections to another at most."""
PACKET_BYTES_MAX = 1 << 10
"""Nothing is queued for a connection that only asks."""

Decided = Callable[[PeerError | None], None]
"""Told the reason of a refusal, or None."""


class Challenges:
    """`admission` decides; this asks and waits."""

    def __init__(self, station: Station, admission: Admission) -> None:
        self._station, self._admission = station, admission
        self._waiting: dict[NodeId, deque[tuple[Proof, str, Decided]]] = {}
        self._tasks: dict[NodeId, Task[None]] = {}

    def admit(self, node: NodeId, proof: Proof, dialed: str, decided: Decided) -> None:
        """Whether that process may come in; `decided` is called at once where nobody has to be challenged."""
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
            decided(PeerError("too many processes with its key knock at once; it may come again"))
        else:
            self._waiting[node] = deque([(proof, dialed, decided)])
            self._tasks[node] = self._station.loop.create_task(self._decide(node))

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
                found = await asyncio.gather(*(self.who(address, proof.key) for address in addresses))
                answers = [
                    (address, answer) for address, answer in zip(addresses, found, strict=True) if answer
                ]
                self._admission.decide(node, proof, answers, monotonic())
        except PeerError as error:
            return error
        return None

    async def who(self, address: str, key: bytes) -> Proof | None:
        """Who runs there; None where nobody answers for that key, or not in time."""
        station = self._station
        try:
            where = Address(parse_address(address).endpoint, key)
        except PeerError:
            return None
        if station.keys is None and not where.is_loopback:
            return None
        outward = Outward(station, None, where, PACKET_BYTES_MAX, _nothing, _nothing, only_asks=True)
        future = station.loop.create_future()
        outward.asked.append(future)
        try:
            outward.open()
            return await asyncio.wait_for(future, CHALLENGE_S)
        except (PeerError, TimeoutError):
            return None
        finally:
            outward.close()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


def _nothing(outward: Outward, proof: Proof, *, is_later: bool = False) -> None:
    """A connection that only asks is of nobody."""
