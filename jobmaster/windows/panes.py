"""The merged state of one version of a job: a tree for the groups, one for the line counters, one per family.

Pure bookkeeping above `cbt.tree`: deltas enter, and whole windows leave, in time order and in bounded pieces.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.cbt._kernel import merge
from elf.cbt.budget import Budget, Fragment
from elf.cbt.other import apart, capped
from elf.cbt.rows import Op, Rows, concat
from elf.cbt.tree import Tree
from elf.jobmaster.plan.plan import FamilyKind, Plan
from elf.jobmaster.windows._finish import group_index
from elf.jobmaster.windows.lanes import LINE_OPS, family_ops, group_ops, lane_count

PIECE_BYTES = 16 << 20
"""Uncompressed rows that are finished at once: large enough that vector operations dominate, small compared to a memory cap."""
WINDOW_BYTES = 256 << 20
"""A window of up to this much is finished whole, if the cap is large; larger ones are ordered in several pieces."""


class Piece(msgspec.Struct):
    """Groups of one or more windows, `pane` holding the window's start, and each family's rows of just these groups.

    `whole`: no later piece holds groups of the last window. `counts`: by family, the number of its rows in each group, int64,
    where only this number is needed; these rows are left out, since a group may have any number of them. `more`: the groups
    share one hash and have more rows: the next piece begins with the same groups.
    """

    groups: Rows
    families: list[Rows]
    whole: bool = True
    counts: dict[int, NDArray[np.int64]] = {}
    more: bool = False

    @property
    def nbytes(self) -> int:
        return self.groups.nbytes + sum(rows.nbytes for rows in self.families)


class Panes:
    """Merged panes of one plan. hot_us: panes older than the newest one by more than this are packed, once they are many; 0: none
    are."""

    def __init__(self, plan: Plan, budget: Budget, hot_us: int = 0) -> None:
        self.plan, self._hot_us = plan, hot_us
        self.ops: list[tuple[Op, ...]] = [group_ops(plan), LINE_OPS, *(family_ops(f) for f in plan.families)]
        self._trees = [Tree(ops, budget) for ops in self.ops]
        self._budget = budget

    def merge(self, rows: Sequence[Rows]) -> None:
        """Add a delta: one `Rows` per tree, in the order of `Delta.rows`.

        Raises OSError when memory is short and the disk is full; the whole delta is in the trees nevertheless.
        """
        failure: OSError | None = None
        cold_us = int(rows[1].pane[-1]) - self._hot_us if self._hot_us and len(rows[1]) else None
        for tree, part in zip(self._trees, rows, strict=True):
            try:
                tree.insert(part)
                if cold_us is not None:
                    tree.cool(cold_us)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def insert(self, tree: int, rows: Rows) -> None:
        """Add rows, from a snapshot, to one tree: groups 0, line counters 1, then the families."""
        self._trees[tree].insert(rows)

    def lines(self, start: int | None = None, stop: int | None = None) -> Rows:
        """The rows of `elf.jobmaster.windows.counters` in [start, stop), in time order. Every pane with a line has one."""
        return concat(list(self._trees[1].flush(start, stop)), len(LINE_OPS))

    def rows(self, start: int | None = None, stop: int | None = None) -> list[Iterator[Rows]]:
        """Ordered rows of each tree within [start, stop), for snapshots. The panes are not removed."""
        return [tree.flush(start, stop) for tree in self._trees]

    @property
    def raw_bytes(self) -> int:
        """Unpacked size of all rows. O(fragments)."""
        return sum(tree.raw_bytes for tree in self._trees)

    def share(self) -> list[list[Fragment]]:
        """The fragments of each tree's rows as they are now. See `Tree.share`."""
        return [tree.share() for tree in self._trees]

    def drop(self, stop: int) -> None:
        """Remove the panes before `stop`."""
        for tree in self._trees:
            for _ in tree.drain(None, stop):
                pass

    def taken(self, start: int) -> Iterator[list[Rows]]:
        """Remove the panes at or past `start`, and return their rows as deltas for `merge`, in bounded pieces."""
        for number, tree in enumerate(self._trees):
            for rows in tree.drain(start, None):
                empty = [concat([], lane_count(ops)) for ops in self.ops]
                yield [*empty[:number], rows, *empty[number + 1 :]]

    def discard(self, start: int) -> None:
        """Remove the panes at or past `start`."""
        for tree in self._trees:
            for _ in tree.drain(start, None):
                pass

    def close(self) -> None:
        for tree in self._trees:
            tree.close()

    def check(self) -> None:
        for tree in self._trees:
            tree.check()

    def pieces(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        drain: bool = False,
        members: bool = True,
        split: bool = False,
        step_bytes: int = WINDOW_BYTES,
    ) -> Iterator[Piece]:
        """Each pane of [start, stop) as if it were a window, in pieces. With `drain` the panes are removed. Without `members` the
        rows of DISTINCT families are only counted. With `split` a group of very many members is divided into several pieces.
        step_bytes: approximate bound of a piece's size.
        """
        read = [(tree.drain if drain else tree.flush)(start, stop) for tree in self._all_but_lines()]
        return self._aligned(read, members, split, step_bytes)

    def _aligned(
        self,
        read: Sequence[Iterable[Rows]],
        members: bool,
        split: bool = False,
        step_bytes: int = WINDOW_BYTES,
    ) -> Iterator[Piece]:
        families = enumerate(self.plan.families)
        counted = {i for i, family in families if family.kind is FamilyKind.DISTINCT and not members}
        return _align(read, self._ops_but_lines(), self._piece_bytes(step_bytes), counted, split)

    def window(self, start: int, stop: int, step_bytes: int = WINDOW_BYTES) -> Iterator[Piece]:
        """The window [start, stop) merged over its panes, in pieces, with DISTINCT families counted. The panes are not removed.

        Panes are gathered in trees of their own, under the same budget, so a window of any size fits.
        """
        if self.plan.window is None or self.plan.window.pane_us == stop - start:
            return self.pieces(
                start, stop if self.plan.window else None, members=False, step_bytes=step_bytes
            )
        return self._gathered(start, stop, step_bytes)

    def _gathered(self, start: int, stop: int, step_bytes: int) -> Iterator[Piece]:
        trees = [Tree(ops, self._budget) for ops in self._ops_but_lines()]
        try:
            for tree, source in zip(trees, self._all_but_lines(), strict=True):
                for rows in source.flush(start, stop):
                    tree.insert(_as_pane(rows, start, tree.ops))
            drained = [tree.drain(None, None) for tree in trees]
            yield from self._aligned(drained, members=False, step_bytes=step_bytes)
        finally:
            for tree in trees:
                tree.close()

    def _all_but_lines(self) -> list[Tree]:
        return [self._trees[0], *self._trees[2:]]

    def _ops_but_lines(self) -> list[tuple[Op, ...]]:
        return [self.ops[0], *self.ops[2:]]

    def _piece_bytes(self, step_bytes: int) -> tuple[int, int]:
        limit = min(max(1 << 16, self._budget.cap_bytes // 32), step_bytes)
        return min(PIECE_BYTES, limit), min(WINDOW_BYTES, limit)


def sampled(pieces: Iterable[Piece], ops: tuple[Op, ...], groups_max: int) -> tuple[Rows, Rows]:
    """At most `groups_max` groups of the one window that these pieces hold, without families, and one row of its other groups, if
    it has more (`elf.cbt.other`). Memory: the groups that stay, and a piece. O(rows)."""
    held = concat([], lane_count(ops))
    for piece in pieces:
        held = capped(merge([held, piece.groups], ops), ops, groups_max)
    return apart(held)


def _as_pane(rows: Rows, pane: int, ops: Sequence[Op]) -> Rows:
    """Rows of several panes as rows of one: each pane's rows are a run in hash order, so runs are merged."""
    cuts = np.flatnonzero(np.diff(rows.pane)) + 1
    bounds = [0, *cuts.tolist(), len(rows)]
    runs = []
    for at, end in itertools.pairwise(bounds):
        run = rows.slice(at, end)
        run.pane = np.full(end - at, pane, dtype=np.int64)
        runs.append(run)
    return merge(runs, ops)


def _align(
    streams: Sequence[Iterable[Rows]],
    ops: Sequence[tuple[Op, ...]],
    sizes: tuple[int, int],
    counted: AbstractSet[int],
    split: bool,
) -> Iterator[Piece]:
    """Read the groups and all families in step, as pieces of the same (pane, hash) range.

    A piece also ends where a family has more than sizes[1] bytes of rows for its groups. It ends within a hash only with `split`.
    """
    members = [_Members(stream) for stream in streams[1:]]
    ahead = _gather(iter(streams[0]), lane_count(ops[0]), sizes)
    current = next(ahead, None)
    while current is not None:
        following = next(ahead, None)
        while following is not None and _share_hash(current, following):
            current = concat([current, following], lane_count(ops[0]))
            following = next(ahead, None)
        begin = 0
        while begin < len(current):
            groups = current.slice(begin, len(current))
            reach = [
                len(groups) if i in counted else each.reach(groups, sizes[1], split)
                for i, each in enumerate(members)
            ]
            if 0 in reach:
                yield _part_of_one(groups, members, reach, ops)
                continue
            groups = groups.slice(0, min(reach, default=len(groups)))
            begin += len(groups)
            counts = {i: _counts(members[i].of(groups), groups) for i in counted}
            families = [
                concat([] if i in counted else list(each.of(groups)), lane_count(ops[i + 1]))
                for i, each in enumerate(members)
            ]
            rest = current.pane[begin:] if begin < len(current) or following is None else following.pane
            yield Piece(groups, families, not len(rest) or rest[0] != groups.pane[-1], counts)
        current = following


def _part_of_one(
    groups: Rows, members: Sequence[_Members], reach: Sequence[int], ops: Sequence[tuple[Op, ...]]
) -> Piece:
    """The first of `groups`, which share a hash, with the rows read so far of the families that may have more rows for them."""
    first = groups.slice(0, _end_of(groups, groups.pane[0], groups.hash[0]))
    families = [
        concat([] if at else each.take_all(), lane_count(each_ops))
        for each, at, each_ops in zip(members, reach, ops[1:], strict=True)
    ]
    return Piece(first, families, False, more=True)


def _gather(stream: Iterator[Rows], lanes: int, sizes: tuple[int, int]) -> Iterator[Rows]:
    """Rows in pieces of about sizes[0] bytes that end with a pane, or of sizes[1] where a pane is larger."""
    held: list[Rows] = []
    size = 0
    for rows in stream:
        if not len(rows):
            continue
        held.append(rows)
        size += rows.nbytes
        one_pane = bool(held[0].pane[0] == rows.pane[-1])
        if size < (sizes[1] if one_pane else sizes[0]):
            continue
        whole = concat(held, lanes)
        end = int(np.searchsorted(whole.pane, whole.pane[-1], side="left"))  # where the last pane begins
        if one_pane:
            end = len(whole)
        yield whole.slice(0, end)
        held = [whole.slice(end, len(whole)).copy()] if end < len(whole) else []
        size = sum(part.nbytes for part in held)
    if held:
        yield concat(held, lanes)


def _share_hash(a: Rows, b: Rows) -> bool:
    """Whether the last row of `a` and the first of `b` have the same (pane, hash)."""
    return bool(a.pane[-1] == b.pane[0] and a.hash[-1] == b.hash[0])


class _Members:
    """The rows of one family, read in step with the groups."""

    def __init__(self, rows: Iterable[Rows]) -> None:
        self._rows = iter(rows)
        self._ahead: deque[Rows] = deque()  # read, and not yet taken

    def reach(self, groups: Rows, bytes_max: int, split: bool) -> int:
        """Read about `bytes_max` of rows, at least those of the first hash, and return how many of the groups they cover.

        With `split` the result may be 0: then all rows that were read are of the first hash, which may have more.
        """
        size = sum(rows.nbytes for rows in self._ahead)
        while True:
            if self._ahead:
                last = self._ahead[-1]
                at = _start_of(groups, last.pane[-1], last.hash[-1])
                if at == len(groups) or (size >= bytes_max and (at or split)):
                    return at
            if not self._read():
                return len(groups)
            size += self._ahead[-1].nbytes

    def take_all(self) -> list[Rows]:
        """The rows that were read and not taken."""
        rows = list(self._ahead)
        self._ahead.clear()
        return rows

    def of(self, groups: Rows) -> Iterator[Rows]:
        """The rows up to and including the last (pane, hash) of `groups`."""
        pane, hash_ = groups.pane[-1], groups.hash[-1]
        while self._ahead or self._read():
            rows = self._ahead.popleft()
            end = _end_of(rows, pane, hash_)
            if end:
                yield rows.slice(0, end)
            if end < len(rows):
                self._ahead.appendleft(rows.slice(end, len(rows)))
                return

    def _read(self) -> bool:
        rows = next((rows for rows in self._rows if len(rows)), None)
        if rows is not None:
            self._ahead.append(rows)
        return rows is not None


def _counts(members: Iterable[Rows], groups: Rows) -> NDArray[np.int64]:
    """The number of the family's rows of each group: O(members) time, and memory for one chunk of them."""
    counts = np.zeros(len(groups), dtype=np.int64)
    for rows in members:
        first, last = (
            _start_of(groups, rows.pane[0], rows.hash[0]),
            _end_of(groups, rows.pane[-1], rows.hash[-1]),
        )
        _, bounds, _ = group_index(groups.slice(first, last), rows)
        counts[first:last] += np.diff(bounds)
    return counts


def _start_of(rows: Rows, pane: np.int64, hash_: np.uint64) -> int:
    """How many rows are before (pane, hash)."""
    low, high = np.searchsorted(rows.pane, pane, side="left"), np.searchsorted(rows.pane, pane, side="right")
    return int(low + np.searchsorted(rows.hash[low:high], hash_, side="left"))


def _end_of(rows: Rows, pane: np.int64, hash_: np.uint64) -> int:
    """How many rows are at or before (pane, hash)."""
    low = int(np.searchsorted(rows.pane, pane, side="left"))
    high = int(np.searchsorted(rows.pane, pane, side="right"))
    return low + int(np.searchsorted(rows.hash[low:high], hash_, side="right"))
