"""The compressed buffer tree: a group-by of rows within a memory budget.

After Amur et al., "Memory-Efficient GroupBy-Aggregate using Compressed Buffer Trees" (SoCC 2013), and Arge's buffer tree
underneath. Inserted runs gather uncompressed at the root. When the root's buffer is full it is merged, equal keys folded,
and, unless folding has made room enough, handed out to the children by key range; inner nodes and leaves hold packed
fragments. A full inner buffer is unpacked, merged and handed on; a full leaf is merged and splits into several. Ranges are
over the whole order (pane, hash, sub, key): panes that are read and dropped first lie together, and a leaf can always be
split, even among rows that a hostile log gave equal hashes.

Two facts of the authors' prototype avoided: keys are compared, never only their hashes, and reading without removing (`flush`)
is another operation than reading and removing (`drain`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from elf.cbt._kernel import first_disorder, merge
from elf.cbt.budget import Budget, Fragment
from elf.cbt.frame import pack, unpack
from elf.cbt.rows import Op, Rows

RUNS_MAX = 48
"""Runs in a root buffer before the smaller ones are merged: bounds the fan-in of every merge."""
FRAGMENTS_MAX = 64
"""Fragments in a node before the smaller ones are merged: a fragment costs memory even when its frame is on disk."""
CHUNK_ROWS = 1 << 16

Bound = tuple[int, int, int, bytes]
"""A place in the order: (pane, hash, sub, key)."""
LOWEST: Bound = (-(1 << 63), 0, 0, b"")


class Sizes(NamedTuple):
    """Bounds of a tree's parts, in bytes of unpacked rows.

    A root buffer and its merge take twice `root_bytes`, the split of a leaf about twice `node_bytes`: with the default
    fractions a quarter of the cap together. Larger than 16 MiB is slower, for the processor's caches. A full buffer over
    `fanout` children should make pieces of 64 KiB or more, so that compression is worth its overhead.
    """

    root_bytes: int
    node_bytes: int
    fanout: int

    @classmethod
    def under(cls, cap_bytes: int) -> Sizes:
        each = min(max(cap_bytes // 16, 4096), 16 << 20)
        return cls(each, each, min(max(each >> 16, 8), 128))


class _Leaf:
    """Fragments of one key range, each ordered, any two may share keys."""

    __slots__ = ("fragments",)

    def __init__(self) -> None:
        self.fragments: list[Fragment] = []

    @property
    def raw_bytes(self) -> int:
        return sum(fragment.raw_bytes for fragment in self.fragments)


Ranged = tuple[Bound, _Leaf]
"""A node and where its range begins."""


class _Inner(_Leaf):
    """A buffer of fragments over children; `lows[i]` is where the range of child i begins (child 0: where the node's does)."""

    __slots__ = ("children", "lows")

    def __init__(self, nodes: list[Ranged]) -> None:
        super().__init__()
        self.replace(None, nodes)

    def replace(self, i: int | None, nodes: list[Ranged]) -> None:
        """Put `nodes` in the place of child i (None: of all)."""
        if i is None:
            self.lows, self.children = [low for low, _ in nodes], [node for _, node in nodes]
        else:
            self.lows[i : i + 1] = [low for low, _ in nodes]
            self.children[i : i + 1] = [node for _, node in nodes]

    def find(self, bound: Bound) -> int:
        """The child whose range holds `bound`."""
        return max(bisect_right(self.lows, bound) - 1, 0)

    def high(self, i: int, own: Bound | None) -> Bound | None:
        """Where the range of child i ends, `own` being where the node's does."""
        return self.lows[i + 1] if i + 1 < len(self.lows) else own


def _bound(rows: Rows, i: int) -> Bound:
    return int(rows.pane[i]), int(rows.hash[i]), int(rows.sub[i]), rows.key(i)


def _between(rows: Rows, low: Bound, high: Bound | None) -> tuple[int, int]:
    """Indices [start, stop) of the rows in [low, high)."""
    start = 0 if low == LOWEST else rows.lower_bound(*low)
    return start, len(rows) if high is None else max(start, rows.lower_bound(*high))


def _cut(rows: Rows, low: Bound, high: Bound | None) -> Rows:
    """The rows in [low, high), as views."""
    return rows.slice(*_between(rows, low, high))


class Tree:
    """A memory-bounded group-by of rows with the accumulators `ops`. One thread at a time.

    All memory is charged to `budget`; over its cap fragments go to disk. `sizes` are for tests.
    """

    def __init__(self, ops: Sequence[Op], budget: Budget, sizes: Sizes | None = None) -> None:
        self.ops = tuple(ops)
        self._budget = budget
        self._sizes = sizes or Sizes.under(budget.cap_bytes)
        self._runs: list[Rows] = []
        self._top: _Leaf | None = None
        self.buffer_bytes = 0
        budget.register(self)

    # ---- writing ----

    def insert(self, rows: Rows) -> None:
        """Add ordered, folded rows (of `make_rows` or `merge`); the tree takes the arrays over. Amortised O(log) per row.

        Raises OSError when the disk that memory should give way to is full; the rows are in the tree all the same.
        """
        if not len(rows):
            return
        self._runs.append(rows)
        self._count_buffer(rows.nbytes)
        if self.buffer_bytes > self._sizes.root_bytes:
            self._shrink_root()
        elif len(self._runs) > RUNS_MAX:
            self._merge_small_runs()
        self._budget.settle()

    def compress(self) -> None:
        """Empty the root's buffer into packed fragments."""
        if self._runs:
            self._pour_root(self._merge_runs())

    def close(self) -> None:
        """Let go of everything."""
        self._set_runs([])
        for _, _, node in self._walk():
            for fragment in node.fragments:
                self._budget.free(fragment)
        self._top = None

    def _count_buffer(self, more: int) -> None:
        self.buffer_bytes += more
        self._budget.charge(more)

    def _set_runs(self, runs: list[Rows]) -> None:
        runs = [run for run in runs if len(run)]
        self._runs = runs
        self._count_buffer(sum(run.nbytes for run in runs) - self.buffer_bytes)

    def _merge_runs(self) -> Rows:
        """All runs as one, which is then the only one."""
        with self._budget.scratch(self.buffer_bytes):
            merged = merge(self._runs, self.ops)
        self._set_runs([merged])
        return merged

    def _merge_small_runs(self) -> None:
        """Merge the smaller three quarters of the runs: a row is merged a logarithmic number of times."""
        self._runs.sort(key=len)
        few = len(self._runs) * 3 // 4
        with self._budget.scratch(sum(run.nbytes for run in self._runs[:few])):
            merged = merge(self._runs[:few], self.ops)
        self._set_runs([*self._runs[few:], merged])

    def _shrink_root(self) -> None:
        merged = self._merge_runs()
        if self.buffer_bytes > self._sizes.root_bytes // 2:
            self._pour_root(merged)

    def _pour_root(self, rows: Rows) -> None:
        """Move the root's only run, `rows`, into the nodes."""
        self._pour_top(rows)
        self._set_runs([])

    def _pour_top(self, rows: Rows) -> None:
        top = self._top or _Leaf()
        if isinstance(top, _Inner):  # the runs are its buffer
            self._hand_out(top, rows)
            self._set_top(self._split_inner(LOWEST, top))
        else:
            self._set_top(self._pour(LOWEST, top, rows))

    def _set_top(self, nodes: list[Ranged]) -> None:
        while len(nodes) > 1:
            nodes = self._split_inner(LOWEST, _Inner(nodes))
        self._top = nodes[0][1]

    def _pour(self, low: Bound, node: _Leaf, rows: Rows) -> list[Ranged]:
        """Add rows to a node; returns the nodes that are now in its place."""
        self._store(node, rows)
        if node.raw_bytes <= self._sizes.node_bytes:
            if len(node.fragments) > FRAGMENTS_MAX:
                self._merge_small_fragments(node)
            return [(low, node)]
        return self._empty(low, node) if isinstance(node, _Inner) else self._split_leaf(low, node)

    def _hand_out(self, inner: _Inner, rows: Rows) -> None:
        """Rows to the children that their keys belong to."""
        nodes: list[Ranged] = []
        for i, (low, child) in enumerate(zip(inner.lows, inner.children, strict=True)):
            part = _cut(rows, LOWEST if i == 0 else low, inner.high(i, None))
            nodes += self._pour(low, child, part) if len(part) else [(low, child)]
        inner.replace(None, nodes)

    def _empty(self, low: Bound, inner: _Inner) -> list[Ranged]:
        """Hand an inner node's buffer to its children."""
        with self._budget.scratch(2 * inner.raw_bytes):
            rows = self._load(inner)
            self._discard(inner)
            self._hand_out(inner, rows)
        return self._split_inner(low, inner)

    def _split_inner(self, low: Bound, inner: _Inner) -> list[Ranged]:
        """Inner nodes of at most `fanout` children; the buffer must be empty."""
        n, fanout = len(inner.children), self._sizes.fanout
        if n <= fanout:
            return [(low, inner)]
        each = -(-n // -(-n // fanout))
        nodes = list(zip(inner.lows, inner.children, strict=True))
        split: list[Ranged] = []
        for at in range(0, n, each):
            split.append((nodes[at][0] if at else low, _Inner(nodes[at : at + each])))
        return split

    def _split_leaf(self, low: Bound, leaf: _Leaf) -> list[Ranged]:
        """Merge a full leaf; unless folding has made it half empty, cut it in quarters, which have long to fill again."""
        with self._budget.scratch(2 * leaf.raw_bytes):
            rows = self._load(leaf)
            self._discard(leaf)
            parts = 1
            if rows.nbytes > self._sizes.node_bytes // 2:
                parts = min(-(-4 * rows.nbytes // self._sizes.node_bytes), len(rows))
            cuts = [len(rows) * i // parts for i in range(parts + 1)]
            nodes: list[Ranged] = []
            for start, stop in pairwise(cuts):
                node = leaf if start == 0 else _Leaf()
                self._store(node, rows.slice(start, stop))
                nodes.append((low if start == 0 else _bound(rows, start), node))
        return nodes

    # ---- fragments ----

    def _store(self, node: _Leaf, rows: Rows) -> None:
        """Pack rows into a node, in pieces that a reader's bounds allow."""
        pieces = -(-rows.nbytes // (4 * self._sizes.node_bytes)) or 1
        each = -(-len(rows) // pieces) or 1
        for start in range(0, len(rows), each):
            piece = rows.slice(start, min(start + each, len(rows)))
            frame = pack(piece, self.ops)
            node.fragments.append(self._budget.keep(frame, len(piece), piece.nbytes))

    def _unpack(self, fragment: Fragment) -> Rows:
        return unpack(self._budget.read(fragment), 2 * fragment.raw_bytes)[0]

    def _load(self, node: _Leaf) -> Rows:
        """All rows of a node, folded. Raises OSError when the spill file cannot be read."""
        return merge([self._unpack(fragment) for fragment in node.fragments], self.ops)

    def _merge_small_fragments(self, node: _Leaf) -> None:
        """Merge the smaller three quarters: as with the runs of the root."""
        node.fragments.sort(key=lambda fragment: -fragment.raw_bytes)
        kept, small = node.fragments[: FRAGMENTS_MAX // 4], _Leaf()
        small.fragments = node.fragments[FRAGMENTS_MAX // 4 :]
        with self._budget.scratch(2 * small.raw_bytes):
            rows = self._load(small)
            self._discard(small)
            node.fragments = kept
            self._store(node, rows)

    def _discard(self, node: _Leaf) -> None:
        for fragment in node.fragments:
            self._budget.free(fragment)
        node.fragments = []

    # ---- reading ----

    def flush(self, start: int | None = None, stop: int | None = None) -> Iterator[Rows]:
        """The rows of panes [start, stop), ordered and folded, in chunks; the tree keeps them.

        The tree may change while a flush goes on: rows inserted meanwhile may be seen or not. Memory: a leaf and the
        buffers above it, unpacked.
        """
        cursor: Bound | None = LOWEST if start is None else (start, 0, 0, b"")
        end: Bound | None = None if stop is None else (stop, 0, 0, b"")
        above: dict[Fragment, Rows] = {}
        while cursor is not None and (end is None or cursor < end):
            fragments, leaf, high = self._path(cursor)
            if high is None or (end is not None and high > end):
                high = end
            above = {fragment: above.get(fragment) or self._unpack(fragment) for fragment in fragments}
            parts = [_cut(run, cursor, high) for run in (*self._runs, *above.values())]
            size = sum(part.nbytes for part in parts) + sum(rows.nbytes for rows in above.values())
            with self._budget.scratch(size + 2 * (leaf.raw_bytes if leaf else 0)):
                if leaf:
                    parts += [_cut(self._unpack(fragment), cursor, high) for fragment in leaf.fragments]
                rows = merge(parts, self.ops)
                del parts
                for at in range(0, len(rows), CHUNK_ROWS):
                    yield rows.slice(at, min(at + CHUNK_ROWS, len(rows)))
            cursor = high

    def _path(self, bound: Bound) -> tuple[list[Fragment], _Leaf | None, Bound | None]:
        """The buffered fragments above the leaf that holds `bound`, the leaf, and where its range ends."""
        fragments: list[Fragment] = []
        node, high = self._top, None
        while isinstance(node, _Inner):
            fragments += node.fragments
            i = node.find(bound)
            high = node.high(i, high)
            node = node.children[i]
        return fragments, node, high

    def drain(self, start: int | None = None, stop: int | None = None) -> Iterator[Rows]:
        """The rows of panes [start, stop), ordered and folded, in chunks; each is gone from the tree once it is handed out.

        What a drain that ends early has not handed out stays in the tree. Rows inserted into the range meanwhile come
        out too, but late ones may be out of order. Memory: about two leaves, unpacked.
        """
        low = LOWEST if start is None else (start, 0, 0, b"")
        high: Bound | None = None if stop is None else (stop, 0, 0, b"")
        while (rows := self._take_first(low, high)) is not None:
            at = 0
            with self._budget.scratch(rows.nbytes):
                try:
                    while at < len(rows):
                        chunk = rows.slice(at, min(at + CHUNK_ROWS, len(rows)))
                        at += len(chunk)
                        yield chunk
                finally:
                    if at < len(rows):
                        self.insert(rows.slice(at, len(rows)).copy())
        self._budget.settle()

    def _take_first(self, low: Bound, high: Bound | None) -> Rows | None:
        """Remove the rows of the first leaf that has any in [low, high); without nodes, those of the root's buffer."""
        buffered = self._take_runs(low, high)
        if self._top is None:
            return buffered if len(buffered) else None
        if len(buffered):
            with self._budget.scratch(buffered.nbytes):
                self._pour_top(buffered)
        cursor: Bound | None = low
        while cursor is not None and (high is None or cursor < high) and self._top is not None:
            self._set_top(self._clear_way(LOWEST, self._top, cursor))
            rows, cursor = self._take_leaf(cursor, low, high)
            if len(rows):
                return rows
        return None

    def _take_runs(self, low: Bound, high: Bound | None) -> Rows:
        """Remove the rows in [low, high) from the root's buffer."""
        inside, outside = [], []
        for run in self._runs:
            start, stop = _between(run, low, high)
            inside.append(run.slice(start, stop))
            if start == stop:
                outside.append(run)
            else:
                outside += [run.slice(0, start).copy(), run.slice(stop, len(run)).copy()]
        with self._budget.scratch(sum(part.nbytes for part in inside)):
            rows = merge(inside, self.ops)
        self._set_runs(outside)
        return rows

    def _clear_way(self, low: Bound, node: _Leaf, bound: Bound) -> list[Ranged]:
        """Empty the buffers above the leaf that holds `bound`; returns the nodes that are now in `node`'s place."""
        if not isinstance(node, _Inner):
            return [(low, node)]
        nodes: list[Ranged] = self._empty(low, node) if node.fragments else [(low, node)]
        at = max(bisect_right([first for first, _ in nodes], bound) - 1, 0)
        inner = nodes[at][1]
        assert isinstance(inner, _Inner)
        i = inner.find(bound)
        inner.replace(i, self._clear_way(inner.lows[i], inner.children[i], bound))
        nodes[at : at + 1] = self._split_inner(nodes[at][0], inner)
        return nodes

    def _take_leaf(self, cursor: Bound, low: Bound, high: Bound | None) -> tuple[Rows, Bound | None]:
        """Remove the rows in [low, high) of the leaf that holds `cursor`; returns them and where the leaf's range ends."""
        path: list[tuple[_Inner, int]] = []
        node, last = self._top, None
        while isinstance(node, _Inner):
            i = node.find(cursor)
            path.append((node, i))
            last = node.high(i, last)
            node = node.children[i]
        assert node is not None
        with self._budget.scratch(2 * node.raw_bytes):
            rows = self._load(node)
            self._discard(node)
            start, stop = _between(rows, low, high)
            for kept in (rows.slice(0, start), rows.slice(stop, len(rows))):
                self._store(node, kept)
        if not node.fragments:
            self._remove(path)
        return rows.slice(start, stop), last

    def _remove(self, path: list[tuple[_Inner, int]]) -> None:
        """Take out the empty leaf at the end of `path`, and inner nodes that it leaves empty."""
        while path:
            inner, i = path.pop()
            del inner.children[i], inner.lows[1 if i == 0 and len(inner.lows) > 1 else i]
            if inner.children:
                return
        self._top = None

    # ---- telling ----

    @property
    def nbytes(self) -> int:
        """Bytes of memory held. O(fragments)."""
        return self.buffer_bytes + sum(f.nbytes for _, _, node in self._walk() for f in node.fragments)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of rows in the spill file. O(fragments)."""
        return sum(f.spilled_bytes for _, _, node in self._walk() for f in node.fragments)

    def _walk(self) -> Iterator[tuple[Bound, Bound | None, _Leaf]]:
        """Every node with its range, parents first."""
        open_nodes: list[tuple[Bound, Bound | None, _Leaf]] = [(LOWEST, None, self._top)] if self._top else []
        while open_nodes:
            low, high, node = open_nodes.pop()
            yield low, high, node
            if isinstance(node, _Inner):
                for i, child in enumerate(node.children):
                    open_nodes.append((node.lows[i] if i else low, node.high(i, high), child))

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold."""
        assert self.buffer_bytes == sum(run.nbytes for run in self._runs)
        assert len(self._runs) <= RUNS_MAX + 1
        for run in self._runs:
            assert first_disorder(run) == len(run)
        for low, high, node in self._walk():
            for fragment in node.fragments:
                rows = self._unpack(fragment)
                assert (len(rows), rows.nbytes) == (fragment.count, fragment.raw_bytes)
                assert _between(rows, low, high) == (0, len(rows)), "rows outside their node's range"
            if isinstance(node, _Inner):
                assert node is not self._top or not node.fragments
                assert 1 <= len(node.children) <= self._sizes.fanout
                assert all(a < b for a, b in pairwise([low, *node.lows[1:]]))
            assert len(node.fragments) <= FRAGMENTS_MAX
            assert node.raw_bytes <= self._sizes.node_bytes or sum(f.count for f in node.fragments) == 1
        self._budget.check()
