"""A node of the mesh without its IO: one overlay, one directory, a link to each neighbour, and for each job a seat.

In one sentence: a message, a cut of the logs, a durable write or a passing moment goes in; datagrams, writes and reads to perform
come out. What a core wants posted, routed or written is turned into that here, so cores know neither links nor routes.

What stands behind a `Write` in a core's list is kept here until `durable` reports that write: a datagram that depends on the
disk does not exist before, so neither a retransmission nor an overtaking message can tell it early.

    datagram -> overlay | directory | link -> message -> seat of its job (tree, reducer, worker, succession, master)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elf.agent.departure import Departure
from elf.agent.job_seat import JobSeat, SinkOf
from elf.agent.timers import Timed, Timers
from elf.cbt.budget import Budget
from elf.errors import PeerError
from elf.jobmaster.directory import Directory
from elf.jobmaster.job_spec import AgentAdvert, JobSpec, SourceColumns, decode_job, is_readable
from elf.srt import messages as m
from elf.srt.coded_links import CodedLinks
from elf.srt.effects import Effect, Notice, Post, Read, Route, Send, Write
from elf.srt.events import Cut
from elf.srt.ids import JobId, NodeId, short
from elf.srt.link import Link
from elf.srt.messages import Contact, Item, Message, Routed
from elf.srt.overlay import Overlay
from elf.srt.parameters import Parameters
from elf.srt.wire import LogForm

if TYPE_CHECKING:
    from random import Random

Outer = Send | Write | Read | Notice
"""What is left for the surroundings to perform."""

EARLY_MAX = 1_000
"""Messages of links that wait for the directory to name their job: a second of a busy one's. Then the link begins anew."""

_OVERLAY = (m.Ping, m.Pong, m.ProbeFor, m.LeavesAsk, m.LeavesTell, m.JoinMesh, m.JoinTell)
_GOSSIP = (m.GossipDigest, m.GossipItems)
_FOR_SINKS = (m.Put, m.LedgerAsk)
_FOR_OPERATORS = (m.Shown, m.WatchTell, m.TreeTell, m.StatusTell)
"""What somebody at this host asked for."""


class MeshNode:
    """One agent's part in the mesh.

    `sources`: names of the sources it reads, `columns`: what only they have. `sinks`: of those it serves. `now` is always this
    node's own clock, in microseconds. coded: links carry bytes, with a log's entries and states in this form; without it,
    messages as they are, among nodes of one process. `has_room`: what is sent to a node now travels soon. `sign` puts this
    node's name to what it tells the directory, `verify` decides whether to believe others there, `is_revoked` whether to go on
    believing them (`elf.srt.security_items.Notary`); without these all are believed.
    """

    def __init__(
        self,
        me: Contact,
        name: str,
        parameters: Parameters,
        rng: Random,
        sources: Sequence[str],
        *,
        budget: Budget,
        sink_of: SinkOf,
        stores_states: bool = False,
        sinks: Sequence[str] = (),
        columns: Sequence[SourceColumns] = (),
        sign: Callable[[Item], Item] = lambda item: item,
        verify: Callable[[Item], bool] = lambda item: True,
        is_revoked: Callable[[Item], bool] = lambda item: False,
        coded: LogForm | None = None,
        has_room: Callable[[NodeId], bool] = lambda peer: True,
    ) -> None:
        self.id, self.name, self.parameters = me.id, name, parameters
        self.sources, self.sinks = tuple(sources), tuple(sinks)
        self.columns = tuple(columns)
        self.life = me.incarnation
        self.overlay = Overlay(me, parameters, rng)
        self.directory = Directory(parameters, lambda item: is_readable(item) and verify(item), rng)
        self._sign, self._is_revoked = sign, is_revoked
        self.links: dict[NodeId, Link] = {}
        self._coded = None if coded is None else CodedLinks(parameters.frame_bytes_max, coded)
        self._has_room = has_room
        self.seats: dict[JobId, JobSeat] = {}
        self.listener: Callable[[NodeId, Message], None] = lambda source, message: None
        """Takes what is for an operator at this host; it must not call back."""
        self.sink: Callable[[NodeId, Message], None] = lambda source, message: None
        """Takes what is for a sink that this agent serves; it must not call back."""
        self.describe: Callable[[m.StatusTell], m.StatusTell] = lambda tell: tell
        """Adds what only the surroundings know: memory, lag, version, problems."""
        self.has_left = False
        """The mesh knows that this node leaves: the process may end."""
        self._departure: Departure | None = None
        self._joined = False
        self._watched: dict[JobId, NodeId] = {}  # the parent in each job's tree
        self._revoked: set[NodeId] = (
            set()
        )  # agents whose adverts were here; one more for each revocation at most
        self._rng = rng
        self._timers = Timers()
        self._budget, self._sink_of = budget, sink_of
        self._stores_states = stores_states  # sinks of this mesh take the states of panes
        # Per write that is not durable: whose, and what waits.
        self._behind: deque[tuple[object, list[Effect]]] = deque()
        self._waiting: dict[object, list[Effect]] = {}  # owner -> what waits behind its last write
        self._here: deque[tuple[NodeId, Message]] = deque()  # messages to itself
        self._early: list[tuple[NodeId, Message]] = []  # from links, of jobs that are not known yet
        self._dropped: dict[JobId, set[NodeId]] = {}  # whose messages a stopped job's seat did not take
        self._stepping = dict.fromkeys(_OVERLAY, self.overlay) | dict.fromkeys(_GOSSIP, self.directory)

    # What the surroundings call.

    def start(
        self,
        now: int,
        records: Mapping[tuple[str, bytes], Sequence[Any]],
        seeds: Sequence[Contact],
        warm: Sequence[Contact] = (),
        known: Directory | None = None,
    ) -> list[Outer]:
        """Begin, or begin again with what the disk held. `warm`: members that are known already, with what is `known`."""
        out: list[Outer] = []
        if known is not None:
            self.directory.share(known)
        else:
            self.directory.restore(records.get(("directory", b""), ()))
            self.directory.drop(self._is_revoked)
            self.directory.put(self.advert(now), now)
        if warm:
            self.overlay.warm(warm, now)
        else:
            self._do(self.overlay.join(seeds, now), now, out)
        self._joined = self.overlay.joined
        self._open_seats(now, out, records)
        self.directory.take_changes()
        self._timers.watch(self.overlay)
        self._timers.watch(self.directory)
        return self._end(now, out)

    def advert(self, now: int) -> Item:
        """What this node tells everybody of itself."""
        return self._sign(self._advert(now, 0).item(self.id))

    def _advert(self, now: int, until_us: int) -> AgentAdvert:
        address = self.overlay.me.address
        return AgentAdvert(
            self.name, self.sources, self.life, now, until_us, self.sinks, address, self.columns
        )

    def receive(self, source: NodeId, message: Message, now: int) -> list[Outer]:
        """A datagram came."""
        out: list[Outer] = []
        self._take(source, message, now, out)
        return self._end(now, out)

    def cut(self, cut: Cut, now: int) -> list[Outer]:
        """The answer to a `Read`."""
        out: list[Outer] = []
        seat = self.seats.get(cut.job)
        if seat is not None:
            self._do(seat.cut(cut, now), now, out, seat)
            self._seat_changed(seat, now, out)
        self._timers.refresh()  # links whose messages were acknowledged since the last cut
        return self._end(now, out)

    def durable(self, now: int) -> list[Outer]:
        """The oldest `Write` that was not durable is now."""
        out: list[Outer] = []
        owner, waiting = self._behind.popleft()
        if owner is not None and self._waiting.get(owner) is waiting:
            del self._waiting[owner]
        self._do(waiting, now, out)
        return self._end(now, out)

    def tick(self, now: int) -> list[Outer]:
        """Time has passed."""
        out: list[Outer] = []
        due = self._timers.due(now)
        if not due:
            return out
        for core, owner in due:
            if isinstance(owner, JobSeat):
                self._do(owner.tick(core, now), now, out, owner)
                self._seat_changed(owner, now, out)
                continue
            if core is self.directory:
                self._do(self.directory.tick(now, self.overlay.acquaintances()), now, out, core)
            else:
                self._do(core.tick(now), now, out, core)  # type: ignore[attr-defined]
            if isinstance(core, Link):
                self._link_ticked(core, now, out)
            self._timers.watch(core)
        self._overlay_changed(now, out)
        return self._end(now, out)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        return self._timers.next_us

    def submit(self, spec: JobSpec, now: int) -> list[Outer]:
        """A job, or a new number of one, from an operator at this agent."""
        return self.put(spec.item(), now)

    def put(self, item: Item, now: int) -> list[Outer]:
        """An item of the directory that was made, and signed, by somebody at this host."""
        out: list[Outer] = []
        self.directory.put(item, now)
        self._directory_changed(now, out)
        return self._end(now, out)

    def join(self, seeds: Sequence[Contact], now: int) -> list[Outer]:
        """More is known of whom to ask for the mesh."""
        out: list[Outer] = []
        self._do(self.overlay.join(seeds, now), now, out)
        self._overlay_changed(now, out)
        return self._end(now, out)

    def clock_stepped(self, now: int) -> list[Outer]:
        """The clock was set back: every core takes its timers along."""
        out: list[Outer] = []
        self._do(self.overlay.tick(now), now, out, self.overlay)
        self._do(self.directory.tick(now, self.overlay.acquaintances()), now, out, self.directory)
        for link in self.links.values():
            self._do(link.tick(now), now, out, link)
        for seat in self.seats.values():
            for core in seat.cores:
                self._do(seat.tick(core, now), now, out, seat)
            self._seat_changed(seat, now, out)
        others: list[Timed] = [self.overlay, self.directory, *self.links.values()]
        for each in others:
            self._timers.watch(each)
        return self._end(now, out)

    def rest(self, now: int) -> list[Outer]:
        """The process ends, and will begin again: neighbours hear it, and need not find out. Workers keep their places."""
        out: list[Outer] = []
        self._do(self.overlay.left(now), now, out)
        for seat in self.seats.values():
            self._do(seat.rest(now), now, out)
        return out

    def carry(self, effects: Sequence[Effect], now: int) -> list[Outer]:
        """What somebody at this host wants sent or routed."""
        out: list[Outer] = []
        self._do(effects, now, out)
        return self._end(now, out)

    def leave(self, now: int) -> list[Outer]:
        """Leave the mesh for good: workers say goodbye once their last line is committed; `has_left` tells when all is done."""
        out: list[Outer] = []
        if self._departure is None:
            self._departure = Departure(self.parameters.gossip_us * 2)
        for seat in self.seats.values():
            self._do(seat.leave(now), now, out, seat)
            self._seat_changed(seat, now, out)
        return self._end(now, out)

    # Messages.

    def _take(self, source: NodeId, message: Message, now: int, out: list[Outer]) -> None:
        kind = type(message)
        if kind is m.Frame:
            self._frame(source, message, now, out)  # type: ignore[arg-type]
        elif kind is Routed:
            self._routed(message, now, out)  # type: ignore[arg-type]
        elif kind is m.TreeJoin:
            self._route(message.job, source, message, 0, now, out)  # type: ignore[attr-defined]
        elif kind in self._stepping:
            core = self._stepping[kind]
            self._do(core.step(source, message, now), now, out, core)
            self._timers.watch(core)
            if core is self.overlay:
                self._overlay_changed(now, out)
            else:
                self._directory_changed(now, out)
        elif kind in _FOR_SINKS:
            self.sink(source, message)
        elif kind in _FOR_OPERATORS:
            self.listener(source, message)
        elif kind is m.StatusAsk:
            self._do([Send(source, self.status(message.number, now))], now, out)  # type: ignore[attr-defined]
        else:
            self._to_seat(source, message, now, out)

    def status(self, number: int, now: int) -> m.StatusTell:
        """How this node is. O(jobs)."""
        seats = [seat for seat in self.seats.values() if not seat.is_stopped]
        tell = m.StatusTell(
            number,
            now,
            masters=sum(seat.master is not None for seat in seats),
            replicas=sum(seat.is_replica for seat in seats),
            reducers=sum(bool(seat.tree.children) for seat in seats),
            workers=sum(seat.worker is not None for seat in seats),
        )
        return self.describe(tell)

    def _frame(self, source: NodeId, frame: m.Frame, now: int, out: list[Outer]) -> None:
        link = self._link(source, now)
        restarts = link.restarts
        messages, effects = link.step(frame, now)
        if effects:
            self._do(effects, now, out)
        self._timers.watch(link)
        if link.restarts != restarts:
            self._link_lost(source, now, out)
        if self._coded is not None:
            messages = self._decoded(self._coded, link, messages, now, out)
        for message in messages:
            seat = self.seats.get(message.job)  # type: ignore[attr-defined]
            if seat is not None:
                if seat.is_stopped:
                    self._dropped.setdefault(seat.job, set()).add(source)
                self._to_seat(source, message, now, out)
            else:
                self._early.append((source, message))  # a link delivers once: it waits for the directory
        if len(self._early) > EARLY_MAX:
            link.hang_up()
            self._link_lost(source, now, out)

    def _decoded(
        self, coded: CodedLinks, link: Link, pieces: Sequence[Message], now: int, out: list[Outer]
    ) -> list[Message]:
        """What the pieces hold. If that is nothing, the link begins anew: what the neighbour keeps comes again."""
        try:
            return [message for piece in pieces for message in coded.take(link.peer, piece)]
        except PeerError as error:
            text = f"{short(link.peer)}: {error}; the link begins anew"
            out.append(Notice("undecodable", text, link.peer))
            link.hang_up()
            self._link_lost(link.peer, now, out)
            return []

    def _link_lost(self, peer: NodeId, now: int, out: list[Outer]) -> None:
        """What was on its way to and from that neighbour is gone."""
        if self._coded is not None:
            self._coded.forget(peer)
        self._early = [each for each in self._early if each[0] != peer]
        for seat in self.seats.values():
            self._do(seat.link_reset(peer, now), now, out, seat)
            self._seat_changed(seat, now, out)

    def _take_early(self, now: int, out: list[Outer]) -> None:
        early, self._early = self._early, []
        for source, message in early:
            if message.job in self.seats:  # type: ignore[attr-defined]
                self._to_seat(source, message, now, out)
            else:
                self._early.append((source, message))

    def _link(self, peer: NodeId, now: int) -> Link:
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(peer, self.life, 0, self.parameters)
        return link

    def _link_ticked(self, link: Link, now: int, out: list[Outer]) -> None:
        silent = link.silent_since
        if silent is not None and now - silent > self.parameters.link_dead_us:
            self._do(self.overlay.doubt(link.peer, now), now, out)

    def _routed(self, routed: Routed, now: int, out: list[Outer]) -> None:
        if routed.hops > self.parameters.hops_max:
            return
        self._route(routed.key, routed.origin, routed.message, routed.hops, now, out)

    def _route(
        self, key: bytes, origin: NodeId, message: Message, hops: int, now: int, out: list[Outer]
    ) -> None:
        """One hop towards the node closest to `key`, or the end of the way. A tree may take a TreeJoin at any hop."""
        hop = self.overlay.next_hop(key)
        if type(message) is m.TreeJoin:
            seat = self.seats.get(message.job)
            if seat is not None and message.child != self.id:
                taken, effects = seat.passing(message, origin, now, is_root=hop is None)
                self._do(effects, now, out, seat)
                self._seat_changed(seat, now, out)
                if taken:
                    return
        if hop is not None:
            out.append(Send(hop, Routed(key, origin, message, hops + 1)))
        elif type(message) is not m.TreeJoin:
            self._to_seat(origin, message, now, out)

    def _to_seat(self, source: NodeId, message: Any, now: int, out: list[Outer]) -> None:
        seat = self.seats.get(message.job)
        if seat is None:
            return
        self._do(seat.step(source, message, now), now, out, seat)
        self._seat_changed(seat, now, out)

    # Effects.

    def _do(self, effects: Sequence[Effect], now: int, out: list[Outer], owner: object = None) -> None:
        """Turn a core's effects into what the surroundings perform.

        Writes go out in order. What stands behind one in its list waits for it, and so does everything that the same `owner`
        (a seat, the directory) asks for later: a core may count on its own order.
        """
        if not effects:
            return
        waiting = self._waiting.get(owner) if self._waiting and owner is not None else None
        for effect in effects:
            kind = type(effect)
            if kind is Write:
                out.append(effect)  # type: ignore[arg-type]
                waiting = []
                self._behind.append((owner, waiting))
                if owner is not None:
                    self._waiting[owner] = waiting
            elif waiting is not None:
                waiting.append(effect)
            elif kind is Send:
                self._send(effect, out)  # type: ignore[arg-type]
            elif kind is Post:
                self._post(effect, now, out)  # type: ignore[arg-type]
            elif kind is Route:
                self._route(effect.key, self.id, effect.message, 0, now, out)  # type: ignore[union-attr, arg-type]
            else:
                out.append(effect)  # type: ignore[arg-type]

    def _send(self, send: Send, out: list[Outer]) -> None:
        if send.to == self.id:
            self._here.append((self.id, send.message))
        else:
            out.append(send)

    def _post(self, post: Post, now: int, out: list[Outer]) -> None:
        if post.to == self.id:
            self._here.append((self.id, post.message))
            return
        link = self._link(post.to, now)
        for message in (post.message,) if self._coded is None else self._pieces(self._coded, post, out):
            self._do(link.post(message, now), now, out)
        self._timers.watch(link)

    def _pieces(self, coded: CodedLinks, post: Post, out: list[Outer]) -> Sequence[Message]:
        try:
            return coded.pieces(post.to, post.message)
        except ValueError as error:
            out.append(Notice("not encoded", f"a message to {short(post.to)} was not sent: {error}", post.to))
            return ()

    def _end(self, now: int, out: list[Outer]) -> list[Outer]:
        """Deliver what this node sent to itself, until it is quiet."""
        while self._here:
            source, message = self._here.popleft()
            self._take(source, message, now, out)
        if self._departure is not None and not self.has_left:
            self._depart(self._departure, now, out)
        return out

    def _depart(self, departure: Departure, now: int, out: list[Outer]) -> None:
        """When the last worker is done: withdraw the advert, give it time to spread, and say goodbye to the neighbours."""
        if departure.deadline is None and all(seat.has_ended for seat in self.seats.values()):
            departure.begin(now)
            self._timers.watch(departure)
            until = max((now, *(seat.until_us for seat in self.seats.values())))
            self.directory.put(self._sign(self._advert(now, until).item(self.id)), now)
            self._timers.watch(self.directory)
        if departure.is_over:
            self.has_left = True
            self._do(self.overlay.left(now), now, out)

    # What follows from a change.

    def _overlay_changed(self, now: int, out: list[Outer]) -> None:
        changes = self.overlay.take_changes()
        if not changes and self._joined == self.overlay.joined:
            return
        self._joined = self.overlay.joined
        for what, contact in changes:
            if what in ("dead", "left"):
                link = self.links.get(contact.id)
                if link is not None:
                    link.hang_up()
                self._link_lost(contact.id, now, out)
        for seat in self.seats.values():
            self._closest(seat, now, out)
        self._timers.watch(self.overlay)

    def _closest(self, seat: JobSeat, now: int, out: list[Outer]) -> None:
        """Who has not found the mesh yet is closest to nothing: it would begin jobs anew that others serve."""
        if not self._joined:
            return
        neighbours = [
            node for node in self.overlay.closest(seat.job, self.parameters.leaves + 1) if node != self.id
        ]
        is_closest = self.overlay.next_hop(seat.job) is None
        self._do(seat.closest(is_closest, neighbours, now), now, out, seat)
        self._seat_changed(seat, now, out)

    def _directory_changed(self, now: int, out: list[Outer]) -> None:
        changed = {item.kind for item in self.directory.take_changes()}
        if "revoked" in changed:
            changed |= self._drop_revoked(out)
        if "job" in changed:
            self._open_seats(now, out, {})
        if changed & {"job", "agent", "ballot"}:
            for seat in self.seats.values():
                self._do(seat.directory_changed(now), now, out, seat)
                self._seat_changed(seat, now, out)
        self._timers.watch(self.directory)

    def _drop_revoked(self, out: list[Outer]) -> set[str]:
        """Forget what was said under certificates that are revoked; the kinds of it. Jobs among it end. O(items)."""
        dropped = self.directory.drop(self._is_revoked)
        self._revoked.update(item.name for item in dropped if item.kind == "agent")
        if any(item.kind == "agent" and item.name == self.id for item in dropped):
            text = "the certificate of this agent was revoked: nobody talks to it any more; give it new keys, or stop it"
            out.append(Notice("revoked", text))
        return {item.kind for item in dropped}

    def _open_seats(
        self, now: int, out: list[Outer], records: Mapping[tuple[str, bytes], Sequence[Any]]
    ) -> None:
        for item in list(self.directory.items("job")):
            former = self.seats.get(item.name)
            if former is not None and not former.is_stopped:
                continue
            spec = decode_job(item)
            if former is not None and spec.stopped:
                continue
            seat = self.seats[spec.id] = JobSeat(
                spec,
                self.id,
                self.life,
                self.parameters,
                self._rng,
                self.directory,
                works=spec.source in self.sources,
                budget=self._budget,
                sink_of=self._sink_of,
                stores_states=self._stores_states,
                has_credit=self._has_credit,
                former=former,
                revoked=self._revoked,
            )
            seat.restore(records)
            self._do(seat.start(now), now, out, seat)
            self._seat_changed(seat, now, out)
            self._closest(seat, now, out)
            self._begin_links_anew(seat.job, now, out)
        if self._early:
            self._take_early(now, out)

    def _begin_links_anew(self, job: JobId, now: int, out: list[Outer]) -> None:
        """A link delivers once: who has started the job again before this node did must say so again."""
        for peer in sorted(self._dropped.pop(job, ())):
            self._link(peer, now).hang_up()
            self._link_lost(peer, now, out)

    def _has_credit(self, peer: NodeId) -> bool:
        link = self.links.get(peer)
        return (link is None or link.has_credit) and self._has_room(peer)

    def _seat_changed(self, seat: JobSeat, now: int, out: list[Outer]) -> None:
        while effects := seat.settle(now):
            self._do(effects, now, out, seat)
        if seat.is_stirred:
            for item in seat.take_items():
                self.directory.put(self._sign(item), now)
                self._timers.watch(self.directory)
            parent = seat.tree.parent
            if parent != self._watched.get(seat.job):
                self._watch(seat.job, parent)
        watch = self._timers.watch
        for core in seat.take_stirred():
            watch(core, seat)

    def _watch(self, job: JobId, parent: NodeId | None) -> None:
        """A parent's death is found as fast as a neighbour's on the ring."""
        former = self._watched.pop(job, None)
        if former is not None:
            self.overlay.unwatch(former)
        if parent is not None:
            self._watched[job] = parent
            self.overlay.watch(parent)
            self._timers.watch(self.overlay)

    def check(self) -> None:
        """Raise AssertionError unless every core's invariants hold."""
        self.overlay.check()
        self.directory.check()
        for link in self.links.values():
            link.check()
            assert self._timers.is_watched(link)
        for seat in self.seats.values():
            seat.check()
            assert all(map(self._timers.is_watched, seat.cores)), "nobody would wake it"
        assert self._timers.is_watched(self.overlay)
        assert self._timers.is_watched(self.directory)
