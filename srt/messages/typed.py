"""MessagePack of typed values, decoded within the bounds that their types declare."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import msgspec

from elf.errors import PeerError

S = TypeVar("S", bound=msgspec.Struct)
_decoder = cache(msgspec.msgpack.Decoder)


def parse(data: bytes | memoryview, kind: type[S]) -> S:
    """A value of that type. Raises only PeerError, whatever the bytes are. O(bytes)."""
    try:
        value: S = _decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{kind.__name__}: {error}") from error
    return value
