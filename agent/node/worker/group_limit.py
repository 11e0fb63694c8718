"""The limit on groups, where a job's source is cut: too many groups in a pane make the job fail, or become one row `other`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from elf.cbt.other import capped
from elf.cbt.rows import Rows, concat, distinct
from elf.jobmaster.directory.limits import LIMIT, LimitPassed, Limits
from elf.srt.messages.events import Cut
from elf.srt.messages.messages import Micros
from elf.srt.messages.partial import Part

LimitsAt = Callable[[str, Micros], Limits]
"""The limits of a version's pane."""
PANES_MAX = 8
"""Panes whose groups are counted, the ones cut last: 8 bytes for each group."""


class GroupLimit:
    """The groups that one worker has cut. Counted since the seat was made, so lines that are read again count once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Micros], NDArray[np.uint64]] = {}  # hashes, ascending

    def apply(self, cut: Cut, limits_at: LimitsAt) -> Cut:
        """The cut within the limits. Raises LimitPassed. O(rows + panes)."""
        return replace(
            cut,
            parts={version: self._within(version, part, limits_at) for version, part in cut.parts.items()},
        )

    def _within(self, version: str, part: Part, limits_at: LimitsAt) -> Part:
        for limits, panes in groupby(distinct(part.rows[0].pane).tolist(), partial(limits_at, version)):
            some = list(panes)
            if limits.sample:
                part = _sampled(part, limits, some)
            elif limits.groups:
                self._count(version, part.rows[0], limits.groups, some)
        return part

    def _count(self, version: str, rows: Rows, groups_max: int, panes: Sequence[Micros]) -> None:
        for pane in panes:
            low, high = np.searchsorted(rows.pane, (pane, pane + 1))
            hashes, known = rows.hash[low:high], self._known.get((version, pane))
            found = np.unique(hashes if known is None else np.concatenate((known, hashes)))
            if len(found) > groups_max:
                raise LimitPassed(
                    f"{LIMIT}more than {groups_max:,} groups in one pane; group by fewer values, or give it another limit, "
                    'or with over = "other"'
                )
            self._known.pop((version, pane), None)
            self._known[version, pane] = found
        while len(self._known) > PANES_MAX:
            del self._known[next(iter(self._known))]


def _sampled(part: Part, limits: Limits, panes: Sequence[Micros]) -> Part:
    """Caps these panes. Raises LimitPassed for rows of families, whose members have no common row."""
    rows, ops = part.rows[0], part.ops[0]
    low, high = np.searchsorted(rows.pane, (panes[0], panes[-1] + 1)).tolist()
    some = rows.slice(low, high)
    few = capped(some, ops, limits.groups)
    if few is some:
        return part
    rows = concat([rows.slice(0, low), few, rows.slice(high, len(rows))], len(rows.lanes))
    if len(part.rows) > 2:
        raise LimitPassed(
            f"{LIMIT}more than {limits.groups:,} groups in one pane; of count(DISTINCT …), approximate functions and sums of "
            "doubles there is no row other: leave these out, or group by fewer values"
        )
    return Part(part.ops, (rows, *part.rows[1:]))
