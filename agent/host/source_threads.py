"""An agent's sources: each is read in a thread of its own at the node's requests, within the limit on processor time.

A `Read` that is not due yet waits here. At each beat, new lines are read for all jobs, and those that are due are answered
(`elf.agent.host.beats`); so files are read and folders scanned as often as if somebody watched, and only cuts are rare. A job
whose open windows are read has reads of its own at each beat, which read for all. Where lines are few, they are parsed once a
second (`elf.agent.work.held`). While no log changes there is no beat for `REST_S`, or until a quiet log reaches the time of the
next cut. One that awaits a line is answered when a log has changed. Where the kernel does not notify, every beat is kept.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeVar, TypeVarTuple

from elf.agent.config.config import Config
from elf.agent.control.columns import Columns, advertised, with_columns
from elf.agent.host.beats import Answer, Asked, Beats, Kept
from elf.agent.host.cpu_share import CpuShare
from elf.agent.host.job_costs import JobCosts
from elf.agent.host.memory import Memory
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.work.mesh_source import MeshSource
from elf.agent.work.seen_columns import SeenColumns
from elf.cbt.budget import Budget
from elf.errors import SourceError
from elf.jobmaster.directory.job_spec import SourceColumns, decode_agent
from elf.srt.messages.effects import Notice, Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Item, Micros

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
READ_RETRY_S = 5.0
REST_S = 1.0
"""How long beats are left out at most: readers wait for files that may be renamed or lost, by a clock of their own."""
MANY_DIVISOR = 32
"""A source that grows by more than the budget divided by this could fill it before the next look at memory."""
COLUMNS_S = 10.0
"""How often the columns of logs whose format is detected are looked at, and advertised if they changed."""


class Host(Protocol):
    """What `SourceThreads` needs of the process around a node."""

    node: MeshNode
    costs: JobCosts
    notices: Callable[[str], None]
    is_over: bool
    memory: Memory
    budget: Budget
    transport: Any
    store: Any
    sinks: Any
    service: Any

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
        self._beats: dict[str, Beats] = {}
        self._waiting: dict[str, dict[JobId, Read]] = {}  # by source
        self._beating: set[str] = set()  # sources whose next beat is scheduled, or under way
        self._resting: dict[str, asyncio.TimerHandle] = {}  # of these, those that leave beats out
        self._beat_us: dict[str, Micros] = {}  # the last beat that read
        self._read_us: dict[str, Micros] = {}  # the last `Read` that was due when it came
        self._listening: dict[str, int] = {}  # sources whose change the loop reports, with the descriptor
        self._many_bytes = 0
        # What each source held when memory was looked at for it, or less since.
        self._reserved_at: dict[str, int] = {}
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
        self._many_bytes = budget.cap_bytes // MANY_DIVISOR
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
            beats = self._beats[section.name] = Beats(
                self.sources[section.name], self._clock_us, self._many_bytes
            )
            opened.callback(self.sources[section.name].close)
            opened.callback(thread.shutdown, cancel_futures=True)
            opened.callback(beats.interrupt)
            opened.callback(self._hush, section.name)

    def state_was_lost(self) -> None:
        """See `MeshSource.state_was_lost`."""
        for name, source in self.sources.items():
            source.state_was_lost(self._host.clock_us())
            self._threads[name].submit(source.keep_loss)

    def _clock_us(self) -> Micros:
        return self._host.clock_us()

    def _in_thread(self, name: str, do: Callable[[*Ts], T], *about: *Ts) -> asyncio.Future[T]:
        """Call it in the source's thread, soon: beats are not kept there meanwhile."""
        self._beats[name].interrupt()
        return asyncio.get_running_loop().run_in_executor(self._threads[name], do, *about)

    def columns(self) -> tuple[SourceColumns, ...]:
        """The columns of the logs beyond the canonical ones, for the agent's advert."""
        return self._advertised({name: seen.look() for name, seen in self._columns.items()})

    def _advertised(self, found: Mapping[str, Columns]) -> tuple[SourceColumns, ...]:
        return advertised(found, {name: seen.lateness_us for name, seen in self._columns.items()})

    def read(self, read: Read) -> None:
        """Read in the source's thread, once the limit on processor time allows it; or at the beat at which it is due."""
        seat = self._host.node.seats.get(read.job)
        if seat is None or seat.worker is None or not seat.worker.schedule:
            return  # see `_read_now`
        waiting = self._waiting.setdefault(seat.spec.source, {})
        waiting.pop(read.job, None)
        if read.due_us:
            waiting[read.job] = read
            self._beats[seat.spec.source].interrupt()
            (self._listen if read.at_line else self._schedule_beat)(seat.spec.source)
            return
        delay = self._share.wait_s(time.process_time(), time.monotonic()) if self._share is not None else 0.0
        if not read.lane and self.sources[seat.spec.source].awaits_file(read.job):
            delay = max(delay, REST_S)  # its worker, which has not caught up, asks again at once
        if delay:
            asyncio.get_running_loop().call_later(delay, self._read_now, read)
        else:
            self._read_now(read)

    def _read_now(self, read: Read) -> None:
        seat = self._host.node.seats.get(read.job)
        if self._host.is_over or seat is None or seat.worker is None or not seat.worker.schedule:
            return  # without a schedule it is another worker than the one that asked: its job was started again
        name = seat.spec.source
        if not read.lane:
            self._read_us[name] = self._host.clock_us()
        about = read, seat.worker.schedule, self._host.clock_us(), time.monotonic()
        self._in_thread(name, self.sources[name].read, *about).add_done_callback(
            lambda done: self._cut(read, self.sources[name], done)
        )

    def _schedule_beat(self, name: str, *, is_still: bool = False) -> None:
        """is_still: the last beat found nothing new."""
        resting = self._resting.pop(name, None)
        if resting is not None:
            resting.cancel()
        elif name in self._beating:
            return
        self._beating.add(name)
        beat_us, now_us = self._host.node.parameters.flush_us, self._host.clock_us()
        wait_us = self._rest_us(name, now_us) if is_still else 0
        delay_us = wait_us + beat_us - (now_us + wait_us) % beat_us
        call = asyncio.get_running_loop().call_later(delay_us / 1e6, self._beat, name)
        if wait_us:
            self._resting[name] = call
            self._listen(name)

    def _rest_us(self, name: str, now_us: Micros) -> int:
        """How long no beat has anything to do, if no log changes: what is due is due when the clock, less the grace of an idle
        source, has reached it."""
        parameters = self._host.node.parameters
        if self.sources[name].fileno() < 0 or self.sources[name].poll_s < REST_S:
            return 0
        due_us = [read.due_us for read in self._waiting[name].values() if not read.at_line]
        reached_us = min((due + parameters.idle_grace_us for due in due_us), default=now_us)
        return max(0, min(int(REST_S * 1e6), reached_us - now_us) - parameters.flush_us)

    def _beat(self, name: str) -> None:
        """Read on for those that may be due, and for some others in turn."""
        self._beating.discard(name)
        self._resting.pop(name, None)
        waiting, clock_us = self._waiting[name], self._host.clock_us()
        workers = {job: seat.worker for job, seat in self._host.node.seats.items() if job in waiting}
        for job, read in list(waiting.items()):
            worker = workers.get(job)
            if worker is None or not worker.awaits(read.request):
                del waiting[job]
        if self._host.is_over or not waiting:
            return
        delayed = self._share is not None and self._share.wait_s(time.process_time(), time.monotonic()) > 0
        due = [read for read in waiting.values() if read.due_us <= clock_us]
        if delayed or (not due and self._was_read(name, clock_us)):
            self._schedule_beat(name)
            return
        asked = [(read, worker.schedule) for read in waiting.values() if (worker := workers[read.job])]
        since_us, beat_us = self._beat_us.get(name, clock_us), self._host.node.parameters.flush_us
        self._beats[name].resume()
        self._beating.add(name)
        kept = self._keep(name, asked, since_us, beat_us if self._share is None else 0)
        kept.add_done_callback(lambda done: self._beats_done(name, done, asked))

    def _was_read(self, name: str, clock_us: Micros) -> bool:
        """Whether a job's own `Read` has read for all jobs since the last beat, and none of these may be overdue for its turn."""
        last_us, beat_us = self._read_us.get(name, 0), self._host.node.parameters.flush_us
        is_recent = 0 <= clock_us - last_us < 1.5 * beat_us
        return is_recent and 0 <= clock_us - self._beat_us.get(name, 0) < REST_S * 1e6

    def _keep(
        self, name: str, asked: Sequence[Asked], since_us: Micros, beat_us: Micros
    ) -> asyncio.Future[Kept]:
        about = asked, self._waiting[name], since_us, beat_us
        return asyncio.get_running_loop().run_in_executor(self._threads[name], self._beats[name].keep, *about)

    def _beats_done(self, name: str, done: asyncio.Future[Kept], asked: Sequence[Asked]) -> None:
        self._beating.discard(name)
        if self._host.is_over or done.cancelled():
            return
        kept, waiting = done.result(), self._waiting[name]
        self._beat_us[name] = kept.last_us
        for read, _ in asked[: kept.turned]:
            if waiting.get(read.job) is read:
                waiting[read.job] = waiting.pop(read.job)
        self._answered(name, kept.answers)
        if any(not read.at_line for read in waiting.values()):
            self._schedule_beat(name, is_still=kept.is_still)

    def _listen(self, name: str) -> None:
        """Have the loop report, once, that a log of the source has changed."""
        descriptor = self.sources[name].fileno()
        if descriptor >= 0 and name not in self._listening:
            self._listening[name] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._changed, name)

    def _hush(self, name: str) -> None:
        descriptor = self._listening.pop(name, -1)
        if descriptor >= 0:
            asyncio.get_running_loop().remove_reader(descriptor)

    def _changed(self, name: str) -> None:
        """Read on for those that await a line. Whom this read does not answer waits for the next beat, so events of a busy log
        cost one read in each."""
        self._hush(name)
        if name in self._resting:
            self._schedule_beat(name)
        if self._share is not None and self._share.wait_s(time.process_time(), time.monotonic()) > 0:
            return
        seats = self._host.node.seats
        awaiting = ((read, seats.get(job)) for job, read in self._waiting[name].items() if read.at_line)
        asked = [
            (read, seat.worker.schedule)
            for read, seat in awaiting
            if seat is not None and seat.worker is not None and seat.worker.awaits(read.request)
        ]
        if asked and not self._host.is_over:
            about = asked, self._waiting[name], self._host.clock_us()
            read_on = self._in_thread(name, self._beats[name].read_on, *about)
            read_on.add_done_callback(lambda done: self._read_on_done(name, done))

    def _read_on_done(self, name: str, done: asyncio.Future[list[Answer]]) -> None:
        if not (self._host.is_over or done.cancelled()):
            self._answered(name, done.result())

    def _answered(self, name: str, answers: Sequence[Answer]) -> None:
        self._account(self.sources[name])
        for read, answer in answers:
            if self._waiting[name].get(read.job) is read:
                del self._waiting[name][read.job]
            self._answer(read, answer)

    def _cut(self, read: Read, source: MeshSource, done: asyncio.Future[Cut]) -> None:
        if self._host.is_over or done.cancelled():
            return
        self._account(source)
        self._answer(read, done.exception() or done.result())

    def _account(self, source: MeshSource) -> None:
        self._host.costs.spent(source.take_spent())
        for text in source.take_notices():
            self._host.notices(text)
        with suppress(OSError):  # spilling fails now; the store reports why
            source.account()
        held = self._reserved_at.get(source.name, 0)
        if source.nbytes < held or source.nbytes > held + self._many_bytes:
            self._reserved_at[source.name] = source.nbytes
        if source.nbytes > held + self._many_bytes:
            self._host.memory.reserve(self._host, self._host.budget)

    def _answer(self, read: Read, answer: Cut | BaseException) -> None:
        """Report a cut to the node, which knows whether the job still has the seat that asked for it."""
        if isinstance(answer, Cut):
            self._host.costs.cut(read.job, answer)
            self._host.perform(self._host.node.cut(answer, self._host.clock_us()))
            return
        error = answer
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
            found = {name: await self._in_thread(name, seen.look) for name, seen in self._columns.items()}
            node = self._host.node
            held = node.directory.get("agent", node.id)
            columns = self._advertised(found)
            if node.columns != columns and held is not None and not self._host.is_over:
                node.columns = columns
                advert = with_columns(decode_agent(held), node.columns)
                self._host.announce(advert.item(node.id))
