"""A link's encoded messages as pieces of bounded size, and pieces as messages again.

    stream = (length(4) message)*        little-endian; `srt/codec/wire.py` defines a message
    piece  = any stretch of the stream, at most `frame_bytes_max` long

A posted message is encoded once and appended to the stream, in the order of delivery; the link may send its pieces several times.
A large message takes several consecutive pieces of its link. The bytes that the receiver holds are bounded by the announced
length, which the receiver checks against the bound of the message's kind as soon as both have arrived.

When `take` raises PeerError, hang up (`Link.hang_up`) and drop the codec. The neighbour treats that as a restart, makes a new
codec, and sends all bundles that it keeps again; the first section of each roster is fresh. Both sides do the same at every
restart that a link reports.
"""

from __future__ import annotations

import struct

from elf.errors import PeerError
from elf.srt.codec.wire import HEAD_BYTES, Decoder, Encoder, LogForm, kind_of
from elf.srt.messages.messages import Message, Piece

_LENGTH = struct.Struct("<I")


class Stream:
    """Turns received pieces into messages: pass it the stream in order, in stretches of any length."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._length: int | None = None

    def step(self, piece: bytes | memoryview) -> list[bytes | memoryview]:
        """The messages that end within this piece; a message that lies wholly in it is a view of it. Raises PeerError for a
        length beyond the bounds of its kind. O(bytes)."""
        done: list[bytes | memoryview] = []
        self._held += piece if self._held else self._whole(memoryview(piece), done)
        while self._is_whole():
            assert self._length is not None
            stop = _LENGTH.size + self._length
            done.append(bytes(memoryview(self._held)[_LENGTH.size : stop]))
            del self._held[:stop]
            self._length = None
        return done

    def _whole(self, piece: memoryview, done: list[bytes | memoryview]) -> memoryview:
        """Append the messages that lie wholly in a piece to `done`; return the rest of the piece."""
        at, end = 0, len(piece)
        while end - at >= _LENGTH.size + HEAD_BYTES:
            length = _length_of(piece[at:])
            start, at = at + _LENGTH.size, at + _LENGTH.size + length
            if at > end:
                return piece[start - _LENGTH.size :]
            done.append(piece[start:at])
        return piece[at:]

    def _is_whole(self) -> bool:
        """Whether the next message is complete. Reads and checks its length as soon as that has arrived."""
        held = len(self._held) - _LENGTH.size
        if self._length is None:
            if held < HEAD_BYTES:
                return False
            self._length = _length_of(self._held)
        return held >= self._length

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._held)


def _length_of(held: bytearray | memoryview) -> int:
    """Length of the message whose length field and head begin `held`. Raises PeerError."""
    length: int = _LENGTH.unpack_from(held)[0]
    kind = kind_of(bytes(held[_LENGTH.size : _LENGTH.size + HEAD_BYTES]))
    if not HEAD_BYTES <= length <= kind.bytes_max:
        raise PeerError(f"{kind.type.__name__}: a length of {length} bytes")
    return length


class LinkCodec:
    """Both directions of one link between two lives of two nodes."""

    def __init__(self, frame_bytes_max: int, log: LogForm | None = None) -> None:
        self._bytes_max = frame_bytes_max
        self._encoder, self._decoder = Encoder(log), Decoder(log)
        self._stream = Stream()

    def pieces(self, message: Message) -> list[Piece]:
        """The pieces to post for a message, in order. Raises what `Encoder.encode` raises; the codec stays usable. O(bytes)."""
        data = self._encoder.encode(message)
        data = _LENGTH.pack(len(data)) + data
        if len(data) <= self._bytes_max:
            return [Piece(data)]
        return [Piece(data[at : at + self._bytes_max]) for at in range(0, len(data), self._bytes_max)]

    def take(self, piece: Piece) -> list[Message]:
        """The messages that a delivered piece completes. Raises PeerError; after that this codec is unusable. O(bytes)."""
        return [self._decoder.decode(data) for data in self._stream.step(piece.payload)]
