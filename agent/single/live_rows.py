"""`elf run --follow` with a query whose rows are lines: rows as the lines come, without windows, panes or a journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event

from elf.agent.files.source import Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.engine import RunOptions, Summary, put_ready, refuse_states, summary_of
from elf.agent.run.rows import RowReader, RowShot
from elf.agent.single.live import Live
from elf.agent.single.live_source import LiveSource
from elf.agent.work.feed import Feed, columns_for
from elf.cbt.budget import Budget
from elf.errors import UsageError
from elf.jobmaster.plan.plan import RowPlan
from elf.jobmaster.windows.result import Sink


def follow_rows(
    options: RunOptions,
    plan: RowPlan,
    source: Source,
    formats: FormatChoice,
    sinks: Sequence[Sink],
    *,
    notices: Callable[[str], None],
    on_lines: Callable[[int], None],
    stop: Event,
) -> Summary:
    """Give each line's row to the sinks until `stop`, or until LIMIT rows were given. Raises UsageError for ORDER BY, which needs
    the last line, and for a lake."""
    began = time.monotonic()
    refuse_states(sinks)
    if plan.order:
        raise UsageError("ORDER BY needs all lines, and --follow has no last one; leave one of the two out")
    budget = Budget(options.memory_max, None, resident_bytes)
    reader = RowReader(plan, budget)
    feed = Feed(
        formats.of,
        [reader],
        columns=columns_for([reader], need_time=True),
        settle=lambda: None,
        head=lambda block: source.head(block.file),
        timezone=options.timezone,
        bounds=options.bounds,
    )
    shot = RowShot(options.job, plan, budget, reader, feed)

    def is_done() -> bool:
        put_ready(shot, sinks)
        return shot.is_done

    live = Live(
        [LiveSource(source, formats, feed, [])],
        budget=budget,
        epoch=0,
        journal=None,
        notices=notices,
        on_progress=on_lines,
    )
    try:
        live.run(stop, is_done)
        return summary_of(shot, formats, len(formats.chosen), time.monotonic() - began)
    finally:
        live.close()
