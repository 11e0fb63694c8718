"""Rows of a bundle as frames, one for each tree, and back, within bounds. The frames contain the operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from elf.cbt.frame import pack, unpack
from elf.cbt.rows import Op
from elf.errors import PeerError
from elf.srt.messages.messages import ShortText
from elf.srt.messages.partial import Part

ROWS_BYTES_MAX = 64 << 20
"""Bound of one bundle's rows when unpacked: eight times `Parameters.kept_bytes_max`, since rows are smaller on the wire."""
TREES_MAX = 1_026
"""Trees of one version: groups, line counters, and at most two families for each of the plan's aggregates."""

Frames = Annotated[tuple[bytes, ...], Meta(max_length=TREES_MAX)]
"""A part's trees."""
WireParts = Annotated[tuple[tuple[ShortText, Frames], ...], Meta(max_length=64)]
"""(version, its trees)."""


def pack_parts(parts: Mapping[str, Part]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    """O(bytes)."""
    return tuple(
        (version, tuple(pack(rows, ops) for rows, ops in zip(part.rows, part.ops, strict=True)))
        for version, part in parts.items()
    )


def unpack_parts(parts: Sequence[tuple[str, Sequence[bytes]]]) -> dict[str, Part]:
    """Raises PeerError: not a frame, too many bytes, or a version twice. O(bytes)."""
    left = ROWS_BYTES_MAX
    found: dict[str, Part] = {}
    for version, frames in parts:
        if version in found:
            raise PeerError(f"bundle: version {version!r} twice")
        trees = []
        for frame in frames:
            rows, ops = unpack(frame, left)
            left -= rows.nbytes
            trees.append((rows, ops))
        found[version] = Part(_shared_all(tuple(ops for _, ops in trees)), tuple(rows for rows, _ in trees))
    return found


@lru_cache(maxsize=256)
def _shared_all(ops: tuple[tuple[Op, ...], ...]) -> tuple[tuple[Op, ...], ...]:
    """One tuple, shared by all bundles with these operations."""
    return ops
