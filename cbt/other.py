"""The row `other`: of a pane with too many groups, all but a sample of them in one row, exactly.

A pane has a level k, from 0 to 64. Groups whose hash is below 2^64 / 2^k stay; the rows of all others are merged into one. Its
key is no group's key, and names the level:

    key of `other` = b"\\x04", level

So rows of `other` merge like any rows, wherever rows merge: those of one level become one row, those of two levels stay two.
`capped` folds what a merge has brought together: the highest level in a pane holds for the whole pane, and what lies past it
joins `other`. A group that stays was left alone by everybody, because no level was higher, so its values are exact; and what is
in `other` is in no group. Both hold in any order of merging, and however often rows are capped on the way.

The level is the lowest at which at most `groups_max` groups stay, so it depends on the hashes of the groups alone, and not on
which of them came first. Part of a pane never has a higher level than the whole pane, if both have the same `groups_max`: so
capping parts on the way up does not change what capping the whole gives.

Source: adaptive sampling (Wegman; Flajolet, "On adaptive sampling", 1990), with the rest kept in one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elf.cbt._kernel import make_rows, merge, take
from elf.cbt.rows import Op, Rows

TAG = 4
"""First byte of the key of `other`. Keys of groups begin with 0 to 3 (`elf.cbt.rows`), or are empty."""
LEVEL_MAX = 64


def is_other(rows: Rows) -> NDArray[np.bool_]:
    """Which rows are `other`. O(rows)."""
    if not len(rows.keys):
        return np.zeros(len(rows), dtype=np.bool_)
    starts = np.concatenate((np.zeros(1, np.uint64), rows.ends[:-1])) if len(rows) else rows.ends
    first = rows.keys[np.minimum(starts, np.uint64(len(rows.keys) - 1)).astype(np.int64)]
    return np.asarray((first == TAG) & (starts < rows.ends))


def capped(rows: Rows, ops: Sequence[Op], groups_max: int) -> Rows:
    """The same rows with at most `groups_max` groups in each pane, above 0, and at most one row `other`. Rows are ordered and
    folded, before and after. O(rows)."""
    others = is_other(rows)
    if len(rows) <= groups_max and not others.any():
        return rows
    levels = _levels(rows, others, groups_max)
    rest = others | _is_past(rows.hash, levels)
    if not rest.any():
        return rows
    at = np.flatnonzero(rest)
    keys = np.empty((len(at), 2), dtype=np.uint8)
    keys[:, 0], keys[:, 1] = TAG, levels[at]
    ends = np.arange(2, 2 * len(at) + 1, 2, dtype=np.uint64)
    folded = make_rows(rows.pane[at], keys.reshape(-1), ends, None, rows.lanes[:, at], ops)
    return merge([take(rows, np.flatnonzero(~rest)), folded], ops)


def apart(rows: Rows) -> tuple[Rows, Rows]:
    """The groups, and the rows `other`. O(rows)."""
    others = is_other(rows)
    return take(rows, np.flatnonzero(~others)), take(rows, np.flatnonzero(others))


def _levels(rows: Rows, others: NDArray[np.bool_], groups_max: int) -> NDArray[np.uint8]:
    """The level of each row's pane (n,)."""
    levels = np.zeros(len(rows), dtype=np.uint8)
    bounds = [0, *(np.flatnonzero(np.diff(rows.pane)) + 1).tolist(), len(rows)]
    for low, high in itertools.pairwise(bounds):
        mine = others[low:high]
        level = max((int(rows.keys[int(rows.ends[low + i]) - 1]) for i in np.flatnonzero(mine)), default=0)
        levels[low:high] = _level(rows.hash[low:high][~mine], level, groups_max)
    return levels


def _level(hashes: NDArray[np.uint64], level: int, groups_max: int) -> int:
    """The lowest level, at least `level`, at which at most `groups_max` of these hashes, ascending, stay."""
    if len(hashes) > groups_max:
        level = max(level, LEVEL_MAX + 1 - int(hashes[groups_max]).bit_length())
    return min(level, LEVEL_MAX)


def _is_past(hashes: NDArray[np.uint64], levels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether a hash is at or past 2^64 / 2^level."""
    shifts = (LEVEL_MAX - levels.astype(np.int64)).clip(0, LEVEL_MAX - 1).astype(np.uint64)
    return np.asarray((levels > 0) & (hashes >> shifts > 0))
