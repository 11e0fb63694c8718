"""An agent's sources: each is read in a thread of its own at the node's requests, within the limit on processor time."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Protocol

from elf.agent.config.config import Config
from elf.agent.control.columns import Columns, advertised, with_columns
from elf.agent.host.cpu_share import CpuShare
from elf.agent.host.job_costs import JobCosts
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.work.mesh_source import MeshSource
from elf.agent.work.seen_columns import SeenColumns
from elf.cbt.budget import Budget
from elf.errors import SourceError
from elf.jobmaster.directory.job_spec import SourceColumns, decode_agent
from elf.srt.messages.effects import Notice, Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item, Micros

READ_RETRY_S = 5.0
COLUMNS_S = 10.0
"""How often the columns of logs whose format is detected are looked at, and advertised if they changed."""


class Host(Protocol):
    """What `SourceThreads` needs of the process around a node."""

    node: MeshNode
    costs: JobCosts
    notices: Callable[[str], None]
    is_over: bool

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...

    def notice(self, notice: Notice) -> None: ...

    def announce(self, item: Item) -> None: ...


class SourceThreads:
    """Runs on the loop of its host, except for the reading itself. cpu_max: see `CpuShare`."""

    def __init__(self, host: Host, cpu_max: float | None) -> None:
        self._host = host
        self.sources: dict[str, MeshSource] = {}
        self._columns: dict[str, SeenColumns] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._share: CpuShare | None = None
        if cpu_max is not None:
            self._share = CpuShare(cpu_max, time.process_time(), time.monotonic())

    def open(
        self,
        config: Config,
        me: NodeId,
        budget: Budget,
        idle_grace_us: Micros,
        opened: ExitStack,
        *,
        is_lost: bool,
    ) -> None:
        """is_lost: the agent ran before, and its notes were deleted; files that exist now do not count as older than it."""
        for section in config.sources:
            self.sources[section.name] = MeshSource(
                section.name,
                section.paths,
                section.format,
                section.timezone,
                me,
                budget,
                config.agent.state_dir,
                agent=config.agent.name,
                idle_grace_us=idle_grace_us,
                start="beginning" if is_lost else section.start,
            )
            self._columns[section.name] = SeenColumns(section.format, section.paths)
            thread = self._threads[section.name] = ThreadPoolExecutor(1, f"elf-{section.name}")
            opened.callback(self.sources[section.name].close)
            opened.callback(thread.shutdown, cancel_futures=True)

    def columns(self) -> tuple[SourceColumns, ...]:
        """The columns of the logs beyond the canonical ones, for the agent's advert."""
        return self._advertised({name: seen.look() for name, seen in self._columns.items()})

    def _advertised(self, found: Mapping[str, Columns]) -> tuple[SourceColumns, ...]:
        return advertised(found, {name: seen.lateness_us for name, seen in self._columns.items()})

    def read(self, read: Read) -> None:
        """Read in the source's thread, once the limit on processor time allows it."""
        delay = self._share.wait_s(time.process_time(), time.monotonic()) if self._share is not None else 0.0
        if delay:
            asyncio.get_running_loop().call_later(delay, self._read_now, read)
        else:
            self._read_now(read)

    def _read_now(self, read: Read) -> None:
        seat = self._host.node.seats.get(read.job)
        if self._host.is_over or seat is None or seat.worker is None or not seat.worker.schedule:
            return  # without a schedule it is another worker than the one that asked: its job was started again
        name = seat.spec.source
        future = asyncio.get_running_loop().run_in_executor(
            self._threads[name],
            self.sources[name].read,
            read,
            seat.worker.schedule,
            self._host.clock_us(),
            time.monotonic(),
        )
        future.add_done_callback(lambda done: self._cut(read, self.sources[name], done))

    def _cut(self, read: Read, source: MeshSource, done: asyncio.Future[Cut]) -> None:
        """Report a cut to the node, which knows whether the job still has the seat that asked for it."""
        if self._host.is_over or done.cancelled():
            return
        error = done.exception()
        self._host.costs.spent(source.take_spent())
        for text in source.take_notices():
            self._host.notices(text)
        with suppress(OSError):  # spilling fails now; the store reports why
            source.account()
        if error is None:
            self._host.costs.cut(read.job, done.result())
            self._host.perform(self._host.node.cut(done.result(), self._host.clock_us()))
            return
        if isinstance(error, Exception) and not isinstance(error, OSError | MemoryError | SourceError):
            self._host.perform(self._host.node.read_failed(read.job, error, self._host.clock_us()))
            return
        traceback.print_exception(error)
        self._host.notice(Notice("read", f"reading failed ({error}), see the traceback above; it is retried"))
        asyncio.get_running_loop().call_later(READ_RETRY_S, self.read, read)

    async def look_at_columns(self) -> None:
        """Advertise again if logs with a detected format get other columns."""
        while any(seen.is_detected for seen in self._columns.values()):
            await asyncio.sleep(COLUMNS_S)
            found = {
                name: await asyncio.get_running_loop().run_in_executor(self._threads[name], seen.look)
                for name, seen in self._columns.items()
            }
            node = self._host.node
            held = node.directory.get("agent", node.id)
            columns = self._advertised(found)
            if node.columns != columns and held is not None and not self._host.is_over:
                node.columns = columns
                advert = with_columns(decode_agent(held), node.columns)
                self._host.announce(advert.item(node.id))
