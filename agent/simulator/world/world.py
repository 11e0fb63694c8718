"""The event loop of a simulated mesh: one calendar, one seed, virtual microseconds.

The same seed gives the same trace: events of one moment run in the order in which they were added, all randomness comes from
generators seeded with it, and nothing reads a real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from elf.agent.node.mesh_node import MeshNode, Outer
from elf.agent.node.rivals import HEARSAY_S, Rival, is_above
from elf.agent.simulator.signing import Believed, Signatures
from elf.agent.simulator.world.admissions import Admissions, proof_of
from elf.agent.simulator.world.carriers import Carriers
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.network import Network, Weather
from elf.agent.simulator.world.places import Actor, Places
from elf.agent.simulator.world.rows import Paths, RowMaker
from elf.agent.simulator.world.sources import VirtualSource
from elf.cbt.budget import Budget
from elf.errors import PeerError
from elf.jobmaster.delivery.ledger import Ledger, above_all
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.schedule import AFTER_ALL, plan_of
from elf.jobmaster.plan.features import lacking, needed
from elf.srt.codec.wire import decode, encode
from elf.srt.link.rights import check_datagram
from elf.srt.messages.effects import Effect, Notice, Read, Recall, Send, Write
from elf.srt.messages.ids import JobId, NodeId, node_id
from elf.srt.messages.messages import Contact, Item, Line, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import NO_ROWS, AlertPut
from elf.srt.overlay.routing import warm_tables

LIFE = ("node", b"")
CHECK_US = 1_000_000
"""How often a process that waits to be admitted checks whether the other one lives."""
DISK_US = 300
"""A write to a solid-state disk with a sync. Crashes seldom fall within it; a world's `disk_us` may be longer."""
PATHS = Paths([f"/p/{number}" for number in range(1_000)])
MEMORY_BYTES = 8 << 30
"""Memory for the panes of all nodes together: a simulation does not spill."""


class World(Places):
    """A mesh and its events. `run_until` advances time; all other methods act at the present moment.

    coded: the class of disks that hold bytes; then messages too are sent as bytes, as on a real network, so that nodes never
    share an object through messages or records.
    """

    def __init__(
        self,
        seed: int,
        parameters: Parameters,
        weather: Weather | None = None,
        *,
        coded: type[Disk] | None = None,
    ) -> None:
        super().__init__(Network(Random(seed + 1), weather or Weather()))
        self.seed, self.parameters = seed, parameters
        self.signatures = Signatures()
        self.is_coded, self._new_disk = coded is not None, coded or Disk
        self._coded = LOG if coded is not None else None
        self.disk_us = DISK_US
        self.rng = Random(seed)
        self._lives: dict[NodeId, int] = {}  # the latest life of both processes
        self.admissions = Admissions(self, self.take, self._refused_for)
        self.sinks_away: set[NodeId] = set()
        self.node_observers: list[Callable[[Actor, MeshNode], None]] = []
        """Called with each node before it starts."""
        self.inspect: Callable[[Actor], None] | None = None
        self.delivered = 0
        self._sink_names: dict[str, NodeId] = {}
        self._sinks_at: dict[tuple[NodeId, str], NodeId] = {}  # its node and its name -> its id
        self.carriers = Carriers(self, self.carry)
        self._budget = Budget(MEMORY_BYTES)
        self._rows: dict[bytes, RowMaker] = {}  # by plan: `END` of two jobs has two
        self._push = self.calendar.add
        self._arrive = self._deliver_coded if self.is_coded else self._deliver

    # The hosts.

    def add_host(self, name: str, source: VirtualSource | None = None) -> Actor:
        actor = Actor(name, source, self._new_disk())
        self.actors[actor.id] = actor
        return actor

    def start_twin(
        self, actor: Actor, disk: Disk, source: VirtualSource, seeds: Sequence[Contact] = ()
    ) -> Actor:
        """Start a process with the actor's key on another machine. Its life is higher than the actor's, as lives come from the
        clock."""
        twin = Actor(f"{actor.name}'", source, disk, actor)
        twin.clock_us = actor.clock_us
        self._lives[actor.id] = max(actor.life, self._lives.get(actor.id, 0))
        self.twins[actor.id] = self.elsewhere[twin.place] = twin
        self.twinned.add(actor.id)
        self.admissions.introduce(actor)
        self.start(twin, seeds)
        return twin

    def end_twin(self, twin: Actor) -> None:
        """The twin ends at once, with its machine."""
        del self.twins[twin.id], self.elsewhere[twin.place]
        twin.rival = None
        self.crash(twin, wipe=True)

    def add_sink(self, name: str, beside: bool = False) -> NodeId:
        """beside: at the node of the first sink, if there is one. Returns its id: its node's, unless it is beside another one."""
        identity = node_id(b"sink:" + name.encode())
        node = next(iter(self.sinks)) if beside and self.sinks else identity
        self.sinks[identity] = {}
        self._sink_names[name], self._sinks_at[node, name] = node, identity
        return identity

    def sink_away(self, sink: NodeId) -> None:
        """From now on messages to the sink are lost."""
        self.sinks_away.add(sink)

    def sink_back(self, sink: NodeId, keeps: str) -> None:
        """The sink is back. keeps: "all"; or the "lake", which its new ledger adopts (as in `SinkHost`); or "nothing"."""
        self.sinks_away.discard(sink)
        if keeps == "all":
            return
        for job, ledger in self.sinks[sink].items():
            fresh = self.sinks[sink][job] = Ledger(job)
            if keeps == "lake" and ledger.entries:
                fresh.adopt(
                    {window: (held[0], held[1] == NO_ROWS) for window, held in ledger.results.items()}
                )
                fresh.fence = above_all(max(revision[0] for revision, _ in ledger.entries.values()))

    def start(self, actor: Actor, seeds: Sequence[Contact] = ()) -> None:
        """Start the agent; it joins through `seeds`."""
        actor.seeds = tuple(seeds)
        node = self._make_node(actor)
        self.notify("start", actor, None)
        records = dict(actor.disk.records)
        actor.disk.begin(LIFE, actor.life)
        self._perform(actor, node.start(self.clock(actor), records, seeds))

    def start_warm(self, actors: Iterable[Actor]) -> None:
        """Start agents that already know each other, so that a mesh of 10,000 need not be simulated while it forms."""
        nodes = sorted(((self._make_node(actor), actor) for actor in actors), key=lambda pair: pair[0].id)
        contacts = [node.overlay.me for node, _ in nodes]
        known = Directory(self.parameters, lambda item: True, self.rng)
        for node, actor in nodes:
            known.put(node.advert(self.clock(actor)), self.clock(actor))
        for number, (node, actor) in enumerate(nodes):
            leaves, table = warm_tables(contacts, number, self.parameters.leaves)
            actor.disk.begin(LIFE, actor.life)
            self.notify("start", actor, None)
            self._perform(actor, node.start(self.clock(actor), {}, (), [*leaves, *table], known))

    def _make_node(self, actor: Actor) -> MeshNode:
        assert actor.node is None
        actor.life = max(actor.life, self._lives.get(actor.id, 0)) + 1
        if actor.id in self.twinned:
            self._lives[actor.id] = actor.life
        actor.rival = None
        actor.is_paused, actor.inbox, actor.wake_us = False, [], None
        drawn = blake2b(actor.id + self.seed.to_bytes(8) + actor.life.to_bytes(4), digest_size=8).digest()
        rng = Random(drawn)
        contact = Contact(actor.id, actor.life, actor.address, instance=int.from_bytes(drawn) >> 1)
        if actor.source is not None:
            actor.source.restart()
        sources = ("access",) if actor.source else ()
        moving = tuple(self.carriers.receivers)
        carried = moving if actor.id in self.carriers.hosts else ()
        actor.node = MeshNode(
            contact,
            actor.name,
            self.parameters,
            rng,
            sources,
            budget=self._budget,
            sink_of=None if moving else self._sink_names.get,
            sinks=carried,
            moving=carried,
            coded=self._coded,
            encoder=actor.disk.encoder,
            features=actor.features,
            **self._signing(actor),
        )
        self.carriers.serve(actor, actor.node)
        for ready in self.node_observers:
            ready(actor, actor.node)
        return actor.node

    def _signing(self, actor: Actor) -> dict[str, Any]:
        """The functions of a node that sign and verify directory items."""
        believed = Believed(self.parameters.revoked_grace_us, partial(self.clock, actor))
        return {"verify": believed.verify, "signers": believed.signers}

    def crash(self, actor: Actor, *, wipe: bool = False, process: bool = False) -> None:
        """End the agent at once, and drop its pending writes; with `wipe` also its disk (not the web server's logs). process:
        only the process ends, and its host closes its sockets; else the host is gone too, and nothing notifies neighbours."""
        gone, actor.node = actor.node, None
        actor.disk.crash(self.rng)
        if wipe:
            actor.disk.wipe()
            if actor.source is not None:
                actor.source.forget()
        self.notify("crash", actor, wipe)
        if process and gone is not None:
            self.notify("process", actor, None)
            self._close_sockets(actor, gone)

    def _close_sockets(self, actor: Actor, gone: MeshNode) -> None:
        """Notify the nodes that have a connection to it: its members and links. O(actors), and crashes are few."""
        for other in self.actors.values():
            node = other.node
            if node is not None and (actor.id in node.links or node.overlay.is_member(actor.id)):
                delay = self.network.end_is_seen(actor.id, other.id)
                if delay is not None:
                    self._push(self.now_us + delay, self._end_seen, other, (actor, gone.life))

    def _end_seen(self, actor: Actor, about: tuple[Actor, int]) -> None:
        """A connection to that life was closed. The connect that follows is refused, or a later life answers."""
        node, (ended, life) = actor.node, about
        if node is None:
            return
        if actor.is_paused:
            self._push(self.now_us + 1_000, self._end_seen, actor, about)
        elif ended.node is None:
            self.notify("sees end", actor, ended.name)
            self._perform(actor, node.process_gone(ended.id, life, self.now_us + actor.clock_us))
        elif not ended.is_paused:
            self.notify("sees restart", actor, ended.name)
            self._perform(actor, node.restarted(ended.node.overlay.me, self.now_us + actor.clock_us))

    def stop(self, actor: Actor) -> None:
        """Make the agent leave the mesh; it ends once the mesh has all its lines."""
        self.notify("leave", actor, None)
        if actor.node is not None:
            self._perform(actor, actor.node.leave(self.clock(actor)))

    def pause(self, actor: Actor) -> None:
        """Stop the process (SIGSTOP): arriving messages wait."""
        actor.is_paused = True
        self.notify("pause", actor, None)

    def resume(self, actor: Actor) -> None:
        self.notify("resume", actor, None)
        actor.is_paused = False
        waiting, actor.inbox = actor.inbox, []
        for source, message in waiting:
            self._deliver(actor.id, (source, message))
        self._wake(actor, None)

    def fill_disk(self, actor: Actor, is_full: bool) -> None:
        self.notify("disk full" if is_full else "disk free", actor, None)
        actor.disk.is_full = is_full
        if not is_full:
            for _ in range(actor.disk.pending):
                self._push(self.now_us + self.disk_us, self._sync, actor, actor.life)

    def start_job(self, actor: Actor, spec: JobSpec) -> None:
        """Submit a job, or a new number of one, at this agent."""
        assert actor.node is not None
        self.notify("job", actor, spec)
        self.put(actor, self.signatures.item(spec))

    def put(self, actor: Actor, item: Item) -> None:
        """Put an item into the directory of this agent."""
        assert actor.node is not None
        self._perform(actor, actor.node.put(item, self.clock(actor)))

    def carry(self, actor: Actor, effects: Sequence[Effect], owner: object = None) -> None:
        """Perform effects of a reader, or of a sink, at this host."""
        assert actor.node is not None
        self._perform(actor, actor.node.carry(effects, self.clock(actor), owner))

    # Two processes with one key: as in `elf.agent.host.single_instance`.

    def _refused_for(self, actor: Actor, instance: int, rival: Contact) -> None:
        """A neighbour refuses this process, since its rival lives."""
        if actor.node is not None and actor.node.instance == instance and not actor.is_paused:
            self.gives_way(actor, Rival(rival, is_lost=False))

    def gives_way(self, actor: Actor, rival: Rival) -> bool:
        """Check a rival, as `SingleInstance` does. Returns whether this life has ended."""
        node, contact = actor.node, rival.contact
        assert node is not None
        if self.admissions.lives(contact, actor):
            if self.admissions.is_in(actor) and node.instance > contact.instance:
                return False
            self._restart(actor, rival, contact)
            return True
        if not rival.is_lost:
            since_s = (self.now_us - actor.begun_us) / 1e6
            if not is_above(rival, actor.life, 0) or since_s < HEARSAY_S:
                return False
            actor.begun_us = self.now_us
        self._restart(actor, rival, None)
        return True

    def _restart(self, actor: Actor, rival: Rival, instead: Contact | None) -> None:
        """Restart with a life above the rival's: at once, or when `instead`, which lives, has ended."""
        last = actor.node.rivals.last if actor.node is not None else 0
        self.crash(actor, wipe=rival.is_lost)
        actor.life = max(actor.life, rival.contact.incarnation)
        if not rival.is_lost:
            actor.disk.begin(LIFE, last)
        if instead is None:
            self.start(actor, actor.seeds)
        else:
            self.notify("waits", actor, instead)
            actor.rival = instead
            self.after(CHECK_US, partial(self._check_rival, actor, instead))

    def _check_rival(self, actor: Actor, instead: Contact) -> None:
        """Start the waiting process once its rival has ended."""
        if actor.node is not None or actor.rival is not instead:
            return
        if self.admissions.lives(instead, actor):
            self.after(CHECK_US, partial(self._check_rival, actor, instead))
        else:
            self.start(actor, actor.seeds)

    # The loop.

    def take(self, to: NodeId, letter: Any) -> None:
        """Deliver a letter that was admitted."""
        self._arrive(to, letter)

    def _deliver(self, to: NodeId, letter: tuple[NodeId, Message]) -> None:
        actor = self.process_at(to)
        if actor is None:
            self._to_sink(to, letter)
            return
        if actor.node is None:
            return
        if actor.is_paused:
            actor.inbox.append(letter)
            return
        self.delivered += 1
        if self.observers:
            self.notify("deliver", actor, letter)
        self._perform(actor, actor.node.receive(letter[0], letter[1], self.now_us + actor.clock_us))

    def _to_sink(self, to: NodeId, letter: tuple[NodeId, Message]) -> None:
        source, message = letter
        sink = self._sinks_at.get((to, getattr(message, "sink", "")), b"")
        ledgers = self.sinks.get(sink)
        if ledgers is None or sink in self.sinks_away:
            return
        if isinstance(message, AlertPut):
            reply = self.take_alert(sink, message, None)
            if reply is not None:
                where = self.admissions.where(to, source) if source in self.twinned else b""
                self._transmit(to, source, reply, where)
            return
        job: JobId = message.job  # type: ignore[attr-defined]
        ledger = ledgers.get(job)
        if ledger is None:
            ledger = ledgers[job] = Ledger(job)
        effects = ledger.step(source, message, self.now_us)
        for put in ledger.take_accepted():
            self.put_to(sink, put)
        for effect in effects:
            if type(effect) is Send:
                where = self.admissions.where(to, effect.to) if effect.to in self.twinned else b""
                self._transmit(to, effect.to, effect.message, where)

    def _wake(self, actor: Actor, wanted_us: int | None) -> None:
        if actor.node is None or actor.is_paused or (wanted_us is not None and actor.wake_us != wanted_us):
            return
        actor.wake_us = None
        self._perform(actor, actor.node.tick(self.now_us + actor.clock_us))

    def _sync(self, actor: Actor, life: int) -> None:
        if actor.life != life or actor.node is None:
            return
        if actor.is_paused:
            self._push(self.now_us + self.disk_us, self._sync, actor, life)
        elif actor.disk.sync(1):
            self._perform(actor, actor.node.durable(self.now_us + actor.clock_us))

    def _perform(self, actor: Actor, effects: Sequence[Outer]) -> None:
        reads: list[Read] | None = None
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._transmit(actor.id, effect.to, effect.message, self._where(actor, effect.to), actor)  # type: ignore[union-attr]
            elif kind is Write:
                self._write(actor, effect)  # type: ignore[arg-type]
                self._push(self.now_us + self.disk_us, self._sync, actor, actor.life)
            elif kind is Read:
                reads = [*(reads or ()), effect]  # type: ignore[list-item]
            elif kind is Recall:
                self._push(self.now_us + self.disk_us, self._recall, actor, (actor.life, effect.job))  # type: ignore[union-attr]
            else:
                assert isinstance(effect, Notice)
                self.notify("notice", actor, effect)
        for read in reads or ():
            self._cut(actor, (actor.life, read))
        node = actor.node
        if node is None:
            return
        if self.inspect is not None:
            self.inspect(actor)
        if node.has_left:
            self.notify("left", actor, None)
            actor.node = None
            return
        rival = node.rivals.take()
        if rival is not None and self.gives_way(actor, rival):
            return
        deadline = node.deadline
        if deadline is not None:
            wake = deadline - actor.clock_us
            if actor.wake_us is None or wake < actor.wake_us:
                wake = max(self.now_us, wake)
                if wake != actor.wake_us:
                    actor.wake_us = wake
                    self._push(wake, self._wake, actor, wake)

    def _write(self, actor: Actor, write: Write) -> None:
        encoded = (write.encoded,) if write.encoded else ()
        actor.disk.write(write.key, write.record, write.replace, *encoded)

    def _recall(self, actor: Actor, wanted: tuple[int, JobId]) -> None:
        life, job = wanted
        if actor.node is None or actor.life != life:
            return
        if actor.is_paused:
            self._push(self.now_us + 1_000, self._recall, actor, wanted)
            return
        records = actor.disk.read(job)
        self._perform(actor, actor.node.recalled(job, records, self.now_us + actor.clock_us))

    def _transmit(
        self, source: NodeId, to: NodeId, message: Message, where: bytes = b"", sender: Actor | None = None
    ) -> None:
        """where: the place of the receiving process, if two have that key."""
        sent = message if self._coded is None else encode(message, self._coded)
        arrive: Callable[[Any, Any], None] = self._arrive
        letter: Any = (source, sent)
        if self.twinned and (source in self.twinned or to in self.twinned):
            proof = proof_of(sender) if sender is not None and sender.node is not None else None
            arrive, letter = self.admissions.arrive, (sender, proof, letter)
        for delay in self.network.delays(source if sender is None else sender.place, where or to):
            self._push(self.now_us + delay, arrive, where or to, letter)

    def _where(self, actor: Actor, to: NodeId) -> bytes:
        """The place of the process with that key to which the actor sends, by the address that the actor knows."""
        if to not in self.twins or actor.node is None:
            return to
        return (actor.node.overlay.address_of(to) or "").encode() or to

    def _deliver_coded(self, to: NodeId, sent: tuple[NodeId, bytes]) -> None:
        self._deliver(to, self._read(sent))

    def _read(self, sent: tuple[NodeId, bytes]) -> tuple[NodeId, Message]:
        """Decode and check, as the receiver's transport does."""
        source, data = sent
        message = decode(data, self._coded)
        check_datagram(message, source)
        return source, message

    def _row_maker(self, line: Line) -> RowMaker:
        maker = self._rows.get(line.plan)
        if maker is None:
            maker = self._rows[line.plan] = RowMaker(plan_of(line.plan), PATHS)
        return maker

    def _cut(self, actor: Actor, wanted: tuple[int, Read]) -> None:
        life, read = wanted
        if actor.node is None or actor.life != life:
            return
        if actor.is_paused:
            self._push(self.now_us + 1_000, self._cut, actor, wanted)
            return
        assert actor.source is not None
        seat = actor.node.seats.get(read.job)
        worker = seat.worker if seat is not None else None
        if worker is None or not worker.schedule:  # the seat has failed, or was replaced, since
            return
        clock = self.now_us + actor.clock_us
        if read.due_us and not worker.awaits(read.request):
            return
        if read.at_line:
            line_us = actor.source.next_line_us(read, self.now_us)
            if line_us > self.now_us:
                if line_us <= self.now_us + self.parameters.flush_us:  # else there is another Read before
                    self._push(line_us, self._cut, actor, wanted)
                return
        elif read.due_us and (
            clock < read.due_us
            or not actor.source.is_due(read, self.now_us, clock, worker.schedule, self._row_maker)
        ):
            if read.due_us < AFTER_ALL:  # else it waits for another Read
                beat = self.parameters.flush_us
                next_us = (max(clock, read.due_us - 1) // beat + 1) * beat - actor.clock_us
                self._push(next_us, self._cut, actor, wanted)
            return
        if unknown := [name for line in worker.schedule for name in _unknown(actor, line)]:
            error = PeerError(f"{actor.name} does not know {unknown[0]}")
            self._perform(actor, actor.node.read_failed(read.job, error, clock))
            return
        cut = actor.source.read(read, self.now_us, clock, worker.schedule, self._row_maker)
        self._perform(actor, actor.node.cut(cut, clock))


def _unknown(actor: Actor, line: Line) -> tuple[str, ...]:
    """What the agent does not know of a version's plan."""
    return lacking(actor.features, needed(line.plan)) if actor.features else ()
