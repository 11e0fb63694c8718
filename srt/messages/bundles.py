"""Joining bundles, and checking which of their contributions are in the master's log already.

While a bundle is open, its rows stay separate and its contributions are one dict. So adding a child's bundle takes a few dict
operations, whatever the number of rows; the rows are merged once, when the bundle is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import (
    CLOSED,
    GAP,
    MASTERS_MAX,
    NO_BALLOT,
    NO_WATERMARK,
    Ballot,
    Bundle,
    BundleId,
    Elsewhere,
    Micros,
    Period,
    Position,
    Slot,
    Span,
    Split,
)
from elf.srt.messages.partial import Part, Parts, merge_parts
from elf.srt.messages.sizes import bundle_bytes


class Feeder(msgspec.Struct, frozen=True):
    """A bundle that was merged into another: its sender, its id, and its contributions."""

    child: NodeId
    id: BundleId
    contributions: dict[Slot, Span]


class OpenBundle:
    """Bundles of several children, to be merged into one. Falsy while there are none.

    sample: see `merge_parts`. feeders: the bundles added, in order. nbytes: an upper bound of its size. opened_at: when the first
    one was added.
    """

    __slots__ = (
        "_added",
        "_ballot",
        "_contributions",
        "_elsewhere",
        "_fold_bytes",
        "_lagging",
        "_newest",
        "_parts",
        "_schedule",
        "_since_us",
        "_unparsed",
        "_untimed",
        "_watermark",
        "feeders",
        "nbytes",
        "opened_at",
        "sample",
    )

    def __init__(self, fold_bytes: int) -> None:
        self._fold_bytes, self.sample = fold_bytes, 0
        self.empty()

    def empty(self) -> None:
        """Begin anew."""
        self.feeders: list[Feeder] = []
        self.nbytes = 0
        self.opened_at = 0
        self._parts: list[Parts] = []
        self._contributions: dict[Slot, Span] = {}
        self._lagging: dict[NodeId, Micros] = {}
        self._watermark = NO_WATERMARK
        self._schedule = 0
        self._ballot = NO_BALLOT
        self._since_us = 0
        self._newest: Micros = 0
        self._untimed: dict[NodeId, int] = {}
        self._unparsed: dict[NodeId, Period] = {}
        self._elsewhere: Elsewhere = ()
        self._added = 0  # bytes since rows were last merged

    def __bool__(self) -> bool:
        return bool(self.feeders)

    def joins(self, bundle: Bundle) -> bool:
        """Whether it may be added: same schedule, rows of the same shape, and adjacent spans. O(its contributions)."""
        return bundle.schedule == self._schedule and self._same_shape(bundle.parts) and self.meets(bundle)

    def meets(self, bundle: Bundle) -> bool:
        """Rule 2*: two spans of one file join only if one ends where the other starts."""
        mine, theirs = self._contributions, bundle.contributions
        if mine.keys().isdisjoint(theirs.keys()):
            return True
        return all(slot not in mine or mine[slot][1] == span[0] for slot, span in theirs.items())

    def is_apart(self, bundle: Bundle) -> bool:
        """Whether it is of other workers. O(contributions)."""
        return {slot[0] for slot in self._contributions}.isdisjoint(slot[0] for slot in bundle.contributions)

    def _same_shape(self, parts: Parts) -> bool:
        """Whether both agree about each version's operations. Where they do not, one of them is wrong, and the master decides."""
        for version, part in parts.items():
            known = next((mine[version] for mine in self._parts if version in mine), part)
            if known.ops is not part.ops and known.ops != part.ops:
                return False
        return True

    def add(self, child: NodeId, bundle: Bundle, now: int) -> None:
        """Add a bundle that `joins`. O(its contributions), mostly one `dict.update`."""
        if not self.feeders:
            self.opened_at = now
            self._schedule, self._ballot = bundle.schedule, bundle.ballot
            self._contributions = bundle.contributions
            self._lagging = bundle.lagging
            self._watermark = bundle.watermark
            self._since_us = bundle.since_us
        else:
            self._contributions = self._union(bundle.contributions)
            if bundle.lagging:
                self._lagging = {**self._lagging, **bundle.lagging}
            self._watermark = min(self._watermark, bundle.watermark)
            self._ballot = min(self._ballot, bundle.ballot)
            self._since_us = max(self._since_us, bundle.since_us)
        self._newest = max(self._newest, bundle.newest)
        if bundle.untimed:
            self._untimed = summed((self._untimed, bundle.untimed))
        if bundle.unparsed:
            self._unparsed = spanned((self._unparsed, bundle.unparsed))
        if bundle.elsewhere:
            self._elsewhere = promised((*self._elsewhere, *bundle.elsewhere))
        self.feeders.append(Feeder(child, bundle.id, bundle.contributions))
        self._parts.append(bundle.parts)
        size = bundle_bytes(bundle)
        self.nbytes += size
        self._added += size
        if self._added > self._fold_bytes and len(self._parts) > 1:
            self._fold()

    def _union(self, theirs: dict[Slot, Span]) -> dict[Slot, Span]:
        """Contributions of both. The first feeder owns its dict, so it is copied when a second feeder comes."""
        mine = self._contributions.copy() if len(self.feeders) == 1 else self._contributions
        if mine.keys().isdisjoint(theirs.keys()):
            mine.update(theirs)
            return mine
        for slot, span in theirs.items():
            first = mine.get(slot)
            mine[slot] = span if first is None else joined_span(first, span)
        return mine

    def _fold(self) -> None:
        """Merge rows early, so that a bundle that waits long grows with its groups, not with the number of cuts."""
        before = sum(_part_bytes(parts) for parts in self._parts)
        self._parts = [merge_parts(self._parts, self.sample)]
        self.nbytes -= before - _part_bytes(self._parts[0])
        self._added = 0

    def close(self, job: JobId, id: BundleId) -> Bundle:
        """All feeders as one bundle. O(rows) when there are several feeders. Call `empty` afterwards."""
        parts = dict(self._parts[0]) if len(self._parts) == 1 else merge_parts(self._parts, self.sample)
        return Bundle(
            job,
            id,
            self._schedule,
            self._contributions,
            self._watermark,
            self._lagging,
            parts,
            ballot=self._ballot,
            since_us=self._since_us,
            untimed=self._untimed,
            elsewhere=self._elsewhere,
            newest=self._newest,
            unparsed=self._unparsed,
        )

    def check(self) -> None:
        """Raise AssertionError unless the spans are those of the feeders, joined."""
        check_union(self._contributions, self.feeders)


def joined_span(first: Span, then: Span) -> Span:
    """The union of two adjacent spans of a file. The later one decides whether it is closed."""
    return first[0], then[1], first[2] & ~CLOSED | then[2]


def summed(counts: Iterable[Mapping[NodeId, int]]) -> dict[NodeId, int]:
    """The sums, by worker, of several tables of counts."""
    total: dict[NodeId, int] = {}
    for each in counts:
        for worker, count in each.items():
            total[worker] = total.get(worker, 0) + count
    return total


def hull(one: Period | None, other: Period | None) -> Period | None:
    """The shortest period that contains both. None: empty."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def spanned(tables: Iterable[Mapping[NodeId, Period]]) -> dict[NodeId, Period]:
    """For each worker the shortest period that contains all of its periods."""
    whole: dict[NodeId, Period] = {}
    for each in tables:
        for worker, period in each.items():
            whole[worker] = hull(whole.get(worker), period) or period
    return whole


def promised(marks: Iterable[tuple[Ballot, Micros]]) -> Elsewhere:
    """The highest watermark for each ballot, of the highest ballots."""
    highest: dict[Ballot, Micros] = {}
    for ballot, mark in marks:
        highest[ballot] = max(mark, highest.get(ballot, mark))
    return tuple(sorted(highest.items())[-MASTERS_MAX:])


class Promises:
    """The highest watermark that one worker has promised to each of its last masters."""

    def __init__(self) -> None:
        self._marks: dict[Ballot, Micros] = {}

    def note(self, ballot: Ballot, mark: Micros) -> None:
        """Record that a bundle for that master is cut, with that watermark."""
        marks = self._marks
        marks[ballot] = max(mark, marks.get(ballot, mark))
        if len(marks) > MASTERS_MAX:
            del marks[min(marks)]

    def to_others(self, ballot: Ballot) -> Elsewhere:
        """The watermarks promised to masters with another ballot."""
        return promised(mark for mark in self._marks.items() if mark[0] != ballot)


def of_other_schedule(bundle: Bundle, split: Split) -> bool:
    """Whether the master that splits the bundle has another schedule than the one under which the bundle was cut."""
    return bool(split.schedule) and split.schedule[-1].number != bundle.schedule


def wrongly_cut(bundle: Bundle, split: Split) -> bool:
    """Whether the master that splits the bundle wants rows of another schedule, or of earlier times too. Then a worker without
    new lines needs the Split as well, though the log has all that its span covers; otherwise its watermarks would never count."""
    return of_other_schedule(bundle, split) or bundle.since_us > split.since_us


def has_lines(spans: Mapping[Slot, Span]) -> bool:
    """Whether any of them covers a line. O(spans)."""
    return any(start < end for start, end, _ in spans.values())


def in_log(contributions: Mapping[Slot, Span], positions: Mapping[Slot, Position]) -> bool:
    """Whether all that these spans cover is committed. `positions`: the committed ones of slots that did not fit. O(spans).

    A slot that `positions` does not name fits, so the log lacks what it covers. An empty span without flags covers nothing.
    """
    if positions.keys().isdisjoint(contributions.keys()):
        return False
    for slot, (start, end, flags) in contributions.items():
        position = positions.get(slot)
        if position is None:
            if start != end or flags & (CLOSED | GAP):
                return False
        elif end > position.offset or (flags & CLOSED and not position.closed):
            return False
    return True


def again(bundle: Bundle, id: BundleId) -> Bundle:
    """The same bundle under that id, marked `again`. Rows and contributions are shared. O(1)."""
    return replace(bundle, id=id, again=True)


def check_union(contributions: Mapping[Slot, Span], feeders: Iterable[Feeder]) -> None:
    """Raise AssertionError unless each slot's span is the union of its feeders' adjacent spans."""
    made: dict[Slot, tuple[int, int]] = {}
    for feeder in feeders:
        for slot, (start, end, _) in feeder.contributions.items():
            assert slot not in made or made[slot][1] == start, f"a gap within a bundle at {slot}"
            made[slot] = made.get(slot, (start, end))[0], end
    assert made == {slot: span[:2] for slot, span in contributions.items()}


def _part_bytes(parts: Mapping[str, Part]) -> int:
    return sum(part.nbytes for part in parts.values())
