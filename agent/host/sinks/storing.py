"""A sink of an agent that stores windows: a lake, or the streams on its standard output. Each has a queue, a thread and ledgers
of its own, so that one that takes nothing holds up no other (rule Alone*).

    Put, LedgerRequest -> queue -> (thread) checked -> ledger -> (thread) lake, durable -> ledger on disk -> reply
    PutPart -> gathered in a file beside the lake -> PartReply; whole: as a Put

Messages that arrive while one batch is being stored form the next, so the lake's writer process runs at most some three times
a second. A window is answered only once it is durable: writes to a full or slow lake are retried, and the master repeats
unanswered messages, within its own bounds. A crash between lake and ledger leaves only a file, which the next Put of that window
writes again under the same name.

An exception for one job affects only that job: its messages are dropped until a back-off is over (`elf.agent.node.vacancy`), and
its ledgers start again as lost ones, since they may be ahead of the lake. The other windows of the batch are stored.

If a ledger is lost, its lake still has files: a new ledger starts with a fence above all of them, so that a mesh that starts
again uses higher ones, and with the windows that they hold, so that a change of the job withdraws these (`lake_ledgers`). A
ledger that lacks the last windows, because the agent ended before its disk took them, gets them in the same way. Of a stream only
the ledger knows what was written: a window that was written just before the process was killed may be written once more, in the
same revision; and if the ledger is lost, all retained windows are.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from elf.agent.host.cell_types import check_pane
from elf.agent.host.sinks.lake_ledgers import adopt, key_of
from elf.agent.host.sinks.streams import Streams
from elf.agent.host.sinks.surroundings import Host, Parts, ToSink, carry
from elf.agent.node.vacancy import Vacancy, is_fault
from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import put_bytes
from elf.jobmaster.delivery.ledger import Ledger, above_all
from elf.jobmaster.delivery.shown import check_rows, window_of
from elf.jobmaster.delivery.states import PaneReader
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.windows.result import PaneState, StreamClosed, Window
from elf.sinks.lake.parquet import ParquetSink, WriterDied, WriterProcess, cause
from elf.srt.messages.effects import Effect, Write
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Message
from elf.srt.messages.reports import Failing, SinkState
from elf.srt.messages.results import WITHDRAWN, LedgerRequest, Put, PutPart

GATHER_S = 0.25
RETRY_S = 5.0
QUEUE_BYTES_MAX = 64 << 20
"""Bound on the bytes of queued messages: four masters with full outboxes. Further messages are not answered, so their masters
repeat them."""
READERS_MAX = 256
PROBLEM_CHARS = 200

Letter = tuple[NodeId, ToSink, JobSpec]
Failed = dict[JobId, tuple[JobSpec, NodeId, Exception]]
"""Jobs that failed in a batch: the sender of the message, and why."""
Made = tuple[list[PaneState], Window | None]
"""Of a window: the states for a lake, or the window for a stream."""
Senders = Mapping[str, tuple[JobSpec, NodeId]]
"""Jobs of a batch by name, with the sender of a message of each."""


class Storing:
    """One lake, or the streams of the process. Runs on the loop of its host, except for reading and writing."""

    def __init__(
        self,
        lakes: Mapping[str, ParquetSink],
        streams: Streams,
        host: Host,
        records: dict[bytes, list[Any]],
        folder: Path,
        has_stored: Callable[[], None],
        adopts: bool = True,
    ) -> None:
        """records: of ledgers of earlier lives; of streams, as they are on disk. folder: for parts of windows. has_stored: called
        after each batch. adopts: whether windows that only a lake's files show are results of the job; else a job replaces those
        that it has too, and leaves the others."""
        self._adopts = adopts
        self._host, self._lakes, self._streams, self._records = host, lakes, streams, records
        self._has_stored = has_stored
        self._ledgers: dict[JobId, dict[str, Ledger]] = {}
        self._parts = Parts(host, folder)
        self._readers: dict[tuple[str, str], PaneReader] = {}
        self._queue: dict[tuple[Any, ...], Letter] = {}
        self.queued_bytes = 0
        """Bytes of windows that wait for the lake."""
        self._unwritten: list[tuple[JobId, list[Effect]]] = []
        """What is to be done once standard output has taken the text of those jobs. Their messages are dropped until then."""
        self._taken: dict[tuple[Any, ...], Letter] = {}  # that are being stored
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "elf-sinks")
        self.is_refused = False
        self.refusal = ""
        """Whether writes fail at present, and why."""
        self._unshown = ""  # why an open window was not shown
        self._stored: Counter[str] = Counter()
        self._since: dict[str, int] = {}
        """Since when windows wait, by the name of their sink."""
        self._failures = 0
        self._vacancies: dict[JobId, Vacancy] = {}  # jobs whose windows could not be stored
        # Jobs whose ledgers start again, and the epoch that they served.
        self._reset_ledgers: dict[JobId, int] = {}

    def take(self, source: NodeId, message: ToSink, spec: JobSpec) -> None:
        """Take a master's message. Repetitions are dropped while the first one is being processed."""
        if self._is_dropped(source, message):
            return
        about = (source, message.job, message.sink)
        if isinstance(message, LedgerRequest):
            self._enqueue((*about, message.ballot), 0, source, message, spec)
            return
        key, size = (*about, message.version, message.start, message.revision), 0
        ledger = self._ledgers.get(message.job, {}).get(message.sink)
        if isinstance(message, PutPart) and (ledger is None or ledger.wants(message)):
            try:
                put = self._parts.take(source, message)
            except OSError:
                self.is_refused = True
                return
            if put is None:
                return
            message = put  # its states are on disk, so it does not count in the queue
        elif isinstance(message, Put):
            size = put_bytes(message)
        self._enqueue(key, size, source, message, spec)

    def _enqueue(
        self, key: tuple[Any, ...], size: int, source: NodeId, message: ToSink, spec: JobSpec
    ) -> None:
        if key in self._queue or key in self._taken or self.queued_bytes + size > QUEUE_BYTES_MAX:
            return
        self._queue[key] = (source, message, spec)
        self._since.setdefault(message.sink, self._host.clock_us())
        self.queued_bytes += size
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._serve())

    @property
    def stored(self) -> int:
        """Windows stored since the start."""
        return self._stored.total()

    @property
    def _called(self) -> str:
        return f"sink {', '.join((*self._lakes, *self._streams.names))}"

    async def close(self) -> None:
        """Stop. Masters repeat messages that are not durable yet, for the next life."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        with suppress(OSError, StreamClosed):
            await self._in_thread(self._streams.close)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def show(self, name: str, window: Window) -> None:
        """See `Streams.show`, without errors of standard output. Raises StreamClosed."""
        try:
            await self._in_thread(self._streams.show, name, window)
        except OSError as error:
            self._unshown = f"sink {name}: {cause(error)}"
            self._refuse(self._unshown)
            return
        if self._unshown and self.refusal == self._unshown:
            self._host.notices(f"sink {name}: standard output: works again")
            self.is_refused, self.refusal = False, ""
        self._unshown = ""

    async def _serve(self) -> None:
        """Process batches until the queue is empty."""
        try:
            while self._queue or self._unwritten:
                await asyncio.sleep(RETRY_S if self._unwritten else GATHER_S)
                self._taken, self._queue, self.queued_bytes = self._queue, {}, 0
                await self._take_batch(list(self._taken.values()))
                self._taken = {}
                waiting = (message.sink for _, message, _ in self._queue.values())
                self._since = dict.fromkeys(waiting, self._host.clock_us())
                self._has_stored()
        except StreamClosed as error:
            self._host.end(error)
        finally:
            self._work, self._taken = None, {}

    async def _take_batch(self, letters: Sequence[Letter]) -> None:
        failed: Failed = {}
        checked = await self._in_thread(self._check, letters, failed)
        effects: list[tuple[JobId, list[Effect]]] = []
        taken: list[tuple[Letter, Made]] = []
        for letter, made in checked:
            source, message, spec = letter
            if message.job in failed:
                continue
            ledger = self._ledgers[message.job][message.sink]
            try:
                effects.append((message.job, ledger.step(source, message, self._host.clock_us())))
                if ledger.take_accepted():
                    taken.append((letter, made))
            except Exception as error:
                failed[message.job] = spec, source, error
        self._stored.update(await self._in_thread(self._put, taken, failed))
        specs = {spec.name: (spec, source) for (source, _, spec), _ in checked}
        while not await self._in_thread(self._flush, specs, failed):
            await asyncio.sleep(RETRY_S)
        for (_, message, _), _ in checked:
            if isinstance(message, Put):
                self._parts.forget(message)
        for spec, source, reason in failed.values():
            self._failed(spec, source, reason)
        effects = await self._written([each for each in effects if each[0] not in failed])
        carry(self._host, [effect for _, stepped in effects for effect in stepped], self)

    async def _written(
        self, effects: Sequence[tuple[JobId, list[Effect]]]
    ) -> list[tuple[JobId, list[Effect]]]:
        """Write the streams' text. Returns the effects that may be performed: all, or those of jobs without a stream."""
        effects, self._unwritten = [*self._unwritten, *effects], []
        keys = {key_of(job, name): job for job, _ in effects for name in self._streams.names}
        writes = [
            each
            for _, stepped in effects
            for each in stepped
            if isinstance(each, Write) and each.key[1] in keys
        ]
        if not await self._in_thread(self._write):
            waiting = {keys[write.key[1]] for write in writes}
            self._unwritten = [each for each in effects if each[0] in waiting]
            return [each for each in effects if each[0] not in waiting]
        # Unlike a lake, a stream cannot show what it holds when its ledger is opened again.
        for write in writes:
            if write.replace:
                self._records[write.key[1]] = []
            self._records.setdefault(write.key[1], []).append(write.record)
        return effects

    # Jobs that fail.

    def _is_dropped(self, source: NodeId, message: Message) -> bool:
        """Whether messages of that job, or those of this master, are dropped now."""
        job = getattr(message, "job", b"")
        if any(job == each for each, _ in self._unwritten):
            return True
        vacancy = self._vacancies.get(job)
        if vacancy is None:
            return False
        now = self._host.clock_us()
        vacancy.clock_stepped(now)
        if now >= (vacancy.deadline or 0):
            if not vacancy.is_vacant:
                del self._vacancies[job]
                return False
            vacancy.seated(now)
        return vacancy.is_vacant or source in vacancy.refused

    def _failed(self, spec: JobSpec, source: NodeId, error: Exception) -> None:
        """Back off from a job. Its ledgers in memory may be ahead of the lake, so they are dropped."""
        parameters, now = self._host.node.parameters, self._host.clock_us()
        vacancy = self._vacancies.setdefault(
            spec.id, Vacancy(spec, parameters.seat_retry_us, parameters.seat_retry_us_max)
        )
        is_news = vacancy.failed(error, now, source)
        served = [ledger.fence[0] for ledger in self._ledgers.pop(spec.id, {}).values()]
        self._reset_ledgers[spec.id] = max([self._reset_ledgers.get(spec.id, 0), *served])
        for lake in self._lakes.values():
            lake.discard(spec.name)
        if is_news:
            if is_fault(error):
                traceback.print_exception(error)
            self._host.notices(
                f"sinks: a window of job {spec.name} could not be stored ({vacancy.reason}); other jobs' windows are stored, and "
                f"this job's are tried again in {vacancy.again_us(now) / 1e6:.0f} s"
            )

    def failing(self, now: int) -> tuple[Failing, ...]:
        """Jobs whose windows could not be stored lately."""
        return tuple(vacancy.report(now) for vacancy in self._vacancies.values())

    async def _in_thread(self, do: Callable[..., Any], *about: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *about)

    # In the thread.

    def _check(self, letters: Sequence[Letter], failed: Failed) -> list[tuple[Letter, Made]]:
        """Open the ledgers of messages. Returns the messages that can be served, with what to store and to write; a message of an
        unknown version is not answered."""
        found = []
        for letter in letters:
            source, message, spec = letter
            known = self._ledgers.get(message.job, {})
            try:
                if message.sink not in known:
                    self._ledgers[message.job] = known | {message.sink: self._open(spec, message.sink)}
                made = self._made(message, spec) if isinstance(message, Put) else ([], None)
            except PeerError as error:
                self._host.notices(
                    f"sink of job {spec.name}: a window that cannot be stored ({error}); it is left out"
                )
                continue
            except Exception as error:
                failed[message.job] = spec, source, error
                continue
            if made is not None:
                found.append((letter, made))
        return found

    def _open(self, spec: JobSpec, name: str) -> Ledger:
        """The ledger from disk, with all windows that a lake's files show; without one, it is also above all masters that these
        name. Raises OSError."""
        ledger, lake = Ledger(spec.id, key_of(spec.id, name)), self._lakes.get(name)
        panes = lake.revisions(spec.name) if lake is not None else {}
        epoch = max((revision[0] for revision in panes.values()), default=-1)
        records = self._records.get(key_of(spec.id, name))
        if records is not None:
            ledger.restore(records)
        elif epoch >= 0:
            ledger.fence = above_all(epoch)
        if spec.id in self._reset_ledgers:
            ledger.fence = max(ledger.fence, above_all(max(epoch, self._reset_ledgers[spec.id])))
        if lake is not None and self._adopts:
            adopt(ledger, lake, spec, panes)
        return ledger

    def _made(self, put: Put, spec: JobSpec) -> Made | None:
        """Raises PeerError."""
        if put.sink not in self._streams:
            states = self._states(put, spec)
            return None if states is None else (states, None)
        check_rows(put)
        plan = next((plan_of(each.plan) for each in spec.whole if each.digest == put.version), None)
        if plan is None and put.status != WITHDRAWN:
            return None
        return [], window_of(spec.name, put, plan)

    def _states(self, put: Put, spec: JobSpec) -> list[PaneState] | None:
        """Raises PeerError."""
        reader = self._reader(put.version, spec)
        if reader is None:
            return [] if put.status == WITHDRAWN else None  # no lake can write windows of a dropped version
        states = reader.states(put)
        for state in states:
            check_pane(state)
        return states

    def _reader(self, version: str, spec: JobSpec) -> PaneReader | None:
        key = (spec.name, version)
        if key not in self._readers:
            found = next((each for each in spec.whole if each.digest == version), None)
            if found is None:
                return None
            # A lake keeps the query's text with the plan, for `elf verify`.
            plan = encode(replace(plan_of(found.plan), sql=found.text))
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = PaneReader(spec.name, version, plan)
        return self._readers[key]

    def _put(self, taken: Sequence[tuple[Letter, Made]], failed: Failed) -> Counter[str]:
        """Put windows into the lakes and the streams' text. Returns how many, by sink."""
        put: Counter[str] = Counter()
        for (source, message, spec), (states, window) in taken:
            if message.job in failed:
                continue
            try:
                for state in states:
                    self._lakes[message.sink].put_state(state)
                if window is not None:
                    self._streams.put(message.sink, window)
            except Exception as error:
                failed[message.job] = spec, source, error
                continue
            put[message.sink] += 1
        return put

    def _flush(self, specs: Senders, failed: Failed) -> bool:
        """Flush the lakes. Returns whether all are durable, except for failing jobs. Reports a failure of a lake once."""
        for name, lake in self._lakes.items():
            try:
                self._flush_lake(lake, specs, failed)
            except OSError as error:
                self._refuse(f"sink {name}: {cause(error)}")
                return False
            if left_out := lake.take_left_out():
                self._host.notices(f"sink {name}: {left_out}")
        return True

    def _write(self) -> bool:
        """Write the streams' text, after the lakes are flushed. Returns whether all is written."""
        try:
            self._streams.flush()
        except OSError as error:
            self._refuse(f"sink {', '.join(self._streams.names)}: {cause(error)}")
            return False
        if self.is_refused:
            self._host.notices(f"{self._called}: all windows are stored again")
        self.is_refused, self.refusal = False, ""
        return True

    def states(self, now: int) -> list[SinkState]:
        """What operators see of each sink."""
        return [self._state(name, now) for name in (*self._lakes, *self._streams.names)]

    def _state(self, name: str, now: int) -> SinkState:
        waiting = sum(
            message.sink == name for _, message, _ in (*self._queue.values(), *self._taken.values())
        )
        age = max(0, now - self._since.get(name, now)) if waiting else 0
        return SinkState(
            name,
            waiting,
            age,
            self._stored[name],
            0,
            self._failures,
            self.refusal.removeprefix(f"sink {name}: ")[:PROBLEM_CHARS],
        )

    def _refuse(self, refusal: str) -> None:
        self._failures += 1
        if refusal != self.refusal:
            self._host.notices(f"{refusal}; its windows wait, and are retried every {RETRY_S:.0f} s")
        self.is_refused, self.refusal = True, refusal

    @staticmethod
    def _flush_lake(lake: ParquetSink, specs: Senders, failed: Failed) -> None:
        """Flush all jobs at once; if that raises, one by one, since one job's data may kill the writer. Raises OSError."""
        try:
            lake.flush()
            return
        except OSError as error:
            if not isinstance(error, WriterDied):
                raise
            with WriterProcess() as writer:
                writer.try_out()
        except Exception:
            pass
        for job in lake.pending_jobs():
            try:
                lake.flush(job)
            except Exception as error:
                if isinstance(error, OSError) and not isinstance(error, WriterDied):
                    raise
                lake.discard(job)
                if job in specs:
                    spec, source = specs[job]
                    failed[spec.id] = spec, source, error
