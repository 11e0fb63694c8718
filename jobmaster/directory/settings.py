"""Settings of a job that may change while it runs: how long windows wait and are kept, where they go, what they may cost. Pure.

A change of them is ordered like one of the query: by a control line in the job's log. Its line carries them, so workers, replicas
and each later master have them from one event time on. A window has the settings in force at the first time that it covers, and
keeps them: whenever it is published, and by whichever master.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.jobmaster.alerts.alert import Alerts
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.srt.messages.messages import Line, Micros, Schedule
from elf.srt.messages.typed import parse

Span = Annotated[int, Meta(ge=0, lt=1 << 62)]
Sinks = Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=16)]


class Settings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As in `JobSpec`, which says what each means."""

    lateness_us: Span
    keep_us: Span
    emit_us: Span = 0
    sinks: Sinks = ()
    limits: Limits = NO_LIMITS
    alerts: Alerts = ()

    def encode(self) -> bytes:
        """As a control line carries them. Without alerts, the bytes are those of versions that know none."""
        return _encoder.encode(self if self.alerts else msgspec.structs.astuple(self)[:-1])


_encoder = msgspec.msgpack.Encoder()


@lru_cache(maxsize=256)
def decode(data: bytes) -> Settings | None:
    """The settings that a line carries; None for none, and for bytes that are none: any peer may have sent them, and all nodes
    must read them alike."""
    try:
        return parse(data, Settings) if data else None
    except PeerError:
        return None


def name_of(data: bytes) -> bytes:
    """A short name of encoded settings; b"" for none."""
    return blake2b(data, digest_size=8).digest() if data else b""


def settings_at(schedule: Schedule, time_us: Micros, base: Settings) -> Settings:
    """Rule Settings*: the settings in force at that time. base: those before the first line that carries any. O(lines)."""
    found = base
    for line in schedule:
        carried = decode(line.settings)
        if carried is not None and (line.from_us <= time_us or line is schedule[0]):
            found = carried
    return found


def every(schedule: Schedule, base: Settings) -> list[Settings]:
    """All settings that windows of a schedule may have, oldest first."""
    carried = [decode(line.settings) for line in schedule]
    known = [each for each in carried if each is not None]
    return known if carried and carried[0] is not None else [base, *known]


def stretches(schedule: Schedule, base: Settings) -> list[tuple[Micros, Settings]]:
    """The times from which settings are in force, ascending, the first one before all."""
    found: list[tuple[Micros, Settings]] = []
    for line in schedule:
        carried = decode(line.settings)
        if carried is not None or not found:
            found.append((line.from_us, carried or base))
    return found or [(0, base)]


def retained_from(schedule: Schedule, base: Settings, done_us: Micros, times: int = 1) -> Micros:
    """The time before which windows may be dropped when all are final up to `done_us`: each is kept for `times` the keep of its
    own settings, and longer if an older one is. O(lines)."""
    parts = stretches(schedule, base)
    for (from_us, settings), (until_us, _) in pairwise(parts):
        before = done_us - times * settings.keep_us
        if before < until_us:
            return before if from_us == parts[0][0] else max(before, from_us)
    last_us, last = parts[-1]
    before = done_us - times * last.keep_us
    return before if len(parts) == 1 else max(before, last_us)


def sinks_of(settings: Iterable[Settings]) -> list[str]:
    """The names of all sinks in these, each once, in their order."""
    return list(dict.fromkeys(name for each in settings for name in each.sinks))


def carry(schedule: Schedule, line: Line, settings: Settings, base: Settings) -> Line:
    """A new line of a schedule, which carries settings if these are not in force just before it."""
    before = settings_at(tuple(each for each in schedule if each.from_us < line.from_us), line.from_us, base)
    return line if before == settings else msgspec.structs.replace(line, settings=settings.encode())
