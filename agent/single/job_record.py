"""A job's records in the journal: whole at the start and when the journal is rewritten, changes only in between.

A job with short windows, kept for an hour, has thousands of states, few of which change within a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from elf.jobmaster.windows.windows import WindowsState

T = TypeVar("T")
Gap = tuple[int | None, int]
"""Event times [from, to] in microseconds of which a job lacks lines that its source has read; from None: from the beginning."""


class JobRecord(msgspec.Struct, array_like=True):
    """Rows merged since the record before, and the present state of the windows.

    frames: per delta, one packed frame for each tree. acked: panes that every lake sink holds. lakes: those lakes. is_delta:
    `windows.published`, `windows.final_panes` and `acked` have only what is new or changed since the record before; gone_…: what
    was removed since. gaps: always all.
    """

    version: str
    frames: list[list[bytes]]
    windows: WindowsState
    acked: list[int]
    lakes: list[str] = []
    is_delta: bool = False
    gone_published: list[int] = []
    gone_final_panes: list[int] = []
    gone_acked: list[int] = []
    gaps: list[Gap] = []


class Changes:
    """Makes records of the changes since the one before, once `recorded` was called for that one."""

    def __init__(self) -> None:
        self._before: JobRecord | None = None
        self._now: JobRecord | None = None

    def whole(self, record: JobRecord) -> JobRecord:
        """The record as it is, for the next one to build upon."""
        self._now = msgspec.structs.replace(record, frames=[])  # rows need not be compared
        return record

    def since(self, record: JobRecord) -> JobRecord:
        """The changes of a whole record since the one before; O(windows and panes)."""
        before = self._before
        self.whole(record)
        if before is None:
            return record
        published, gone = _compared(before.windows.published, record.windows.published)
        panes, gone_panes = _compared(before.windows.final_panes, record.windows.final_panes)
        acked, gone_acked = _compared(before.acked, record.acked)
        starts = {window[0] for window in published}
        return msgspec.structs.replace(
            record,
            windows=msgspec.structs.replace(record.windows, published=published, final_panes=panes),
            acked=acked,
            is_delta=True,
            gone_published=[window[0] for window in gone if window[0] not in starts],
            gone_final_panes=gone_panes,
            gone_acked=gone_acked,
        )

    def recorded(self) -> None:
        """The last record made is in the journal, so the next one builds upon it."""
        if self._now is not None:
            self._before = self._now


def _compared(before: list[T], now: list[T]) -> tuple[list[T], list[T]]:
    """The values only in `now`, and those only in `before`."""
    if before == now:
        return [], []
    was, has = set(before), set(now)
    return list(has - was), list(was - has)


def whole(records: Iterable[JobRecord]) -> JobRecord | None:
    """The state after these records, oldest first, without their frames; None if there are none."""
    last: JobRecord | None = None
    published: dict[int, tuple[int, int, bool]] = {}
    final_panes: set[int] = set()
    acked: set[int] = set()
    for record in records:
        last = record
        if not record.is_delta:
            published, final_panes, acked = {}, set(), set()
        for start in record.gone_published:
            published.pop(start, None)
        published.update((window[0], window) for window in record.windows.published)
        final_panes.difference_update(record.gone_final_panes)
        final_panes.update(record.windows.final_panes)
        acked.difference_update(record.gone_acked)
        acked.update(record.acked)
    if last is None:
        return None
    windows = msgspec.structs.replace(
        last.windows, published=list(published.values()), final_panes=sorted(final_panes)
    )
    return JobRecord(last.version, [], windows, sorted(acked), last.lakes, gaps=last.gaps)
