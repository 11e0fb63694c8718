"""Rows of line counters: in each pane one row without a key, and one for each column of which values did not convert.

Such a row has the column's name as its key, in UTF-8, and their number as READ; the row without a key has so many less. So the
counters of a pane are the sums over all of its rows, whether a reader knows of columns or not, and all rows merge by sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from elf.cbt._kernel import make_rows
from elf.cbt.rows import Rows
from elf.jobmaster.windows.lanes import LINE_OPS
from elf.jobmaster.windows.result import Lines


def lost_rows(lost: Mapping[tuple[str, int], int]) -> Rows:
    """The rows of values that did not convert: how many, by column and pane. O(n log n)."""
    names = [name.encode() for name, _ in lost]
    panes = np.array([pane for _, pane in lost], dtype=np.int64)
    lanes = np.zeros((len(LINE_OPS), 2 * len(lost)), dtype=np.int64)
    counts = np.array(list(lost.values()), dtype=np.int64)
    lanes[0] = np.concatenate([counts, -counts])
    lengths = np.array([*map(len, names), *[0] * len(names)], dtype=np.uint64)
    keys = np.frombuffer(b"".join(names), dtype=np.uint8)
    return make_rows(np.tile(panes, 2), keys, np.cumsum(lengths, dtype=np.uint64), None, lanes, LINE_OPS)


def lines_of(counters: Rows) -> Lines:
    """The sums of all line counters."""
    lost: Counter[str] = Counter()
    if len(counters.keys):
        for row in np.flatnonzero(counters.split).tolist():
            lost[counters.key(row).decode(errors="replace")] += int(counters.lanes[0, row])
    read, parsed, rejected, late = counters.lanes.sum(axis=1).tolist()
    return Lines(read, parsed, rejected, late, tuple(sorted(lost.items())))


def lines_within(counters: Rows, start: int, stop: int) -> Lines:
    """Those of the panes in [start, stop)."""
    low, high = np.searchsorted(counters.pane, [start, stop]).tolist()
    return lines_of(counters.slice(low, high))
