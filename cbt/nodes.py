"""Nodes of the tree, and bounds in the order of rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from elf.cbt._kernel import lower_bound
from elf.cbt.budget import Fragment
from elf.cbt.rows import Rows

Bound = tuple[int, int, int, bytes]
"""A bound in the order of rows: (pane, hash, sub, key)."""
LOWEST: Bound = (-(1 << 63), 0, 0, b"")


class Leaf:
    """Fragments of one key range. Each contains one or several ordered runs; any two may share keys."""

    __slots__ = ("fragments",)

    def __init__(self) -> None:
        self.fragments: list[Fragment] = []

    @property
    def raw_bytes(self) -> int:
        return sum(fragment.raw_bytes for fragment in self.fragments)


Ranged = tuple[Bound, Leaf]
"""(the beginning of a node's range, the node)."""


class Inner(Leaf):
    """A buffer of fragments, and children. `lows[i]`: the beginning of child i's range; child 0's is that of the node."""

    __slots__ = ("children", "lows")

    def __init__(self, nodes: list[Ranged]) -> None:
        super().__init__()
        self.replace_all(nodes)

    def replace_all(self, nodes: list[Ranged]) -> None:
        self.lows, self.children = [low for low, _ in nodes], [node for _, node in nodes]

    def replace(self, i: int, nodes: list[Ranged]) -> None:
        """Replace child i by `nodes`."""
        self.lows[i : i + 1] = [low for low, _ in nodes]
        self.children[i : i + 1] = [node for _, node in nodes]

    def remove(self, i: int) -> None:
        """Remove child i; a neighbour gets its range."""
        del self.children[i], self.lows[1 if i == 0 and len(self.lows) > 1 else i]

    def find(self, bound: Bound) -> int:
        """The child whose range contains `bound`."""
        return max(bisect_right(self.lows, bound) - 1, 0)

    def high(self, i: int, own: Bound | None) -> Bound | None:
        """The end of the range of child i; `own`: the end of the node's range."""
        return self.lows[i + 1] if i + 1 < len(self.lows) else own


def bound_of(rows: Rows, i: int) -> Bound:
    return int(rows.pane[i]), int(rows.hash[i]), int(rows.sub[i]), rows.key(i)


def between(rows: Rows, low: Bound, high: Bound | None) -> tuple[int, int]:
    """Indices [start, stop) of the rows in [low, high); high None: to the end."""
    start = 0 if low == LOWEST else lower_bound(rows, *low)
    return start, len(rows) if high is None else max(start, lower_bound(rows, *high))


def cut(rows: Rows, low: Bound, high: Bound | None) -> Rows:
    """The rows in [low, high), as views; `rows` itself if that is all of them."""
    start, stop = between(rows, low, high)
    return rows if stop - start == len(rows) else rows.slice(start, stop)


def quantiles(runs: Sequence[Rows], parts: int) -> list[Bound]:
    """At most `parts` - 1 ascending bounds that divide the rows of ordered runs into about equal parts.

    The number of samples from each run is proportional to its rows. Their places are shifted by multiples of the golden ratio:
    otherwise many short runs with one sample each would all contribute their middle row.
    """
    total = sum(len(run) for run in runs)
    sample: list[Bound] = []
    for run in runs if parts > 1 else ():
        count = -(-8 * parts * len(run) // total)
        for j in range(count):
            shift = (len(sample) * 0.6180339887498949 + 0.5) % 1
            sample.append(bound_of(run, int((j + shift) / count * len(run))))
    sample.sort()
    picked = [sample[len(sample) * part // parts] for part in range(1, parts)] if sample else []
    return sorted(set(picked))
