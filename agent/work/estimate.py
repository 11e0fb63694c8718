"""What a plan would cost an agent, estimated from the end of its log: groups in a pane, and bytes sent up in a second.

The plan runs over the last `SAMPLE_BYTES` of the newest file, beside the agent's jobs, and nothing of it is kept. A flush is
taken to have as many lines as the log has on average in that time: times in logs are often whole seconds, so lines cannot be
placed in flushes by their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elf.agent.files.blocks import LINE_MAX, Block, FileKey
from elf.agent.files.content import kind
from elf.agent.files.listing import Listing
from elf.agent.formats.batch import Batch
from elf.agent.formats.choice import FormatChoice, head_of
from elf.agent.formats.own_keys import asked_types
from elf.agent.work.feed import without_untimed
from elf.agent.work.job_rows import NEVER_US, Before, JobRows
from elf.agent.work.line_parsing import Parsing
from elf.agent.work.parsers import ParseState, select
from elf.errors import SourceError
from elf.srt.messages.messages import Bundle, Line, Micros
from elf.srt.messages.partial import Part
from elf.srt.messages.sizes import size_of

SAMPLE_BYTES = 1 << 20
"""10,000 lines: some 20 ms of parsing and grouping."""
FLUSHES_MAX = 20
"""Flushes whose size is measured; their mean counts."""
STRINGS_BYTES = 8 << 20


class Estimated(NamedTuple):
    """read_bytes, lines: of the sample; span_us: between its first and last event times. groups: the most in one pane of it.
    sent_bytes: in a second."""

    read_bytes: int
    lines: int
    span_us: Micros
    groups: int
    sent_bytes: int


def estimate(
    patterns: Sequence[str],
    format: str,
    timezone: str,
    agent: str,
    plan: bytes,
    flush_us: Micros,
    now_us: Micros,
) -> Estimated:
    """Run an encoded plan over the end of the newest file. agent: its name, for the column `agent`.

    Raises SourceError if no line can be read, PeerError for bytes that are no plan, OSError.
    """
    path, data = _sample(patterns)
    rows = JobRows((Line(1, "", NEVER_US, plan),), NEVER_US)
    batch = _parsed(path, data, format, Parsing(timezone, agent, LINE_MAX, STRINGS_BYTES), rows, now_us)
    if not batch.rows:
        raise SourceError(f"{path}: none of its last lines can be parsed")
    times = batch.columns["time"].values
    span_us = int(times.max() - times.min())
    groups = max((most_in_a_pane(part.rows[0].pane) for part in _cut(rows, batch).values()), default=0)
    per_flush = batch.rows * flush_us / max(span_us, 1_000_000)
    return Estimated(len(data), batch.rows, span_us, groups, _sent_bytes(rows, batch, per_flush, flush_us))


def most_in_a_pane(panes: NDArray[np.int64]) -> int:
    """The most rows of one pane; panes: of each row, ascending. O(rows)."""
    if not len(panes) or panes[0] == panes[-1]:
        return len(panes)
    bounds = np.flatnonzero(np.diff(panes)) + 1
    return int(np.diff(np.concatenate(([0], bounds, [len(panes)]))).max())


def _sample(patterns: Sequence[str]) -> tuple[str, bytes]:
    """The newest file, and its last whole lines. Raises SourceError, OSError."""
    found = [
        one for one in Listing(patterns, lambda notice: None).look(()) if one.wanted and one.status.st_size
    ]
    for one in sorted(found, key=lambda one: one.status.st_mtime_ns, reverse=True):
        with Path(one.path).open("rb") as file:
            if kind(file.read(8)) != "plain":
                continue
            start = max(0, one.status.st_size - SAMPLE_BYTES)
            file.seek(start)
            data = file.read(SAMPLE_BYTES)
        begin = data.find(b"\n") + 1 if start else 0
        return one.path, data[begin : data.rfind(b"\n") + 1]
    raise SourceError("its log has no lines yet")


def _parsed(path: str, data: bytes, format: str, parsing: Parsing, rows: JobRows, now_us: Micros) -> Batch:
    formats = FormatChoice(
        format, lambda notice: None, lenient=True, head=lambda block: head_of(Path(block.path))
    )
    block = Block(FileKey(0, 0), path, 0, len(data), data, 0, True, True)
    chosen = formats.of(block)
    types = asked_types((column.name, column.type) for column in rows.columns)
    parsing.ask(frozenset(types) | {"time"}, types)
    return without_untimed(parsing.parse(block.lines, chosen, ParseState(chosen), now_us, lambda: None))


def _cut(rows: JobRows, batch: Batch) -> dict[str, Part]:
    rows.add(batch, Before(), 0)
    return rows.cut()


def _sent_bytes(rows: JobRows, batch: Batch, per_flush: float, flush_us: Micros) -> int:
    """Bytes of bundles in a second, if a flush has so many lines."""
    lines, sizes = max(1, round(per_flush)), []
    for number in range(min(FLUSHES_MAX, batch.rows // lines)):
        mask = np.zeros(batch.rows, dtype=np.bool_)
        mask[batch.rows - (number + 1) * lines : batch.rows - number * lines] = True
        sizes.append(_bundle_bytes(_cut(rows, select(batch, mask))))
    idle, share = _bundle_bytes({}), min(1.0, per_flush)
    return round((share * sum(sizes) / max(len(sizes), 1) + (1 - share) * idle) * 1e6 / flush_us)


def _bundle_bytes(parts: dict[str, Part]) -> int:
    return size_of(Bundle(b"", (b"", 0, 1), 1, {}, 0, {}, parts))
