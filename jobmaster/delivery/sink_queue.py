"""One sink's windows at a master: those that wait, and of these the first ones, which are in flight.

A sink that answers nothing has at most `IN_FLIGHT_MAX` windows in flight, which are repeated. Each answer lets one more be sent,
up to `FLIGHT_MAX`, so that a backlog, whose windows become final by the thousand, reaches a sink as fast as it takes them;
windows that must be repeated more than once halve that.

Invariants (`check`): `nbytes` is the size of the waiting windows with rows; those that were sent come first, and are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from elf.jobmaster.delivery.chunks import ChunkedWindow, put_bytes
from elf.jobmaster.delivery.known import Held, Known
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Maker, Micros
from elf.srt.messages.results import Put

IN_FLIGHT_MAX = 16
"""Windows sent to a sink that does not answer: 8 MiB at most, a frame each; usually all of a second's windows."""
FLIGHT_MAX = 512
"""Windows sent to a sink that answers, as long as they are small: `FLIGHT_BYTES_MAX` in all."""
FLIGHT_BYTES_MAX = 8 << 20
BACKLOG_MAX = 4_096
"""Windows of a backlog that wait for a sink which takes windows: no more are made final meanwhile."""
TAKING_US = 60_000_000
"""A sink takes windows if it took one, or began to be served, within this time."""
Revision = tuple[int, Maker, int]
WindowKey = tuple[str, Micros]


class Target(NamedTuple):
    """A sink of the job, and the node that serves it now. takes_rows: it writes rows; otherwise it stores the states of panes.
    takes_all: it takes all windows of the job, and not only those whose settings name it. moves: another node may deliver in
    this one's place, and then continues from what this one has delivered (rule Moving). standby: the node that would; not if it
    is only one, or dead."""

    name: str
    node: NodeId
    takes_rows: bool = False
    takes_all: bool = False
    moves: bool = False
    standby: NodeId | None = None


class Waiting(msgspec.Struct):
    revision: Revision
    digest: int
    status: str
    put: Put | None  # None: read it again when it is sent
    nbytes: int  # of the kept rows
    size: int = 0  # of the rows, kept or not; 0: unknown
    due: int | None = None  # None: not sent yet
    times: int = 0  # sent so often
    since: int | None = None  # when the first of its revisions came here, by the clock of `tick`


class Sending(msgspec.Struct):
    """A window that is sent in parts. flight: part -> when it is sent again, and the wait after that."""

    key: WindowKey
    revision: Revision
    chunks: ChunkedWindow
    begun: int | None = None
    next: int = 0
    flight: dict[int, tuple[int, int]] = {}
    ask_at: int | None = None  # when to request the outcome, after all parts were received


class SinkQueue(msgspec.Struct):
    """Of `waiting` the first `sent` were sent, and `flight_bytes` is their size; the first of them to be sent again is due at
    `due_at`, or a little later. allowed: as many may be. took_at: when the sink last took a window, or began to be served."""

    target: Target
    ledger: dict[WindowKey, Held] | None = None
    ask_at: int | None = None
    waiting: dict[WindowKey, Waiting] = {}
    nbytes: int = 0
    is_late: bool = False
    large: WindowKey | None = None  # the large window that is kept in addition
    sending: Sending | None = None
    delivered: int = 0
    lost: int = 0
    sent: int = 0
    flight_bytes: int = 0
    due_at: int | None = None
    allowed: int = IN_FLIGHT_MAX
    has_taken: bool = True
    """Whether it took a window since `tick` last noted when."""
    took_at: int = 0
    known: Known = msgspec.field(default_factory=Known)

    def keep(self, key: WindowKey, waiting: Waiting, most: int) -> None:
        """Replace the waiting revision of the window; its rows are kept only if there is room."""
        self.drop(key)
        if self.nbytes + waiting.nbytes > most:
            if waiting.nbytes > most // 2 and self.large is None:
                self.large = key
            else:
                waiting.put = None
            waiting.nbytes = 0
        self.waiting[key] = waiting
        self.nbytes += waiting.nbytes

    @property
    def held_bytes(self) -> int:
        """Memory, including the large window that is kept in addition, and its parts."""
        large = self.waiting[self.large].put if self.large is not None else None
        sent = self.sending.chunks.held_bytes if self.sending is not None else 0
        return self.nbytes + sent + (put_bytes(large) if large is not None else 0)

    def drop(self, key: WindowKey) -> None:
        found = self.waiting.pop(key, None)
        if found is not None:
            self.nbytes -= found.nbytes
            if found.due is not None:
                self.sent -= 1
                self.flight_bytes -= found.size
        if self.large == key:
            self.large = None
        if self.sending is not None and self.sending.key == key:
            self.sending = None

    def next(self) -> list[tuple[WindowKey, Waiting]]:
        """The windows that may be sent for the first time now."""
        found = list(islice(self.waiting.items(), self.sent, self.allowed))
        free = FLIGHT_BYTES_MAX - self.flight_bytes
        for number, (_, waiting) in enumerate(found):
            free -= waiting.size or FLIGHT_BYTES_MAX // IN_FLIGHT_MAX
            if free < 0 and self.sent + number >= IN_FLIGHT_MAX:
                return found[:number]
        return found

    def in_flight(self) -> list[tuple[WindowKey, Waiting]]:
        """The windows that were sent."""
        return list(islice(self.waiting.items(), self.sent))

    def sends(self, waiting: Waiting, due: int) -> None:
        """The window is sent, and again at that time."""
        if waiting.due is None:
            self.sent += 1
            self.flight_bytes += waiting.size
        waiting.due = due
        waiting.times += 1
        self.due_at = due if self.due_at is None else min(self.due_at, due)

    def forget_sent(self) -> None:
        """Nothing counts as sent: the sink is at another node."""
        for waiting in self.waiting.values():
            waiting.due, waiting.times = None, 0
        self.sent, self.flight_bytes, self.due_at, self.allowed = 0, 0, None, IN_FLIGHT_MAX

    def took(self) -> None:
        """The sink has taken a window."""
        self.delivered += 1
        self.allowed = min(self.allowed + 1, FLIGHT_MAX)
        self.has_taken = True

    def look(self, now: int) -> None:
        """Note when it took its last window; if the clock stepped back, that is now."""
        self.took_at = now if self.has_taken else min(self.took_at, now)
        self.has_taken = False

    def takes(self, now: int) -> bool:
        """Whether it takes windows."""
        return self.has_taken or now - self.took_at < TAKING_US

    def slow_down(self) -> None:
        """It has not answered windows that were sent several times: fewer may be in flight."""
        self.allowed = max(self.allowed // 2, IN_FLIGHT_MAX)

    def check(self, most: int) -> None:
        each = list(self.waiting.values())
        assert [one.due is None for one in each] == [number >= self.sent for number in range(len(each))]
        assert self.flight_bytes == sum(one.size for one in each[: self.sent])
        assert self.nbytes == sum(waiting.nbytes for waiting in self.waiting.values()) <= most
        for key, waiting in self.waiting.items():
            put = waiting.put
            if put is None:
                assert waiting.nbytes == 0
                continue
            assert (put.version, put.start, put.revision, put.status) == (
                *key,
                waiting.revision,
                waiting.status,
            )
            assert (waiting.nbytes == 0) == (key == self.large)
        assert self.large is None or self.waiting[self.large].put is not None
        if self.ledger is None:
            assert self.sending is None
            assert all(waiting.due is None for waiting in self.waiting.values())
        if self.sending is not None:
            sending = self.sending
            assert sending.revision >= self.waiting[sending.key].revision
            assert sending.flight.keys() <= set(range(sending.next))
            assert sending.next <= sending.chunks.of


class Backlog(NamedTuple):
    """room: how many windows older than retention may be made final now, so that sinks get them before they are dropped.
    oldest_us: the start of the oldest window that waits for these sinks, and is retained until they have it; AFTER_ALL if none
    waits, or too many do."""

    room: int
    oldest_us: Micros


def backlog_of(taking: Sequence[SinkQueue]) -> Backlog:
    """By the sinks that take windows: one that takes none holds up nothing. Before a sink has reported its ledger, it may lack
    everything that was published: then nothing more is, and all is retained."""
    if any(sink.ledger is None for sink in taking):
        return Backlog(0, BEFORE_ALL)
    most = max((len(sink.waiting) for sink in taking), default=0)
    held = (sink.waiting for sink in taking if len(sink.waiting) <= 2 * BACKLOG_MAX)
    oldest_us = min((start for waiting in held for _, start in waiting), default=AFTER_ALL)
    return Backlog(max(0, BACKLOG_MAX - most), oldest_us)
