"""zstd frames. The size of the content of others' frames is checked before it takes memory."""

from __future__ import annotations

from threading import local

import zstandard

from elf.errors import PeerError

KEPT_BYTES = 32 << 10
"""A compressor takes more memory for longer data, 0.2 MB at this length and 1.4 MB from 1 MB on, and keeps it. One that has
compressed more is not kept: to make another takes 30 us."""


class _Contexts(local):
    """One set for each thread: costly to create, and not thread-safe. compressors: by level, and whether there is a checksum."""

    def __init__(self) -> None:
        self.compressors: dict[tuple[int, bool], zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(data: bytes, level: int, *, has_checksum: bool) -> bytes:
    """One frame that states its size. O(bytes)."""
    about = level, has_checksum
    compressor = _contexts.compressors.pop(about, None)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(
            level=level, write_checksum=has_checksum, write_content_size=True
        )
    packed = compressor.compress(data)
    if len(data) <= KEPT_BYTES:
        _contexts.compressors[about] = compressor
    return packed


def decompress(packed: bytes | memoryview, bytes_max: int, what: str) -> bytes:
    """The content of one frame that states its size. what: what it is, for errors. Raises PeerError if it is malformed, states no
    size or one above `bytes_max`, or is not the whole of `packed`. O(bytes)."""
    try:
        size = zstandard.get_frame_parameters(packed).content_size
        if size > bytes_max:
            raise PeerError(f"{what}: {size} bytes are more than the {bytes_max} allowed")
        return _contexts.decompressor.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PeerError(f"{what}: {error}") from error
