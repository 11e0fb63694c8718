"""Links that carry bytes: posted messages become pieces, delivered pieces become messages again."""

from __future__ import annotations

from elf.srt.codec.pieces import LinkCodec
from elf.srt.codec.wire import LogForm
from elf.srt.link.rights import check_linked
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Away, Message, Piece


class CodedLinks:
    """A codec for each neighbour, as long as the session of the link to that neighbour lasts."""

    def __init__(self, frame_bytes_max: int, log: LogForm) -> None:
        self._bytes_max, self._log = frame_bytes_max, log
        self._codecs: dict[NodeId, LinkCodec] = {}
        self._gaps: set[tuple[NodeId, JobId]] = set()  # links times jobs at most

    def pieces(self, peer: NodeId, message: Message) -> list[Piece]:
        """The pieces to post, in order. O(bytes).

        Raises whatever encoding raises. After that no message of the job goes to that neighbour before an `Away`, which resets
        the link for that job: so the messages of a job on a link have no gaps. Messages of other jobs are not affected.
        """
        gap = peer, message.job  # type: ignore[attr-defined]
        if type(message) is Away:
            self._gaps.discard(gap)
        elif gap in self._gaps:
            return []
        try:
            return self._codec(peer).pieces(message)
        except Exception:
            self._gaps.add(gap)
            raise

    def take(self, peer: NodeId, piece: Message) -> list[Message]:
        """The messages that a delivered piece completes. Raises PeerError: hang up. O(bytes)."""
        assert isinstance(piece, Piece)
        messages = self._codec(peer).take(piece)
        for message in messages:
            check_linked(message)
        return messages

    def forget(self, peer: NodeId) -> None:
        """The link has begun anew: drop both directions of its codec."""
        self._codecs.pop(peer, None)
        self._gaps = {gap for gap in self._gaps if gap[0] != peer}

    def _codec(self, peer: NodeId) -> LinkCodec:
        codec = self._codecs.get(peer)
        if codec is None:
            codec = self._codecs[peer] = LinkCodec(self._bytes_max, self._log)
        return codec
