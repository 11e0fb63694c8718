"""A node's place in the tree of one job: bundles of its children and of its own worker are merged and sent to its parent.

In one sentence: bundles enter from below and answers (Commit, Split, Resend) from above; merged bundles leave upwards, answers
for what went into them leave downwards.

    event                                what follows
    -----------------------------------  ---------------------------------------------------------------------------------
    bundle that joins what is open       merged (schedule, shape of rows and spans must fit: rule 2)
    bundle that does not join            what is open is closed, the bundle opens the next one
    bundle marked `again`                what is open is closed; it is forwarded as a bundle of its own (rule 3)
    bundle that is open or kept here     nothing: a child that has lost sight of it repeats it, and its answer is on the way
    all who usually send have sent,      the open bundle is closed and sent, and kept until its Commit
    or for too long (see below)
    parent holds, or its link is full    nothing is sent; what is open goes on growing: aggregation is the back-pressure
    Commit                               forget the bundle; Commit to whoever fed it
    Split                                forget the bundle; whoever fed it is told by `_verdict`: Commit, Resend or Split (rule 4)
    Resend                               those kept bundles again, as they were, marked `again`
    new parent, or a new life of it      all kept bundles again, in order, marked `again`, before anything new
    too much is kept                     children get Hold, the own worker finds `has_room` false

At the root nothing is merged or kept: what children send goes to the master as it is, under the children's own ids, and the
master's answers go straight to them (`Post` to the child; for this node's own id, feed them to `committed` and `split`
here, which know the worker's ids from the reducer's: a worker counts odd, a reducer even numbers). A node is root while its
master takes bundles; before that it is an orphan, which merges and waits, and when its master begins, all that is kept goes
there. When it is root no longer, or its master is another, children are asked for all they keep (`Resend` of nothing
named), for the bundles that the old master did not answer are in no other node's hands.

How long an open bundle waits after its first part: combine_us_max for each level below this node. A child that waits for one of
its own is late itself; were all levels equally patient, each would close just before the late bundle comes and send that one
apart, up to the root. So a datagram that is lost far below costs a longer wait in its branch, and no message more.

Why every line gets through: a worker's delta is kept by the worker until a Commit for it has come down. Each hop that
knows of it either keeps a bundle with it, or has asked its child to send it again, or has died, and then the child sends all it
keeps to its next parent. What slips through nevertheless leaves a gap; the master sees what is beyond it, splits that, and the
worker reads again.
Nothing is counted twice, because the master alone decides, by positions, and nothing here is believed.

Invariants
- A slot occurs once in a bundle, and its span is one stretch without gaps: the union of the spans of the bundle's feeders.
- What is to be sent is in the order in which it came; of one child nothing overtakes.
- No bundle of a child is in two bundles that are open or kept.
- Bytes kept are those of the kept bundles; past `kept_bytes_max` every child that sends is told to hold.

Source: Scribe (Castro et al. 2002) has no upward path; the combining is that of in-network aggregation (TAG, OSDI 2002), the
commit is ours: docs/protocol.md, rules 3 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from elf.srt.messages.bundles import (
    Feeder,
    OpenBundle,
    again,
    check_union,
    in_log,
    of_other_schedule,
    wrongly_cut,
)
from elf.srt.messages.effects import Effect, Post
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Bundle, BundleId, Commit, Hold, Position, Resend, Slot, Split
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.sizes import bundle_bytes

MISSED_MAX = 3
"""A child that missed so many rounds is no longer waited for."""

Answer = Commit | Split | Resend


class Kept(msgspec.Struct):
    """A closed bundle until its Commit."""

    bundle: Bundle
    feeders: tuple[Feeder, ...]
    nbytes: int
    sent: bool = False


class Reducer:
    """The reducer of one job on one node. `has_credit(peer)`: whether the link there is open.

    levels: of nodes below this one, as its seat in the tree knows. parent: None for a root and for an orphan. kept_bytes: in
    closed bundles, sent or not.
    """

    __slots__ = (
        "_children",
        "_count",
        "_fed",
        "_for_master",
        "_for_worker",
        "_has_credit",
        "_heard",
        "_held",
        "_holding",
        "_incarnation",
        "_job",
        "_kept",
        "_me",
        "_missed",
        "_open",
        "_outbox",
        "_p",
        "_retry_at",
        "is_root",
        "kept_bytes",
        "levels",
        "parent",
    )

    def __init__(
        self,
        job: JobId,
        me: NodeId,
        incarnation: int,
        parameters: Parameters,
        has_credit: Callable[[NodeId], bool] = lambda peer: True,
    ) -> None:
        self._job = job
        self._me = me
        self._incarnation = incarnation
        self._p = parameters
        self._has_credit = has_credit
        self.parent: NodeId | None = None
        self.is_root = False
        self.levels = 1
        self.kept_bytes = 0
        self._count = 0
        self._children: frozenset[NodeId] = frozenset()
        self._kept: dict[BundleId, Kept] = {}
        self._fed: set[BundleId] = set()  # children's ids of all that is open or kept
        self._outbox: deque[BundleId] = deque()
        self._for_master: list[tuple[NodeId, Bundle]] = []
        self._for_worker: list[Answer] = []
        self._held = False  # by the parent
        self._holding: set[NodeId] = set()  # children that were told to hold
        self._retry_at: int | None = None  # the link was full
        self._heard: set[NodeId] = set()  # in this round
        self._missed: dict[NodeId, int] = {}  # rounds in a row, of those who usually send
        self._open = OpenBundle(parameters.frame_bytes_max)

    # From below.

    def offer(self, child: NodeId, bundle: Bundle, now: int) -> list[Effect]:
        """A bundle of a child, or of this node's own worker. O(its contributions); rows are merged when the round ends."""
        if self.is_root:
            self._for_master.append((child, bundle))
            return []
        if bundle.id in self._fed:
            return []
        self._fed.add(bundle.id)
        if bundle.again:
            self._close()
            self._forward(child, bundle)
        else:
            if self._open.feeders and not self._open.joins(bundle):
                self._close()
            self._open.add(child, bundle, now)
            self._heard.add(child)
        effects = self._flow(now)
        if child != self._me and not self.has_room:
            self._holding.add(child)
            effects.append(Post(child, Hold(self._job, True)))
        return effects

    def continue_from(self, former: Reducer) -> None:
        """This life had a reducer of the job before: its numbers are not used again."""
        self._count = former._count

    def children_changed(self, children: Iterable[NodeId]) -> list[Effect]:
        """These nodes are the children now. Who was one need not hold any more: it may still take this for its parent, and be a
        child again before it has heard otherwise."""
        self._children = frozenset(children)
        for child in [child for child in self._missed if child not in self._children and child != self._me]:
            del self._missed[child]
        gone = sorted(self._holding - self._children)
        self._holding &= self._children
        return [Post(child, Hold(self._job, False)) for child in gone]

    def take_for_master(self) -> list[tuple[NodeId, Bundle]]:
        """At the root: what came since the last time, from which child."""
        if not self._for_master:
            return []
        taken, self._for_master = self._for_master, []
        return taken

    def take_for_worker(self) -> list[Answer]:
        """Answers to bundles of this node's own worker."""
        if not self._for_worker:
            return []
        taken, self._for_worker = self._for_worker, []
        return taken

    @property
    def held_bytes(self) -> int:
        """Of bundles that are not committed, and of the one that is being made."""
        return self.kept_bytes + self._open.nbytes

    @property
    def has_room(self) -> bool:
        """False: the own worker should not cut now; the next cut will cover more."""
        return self.held_bytes <= self._p.kept_bytes_max

    def kept(self, id: BundleId) -> Bundle | None:
        """A bundle that waits for its Commit."""
        kept = self._kept.get(id)
        return kept.bundle if kept is not None else None

    # From above.

    def committed(self, ids: Iterable[BundleId], ballot: Ballot, now: int) -> list[Effect]:
        """These are in the log. One Commit to each child that fed them. O(feeders)."""
        done: dict[NodeId, list[BundleId]] = {}
        for id in ids:
            kept = self._kept.pop(id, None)
            if kept is not None:
                self._drop(kept)
                for feeder in kept.feeders:
                    done.setdefault(feeder.child, []).append(feeder.id)
            elif id[0] == self._me:
                done.setdefault(self._me, []).append(id)
        effects: list[Effect] = []
        for child, theirs in done.items():
            self._answer(child, Commit(self._job, ballot, tuple(theirs)), effects)
        return effects + self._released(now)

    def split(self, split: Split, now: int) -> list[Effect]:
        """That bundle was not accepted: it is forgotten, and who fed it is told what to do. O(its contributions)."""
        kept = self._kept.pop(split.id, None)
        if kept is None:
            if split.id[0] == self._me:
                self._for_worker.append(split)
            return []
        self._drop(kept)
        positions = dict(split.positions)
        other = of_other_schedule(kept.bundle, split)
        alone = len(kept.feeders) == 1
        apart: dict[NodeId, list[BundleId]] = {}
        effects: list[Effect] = []
        for feeder in kept.feeders:
            verdict = self._verdict(feeder, positions, alone or other)
            if verdict is Commit and wrongly_cut(kept.bundle, split):
                verdict = Split
            if verdict is Resend:
                apart.setdefault(feeder.child, []).append(feeder.id)
            elif verdict is Commit:
                self._answer(feeder.child, Commit(self._job, split.ballot, (feeder.id,)), effects)
            else:
                down = replace(split, id=feeder.id)
                self._answer(feeder.child, down, effects)
        for child, ids in apart.items():
            self._answer(child, Resend(self._job, tuple(ids)), effects)
        return effects + self._released(now)

    def resend(self, resend: Resend, now: int) -> list[Effect]:
        """The parent asks for kept bundles again."""
        if self.is_root:
            return []
        self._queue_again(resend.ids or tuple(self._kept))
        return self._flow(now)

    def hold(self, hold: Hold, now: int) -> list[Effect]:
        """The parent keeps too much, or no longer. (A former parent's word is void: do not pass it on.)"""
        self._held = hold.hold
        return self._flow(now)

    def parent_changed(self, parent: NodeId | None, is_root: bool, now: int) -> list[Effect]:
        """Another parent, another life of it, or none. `is_root`: this node's own master takes bundles from now on; call it again
        for each new master."""
        effects: list[Effect] = []
        if self.is_root:
            self._recall(effects)
        self.parent = None if is_root else parent
        self.is_root = is_root
        self._held = False
        self._retry_at = None
        if is_root:
            self._close()
        self._outbox.clear()
        self._queue_again(tuple(self._kept))
        if is_root:
            self._hand_over()
        return effects + self._flow(now) + self._released(now)

    # Time.

    def tick(self, now: int) -> list[Effect]:
        """Send what has waited long enough."""
        return self._flow(now)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        if self.parent is None or self._held:
            return None
        if self._retry_at is not None:
            return self._retry_at
        return self._open.opened_at + self._patience if self._open.feeders else None

    # Bundles of this node.

    def _close(self) -> None:
        """The open bundle gets its id and waits to be sent."""
        if self._open:
            self._keep(self._open.close(self._job, self._next_id()), tuple(self._open.feeders))
            self._open.empty()
            self._end_round()

    def _forward(self, child: NodeId, bundle: Bundle) -> None:
        """Rule 3: what was sent once before stays as it was; it only gets an id of this node's."""
        self._keep(again(bundle, self._next_id()), (Feeder(child, bundle.id, bundle.contributions),))

    def _keep(self, bundle: Bundle, feeders: tuple[Feeder, ...]) -> None:
        kept = Kept(bundle, feeders, bundle_bytes(bundle))
        self._kept[bundle.id] = kept
        self._outbox.append(bundle.id)
        self.kept_bytes += kept.nbytes

    def _drop(self, kept: Kept) -> None:
        """It is no longer kept."""
        self.kept_bytes -= kept.nbytes
        self._fed.difference_update([feeder.id for feeder in kept.feeders])

    def _next_id(self) -> BundleId:
        self._count += 2
        return self._me, self._incarnation, self._count

    # Rounds.

    def _round_complete(self) -> bool:
        """Everyone who usually sends has been heard since the round began."""
        return self._missed.keys() <= self._heard

    def _end_round(self) -> None:
        for child in [*self._missed]:
            self._missed[child] += 1
            if self._missed[child] > MISSED_MAX:
                del self._missed[child]
        for child in self._heard:
            self._missed[child] = 0
        self._heard.clear()

    @property
    def _patience(self) -> int:
        """What is open waits so long for the rest, and never into the next round."""
        return min(self.levels * self._p.combine_us_max, self._p.flush_us * 9 // 10)

    # Sending.

    def _flow(self, now: int) -> list[Effect]:
        """Send what is ready, as far as the parent takes it. While it does not, what is open stays open."""
        self._retry_at = None
        is_open = bool(self._open.feeders)
        if self.parent is None or self._held or not (is_open or self._outbox):
            return []
        if not self._has_credit(self.parent):
            self._retry_at = now + self._p.combine_us_max
            return []
        if is_open:
            self._open.opened_at = min(self._open.opened_at, now)  # the clock may have stepped back
            if self._round_complete() or now >= self._open.opened_at + self._patience:
                self._close()
        effects: list[Effect] = []
        while self._outbox:
            kept = self._kept.get(self._outbox.popleft())
            if kept is not None:
                kept.sent = True
                effects.append(Post(self.parent, kept.bundle))
        return effects

    def _queue_again(self, ids: Iterable[BundleId]) -> None:
        """Rule 3: kept bundles once more, in the order given; those that were sent before are marked."""
        waiting = set(self._outbox)
        for id in ids:
            kept = self._kept.get(id)
            if kept is None or id in waiting:
                continue
            waiting.add(id)  # a parent may name one twice
            if kept.sent and not kept.bundle.again:
                kept.bundle = again(kept.bundle, id)
            self._outbox.append(id)

    def _hand_over(self) -> None:
        """This node's master begins: it gets what is kept here, as bundles of this node."""
        for id in self._outbox:
            self._for_master.append((self._me, self._kept[id].bundle))
            self._kept[id].sent = True
        self._outbox.clear()

    def _recall(self, effects: list[Effect]) -> None:
        """This node's master ends: what it did not answer is with the children."""
        self._for_master.clear()
        for child in (*sorted(self._children), self._me):
            self._answer(child, Resend(self._job, ()), effects)

    def _released(self, now: int) -> list[Effect]:
        """There may be room again."""
        effects: list[Effect] = []
        if self._holding and self.has_room:
            effects += [Post(child, Hold(self._job, False)) for child in sorted(self._holding)]
            self._holding.clear()
        return effects

    # Answers.

    def _verdict(self, feeder: Feeder, positions: Mapping[Slot, Position], through: bool) -> type[Answer]:
        """Rule 4*: what to tell a feeder of a bundle that was split. `positions`: of the slots that did not fit.

        Commit: all it covered is in the log. Resend: it fits as far as is known, only what it was merged with did not.
        Split: one of its own slots did not fit, or there is nothing else to take apart (`through`).
        """
        if in_log(feeder.contributions, positions):
            return Commit
        if through or not positions.keys().isdisjoint(feeder.contributions.keys()):
            return Split
        return Resend

    def _answer(self, child: NodeId, answer: Answer, effects: list[Effect]) -> None:
        """A child that is one no longer sends again by itself, to its new parent."""
        if child == self._me:
            self._for_worker.append(answer)
        elif child in self._children:
            effects.append(Post(child, answer))

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(contributions kept)."""
        assert self.kept_bytes == sum(kept.nbytes for kept in self._kept.values())
        assert not (self.is_root and (self.parent is not None or self._outbox or self._open))
        for kept in self._kept.values():
            check_union(kept.bundle.contributions, kept.feeders)
        self._open.check()
        fed = [feeder.id for kept in self._kept.values() for feeder in kept.feeders]
        fed += [feeder.id for feeder in self._open.feeders]
        assert len(fed) == len(self._fed), "in two bundles"
        assert set(fed) == self._fed
        waiting = [id for id in self._outbox if id in self._kept]
        assert len(waiting) == len(set(waiting)), "to be sent twice"
