"""Windows on their way to people: whoever watches a job gets each that its master publishes, whole, for as long as it says so.

    message or event          | then
    --------------------------+---------------------------------------------------------------------------------------
    Watch of a new one        | it is known for `expiry_us`; final windows that it asks for are owed to it; WatchTell
    Watch of a known one      | known for longer; what it says came is forgotten, what it says is missing is owed; WatchTell
    Watch, and no room        | WatchTell: refused
    a window is published     | told, if what is on the way leaves room; else a final one is owed, an open one left out
    time                      | what is owed is read again and told, as far as there is room; who is silent is forgotten

A watcher that is slow, or whose answers are lost, costs `FLIGHT_BYTES_MAX`, and never holds up the job: open windows are left out
(the next one mends that), of final ones only their names are kept, and their rows are read again.

Invariants (`check`): places of what is on the way rise, and its bytes are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from elf.jobmaster.outbox import put_bytes
from elf.srt.effects import Effect, Notice, Send
from elf.srt.ids import JobId, NodeId
from elf.srt.messages import Ballot, Micros, Put, Shown, Watch, WatchTell
from elf.srt.parameters import Parameters

WATCHERS_MAX = 64
"""Of one job, each with 8 MiB on the way at most."""
FLIGHT_BYTES_MAX = 8 << 20
WINDOW_BYTES_MAX = 32 << 20
"""A larger one is not told: as a message it may have 64 MiB."""
OWED_MAX = 1_000
"""Final windows whose names are kept for one watcher; older ones are left out."""
RENEWALS = 20
"""A watcher says so each emit interval; so many of them may be lost: five seconds."""

WindowKey = tuple[str, Micros]
Again = Callable[[WindowKey, str], Put | None]
"""Reads a final window again, to be told with that status; None if it cannot be, or is about to be another one."""
Finals = Callable[[Micros, int], Sequence[WindowKey]]
"""Final windows that start at or after a time, and so many of the newest before that; in order of time."""


class _Flight(msgspec.Struct, gc=False):
    """A window on its way."""

    place: int
    key: WindowKey
    status: str
    nbytes: int


class _Watcher(msgspec.Struct):
    number: int
    expires_at: int
    flight: deque[_Flight]
    owed: dict[WindowKey, str]
    last: int = 0  # place of the last window told
    seen: int = 0
    nbytes: int = 0  # on the way

    def has_room(self, nbytes: int) -> bool:
        """One window may always be on its way, however large."""
        return not self.nbytes or self.nbytes + nbytes <= FLIGHT_BYTES_MAX

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
            if told.place in lost and told.status != "open":
                self.owe(told.key, told.status)


def without_panes(put: Put) -> Put:
    """As people see it: states are for sinks."""
    return replace(put, panes=()) if put.panes else put


class Watchers:
    """Of one job at its master."""

    def __init__(
        self, job: JobId, ballot: Ballot, parameters: Parameters, again: Again, finals: Finals
    ) -> None:
        self.job, self.ballot = job, ballot
        self.expiry_us = RENEWALS * parameters.emit_us
        self._again, self._finals = again, finals
        self._watchers: dict[NodeId, dict[int, _Watcher]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def watch(self, message: Watch, now: int) -> tuple[bool, list[Effect]]:
        """Somebody watches; whether it is new here: then open windows should be told soon."""
        to, number = message.watcher, message.number
        of_node = self._watchers.get(to, {})
        watcher = of_node.get(number)
        is_new = watcher is None
        if watcher is None:
            if self._count >= WATCHERS_MAX:
                return False, [Send(to, WatchTell(self.job, number, self.ballot, refused=True))]
            watcher = _Watcher(number, 0, deque(), {})
            self._watchers.setdefault(to, {})[number] = watcher
            self._count += 1
            for key in self._finals(message.since_us, message.back):
                watcher.owe(key, "final")
        watcher.expires_at = now + self.expiry_us
        if message.ballot == self.ballot:
            watcher.heard(message.seen, message.missing)
        effects = self._pay(to, watcher)
        tell = WatchTell(self.job, number, self.ballot, watcher.last, watcher.seen)
        return is_new, [*effects, Send(to, tell)]

    def tell(self, put: Put) -> list[Effect]:
        """A window is published. O(watchers)."""
        effects: list[Effect] = []
        if not self._count:
            return effects
        nbytes = put_bytes(put)
        if nbytes > WINDOW_BYTES_MAX:
            text = f"a window of {nbytes >> 20} MiB is not told to those who watch the job; add a LIMIT to its query"
            return [Notice("watch", text)]
        for to, watchers in self._watchers.items():
            for watcher in watchers.values():
                watcher.owed.pop((put.version, put.start), None)
                if watcher.has_room(nbytes):
                    effects.append(self._show(to, watcher, put, nbytes))
                elif put.status != "open":
                    watcher.owe((put.version, put.start), put.status)
        return effects

    def _show(self, to: NodeId, watcher: _Watcher, put: Put, nbytes: int) -> Send:
        watcher.last += 1
        watcher.nbytes += nbytes
        watcher.flight.append(_Flight(watcher.last, (put.version, put.start), put.status, nbytes))
        return Send(to, Shown(self.job, watcher.number, watcher.last, put))

    def _pay(self, to: NodeId, watcher: _Watcher) -> list[Effect]:
        """What is owed, as far as there is room."""
        effects: list[Effect] = []
        while watcher.owed and watcher.has_room(0):
            key = next(iter(watcher.owed))
            put = self._again(key, watcher.owed.pop(key))
            put = without_panes(put) if put is not None else None
            if put is not None and put_bytes(put) <= WINDOW_BYTES_MAX:
                effects.append(self._show(to, watcher, put, put_bytes(put)))
        return effects

    def tick(self, now: int) -> None:
        """Forget who is silent. A clock that went back makes nobody wait longer than `expiry_us`."""
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
