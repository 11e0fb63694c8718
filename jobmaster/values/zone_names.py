"""Time zones by name, as Spark reads names: `Europe/Berlin`, `+02:00`, `UTC+2`, `PST`.

Regions need the system's time zone database; agents should have the same version of it, as they should have the same clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from elf.jobmaster.values.conversion import SHORT_ZONES, offset_of, region_of

_FIRST, _LAST = -62_135_596_800_000_000, 253_402_214_400_000_000
"""0001-01-01 and 9999-12-31: beyond them a zone keeps its offset, since datetime ends there."""
_EPOCH = datetime(1970, 1, 1)


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo | int | None:
    """The zone: a region, or microseconds east of UTC; None if there is none of that name."""
    name = SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    for prefix in ("UTC", "GMT", "UT"):
        if name.startswith(prefix) and name[len(prefix)] in "+-":
            name = name[len(prefix) :]
            break
    if name[:1] in ("+", "-"):
        return offset_of(name)
    found: tzinfo | None = region_of(name)
    return found


def offset_at(place: tzinfo, micros: int, *, is_local: bool) -> int:
    """Microseconds east of UTC at a time of UTC, or at a local one: the first of two such times, and as before a gap."""
    moment = _EPOCH + timedelta(microseconds=min(max(micros, _FIRST), _LAST))
    if is_local:
        offset = moment.replace(tzinfo=place).utcoffset()
    else:
        try:
            offset = moment.replace(tzinfo=UTC).astimezone(place).utcoffset()
        except OverflowError:  # the local time is beyond the years 1 to 9999
            offset = moment.replace(tzinfo=place).utcoffset()
    return (offset or timedelta(0)) // timedelta(microseconds=1)
