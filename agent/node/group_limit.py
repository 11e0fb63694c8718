"""The limit on groups, where a job's source is cut: too many groups in a pane make the job fail, or become one row `other`."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from elf.cbt.other import capped
from elf.cbt.rows import Rows, distinct
from elf.jobmaster.directory.limits import LIMIT, LimitPassed, Limits
from elf.srt.messages.events import Cut
from elf.srt.messages.messages import Micros
from elf.srt.messages.partial import Part

PANES_MAX = 8
"""Panes whose groups are counted, the ones cut last: 8 bytes for each group."""


class GroupLimit:
    """The groups that one worker has cut. Counted since the seat was made, so lines that are read again count once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Micros], NDArray[np.uint64]] = {}  # hashes, ascending

    def apply(self, cut: Cut, limits: Limits) -> Cut:
        """The cut within the limits. Raises LimitPassed. O(rows)."""
        if not limits.groups:
            return cut
        if limits.others:
            return replace(cut, parts={each: _sampled(part, limits) for each, part in cut.parts.items()})
        for version, part in cut.parts.items():
            self._count(version, part.rows[0], limits.groups)
        return cut

    def _count(self, version: str, rows: Rows, groups_max: int) -> None:
        for pane in distinct(rows.pane).tolist():
            low, high = np.searchsorted(rows.pane, (pane, pane + 1))
            hashes, known = rows.hash[low:high], self._known.get((version, pane))
            found = np.unique(hashes if known is None else np.concatenate((known, hashes)))
            if len(found) > groups_max:
                raise LimitPassed(
                    f"{LIMIT}more than {groups_max:,} groups in one pane; group by fewer values, or start it with another limit, "
                    'or with over = "other"'
                )
            self._known.pop((version, pane), None)
            self._known[version, pane] = found
        while len(self._known) > PANES_MAX:
            del self._known[next(iter(self._known))]


def _sampled(part: Part, limits: Limits) -> Part:
    """Raises LimitPassed for rows of families, whose members have no common row."""
    rows = capped(part.rows[0], part.ops[0], limits.groups)
    if rows is part.rows[0]:
        return part
    if len(part.rows) > 2:
        raise LimitPassed(
            f"{LIMIT}more than {limits.groups:,} groups in one pane; of count(DISTINCT …), approximate functions and sums of "
            "doubles there is no row other: leave these out, or group by fewer values"
        )
    return Part(part.ops, (rows, *part.rows[1:]))
