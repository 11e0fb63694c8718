"""What waits to be sent to one neighbour: encoded messages, bounded in bytes, and the stretches of stream that they become.

    stream  = (length(4) message)*        little-endian, as in `srt/pieces.py`
    stretch = some of the stream, at most `STRETCH_BYTES` long

Messages that came within one turn of the event loop share a stretch; a large one travels in several. What keeps the mesh
together (probes, joins, gossip) overtakes the load of links, but never within a message.
"""

from __future__ import annotations

import struct
from collections import deque

STRETCH_BYTES = 512 << 10
"""Of one zmq message: large enough that what is paid per message does not count, small enough that a probe behind it, over
100 Mbit/s, waits 40 ms."""
MESSAGE_BYTES_MAX = (1 << 32) - 1
_LENGTH = struct.Struct("<I")


class Outbox:
    """Two lines, one bound. nbytes: of messages that wait, with their lengths."""

    __slots__ = ("_bytes_max", "_lines", "_rest", "nbytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lines: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._rest: memoryview | None = None  # of a message that has begun to travel
        self.nbytes = 0

    def put(self, message: bytes, *, is_urgent: bool) -> bool:
        """False: it does not fit, and is not taken. A message larger than the bound passes while nothing else waits. O(1)."""
        size = _LENGTH.size + len(message)
        if self.nbytes and self.nbytes + size > self._bytes_max:
            return False
        self._lines[not is_urgent].append(message)
        self.nbytes += size
        return True

    def stretch(self, head: bytes) -> bytes | None:
        """The next stretch, behind `head`; None when nothing waits. O(bytes)."""
        parts = [head]
        room = STRETCH_BYTES
        if self._rest is not None:
            room -= self._go_on(parts, room)
        for line in self._lines:
            while line and room > 0 and self._rest is None:
                message = line.popleft()
                parts.append(_LENGTH.pack(len(message)))
                room -= _LENGTH.size + len(message)
                if room >= 0:
                    parts.append(message)
                else:
                    self._rest = memoryview(message)
                    self._go_on(parts, room + len(message))
        if len(parts) == 1:
            return None
        stretch = b"".join(parts)
        self.nbytes -= len(stretch) - len(head)
        return stretch

    def _go_on(self, parts: list[bytes], room: int) -> int:
        """Some more of the message that has begun. Returns its length."""
        assert self._rest is not None
        room = max(room, 0)
        parts.append(self._rest[:room])  # type: ignore[arg-type]
        taken = len(parts[-1])
        self._rest = self._rest[taken:] if taken < len(self._rest) else None
        return taken

    def clear(self) -> None:
        for line in self._lines:
            line.clear()
        self._rest, self.nbytes = None, 0

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def check(self) -> None:
        """Raise AssertionError unless the count is right. O(messages)."""
        waiting = sum(_LENGTH.size + len(message) for line in self._lines for message in line)
        assert self.nbytes == waiting + (0 if self._rest is None else len(self._rest))
