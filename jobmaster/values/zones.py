"""The clocks of a time zone, on whole arrays: from UTC to local time, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US, LAST_US = -70 * 366 * DAY_US, 130 * 365 * DAY_US
"""Offsets are known between these times, about 1900 and 2100; before and after they are those of these times."""
MARGIN_US = 400 * DAY_US


class Zone:
    """A named zone. Raises KeyError, ValueError or OSError if there is none of that name."""

    def __init__(self, name: str) -> None:
        self._info = ZoneInfo(name)
        self._low = self._high = 0
        self._changes = np.empty(0, dtype=np.int64)
        self._offsets = np.array([self._offset_us(0)], dtype=np.int64)

    def local(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Microseconds UTC as microseconds of the local calendar. O(n log changes)."""
        if not len(times):
            return times
        self._know(int(times.min()), int(times.max()))
        return times + self._offsets[np.searchsorted(self._changes, times, side="right")]

    def local_of(self, time_us: int) -> int:
        return int(self.local(np.array([time_us]))[0])

    def offsets(self, low: int, high: int) -> list[tuple[int, int]]:
        """(since, microseconds east of UTC) of each offset between these times, in order. The first one holds at `low`."""
        self._know(low, high)
        first, last = np.searchsorted(self._changes, (low, high), side="right")
        since = [low, *self._changes[first:last].tolist()]
        return list(zip(since, self._offsets[first : last + 1].tolist(), strict=True))

    def utc_of(self, local_us: int) -> int:
        """The first moment at which the local calendar has reached this time: also of a time that is skipped."""
        near = self.local(np.array([local_us - DAY_US, local_us + DAY_US]))
        offsets = (int(near[0]) - local_us + DAY_US, int(near[1]) - local_us - DAY_US)
        fits = [local_us - offset for offset in offsets if self.local_of(local_us - offset) == local_us]
        if fits:
            return min(fits)
        return int(self._changes[np.searchsorted(self._changes, local_us - max(offsets))])

    def utc(self, locals_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """`utc_of` each; few of them are distinct."""
        distinct, at = np.unique(locals_us, return_inverse=True)
        return np.array([self.utc_of(each) for each in distinct.tolist()], dtype=np.int64)[at]

    def _know(self, low: int, high: int) -> None:
        low, high = max(low, FIRST_US), min(high, LAST_US)
        if self._low <= low and high <= self._high:
            return
        self._low = min(self._low, low - MARGIN_US) // DAY_US * DAY_US
        self._high = max(self._high, high + MARGIN_US)
        changes, offsets = list[int](), [self._offset_us(self._low)]
        for day in range(self._low, self._high, DAY_US):
            after = self._offset_us(day + DAY_US)
            if after != offsets[-1]:
                changes.append(self._change(day, day + DAY_US))
                offsets.append(after)
        self._changes, self._offsets = np.array(changes, dtype=np.int64), np.array(offsets, dtype=np.int64)

    def _change(self, low: int, high: int) -> int:
        """The second between these times at which the offset changes."""
        before = self._offset_us(low)
        while high - low > SECOND_US:
            middle = (low + high) // 2 // SECOND_US * SECOND_US
            low, high = (middle, high) if self._offset_us(middle) == before else (low, middle)
        return high

    def _offset_us(self, time_us: int) -> int:
        offset = (EPOCH + timedelta(microseconds=time_us)).astimezone(self._info).utcoffset()
        assert offset is not None
        return int(offset / timedelta(microseconds=1))


zone_named = lru_cache(maxsize=8)(Zone)
