"""The year of a syslog time like `May 17 10:05:00`, which has none, and whose zone is the source's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.times import EPOCH, QUARTER_SECONDS, zone_offsets
from elf.jobmaster.values.vector import Vector

YEARLESS = 4
"""The year in which the unwrapper writes a time without one; no log is of it."""
_MICROSECOND = timedelta(microseconds=1)
_LIMIT_US = (datetime(YEARLESS + 2, 1, 1) - EPOCH) // _MICROSECOND


def with_years(log_time: Vector, time: Vector, timezone: str) -> Vector:
    """`log_time`, each value without a year in the year that brings it nearest to the line's own time. O(n log n)."""
    at = np.flatnonzero(log_time.is_valid() & (log_time.values < _LIMIT_US))
    if not len(at):
        return log_time
    near = time.values[at].astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    pairs, which = np.unique(np.stack([log_time.values[at], near]), axis=1, return_inverse=True)
    offset = zone_offsets(timezone)
    found = np.array(
        [[_in_year(value, year + more, offset) for more in (-1, 0, 1)] for value, year in pairs.T.tolist()],
        dtype=np.int64,
    )
    mine = found[which.reshape(-1)]
    nearest = np.abs(mine - time.values[at][:, None]).argmin(axis=1)
    values: NDArray[np.int64] = log_time.values.copy()
    values[at] = mine[np.arange(len(at)), nearest]
    return Vector(log_time.type, values, log_time.valid)


def _in_year(value: int, year: int, offset: Callable[[int], int]) -> int:
    """The time in UTC of a local time that is given in the year `YEARLESS`; February 29 is March 1 in other years."""
    local = EPOCH + timedelta(microseconds=value)
    try:
        local = local.replace(year=max(1, min(year, 9999)))
    except ValueError:
        local = local.replace(year=year, month=3, day=1)
    micros = (local - EPOCH) // _MICROSECOND
    return int(micros - offset(micros // (QUARTER_SECONDS * 1_000_000)))
