"""zstd frames of others: the size of their content is checked before it takes memory."""

from __future__ import annotations

from threading import local

import zstandard

from elf.errors import PeerError


class _Contexts(local):
    """One for each thread: costly to create, and not thread-safe."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


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
