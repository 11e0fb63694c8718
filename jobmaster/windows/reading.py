"""A window read from its panes, step by step, so that nothing else waits for a large one.

A step is some `STEP_BYTES` of rows that are finished, a chunk of them that is hashed, or as much of a pane's states: a tenth of a
second at most, but for the merging of runs of rows that are on disk. A small window takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from elf.jobmaster.values.columns import CHUNK_ROWS
from elf.jobmaster.windows.result import Lines
from elf.srt.messages.messages import Micros
from elf.srt.messages.results import PaneParts

STEP_BYTES = 4 << 20
"""Of rows as they lie in panes: 30,000 groups of a few columns."""
FORGET_LOOKS = 4
"""What was read and nobody asked for is let go of."""

_encoder = msgspec.msgpack.Encoder()


class Content(msgspec.Struct, frozen=True):
    """What a window holds."""

    rows: Sequence[tuple[Any, ...]]
    lines: Lines
    digest: int
    panes: tuple[PaneParts, ...]


Steps = Iterator[Content | None]
"""None between steps; at last what was read."""


def digest_steps(rows: Sequence[tuple[Any, ...]], lines: Lines) -> Iterator[int | None]:
    """64 bits of a window's finished rows, in order, and its line counters: the same on every node. O(cells)."""
    digest = blake2b(_encoder.encode(lines), digest_size=8)
    left = iter(rows)  # rows on disk are read once from front to back, never from a place
    while chunk := list(islice(left, CHUNK_ROWS)):
        digest.update(_encoder.encode(chunk))
        if len(chunk) == CHUNK_ROWS:
            yield None
    yield int.from_bytes(digest.digest())


class Reading:
    """One window on its way out of its panes. exact: nothing may have changed meanwhile; with_panes: for a sink of states."""

    def __init__(self, key: tuple[str, Micros], steps: Steps, *, exact: bool, with_panes: bool) -> None:
        self.key, self.exact, self.with_panes = key, exact, with_panes
        self.is_stale = False
        """Its panes have changed since."""
        self.content: Content | None = None
        self.taken = 0
        """Steps."""
        self.looks = 0
        self._steps = steps

    def step(self) -> None:
        """One of them, unless all are done."""
        if self.content is None:
            self.taken += 1
            self.content = next(self._steps)

    @property
    def is_under_way(self) -> bool:
        """Whether another step is of use."""
        return self.content is None and not (self.exact and self.is_stale)

    def serves(self, exact: bool, with_panes: bool) -> bool:
        """Whether what it reads may be told so."""
        return self.with_panes >= with_panes and not (exact and self.is_stale)
