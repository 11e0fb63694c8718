"""`elf run` live with a query whose rows are lines: rows as the lines come, without windows, panes or a journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from msgspec.structs import replace

from elf.agent.formats.choice import FormatChoice
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.engine import (
    INTERRUPTED,
    Lost,
    Progress,
    RunOptions,
    Summary,
    put_last,
    put_ready,
    refuse_states,
    summary_of,
)
from elf.agent.run.rows import RowReader, RowShot
from elf.agent.single.live import Live
from elf.agent.single.live_source import STRINGS_MAX, Input, LiveSource
from elf.agent.work.feed import Feed, columns_for
from elf.cbt.budget import Budget
from elf.errors import UsageError
from elf.jobmaster.plan.plan import RowPlan
from elf.jobmaster.windows.result import Sink


def follow_rows(
    options: RunOptions,
    plan: RowPlan,
    source: Input,
    formats: FormatChoice,
    sinks: Sequence[Sink],
    *,
    notices: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None,
    stop: Event,
    is_over: Callable[[], bool] | None = None,
    lost: Lost | None = None,
) -> Summary:
    """Give each line's row to the sinks until `stop`, until LIMIT rows were given, or until the input `is_over`.

    Raises UsageError for a lake, and for ORDER BY, which needs the last line, on an input that is never over (None).
    """
    began = time.monotonic()
    lost = lost or Lost(lambda _: None)
    refuse_states(sinks)
    if plan.order and is_over is None:
        raise UsageError("ORDER BY needs all lines, and --follow has no last one; leave one of the two out")
    budget = Budget(options.memory_max, None, resident_bytes)
    reader = RowReader(plan, budget)
    feed = Feed(
        formats.of,
        [reader],
        columns=columns_for([reader]),
        settle=lambda: None,
        head=lambda block: source.head(block.file),
        timezone=options.timezone,
        bounds=options.bounds,
        strings_max=STRINGS_MAX,
    )
    shot = RowShot(options.job, plan, budget, reader, feed)

    def is_done() -> bool:
        put_ready(shot, sinks)
        return shot.is_done or (is_over is not None and is_over())

    def progress(lines: int) -> None:
        if on_progress is not None:
            on_progress(Progress(0, None, lines))

    live = Live(LiveSource(source, formats, feed, []), budget=budget, notices=notices, on_progress=progress)
    try:
        live.run(stop, is_done)
        if is_over is not None:
            if stop.is_set():
                lost(INTERRUPTED)
            put_last(shot, sinks, lost)
        seconds = time.monotonic() - began
        summary = summary_of(shot, formats, len(formats.chosen), seconds)
        return replace(summary, lost=tuple(lost.what), reading_s=seconds)
    finally:
        live.close()
        shot.close()
