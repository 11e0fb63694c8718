"""Sends windows to watchers: while a watcher renews its Watch, it receives every window that the job's master publishes, whole.

    message or event          | then
    --------------------------+---------------------------------------------------------------------------------------
    Watch of a new watcher    | registered for `expiry_us`; final windows that it requests become owed to it; WatchReply
    Watch of a known watcher  | renewed; windows that it acknowledges are done, those it reports missing are owed; WatchReply
    Watch, and no room        | WatchReply: refused
    a window is published     | sent if the bytes in flight allow it; otherwise a final one is owed, an open one left out
    a part is missing         | it is sent again, with another number
    time                      | owed windows are read again and sent, as far as there is room; silent watchers expire

Owed windows are those that the watcher has yet to receive. Windows in flight are numbered (`place`). A window larger than a frame
is sent in parts (`chunks`), each with a number of its own, and no other window is sent meanwhile; a missing part is sent again,
and a new revision waits until the one in flight is acknowledged. Of a window larger than `WINDOW_BYTES_MAX` only the first rows
are sent, and the number of rows left out.

A watcher that is slow, or whose answers are lost, costs `FLIGHT_BYTES_MAX`, and never delays the job: open windows are left out
(the next one replaces them), and of final windows only the keys are kept, and the rows are read again.

Invariants (`check`): numbers in flight rise, and their bytes are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from elf.jobmaster.delivery.chunks import ChunkedWindow, put_bytes, rows_bytes
from elf.jobmaster.delivery.outbox import LATER, Reread
from elf.jobmaster.delivery.sink_queue import WindowKey
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Maker, Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import Put, Shown, ShownPart, Watch, WatchReply

WATCHERS_MAX = 64
"""Watchers of one job, each with at most 8 MiB in flight."""
FLIGHT_BYTES_MAX = 8 << 20
"""Bytes sent to one watcher and not acknowledged: 8 s at 1 MB/s."""
WINDOW_BYTES_MAX = 64 << 20
"""Bytes of a window's rows: 130,000 rows as objects. Of a larger window only enough is sent for a screen and a pager."""
HEAD_BYTES = 1 << 20
"""Bytes that are sent of a window above that: 2,000 rows of 500 bytes."""
PARTS_MAX = 8
"""Parts of a window in flight at a time."""
OWED_MAX = 1_000
"""Final windows whose keys are kept for one watcher; older ones are left out."""
RENEWALS = 20
"""A watcher renews its Watch each emit interval; so many renewals may be lost: four seconds."""

Finals = Callable[[Micros, int], Sequence[WindowKey]]
"""The final windows that start at or after a time, and a number of the newest before that time; in time order."""


class _Flight(msgspec.Struct, gc=False):
    """A window in flight, or a part of one."""

    place: int
    key: WindowKey
    status: str
    nbytes: int
    at: int = -1


class _Sending(msgspec.Struct):
    """A window that is sent in parts. resend: the missing parts."""

    key: WindowKey
    revision: tuple[int, Maker, int]
    status: str
    chunks: ChunkedWindow
    resend: deque[int]
    next: int = 0

    @property
    def has_more(self) -> bool:
        return bool(self.resend) or self.next < self.chunks.of


class _Watcher(msgspec.Struct):
    to: NodeId
    number: int
    expires_at: int
    flight: deque[_Flight]
    owed: dict[WindowKey, str]
    last: int = 0  # place of the last window sent
    seen: int = 0
    nbytes: int = 0  # in flight
    sending: _Sending | None = None

    def has_room(self, nbytes: int) -> bool:
        """Whether a window may be sent. One window may always be in flight, however large it is."""
        return self.sending is None and (not self.nbytes or self.nbytes + nbytes <= FLIGHT_BYTES_MAX)

    def owe(self, key: WindowKey, status: str) -> None:
        self.owed[key] = status
        if len(self.owed) > OWED_MAX:
            del self.owed[next(iter(self.owed))]

    def acknowledge(self, seen: int, missing: Iterable[int]) -> None:
        """Drop windows up to `seen` from those in flight; final windows among the missing are owed."""
        lost = set(missing)
        self.seen = max(self.seen, min(seen, self.last))
        while self.flight and self.flight[0].place <= self.seen:
            sent = self.flight.popleft()
            self.nbytes -= sent.nbytes
            if sent.at >= 0:
                self._acknowledge_part(sent.at, sent.place in lost)
            elif sent.place in lost and sent.status != "open" and sent.key not in self.owed:
                self.owe(sent.key, sent.status)  # otherwise a newer revision is owed

    def _acknowledge_part(self, at: int, is_lost: bool) -> None:
        assert self.sending is not None
        if is_lost:
            self.sending.resend.append(at)
        else:
            self.sending.chunks.free(at)
        if not self.flight and not self.sending.has_more:
            self.sending = None


def shortened(put: Put) -> Put:
    """The window, or only the first rows of a very large one. O(rows sent)."""
    nbytes = rows_bytes(put)
    if nbytes <= WINDOW_BYTES_MAX:
        return put
    rows = tuple(islice(put.rows, max(1, len(put.rows) * HEAD_BYTES // nbytes)))
    return replace(put, rows=rows, left_out=put.left_out + len(put.rows) - len(rows), others=0)


def without_panes(put: Put) -> Put:
    """The window without pane states, which only sinks need."""
    return replace(put, panes=()) if put.panes else put


class Watchers:
    """The watchers of one job at its master."""

    def __init__(
        self, job: JobId, ballot: Ballot, parameters: Parameters, reread: Reread, finals: Finals
    ) -> None:
        self.job, self.ballot = job, ballot
        self.expiry_us = RENEWALS * parameters.emit_us
        self._reread, self._finals = reread, finals
        self._frame_bytes, self._read_us = parameters.frame_bytes_max, parameters.read_us
        self._read_at: int | None = None  # when to try again to send an owed window that is being read
        self._watchers: dict[tuple[NodeId, int], _Watcher] = {}  # by node and number

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def nbytes(self) -> int:
        """Memory of large windows in flight."""
        each = (watcher.sending for watcher in self._watchers.values())
        return sum(
            sending.chunks.nbytes + sending.chunks.held_bytes for sending in each if sending is not None
        )

    @property
    def are_served(self) -> bool:
        """Whether every watcher has acknowledged all windows that it should have."""
        return not any(each.flight or each.owed or each.sending for each in self._watchers.values())

    def watch(self, message: Watch, now: int) -> tuple[bool, list[Effect]]:
        """Register or renew a watcher. Returns whether it is new: then open windows should be published soon."""
        to, number = message.watcher, message.number
        watcher = self._watchers.get((to, number))
        is_new = watcher is None
        if watcher is None:
            if len(self) >= WATCHERS_MAX:
                return False, [Send(to, WatchReply(self.job, number, self.ballot, refused=True))]
            watcher = self._watchers[to, number] = _Watcher(to, number, 0, deque(), {})
            for key in self._finals(message.since_us, message.back):
                watcher.owe(key, "final")
        watcher.expires_at = now + self.expiry_us
        if message.ballot == self.ballot:
            watcher.acknowledge(message.seen, message.missing)
        effects = self._send_owed(watcher, now)
        reply = WatchReply(self.job, number, self.ballot, watcher.last, watcher.seen)
        return is_new, [*effects, Send(to, reply)]

    def publish(self, put: Put) -> list[Effect]:
        """Send a published window, or owe it. O(watchers)."""
        effects: list[Effect] = []
        if not self._watchers:
            return effects
        put = shortened(put)
        nbytes = put_bytes(put)
        for watcher in self._watchers.values():
            watcher.owed.pop((put.version, put.start), None)
            if watcher.has_room(nbytes):
                effects += self._send_window(watcher, put, nbytes)
            elif put.status != "open":
                watcher.owe((put.version, put.start), put.status)
        return effects

    def _send_window(self, watcher: _Watcher, put: Put, nbytes: int) -> list[Effect]:
        key = put.version, put.start
        if nbytes > self._frame_bytes:
            chunks = ChunkedWindow(put, self._frame_bytes)
            watcher.sending = _Sending(key, put.revision, put.status, chunks, deque())
            return self._send_parts(watcher)
        place = self._place(watcher, _Flight(0, key, put.status, nbytes))
        return [Send(watcher.to, Shown(self.job, watcher.number, place, put))]

    def _place(self, watcher: _Watcher, flight: _Flight) -> int:
        watcher.last += 1
        watcher.nbytes += flight.nbytes
        watcher.flight.append(replace(flight, place=watcher.last))
        return watcher.last

    def _send_parts(self, watcher: _Watcher) -> list[Effect]:
        """Send parts of the window in flight, as many as allowed."""
        effects: list[Effect] = []
        sending = watcher.sending
        while sending is not None and sending.has_more and len(watcher.flight) < PARTS_MAX:
            at = sending.resend.popleft() if sending.resend else sending.next
            sending.next = max(sending.next, at + 1)
            payload, of = sending.chunks.payload(at), sending.chunks.of
            place = self._place(watcher, _Flight(0, sending.key, sending.status, len(payload), at))
            about = (self.ballot, *sending.key, sending.revision, at, of, payload)
            effects.append(Send(watcher.to, ShownPart(self.job, watcher.number, place, *about)))
        return effects

    def _send_owed(self, watcher: _Watcher, now: int) -> list[Effect]:
        """Send owed windows, as far as there is room."""
        effects = self._send_parts(watcher)
        while watcher.owed and watcher.has_room(0):
            key = next(iter(watcher.owed))
            put = self._reread(key, watcher.owed[key])
            if put == LATER:
                self._read_at = now + self._read_us
                return effects
            del watcher.owed[key]
            if put is not None:
                put = shortened(without_panes(put))
                effects += self._send_window(watcher, put, put_bytes(put))
        return effects

    def tick(self, now: int) -> list[Effect]:
        """Send owed windows that have been read, and drop silent watchers. If the clock stepped back, a watcher expires at most
        `expiry_us` later."""
        effects: list[Effect] = []
        if self._read_at is not None and not self._read_at - self._read_us <= now < self._read_at:
            self._read_at = None
            for watcher in self._watchers.values():
                effects += self._send_owed(watcher, now)
        self._forget(now)
        return effects

    def _forget(self, now: int) -> None:
        for key, watcher in list(self._watchers.items()):
            watcher.expires_at = min(watcher.expires_at, now + self.expiry_us)
            if now >= watcher.expires_at:
                del self._watchers[key]

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next: an owed window is read, or a watcher expires."""
        times = [each.expires_at for each in self._watchers.values()]
        times += [self._read_at] if self._read_at is not None else []
        return min(times, default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert len(self) <= WATCHERS_MAX
        for watcher in self._watchers.values():
            places = [each.place for each in watcher.flight]
            assert places == sorted(set(places))
            assert all(watcher.seen < place <= watcher.last for place in places)
            assert sum(each.nbytes for each in watcher.flight) == watcher.nbytes
            assert len(watcher.owed) <= OWED_MAX
