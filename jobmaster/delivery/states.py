"""A pane's state on the way from the master to the sink that stores it: packed values, without the parts that the sink derives
from the job's spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, overload

from msgspec.structs import replace

from elf.cbt.zstd import decompress
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.recipe import recipe
from elf.jobmaster.windows.result import Lines, PaneState, StateColumn, StateValues
from elf.jobmaster.windows.state import KeptValues, state_columns
from elf.srt.messages.messages import Micros
from elf.srt.messages.results import WITHDRAWN, PaneParts, Put

PART_BYTES_MAX = 64 << 20
"""Bytes of an unpacked part: 16,384 groups and members of 4 KiB."""


HELD_BYTES_MAX = 256 << 10
"""A pane's packed values up to this size are copied out of the budget at once. Those of a larger pane stay under the budget, on
disk if memory is short, until they are sent."""


def as_parts(state: PaneState) -> PaneParts:
    """A pane's state as parts of a Put. O(values); O(parts) for a large pane. Raises OSError if values cannot be read back."""
    values = state.values
    assert isinstance(values, KeptValues)
    parts: Sequence[tuple[bytes, bool]] = KeptParts(values)
    if sum(values.packed_sizes) <= HELD_BYTES_MAX:
        parts = tuple(parts)
    pane = PaneParts(state.start, state.end, state.lines.counts, (), state.lines.not_converted)
    return replace(pane, parts=parts)


class KeptParts(Sequence[tuple[bytes, bool]]):
    """Packed parts of a pane, under its master's budget. Only the master's thread reads them. sizes: in bytes."""

    def __init__(self, values: KeptValues) -> None:
        self._values, self.sizes = values, values.packed_sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> tuple[bytes, bool]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[bytes, bool]]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._values.packed(i) for i in range(*at.indices(len(self)))]
        return self._values.packed(range(len(self))[at])


class PaneReader:
    """Restores the pane states of a job version from a master's Puts. Raises PeerError for an invalid plan."""

    def __init__(self, job: str, version: str, plan: bytes) -> None:
        decoded = decode(plan)
        self._job, self._version, self._plan = job, version, plan
        self._columns: tuple[StateColumn, ...] = tuple(state_columns(decoded))
        self._recipe = recipe(decoded)
        self._window = decoded.window

    def _empty(self, start: Micros) -> Iterator[PaneParts]:
        """Empty states of the panes that a lake stored with the window that begins at `start`."""
        if self._window is not None:
            stop, pane_us = start + self._window.size_us, self._window.pane_us
            for pane in range(stop - self._window.slide_us, stop, pane_us):
                yield PaneParts(pane, pane + pane_us, (0, 0, 0, 0), ())

    def states(self, put: Put) -> list[PaneState]:
        """The states of a window's panes, with its revision. Their values are unpacked on demand. O(panes)."""
        epoch, node, n = put.revision
        return [
            PaneState(
                self._job,
                self._version,
                pane.start,
                pane.end,
                put.status,
                (epoch, int.from_bytes(node), n),
                Lines(*pane.lines, pane.not_converted),
                self._columns,
                PackedValues(pane.parts, len(self._columns)),
                self._plan,
                agents_reporting=put.agents_reporting,
                agents_expected=put.agents_expected,
                recipe=self._recipe,
            )
            for pane in (self._empty(put.start) if put.status == WITHDRAWN else put.panes)
        ]


class PackedValues(StateValues):
    """A pane's values as the sink received them."""

    def __init__(self, parts: Sequence[tuple[bytes, bool]], width: int) -> None:
        self._parts, self._width = parts, width

    @property
    def raw_bytes(self) -> int:
        """Packed size, which is the memory that a sink counts."""
        sizes: Sequence[int] | None = getattr(self._parts, "sizes", None)
        return sum(len(part) for part, _ in self._parts) if sizes is None else sum(sizes)

    @property
    def digest(self) -> bytes:
        digest = blake2b(digest_size=8)
        for part, more in self.parts():
            digest.update(len(part).to_bytes(8) + bytes([more]) + part)
        return digest.digest()

    def parts(self) -> Iterator[tuple[bytes, bool]]:
        """The unpacked parts. Raises PeerError for a part that cannot be unpacked, or is too large."""
        for part, more in self._parts:
            yield decompress(part, PART_BYTES_MAX, "Put"), more

    def __len__(self) -> int:
        return self._width
