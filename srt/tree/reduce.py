"""The reducer of one job at one node: it merges bundles of its children and of its own worker, and sends them to its parent.

In one sentence: bundles enter from below and answers (Commit, Split, Resend) from above; merged bundles leave upwards, and
answers to the bundles that were merged leave downwards.

    event                                what follows
    -----------------------------------  ---------------------------------------------------------------------------------
    bundle that joins the open one       merge it (schedule, shape of rows and spans must fit: rule 2)
    bundle that does not join            close the open bundle; open the next one with this bundle
    bundle marked `again`                close the open bundle; forward this one unmerged (rule 3)
    bundle that is open or kept here     ignore it: the child repeats it, and the answer to the first copy will answer both
    all usual senders have sent, or      close the open bundle, send it, and keep it until its Commit
    it has waited too long (see below)
    parent sent Hold, or link is full    send nothing; the open bundle continues to grow: aggregation is the back-pressure
    Commit                               forget the bundle; Commit to its feeders
    Split                                forget the bundle; Commit, Resend or Split to each feeder, by `_verdict` (rule 4)
    Resend                               send those kept bundles again, as they were, marked `again`
    new parent, or a new life of it      send all kept bundles again, in order, marked `again`, before any new one
    too much is kept                     Hold to children; `has_room` is False for this node's worker

The root merges and keeps nothing: the master gets the bundles of children as they are, with the children's ids, and answers the
children directly (`Post` to the child; answers to bundles of this node itself go through `committed` and `split` here, which
distinguish the worker's ids from the reducer's: a worker counts odd numbers, a reducer even ones). A node is root while its
master accepts bundles. Before that it is an orphan, which merges and waits; when its master begins, the master gets all that is
kept. When the node is no longer root, or its master changes, it requests all kept bundles of its children (`Resend` without ids),
because only the children have the bundles that the old master did not answer.

How long an open bundle waits after its first part: combine_us_max for each level below this node. A child that waits for one of
its own children is late itself. If all levels waited equally long, each would close just before the late bundle comes and would
send that one separately, up to the root. So a datagram lost far below costs a longer wait in its branch, but no further message.

Why every line arrives: a worker keeps its delta until a Commit for it has come down. Each hop that received it either keeps a
bundle that contains it, or has requested it again from its child, or has died; then the child sends all that it keeps to its next
parent. A delta that is lost nevertheless leaves a gap: the master receives bundles beyond the gap, splits them, and the worker
reads again. Nothing is counted twice, because the master alone decides, by positions; it relies on nothing that happens here.

Invariants
- A slot occurs once in a bundle, and its span has no gaps: it is the union of the spans of the bundle's feeders.
- Bundles are sent in the order in which they came; those of one child never overtake each other.
- No bundle of a child is in two bundles that are open or kept.
- Bytes kept are those of the kept bundles; above `kept_bytes_max` every child that sends gets Hold.

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
"""The reducer no longer waits for a child that has missed more rounds than this in a row."""

Answer = Commit | Split | Resend


class Kept(msgspec.Struct):
    """A closed bundle that waits for its Commit."""

    bundle: Bundle
    feeders: tuple[Feeder, ...]
    nbytes: int
    sent: bool = False


class Reducer:
    """The reducer of one job on one node. `has_credit(peer)`: whether the link there is open.

    levels: of nodes below this one, as its tree seat knows. parent: None for a root and for an orphan. kept_bytes: of closed
    bundles, sent or not.
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
        self._fed: set[BundleId] = set()  # children's ids of all bundles that are open or kept
        self._outbox: deque[BundleId] = deque()
        self._for_master: list[tuple[NodeId, Bundle]] = []
        self._for_worker: list[Answer] = []
        self._held = False  # by the parent
        self._holding: set[NodeId] = set()  # children that got Hold
        self._retry_at: int | None = None  # when to check a full link again
        self._heard: set[NodeId] = set()  # senders in this round
        self._missed: dict[NodeId, int] = {}  # usual senders -> rounds missed in a row
        self._open = OpenBundle(parameters.frame_bytes_max)

    def fold_to(self, sample: int) -> None:
        """Keep so many groups of a pane from now on; see `merge_parts`."""
        self._open.sample = sample

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
        """Continue the numbers of the reducer that this node had for the job earlier in the same life."""
        self._count = former._count

    def children_changed(self, children: Iterable[NodeId]) -> list[Effect]:
        """These nodes are the children now. Release former children that got Hold: one may still consider this node its parent,
        and become a child again before it learns otherwise."""
        self._children = frozenset(children)
        for child in [child for child in self._missed if child not in self._children and child != self._me]:
            del self._missed[child]
        gone = sorted(self._holding - self._children)
        self._holding &= self._children
        return [Post(child, Hold(self._job, False)) for child in gone]

    def take_for_master(self) -> list[tuple[NodeId, Bundle]]:
        """At the root: (child, bundle) received since the last call."""
        taken, self._for_master = self._for_master, []
        return taken

    def take_for_worker(self) -> list[Answer]:
        """Answers to bundles of this node's worker since the last call."""
        taken, self._for_worker = self._for_worker, []
        return taken

    @property
    def held_bytes(self) -> int:
        """Bytes of bundles that are not committed, and of the open one."""
        return self.kept_bytes + self._open.nbytes

    @property
    def has_room(self) -> bool:
        """False: this node's worker should not cut now; its next cut will cover more."""
        return self.held_bytes <= self._p.kept_bytes_max

    def kept(self, id: BundleId) -> Bundle | None:
        """A bundle that waits for its Commit."""
        kept = self._kept.get(id)
        return kept.bundle if kept is not None else None

    # From above.

    def committed(self, ids: Iterable[BundleId], ballot: Ballot, now: int) -> list[Effect]:
        """These bundles are in the log. One Commit to each child that fed them. O(feeders)."""
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
        """That bundle was not accepted: forget it, and answer its feeders. O(its contributions)."""
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
        """The parent requests kept bundles again."""
        if self.is_root:
            return []
        self._queue_again(resend.ids or tuple(self._kept))
        return self._flow(now)

    def hold(self, hold: Hold, now: int) -> list[Effect]:
        """The parent stops or releases this node. (The caller drops a Hold of a former parent.)"""
        self._held = hold.hold
        return self._flow(now)

    def parent_changed(self, parent: NodeId | None, is_root: bool, now: int) -> list[Effect]:
        """The parent is another one, in another life, or gone. `is_root`: this node's own master accepts bundles from now on;
        call this again for each new master."""
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
        """Send bundles that have waited long enough."""
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
        """Give the open bundle its id, and queue it."""
        if self._open:
            self._keep(self._open.close(self._job, self._next_id()), tuple(self._open.feeders))
            self._open.empty()
            self._end_round()

    def _forward(self, child: NodeId, bundle: Bundle) -> None:
        """Rule 3: a bundle that was sent before stays as it was; it only gets an id of this node."""
        self._keep(again(bundle, self._next_id()), (Feeder(child, bundle.id, bundle.contributions),))

    def _keep(self, bundle: Bundle, feeders: tuple[Feeder, ...]) -> None:
        kept = Kept(bundle, feeders, bundle_bytes(bundle))
        self._kept[bundle.id] = kept
        self._outbox.append(bundle.id)
        self.kept_bytes += kept.nbytes

    def _drop(self, kept: Kept) -> None:
        """Account for a bundle that is no longer kept."""
        self.kept_bytes -= kept.nbytes
        self._fed.difference_update([feeder.id for feeder in kept.feeders])

    def _next_id(self) -> BundleId:
        self._count += 2
        return self._me, self._incarnation, self._count

    # Rounds.

    def _round_complete(self) -> bool:
        """Whether all usual senders have sent since the round began."""
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
        """How long the open bundle waits for the other children; never into the next round."""
        return min(self.levels * self._p.combine_us_max, self._p.flush_us * 9 // 10)

    # Sending.

    def _flow(self, now: int) -> list[Effect]:
        """Send what is ready if the parent accepts it. Otherwise the open bundle stays open."""
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
        """Rule 3: queue kept bundles again, in the given order; those that were sent before are marked."""
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
        """This node's master begins: it gets all kept bundles, as bundles of this node."""
        for id in self._outbox:
            self._for_master.append((self._me, self._kept[id].bundle))
            self._kept[id].sent = True
        self._outbox.clear()

    def _recall(self, effects: list[Effect]) -> None:
        """This node's master ends: request the bundles that it did not answer from the children, which keep them."""
        self._for_master.clear()
        for child in (*sorted(self._children), self._me):
            self._answer(child, Resend(self._job, ()), effects)

    def _released(self, now: int) -> list[Effect]:
        """Release children that got Hold, if there is room again."""
        effects: list[Effect] = []
        if self._holding and self.has_room:
            effects += [Post(child, Hold(self._job, False)) for child in sorted(self._holding)]
            self._holding.clear()
        return effects

    # Answers.

    def _verdict(self, feeder: Feeder, positions: Mapping[Slot, Position], through: bool) -> type[Answer]:
        """Rule 4*: the answer to a feeder of a bundle that was split. `positions`: of the slots that did not fit.

        Commit: all that it covered is in the log. Resend: it fits as far as is known; only bundles merged with it did not. Split:
        one of its own slots did not fit, or its bundle cannot be taken apart further (`through`).
        """
        if in_log(feeder.contributions, positions):
            return Commit
        if through or not positions.keys().isdisjoint(feeder.contributions.keys()):
            return Split
        return Resend

    def _answer(self, child: NodeId, answer: Answer, effects: list[Effect]) -> None:
        """Send an answer. A former child gets none: it sends its bundles again to its new parent."""
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
