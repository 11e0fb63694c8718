"""One job at one node: its seat in the tree, its reducer, its worker, its succession, and its master while it serves.

In one sentence: a message of the job goes to its core, and `settle` passes changes of one core to the others until there are no
more.

    tree -- parent, children --> reducer <-- bundles -- worker
    reducer, while root -- bundles --> master -- entries --> succession -- committed --> master

A stopped job keeps an empty seat: its worker has ended, no core has a deadline, messages are dropped, and the disk holds only the
promised ballot. A trial ends so at each node by that node's clock, without a message. When the job is started again, the node
makes a new seat, which continues the numbers of the old one. It does the same after a failure (`elf.agent.node.seats`), with the
records on the disk. A job whose plans this node cannot decode has an empty seat too (`elf.agent.node.abilities`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from typing import TYPE_CHECKING, Any

from elf.agent.node.job_limits import JobLimits
from elf.agent.node.job_sinks import JobSinks, SinkOf, Taking
from elf.agent.node.term import Term
from elf.agent.node.timers import Timed
from elf.agent.node.worker.delta_worker import DeltaWorker, State
from elf.agent.node.worker.group_limit import GroupLimit
from elf.cbt.budget import Budget
from elf.jobmaster.directory.closing import next_close
from elf.jobmaster.directory.directory import UNBELIEVED, Directory
from elf.jobmaster.directory.ending import ended
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import JobSpec, ballot_item, decode_job, is_another_trial
from elf.jobmaster.directory.known_schedule import schedule_item
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.jobmaster.directory.settings import every, sinks_of
from elf.jobmaster.log.entries import Begin, ControlEntry, Retire
from elf.jobmaster.log.handover import Offering, Unshared
from elf.jobmaster.log.job_log import Promise
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.phases import Role, Serve, StepDown
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.log.succession import OF_LOGS, Succession
from elf.jobmaster.master.master import Master
from elf.srt.messages import changes as c
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Effect, Notice, Post, Send, Write
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Item, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.tree.reduce import Reducer
from elf.srt.tree.tree import TreeSeat

if TYPE_CHECKING:
    from random import Random

Core = TreeSeat | Reducer | DeltaWorker | Succession | Master | Offering | Term

_TREE = {m.Adopt, m.Path, m.Refuse, m.Size, m.Leave}
_TO_MASTER = {m.Hello, m.Goodbye, r.LedgerReport, r.PutReply, r.PartReply, r.AlertReply, r.Watch}
_TO_WORKER = {m.Welcome, m.Farewell}
_ANSWERS = {m.Commit, m.Split, m.Resend, m.Hold, m.Welcome}
"""Messages for reducer and worker only, unless they carry a new ballot."""


def wants_reports(master: Master) -> bool:
    """Whether workers should report at each beat: somebody reads open windows, or the job changes or ends."""
    return master.is_asked or master.amendments.is_under_way or master.finish.is_finishing


class JobSeat:
    """One job at one node. `job`: its id. ended: neighbours whose processes are certainly gone. caps: this agent's limits for
    every job. Public cores are to be read only."""

    def __init__(
        self,
        spec: JobSpec,
        me: NodeId,
        life: int,
        parameters: Parameters,
        rng: Random,
        directory: Directory,
        *,
        instance: int = 0,
        works: bool,
        is_able: Callable[[JobSpec], bool],
        budget: Budget,
        sink_of: SinkOf | None,
        taking: Taking,
        has_credit: Callable[[NodeId], bool],
        stores_states: bool = False,
        former: JobSeat | None = None,
        revoked: Set[NodeId] = frozenset(),
        ended: Set[NodeId] = frozenset(),
        caps: Limits = NO_LIMITS,
    ) -> None:
        self.job: JobId = spec.id
        self.spec, self.me = spec, me
        self.limits = JobLimits(spec, caps)
        self._groups = GroupLimit()
        self.is_stopped = False
        """Whether the job has ended; see the module."""
        self.takeovers = 0
        """How often this node began to serve the job."""
        self.worker: DeltaWorker | None = None
        if works or (
            former is not None and former.worker is not None
        ):  # whose numbers a later worker continues
            self.worker = DeltaWorker(self.job, me, life, parameters, lambda: self.reducer.has_room)
        self._term = Term(spec.trial.until_us) if spec.trial is not None else None
        self._life, self._instance, self._is_able = life, instance, is_able
        self._rng, self._has_credit = rng, has_credit
        self._parameters, self._stores_states = parameters, stores_states
        self.sinks = JobSinks(spec.id, directory, sink_of, taking)
        # As master, with a log that lost to another one, which lacks what this one published.
        self._served_on = False
        self.master: Master | None = None
        self._make()
        if former is not None:
            self._continue_from(former)
        if self.worker is not None and not works:
            self.worker.end()
        self.cores: tuple[Core, ...] = ()
        """The present cores, in the order in which their timers run."""
        self._flow: tuple[Core, ...] = ()  # those that bundles and answers pass where no master is
        self._awake: tuple[Core, ...] = ()  # those of `_flow` that the last call concerned
        self.is_stirred = True
        """Whether cores other than those of `_flow` may have changed."""
        self._gather()
        self._budget, self._revoked, self._ended = budget, revoked, ended
        self._held = JobItems(directory, self.job)
        if self.worker is not None:
            self.worker.next_close = lambda schedule, mark: next_close(schedule, self.spec.base, mark)
        self._items: list[Item] = []  # to be spread
        self._now = 0

    def _make(self) -> None:
        """Create all cores but the worker."""
        self.tree = TreeSeat(self.job, self.me, self._life, self._parameters, self._rng)
        about = self.job, self.me, self._life, self._parameters, self._has_credit
        self.reducer = Reducer(*about)
        self.reducer.fold_to(self.limits.sample)
        self.succession = Succession(self.job, self.me, self._parameters, self._new_state, self._instance)
        p = self._parameters
        # Half of a reducer's bound: bundles of workers need the rest.
        self.offering = Offering(self.job, self.me, self._life, p.kept_bytes_max // 2, p.offer_us_max)
        self._unshared = Unshared.by(p)

    def _continue_from(self, former: JobSeat) -> None:
        """A seat in the same life: continue its numbers, and keep its promises."""
        self.tree.continue_from(former.tree)
        self.reducer.continue_from(former.reducer)
        self.offering.continue_from(former.offering)
        if self.worker is not None and former.worker is not None:
            self.worker.continue_from(former.worker)
        self.succession.restore([Promise(former.succession.highest)])

    def _gather(self) -> None:
        tree, log, term = (self.tree, self.reducer), (self.succession, self.offering), self._term
        self.cores = tuple(core for core in (*tree, self.worker, *log, self.master, term) if core is not None)
        self._flow = (self.reducer,) if self.worker is None else (self.reducer, self.worker)
        self.is_stirred = True

    def _new_state(self, image: Any) -> JobState:
        state = JobState(self.job, self.spec.name, self._budget)
        if image is not None:
            state.restore(image)
        return state

    # Called by the node.

    def restore(self, records: Mapping[tuple[str, bytes], Sequence[Any]]) -> None:
        """Take the job's records from the disk."""
        for kind in ("ballot", "log"):
            self.succession.restore(records.get((kind, self.job), ()))

    def start(self, now: int) -> list[Effect]:
        """Start the job's cores."""
        effects = self.directory_changed(now)
        if self.worker is not None and self.worker.state is not State.ENDED:
            effects += self.tree.enter(now)
            effects += self.worker.start(now)
        return effects

    def leave(self, now: int) -> list[Effect]:
        """The worker reads all lines logged by now, waits until they are committed, and sends Goodbye."""
        self.is_stirred = True
        return self.worker.leave(now) if self.worker is not None else []

    def rest(self, now: int) -> list[Effect]:
        """The node stops for a while: its neighbours in the tree search for others."""
        self.is_stirred = True
        children = list(self.tree.children)
        return self.tree.leave(now) or [Post(child, m.Refuse(self.job, 0, b"")) for child in children]

    def resign(self, now: int) -> list[Effect]:
        """The node's disk writes fail: no longer serve, be a replica, or stand for election. The worker goes on, under another
        root."""
        if self.is_stopped:
            return []
        self.is_stirred = True
        return self.succession.resign() + self.tree.root_changed(False, now)

    def write_anew(self) -> list[Effect]:
        """Records that were left out while disk writes failed: the highest known ballot and, if so, that there is no log."""
        promise = Promise(self.succession.highest)
        kinds = ("ballot",) if self.succession.replica.log.state is not None else ("ballot", "log")
        return [Write((kind, self.job), promise, replace=True) for kind in kinds]

    @property
    def is_replica(self) -> bool:
        """Whether this node holds another master's log."""
        return self.succession.role is Role.REPLICA

    @property
    def has_ended(self) -> bool:
        """Whether this node's worker has ended, and no offer that only this node has is still uncommitted."""
        return self.offering.is_empty and (self.worker is None or self.worker.state is State.ENDED)

    @property
    def holds_alone(self) -> bool:
        """Whether no other node has what this node's master has accepted, though others are expected to report to it: most likely
        it is alone on its side of a partition, and its log would be lost with it."""
        if self.master is None:
            return False
        replication, roster = self.succession.replication, self.master.state.positions.roster
        if replication is not None and any(peer.held >= 0 for peer in replication.peers.values()):
            return False
        return any(worker != self.me and member.until_us == AFTER_ALL for worker, member in roster.items())

    def directory_changed(self, now: int) -> list[Effect]:
        """The spec, the adverts or the highest ballot may have changed in the directory."""
        self._now = now
        effects: list[Effect] = []
        if self.is_stopped:
            return effects
        self.is_stirred = True
        spec, known = self._held.spec(self.spec), self.spec
        self.spec = spec or known
        if spec is not None and spec is not known:
            self.limits.spec = spec
            self.reducer.fold_to(self.limits.sample)
            self._items += self._held.newly_lost(known, spec)
        if spec is None or self._held.has_ended(spec, now) or is_another_trial(spec, known):
            return self._stop(now)
        if not self._is_able(spec):
            return self._withdraw(now)
        worker = self.worker
        if spec is not known and worker is not None and worker.state is State.ENDED and not worker.until_us:
            # Rule Stop*: it has not left, a stop ended it, and this spec outranks that.
            effects += worker.start(now)
        if self.master is not None:
            if spec is not known:
                effects += self.master.spec_changed(spec, now)
            effects += self.sinks.serve(self.master, now)
        effects += self._note_ballot(self._held.ballot(), now)
        return effects + self._note_agents(now)

    def _note_agents(self, now: int) -> list[Effect]:
        if self.master is None:
            return []
        agents = self._held.agents(self.spec)
        return self.master.adverts(agents, now) + self.master.forget(self._revoked, now)

    def _stop(self, now: int) -> list[Effect]:
        """The job has ended. Workers below are notified down the tree, so that they stop soon; the directory makes sure of it.
        Not those of a trial whose time is over: they know it, and may have a new seat by now."""
        if self.worker is not None:
            self.worker.end()
        effects: list[Effect] = []
        if self.spec.trial is None or self.spec.stopped:
            effects += self.tree.multicast(m.Stop(self.job, self.succession.highest, self.spec.number))
        effects += self.tree.leave(now)
        self.empty()
        return effects + self.write_anew()

    def _withdraw(self, now: int) -> list[Effect]:
        """Rule Features*: this node lacks a feature of the job's plans. It leaves as if it had crashed; its log stays on the disk
        for its next life."""
        if self.worker is not None:
            self.worker.end()
        effects = self.tree.leave(now)
        self.empty()
        return effects

    def empty(self) -> None:
        """Drop everything but the numbers that this life must not reuse. No core has a deadline or answers any more."""
        former, worker, state = copy(self), self.worker, self.succession.replica.log.state
        self._make()
        if worker is not None:
            self.worker = DeltaWorker(self.job, self.me, self._life, self._parameters)
            self.worker.until_us = worker.until_us
        self._continue_from(former)
        if self.worker is not None:
            self.worker.end()
        self.is_stopped, self.master = True, None
        self.cores = self._flow = self._awake = ()
        if isinstance(state, JobState):
            state.close()

    def closest(self, is_closest: bool, neighbours: Sequence[NodeId], now: int) -> list[Effect]:
        """The overlay's report: whether this node is the closest to the job's id."""
        if self.is_stopped:
            return []
        self.is_stirred = True
        effects = self.tree.root_changed(is_closest, now)
        if self.master is not None:  # a node that serves one of its sinks may be dead, or alive again
            effects += self.sinks.serve(self.master, now)
        return effects + self.succession.closest(is_closest, neighbours, now)

    def link_reset(self, peer: NodeId, now: int) -> list[Effect]:
        """Messages in transit to or from that neighbour are lost; the neighbour may be gone too."""
        self.is_stirred = True
        return self.tree.lost(peer, now) + self.succession.link_reset(peer, now)

    def passing(
        self, join: m.TreeJoin, origin: NodeId, now: int, *, is_root: bool
    ) -> tuple[bool, list[Effect]]:
        """A join passes on its way to the root."""
        if self.is_stopped:
            return False, []
        self.is_stirred = True
        return self.tree.passing(join, origin, now, is_root)

    def cut(self, cut: Cut, now: int) -> list[Effect]:
        """The source answered the worker. Raises LimitPassed."""
        self._awake = self._flow
        if self.worker is None or not self.worker.awaits(cut.request):
            return []  # it was asked for by a worker that is gone, maybe by a seat that was dropped
        self.limits.schedule = self.worker.schedule
        if self.limits.has_groups:
            cut = self._groups.apply(cut, self.limits.at)
        return self.worker.cut(cut, now)

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """A message of this job."""
        self._now = now
        if self.is_stopped:
            return []
        kind = type(message)
        if kind is m.Bundle:
            self._awake = self._flow[:1]
        elif kind in _ANSWERS:
            self._awake = self._flow
        else:
            self.is_stirred = True
        if kind in _TREE:
            return self.tree.step(source, message, now)
        if kind in OF_LOGS:
            return self.succession.step(source, message, now)
        if kind in _TO_MASTER:
            return self.master.step(source, message, now) if self.master is not None else []
        if kind in _TO_WORKER:
            return self.worker.step(message, now) if self.worker is not None else []
        step = _STEPS.get(kind)
        return step(self, source, message, now) if step is not None else []

    def tick(self, core: Timed, now: int) -> list[Effect]:
        """The deadline of a core has come; a core that this seat no longer has is ignored."""
        self._now = now
        for own in self.cores:
            if own is core:
                self._awake = self._flow
                self.is_stirred = self.is_stirred or own not in self._flow
                effects = own.tick(now)
                if own is self._term:
                    effects += self.directory_changed(now)
                if own is self.offering and own.deadline is None and self.master is None:
                    self._unshared.clear()
                return effects
        return []

    def take_stirred(self) -> Sequence[Core]:
        """Cores that may have an earlier deadline than at the last call."""
        if not self.is_stirred:
            return self._awake
        self.is_stirred = False
        return self.cores

    def take_items(self) -> list[Item]:
        """Items that the directory should spread, since the last call."""
        taken, self._items = self._items, []
        return taken

    def check(self) -> None:
        """Raise AssertionError unless every core's invariants hold."""
        for core in self.cores:
            core.check()

    # Messages for more than one core.

    def _on_bundle(self, source: NodeId, message: m.Bundle, now: int) -> list[Effect]:
        if source not in self.tree.children:  # it sends its bundles again to its next parent
            return self.tree.stranger(source)
        self.tree.heard(source, now)
        return self.reducer.offer(source, message, now)

    def _on_answer(self, source: NodeId, message: m.Commit | m.Split, now: int) -> list[Effect]:
        effects = self._note_ballot(message.ballot, now)
        if isinstance(message, m.Split):
            return effects + self.reducer.split(message, now)
        return effects + self.reducer.committed(message.ids, message.ballot, now)

    def _on_demand(self, source: NodeId, message: m.Resend | m.Hold, now: int) -> list[Effect]:
        if source != self.tree.parent:
            return []
        if isinstance(message, m.Resend):
            return self.reducer.resend(message, now)
        return self.reducer.hold(message, now)

    def _on_control(self, source: NodeId, message: m.Control | m.Stop, now: int) -> list[Effect]:
        if source not in (self.tree.parent, self.me):
            return []  # changes come down the tree; a node that missed one learns it from the answer to its next bundle
        if isinstance(message, m.Stop) and message.number < self.spec.number:
            return []  # rule Stop*: this node knows a spec that outranks the one that ended the job
        effects = self._note_ballot(message.ballot, now) + self.tree.multicast(message)
        return effects + (self.worker.step(message, now) if self.worker is not None else [])

    def _on_tree_request(self, source: NodeId, message: m.TreeRequest, now: int) -> list[Effect]:
        about = self.master is not None, self.tree.parent or b"", tuple(self.tree.children)
        return [Send(source, m.TreeReport(self.job, message.number, *about))]

    def _on_change(self, source: NodeId, message: c.ChangeRequest, now: int) -> list[Effect]:
        """An operator's change. Without an answer, its agent sends it again."""
        if self.master is None:
            return []
        if not self._held.accepts(message.item):
            text = "a change of a job that came through this agent is ignored: its signature is not valid"
            return [Notice(UNBELIEVED, text, source)]
        amendments = self.master.amendments
        spec = decode_job(message.item)
        is_taken = amendments.judge(spec)
        if is_taken is None:
            return []
        present = self._held.item()
        if is_taken:
            self._items.append(message.item)
        items = (present,) if present is not None and not is_taken else ()
        confirmed = amendments.confirmations(spec) if is_taken else (0, 0, ())
        unread_us = 0 if is_taken else amendments.unread_us(spec)
        about = is_taken, amendments.next_number, amendments.version, items, *confirmed, unread_us
        waits = amendments.is_waiting(spec)
        return [Send(source, c.ChangeReport(self.job, message.number, *about, waits))]

    def _note_ballot(self, ballot: Ballot, now: int) -> list[Effect]:
        if ballot <= self.succession.highest:
            return []
        self.is_stirred = True
        return self.succession.heard_ballot(ballot, now) + self.tree.raise_ballot(ballot, now)

    # Changes of one core, for the others.

    def settle(self, now: int) -> list[Effect]:
        """Pass changes from core to core; empty when there are none. Called after every message: cheap when nothing changed."""
        self._now = now
        effects: list[Effect] = []
        if self.is_stopped:
            return effects
        if self.is_stirred:
            self._settle_place(now, effects)
        worker, reducer, master = self.worker, self.reducer, self.master
        offering = None if self.offering.is_empty else self.offering
        if offering is not None:
            for bundle in offering.take_bundles():  # before anything that this node's worker adds
                effects += reducer.offer(self.me, bundle, now)
        if worker is not None:
            for bundle in worker.take_bundles():
                effects += reducer.offer(self.me, bundle, now)
        for answer in reducer.take_for_worker():
            if worker is not None:
                effects += worker.step(answer, now)
            if offering is not None:
                effects += offering.step(answer, now)
        if master is not None:
            for child, bundle in reducer.take_for_master():
                effects += master.bundle(child, bundle, now)
                self.is_stirred |= not master.awaits_bundles
            for message in master.take_multicast():
                effects += self._on_control(self.me, message, now)
        return effects

    def _settle_place(self, now: int, effects: list[Effect]) -> None:
        """Changes of the master, and of this node's place in the tree."""
        if self.master is not None and self.master.fence is not None:
            effects += self._note_ballot(self.master.fence, now)  # a sink serves another master
        if self.master is not None and self.master.take_end():
            self._items.append(ended(self.spec))
        if self.succession.news:
            self._from_succession(now, effects)
        if self.master is not None:
            effects += self.tree.watch(wants_reports(self.master), now)
        if self.worker is not None:
            place = self.tree.place
            effects += self.worker.hear(place.watched, place.ballot, place.total, now)
        changes = self.tree.take_changes()
        self.reducer.levels = self.tree.subtree.height - 1
        if changes is not None:
            effects += self.reducer.children_changed(self.tree.children)
            if changes.parent and self.master is None:
                effects += self.reducer.parent_changed(self.tree.parent, False, now)

    def _from_succession(self, now: int, effects: list[Effect]) -> None:
        committed = self.succession.news.take_committed()
        if committed and self.master is not None:
            effects += self.master.committed(committed, now)
            if any(isinstance(entry, Begin | ControlEntry | Retire) for _, entry in committed):
                effects += self.sinks.serve(self.master, now)  # the sinks of its schedule's lines
        for change in self.succession.news.take_changes():
            if isinstance(change, Serve):
                effects += self._serve(change, now)
            else:
                effects += self._step_down(change, now)
        if self.master is not None and (schedule := self.master.take_schedule()):
            state, ballot = self.master.state, self.master.ballot
            self._items.append(schedule_item(self.job, ballot, state.spec, schedule))

    def _serve(self, serve: Serve, now: int) -> list[Effect]:
        assert isinstance(serve.state, JobState)
        self.takeovers += 1
        self.sinks.look(sinks_of(every(serve.state.schedule, self.spec.base)), self.spec)
        # The former node may have taken the log over and never served: what masters before it published is unknown then.
        served = serve.state.served
        has_served = (served[0] + 1, m.node_of(served)) == (serve.ballot[0], serve.former)
        is_gone = serve.handed_on or serve.former in self._ended
        self.master = Master(
            self.spec,
            serve.state,
            serve.ballot,
            self._parameters,
            lambda entry: self.succession.propose(entry, self._now),
            self._budget,
            self.sinks.served,
            room=lambda: self.succession.room,
            stores_states=self._stores_states,
            known_schedule=self._held.schedule(),
            losses=lambda: self.succession.losses,
            left=lambda: self.succession.left,
            unshared=self._unshared,
            handed_on=has_served and is_gone and not self._served_on,
            signer=self._held.signer,
            is_void=self._held.is_void,
            alert_nodes=self.sinks.nodes_of,
        )
        self._served_on = False
        self._gather()
        self._items.append(ballot_item(self.job, serve.ballot))
        effects = self.tree.raise_ballot(serve.ballot, now)
        effects += self.reducer.parent_changed(None, True, now)
        effects += self.master.begin(now)
        return effects + self._note_agents(now)

    def _step_down(self, change: StepDown, now: int) -> list[Effect]:
        """Rule 9*: entries that only this master's log has are offered to the master that won."""
        if self.master is not None and not change.handed_on:
            self._served_on = True
            self.offering.offer(self._unshared.entries, now)
        self.master = None
        self._gather()
        return self.reducer.parent_changed(self.tree.parent, False, now)


_STEPS: dict[type[Message], Callable[[JobSeat, NodeId, Any, int], list[Effect]]] = {
    m.Bundle: JobSeat._on_bundle,
    m.Commit: JobSeat._on_answer,
    m.Split: JobSeat._on_answer,
    m.Resend: JobSeat._on_demand,
    m.Hold: JobSeat._on_demand,
    m.Control: JobSeat._on_control,
    m.Stop: JobSeat._on_control,
    m.TreeRequest: JobSeat._on_tree_request,
    c.ChangeRequest: JobSeat._on_change,
}
