"""Windows on their way to people: whoever watches a job gets each that its master publishes, whole, for as long as it says so.

    message or event          | then
    --------------------------+---------------------------------------------------------------------------------------
    Watch of a new one        | it is known for `expiry_us`; final windows that it asks for are owed to it; WatchReply
    Watch of a known one      | known for longer; what it says came is forgotten, what it says is missing is owed; WatchReply
    Watch, and no room        | WatchReply: refused
    a window is published     | told, if what is on the way leaves room; else a final one is owed, an open one left out
    a part never came         | it goes again, at another place
    time                      | what is owed is read again and told, as far as there is room; who is silent is forgotten

A window larger than a frame goes in parts (`chunks`), each with a place of its own, and nothing else meanwhile; a part that is
missing goes again, and a new revision waits until the one on its way has come. Of one larger than `WINDOW_BYTES_MAX` the first
rows are told, and how many were left out.

A watcher that is slow, or whose answers are lost, costs `FLIGHT_BYTES_MAX`, and never holds up the job: open windows are left out
(the next one mends that), of final ones only their names are kept, and their rows are read again.

Invariants (`check`): places of what is on the way rise, and its bytes are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

import msgspec
from msgspec.structs import replace

from elf.jobmaster.delivery.chunks import ChunkedWindow, put_bytes, rows_bytes
from elf.jobmaster.delivery.outbox import LATER
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Maker, Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import Put, Shown, ShownPart, Watch, WatchReply

WATCHERS_MAX = 64
"""Of one job, each with 8 MiB on the way at most."""
FLIGHT_BYTES_MAX = 8 << 20
"""To one watcher, not acknowledged: 8 s of 1 MB/s."""
WINDOW_BYTES_MAX = 64 << 20
"""Of rows: 130,000 as objects. Of a larger window only so much is told that a screen is full, and a pager too."""
HEAD_BYTES = 1 << 20
"""So much is told of a window above that: 2,000 rows of 500 bytes."""
PARTS_MAX = 8
"""On the way at a time."""
OWED_MAX = 1_000
"""Final windows whose names are kept for one watcher; older ones are left out."""
RENEWALS = 20
"""A watcher says so each emit interval; so many of them may be lost: five seconds."""

WindowKey = tuple[str, Micros]
Reread = Callable[[WindowKey, str], Put | Literal["later"] | None]
"""Reads a final window again, to be told with that status; None if it cannot be, or is about to be another one; `LATER` if it is
large, and being read."""
Finals = Callable[[Micros, int], Sequence[WindowKey]]
"""Final windows that start at or after a time, and so many of the newest before that; in order of time."""


class _Flight(msgspec.Struct, gc=False):
    """A window on its way, or a part of one."""

    place: int
    key: WindowKey
    status: str
    nbytes: int
    at: int = -1


class _Sending(msgspec.Struct):
    """A window in parts. again: those that never came."""

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
    number: int
    expires_at: int
    flight: deque[_Flight]
    owed: dict[WindowKey, str]
    last: int = 0  # place of the last window told
    seen: int = 0
    nbytes: int = 0  # on the way
    sending: _Sending | None = None

    def has_room(self, nbytes: int) -> bool:
        """One window may always be on its way, however large."""
        return self.sending is None and (not self.nbytes or self.nbytes + nbytes <= FLIGHT_BYTES_MAX)

    def owe(self, key: WindowKey, status: str) -> None:
        self.owed[key] = status
        if len(self.owed) > OWED_MAX:
            del self.owed[next(iter(self.owed))]

    def heard(self, seen: int, missing: Iterable[int]) -> None:
        """What came is forgotten; of what did not, final windows are owed."""
        lost = set(missing)
        self.seen = max(self.seen, min(seen, self.last))
        while self.flight and self.flight[0].place <= self.seen:
            told = self.flight.popleft()
            self.nbytes -= told.nbytes
            if told.at >= 0:
                self._part_heard(told.at, told.place in lost)
            elif told.place in lost and told.status != "open" and told.key not in self.owed:
                self.owe(told.key, told.status)  # else what is owed is newer

    def _part_heard(self, at: int, is_lost: bool) -> None:
        assert self.sending is not None
        if is_lost:
            self.sending.resend.append(at)
        else:
            self.sending.chunks.free(at)
        if not self.flight and not self.sending.has_more:
            self.sending = None


def shortened(put: Put) -> Put:
    """As much of a window as is told: all of it, or its first rows. O(rows told)."""
    nbytes = rows_bytes(put)
    if nbytes <= WINDOW_BYTES_MAX:
        return put
    rows = tuple(islice(put.rows, max(1, len(put.rows) * HEAD_BYTES // nbytes)))
    return replace(put, rows=rows, left_out=put.left_out + len(put.rows) - len(rows))


def without_panes(put: Put) -> Put:
    """As people see it: states are for sinks."""
    return replace(put, panes=()) if put.panes else put


class Watchers:
    """Of one job at its master."""

    def __init__(
        self, job: JobId, ballot: Ballot, parameters: Parameters, reread: Reread, finals: Finals
    ) -> None:
        self.job, self.ballot = job, ballot
        self.expiry_us = RENEWALS * parameters.emit_us
        self._reread, self._finals = reread, finals
        self._frame_bytes, self._read_us = parameters.frame_bytes_max, parameters.read_us
        self._read_at: int | None = None  # something that is owed is being read
        self._watchers: dict[NodeId, dict[int, _Watcher]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of large windows that are on their way."""
        each = (watcher.sending for watchers in self._watchers.values() for watcher in watchers.values())
        return sum(
            sending.chunks.nbytes + sending.chunks.held_bytes for sending in each if sending is not None
        )

    def watch(self, message: Watch, now: int) -> tuple[bool, list[Effect]]:
        """Somebody watches; whether it is new here: then open windows should be told soon."""
        to, number = message.watcher, message.number
        of_node = self._watchers.get(to, {})
        watcher = of_node.get(number)
        is_new = watcher is None
        if watcher is None:
            if self._count >= WATCHERS_MAX:
                return False, [Send(to, WatchReply(self.job, number, self.ballot, refused=True))]
            watcher = _Watcher(number, 0, deque(), {})
            self._watchers.setdefault(to, {})[number] = watcher
            self._count += 1
            for key in self._finals(message.since_us, message.back):
                watcher.owe(key, "final")
        watcher.expires_at = now + self.expiry_us
        if message.ballot == self.ballot:
            watcher.heard(message.seen, message.missing)
        effects = self._pay(to, watcher, now)
        tell = WatchReply(self.job, number, self.ballot, watcher.last, watcher.seen)
        return is_new, [*effects, Send(to, tell)]

    def publish(self, put: Put) -> list[Effect]:
        """A window is published. O(watchers)."""
        effects: list[Effect] = []
        if not self._count:
            return effects
        put = shortened(put)
        nbytes = put_bytes(put)
        for to, watchers in self._watchers.items():
            for watcher in watchers.values():
                watcher.owed.pop((put.version, put.start), None)
                if watcher.has_room(nbytes):
                    effects += self._show(to, watcher, put, nbytes)
                elif put.status != "open":
                    watcher.owe((put.version, put.start), put.status)
        return effects

    def _show(self, to: NodeId, watcher: _Watcher, put: Put, nbytes: int) -> list[Effect]:
        key = put.version, put.start
        if nbytes > self._frame_bytes:
            chunks = ChunkedWindow(put, self._frame_bytes)
            watcher.sending = _Sending(key, put.revision, put.status, chunks, deque())
            return self._go_on(to, watcher)
        place = self._place(watcher, _Flight(0, key, put.status, nbytes))
        return [Send(to, Shown(self.job, watcher.number, place, put))]

    def _place(self, watcher: _Watcher, flight: _Flight) -> int:
        watcher.last += 1
        watcher.nbytes += flight.nbytes
        watcher.flight.append(replace(flight, place=watcher.last))
        return watcher.last

    def _go_on(self, to: NodeId, watcher: _Watcher) -> list[Effect]:
        """Parts of the window that is on its way, as many as may be."""
        effects: list[Effect] = []
        sending = watcher.sending
        while sending is not None and sending.has_more and len(watcher.flight) < PARTS_MAX:
            at = sending.resend.popleft() if sending.resend else sending.next
            sending.next = max(sending.next, at + 1)
            payload, of = sending.chunks.payload(at), sending.chunks.of
            place = self._place(watcher, _Flight(0, sending.key, sending.status, len(payload), at))
            about = (self.ballot, *sending.key, sending.revision, at, of, payload)
            effects.append(Send(to, ShownPart(self.job, watcher.number, place, *about)))
        return effects

    def _pay(self, to: NodeId, watcher: _Watcher, now: int) -> list[Effect]:
        """What is owed, as far as there is room."""
        effects = self._go_on(to, watcher)
        while watcher.owed and watcher.has_room(0):
            key = next(iter(watcher.owed))
            put = self._reread(key, watcher.owed[key])
            if put == LATER:
                self._read_at = now + self._read_us
                return effects
            del watcher.owed[key]
            if put is not None:
                put = shortened(without_panes(put))
                effects += self._show(to, watcher, put, put_bytes(put))
        return effects

    def tick(self, now: int) -> list[Effect]:
        """What was being read is told, and who is silent forgotten. A clock that went back makes nobody wait longer than
        `expiry_us`."""
        effects: list[Effect] = []
        if self._read_at is not None and not self._read_at - self._read_us <= now < self._read_at:
            self._read_at = None
            for to, watchers in self._watchers.items():
                for each in watchers.values():
                    effects += self._pay(to, each, now)
        self._forget(now)
        return effects

    def _forget(self, now: int) -> None:
        for to in list(self._watchers):
            of_node = self._watchers[to]
            for watcher in list(of_node.values()):
                watcher.expires_at = min(watcher.expires_at, now + self.expiry_us)
                if now >= watcher.expires_at:
                    del of_node[watcher.number]
                    self._count -= 1
            if not of_node:
                del self._watchers[to]

    @property
    def deadline(self) -> int | None:
        """When somebody is to be forgotten next."""
        times = [each.expires_at for of_node in self._watchers.values() for each in of_node.values()]
        times += [self._read_at] if self._read_at is not None else []
        return min(times, default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        watchers = [each for of_node in self._watchers.values() for each in of_node.values()]
        assert len(watchers) == self._count <= WATCHERS_MAX
        for watcher in watchers:
            places = [each.place for each in watcher.flight]
            assert places == sorted(set(places))
            assert all(watcher.seen < place <= watcher.last for place in places)
            assert sum(each.nbytes for each in watcher.flight) == watcher.nbytes
            assert len(watcher.owed) <= OWED_MAX
