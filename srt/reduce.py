"""A node's place in the tree of one job: bundles of its children and of its own worker are merged and sent to its parent.

In one sentence: bundles enter from below and answers (Commit, Split, Resend) from above; merged bundles leave upwards, answers
for what went into them leave downwards.

    event                                what follows
    -----------------------------------  ---------------------------------------------------------------------------------
    bundle that joins what is open       merged (schedule, shape of rows and spans must fit: rule 2)
    bundle that does not join            what is open is closed, the bundle opens the next one
    bundle marked `again`                what is open is closed; it is forwarded as a bundle of its own (rule 3)
    all who usually send have sent,      the open bundle is closed and sent, and kept until its Commit
    or combine_us_max after the first
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

Why every line gets through: a worker's delta is kept by the worker until a Commit for it has come down. Each hop that
knows of it either keeps a bundle with it, or has asked its child to send it again, or has died, and then the child sends all it
keeps to its next parent. What slips through nevertheless leaves a gap; the master sees what is beyond it, splits that, and the
worker reads again.
Nothing is counted twice, because the master alone decides, by positions, and nothing here is believed.

Invariants
- A slot occurs once in a bundle, and its span is one stretch without gaps: the union of the spans of the bundle's feeders.
- What is to be sent is in the order in which it came; of one child nothing overtakes.
- Bytes kept are those of the kept bundles; past `kept_bytes_max` every child that sends is told to hold.

Source: Scribe (Castro et al. 2002) has no upward path; the combining is that of in-network aggregation (TAG, OSDI 2002), the
commit is ours: design, section 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from elf.srt.effects import Effect, Post
from elf.srt.ids import JobId, NodeId
from elf.srt.messages import (
    CLOSED,
    NO_WATERMARK,
    Ballot,
    Bundle,
    BundleId,
    Commit,
    Hold,
    Micros,
    Position,
    Resend,
    Slot,
    Span,
    Split,
)
from elf.srt.parameters import Parameters
from elf.srt.partial import Part, Parts, merge_parts
from elf.srt.sizes import bundle_bytes

MISSED_MAX = 3
"""A child that missed so many rounds is no longer waited for."""

Answer = Commit | Split | Resend


class Feeder(msgspec.Struct, frozen=True):
    """What went into a bundle: whose, under which id, and what it covered."""

    child: NodeId
    id: BundleId
    contributions: dict[Slot, Span]


class Kept(msgspec.Struct):
    """A closed bundle until its Commit."""

    bundle: Bundle
    feeders: tuple[Feeder, ...]
    nbytes: int
    sent: bool = False


class Reducer:
    """The reducer of one job on one node. `has_credit(peer)`: whether the link there is open.

    parent: None for a root and for an orphan. kept_bytes: in closed bundles, sent or not.
    """

    __slots__ = (
        "_added",
        "_bytes_open",
        "_children",
        "_contributions",
        "_count",
        "_feeders",
        "_for_master",
        "_for_worker",
        "_has_credit",
        "_heard",
        "_held",
        "_holding",
        "_incarnation",
        "_job",
        "_kept",
        "_lagging",
        "_me",
        "_missed",
        "_opened_at",
        "_outbox",
        "_p",
        "_parts",
        "_retry_at",
        "_schedule",
        "_watermark",
        "is_root",
        "kept_bytes",
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
        self.kept_bytes = 0
        self._count = 0
        self._children: frozenset[NodeId] = frozenset()
        self._kept: dict[BundleId, Kept] = {}
        self._outbox: deque[BundleId] = deque()
        self._for_master: list[tuple[NodeId, Bundle]] = []
        self._for_worker: list[Answer] = []
        self._held = False  # by the parent
        self._holding: set[NodeId] = set()  # children that were told to hold
        self._retry_at: int | None = None  # the link was full
        self._heard: set[NodeId] = set()  # in this round
        self._missed: dict[NodeId, int] = {}  # rounds in a row, of those who usually send
        self._empty()

    def _empty(self) -> None:
        """Nothing is open."""
        self._feeders: list[Feeder] = []
        self._parts: list[Parts] = []
        self._contributions: dict[Slot, Span] = {}
        self._lagging: dict[NodeId, Micros] = {}
        self._watermark = NO_WATERMARK
        self._schedule = 0
        self._bytes_open = 0
        self._added = 0  # bytes of rows in _parts since they were last merged
        self._opened_at = 0

    # From below.

    def offer(self, child: NodeId, bundle: Bundle, now: int) -> list[Effect]:
        """A bundle of a child, or of this node's own worker. O(its contributions); rows are merged when the round ends."""
        if self.is_root:
            self._for_master.append((child, bundle))
            return []
        if bundle.again:
            self._close()
            self._forward(child, bundle)
        else:
            if self._feeders and not self._joins(bundle):
                self._close()
            self._add(child, bundle, now)
            self._heard.add(child)
        effects = self._flow(now)
        if child != self._me and not self.has_room:
            self._holding.add(child)
            effects.append(Post(child, Hold(self._job, True)))
        return effects

    def children_changed(self, children: Iterable[NodeId]) -> None:
        """These nodes are the children now."""
        self._children = frozenset(children)
        for child in [child for child in self._missed if child not in self._children and child != self._me]:
            del self._missed[child]
        self._holding &= self._children

    def take_for_master(self) -> list[tuple[NodeId, Bundle]]:
        """At the root: what came since the last time, from which child."""
        taken, self._for_master = self._for_master, []
        return taken

    def take_for_worker(self) -> list[Answer]:
        """Answers to bundles of this node's own worker."""
        taken, self._for_worker = self._for_worker, []
        return taken

    @property
    def has_room(self) -> bool:
        """False: the own worker should not cut now; the next cut will cover more."""
        return self.kept_bytes + self._bytes_open <= self._p.kept_bytes_max

    # From above.

    def committed(self, ids: Iterable[BundleId], ballot: Ballot, now: int) -> list[Effect]:
        """These are in the log. One Commit to each child that fed them. O(feeders)."""
        done: dict[NodeId, list[BundleId]] = {}
        for id in ids:
            kept = self._kept.pop(id, None)
            if kept is not None:
                self.kept_bytes -= kept.nbytes
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
        self.kept_bytes -= kept.nbytes
        positions = dict(split.positions)
        other = bool(split.schedule) and split.schedule[-1].number != kept.bundle.schedule
        alone = len(kept.feeders) == 1
        again: dict[NodeId, list[BundleId]] = {}
        effects: list[Effect] = []
        for feeder in kept.feeders:
            verdict = self._verdict(feeder, positions, alone or other)
            if verdict is Resend:
                again.setdefault(feeder.child, []).append(feeder.id)
            elif verdict is Commit:
                self._answer(feeder.child, Commit(self._job, split.ballot, (feeder.id,)), effects)
            else:
                down = Split(self._job, split.ballot, feeder.id, split.schedule, split.positions)
                self._answer(feeder.child, down, effects)
        for child, ids in again.items():
            self._answer(child, Resend(self._job, tuple(ids)), effects)
        return effects + self._released(now)

    def resend(self, resend: Resend, now: int) -> list[Effect]:
        """The parent asks for kept bundles again."""
        if self.is_root:
            return []
        self._queue_again(resend.ids or tuple(self._kept))
        return self._flow(now)

    def hold(self, hold: Hold, now: int) -> list[Effect]:
        """The parent keeps too much, or no longer."""
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
        return self._opened_at + self._p.combine_us_max if self._feeders else None

    # The open bundle.

    def _joins(self, bundle: Bundle) -> bool:
        """May be merged into what is open: same schedule, rows of the same shape, and spans that meet."""
        return bundle.schedule == self._schedule and self._same_shape(bundle.parts) and self._meets(bundle)

    def _meets(self, bundle: Bundle) -> bool:
        """Rule 2*: two spans of one file join only if the one ends where the other starts."""
        mine, theirs = self._contributions, bundle.contributions
        if mine.keys().isdisjoint(theirs.keys()):
            return True
        return all(slot not in mine or mine[slot][1] == span[0] for slot, span in theirs.items())

    def _same_shape(self, parts: Parts) -> bool:
        """Two that disagree about a version's operations (one of them lies) are left to the master."""
        for version, part in parts.items():
            for mine in self._parts:
                known = mine.get(version)
                if known is not None:
                    if known.ops is not part.ops and known.ops != part.ops:
                        return False
                    break
        return True

    def _add(self, child: NodeId, bundle: Bundle, now: int) -> None:
        if not self._feeders:
            self._opened_at = now
            self._schedule = bundle.schedule
            self._contributions = bundle.contributions
            self._lagging = bundle.lagging
            self._watermark = bundle.watermark
        else:
            self._contributions = self._union(bundle.contributions)
            if bundle.lagging:
                self._lagging = {**self._lagging, **bundle.lagging}
            self._watermark = min(self._watermark, bundle.watermark)
        self._feeders.append(Feeder(child, bundle.id, bundle.contributions))
        self._parts.append(bundle.parts)
        size = bundle_bytes(bundle)
        self._bytes_open += size
        self._added += size
        if self._added > self._p.frame_bytes_max and len(self._parts) > 1:
            self._fold()

    def _union(self, theirs: dict[Slot, Span]) -> dict[Slot, Span]:
        """Contributions of both. What is open belongs to its only feeder until a second one comes."""
        mine = self._contributions.copy() if len(self._feeders) == 1 else self._contributions
        if mine.keys().isdisjoint(theirs.keys()):
            mine.update(theirs)
            return mine
        for slot, span in theirs.items():
            first = mine.get(slot)
            mine[slot] = span if first is None else (first[0], span[1], first[2] | span[2])
        return mine

    def _fold(self) -> None:
        """Merge rows early: what waits long must not grow with the number of cuts."""
        before = sum(_part_bytes(parts) for parts in self._parts)
        self._parts = [merge_parts(self._parts)]
        self._bytes_open -= before - _part_bytes(self._parts[0])
        self._added = 0

    def _close(self) -> None:
        """The open bundle gets its id and waits to be sent."""
        if not self._feeders:
            return
        parts = self._parts[0] if len(self._parts) == 1 else merge_parts(self._parts)
        bundle = Bundle(
            self._job,
            self._next_id(),
            self._schedule,
            self._contributions,
            self._watermark,
            self._lagging,
            dict(parts) if not isinstance(parts, dict) else parts,
        )
        self._keep(bundle, tuple(self._feeders))
        self._empty()
        self._end_round()

    def _forward(self, child: NodeId, bundle: Bundle) -> None:
        """Rule 3: what was sent once before stays as it was; it only gets an id of this node's."""
        again = Bundle(
            bundle.job,
            self._next_id(),
            bundle.schedule,
            bundle.contributions,
            bundle.watermark,
            bundle.lagging,
            bundle.parts,
            True,
        )
        self._keep(again, (Feeder(child, bundle.id, bundle.contributions),))

    def _keep(self, bundle: Bundle, feeders: tuple[Feeder, ...]) -> None:
        kept = Kept(bundle, feeders, bundle_bytes(bundle))
        self._kept[bundle.id] = kept
        self._outbox.append(bundle.id)
        self.kept_bytes += kept.nbytes

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

    # Sending.

    def _flow(self, now: int) -> list[Effect]:
        """Send what is ready, as far as the parent takes it."""
        effects: list[Effect] = []
        self._send(now, effects)
        if self._feeders:
            self._opened_at = min(self._opened_at, now)  # the clock may have stepped back
            due = self._round_complete() or now >= self._opened_at + self._p.combine_us_max
            if due and self._retry_at is None and self.parent is not None and not self._held:
                self._close()
                self._send(now, effects)
        return effects

    def _send(self, now: int, effects: list[Effect]) -> None:
        self._retry_at = None
        if self.parent is None or self._held:
            return
        while self._outbox:
            if not self._has_credit(self.parent):
                self._retry_at = now + self._p.combine_us_max
                return
            kept = self._kept.get(self._outbox.popleft())
            if kept is not None:
                kept.sent = True
                effects.append(Post(self.parent, kept.bundle))

    def _queue_again(self, ids: Iterable[BundleId]) -> None:
        """Rule 3: kept bundles once more, in the order given; those that were sent before are marked."""
        waiting = set(self._outbox)
        for id in ids:
            kept = self._kept.get(id)
            if kept is None or id in waiting:
                continue
            if kept.sent and not kept.bundle.again:
                kept.bundle = marked_again(kept.bundle)
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
        assert not (self.is_root and (self.parent is not None or self._outbox or self._feeders))
        for kept in self._kept.values():
            _check_union(kept.bundle.contributions, kept.feeders)
        _check_union(self._contributions, self._feeders)
        waiting = [id for id in self._outbox if id in self._kept]
        assert len(waiting) == len(set(waiting)), "to be sent twice"


def in_log(contributions: Mapping[Slot, Span], positions: Mapping[Slot, Position]) -> bool:
    """Whether all that these spans cover is committed, by `positions`, the committed ones of slots that did not fit. O(spans).

    A slot that is not named fits, so whatever it covers is missing; an empty span covers nothing, unless it closes.
    """
    if not positions:
        return False
    for slot, (start, end, flags) in contributions.items():
        position = positions.get(slot)
        if position is None:
            if start != end or flags & CLOSED:
                return False
        elif end > position.offset or (flags & CLOSED and not position.closed):
            return False
    return True


def marked_again(bundle: Bundle) -> Bundle:
    """The same bundle, as one that was sent before."""
    return Bundle(
        bundle.job,
        bundle.id,
        bundle.schedule,
        bundle.contributions,
        bundle.watermark,
        bundle.lagging,
        bundle.parts,
        True,
    )


def _part_bytes(parts: Mapping[str, Part]) -> int:
    return sum(part.nbytes for part in parts.values())


def _check_union(contributions: Mapping[Slot, Span], feeders: Iterable[Feeder]) -> None:
    """Each slot's span is made of its feeders' spans, one after the other."""
    made: dict[Slot, tuple[int, int]] = {}
    for feeder in feeders:
        for slot, (start, end, _) in feeder.contributions.items():
            assert slot not in made or made[slot][1] == start, f"a gap within a bundle at {slot}"
            made[slot] = made.get(slot, (start, end))[0], end
    assert made == {slot: span[:2] for slot, span in contributions.items()}
