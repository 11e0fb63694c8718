"""A reducer against plain lists of the answers that each feeder waits for: it must not lose, repeat, mix up or misdirect any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elf.srt.messages.effects import Effect, Post
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    Bundle,
    BundleId,
    Commit,
    Hold,
    Line,
    Message,
    Position,
    Resend,
    Slot,
    Span,
    Split,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.sizes import bundle_bytes
from elf.srt.tree.reduce import Kept, Reducer
from tests.rigs.tree_rig import JOB, node_name, rows_of, sums

ME, UP, OTHER, X, Y, Z = (node_name(number) for number in range(1, 7))
CHILDREN, FEEDERS = (X, Y, Z), (X, Y, Z, ME)
BALLOT = (3, UP)
TIGHT = Parameters(kept_bytes_max=1_000)
LATER = 10_000_000
"""Longer than any reducer waits, in microseconds."""


class Feeder:
    """A child, or the reducer's own worker: its positions in its two files, and its bundles' numbers."""

    def __init__(self, name: NodeId) -> None:
        self.name, self.count = name, -1 if name == ME else 0
        self.ends: Counter[Slot] = Counter()

    def next(self, files: Iterable[int], skipped: int) -> tuple[BundleId, dict[Slot, Span]]:
        self.count += 2
        spans: dict[Slot, Span] = {}
        for file in files:
            slot = self.name, file, 0
            start = self.ends[slot] + skipped
            self.ends[slot] = start + 10
            spans[slot] = start, start + 10, 0
        return (self.name, 1, self.count), spans


def joined(bundles: Sequence[Bundle]) -> dict[Slot, Span]:
    """One stretch for each file. Raises AssertionError if there is a gap."""
    spans: dict[Slot, Span] = {}
    for bundle in bundles:
        for slot, (start, end, flags) in bundle.contributions.items():
            begin, so_far, _ = spans.get(slot, (start, start, 0))
            assert so_far == start, "a gap"
            spans[slot] = begin, end, flags
    return spans


def verdict(bundle: Bundle, positions: dict[Slot, Position], alone: bool) -> type[Message]:
    """Rule 4, for bundles without empty spans."""
    named = [slot for slot in bundle.contributions if slot in positions]
    covered = [slot for slot in named if bundle.contributions[slot][1] <= positions[slot].offset]
    if len(covered) == len(bundle.contributions):
        return Commit
    return Split if alone or named else Resend


class ReducerAgainstLists(RuleBasedStateMachine):
    """`waiting`: offered bundles that were not sent, in order. `sent`: sent bundles without an answer, and their feeders."""

    def __init__(self) -> None:
        super().__init__()
        self.has_credit = True
        self.reducer = Reducer(JOB, ME, 1, TIGHT, lambda peer: self.has_credit)
        self.now = 1_000_000
        self.parent: NodeId | None = None
        self.is_root = self.is_held = False
        self.children: set[NodeId] = set()
        self.holding: set[NodeId] = set()
        self.feeders = {name: Feeder(name) for name in FEEDERS}
        self.made: dict[BundleId, Bundle] = {}
        self.waiting: list[BundleId] = []
        self.sent: dict[BundleId, list[BundleId]] = {}
        self.seen: dict[BundleId, Bundle] = {}  # what has left, as it was the first time
        self.queue: list[BundleId] = []  # to be sent again
        self.to_master: list[tuple[NodeId, Bundle]] = []
        self.count = 0
        self.change_parent(UP, False)
        self.change_children(set(CHILDREN))

    # What comes out.

    def took(self, effects: list[Effect]) -> dict[NodeId, list[Message]]:
        """Bundles are checked; the other messages are returned by receiver, with the answers to the own worker."""
        heard: dict[NodeId, list[Message]] = {}
        for effect in effects:
            assert isinstance(effect, Post)
            if isinstance(effect.message, Bundle):
                assert effect.to == self.parent
                assert self.has_credit
                assert not self.is_held
                self.left(effect.message)
            else:
                heard.setdefault(effect.to, []).append(effect.message)
        answers = self.reducer.take_for_worker()
        assert ME not in heard
        return heard | ({ME: [*answers]} if answers else {})

    def left(self, bundle: Bundle) -> None:
        """The next of those to be sent again, as it was; or the next ones that wait, as one."""
        if bundle.id in self.sent:
            assert bundle.id == self.queue.pop(0)
            first = self.seen[bundle.id]
            assert bundle.again
            assert (bundle.contributions, bundle.parts) == (first.contributions, first.parts)
            return
        self.count += 2
        assert bundle.id == (ME, 1, self.count)
        ids: list[BundleId] = []
        spans: dict[Slot, Span] = {}
        while spans != bundle.contributions:
            ids.append(self.waiting.pop(0))
            spans = joined([self.made[id] for id in ids])
        self.is_made_of(bundle, [self.made[id] for id in ids])
        self.sent[bundle.id], self.seen[bundle.id] = ids, bundle

    def is_made_of(self, bundle: Bundle, parts: list[Bundle]) -> None:
        assert sum((sums(part.parts) for part in parts), Counter[NodeId]()) == sums(bundle.parts)
        assert {part.schedule for part in parts} == {bundle.schedule}
        assert bundle.watermark == min(part.watermark for part in parts)
        assert bundle.ballot == min(part.ballot for part in parts)
        assert bundle.since_us == max(part.since_us for part in parts)
        assert bundle.again == parts[0].again
        assert not bundle.again or len(parts) == 1

    def all_left(self) -> None:
        """After whatever may send: if it may, all that is closed has left."""
        if self.parent is not None and self.has_credit and not self.is_held:
            assert self.queue == []
            assert self.closed() == []

    # From below.

    @rule(
        name=st.sampled_from(FEEDERS),
        files=st.sampled_from([(1,), (2,), (1, 2)]),
        skipped=st.sampled_from([0, 0, 0, 5]),
        schedule=st.sampled_from([1, 1, 1, 2]),
        again=st.sampled_from([False, False, False, True]),
        promise=st.integers(0, 3),
    )
    def offer(
        self, name: NodeId, files: tuple[int, ...], skipped: int, schedule: int, again: bool, promise: int
    ) -> None:
        id, spans = self.feeders[name].next(files, skipped)
        rows = rows_of(name, 10 * len(files))
        self.made[id] = Bundle(JOB, id, schedule, spans, promise, {}, rows, again, (promise, UP), 3 - promise)
        self.offered(name, self.made[id])

    @rule(names=st.lists(st.sampled_from(FEEDERS), min_size=2, max_size=5))
    def gather(self, names: list[NodeId]) -> None:
        """While the parent holds, so that all may become one bundle."""
        if self.parent is not None:
            self.hold(True)
        for at, name in enumerate(names):
            self.offer(name, (1, 2)[: 1 + at % 2], 0, 1, False, 3)
        if self.parent is not None:
            self.hold(False)
            self.patience_ends()

    @precondition(lambda self: self.made)
    @rule(at=st.integers(0, 5))
    def repeat(self, at: int) -> None:
        """A child sends a bundle again; its answer may be in transit."""
        old = self.made[[*self.made][max(0, len(self.made) - 1 - at)]]
        id = old.id
        again = Bundle(
            JOB,
            id,
            old.schedule,
            old.contributions,
            old.watermark,
            {},
            old.parts,
            True,
            old.ballot,
            old.since_us,
        )
        if id not in self.outstanding:
            self.made[id] = again
        self.offered(id[0], again)

    @property
    def outstanding(self) -> list[BundleId]:
        return [*(id for ids in self.sent.values() for id in ids), *self.waiting]

    def offered(self, name: NodeId, bundle: Bundle) -> None:
        effects = self.reducer.offer(name, bundle, self.now)
        if self.is_root:
            self.to_master.append((name, bundle))
        elif bundle.id not in self.outstanding:
            self.waiting.append(bundle.id)
            heard = self.took(effects)
            is_full = name != ME and not self.has_room()
            assert heard == ({name: [Hold(JOB, True)]} if is_full else {})
            self.holding |= {name} if is_full else set()
            self.all_left()
            return
        assert effects == []

    @rule(children=st.sets(st.sampled_from(CHILDREN)))
    def change_children(self, children: set[NodeId]) -> None:
        heard = self.took(self.reducer.children_changed(children))
        assert heard == {child: [Hold(JOB, False)] for child in self.holding - children}
        self.children = children
        self.holding &= children

    # From above.

    def answered(self, effects: list[Effect], expected: list[tuple[NodeId, Message]]) -> None:
        """The feeders get answers, if they are still children; and all that hold are released when there is room again."""
        wanted: dict[NodeId, list[Message]] = {}
        for name, message in expected:
            if name in self.children or name == ME:
                wanted.setdefault(name, []).append(message)
        heard = self.took(effects)
        if self.has_room():
            for child in self.holding:
                wanted.setdefault(child, []).append(Hold(JOB, False))
            self.holding.clear()
        assert heard == wanted

    @rule(which=st.sets(st.integers(0, 3), max_size=3), own=st.booleans())
    def commit(self, which: set[int], own: bool) -> None:
        """Some of what was sent; `own`: and one of the own worker's that went to the master as it was, which is on this node."""
        sent = [*self.sent]
        ids = [sent[at] for at in which if at < len(sent)] + ([(ME, 1, 99_999)] if own else [])
        theirs = [id for each in ids for id in self.sent.pop(each, [each])]
        self.queue = [id for id in self.queue if id in self.sent]
        expected: list[tuple[NodeId, Message]] = [
            (name, Commit(JOB, BALLOT, tuple(id for id in theirs if id[0] == name)))
            for name in dict.fromkeys(id[0] for id in theirs)
        ]
        self.answered(self.reducer.committed(ids, BALLOT, self.now), expected)

    @precondition(lambda self: self.sent)
    @rule(
        at=st.integers(0, 3),
        offsets=st.lists(st.sampled_from([None, None, -10, -5, 0, 0, 5]), min_size=8, max_size=8),
        schedule=st.sampled_from([None, None, None, 9]),
        since=st.sampled_from([3, 3, 0]),
    )
    def split(self, at: int, offsets: list[int | None], schedule: int | None, since: int) -> None:
        """The master names some of its files with positions before, within, at or past the end of what it covers. If it was cut
        for another log, no feeder gets a Commit."""
        id = [*self.sent][min(at, len(self.sent) - 1)]
        bundle = self.seen[id]
        known = {
            slot: Position(max(0, span[1] + offset))
            for (slot, span), offset in zip(bundle.contributions.items(), offsets, strict=False)
            if offset is not None
        }
        number = bundle.schedule if schedule is None else schedule
        split = Split(JOB, BALLOT, id, (Line(number, "v1", 0, b""),), tuple(known.items()), since)
        is_other = number != bundle.schedule
        expected: list[tuple[NodeId, Message]] = []
        apart: dict[NodeId, list[BundleId]] = {}
        feeders = self.sent.pop(id)
        for each in feeders:
            what = verdict(self.made[each], known, is_other or len(feeders) == 1)
            if what is Commit and (is_other or bundle.since_us > since):
                what = Split
            if what is Resend:
                apart.setdefault(each[0], []).append(each)
            elif what is Commit:
                expected.append((each[0], Commit(JOB, BALLOT, (each,))))
            else:
                expected.append((each[0], Split(JOB, BALLOT, each, split.schedule, split.positions, since)))
        expected += [(name, Resend(JOB, tuple(ids))) for name, ids in apart.items()]
        self.queue = [each for each in self.queue if each != id]
        self.answered(self.reducer.split(split, self.now), expected)

    @precondition(lambda self: self.sent)
    @rule(which=st.lists(st.integers(0, 4), max_size=4))
    def resend(self, which: list[int]) -> None:
        """Some of what was sent, perhaps one that is long answered, or one twice; all, if none is named."""
        known = [*self.sent, (ME, 1, 99_998)]
        ids = [known[min(at, len(known) - 1)] for at in which]
        if not self.is_root:
            wanted = ids or [*self.sent]
            self.queue += [id for id in dict.fromkeys(wanted) if id in self.sent and id not in self.queue]
        assert self.took(self.reducer.resend(Resend(JOB, tuple(ids)), self.now)) == {}
        self.all_left()

    @precondition(lambda self: self.parent is not None)
    @rule(holds=st.booleans())
    def hold(self, holds: bool) -> None:
        self.is_held = holds
        assert self.took(self.reducer.hold(Hold(JOB, holds), self.now)) == {}
        self.all_left()

    @rule(
        where=st.sampled_from(["up", "up", "other", "orphan", "root"]),
        is_full=st.sampled_from([False, False, True]),
    )
    def move(self, where: str, is_full: bool) -> None:
        """The link to the new parent may be full."""
        self.has_credit = not is_full
        self.change_parent({"up": UP, "other": OTHER}.get(where), where == "root")

    def change_parent(self, parent: NodeId | None, is_root: bool) -> None:
        """All that is kept is sent to the new parent, in order; a former root requests the bundles that its master did not
        answer."""
        expected: list[tuple[NodeId, Message]] = []
        if self.is_root:
            expected = [(name, Resend(JOB, ())) for name in (*self.children, ME)]
            self.to_master.clear()
        self.parent, self.is_root, self.is_held = parent, is_root, False
        self.queue = [*self.sent]
        effects = self.reducer.parent_changed(parent, is_root, self.now)
        if is_root:
            for name, bundle in self.reducer.take_for_master():
                assert name == ME
                self.left(bundle)
            assert self.waiting == self.queue == []
        bundles = [
            post.message.id for post in effects if isinstance(post, Post) and isinstance(post.message, Bundle)
        ]
        assert bundles[: len(self.queue)] == (self.queue if self.has_credit else [])[: len(bundles)]
        self.answered(effects, expected)
        self.all_left()

    @rule()
    def master_takes(self) -> None:
        assert self.reducer.take_for_master() == self.to_master
        self.to_master.clear()

    # Time and the link.

    @rule(us=st.sampled_from([0, 10_000, 50_000, 300_000, -5_000_000]))
    def time(self, us: int) -> None:
        self.now += us
        assert self.took(self.reducer.tick(self.now)) == {}
        self.all_left()

    @rule(has_credit=st.sampled_from([False, False, True]), levels=st.integers(1, 4))
    def link(self, has_credit: bool, levels: int) -> None:
        self.has_credit, self.reducer.levels = has_credit, levels

    @precondition(lambda self: self.parent is not None and not self.is_held)
    @rule()
    def patience_ends(self) -> None:
        """A link that opens gives no event: the reducer tries it again, and then the open bundle has waited long enough."""
        self.has_credit = True
        for _ in range(2):
            if self.reducer.deadline is not None:
                self.now = max(self.now, self.reducer.deadline)
                assert self.took(self.reducer.tick(self.now)) == {}
        assert self.waiting == self.queue == []
        assert self.reducer.deadline is None

    # What holds always.

    def closed(self) -> list[Kept]:
        """Bundles that are closed but not sent."""
        return [kept for id, kept in self.reducer._kept.items() if id not in self.sent]

    def has_room(self) -> bool:
        closed = self.closed()
        is_open = self.waiting[sum(len(kept.feeders) for kept in closed) :]
        nbytes = sum(bundle_bytes(self.seen[id]) for id in self.sent)
        nbytes += sum(bundle_bytes(kept.bundle) for kept in closed)
        assert self.reducer.kept_bytes == nbytes
        return nbytes + sum(bundle_bytes(self.made[id]) for id in is_open) <= TIGHT.kept_bytes_max

    @invariant()
    def each_bundle_is_in_one_place(self) -> None:
        reducer, closed = self.reducer, self.closed()
        reducer.check()
        assert list(reducer._kept) == [*self.sent, *(kept.bundle.id for kept in closed)]
        for id, feeders in self.sent.items():
            assert [feeder.id for feeder in reducer._kept[id].feeders] == feeders
        unsent = [feeder.id for kept in closed for feeder in kept.feeders]
        assert [*unsent, *(feeder.id for feeder in reducer._open.feeders)] == self.waiting
        assert len(self.outstanding) == len(set(self.outstanding))
        assert reducer.has_room == self.has_room()
        if self.is_root:
            assert not reducer._open
        assert self.reducer.parent == self.parent

    def teardown(self) -> None:
        """A parent that takes all and commits it: nothing is left."""
        self.has_credit = True
        self.change_parent(UP, False)
        self.now += LATER
        self.patience_ends()
        ids = [*self.sent]
        feeders = self.outstanding
        heard = self.took(self.reducer.committed(ids, BALLOT, self.now))
        committed = [
            id for said in heard.values() for each in said if isinstance(each, Commit) for id in each.ids
        ]
        assert sorted(committed) == sorted(id for id in feeders if id[0] in {*self.children, ME})
        assert self.reducer.kept_bytes == 0
        assert {child for child in heard if Hold(JOB, False) in heard[child]} == self.holding


TestReducerAgainstLists = pytest.mark.slow(ReducerAgainstLists.TestCase)
TestReducerAgainstLists.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None
)
