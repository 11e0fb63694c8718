"""Of each group's members of a family the one that is the result: of min and max of strings, min_by, max_by and mode.

Which one wins depends on the set of members alone, and the winner of a union is the winner of the parts' winners (but for mode,
whose counts add up). So an agent sends only the winners of its own lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt import aggregates
from elf.jobmaster.plan.plan import FamilyKind
from elf.jobmaster.values._text import decode
from elf.jobmaster.values.sql_types import Kind
from elf.jobmaster.values.vector import Vector

Index = NDArray[np.intp]
PRUNED = frozenset({FamilyKind.LEAST, FamilyKind.GREATEST, FamilyKind.MIN_BY, FamilyKind.MAX_BY})
"""Kinds of families of which only the winners matter."""
_DESCENDING = frozenset({FamilyKind.MAX_BY, FamilyKind.COUNTS})


def winners(kind: FamilyKind, groups: NDArray[Any], values: Vector, lane: NDArray[np.int64] | None) -> Index:
    """The index of each group's winner, by group. groups, lane: of each member. Ties go to the smallest value, NULL last.
    O(members * log(members))."""
    ranks = _ranks(values)
    if kind is FamilyKind.GREATEST:
        ranks = ~ranks
    keys = [ranks, groups]
    if lane is not None:
        keys.insert(1, ~lane if kind in _DESCENDING else lane)
    order = np.lexsort(keys)
    placed = groups[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = placed[1:] != placed[:-1]
    return order[first]


def _ranks(values: Vector) -> NDArray[np.int64]:
    """Integers in the order of the values; NULL after all."""
    most = np.iinfo(np.int64).max
    if values.type.kind is not Kind.STRING:
        numbers = values.values
        ordered = (
            aggregates.order_double(numbers) if numbers.dtype == np.float64 else numbers.astype(np.int64)
        )
        return ordered if values.valid is None else np.where(values.valid, ordered, most)
    codes, back = np.unique(values.values, return_inverse=True)
    texts = [] if values.strings is None else decode(values.strings, codes.astype(np.int32))
    place = {text: at for at, text in enumerate(sorted(text for text in texts if text is not None))}
    ranks = [most if text is None else place[text] for text in texts] or [most] * len(codes)
    out: NDArray[np.int64] = np.array(ranks, dtype=np.int64)[back]
    return out
