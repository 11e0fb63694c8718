"""What the sinks of an agent need of the process around them, and how each of them takes parts of large windows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elf.agent.control.gathering import Gathering, OnDisk
from elf.agent.control.signed_messages import SignedMessages
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.errors import PeerError
from elf.srt.messages.effects import Effect, Send, Write
from elf.srt.messages.ids import NodeId
from elf.srt.messages.results import LedgerRequest, Put, PutPart

LOST_S = 1.0
"""After which a cancellation is taken for lost."""
Records = Mapping[bytes, Sequence[Any]]
"""Of ledgers of earlier lives by their keys, in memory: the disk's are closed when an agent has begun."""
ToSink = LedgerRequest | Put | PutPart


class Recorder(Protocol):
    """The disk, for records of no core."""

    def write(self, write: Write, done: Callable[[], None]) -> None:
        """`done` is called when the record is durable."""


class Host(Protocol):
    """The process around a node."""

    notices: Callable[[str], None]

    @property
    def node(self) -> MeshNode: ...

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...

    def end(self, error: Exception) -> None:
        """End the process with that error."""

    @property
    def signed_messages(self) -> SignedMessages:
        """Set when the agent has begun, after its sinks are there."""

    @property
    def store(self) -> Recorder: ...


def carry(host: Host, effects: Sequence[Effect], owner: object) -> None:
    """Perform the effects of one sink, in their order: an answer after the record that it follows from."""
    host.perform(host.node.carry(effects, host.clock_us(), owner))


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel it until it has ended: a library may lose a cancellation, as `asyncio.wait_for` of Python 3.11 does."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=LOST_S)


class Parts:
    """The parts of the large windows of one sink, or of several that share a folder."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        node = host.node
        self._gathering = Gathering(node.parameters.window_bytes_max, node.life, lambda: OnDisk(folder))
        self._said = ""

    def take(self, source: NodeId, part: PutPart) -> Put | None:
        """Answer a part at once. Returns the window, if it is whole now; it is answered when it is durable. Raises OSError."""
        try:
            put, reply = self._gathering.step(part, self._host.clock_us())
        except PeerError as error:
            self._say(str(error))
            return None
        except OSError as error:
            self._say(str(error))
            raise
        if reply is not None:  # after the effects of this message
            asyncio.get_running_loop().call_soon(carry, self._host, [Send(source, reply)], None)
        return put

    def forget(self, put: Put) -> None:
        """Drop a window that the ledger has."""
        self._gathering.forget(put)
        self._said = ""

    def _say(self, text: str) -> None:
        if text != self._said:
            self._host.notices(
                f"sinks: a part of a large window was refused: {text}; its master sends it again"
            )
        self._said = text
