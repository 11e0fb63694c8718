"""A window read from its panes, step by step, so that other work does not wait for a large window.

A step finishes about `STEP_BYTES` of rows, hashes a chunk of rows, or encodes about `STEP_BYTES` of pane states. It takes at
most a tenth of a second, except when it merges runs of rows on disk. A small window takes one step.
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

DIGEST_ROWS = 16_384
"""A digest is that of arrays of so many rows: part of what nodes agree on, unlike the number that is encoded at a time."""
STEP_BYTES = 4 << 20
"""Of rows in panes: 30,000 groups of a few columns."""
FORGET_LOOKS = 4
"""Contents that are not fetched within this many emit intervals are dropped."""

_encoder = msgspec.msgpack.Encoder()


class Content(msgspec.Struct, frozen=True):
    """A window's contents. others: how many of the last rows are `other` (`elf.cbt.other`): 0 or 1."""

    rows: Sequence[tuple[Any, ...]]
    lines: Lines
    digest: int
    panes: tuple[PaneParts, ...]
    others: int = 0


Steps = Iterator[Content | None]
"""None between steps; finally the contents."""


def digest_steps(rows: Sequence[tuple[Any, ...]], lines: Lines) -> Iterator[int | None]:
    """64 bits of a window's finished rows, in order, and its line counters: the same on every node. O(cells)."""
    digest = blake2b(_encoder.encode(lines.named), digest_size=8)
    left = iter(rows)  # rows on disk are read once from front to back, never at random
    count = 0
    while part := list(islice(left, min(CHUNK_ROWS, DIGEST_ROWS - count % DIGEST_ROWS))):
        if count % DIGEST_ROWS == 0:
            digest.update(_array_head(min(DIGEST_ROWS, len(rows) - count)))
        digest.update(memoryview(_encoder.encode(part))[len(_array_head(len(part))) :])
        count += len(part)
        if count % DIGEST_ROWS == 0:
            yield None
    yield int.from_bytes(digest.digest())


def _array_head(length: int) -> bytes:
    """The bytes before the elements of a MessagePack array of at most `DIGEST_ROWS`."""
    return bytes((0x90 | length,)) if length < 16 else b"\xdc" + length.to_bytes(2)


class Reading:
    """One window while it is read. exact: its panes must not change meanwhile; with_panes: for a sink that stores states."""

    def __init__(self, key: tuple[str, Micros], steps: Steps, *, exact: bool, with_panes: bool) -> None:
        self.key, self.exact, self.with_panes = key, exact, with_panes
        self.is_stale = False
        """Whether its panes have changed since the reading began."""
        self.content: Content | None = None
        self.taken = 0
        """The number of steps taken."""
        self.looks = 0
        """The number of emit intervals for which the contents have waited to be fetched."""
        self._steps = steps

    def step(self) -> None:
        """Take one step, unless all are done."""
        if self.content is None:
            self.taken += 1
            self.content = next(self._steps)

    @property
    def is_under_way(self) -> bool:
        """Whether another step is useful."""
        return self.content is None and not (self.exact and self.is_stale)

    def serves(self, exact: bool, with_panes: bool) -> bool:
        """Whether its content may be published with these requirements."""
        return self.with_panes >= with_panes and not (exact and self.is_stale)
