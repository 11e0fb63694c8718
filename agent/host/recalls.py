"""Records of jobs that failed here, read back from disk for their next seats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from elf.agent.disk.store import Store
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.jobmaster.log.stored import Stored
from elf.srt.messages.ids import JobId


class Host(Protocol):
    """What `Recalls` needs of the process around a node."""

    node: MeshNode
    store: Store
    is_over: bool

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...


class Recalls:
    """The reads that have begun and not ended."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, job: JobId) -> None:
        """Read a job's records; the node gets them, or why they cannot be read."""
        task = asyncio.get_running_loop().create_task(self._recall(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _recall(self, job: JobId) -> None:
        host = self._host
        records: Stored | Exception
        try:
            records = await host.store.recall(job)
        except Exception as error:
            records = error
        if not host.is_over:
            host.perform(host.node.recalled(job, records, host.clock_us()))
        if isinstance(records, Stored):
            records.close()
