"""What one sink that delivers messages sends next, and when it tries again.

A window is offered, begins, and ends in one of four ways:

    state     | what happens                      | next
    ----------+-----------------------------------+----------------------------------------------------------------
    -         | offer, and there is room          | waits; a later revision takes the place of one that waits
    waits     | next, fewer than `AT_ONCE` fly    | flies, the oldest first; one revision of a window at a time
    flies     | acknowledged                      | is over: the ledger records it
              | refused                           | is over: the master offers it again
              | declined                          | is over: the ledger records it
              | failed (the connection)           | waits again, and all others that fly

Nothing here is the only copy: a window stays at its master until the ledger has it. So what does not fit is left to the master,
which repeats it.

Rule Newest: of a job's messages only the one with the highest (start, revision) so far is the newest, and may take the place of
what a broker retains. `marks` has that of each job. It is on disk before the message is sent (`Outlet`), so that an agent that
was killed after it sent window 6, and before it knew of the acknowledgement of window 5, does not let 5 take the place of 6.

Invariants: `check`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Maker, Micros

AT_ONCE = 16
"""Messages without acknowledgement: fewer than a broker's usual 20."""
WINDOWS_MAX = 1_000
BYTES_MAX = 16 << 20
PAUSE_US, PAUSE_US_MAX = 1_000_000, 60_000_000
"""Before a sink that failed is tried again: doubled with each failure in a row."""

Revision = tuple[int, Maker, int]
Key = tuple[JobId, str, Micros]
Mark = tuple[Micros, Revision]
"""(start, revision) of the newest window of a job that was sent."""


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """A window that is to be delivered. load: whatever its sender needs. since: when it was offered."""

    job: JobId
    version: str
    start: Micros
    revision: Revision
    nbytes: int
    load: Any
    since: Micros = 0

    @property
    def key(self) -> Key:
        return (self.job, self.version, self.start)

    @property
    def mark(self) -> Mark:
        return (self.start, self.revision)


class Dispatch:
    """The windows of one sink. delivered, refusals, failures: since the start. problem: why nothing is delivered now, or "".
    at_once: how many fly at a time."""

    def __init__(self, bytes_max: int = BYTES_MAX, at_once: int = AT_ONCE) -> None:
        self._bytes_max, self._at_once = bytes_max, at_once
        self._waiting: dict[Key, Delivery] = {}
        self._flying: dict[Key, Delivery] = {}
        self.nbytes = 0
        self.marks: dict[JobId, Mark] = {}
        self.delivered = self.refusals = self.failures = 0
        self.problem = ""
        self._in_a_row = 0

    def __len__(self) -> int:
        """Number of windows that are not acknowledged."""
        return len(self._waiting) + len(self._flying)

    @property
    def oldest(self) -> Micros | None:
        """When the window was offered that has waited longest. O(windows)."""
        each = (*self._waiting.values(), *self._flying.values())
        return min((delivery.since for delivery in each), default=None)

    @property
    def pause_us(self) -> int:
        """How long to wait after the last failure."""
        return min(PAUSE_US << min(max(self._in_a_row - 1, 0), 16), PAUSE_US_MAX)

    def offer(self, delivery: Delivery) -> bool:
        """Take a window. Returns whether it is new here; False also if there is no room. One window always has room."""
        flying, waiting = self._flying.get(delivery.key), self._waiting.get(delivery.key)
        known = [each.revision for each in (flying, waiting) if each is not None]
        if known and max(known) >= delivery.revision:
            return False
        freed = waiting.nbytes if waiting is not None else 0
        rest = self.nbytes - freed
        if len(self) and (
            (rest + delivery.nbytes > self._bytes_max and rest > 0) or len(self) >= WINDOWS_MAX
        ):
            return False
        self._waiting[delivery.key] = delivery
        self.nbytes = rest + delivery.nbytes
        return True

    def next(self) -> list[Delivery]:
        """The windows that begin to fly now, in the order in which they are to be sent: by start. O(windows log windows)."""
        room = self._at_once - len(self._flying)
        if room <= 0 or not self._waiting:
            return []
        free = (each for key, each in self._waiting.items() if key not in self._flying)
        begun = sorted(free, key=lambda each: (each.mark, each.key))[:room]
        for each in begun:
            del self._waiting[each.key]
            self._flying[each.key] = each
        return begun

    def is_newest(self, delivery: Delivery) -> bool:
        """Rule Newest: whether no window after this one, and no later revision of it, was sent."""
        return delivery.mark >= self.marks.get(delivery.job, delivery.mark)

    def raise_marks(self, begun: list[Delivery]) -> set[JobId]:
        """Note the newest of these windows. Returns the jobs whose marks rose: these are to be on disk before any is sent."""
        risen = set()
        for each in begun:
            if each.job not in self.marks or each.mark > self.marks[each.job]:
                self.marks[each.job] = each.mark
                risen.add(each.job)
        return risen

    def acknowledged(self, delivery: Delivery) -> None:
        """It was delivered."""
        self._end(delivery)
        self.delivered += 1
        self._in_a_row, self.problem = 0, ""

    def refused(self, delivery: Delivery, problem: str) -> None:
        """The sink takes others, but not this one. The master offers it again, in its own time."""
        self._end(delivery)
        self.refusals += 1
        self.problem = problem

    def declined(self, delivery: Delivery) -> None:
        """The sink will never take this one: it is not offered again."""
        self._end(delivery)
        self.refusals += 1
        self._in_a_row, self.problem = 0, ""

    def failed(self, problem: str) -> None:
        """The connection failed, or could not be made: all that fly wait again, unless a later revision waits."""
        for key, delivery in self._flying.items():
            if key in self._waiting:
                self.nbytes -= delivery.nbytes
            else:
                self._waiting[key] = delivery
        self._flying.clear()
        self.failures += 1
        self._in_a_row += 1
        self.problem = problem

    def _end(self, delivery: Delivery) -> None:
        assert self._flying.pop(delivery.key) is delivery
        self.nbytes -= delivery.nbytes

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(windows)."""
        each = (*self._waiting.values(), *self._flying.values())
        assert self.nbytes == sum(delivery.nbytes for delivery in each)
        assert len(self._flying) <= self._at_once
        for key in self._waiting.keys() & self._flying.keys():
            assert self._waiting[key].revision > self._flying[key].revision
