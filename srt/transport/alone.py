"""The transport of an agent that is in no mesh: it opens no socket, and has nobody to send to."""

from __future__ import annotations

from elf.errors import PeerError
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact, Message
from elf.srt.transport.counters import Counters


class NoTransport:
    """In place of a `elf.srt.transport.transport.Transport`, which has the documentation, for one node that knows no other."""

    def __init__(self, me: NodeId) -> None:
        self.id = me
        self.address = ""
        self.counters = Counters()
        self.twins: dict[NodeId, str] = {}
        self.queued_bytes: dict[NodeId, int] = {}

    def start(self) -> None: ...

    def send(self, to: NodeId, message: Message) -> None:
        """Dropped and counted: it is for a neighbour of an earlier life, when the agent was in a mesh."""
        self.counters.dropped["no address"] += 1

    def has_room(self, to: NodeId) -> bool:
        return True

    async def ask(self, address: str) -> Contact:
        raise PeerError(f"{address}: this agent is in no mesh")

    async def instance_at(self, address: str) -> int:
        return 0

    def recheck(self) -> None: ...

    def reset_backoff(self) -> None: ...

    def close(self, linger_ms: int = 0) -> None: ...
