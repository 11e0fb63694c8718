"""The sinks that an agent serves to the jobs of its mesh: it stores masters' windows in lakes, or writes them on its standard
output (`streams`), or delivers them to brokers (`outlets`), and records them in ledgers.

    Put, LedgerRequest -> queue -> (thread) checked -> ledgers -> (thread) lake, durable -> ledgers on disk -> reply
    PutPart -> gathered in a file beside the first lake -> PartReply; whole: as a Put

Messages that arrive while one batch is being stored form the next, so the lake's writer process runs at most some three times a
second. A window is answered only once it is durable: writes to a full or slow lake are retried, and the master repeats unanswered
messages, within its own bounds. While standard output takes nothing, jobs with a stream wait, and the others go on. A crash
between lake and ledger leaves only a file, which the next Put of that window writes again under the same name.

An exception for one job affects only that job: its messages are dropped until a back-off is over (`elf.agent.node.vacancy`), and
its ledgers start again as lost ones, since they may be ahead of the lake. The other windows of the batch are stored.

Each job has a ledger for each of its lakes here (`lake_ledgers`). If a ledger is lost, its lake still has files: a new ledger
starts with a fence above all of them, so that a mesh that starts again uses higher ones, and with the windows that they hold, so
that a change of the job withdraws these. A ledger that lacks the last windows, because the agent ended before its disk took them,
gets them in the same way. Of a stream only the ledger knows what was written: a window that was written just before the process
was killed may be written once more, in the same revision; and if the ledger is lost, all retained windows are.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from elf.agent.config.specs import SinkSection
from elf.agent.control.gathering import Gathering, OnDisk
from elf.agent.host.cell_types import check_pane
from elf.agent.host.compaction import Compaction
from elf.agent.host.sinks.alert_outlets import AlertOutlets
from elf.agent.host.sinks.lake_ledgers import adopt, key_of, step_all, wanted
from elf.agent.host.sinks.outlets import Outlets, Recorder, alert_carrier
from elf.agent.host.sinks.streams import Streams
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.node.vacancy import Vacancy, is_fault
from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import put_bytes
from elf.jobmaster.delivery.ledger import Ledger, above_all
from elf.jobmaster.delivery.shown import check_rows, window_of
from elf.jobmaster.delivery.states import PaneReader
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.settings import sinks_of
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.windows.result import PaneState, Window
from elf.sinks.lake.parquet import ParquetSink, WriterDied, WriterProcess, cause
from elf.srt.messages.effects import Effect, Send, Write
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Message
from elf.srt.messages.reports import PROBLEM_CHARS_MAX, AlertTest, AlertTestReport, Failing, SinkState
from elf.srt.messages.results import WITHDRAWN, AlertPut, AlertReply, LedgerRequest, Put, PutPart

GATHER_S = 0.25
RETRY_S = 5.0
COMPACT_LOOK_S = 60.0
QUEUE_BYTES_MAX = 64 << 20
"""Bound on the bytes of queued messages: four masters with full outboxes. Further messages are not answered, so their masters
repeat them."""
READERS_MAX = 256

Letter = tuple[NodeId, LedgerRequest | Put | PutPart]
Records = Mapping[tuple[str, bytes], Sequence[Any]]
Failed = dict[JobId, tuple[JobSpec, NodeId, Exception]]
"""Jobs that failed in a batch: the sender of the message, and why."""
Made = tuple[list[PaneState], Window | None]
"""Of a window: the states for the job's lakes here, and the window for its streams."""
Senders = Mapping[str, tuple[JobSpec, NodeId]]
"""Jobs of a batch by name, with the sender of a message of each."""


class Host(Protocol):
    """What `SinkHost` needs of the process around a node."""

    notices: Callable[[str], None]

    @property
    def node(self) -> MeshNode: ...

    def clock_us(self) -> int: ...

    def perform(self, effects: Sequence[Outer]) -> None: ...

    @property
    def store(self) -> Recorder: ...


class SinkHost:
    """Runs on the loop of its host, except for reading and writing."""

    def __init__(self, sections: Sequence[SinkSection], host: Host, records: Records, folder: Path) -> None:
        """folder: for parts of windows, if there is no lake. Raises ElfError without pyarrow, UsageError where a lake's folder
        cannot be made."""
        self._host = host
        self._lakes = {each.name: ParquetSink(each.parquet) for each in sections if each.parquet is not None}
        self._streams = Streams({each.name: each.console for each in sections if each.console is not None})
        self._ledgers: dict[JobId, dict[str, Ledger]] = {}
        self._records = {key: list(known) for (kind, key), known in records.items() if kind == "ledger"}
        """Ledgers of earlier lives; of streams, as they are on disk."""
        self._outlets = Outlets(sections, host.node.name, host, self._records, self._delivered)
        beside = next((lake.directory for lake in self._lakes.values()), folder)
        node = host.node
        bytes_max = node.parameters.window_bytes_max
        self._gathering = Gathering(bytes_max, node.life, lambda: OnDisk(beside))
        self._readers: dict[tuple[str, str], PaneReader] = {}
        self._queue: dict[tuple[Any, ...], Letter] = {}
        self.queued_bytes = 0
        """Bytes of windows that wait for the lakes."""
        self._unwritten: list[tuple[JobId, list[Effect]]] = []
        """What is to be done once standard output has taken the text of those jobs. Their messages are dropped until then."""
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "elf-sinks")
        self._compaction = Compaction([lake.directory for lake in self._lakes.values()], time.monotonic())
        self._compact_at = 0.0
        self.is_refused = False
        self.refusal = ""
        """Whether writes to a lake fail at present, and why."""
        self.stored = 0
        """Windows stored since the start."""
        self._test: asyncio.Task[None] | None = None
        self._vacancies: dict[JobId, Vacancy] = {}  # jobs whose windows could not be stored
        # Jobs whose ledgers start again, and the epoch that they served.
        self._reset_ledgers: dict[JobId, int] = {}
        self.alerts = AlertOutlets(
            sections, lambda section: alert_carrier(section, node.name), host, self._records, self._alert_told
        )
        host.node.sink = self.take

    def take(self, source: NodeId, message: Message) -> None:
        """Take a master's message. Repetitions are dropped while the first one is being processed."""
        if isinstance(message, AlertPut):
            self._alert(source, message)
            return
        if isinstance(message, Put):
            self._deliver(source, message)
        if self._is_dropped(source, message):
            return
        if isinstance(message, Put):
            key: tuple[Any, ...] = (source, message.job, message.version, message.start, message.revision)
            size = put_bytes(message)
        elif isinstance(message, LedgerRequest):
            key, size = (source, message.job, message.ballot), 0
        elif isinstance(message, PutPart) and (spec := self._spec(message)) is not None:
            if wanted(self._ledgers_of(spec), message):
                self._take_part(source, message)
                return
            key, size = (source, message.job, message.version, message.start, message.revision), 0
        else:
            return
        self._enqueue(key, size, source, message)

    def _take_part(self, source: NodeId, part: PutPart) -> None:
        """Take a part of a window that the ledgers lack. Answer the part at once, and the whole window when it is durable."""
        try:
            put, reply = self._gathering.step(part, self._host.clock_us())
        except (PeerError, OSError) as error:
            if not self.is_refused:
                self._host.notices(
                    f"sinks: a part of a large window was refused: {error}; its master sends it again"
                )
            self.is_refused = self.is_refused or isinstance(error, OSError)
            return
        if put is not None:  # its states are on disk, so it does not count in the queue
            self._deliver(source, put)
            self._enqueue((source, put.job, put.version, put.start, put.revision), 0, source, put)
        if reply is not None:  # after the effects of this message
            asyncio.get_running_loop().call_soon(self._answer, Send(source, reply))

    def _alert(self, source: NodeId, put: AlertPut) -> None:
        """To a sink here, at once."""
        item = self._host.node.directory.get("job", put.job)
        if item is not None:
            self.alerts.take(source, put, decode_job(item))

    def test_alert(self, source: NodeId, test: AlertTest) -> None:
        """Send a test notification to a sink here, and report; while one is under way no other begins."""
        item = self._host.node.directory.get("job", test.job)
        if item is None or (self._test is not None and not self._test.done()):
            return
        work = self.alerts.test(decode_job(item), test)
        self._test = asyncio.get_running_loop().create_task(self._tested(source, test.number, work))

    async def _tested(self, source: NodeId, number: int, work: Coroutine[Any, Any, str]) -> None:
        self._answer(Send(source, AlertTestReport(number, (await work)[:PROBLEM_CHARS_MAX])))

    def _alert_told(self, source: NodeId, reply: AlertReply) -> None:
        """A sink has delivered changes of alerts: answer the master, after the effects of this message."""
        asyncio.get_running_loop().call_soon(self._answer, Send(source, reply))

    def _deliver(self, source: NodeId, put: Put) -> None:
        """To the job's sinks here that take messages: at once, whatever other sinks do."""
        spec = self._spec(put)
        if spec is not None:
            self._outlets.take(source, put, spec, self._names(spec, put))

    def _delivered(self, source: NodeId, put: Put, spec: JobSpec, effects: list[Effect]) -> None:
        """A sink has acknowledged a window. Answer the master if that was the last; if the job has a lake or a stream here too,
        the master is answered when it repeats the window."""
        names, now = self._names(spec, put), self._host.clock_us()
        ledgers = self._outlets.ledgers(spec, names)
        if len(ledgers) == len(names) and not any(ledger.wants(put) for ledger in ledgers.values()):
            effects = [*effects, *step_all(ledgers, source, put, now)[0]]
        self._host.perform(self._host.node.carry(effects, now, self))

    def delivering(self, now: int) -> tuple[SinkState, ...]:
        """The sinks that take messages."""
        return self._outlets.states(now)

    def _answer(self, send: Send) -> None:
        self._host.perform(self._host.node.carry([send], self._host.clock_us()))

    def _enqueue(
        self, key: tuple[Any, ...], size: int, source: NodeId, message: LedgerRequest | Put | PutPart
    ) -> None:
        if key in self._queue or self.queued_bytes + size > QUEUE_BYTES_MAX:
            return
        self._queue[key] = (source, message)
        self.queued_bytes += size
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """Stop. Masters repeat messages that are not durable yet, for the next life."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._test is not None:
            self._test.cancel()
            await asyncio.gather(self._test, return_exceptions=True)
        await self._outlets.close()
        await self.alerts.close()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _serve(self) -> None:
        """Process batches until the queue is empty."""
        try:
            while self._queue or self._unwritten:
                await asyncio.sleep(RETRY_S if self._unwritten else GATHER_S)
                letters, self._queue, self.queued_bytes = list(self._queue.values()), {}, 0
                await self._take_batch(letters)
                self._compact()
        finally:
            self._work = None

    async def _take_batch(self, letters: Sequence[Letter]) -> None:
        known = [(letter, spec) for letter in letters if (spec := self._spec(letter[1])) is not None]
        failed: Failed = {}
        checked = await self._in_thread(self._check, known, failed)
        effects: list[tuple[JobId, list[Effect]]] = []
        for (source, message), spec, made in checked:
            if message.job in failed:
                continue
            names = self._names(spec, message)
            ledgers = self._outlets.ledgers(spec, names)
            is_put = isinstance(message, Put)
            lacking = [name for name, ledger in ledgers.items() if is_put and ledger.wants(message)]
            ledgers |= {name: self._ledgers[message.job][name] for name in names if name not in ledgers}
            try:
                stepped, names = step_all(ledgers, source, message, self._host.clock_us(), lacking)
                await self._in_thread(self._put, names, made)
            except Exception as error:
                failed[message.job] = spec, source, error
                continue
            effects.append((message.job, stepped))
            self.stored += bool(names)
        specs = {spec.name: (spec, letter[0]) for letter, spec, _ in checked}
        while not await self._in_thread(self._flush, specs, failed):
            await asyncio.sleep(RETRY_S)
        for (_, message), _, _ in checked:
            if isinstance(message, Put):
                self._gathering.forget(message.job, message.version, message.start)
        for spec, source, reason in failed.values():
            self._failed(spec, source, reason)
        now = self._host.clock_us()
        effects = await self._written([each for each in effects if each[0] not in failed])
        done = [effect for _, stepped in effects for effect in stepped]
        self._host.perform(self._host.node.carry(done, now, self))

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

    def _ledgers_of(self, spec: JobSpec) -> list[Ledger]:
        """The job's open ledgers."""
        names = self._names(spec)
        known = self._outlets.ledgers(spec, names) | self._ledgers.get(spec.id, {})
        return [known[name] for name in names if name in known]

    def _spec(self, message: LedgerRequest | Put | PutPart) -> JobSpec | None:
        """The message's job, if it has a sink here."""
        item = self._host.node.directory.get("job", message.job)
        spec = decode_job(item) if item is not None else None
        return spec if spec is not None and self._names(spec, message) else None

    def _names(self, spec: JobSpec, message: Message | None = None) -> list[str]:
        """The job's sinks here, and those that it had: the ones that a window names, if it names any (rule Settings*)."""
        served = (self._lakes, self._streams, self._outlets)
        names = [name for name in sinks_of(spec.remembered) if any(name in each for each in served)]
        wanted = message.sinks if isinstance(message, Put) else ()
        return [name for name in names if name in wanted] if wanted else names

    # In the thread.

    def _check(
        self, letters: Sequence[tuple[Letter, JobSpec]], failed: Failed
    ) -> list[tuple[Letter, JobSpec, Made]]:
        """Open the ledgers of messages. Returns the messages that can be served, with what to store and to write; a message of an
        unknown version is not answered."""
        found = []
        for (source, message), spec in letters:
            known = self._ledgers.get(message.job, {})
            try:
                names = self._names(spec, message)
                kept = [name for name in names if name not in self._outlets]
                opened = {name: known.get(name) or self._open(spec, name) for name in kept}
                self._ledgers[message.job] = known | opened
                made = self._made(message, spec, names) if isinstance(message, Put) else ([], None)
            except PeerError as error:
                self._host.notices(
                    f"sink of job {spec.name}: a window that cannot be stored ({error}); it is left out"
                )
                continue
            except Exception as error:
                failed[message.job] = spec, source, error
                continue
            if made is not None:
                found.append(((source, message), spec, made))
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
        if lake is not None:
            adopt(ledger, lake, spec, panes)
        return ledger

    def _made(self, put: Put, spec: JobSpec, names: Sequence[str]) -> Made | None:
        """Raises PeerError."""
        window, states = None, None
        if any(name in self._streams for name in names):
            check_rows(put)
            plan = next((plan_of(each.plan) for each in spec.whole if each.digest == put.version), None)
            if plan is None and put.status != WITHDRAWN:
                return None
            window = window_of(spec.name, put, plan)
        states = self._states(put, spec) if any(name in self._lakes for name in names) else []
        return None if states is None else (states, window)

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
            plan = next((each.plan for each in spec.whole if each.digest == version), None)
            if plan is None:
                return None
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = PaneReader(spec.name, version, plan)
        return self._readers[key]

    def _put(self, names: Iterable[str], made: Made) -> None:
        states, window = made
        for name in names:
            if name in self._lakes:
                for state in states:
                    self._lakes[name].put_state(state)
            elif window is not None:
                self._streams.put(name, window)

    def _flush(self, specs: Senders, failed: Failed) -> bool:
        """Flush the lakes. Returns whether all are durable, except for failing jobs. Reports a failure of a lake once."""
        for name, lake in self._lakes.items():
            try:
                self._flush_lake(lake, specs, failed)
            except OSError as error:
                self._refuse(f"sink {name}: {cause(error)}")
                return False
        return True

    def _write(self) -> bool:
        """Write the streams' text, after the lakes are flushed. Returns whether all is written."""
        try:
            self._streams.flush()
        except OSError as error:
            self._refuse(f"sink {', '.join(self._streams.names)}: {cause(error)}")
            return False
        if self.is_refused:
            self._host.notices("sinks: all windows are stored again")
        self.is_refused, self.refusal = False, ""
        return True

    def _refuse(self, refusal: str) -> None:
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

    def _compact(self) -> None:
        moment = time.monotonic()
        if moment >= self._compact_at:
            self._compact_at = moment + COMPACT_LOOK_S
            for failure in self._compaction.look(moment, time.time_ns() // 1_000):
                self._host.notices(failure)
