"""A mesh agent's process: performs the effects of its `MeshNode` on one event loop, and reports events to the node.

Send   -> transport                      datagram   -> receive
Write  -> store, in its own thread       on disk    -> durable, in the order of the writes
Read   -> a source's thread              rows       -> cut
Notice -> the log, rate-limited          deadline   -> tick
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from elf.agent.config.config import Config
from elf.agent.control.client import SOCKET
from elf.agent.control.gathering import OnDisk
from elf.agent.control.server import ControlServer
from elf.agent.control.service import ControlService
from elf.agent.control.shared_files import boot_id, marks
from elf.agent.control.signed_messages import SignedMessages
from elf.agent.disk import state_dir
from elf.agent.disk.store import Store
from elf.agent.host.allocator import own_bytes, unmap_libraries
from elf.agent.host.clock import Clock, Timer
from elf.agent.host.estimates import Estimates
from elf.agent.host.identity import claim, own_key
from elf.agent.host.job_costs import JobCosts
from elf.agent.host.memory import LOOK_S, Memory
from elf.agent.host.metrics import MetricsServer, health, metrics, unparsed_sources
from elf.agent.host.notices import Milestones, NoticeLog
from elf.agent.host.only_job import OnlyJob
from elf.agent.host.own_jobs import has_own, submit_own
from elf.agent.host.peers import Peers
from elf.agent.host.recalls import Recalls
from elf.agent.host.seeds import Seeds
from elf.agent.host.single_instance import Restart, SingleInstance, forget
from elf.agent.host.sinks.lags import lags_of, problem_of
from elf.agent.host.sinks.own_windows import OwnWindows
from elf.agent.host.source_threads import SourceThreads
from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.node.revoked import REVOKED
from elf.agent.node.vacancy import is_fault
from elf.cbt.budget import Budget
from elf.errors import ConfigError, InternalError, PeerError, StateError, UsageError
from elf.jobmaster.directory.directory import UNBELIEVED
from elf.jobmaster.directory.job_spec import jobs_of
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.stored import Stored
from elf.srt.messages.effects import Notice, Read, Recall, Send, Write
from elf.srt.messages.ids import JobId, NodeId, node_id, short
from elf.srt.messages.messages import COUNT_MAX, LIFE_MAX, Contact, Item, Message
from elf.srt.messages.reports import Failing, StatusReport
from elf.srt.messages.typed import parse
from elf.srt.security.certificates import Keys, Trust, TrustError
from elf.srt.security.items import Notary
from elf.srt.transport.alone import NoTransport
from elf.version import version

if TYPE_CHECKING:
    from elf.agent.host.sinks.sink_host import SinkHost
    from elf.srt.transport.transport import Transport

DRAIN_S = 0.5
"""How long a stop waits for pending writes."""
ANSWER_S = 0.1
"""Time for the answer to the command `elf mesh leave` to be sent."""
GOODBYE_MS = 300
"""Time for the last messages to be sent."""
LEAVE_S_MAX = 60.0
"""How long an agent that leaves for good waits until the mesh has every line of its logs."""


def _say_nothing(text: str) -> None: ...


class Host:
    """One agent in a mesh, or alone. `run` it once. Everything but reading and writing happens on the loop."""

    def __init__(
        self,
        config: Config,
        keys: Keys | None,
        trust: Trust | None,
        notices: Callable[[str], None],
        former: Restart | None = None,
        only: OnlyJob | None = None,
    ) -> None:
        """only: what this agent lives for, instead of the jobs of its file and of commands."""
        self.config, self.mesh = config, config.mesh
        self.parameters = config.mesh.parameters.within(config.agent.memory_max)
        self.keys, self.trust = keys, trust
        self.notary: Notary | None = None
        self.sinks: SinkHost | None = None
        self.notices = notices
        self.started_s = time.time()
        self.instance = 1 + int.from_bytes(os.urandom(8)) % COUNT_MAX
        """The instance of this process: see `elf.srt.messages.messages.Instance`."""
        self.peers = Peers()
        self.notice_log = NoticeLog(notices, self.peers.name_of)
        self._only, self._say = only, notices if only is None else _say_nothing
        self.milestones = Milestones(self._say, self.peers.name_of)
        self.clock = Clock()
        self.costs = JobCosts()
        self.reading = SourceThreads(self, self.mesh.cpu_max)
        self.sources = self.reading.sources
        self.node: MeshNode
        self.transport: Transport | NoTransport
        self.store: Store
        self.memory: Memory
        self.service: ControlService
        self.signed_messages: SignedMessages
        self.budget: Budget
        self.seeds: Seeds
        self.estimates: Estimates
        self._loop: asyncio.AbstractEventLoop
        self._timer = Timer(self.clock_us, self._wake)
        self._revoked = 0
        self.single_instance = SingleInstance(self, former)
        self.last_life = 0
        """The latest life of which the folder has all records; this life is higher."""
        self._recalls = Recalls(self)
        self.is_open = self.is_started = self.is_serving = self.is_over = False
        """is_open: the state is read, and this life is on disk. is_serving: its parts are all there, from then on."""
        self._former = former
        self._restart: Restart | None = None
        self._waits: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._failure: Exception | None = None

    # From start to stop.

    async def run(self, stop: asyncio.Event) -> Restart | None:
        """Join the mesh, and serve until `stop` is set, the node has left for good, or a restart is due. Returns the restart.

        Raises ConfigError for errors in the file or in the keys, StateError if `state_dir` cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        folder, former = self.config.agent.state_dir, self._former
        state_dir.make(folder)
        state_dir.check(folder)
        if former is None:
            self.memory = Memory(self.config.agent.memory_max)
            unmap_libraries()
        else:
            self.memory = former.memory
        if former is not None and former.is_lost:
            forget(folder)
        self.store, records = Store.open(folder, self.notices, is_lasting=self._only is None)
        self._loop.set_exception_handler(self._failed)
        with ExitStack() as opened:
            opened.callback(self.store.close)
            opened.callback(records.close)
            life = self._begin_life(records, former)
            me = self._listen(life, opened)
            self.is_open = True
            agent = self.config.agent
            self.budget = Budget(agent.memory_max, agent.state_dir, own_bytes, self.memory.own_before)
            opened.callback(self.budget.close)
            is_lost = former is not None and former.is_lost
            self.reading.open(
                self.config, me.id, self.budget, self.parameters.idle_grace_us, opened, is_lost=is_lost
            )
            self.estimates = Estimates(self, self.config, self.parameters.flush_us, opened)
            await self._begin(me, records)
            self.service = ControlService(self, lambda: OnDisk(folder))
            self.signed_messages = SignedMessages(self.service, self)
            self._look()
            self.is_serving = True
            await self._serve(stop)
        if self._failure is not None:
            raise self._failure
        return self._restart

    def _begin_life(self, records: Stored, former: Restart | None) -> int:
        """Choose the number of this life, and write it to disk before any other node learns it. It is at least the clock's
        seconds, so that it is higher than earlier ones even if the disk was lost."""
        written: int = records.get(("node", b""), (0,))[-1]
        above = written if former is None else max(written, former.above)
        self.last_life = written if former is None or former.is_lost else former.last
        records.instead["node", b""] = [self.last_life]
        life = min(max(above + 1, int(time.time())), LIFE_MAX)
        self.store.begin(Write(("node", b""), life, replace=True))
        return life

    def restart(self, how: Restart) -> None:
        """End this life. The process then starts the next one as `how` states."""
        self._restart = how
        self._left.set()

    def _listen(self, life: int, opened: ExitStack) -> Contact:
        """Open the transport. Returns the contact of this life. Messages are dropped until the node starts."""
        folder = self.config.agent.state_dir
        key = self.keys.curve_public if self.keys is not None else own_key(folder)
        me = node_id(key)
        claim(folder, me)
        self.transport = NoTransport(me) if self.mesh.listen is None else self._new_transport(me, key, life)
        self.transport.start()
        opened.callback(self.transport.close)
        return Contact(me, life, self.transport.address, 0, self.instance)

    def _new_transport(self, me: NodeId, key: bytes, life: int) -> Transport:
        from elf.srt.transport.transport import Transport

        advertise = self.mesh.advertise
        return Transport(
            me,
            life,
            self.parameters,
            keys=self.keys,
            trust=self.trust,
            key=key,
            listen=str(self.mesh.listen),
            advertise="" if advertise is None or advertise.port == 0 else advertise.endpoint,
            address_of=self.peers.address_of,
            deliver=self._deliver,
            notice=self.notice,
            log=LOG,
            on_evidence=self._on_evidence,
            instance=self.instance,
            refused=self._refused,
            restarted=self._restarted,
            contact_of=self.peers.contact_of,
            refused_for=self.single_instance.refused_for,
            waits=lambda: self.single_instance.rival is not None,
            unsendable=self._unsendable,
        )

    async def _begin(self, me: Contact, records: Stored) -> None:
        self.node = MeshNode(
            me,
            self.config.agent.name,
            self.parameters,
            Random(os.urandom(16)),
            tuple(self.sources),
            budget=self.budget,
            sinks=[sink.name for sink in self.mesh.sinks],
            streams=[sink.name for sink in self.mesh.sinks if sink.takes_rows],
            takes=[(sink.name, sink.jobs) for sink in self.mesh.sinks if sink.jobs],
            moving=[sink.name for sink in self.mesh.sinks if sink.moves],
            columns=self.reading.columns(),
            stores_states=True,
            coded=LOG,
            has_room=self.transport.has_room,
            encoder=self.store.encoder,
            caps=self.mesh.limits,
            **self._notary(),
        )
        self.peers.node = self.node
        self.node.seat_failed = self._seat_failed
        self.node.charge = self.costs.charge
        if self.mesh.sinks:
            from elf.agent.host.sinks.sink_host import SinkHost

            new_sink = self._only.new_sink if self._only is not None else None
            self.sinks = SinkHost(self.mesh.sinks, self, records, self.config.agent.state_dir, new_sink)
        self.seeds = Seeds(self.mesh.seeds, me.id, self.transport.ask, self._found_seed)
        await self.seeds.first()
        if self.single_instance.rival is None:
            self._start(records)
        else:
            self._waits = self._loop.create_task(self._wait(records))
            self._waits.add_done_callback(self._wait_ended)

    def _start(self, records: Stored) -> None:
        self.is_started = True
        at = self.transport.address.partition("/")[0]
        place = f"at {at}" if at else "in no mesh, since it has no listen"
        self._say(f"agent {self.config.agent.name} ({short(self.node.id)}) begins, {place}")
        effects = self.node.start(self.clock_us(), records, self.seeds.contacts())
        records.close()
        self.perform(effects)
        if self._only is not None:
            self.submit(self._only.spec.item())

    async def _wait(self, records: Stored) -> None:
        """Wait while another process with this key lives, and serve only commands meanwhile."""
        await self.single_instance.wait()
        self.transport.reset_backoff()
        self._start(records)

    def _wait_ended(self, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self._failed(self._loop, {"exception": done.exception()})

    def _notary(self) -> dict[str, Any]:
        """The functions that sign and check directory items; without keys, all items are accepted."""
        if self.keys is None or self.trust is None:
            return {}
        self.notary = Notary(self.keys, self.trust, time.time, jobs_of, self.parameters.revoked_grace_us)
        return {
            "sign": self.notary.sign,
            "verify": self.notary.verify,
            "signers": self.notary.signers,
        }

    def _found_seed(self) -> None:
        """Join through a seed that answered later than at the start."""
        if self.is_started:
            self.perform(self.node.join(self.seeds.contacts(), self.clock_us()))

    async def _serve(self, stop: asyncio.Event) -> None:
        figures = await self._open_metrics()  # first: an agent that answers commands has its metrics too
        controls = self._controls()
        for control in controls:
            try:
                await control.start()
            except OSError as error:
                raise StateError(
                    f"{control.path}: {error.strerror}; commands could not reach this agent; repair that, or name another "
                    "state_dir"
                ) from error
        beside = [asyncio.create_task(self.reading.look_at_columns())]
        beside += [asyncio.create_task(OwnWindows(self, *each).run()) for each in self.config.shown]
        if self._only is None and has_own(self.config, self.node.directory):
            beside.append(asyncio.create_task(submit_own(self.config, controls[0].path, self.notices)))
            beside[-1].add_done_callback(self._submitted)
        try:
            waits = [asyncio.create_task(event.wait()) for event in (stop, self._left)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in (*waits, *beside):
                wait.cancel()
            if self._left.is_set():
                await asyncio.sleep(ANSWER_S)
        finally:
            for control in controls:
                await control.close()
            if figures is not None:
                await figures.close()
            await self._end()

    def _submitted(self, done: asyncio.Task[None]) -> None:
        """End the process if its file has a job that cannot run."""
        if not done.cancelled() and isinstance(error := done.exception(), Exception):
            self.end(error)

    def end(self, error: Exception) -> None:
        """End the process with that error, unless it ends with another one."""
        if self._failure is None:
            self._failure = error
        self._left.set()

    def _controls(self) -> list[ControlServer]:
        """The control sockets. That of a group is in the folder that systemd makes for the service in /run, if it does, since
        others cannot enter the state_dir of a dynamic user."""
        folder, group = self.config.agent.state_dir, self.mesh.control_group
        runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        if group is None or not runtime:
            return [ControlServer(folder / SOCKET, self.service.serve, group)]
        shared = ControlServer(Path(runtime) / SOCKET, self.service.serve, group)
        return [ControlServer(folder / SOCKET, self.service.serve), shared]

    async def _open_metrics(self) -> MetricsServer | None:
        address = self.mesh.metrics
        if address is None:
            return None
        server = MetricsServer(address, lambda: metrics(self, version()), lambda: health(self))
        try:
            await server.start()
        except OSError as error:
            raise ConfigError(
                f"{self.config.path}: [agent] metrics: cannot listen at {address.endpoint}: {error.strerror}"
            ) from error
        return server

    async def _end(self) -> None:
        """Announce the end of this life to neighbours, so that they need not detect it, and wait for pending writes."""
        if self.is_started and not self.node.has_left and self._failure is None:
            self.perform(self.node.rest(self.clock_us()))
        self.is_over = True
        self.single_instance.close()
        if self._waits is not None:
            self._waits.cancel()
        self.seeds.close()
        if self.sinks is not None:
            await self.sinks.close()
        self._timer.cancel()
        await self.store.drain(DRAIN_S)
        self.transport.close(GOODBYE_MS)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the process without sending anything more, after a bug of ours in the node or around it. Its cores can no longer be
        trusted; the disk holds only earlier states, from which the process can start again."""
        error = context.get("exception")
        if not isinstance(error, Exception):
            loop.default_exception_handler(context)
            return
        traceback.print_exception(error)
        if self._failure is None:
            self._failure = error
        self.is_over = True
        self._left.set()

    async def leave(self) -> bool:
        """Leave the mesh for good, and end once it has every line logged by now. Returns whether it had, within `LEAVE_S_MAX`.
        Raises UsageError for an agent that is in none."""
        if self.mesh.listen is None:
            raise UsageError(
                f"agent {self.config.agent.name}: it is in no mesh, so it cannot leave one; SIGTERM ends it"
            )
        self.perform(self.node.leave(self.clock_us()))
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                await self._left.wait()
        except TimeoutError:
            return False
        return True

    # For commands.

    @property
    def is_signed(self) -> bool:
        """Whether the mesh has keys, so that a job must be signed by an operator."""
        return self.keys is not None

    def refusal(self, item: Item) -> TrustError | None:
        """Why this agent does not accept the signature of an item; None: it does."""
        return None if self.notary is None else self.notary.refusal(item)

    def clock_us(self) -> int:
        """The node's clock."""
        return self.clock.now_us()

    def failing(self) -> tuple[Failing, ...]:
        """Jobs that fail here, in their seats or in a sink."""
        now = self.clock_us()
        return self.node.failing(now) + (self.sinks.failing(now) if self.sinks is not None else ())

    def describe(self, report: StatusReport) -> StatusReport:
        """Add the figures that only the process knows."""
        return replace(
            report,
            version=version(),
            up_s=max(0, int(time.time() - self.started_s)),
            memory_bytes=self.memory.grown,
            memory_max=self.config.agent.memory_max,
            memory_bare=self.memory.bare,
            memory=self.memory.by_owner(self, self.budget),
            lag_bytes=sum(sum(source.lag_bytes.values()) for source in self.sources.values()),
            failing=self.failing(),
            costs=self.costs.of(self.node.seats.values()),
            problems=tuple(problem[:500] for problem in self._problems()),
            sinks=self.sinks.delivering(self.clock_us()) if self.sinks is not None else (),
            lags=lags_of(self.node.seats.values(), self.clock_us()),
            files=marks({name: source.inodes for name, source in self.sources.items()}, boot_id()),
            gone={name: source.gone_us for name, source in self.sources.items() if source.gone_us > 0},
        )

    def _problems(self) -> list[str]:
        if self.single_instance.rival is not None:
            found = [self.single_instance.problem]
        else:
            found = self.seeds.problems(self.node.overlay.is_member)
        for node, text in self.transport.twins.items():
            found.append(text if node == self.node.id else f"{self.peers.name_of(node)}: {text}")
        if self.node.is_aside:
            found.append("disk writes fail, so others serve in its place: free space or repair the disk")
        elif self.store.is_refused:
            found.append("disk writes fail: free space or repair the disk")
        found += [problem for source in self.sources.values() for problem in source.problems]
        if self.sinks is not None and self.sinks.is_refused and not self.sinks.refusal:
            found.append("writes to the disk beside a lake fail: free space or repair the disk")
        if self.sinks is not None:
            found += [problem_of(each) for each in self.sinks.delivering(self.clock_us()) if each.problem]
        found += unparsed_sources(self.sources)
        return found

    def _look(self) -> None:
        if not self.is_over:
            self.milestones.look(self.node)
            self.memory.look(self, self.budget)
            self.costs.look(time.monotonic(), self.node.sent_bytes)
            for job, why in self.costs.over(self.node.seats.values()):
                self.perform(self.node.over_limit(job, why, self.clock_us()))
            # At whole seconds, as the transport's ticks are: one wake for both.
            self._loop.call_at(round(self._loop.time()) + LOOK_S, self._look)

    def submit(self, item: Item) -> None:
        """Put an item into the directory, and perform the effects."""
        self.perform(self.node.put(item, self.clock_us()))

    def announce(self, item: Item) -> None:
        """Put an item of this agent into the directory, signed where there are keys."""
        self.submit(item if self.notary is None else self.notary.sign(item))

    # Effects of the node, and events for it.

    def perform(self, effects: Sequence[Outer]) -> None:
        """Perform effects that the node returned, in order."""
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self.transport.send(effect.to, effect.message)  # type: ignore[union-attr]
            elif kind is Write:
                self.store.write(effect, self._durable)  # type: ignore[arg-type]
            elif kind is Read:
                self.reading.read(effect)  # type: ignore[arg-type]
            elif kind is Recall:
                self._recalls.begin(effect.job)  # type: ignore[union-attr]
            else:
                assert isinstance(effect, Notice)
                self.notice(effect)
        if self.node.has_left:
            self._left.set()
        if self.node.rivals.was_here:
            self.node.rivals.was_here = False
            self.reading.state_was_lost()
        rival = self.node.rivals.take()
        if rival is not None and not self.is_over:
            self.single_instance.check_rival(rival)
        if self.trust is not None and len(self.trust.revoked) != self._revoked:
            self._revoked = len(self.trust.revoked)
            self.transport.recheck()
        deadline = self.node.deadline
        if deadline is not None and not self.is_over:
            self._timer.set(deadline)

    def _wake(self) -> None:
        if self.is_over:
            return
        if self.clock.stepped_back():
            self.perform(self.node.clock_stepped(self.clock_us()))
        else:
            self.perform(self.node.tick(self.clock_us()))

    def _deliver(self, source: NodeId, message: Message) -> None:
        if not self.is_started or self.is_over:
            return
        try:
            effects = self.node.receive(source, message, self.clock_us())
        except PeerError as error:
            # Faults of peers are refused earlier; here the node may have performed half of a step.
            raise InternalError(f"{type(message).__name__}: {error}") from error
        self.perform(effects)

    def _durable(self) -> None:
        if not self.is_over:
            self.perform(self.node.durable(self.clock_us()))

    def _on_evidence(self, evidence: bytes) -> None:
        """A neighbour refuses this agent and shows a revocation as evidence; the directory verifies it."""
        try:
            item = parse(evidence, Item)
        except PeerError:
            return
        if item.kind == "revoked" and self.is_started and not self.is_over:
            self.submit(item)

    def _refused(self, node: NodeId, life: int) -> None:
        """A neighbour's host refuses connections: its process is gone."""
        if self.is_started and not self.is_over:
            self.perform(self.node.process_gone(node, life, self.clock_us()))

    def _restarted(self, contact: Contact) -> None:
        """A neighbour answers in a later life."""
        if self.is_started and not self.is_over:
            self.perform(self.node.restarted(contact, self.clock_us()))

    def notice(self, notice: Notice) -> None:
        if notice.kind == REVOKED:
            # The reason, for the operator: no other agent accepts this one's connections.
            self.end(ConfigError(f"{self.mesh.bundle}: {notice.text}"))
            return
        if notice.kind == UNBELIEVED and self.notary is not None:
            notice = replace(notice, text=f"{notice.text}: {self.notary.last_refusal}")
        self.notice_log.take(notice, time.monotonic())

    # Jobs that fail.

    def _seat_failed(self, error: Exception, is_news: bool) -> None:
        """Print a bug of ours in one job's seat, which the node has dropped, and free its memory once the error is handled."""
        if is_news and is_fault(error):
            traceback.print_exception(error)
        self._loop.call_soon(gc.collect)

    def _unsendable(self, job: JobId, error: Exception) -> None:
        """Report the error to the node after the present effects are performed."""
        self._loop.call_soon(self._not_encoded, job, error)

    def _not_encoded(self, job: JobId, error: Exception) -> None:
        if not self.is_over:
            self.perform(self.node.not_encoded(job, error, self.clock_us()))
