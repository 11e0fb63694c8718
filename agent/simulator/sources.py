"""Virtual access logs: a web server that writes lines whether or not an agent reads them, and rotates its files.

Times of writing are the world's, event times are the server's clock, which may be skewed; a share of the lines is late (long
requests are logged when they end). Offsets are bytes: every line has `LINE_BYTES` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.simulator.rows import RowMaker
from elf.srt.effects import Read
from elf.srt.events import Cut
from elf.srt.ids import NodeId
from elf.srt.messages import CLOSED, FIRST, Line, Schedule, Slot, Span
from elf.srt.partial import Part

LINE_BYTES = 100
LINES_PER_CUT_MAX = 20_000

Ints = NDArray[np.int64]
QUIET_US = 1_000_000
"""A source that has not seen a line for so long is idle: it promises the time of the clock, less a grace."""
IDLE_GRACE_US = 3_000_000
RowMakers = Callable[[Line], RowMaker]


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is used. Per second and in microseconds."""

    lines_per_s: float = 20.0
    keys: int = 20
    late_share: float = 0.05
    late_us_max: int = 2_000_000
    rotate_us: int = 0  # 0: never
    linger_us: int = 200_000  # the writer still appends to the renamed file for so long
    close_after_us: int = 600_000  # grace after which a renamed file is known to be at its end


class VirtualFile(msgspec.Struct):
    """One log file: lines in the order in which they were written."""

    identity: int
    created_us: int
    closed_us: int | None  # when its end is known
    written_us: Ints
    event_us: Ints
    highest_us: Ints  # running maximum of event_us
    key: Ints
    bytes: Ints

    def lines_at(self, now_us: int) -> int:
        return int(self.written_us.searchsorted(now_us, "right"))

    def low(self, event_us: int) -> int:
        """The first line at which the running maximum of event time has reached `event_us`."""
        return int(np.searchsorted(self.highest_us, event_us, side="left"))


class VirtualSource:
    """All that one web server ever logs, made at once from the seed."""

    def __init__(
        self, worker: NodeId, seed: int, traffic: Traffic, start_us: int, stop_us: int, skew_us: int = 0
    ) -> None:
        self.worker = worker
        rng = np.random.default_rng(
            int.from_bytes(blake2b(worker + seed.to_bytes(8), digest_size=8).digest())
        )
        count = int(rng.poisson(traffic.lines_per_s * (stop_us - start_us) / 1e6))
        written = np.sort(rng.integers(start_us, stop_us, count))
        event = written + skew_us
        late = rng.random(count) < traffic.late_share
        event[late] -= rng.integers(0, traffic.late_us_max + 1, int(late.sum()))
        # A few keys make most of the lines: the square of a uniform number.
        key = (rng.random(count) ** 2 * traffic.keys).astype(np.int64)
        sizes = rng.integers(0, 100_000, count)
        self.files = self._split(rng, traffic, start_us, stop_us, (written, event, key, sizes))

    def _split(
        self,
        rng: np.random.Generator,
        traffic: Traffic,
        start_us: int,
        stop_us: int,
        lines: tuple[Ints, Ints, Ints, Ints],
    ) -> list[VirtualFile]:
        written = lines[0]
        if not traffic.rotate_us:
            return [self._file(0, start_us, None, lines)]
        offset = int(rng.integers(traffic.rotate_us // 2, traffic.rotate_us))
        cuts = list(range(start_us + offset, stop_us, traffic.rotate_us))
        number = np.searchsorted(cuts, written, side="right")
        lingers = (number > 0) & (rng.random(len(written)) < 0.3)
        since = written - np.array([start_us, *cuts])[number]
        number = np.where(lingers & (since < traffic.linger_us), number - 1, number)
        files = []
        for n, created in enumerate([start_us, *cuts]):
            closed = cuts[n] + traffic.close_after_us if n < len(cuts) else None
            mine = number == n
            files.append(self._file(n, created, closed, tuple(column[mine] for column in lines)))
        return files

    def _file(
        self, n: int, created: int, closed: int | None, lines: tuple[Ints, Ints, Ints, Ints]
    ) -> VirtualFile:
        identity = int.from_bytes(blake2b(self.worker + bytes([n]), digest_size=8).digest()) >> 1 or 1
        written, event, key, sizes = lines
        highest = np.maximum.accumulate(event) if len(event) else event
        return VirtualFile(identity, created, closed, written, event, highest, key, sizes)

    def read(self, read: Read, now_us: int, clock_us: int, schedule: Schedule, rows: RowMakers) -> Cut:
        """Answer a `Read` at the world's time `now_us`, when the server's clock shows `clock_us`."""
        spans: dict[Slot, Span] = {}
        taken: list[tuple[Ints, Ints, Ints]] = []
        caught_up = True
        watermark = 0
        quiet = True
        left = LINES_PER_CUT_MAX
        for file in self.files:
            if file.created_us > now_us:
                break
            slot = (self.worker, file.identity, read.lane)
            if read.lane and slot not in read.ends:
                continue
            at = read.positions.get(slot)
            if at is not None and at.closed:
                continue
            first = file.low(read.since_us) if at is None else at.offset // LINE_BYTES
            written = file.lines_at(now_us)
            end = written if not read.lane else read.ends[slot] // LINE_BYTES
            first = min(first, end)
            stop = min(end, first + left)
            left -= stop - first
            caught_up &= stop == end
            flags = FIRST if at is None else 0
            if stop == end and (read.lane or (file.closed_us is not None and file.closed_us <= now_us)):
                flags |= CLOSED
            start = first * LINE_BYTES
            spans[slot] = start, start if stop == first else stop * LINE_BYTES, flags
            if stop:
                watermark = max(watermark, int(file.highest_us[stop - 1]))
                quiet &= now_us - int(file.written_us[stop - 1]) > QUIET_US
            if stop > first:
                taken.append((file.event_us[first:stop], file.key[first:stop], file.bytes[first:stop]))
            if not left:
                break
        if caught_up and quiet and not read.lane:
            watermark = max(watermark, clock_us - IDLE_GRACE_US)
        return Cut(
            read.job,
            read.request,
            read.schedule,
            spans,
            watermark,
            _parts(taken, schedule, read.since_us, rows),
            caught_up,
        )

    def lines_between(self, from_us: int, to_us: int, written_until_us: int) -> tuple[Ints, Ints, Ints]:
        """(event times, keys, bytes) of all lines of that event time written by then: what the oracle counts."""
        parts = []
        for file in self.files:
            mine = (
                (file.event_us >= from_us) & (file.event_us < to_us) & (file.written_us <= written_until_us)
            )
            parts.append((file.event_us[mine], file.key[mine], file.bytes[mine]))
        event, key, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return event, key, sizes


def _parts(
    taken: Sequence[tuple[Ints, Ints, Ints]], schedule: Schedule, since_us: int, rows: RowMakers
) -> dict[str, Part]:
    """Rows of each version of the schedule: a line belongs to the version in force at its event time."""
    if not taken:
        return {}
    event, key, sizes = (
        taken[0]
        if len(taken) == 1
        else tuple(np.concatenate(columns) for columns in zip(*taken, strict=True))
    )
    parts = {}
    for number, line in enumerate(schedule):
        low = max(line.from_us, since_us)
        mine = event >= low
        if number + 1 < len(schedule):
            mine &= event < schedule[number + 1].from_us
        count = np.count_nonzero(mine)
        if count == len(event):
            parts[line.version] = rows(line)(event, key, sizes)
        elif count:
            parts[line.version] = rows(line)(event[mine], key[mine], sizes[mine])
    return parts
