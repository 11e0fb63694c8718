"""A zmq socket on an asyncio loop, driven by its file descriptor. Nothing here awaits, so nothing can be cancelled half way.

zmq's descriptor is edge-triggered, and any call on the socket may consume the edge for the other direction. So each turn reads
until EAGAIN, lets the owner write until EAGAIN, and checks the events once more before it relies on the descriptor. Code that
sends outside of a turn must call `sent`.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

import zmq

TURN_BYTES = 4 << 20
"""Bytes read in one turn at most; then other sockets get their turn."""
TURN_MESSAGES = 256
"""Messages read in one turn at most: 13 ms of small ones, at 50 µs each."""

# As plain integers, since arithmetic with zmq's enumerations takes as long as a small message.
_EVENTS, _IN, _OUT, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.NOBLOCK)


class Driven:
    """`receive` gets each message's frames. `write` is called when the socket may take more; it returns whether it has more to
    write."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: AbstractEventLoop,
        receive: Callable[[Sequence[zmq.Frame]], None],
        write: Callable[[], bool] | None = None,
    ) -> None:
        self.socket, self._loop = socket, loop
        self._receive, self._write = receive, write
        self._fd = int(socket.get(zmq.FD))
        self._is_due = self._has_sent = False
        loop.add_reader(self._fd, self.turn)
        self.again()

    def again(self) -> None:
        """Have a turn soon, whatever the descriptor reports."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn_due)

    def _turn_due(self) -> None:
        self._is_due = False
        self.turn()

    def turn(self) -> None:
        """Read, write, and check the events again."""
        if self.socket.closed:
            return
        if self._read():
            self.again()
            return
        self._has_sent = False
        wants = self._write is not None and not self.socket.closed and self._write()
        self.sent(wants=wants)

    def _read(self) -> bool:
        """True: there may be more. An exception of `receive` goes to the loop's handler, and the next message is read."""
        socket, receive = self.socket, self._receive
        nbytes = 0
        for _ in range(TURN_MESSAGES):
            if not self._events() & _IN:
                return False
            try:
                frames = [socket.recv(_NOBLOCK, copy=False)]
                while frames[-1].more:
                    frames.append(socket.recv(_NOBLOCK, copy=False))
            except zmq.Again:
                return False
            try:
                receive(frames)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": "elf: a received message was not processed", "exception": error}
                )
            if socket.closed:
                return False
            nbytes += len(frames[-1])
            if nbytes > TURN_BYTES:
                break
        return True

    def send(self, parts: Sequence[bytes]) -> bool:
        """False: the socket is full. Raises zmq.ZMQError for a ROUTER's peer that is gone."""
        self._has_sent = True
        try:
            self.socket.send_multipart(parts, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def sent(self, *, wants: bool = False) -> None:
        """Call after sending outside of a turn: the send may have consumed the edge of received messages, and the check here
        consumes the edge of room to send. `wants`: there is more to send."""
        if not (wants or self._has_sent) or self.socket.closed:
            return  # the last look at the events was after all that was done
        self._has_sent = False
        if self._events() & (_IN | (_OUT if wants else 0)):
            self.again()

    def _events(self) -> int:
        return int(self.socket.get(_EVENTS))

    def close(self, linger_ms: int = 0) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self._fd)
            self.socket.close(linger_ms)
