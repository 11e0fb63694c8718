"""Links that carry bytes: what is posted becomes pieces, delivered pieces become what was posted."""

from __future__ import annotations

from elf.srt.ids import NodeId
from elf.srt.messages import Message, Piece
from elf.srt.pieces import LinkCodec
from elf.srt.travel import check_linked
from elf.srt.wire import LogForm


class CodedLinks:
    """A codec for each neighbour, for as long as the session of the link to it lasts."""

    def __init__(self, frame_bytes_max: int, log: LogForm) -> None:
        self._bytes_max, self._log = frame_bytes_max, log
        self._codecs: dict[NodeId, LinkCodec] = {}

    def pieces(self, peer: NodeId, message: Message) -> list[Piece]:
        """What to post, in order. Raises ValueError for what no message may hold. O(bytes)."""
        return self._codec(peer).pieces(message)

    def take(self, peer: NodeId, piece: Message) -> list[Message]:
        """The messages that a delivered piece completes. Raises PeerError: hang up. O(bytes)."""
        assert isinstance(piece, Piece)
        messages = self._codec(peer).take(piece)
        for message in messages:
            check_linked(message)
        return messages

    def forget(self, peer: NodeId) -> None:
        """The link has begun anew, so both directions do."""
        self._codecs.pop(peer, None)

    def _codec(self, peer: NodeId) -> LinkCodec:
        codec = self._codecs.get(peer)
        if codec is None:
            codec = self._codecs[peer] = LinkCodec(self._bytes_max, self._log)
        return codec
