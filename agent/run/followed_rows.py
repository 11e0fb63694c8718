"""`elf run --follow` with a query whose rows are lines: each row as its line comes, without windows and so without a node."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from threading import Event

from msgspec.structs import replace

from elf.agent.files.source import Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.engine import RunOptions, Summary, new_feed, put_ready, summary_of
from elf.agent.run.rows import RowReader, RowShot
from elf.agent.work.unparsed import Unparsed
from elf.cbt.budget import Budget
from elf.errors import UsageError
from elf.jobmaster.plan.plan import RowPlan
from elf.jobmaster.windows.result import Sink

WAKE_S = 0.1
"""Lines that arrive within this time are read together: ten small batches a second are cheap."""


def follow_rows(
    options: RunOptions,
    plan: RowPlan,
    source: Source,
    formats: FormatChoice,
    sinks: Sequence[Sink],
    *,
    notices: Callable[[str], None],
    stop: Event,
) -> Summary:
    """Give each line's row to the sinks until `stop`, or until LIMIT rows were given. Raises UsageError for ORDER BY, which needs
    the last line."""
    began = time.monotonic()
    if plan.order:
        raise UsageError("ORDER BY needs all lines, and --follow has no last one; leave one of the two out")
    for note in formats.notes(column.name for column in plan.columns):
        notices(note)
    budget = Budget(options.memory_max, None, resident_bytes)
    reader = RowReader(plan, budget)
    shot = RowShot(
        options.job,
        plan,
        budget,
        reader,
        new_feed(options, formats, reader, head=lambda block: source.head(block.file)),
    )
    unparsed, path = Unparsed(source.name, formats.spec), ""
    try:
        while not (stop.is_set() or shot.is_done):
            now_s = time.monotonic()
            source.scan(now_s)
            while (block := source.read(now_s)) is not None:
                shot.take(block)
                put_ready(shot, sinks)
                path = block.path
                if block.last:
                    shot.feed.files.pop(block.file, None)
                    formats.forget(block.file)
                if stop.is_set() or shot.is_done:
                    break
            notice = unparsed.look(int(now_s * 1e6), shot.feed.totals, path)
            found = [*source.notices, *formats.take_found(), *([] if notice is None else [notice])]
            source.notices.clear()
            for text in found:
                notices(text)
            if not shot.is_done:
                _wait(source, stop)
        seconds = time.monotonic() - began
        return replace(summary_of(shot, formats, len(formats.chosen), seconds), reading_s=seconds)
    finally:
        shot.close()
        for sink in sinks:
            sink.close()


def _wait(source: Source, stop: Event) -> None:
    """Wait first while lines gather, then for events: without any, for as long as the source may go without a scan."""
    if stop.wait(WAKE_S):
        return
    if (descriptor := source.fileno()) >= 0:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(source.poll_s * 1000)
    else:
        stop.wait(source.poll_s)
    source.wake()
