"""Rows in transit: the partial aggregates of one version of a job, in one delta or bundle.

The rows need numpy, which the functions import: commands that only change a job start 40 ms sooner without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elf.cbt.rows import Op, Rows

PLAIN_TREES = 2
"""Trees of a plan without families: groups, and line counters."""


class Part:
    """Sorted, merged rows of each of a plan's trees (groups, line counters, families), with the operations that merge them.

    The operations are sent with the rows, so a reducer merges rows of jobs that it does not know. Never changed. Not a Struct, of
    which a decoder of messages would import the types of its fields; `elf.srt.codec.parts` packs it.
    """

    def __init__(self, ops: tuple[tuple[Op, ...], ...], rows: tuple[Rows, ...]) -> None:
        self.ops, self.rows = ops, rows

    def __repr__(self) -> str:
        return f"Part({self.ops!r}, {self.rows!r})"

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the rows in memory. Cached, because each hop reads it."""
        return sum(rows.nbytes for rows in self.rows)

    def since(self, pane: int) -> Part:
        """A copy without the rows of panes before `pane`; this part itself if it has no such rows. O(log rows)."""
        from elf.cbt._kernel import lower_bound

        cut = [lower_bound(rows, pane) for rows in self.rows]
        if not any(cut):
            return self
        kept = (rows.slice(at, len(rows)).copy() for rows, at in zip(self.rows, cut, strict=True))
        return Part(self.ops, tuple(kept))


Parts = Mapping[str, Part]
"""Version digest -> its rows. Rows of different versions are never merged."""


def merge_parts(parts: Sequence[Parts], sample: int = 0) -> dict[str, Part]:
    """All merged into one, version by version. sample: above 0, the most groups in a pane beside the row `other`
    (`elf.cbt.other`); rows with families are left as they are.

    Raises PeerError where two disagree about a version's operations.
    """
    from elf.cbt._kernel import merge
    from elf.cbt.other import capped
    from elf.errors import PeerError

    found: dict[str, list[Part]] = {}
    for each in parts:
        for version, part in each.items():
            found.setdefault(version, []).append(part)
    out: dict[str, Part] = {}
    for version, alike in found.items():
        first = alike[0]
        if len(alike) == 1:
            out[version] = first
            continue
        if any(part.ops != first.ops for part in alike):
            raise PeerError(f"bundle: two shapes of rows for version {version}")
        rows = tuple(
            merge([part.rows[tree] for part in alike if len(part.rows[tree])] or [first.rows[tree]], ops)
            for tree, ops in enumerate(first.ops)
        )
        if sample and len(rows) == PLAIN_TREES:
            rows = (capped(rows[0], first.ops[0], sample), *rows[1:])
        out[version] = Part(first.ops, rows)
    return out
