"""A link's encoded messages as pieces of bounded size, and pieces as messages again.

    stream = (length(4) message)*        little-endian; `srt/codec/wire.py` says what a message is
    piece  = any stretch of the stream, at most `frame_bytes_max` long

Messages go into the stream when they are posted, so their order is that of delivery, and each is encoded once, however often the
link sends it; a large one travels in several pieces between which its link sends nothing else. What the receiver may be made
to hold is bounded by the announced length, which is held against the kind of message as soon as both are there.

When `take` raises PeerError, hang up (`Link.hang_up`) and forget the codec: the neighbour sees that as a restart, makes a codec
anew, and sends all bundles that it keeps again; the first section of each roster is fresh. The same at every restart
that a link reports, on both sides.
"""

from __future__ import annotations

import struct

from elf.errors import PeerError
from elf.srt.codec.wire import HEAD_BYTES, Decoder, Encoder, LogForm, kind_of
from elf.srt.messages.messages import Message, Piece

_LENGTH = struct.Struct("<I")


class Stream:
    """Cuts pieces into messages: give it what came, in order, in whatever stretches."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._length: int | None = None

    def step(self, piece: bytes | memoryview) -> list[bytes | memoryview]:
        """The messages that end within this piece: views of it where they lie whole in it. Raises PeerError: a length that no
        message of its kind has. O(bytes)."""
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
        """Take the messages that lie whole in a piece; the rest."""
        at, end = 0, len(piece)
        while end - at >= _LENGTH.size + HEAD_BYTES:
            length = _length_of(piece[at:])
            start, at = at + _LENGTH.size, at + _LENGTH.size + length
            if at > end:
                return piece[start - _LENGTH.size :]
            done.append(piece[start:at])
        return piece[at:]

    def _is_whole(self) -> bool:
        """Whether the next message is there; its length is read and checked on the way."""
        held = len(self._held) - _LENGTH.size
        if self._length is None:
            if held < HEAD_BYTES:
                return False
            self._length = _length_of(self._held)
        return held >= self._length

    @property
    def held_bytes(self) -> int:
        """Of a message that is not whole yet."""
        return len(self._held)


def _length_of(held: bytearray | memoryview) -> int:
    """Of the message that begins there, whose head is there too. Raises PeerError."""
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
        """What to post for a message, in order. Raises what `Encoder.encode` raises; then all else goes on. O(bytes)."""
        data = self._encoder.encode(message)
        data = _LENGTH.pack(len(data)) + data
        if len(data) <= self._bytes_max:
            return [Piece(data)]
        return [Piece(data[at : at + self._bytes_max]) for at in range(0, len(data), self._bytes_max)]

    def take(self, piece: Piece) -> list[Message]:
        """The messages that a delivered piece completes. Raises PeerError; then this codec is of no further use. O(bytes)."""
        return [self._decoder.decode(data) for data in self._stream.step(piece.payload)]
