"""When the next window of a job closes, for workers that cut only then. Pure."""

from __future__ import annotations

from elf.jobmaster.directory.settings import Settings, settings_at
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, plan_of
from elf.srt.messages.messages import Micros, Schedule


def next_close(schedule: Schedule, base: Settings, watermark_us: Micros) -> Micros:
    """The lowest watermark above `watermark_us` that closes a window of the schedule: its end, or that of its version, plus its
    lateness; `AFTER_ALL` if no version has windows. base: see `settings_at`. O(lines squared)."""
    closes = [AFTER_ALL]
    stops = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
    for line, stop_us in zip(schedule, stops, strict=True):
        shape = Shape.of(plan_of(line.plan))
        lateness_us = settings_at(schedule, line.from_us, base).lateness_us
        if not shape.pane_us or watermark_us >= stop_us + lateness_us:
            continue
        since = max(watermark_us - lateness_us, line.from_us)
        end = since + shape.slide_us - (since - shape.size_us) % shape.slide_us
        closes.append(min(end, stop_us) + lateness_us)
    return min(closes)
