"""The sinks that an agent serves to the jobs of its mesh: each master's windows go into lakes, and their ledgers say which.

    Put, LedgerAsk -> queue -> (thread) checked -> ledger -> (thread) lake, durable -> ledger on disk -> PutTell, LedgerTell

What has come while one batch was on its way makes the next, so that the lake's writer process runs some three times a second at
most. Nothing is answered before it is durable: a lake that is full or slow is asked again, and the master repeats what
was not answered, within bounds of its own. Of a crash between lake and ledger nothing remains but a file that the next
Put of that window writes once more under the same name.

A lake knows more than a ledger that was lost: a new ledger begins with a fence above every revision in the lake, so that a
mesh which begins anew gives higher ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from elf.agent.compaction import Compaction
from elf.agent.mesh.cell_types import check_pane
from elf.agent.mesh.specs import SinkSection
from elf.agent.mesh_node import MeshNode, Outer
from elf.errors import PeerError
from elf.jobmaster.job_spec import JobSpec, decode_job
from elf.jobmaster.outbox import put_bytes
from elf.jobmaster.states_told import PaneReader
from elf.sinks.ledger import Ledger
from elf.sinks.parquet import ParquetSink
from elf.sinks.result import PaneState
from elf.srt.effects import Effect
from elf.srt.ids import ID_BYTES, JobId, NodeId
from elf.srt.messages import Ballot, LedgerAsk, Message, Put

GATHER_S = 0.25
RETRY_S = 5.0
COMPACT_LOOK_S = 60.0
QUEUE_BYTES_MAX = 64 << 20
"""What does not fit is not answered, so that its master says it again: four masters with full outboxes."""
READERS_MAX = 256

Letter = tuple[NodeId, LedgerAsk | Put]
Records = Mapping[tuple[str, bytes], Sequence[Any]]


class Host(Protocol):
    """What sinks need of the process around a node."""

    @property
    def node(self) -> MeshNode: ...

    @property
    def notices(self) -> Callable[[str], None]: ...

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...


class SinkHost:
    """On the loop of its host, all but reading and writing."""

    def __init__(self, sections: Sequence[SinkSection], host: Host, records: Records) -> None:
        """Raises ElfError without pyarrow, UsageError where a lake's folder cannot be made."""
        self._host = host
        self._lakes = {section.name: ParquetSink(section.parquet) for section in sections}
        self._ledgers: dict[JobId, Ledger] = {}
        for (kind, job), known in records.items():
            if kind == "ledger":
                self._ledgers[job] = Ledger(job)
                self._ledgers[job].restore(known)
        self._readers: dict[tuple[str, str], PaneReader] = {}
        self._queue: dict[tuple[Any, ...], Letter] = {}
        self._queued_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "elf-sinks")
        self._compaction = Compaction([lake.directory for lake in self._lakes.values()], time.monotonic())
        self._compact_at = 0.0
        self._is_refused = False
        self.stored = 0
        """Windows taken since the start."""
        host.node.sink = self.take

    def take(self, source: NodeId, message: Message) -> None:
        """A word of a master. What is repeated while the first is on its way is dropped."""
        if isinstance(message, Put):
            key: tuple[Any, ...] = (source, message.job, message.version, message.start, message.revision)
            size = put_bytes(message)
        elif isinstance(message, LedgerAsk):
            key, size = (source, message.job, message.ballot), 0
        else:
            return
        if key in self._queue or self._queued_bytes + size > QUEUE_BYTES_MAX:
            return
        self._queue[key] = (source, message)
        self._queued_bytes += size
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """What is not durable by now comes again, to the next life."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _serve(self) -> None:
        """Batch after batch, until nothing waits."""
        try:
            while self._queue:
                await asyncio.sleep(GATHER_S)
                letters, self._queue, self._queued_bytes = list(self._queue.values()), {}, 0
                await self._take_batch(letters)
                self._compact()
        finally:
            self._work = None

    async def _take_batch(self, letters: Sequence[Letter]) -> None:
        known = [(letter, spec) for letter in letters if (spec := self._spec(letter[1])) is not None]
        checked = await self._in_thread(self._check, known)
        effects: list[Effect] = []
        states: list[tuple[str, PaneState]] = []
        for (source, message), spec, made in checked:
            ledger = self._ledgers[message.job]
            effects += ledger.step(source, message, self._host.clock_us())
            for _ in ledger.take_accepted():
                states += [(name, state) for name in self._names(spec) for state in made]
                self.stored += 1
        await self._in_thread(self._put, states)
        while not await self._in_thread(self._flush):
            await asyncio.sleep(RETRY_S)
        now = self._host.clock_us()
        self._host.perform(self._host.node.carry(effects, now, self))

    async def _in_thread(self, do: Callable[..., Any], *about: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *about)

    def _spec(self, message: LedgerAsk | Put) -> JobSpec | None:
        """Of a job that has a sink here."""
        item = self._host.node.directory.get("job", message.job)
        spec = decode_job(item) if item is not None else None
        return spec if spec is not None and self._names(spec) else None

    def _names(self, spec: JobSpec) -> list[str]:
        return [name for name in spec.sinks if name in self._lakes]

    # In the thread.

    def _check(
        self, letters: Sequence[tuple[Letter, JobSpec]]
    ) -> list[tuple[Letter, JobSpec, list[PaneState]]]:
        """What can be stored, and as what; the ledgers are open then. A version that is not known yet is left unanswered."""
        found = []
        for (source, message), spec in letters:
            if message.job not in self._ledgers:
                self._ledgers[message.job] = self._new_ledger(spec)
            try:
                made = self._states(message, spec) if isinstance(message, Put) else []
            except PeerError as error:
                self._host.notices(
                    f"sink of job {spec.name}: a window that cannot be stored ({error}); it is left out"
                )
                continue
            if made is not None:
                found.append(((source, message), spec, made))
        return found

    def _new_ledger(self, spec: JobSpec) -> Ledger:
        ledger = Ledger(spec.id)
        epoch = max(self._lakes[name].next_epoch(spec.name) for name in self._names(spec)) - 1
        if epoch >= 0:
            ledger.fence = above_all(epoch)
        return ledger

    def _states(self, put: Put, spec: JobSpec) -> list[PaneState] | None:
        """Raises PeerError."""
        reader = self._reader(put.version, spec)
        if reader is None:
            return None
        states = reader.states(put)
        for state in states:
            check_pane(state)
        return states

    def _reader(self, version: str, spec: JobSpec) -> PaneReader | None:
        key = (spec.name, version)
        if key not in self._readers:
            plan = next((each.plan for each in spec.versions if each.digest == version), None)
            if plan is None:
                return None
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = PaneReader(spec.name, version, plan)
        return self._readers[key]

    def _put(self, states: Sequence[tuple[str, PaneState]]) -> None:
        for name, state in states:
            self._lakes[name].put_state(state)

    def _flush(self) -> bool:
        """Whether all lakes are durable. A refusal is said once."""
        for name, lake in self._lakes.items():
            try:
                lake.flush()
            except OSError as error:
                if not self._is_refused:
                    self._host.notices(
                        f"sink {name}: {lake.directory}: {error.strerror or error}; its windows wait, "
                        f"trying again every {RETRY_S:.0f} s"
                    )
                self._is_refused = True
                return False
        if self._is_refused:
            self._host.notices("sinks: all windows are stored again")
        self._is_refused = False
        return True

    @property
    def is_refused(self) -> bool:
        """Whether a lake takes nothing at present."""
        return self._is_refused

    def _compact(self) -> None:
        moment = time.monotonic()
        if moment >= self._compact_at:
            self._compact_at = moment + COMPACT_LOOK_S
            for failure in self._compaction.look(moment, time.time_ns() // 1_000):
                self._host.notices(failure)


def above_all(epoch: int) -> Ballot:
    """Above every ballot of that epoch."""
    return epoch, b"\xff" * ID_BYTES
