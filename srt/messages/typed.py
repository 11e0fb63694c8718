"""MessagePack of typed values, decoded within the bounds that their types declare."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elf.errors import PeerError

S = TypeVar("S", bound=msgspec.Struct)
_decoders: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]] = {}


def parse(data: bytes | memoryview, kind: type[S]) -> S:
    """A value of that type. Raises only PeerError, whatever the bytes are. O(bytes)."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        value: S = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"{kind.__name__}: {error}") from error
    return value
