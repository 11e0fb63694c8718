"""A node of the mesh, without IO: one overlay, one directory, a link to each neighbour, and a seat for each job.

In one sentence: a message, a cut of the logs, a durable write or passing time goes in; datagrams, writes and reads to perform
come out. The node turns what cores post, route and write into these, so cores know neither links nor routes.

Effects that follow a `Write` in a core's list are kept here until `durable` reports that write. Before that, the messages among
them are on no link, so no retransmission can send them early.

A node whose disk writes fail steps aside, so that jobs do not wait for it:

    standing | the disk                                | the node
    ---------+-----------------------------------------+------------------------------------------------------------------
    IN       | works                                   | works normally
    OUT      | a write is `disk_us_max` old, or too    | announces that it leaves, so that others serve its jobs from their logs,
             | many effects wait for writes            | and sends nothing as a neighbour, master, replica or sink; links begin
             |                                         | anew. Its workers continue to read and to send through the tree, which
             |                                         | needs no disk. It omits records for the disk
    BACK     | all earlier writes are durable          | as OUT, and writes the records that it omitted
    IN       | these are durable too                   | joins again, in the same life, as a newer version of itself

While the node is OUT no effect waits, so nothing grows. It sends routed messages by way of a random node that it knew.

    datagram -> overlay | directory | link -> message -> seat of its job (tree, reducer, worker, succession, master)

A seat that raises is dropped and started again (`elf.agent.node.seats`); any other exception ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from elf.agent.node.abilities import Abilities
from elf.agent.node.departure import Departure
from elf.agent.node.early import EarlyMessages, message_job
from elf.agent.node.job_seat import JobSeat
from elf.agent.node.job_sinks import SinkOf
from elf.agent.node.linked_node import Outer, Standing
from elf.agent.node.revoked import OWN, REVOKED, Voids, apply_revocations
from elf.agent.node.rivals import Rivals
from elf.agent.node.roles import roles_of, with_alerts
from elf.agent.node.seats import Records, SeatedNode
from elf.agent.node.timers import Timed
from elf.agent.node.vacancy import Vacancy
from elf.cbt.budget import Budget
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, SourceColumns, decode_job, is_readable
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.jobmaster.log.record_codec import RecordEncoder
from elf.jobmaster.log.succession import OF_LOGS
from elf.srt.codec.wire import LogForm
from elf.srt.link.link import Link
from elf.srt.messages import changes as c
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Effect, Notice, Post, Read, Send
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Contact, Item, Message, Routed
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import FOR_CONTROL, StatusReport, StatusRequest
from elf.srt.messages.signers import Signers
from elf.srt.overlay.overlay import Overlay

if TYPE_CHECKING:
    from random import Random

__all__ = ["MeshNode", "Outer"]

ASKED_MAX = 3
"""Seeds from which a starting node requests the directory's present advert of itself."""

_OVERLAY = (m.Ping, m.Pong, m.ProbeFor, m.LeavesRequest, m.LeavesReport, m.JoinMesh, m.JoinReply)
_GOSSIP = (m.GossipDigest, m.GossipItems)
_FOR_SINKS = (r.Put, r.PutPart, r.LedgerRequest, r.AlertPut)
_REPORTS = (*FOR_CONTROL, m.TreeReport, c.ChangeReport)
_FOR_OPERATORS = (*_REPORTS, r.Shown, r.ShownPart, r.WatchReply)
"""Answers to an operator at this host, and requests for estimates of its log."""


class MeshNode(SeatedNode):
    """One agent as a member of the mesh.

    `sources`: names of the sources that it reads; `columns`: columns that only these sources have. `sinks`: names of the sinks
    that it serves; `streams`: those of them that take rows; `takes`: those that take jobs by patterns of
    their names. `now` is always this node's own clock, in microseconds. coded: links
    carry bytes, with a log's entries and states in this form; without it, links carry messages as objects, between nodes of one
    process. encoder: encodes the records that seats write; without it, the host does. `has_room`: whether a message to that node
    is sent soon. `sign` signs this node's directory items, `verify` accepts or refuses those of others, `signers` says who signed
    them (`elf.srt.security.items.Notary`); without these three all items are accepted. caps: limits for every job at this node.
    features: of plans, if not this version's.
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
        sink_of: SinkOf | None = None,
        stores_states: bool = False,
        sinks: Sequence[str] = (),
        streams: Sequence[str] = (),
        takes: Sequence[tuple[str, tuple[str, ...]]] = (),
        moving: Sequence[str] = (),
        columns: Sequence[SourceColumns] = (),
        sign: Callable[[Item], Item] = lambda item: item,
        verify: Callable[[Item], bool] = lambda item: True,
        signers: Signers = Signers(),  # noqa: B008
        coded: LogForm | None = None,
        has_room: Callable[[NodeId], bool] = lambda peer: True,
        encoder: RecordEncoder | None = None,
        caps: Limits = NO_LIMITS,
        features: bytes = b"",
    ) -> None:
        super().__init__(
            me,
            parameters,
            rng,
            budget=budget,
            sink_of=sink_of,
            stores_states=stores_states,
            coded=coded,
            has_room=has_room,
            encoder=encoder,
            sign=sign,
            caps=caps,
        )
        self.name = name
        self.sources, self.sinks, self.streams = tuple(sources), tuple(sinks), tuple(streams)
        self._takes, self._moving = tuple(takes), tuple(moving)
        self.columns = tuple(columns)
        self.overlay = Overlay(me, parameters, rng)
        self.directory = Directory(parameters, lambda item: is_readable(item) and verify(item), rng, signers)
        self.abilities = Abilities(me.id, features, self.directory)
        self._voids = Voids()
        self.rivals = Rivals(me, verify)
        """Other processes with this node's key, which the host checks."""
        self.listener: Callable[[NodeId, Message], None] = lambda source, message: None
        """Gets messages for an operator at this host; it must not call back."""
        self.sink: Callable[[NodeId, Message], None] = lambda source, message: None
        """Gets messages for a sink that this agent serves; it must not call back."""
        self.describe: Callable[[StatusReport], StatusReport] = lambda report: report
        """Adds what only the host knows: memory, lag, version, problems."""
        self.has_left = False
        """The mesh knows that this node leaves: the process may end."""
        self.is_revoked = False
        """This node's own certificate was revoked."""
        self._departure: Departure | None = None
        self._back_at = 0  # BACK: number of durable writes at which the node is IN again
        self._early = EarlyMessages()
        self._stepping = dict.fromkeys(_OVERLAY, self.overlay) | dict.fromkeys(_GOSSIP, self.directory)

    # Called by the host.

    def start(
        self,
        now: int,
        records: Records,
        seeds: Sequence[Contact],
        warm: Sequence[Contact] = (),
        known: Directory | None = None,
    ) -> list[Outer]:
        """Start, with the records on the disk. `warm`: members that are known already, with the directory `known`."""
        out: list[Outer] = []
        self.rivals.last = records.get(("node", b""), (0,))[-1]
        if known is not None:
            self.directory.share(known)
        else:
            self.directory.restore(records.get(("directory", b""), ()))
            self._apply_revocations(now, out)
            self.directory.put(self.advert(now), now)
        if warm:
            self.overlay.warm(warm, now)
        else:
            # Send the request before the own advert replaces the present one in others' directories.
            ask = self.directory.ask("agent", self.id)
            self._do([Send(seed.id, ask) for seed in seeds[:ASKED_MAX]], now, out)
            self._do(self.overlay.join(seeds, now), now, out)
        self._joined = self.overlay.joined
        self._open_seats(now, out, records)
        self.directory.take_changes()
        self._timers.watch(self.overlay)
        self._timers.watch(self.directory)
        return self._end(now, out)

    def advert(self, now: int) -> Item:
        """This node's directory item about itself."""
        return self._sign(self._advert(now, 0).item(self.id))

    def _advert(self, now: int, until_us: int) -> AgentAdvert:
        features, of_sinks = self.abilities.features, (self.streams, self._takes, self._moving)
        about = self.sinks, self.overlay.me.address, self.columns, self.instance, features, *of_sinks
        return AgentAdvert(self.name, self.sources, self.life, now, until_us, *about)

    def receive(self, source: NodeId, message: Message, now: int) -> list[Outer]:
        """A datagram arrived."""
        out: list[Outer] = []
        self._take(source, message, now, out)
        self._refresh(now, out)  # an answer ends a wait
        return self._end(now, out)

    def process_gone(self, peer: NodeId, life: m.Life, now: int) -> list[Outer]:
        """That life of a neighbour has ended: the connection to it was lost, and nothing listens at its address."""
        out: list[Outer] = []
        link = self.links.get(peer)
        if not self.is_aside and self.overlay.is_member(peer):
            self._do(self.overlay.process_gone(peer, life, now), now, out, self.overlay)
            if not self.overlay.is_member(peer):
                self._neighbours.note_ended(peer, now)
            self._overlay_changed(now, out)
        elif link is not None and link.peer_life == life:
            self._hang_up(peer, now, out)  # it is no member, but may be a child in a tree
        return self._end(now, out)

    def restarted(self, contact: Contact, now: int) -> list[Outer]:
        """A neighbour whose connection was lost answers in a later life."""
        out: list[Outer] = []
        if not self.is_aside:
            self._do(self.overlay.restarted(contact, now), now, out, self.overlay)
            self._overlay_changed(now, out)
        return self._end(now, out)

    def cut(self, cut: Cut, now: int) -> list[Outer]:
        """The answer to a `Read`."""
        out: list[Outer] = []
        seat = self.seats.get(cut.job)
        if seat is not None:
            self._call(seat, now, out, seat.cut, cut, now)
        self._refresh(now, out)  # links whose messages were acknowledged since the last cut
        return self._end(now, out)

    def read_failed(self, job: JobId, error: Exception, now: int) -> list[Outer]:
        """A `Read` of the job raised: its seat fails, since the code that turns lines into rows belongs to the job's worker."""
        out: list[Outer] = []
        if job in self.seats:
            self._failed(self.seats[job].spec, error, now, out)
        return self._end(now, out)

    def durable(self, now: int) -> list[Outer]:
        """The oldest pending `Write` is durable."""
        out: list[Outer] = []
        self._do(self._barrier.durable(), now, out)
        if self.standing is Standing.OUT and not self._barrier:
            self._write_anew(now, out)
        elif self.standing is Standing.BACK and self._barrier.done >= self._back_at:
            self._come_back(now, out)
        return self._end(now, out)

    def tick(self, now: int) -> list[Outer]:
        """Time has passed."""
        out: list[Outer] = []
        due = self._due(now, out)
        if not due and not out:
            return out
        for core, owner in due:
            if isinstance(owner, JobSeat):
                self._call(owner, now, out, owner.tick, core, now)
                continue
            if isinstance(core, Vacancy):
                self._vacancy_due(core, now, out)
                continue
            if core is self._voids:
                self._directory_changed(now, out)
                continue
            if isinstance(core, Overlay) and (core is not self.overlay or self.is_aside):
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

    def put(self, item: Item, now: int) -> list[Outer]:
        """A signed directory item from an operator at this host."""
        out: list[Outer] = []
        self.directory.put(item, now)
        self._directory_changed(now, out)
        return self._end(now, out)

    def join(self, seeds: Sequence[Contact], now: int) -> list[Outer]:
        """Further seeds are known: join through them."""
        out: list[Outer] = []
        self._do(self.overlay.join(seeds, now), now, out)
        self._overlay_changed(now, out)
        return self._end(now, out)

    def clock_stepped(self, now: int) -> list[Outer]:
        """The clock was set back: shift all timers by the clock step."""
        out: list[Outer] = []
        self._barrier.clock_stepped(now)
        if not self.is_aside:
            self._do(self.overlay.tick(now), now, out, self.overlay)
        self._do(self.directory.tick(now, self.overlay.acquaintances()), now, out, self.directory)
        for link in self.links.values():
            self._do(link.tick(now), now, out, link)
        for seat in self._each_seat():
            for core in seat.cores:
                self._call(seat, now, out, seat.tick, core, now)
        for vacancy in self.vacancies.values():
            vacancy.clock_stepped(now)
        for each in self._unseated():
            self._timers.watch(each)
        return self._end(now, out)

    def _unseated(self) -> list[Timed]:
        others: list[Timed] = [self._barrier, self.overlay, self.directory, self._voids, *self.links.values()]
        others += self.vacancies.values()
        return others if self._departure is None else [*others, self._departure]

    def rest(self, now: int) -> list[Outer]:
        """The process ends and will start again: notify neighbours, so that they need not detect it. Workers keep their
        positions."""
        out: list[Outer] = []
        self._do(self.overlay.left(now), now, out)
        for seat in self._each_seat():
            self._call(seat, now, out, seat.rest, now)
        return out

    def carry(self, effects: Sequence[Effect], now: int, owner: object = None) -> list[Outer]:
        """Effects of other parts of this host. Effects of one `owner` keep their order, as those of a core do. Those of a part
        that answers a message of this node are among what the present call returns."""
        out: list[Outer] = []
        self._do(effects, now, out if self._answers is None else self._answers, owner)
        return self._end(now, out) if self._answers is None else out

    def leave(self, now: int) -> list[Outer]:
        """Leave the mesh for good: workers send Goodbye once their last line is committed. `has_left` is True when all is
        done."""
        out: list[Outer] = []
        if self._departure is None:
            self._departure = Departure(self.parameters.gossip_us * 2)
        for seat in self._each_seat():
            self._call(seat, now, out, seat.leave, now)
        return self._end(now, out)

    # Messages.

    def _take(self, source: NodeId, message: Message, now: int, out: list[Outer]) -> None:
        kind = type(message)
        if kind is m.Frame:
            self._frame(source, message, now, out)  # type: ignore[arg-type]
        elif isinstance(message, Routed):
            if message.hops <= self.parameters.hops_max:
                self._route(message.key, message.origin, message.message, message.hops, now, out)
        elif kind is m.TreeJoin:
            self._route(message.job, source, message, 0, now, out)  # type: ignore[attr-defined]
        elif self.is_aside and (kind in _OVERLAY or kind in _FOR_SINKS):
            gateway = self._gateway() if kind is m.JoinMesh else None
            if gateway is not None:
                out.append(Send(gateway, message))
        elif kind in self._stepping:
            if kind is m.GossipItems:
                self.rivals.read(message.items)  # type: ignore[attr-defined]
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
        elif kind is StatusRequest:
            self._do([Send(source, self.status(message.number, now))], now, out)  # type: ignore[attr-defined]
        else:
            self._to_seat(source, message, now, out)

    def status(self, number: int, now: int) -> StatusReport:
        """This node's status. O(jobs)."""
        ended = self._neighbours.ended
        seats = self.seats.values()
        return self.describe(with_alerts(roles_of(seats, number, now, self.failing(now), ended), seats))

    def _frame(self, source: NodeId, frame: m.Frame, now: int, out: list[Outer]) -> None:
        link = self.links.get(source) or self._link(source, now)
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
            self._from_link(source, message, now, out)
        if self._early.is_over:
            self._hang_up(source, now, out)

    def _from_link(self, source: NodeId, message: Message, now: int, out: list[Outer]) -> None:
        """Pass a message to its job's seat. A link delivers once: keep it for an unknown job; note whose an ended job drops."""
        job, seat = message_job(message), self.seats.get(message_job(message))
        if seat is None and job not in self.vacancies:
            self._early.add(source, message)
            return
        if seat is not None and seat.is_stopped and not (self.is_aside and type(message) in OF_LOGS):
            self._dropped.setdefault(job, set()).add(source)
        self._to_seat(source, message, now, out)

    def _link_lost(self, peer: NodeId, now: int, out: list[Outer]) -> None:
        """Messages in transit to and from that neighbour are lost."""
        self._early.forget(peer)
        super()._link_lost(peer, now, out)

    def _link_ticked(self, link: Link, now: int, out: list[Outer]) -> None:
        silent = link.silent_since
        if silent is None or now - silent <= self.parameters.link_dead_us or self.is_aside:
            return
        if self.overlay.is_member(link.peer):
            self._do(self.overlay.probe_now(link.peer, now), now, out)
        else:  # a child in a tree that is no member: the overlay would never declare it dead
            self._hang_up(link.peer, now, out)

    def _route(
        self, key: bytes, origin: NodeId, message: Message, hops: int, now: int, out: list[Outer]
    ) -> None:
        """Forward a message towards the node closest to `key`, or deliver it here. A tree may take a TreeJoin at any hop."""
        hop = self._gateway() if self.is_aside else self.overlay.next_hop(key, self.abilities.noted(key))
        is_join = type(message) is m.TreeJoin and message.child != self.id
        if is_join and self._passing(message, origin, hop is None and not self.is_aside, now, out):  # type: ignore[arg-type]
            return
        if hop is not None:
            out.append(Send(hop, Routed(key, origin, message, hops + 1)))
        elif type(message) is not m.TreeJoin:
            self._to_seat(origin, message, now, out)

    def _end(self, now: int, out: list[Outer]) -> list[Outer]:
        """End each call: deliver this node's messages to itself until there are none; then step aside, depart or fail seats, if
        that is due."""
        self._deliver_own(now, out)
        barrier = self._barrier
        if barrier.begun != barrier.done and barrier.is_over and self.standing is not Standing.OUT:
            self._step_aside(now, out)
        if self._departure is not None and not self.has_left:
            self._depart(self._departure, now, out)
        if self._unsent:
            self._fail_unsent(now, out)
        return out

    def _depart(self, departure: Departure, now: int, out: list[Outer]) -> None:
        """Once the last worker is done, and this node holds no log alone: withdraw the advert, give that time to spread, and
        notify the neighbours."""
        is_done = all(seat.has_ended and not seat.holds_alone for seat in self.seats.values())
        is_done = is_done and not any(vacancy.is_vacant for vacancy in self.vacancies.values())
        if departure.deadline is None and is_done:
            departure.begin(now)
            self._timers.watch(departure)
            until = max((now, *(seat.worker.until_us for seat in self.seats.values() if seat.worker)))
            self.directory.put(self._sign(self._advert(now, until).item(self.id)), now)
            self._timers.watch(self.directory)
        if departure.is_over:
            self.has_left = True
            self._do(self.overlay.left(now), now, out)

    # A disk whose writes fail.

    def _step_aside(self, now: int, out: list[Outer]) -> None:
        """A write has been pending for too long: other nodes take over this node's jobs, and its workers report to them."""
        freed = self._barrier.let_go()
        self._do(self.overlay.left(now), now, out)
        self._set_standing(Standing.OUT)
        self._do([effect for effect in freed if isinstance(effect, Read | Notice)], now, out)
        for seat in self._each_seat():
            self._call(seat, now, out, seat.resign, now)
        meanwhile = "other agents serve jobs in place of this one" if self.links else "jobs wait"
        for peer in list(self.links):
            self._hang_up(peer, now, out)
        text = (
            f"disk writes have failed for {self.parameters.disk_us_max / 1e6:.0f} s: {meanwhile}; its logs are still read. "
            "Free space in its state_dir, or repair the disk; then it resumes by itself"
        )
        out.append(Notice("disk", text))

    def _write_anew(self, now: int, out: list[Outer]) -> None:
        """The disk works again: write the records that were left out."""
        self._set_standing(Standing.BACK)
        self.directory.write_anew()
        self._do(self.directory.tick(now, self.overlay.acquaintances()), now, out, self.directory)
        self._timers.watch(self.directory)
        for seat in self._each_seat():
            self._call(seat, now, out, seat.write_anew)
        self._back_at = self._barrier.begun

    def _come_back(self, now: int, out: list[Outer]) -> None:
        """Enter the ring again."""
        self._set_standing(Standing.IN)
        self._joined = False
        self.overlay, seeds = self.overlay.rejoining(self.parameters, self._rng)
        self._stepping |= dict.fromkeys(_OVERLAY, self.overlay)
        for node in chain.from_iterable(self._watched.values()):
            self.overlay.watch(node)
        self._do(self.overlay.join(seeds, now), now, out)
        self._timers.watch(self.overlay)
        self._overlay_changed(now, out)
        out.append(Notice("disk", "disk writes work again: this agent serves jobs again"))

    # Changes.

    def _overlay_changed(self, now: int, out: list[Outer]) -> None:
        outlived = self.overlay.take_outlived()
        if outlived is not None:
            self.rivals.hear(outlived)
        if self.is_aside:
            return
        self._timers.watch(self.overlay)  # it may have learned that the clock was set back
        changes = self.overlay.take_changes()
        if not changes and self._joined == self.overlay.joined:
            return
        self._joined = self.overlay.joined
        for what, contact in changes:
            self._neighbours.changed(what, contact, now)
            if what in ("dead", "left"):
                self._hang_up(contact.id, now, out)
        for seat in self._each_seat():
            self._closest(seat, now, out)

    def _directory_changed(self, now: int, out: list[Outer]) -> None:
        items = self.directory.take_changes()
        changed = {item.kind for item in items}
        self._voids.heard(self.directory, items)
        if "revoked" in changed or self._voids.is_due(now):
            changed |= self._apply_revocations(now, out)
            items += self.directory.take_changes()
        if "job" in changed:
            self._open_seats(now, out, {})
        if changed & {"job", "agent", "ballot", "over"}:
            for seat in self._each_seat():
                self._call(seat, now, out, seat.directory_changed, now)
        if "over" in changed:
            self._vacant_changed(now, out)
        if self.abilities.have_changed(items):
            self._abilities_changed(now, out)
        self._timers.watch(self.directory)
        self._timers.watch(self._voids)

    def _apply_revocations(self, now: int, out: list[Outer]) -> set[str]:
        """Drop the items of revoked certificates. Returns the kinds of the dropped items."""
        dropped = apply_revocations(self.directory, self._revoked, now)
        self._voids.look(self.directory)
        if self.id in self._revoked and not self.is_revoked:
            self.is_revoked = True
            out.append(Notice(REVOKED, OWN))
        return dropped

    def _open_seats(self, now: int, out: list[Outer], records: Records) -> None:
        for item in list(self.directory.items("job")):
            former = self.seats.get(item.name)
            if former is not None and former.spec.trial is not None:  # its name may be another trial's now
                self._call(former, now, out, former.directory_changed, now)
            vacancy = self.vacancies.get(item.name)
            is_vacant = vacancy is not None and vacancy.is_vacant
            if is_vacant or (former is not None and not former.is_stopped):
                continue
            spec = decode_job(item)
            if former is None or not (self._has_ended(spec, now) or not self.abilities.is_able(spec)):
                self._open(spec, records, now, out)
        self._vacant_changed(now, out)
        for source, message in self._early.ready(self.seats):
            self._from_link(source, message, now, out)

    def _seat_opened(self, seat: JobSeat, now: int, out: list[Outer]) -> None:
        # They may wait for an answer and send nothing, and would not notice a link that only this end closes.
        peers = sorted(self._dropped.pop(seat.job, ()))
        self._do([Post(peer, m.Away(seat.job, False)) for peer in peers], now, out, seat.job)
        if self._departure is not None:
            self._call(seat, now, out, seat.leave, now)

    def check(self) -> None:
        """Raise AssertionError unless every core's invariants hold."""
        self.overlay.check()
        self.directory.check()
        for link in self.links.values():
            link.check()
            assert self._timers.is_watched(link)
        for seat in self.seats.values():
            seat.check()
            assert all(map(self._timers.is_watched, seat.cores)), "a core of a seat has no timer"
        for job, vacancy in self.vacancies.items():
            assert vacancy.is_vacant == (job not in self.seats)
            assert self._timers.is_watched(vacancy)
        assert self.is_aside or self._timers.is_watched(self.overlay)
        assert self._timers.is_watched(self._barrier)
        self._barrier.check()
        assert self._timers.is_watched(self.directory)
