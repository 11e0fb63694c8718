"""What the journal says of one job: whole at the start and when the journal is rewritten, and in between what changed.

A job of short windows that keeps them for an hour has thousands of states, of which a second changes a few.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.jobmaster.windows import WindowsState

Gap = tuple[int | None, int]
"""Event times [from, to] in microseconds of which a job lacks lines that its source has read; from None: all before."""


class JobRecord(msgspec.Struct, array_like=True):
    """Rows merged since the record before, and the windows as they stand.

    frames: per delta, one packed frame for each tree. acked: panes that every lake sink holds. lakes: which those are.
    is_delta: `windows.published`, `windows.final_panes` and `acked` hold only what is new or other than in the record before;
    gone_…: what was in it and is no more. gaps: always all.
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


class _Standing(msgspec.Struct):
    """All windows and panes that there are records of."""

    published: dict[int, tuple[int, int, bool]]
    final_panes: set[int]
    acked: set[int]


class Changes:
    """Makes records that say only what changed since the one before, once `recorded` was called for that."""

    def __init__(self) -> None:
        self._before: _Standing | None = None
        self._now: _Standing | None = None

    def whole(self, record: JobRecord) -> JobRecord:
        """The record as it is, for the next one to build upon."""
        published = {window[0]: window for window in record.windows.published}
        self._now = _Standing(published, set(record.windows.final_panes), set(record.acked))
        return record

    def since(self, record: JobRecord) -> JobRecord:
        """What the record, which is whole, says other than the one before; O(windows and panes)."""
        before = self._before
        self.whole(record)
        now = self._now
        if before is None or now is None:
            return record
        windows = msgspec.structs.replace(
            record.windows,
            published=[w for w in now.published.values() if before.published.get(w[0]) != w],
            final_panes=sorted(now.final_panes - before.final_panes),
        )
        return msgspec.structs.replace(
            record,
            windows=windows,
            acked=sorted(now.acked - before.acked),
            is_delta=True,
            gone_published=sorted(before.published.keys() - now.published.keys()),
            gone_final_panes=sorted(before.final_panes - now.final_panes),
            gone_acked=sorted(before.acked - now.acked),
        )

    def recorded(self) -> None:
        """The last record made is on its way to the journal: the next one comes behind it."""
        if self._now is not None:
            self._before = self._now


def whole(records: Iterable[JobRecord]) -> JobRecord | None:
    """What the records come to, oldest first, without their frames; None where there are none."""
    last: JobRecord | None = None
    standing = _Standing({}, set(), set())
    for record in records:
        last = record
        if not record.is_delta:
            standing = _Standing({}, set(), set())
        for start in record.gone_published:
            standing.published.pop(start, None)
        standing.published.update((window[0], window) for window in record.windows.published)
        standing.final_panes -= set(record.gone_final_panes)
        standing.final_panes |= set(record.windows.final_panes)
        standing.acked -= set(record.gone_acked)
        standing.acked |= set(record.acked)
    if last is None:
        return None
    windows = msgspec.structs.replace(
        last.windows,
        published=list(standing.published.values()),
        final_panes=sorted(standing.final_panes),
    )
    return JobRecord(last.version, [], windows, sorted(standing.acked), last.lakes, gaps=last.gaps)
