"""The compressed buffer tree: a group-by of rows within a memory budget.

After Amur et al., "Memory-Efficient GroupBy-Aggregate using Compressed Buffer Trees" (SoCC 2013), which builds on Arge's buffer
tree. Inserted runs are buffered uncompressed at the root. When the root's buffer is full, a sample shows whether its keys repeat.
If they do, the buffer is merged, with equal keys folded. If that has not freed enough room, or if few keys repeat (then without a
merge, since readers merge anyway), the rows are distributed to the children by key range. Inner nodes and leaves hold packed
fragments of one or several ordered runs. A full inner buffer is unpacked, merged and distributed; a full leaf is merged and split
into several. Ranges are over the whole order (pane, hash, sub, key): panes that are read and dropped first are adjacent, and a
leaf can always be split, even if a hostile log has produced rows with equal hashes.

Differences from the authors' prototype: keys are compared, never only their hashes; reading without removing (`flush`) is a
different operation from reading and removing (`drain`); and old panes can be packed before the root's buffer is full (`cool`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from elf.cbt._kernel import Merger
from elf.cbt.budget import Budget, Fragment
from elf.cbt.nodes import LOWEST, Bound, Inner, Leaf, Ranged, cut, quantiles
from elf.cbt.root_buffer import RootBuffer
from elf.cbt.rows import Op, Rows

GATHERED_RUNS_MAX = 16
"""The most runs of a root buffer that are distributed without a merge: this bounds the runs in a fragment."""
FRAGMENTS_MAX = 96
"""With more fragments in a node, the smaller ones are merged: a fragment costs memory even when its frame is on disk."""
FIRST_LEAF_BYTES = 1 << 17
COLD_BYTES = 64 << 10
"""So many bytes of panes that have become cold are packed together: a read of one of them unpacks them all."""
CHUNK_BYTES = 2 << 20
"""Approximate size of a reader's chunk: it fits the processor's cache."""


Read = Callable[[Bound | None], Rows]
"""Returns the next rows up to a bound: `Merger.read`, or `Merger.gather`, which does not merge them."""

Taken = tuple[Merger, list[Rows]]
"""A merger of removed rows, and the rows that it reads."""


class Sizes(NamedTuple):
    """Bounds of a tree's parts, in bytes of unpacked rows.

    A full root buffer and the splitting of a leaf take about `root_bytes` + 5/4 `node_bytes`: by default an eighth of the cap.
    Rows of one pane are adjacent, so all may go to one child and fill nodes on the way: then these take half of the cap. A full
    root buffer over `fanout` children should make pieces of 64 KiB or more, so that compression is worth its overhead.
    """

    root_bytes: int
    node_bytes: int
    fanout: int

    @classmethod
    def under(cls, cap_bytes: int) -> Sizes:
        # Under a small cap, a twelfth would make so many fragments that their overhead would take most of the cap.
        root = min(max(cap_bytes // 12, min(cap_bytes // 8, 1 << 20), 4096), 32 << 20)
        return cls(root, max(root // 2, 4096), min(max(root >> 16, 8), 256))


class Tree:
    """A memory-bounded group-by of rows with the accumulators `ops`. One thread at a time.

    All memory is charged to `budget`; over its cap fragments go to disk. `sizes` are for tests.
    """

    def __init__(self, ops: Sequence[Op], budget: Budget, sizes: Sizes | None = None) -> None:
        self.ops = tuple(ops)
        self._budget = budget
        self._sizes = sizes or Sizes.under(budget.cap_bytes)
        self._root = RootBuffer(self.ops, budget)
        self._top: Leaf | None = None
        self._cold_stop: int | None = None
        budget.register(self)

    def __del__(self) -> None:
        """Return the memory of a tree that was dropped without `close`."""
        fragments = [fragment for _, _, node in self._walk() for fragment in node.fragments]
        if fragments or self._root.nbytes:
            self._budget.abandon(fragments, self._root.nbytes)

    # ---- writing ----

    def insert(self, rows: Rows) -> None:
        """Add ordered, folded rows (of `make_rows` or `merge`); the tree takes over the arrays. Amortised O(log) per row.

        Raises OSError when the spill file's disk is full; the rows are in the tree nevertheless.
        """
        failure: OSError | None = None
        for run in self._runs_of(rows):
            try:
                self._add(run)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def _runs_of(self, rows: Rows) -> Iterator[Rows]:
        """Rows larger than the root's buffer, cut into pieces of half its size: all rows may go down one path, and are unpacked
        at each node."""
        each = len(rows)
        if rows.nbytes > self._sizes.root_bytes:
            each = max(1, each * (self._sizes.root_bytes // 2) // rows.nbytes)
        for start in range(0, len(rows), each or 1):
            yield rows if each == len(rows) else rows.slice(start, min(start + each, len(rows))).copy()

    def _add(self, run: Rows) -> None:
        self._root.add(run)
        if self._root.nbytes > self._sizes.root_bytes:
            self._shrink_root()
        else:
            self._root.merge_small()
        self._budget.settle()

    def compress(self) -> None:
        """Empty the root's buffer into packed fragments."""
        if self._root.runs:
            self._empty_root(self._root.fraction_left())

    def cool(self, stop: int) -> None:
        """Pack the rows of panes before `stop` into the spill file, if the root's buffer holds many of them: they are seldom read
        from now on. Reads of later panes do not unpack them. O(runs) if there are few. Raises OSError when memory is short and
        the disk is full; the rows are in the tree nevertheless."""
        if stop == self._cold_stop or self._root.nbytes < COLD_BYTES:
            return
        self._cold_stop, high = stop, (stop, 0, 0, b"")
        if self._root.bytes_below(high) < COLD_BYTES:
            return
        self._set_top(self._empty_path(LOWEST, self._top or Leaf(), high, is_parted=True))
        cold = self._root.take(LOWEST, high)
        with self._budget.scratch(2 * sum(part.nbytes for part in cold)):
            self._pour_top(Merger(cold, self.ops).read)
        assert self._top is not None
        self._set_top(self._empty_path(LOWEST, self._top, high))
        for _, end, node in self._walk():
            for fragment in node.fragments if end is not None and end <= high else ():
                self._budget.cool(fragment)
        self._budget.settle()

    @property
    def raw_bytes(self) -> int:
        """The size of the tree's rows when unpacked. O(fragments)."""
        return self._root.nbytes + sum(node.raw_bytes for _, _, node in self._walk())

    def share(self) -> list[Fragment]:
        """A snapshot of the tree's rows, unordered, with equal keys not folded. It stays valid when the tree changes. The caller
        frees each fragment.

        O(fragments), once the root's buffer is packed. Raises OSError.
        """
        self.compress()
        fragments = [fragment for _, _, node in self._walk() for fragment in node.fragments]
        for fragment in fragments:
            self._budget.share(fragment)
        return fragments

    def close(self) -> None:
        """Free everything."""
        self._root.replace([])
        for _, _, node in self._walk():
            for fragment in node.fragments:
                self._budget.free(fragment)
        self._top = None

    def _shrink_root(self) -> None:
        fraction = self._root.fraction_left()
        if self._top is None or fraction <= 0.5:
            self._root.merge_all()
        if self._root.nbytes > self._sizes.root_bytes // 2:
            self._empty_root(fraction)

    def _empty_root(self, fraction: float) -> None:
        """Move the root's buffer into the nodes, merged only if that makes it smaller, since readers merge anyway."""
        merger = Merger(self._root.runs, self.ops)
        gathers = len(self._root.runs) <= GATHERED_RUNS_MAX and fraction > 0.9
        with self._budget.scratch(self._root.nbytes):  # all rows of one pane may be for one child
            self._pour_top(merger.gather if gathers else merger.read)
        freed = self._root.nbytes
        self._root.replace([])
        self._budget.give_back(freed)

    def _pour_top(self, read: Read) -> None:
        """Move rows from the root into the nodes."""
        top = self._top or Leaf()
        if isinstance(top, Inner):  # the root's buffer is the top's
            self._distribute(LOWEST, top, read)
            self._set_top(self._split_inner(LOWEST, top))
        else:
            self._move(read, None, top)
            self._set_top(self._fitted(LOWEST, top))

    def _set_top(self, nodes: list[Ranged]) -> None:
        while len(nodes) > 1:
            nodes = self._split_inner(LOWEST, Inner(nodes))
        self._top = nodes[0][1]

    def _move(self, read: Read, until: Bound | None, node: Leaf) -> bool:
        """Move the next rows into a node; returns whether there were any. No unpacked copy is kept while the node distributes
        them."""
        rows = read(until)
        if len(rows):
            self._store(node, rows)
        return bool(len(rows))

    def _fitted(self, low: Bound, node: Leaf) -> list[Ranged]:
        """The nodes that replace a node which has received rows."""
        if node.raw_bytes <= self._sizes.node_bytes:
            if len(node.fragments) > FRAGMENTS_MAX:
                self._merge_small_fragments(node)
            return [(low, node)]
        return self._empty(low, node) if isinstance(node, Inner) else self._split_leaf(low, node)

    def _distribute(self, start: Bound, inner: Inner, read: Read) -> None:
        """Move rows to the children whose ranges contain their keys. start: where the node's range begins: below its first child,
        if it has got the range of a neighbour that was drained."""
        nodes: list[Ranged] = []
        for i, (low, child) in enumerate(zip([start, *inner.lows[1:]], inner.children, strict=True)):
            has_more = self._move(read, inner.high(i, None), child)
            nodes += self._fitted(low, child) if has_more else [(low, child)]
        inner.replace_all(nodes)

    def _empty(self, low: Bound, inner: Inner) -> list[Ranged]:
        """Distribute an inner node's buffer to its children."""
        with self._budget.scratch(2 * inner.raw_bytes):  # all of its rows may be for one child
            self._distribute(low, inner, Merger((), self.ops, self._take(inner)).read)
        return self._split_inner(low, inner)

    def _split_inner(self, low: Bound, inner: Inner) -> list[Ranged]:
        """Inner nodes of at most `fanout` children; the buffer must be empty."""
        n, fanout = len(inner.children), self._sizes.fanout
        if n <= fanout:
            return [(low, inner)]
        each = -(-n // -(-n // fanout))
        nodes = list(zip(inner.lows, inner.children, strict=True))
        split: list[Ranged] = []
        for at in range(0, n, each):
            split.append((nodes[at][0] if at else low, Inner(nodes[at : at + each])))
        return split

    def _split_leaf(self, low: Bound, leaf: Leaf) -> list[Ranged]:
        """Split a full leaf into eighths, which take long to fill again, unless folding has made it half empty.

        The first leaf of a tree is split into half as many leaves as an inner node may have, so that the next splits come late.
        """
        parts = max(-(-8 * leaf.raw_bytes // self._sizes.node_bytes), 2)
        if not isinstance(self._top, Inner):
            parts = max(parts, min(self._sizes.fanout // 2, leaf.raw_bytes // FIRST_LEAF_BYTES))
        with self._budget.scratch(leaf.raw_bytes * 5 // 4):
            scattered = self._take(leaf)
            merger = Merger((), self.ops, scattered)
            bounds = [low, *(bound for bound in quantiles(scattered, parts) if bound > low)]
            nodes: list[Ranged] = []
            for i, bound in enumerate(bounds):
                rows = merger.read(bounds[i + 1] if i + 1 < len(bounds) else None)
                if len(rows):
                    nodes.append((bound if nodes else low, Leaf()))
                    self._store(nodes[-1][1], rows)
        if sum(node.raw_bytes for _, node in nodes) > self._sizes.node_bytes // 2:
            return nodes
        leaf.fragments = [fragment for _, node in nodes for fragment in node.fragments]
        return [(low, leaf)]

    # ---- fragments ----

    def _store(self, node: Leaf, rows: Rows) -> None:
        """Put rows into a node, in pieces of bounded size."""
        pieces = -(-rows.nbytes // (4 * self._sizes.node_bytes)) or 1
        each = -(-len(rows) // pieces) or 1
        for start in range(0, len(rows), each):
            piece = rows if pieces == 1 else rows.slice(start, min(start + each, len(rows)))
            node.fragments.append(self._budget.keep(piece, self.ops))

    def _unpack(self, fragment: Fragment) -> Rows:
        """A fragment's rows: one or several ordered runs in sequence ("scattered")."""
        return self._budget.read(fragment)

    def _take(self, node: Leaf) -> list[Rows]:
        """Remove a node's fragments; returns their rows, scattered. Raises OSError when the spill file cannot be read."""
        scattered = [self._unpack(fragment) for fragment in node.fragments]
        self._discard(node)
        return scattered

    def _merge_small_fragments(self, node: Leaf) -> None:
        """Merge the smaller three quarters of the fragments, as with the runs of the root."""
        node.fragments.sort(key=lambda fragment: -fragment.raw_bytes)
        kept, small = node.fragments[: FRAGMENTS_MAX // 4], Leaf()
        small.fragments = node.fragments[FRAGMENTS_MAX // 4 :]
        with self._budget.scratch(2 * small.raw_bytes):
            rows = Merger((), self.ops, self._take(small)).read()
            node.fragments = kept
            self._store(node, rows)

    def _discard(self, node: Leaf) -> None:
        for fragment in node.fragments:
            self._budget.free(fragment)
        node.fragments = []

    # ---- reading ----

    def flush(self, start: int | None = None, stop: int | None = None) -> Iterator[Rows]:
        """The rows of panes [start, stop), ordered and folded, in chunks; the tree keeps them.

        The tree may change during a flush: the flush may or may not return rows that are inserted meanwhile. Memory: a leaf and
        the buffers above it, unpacked.
        """
        self._root.merge_read()
        cursor: Bound | None = LOWEST if start is None else (start, 0, 0, b"")
        end: Bound | None = None if stop is None else (stop, 0, 0, b"")
        above: dict[Fragment, Rows] = {}
        while cursor is not None and (end is None or cursor < end):
            fragments, leaf, high = self._path(cursor)
            if high is None or (end is not None and high > end):
                high = end
            above = {fragment: above.get(fragment) or self._unpack(fragment) for fragment in fragments}
            runs = [part for run in self._root.runs if len(part := cut(run, cursor, high))]
            scattered = list(above.values())
            size = sum(rows.nbytes for rows in (*runs, *scattered)) + (leaf.raw_bytes if leaf else 0)
            with self._budget.scratch(size + min(size, CHUNK_BYTES)):
                scattered += [self._unpack(fragment) for fragment in leaf.fragments] if leaf else []
                merger = Merger(runs, self.ops, scattered)
                merger.skip(cursor)
                yield from self._chunks(merger, [*runs, *scattered], cursor, high)
            cursor = high

    def _chunks(self, merger: Merger, parts: list[Rows], low: Bound, high: Bound | None) -> Iterator[Rows]:
        """The rows of a merger of `parts`, now at `low`, up to `high`, in chunks of about `CHUNK_BYTES`."""
        size = sum(part.nbytes for part in parts)
        bounds = quantiles(parts, -(-size // CHUNK_BYTES))
        for bound in (*(bound for bound in bounds if low < bound and (high is None or bound < high)), high):
            if len(chunk := merger.read(bound)):
                yield chunk

    def _path(self, bound: Bound) -> tuple[list[Fragment], Leaf | None, Bound | None]:
        """The buffered fragments above the leaf that contains `bound`, the leaf, and the end of its range."""
        fragments: list[Fragment] = []
        node, high = self._top, None
        while isinstance(node, Inner):
            fragments += node.fragments
            i = node.find(bound)
            high = node.high(i, high)
            node = node.children[i]
        return fragments, node, high

    def drain(self, start: int | None = None, stop: int | None = None) -> Iterator[Rows]:
        """The rows of panes [start, stop), ordered and folded, in chunks; each is removed from the tree once it is yielded.

        Rows that a drain has not yielded when it ends early stay in the tree. Rows inserted into the range meanwhile are yielded
        too, but late ones may be out of order. Memory: about a leaf, unpacked.
        """
        low = LOWEST if start is None else (start, 0, 0, b"")
        high: Bound | None = None if stop is None else (stop, 0, 0, b"")
        while (taken := self._take_first(low, high)) is not None:
            merger, parts = taken
            size = sum(part.nbytes for part in parts)
            with self._budget.scratch(size + min(size, CHUNK_BYTES)):
                try:
                    yield from self._chunks(merger, parts, low, high)
                finally:
                    self.insert(merger.read(high).copy())
            del merger, parts, taken
            self._budget.give_back(size)
        self._budget.settle()

    def _take_first(self, low: Bound, high: Bound | None) -> Taken | None:
        """Remove the rows of the first leaf that has any in [low, high); without nodes, those of the root's buffer."""
        buffered = self._root.take(low, high)
        if self._top is None:
            return (Merger(buffered, self.ops), buffered) if buffered else None
        if buffered:
            with self._budget.scratch(sum(part.nbytes for part in buffered)):
                self._pour_top(Merger(buffered, self.ops).read)
        cursor: Bound | None = low
        while cursor is not None and (high is None or cursor < high) and self._top is not None:
            self._set_top(self._empty_path(LOWEST, self._top, cursor))
            taken, cursor = self._take_leaf(cursor, low, high)
            if taken:
                return taken
        return None

    def _empty_path(self, low: Bound, node: Leaf, bound: Bound, *, is_parted: bool = False) -> list[Ranged]:
        """Empty the buffers above the leaf that contains `bound`; returns the nodes that replace `node`. is_parted: if that leaf
        is empty, another one begins at `bound`."""
        if not isinstance(node, Inner):
            has_two = is_parted and low < bound and not node.fragments
            return [(low, node), (bound, Leaf())] if has_two else [(low, node)]
        nodes: list[Ranged] = self._empty(low, node) if node.fragments else [(low, node)]
        at = max(bisect_right([first for first, _ in nodes], bound) - 1, 0)
        inner = nodes[at][1]
        assert isinstance(inner, Inner)
        i = inner.find(bound)
        inner.replace(i, self._empty_path(inner.lows[i], inner.children[i], bound, is_parted=is_parted))
        nodes[at : at + 1] = self._split_inner(nodes[at][0], inner)
        return nodes

    def _take_leaf(self, cursor: Bound, low: Bound, high: Bound | None) -> tuple[Taken | None, Bound | None]:
        """Remove the rows in [low, high) of the leaf that contains `cursor`; returns them, and the end of the leaf's range."""
        path: list[tuple[Inner, int]] = []
        node, last = self._top, None
        while isinstance(node, Inner):
            i = node.find(cursor)
            path.append((node, i))
            last = node.high(i, last)
            node = node.children[i]
        assert node is not None
        with self._budget.scratch(2 * node.raw_bytes):
            scattered = self._take(node)
            if low != LOWEST or high is not None:
                self._put_back(node, scattered, low, high)
        if not node.fragments:
            self._remove(path)
        merger = Merger((), self.ops, scattered)
        merger.skip(low)
        return ((merger, scattered) if merger.left(high) else None), last

    def _put_back(self, leaf: Leaf, scattered: list[Rows], low: Bound, high: Bound | None) -> None:
        """Put the rows outside [low, high) back."""
        merger = Merger((), self.ops, scattered)
        self._store(leaf, merger.read(low))
        if high is not None:
            merger.skip(high)
            self._store(leaf, merger.read())

    def _remove(self, path: list[tuple[Inner, int]]) -> None:
        """Remove the empty leaf at the end of `path`, and inner nodes that become empty."""
        while path:
            inner, i = path.pop()
            inner.remove(i)
            if inner.children:
                return
        self._top = None

    # ---- sizes and invariants ----

    @property
    def buffer_bytes(self) -> int:
        """Bytes of uncompressed rows in the root's buffer."""
        return self._root.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of memory held. O(fragments)."""
        return self._root.nbytes + sum(f.nbytes for _, _, node in self._walk() for f in node.fragments)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of rows in the spill file. O(fragments)."""
        return sum(f.spilled_bytes for _, _, node in self._walk() for f in node.fragments)

    def _walk(self) -> Iterator[tuple[Bound, Bound | None, Leaf]]:
        """Every node with its range, parents first."""
        open_nodes: list[tuple[Bound, Bound | None, Leaf]] = [(LOWEST, None, self._top)] if self._top else []
        while open_nodes:
            low, high, node = open_nodes.pop()
            yield low, high, node
            if isinstance(node, Inner):
                for i, child in enumerate(node.children):
                    open_nodes.append((node.lows[i] if i else low, node.high(i, high), child))

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold."""
        self._root.check()
        for low, high, node in self._walk():
            for fragment in node.fragments:
                rows = self._unpack(fragment)
                assert (len(rows), rows.nbytes) == (fragment.count, fragment.raw_bytes)
                inside = Merger((), self.ops, [rows])
                assert not inside.left(low)
                assert inside.left(high) == len(rows), "rows outside their node's range"
            if isinstance(node, Inner):
                assert node is not self._top or not node.fragments
                assert 1 <= len(node.children) <= self._sizes.fanout
                assert all(a < b for a, b in pairwise([low, *node.lows[1:]]))
            assert len(node.fragments) <= FRAGMENTS_MAX
            assert node.raw_bytes <= self._sizes.node_bytes or sum(f.count for f in node.fragments) == 1
        self._budget.check()
