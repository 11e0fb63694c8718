"""A bounded queue of encoded messages to one neighbour, sent as stretches of a stream.

    stream  = (length(4) message)*        little-endian, as in `srt/codec/pieces.py`
    stretch = some of the stream, at most `STRETCH_BYTES` long

Messages queued within one turn of the event loop share a stretch; a large message takes several. Urgent messages (probes, joins,
requests) overtake bulk ones (frames of links, windows, items of gossip), but never interrupt a message that is sent in part.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

STRETCH_BYTES = 516 << 10
"""Size of one zmq message: a link's largest piece fits whole, with its frame. At this size the cost per message is negligible,
and a probe behind it waits 40 ms at 100 Mbit/s."""
_LENGTH = struct.Struct("<I")


class Outbox:
    """Two queues, urgent and bulk, with one bound. nbytes: of waiting messages, with their length fields."""

    __slots__ = ("_bytes_max", "_lines", "_rest", "nbytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lines: tuple[deque[tuple[bytes, ...]], deque[tuple[bytes, ...]]] = (deque(), deque())
        self._rest: memoryview | None = None  # of a message that is sent in part
        self.nbytes = 0

    def put(self, message: Sequence[bytes], *, is_urgent: bool) -> bool:
        """Queue a message, given in parts. False: it does not fit, and is not queued. A message larger than the bound fits while
        nothing else waits. O(parts)."""
        length = sum(map(len, message))
        size = _LENGTH.size + length
        if self.nbytes and self.nbytes + size > self._bytes_max:
            return False
        self._lines[not is_urgent].append((_LENGTH.pack(length), *message))
        self.nbytes += size
        return True

    def stretch(self, head: bytes) -> bytes | None:
        """`head` and the next stretch; None when nothing waits. O(bytes)."""
        if not self.nbytes:
            return None
        parts: list[bytes | memoryview] = [head]
        if self._rest is None:
            self._whole(parts)
        if len(parts) == 1:  # the next message does not fit whole
            parts.append(self._cut())
        stretch = b"".join(parts)
        self.nbytes -= len(stretch) - len(head)
        return stretch

    def _whole(self, parts: list[bytes | memoryview]) -> None:
        """Append as many messages as fit whole."""
        room = STRETCH_BYTES
        for line in self._lines:
            while line:
                message = line[0]
                room -= sum(map(len, message))
                if room < 0:
                    return
                parts += message
                line.popleft()

    def _cut(self) -> memoryview:
        """The next part of the message that is sent in part, or of the next message."""
        if self._rest is None:
            line = self._lines[not self._lines[0]]
            self._rest = memoryview(b"".join(line.popleft()))
        taken, rest = self._rest[:STRETCH_BYTES], self._rest[STRETCH_BYTES:]
        self._rest = rest if rest else None
        return taken

    def clear(self) -> None:
        for line in self._lines:
            line.clear()
        self._rest, self.nbytes = None, 0

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def check(self) -> None:
        """Raise AssertionError unless the count is right. O(messages)."""
        waiting = sum(len(part) for line in self._lines for message in line for part in message)
        assert self.nbytes == waiting + (0 if self._rest is None else len(self._rest))
