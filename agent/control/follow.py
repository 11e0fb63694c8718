"""Follows a job's windows from any agent: each one that its master publishes arrives once, whole, in the order of its revisions.

The machine in one sentence: every `period_us` a Watch is routed to the job's master; a window that comes back is accepted if its
revision is higher than the one accepted before, and is delivered at the next `take`.

    event                                | then
    -------------------------------------+-------------------------------------------------------------------------
    time, or another master serves       | Watch: the place up to which all was delivered, and the missing places
    Shown of a higher ballot             | another master serves: places are counted from 0 again
    Shown, WatchReply of a lower ballot  | dropped: that master no longer serves
    ShownPart                            | counts as a place like Shown; with its last part the window has arrived
    Shown, skipping places               | the skipped places are missing; the next Watch names them
    WatchReply: more sent than arrived   | the same
    WatchReply acknowledging places      | the missing ones among them are not named again
    WatchReply: refused                  | `is_refused`

Of each window the following is delivered, in this order:

    open, each of a higher revision     until it is final here
    final or revised, once              of a higher revision; or from a later master than the open one was. On the smaller side
                                        of a partition a master starts with an empty log, and publishes as open, under higher
                                        revisions, windows that were final in the log that later replaces its own
    revised, each of a higher revision  and with another content than the last one; never open or final again
    withdrawn                           then it may start again; final once more only if it never was

A master that takes over does not know its watchers: the next Watch, which is sent as soon as this node knows of the takeover,
names the oldest window that is not final here and asks for some before it, so that no final window is left out. `seen` counts
windows delivered, not windows received: a command that does not read stops the flow at the master, which then sends final
windows only, and later.

Invariants (`check`): the place in the last Watch is at most the place delivered, and that at most the highest place that arrived;
missing places are at most `MISSING_MAX`, none above the highest; known windows are at most `KNOWN_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from elf.agent.control.gathering import InMemory, PartStore
from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import fragment_of, put_bytes
from elf.srt.codec.wire import encode
from elf.srt.messages.compression import compress
from elf.srt.messages.effects import Effect, Route
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot, Message, Micros, Revision
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import WITHDRAWN, Put, Shown, ShownPart, Watch, WatchReply

NEVER: Micros = (1 << 63) - 1
ALWAYS: Micros = -(1 << 63)
BACK = 5
"""Final windows sent at the beginning, as `tail` does with lines."""
AGAIN = 16
"""Earlier final windows that are requested again from a master that takes over: some may have been lost on the way."""
KNOWN_MAX = 4_000
"""Windows whose revision is remembered: ten hours of ten seconds. Older ones are forgotten and could be delivered twice."""
MISSING_MAX = 64
SLACK = 4
"""Windows delivered after which the next Watch is sent at once, not with the next period."""
FINAL = ("final", "revised")
Content = tuple[int, tuple[Micros, Micros], int, int]
PARTS_BYTES_MAX = 64 << 20
"""Bound on a window's parts, as sent and stored: the most that its master would send without compression."""

WindowKey = tuple[str, Micros]


class Payloads:
    """Compressed parts, each read from its store when it is needed."""

    def __init__(self, store: PartStore, places: Sequence[Any]) -> None:
        self._store, self._places = store, places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._store.get, self._places)

    def headed(self, first: bytes) -> Payloads:
        """The same parts with another first one."""
        return Payloads(self._store, (self._store.put(first), *self._places[1:]))


WHOLE = Payloads(InMemory(), ())
"""The parts of a window that came in one message."""


class Parts(msgspec.Struct):
    """A window that comes in parts. place: the highest place of its parts. came: where each is in the store."""

    key: WindowKey
    revision: Revision
    of: int
    place: int
    store: Any
    came: dict[int, Any] = {}
    nbytes: int = 0


class Known(msgspec.Struct, frozen=True, gc=False):
    """The last accepted revision of a window. was_final: it or an earlier one was final."""

    revision: Revision
    status: str
    was_final: bool
    content: Content


def content_of(put: Put) -> Content:
    """The content of a window that a revision may change."""
    return put.digest, put.covers, put.agents_reporting, put.agents_expected


def follows(put: Put, known: Known) -> bool:
    """Rule Final*: whether that revision of a window replaces the known one."""
    if put.status == "open":
        return known.status not in FINAL and put.revision > known.revision
    is_later_masters = known.status == "open" and put.ballot > known.revision[:2]
    return put.revision > known.revision or is_later_masters


class Watcher:
    """One watch of a job. number: unique among the watches of a node. new_store: makes a store for the parts of a window."""

    def __init__(
        self,
        job: JobId,
        me: NodeId,
        number: int,
        parameters: Parameters,
        new_store: Callable[[], PartStore] = InMemory,
    ) -> None:
        self.job, self.number = job, number
        self._new_store = new_store
        self.ballot: Ballot = NO_BALLOT
        self.is_refused = False
        """Whether the master refuses this watch, since it has too many watchers."""
        self._me, self.period_us = me, parameters.emit_us
        self._due: int | None = None  # None: at once
        self._known: dict[WindowKey, Known] = {}
        self._waiting: deque[tuple[int, Put, Payloads]] = deque()
        self._parts: Parts | None = None
        self._highest = 0  # highest place that arrived
        self._seen = 0  # place up to which all is delivered
        self._reported_seen = 0  # the value of `_seen` in the last Watch
        self._missing: list[int] = []

    @property
    def held_bytes(self) -> int:
        """Memory of waiting windows, without stored parts. O(waiting windows)."""
        return sum(put_bytes(put) for _, put, _ in self._waiting)

    def step(self, source: NodeId, message: Message, now: int) -> None:
        """Take a message to this node; messages for other watches are ignored. Raises OSError: the store is full."""
        if isinstance(message, Shown) and message.number == self.number and message.job == self.job:
            self._on_shown(message)
        elif isinstance(message, ShownPart) and message.number == self.number and message.job == self.job:
            self._on_part(message)
        elif isinstance(message, WatchReply) and message.number == self.number and message.job == self.job:
            self._on_reply(message)

    def take(self) -> list[Put]:
        """As `take_parts`, with all rows in memory."""
        return [joined(put, parts) for put, parts in self.take_parts()]

    def take_parts(self) -> list[tuple[Put, Payloads]]:
        """The windows that arrived since the last call. A window in parts has no rows, but its compressed parts. The next Watch
        lets the master send more."""
        taken = [(put, parts) for _, put, parts in self._waiting]
        self._waiting.clear()
        self._seen = self._highest
        if self._seen - self._reported_seen >= SLACK:
            self._due = None
        return taken

    def renew(self) -> None:
        """Send a Watch at once, to another master that serves now and does not know this watch."""
        self._due = None

    def tick(self, now: int) -> list[Effect]:
        """Send the Watch if it is due."""
        if self._due is not None and self._due > now + self.period_us:
            self._due = now + self.period_us  # the clock went back
        if self._due is not None and now < self._due:
            return []
        self._due, self._reported_seen = now + self.period_us, self._seen
        watch = Watch(
            self.job,
            self._me,
            self.number,
            *self._wanted(),
            self.ballot,
            self._seen,
            tuple(self._missing),
        )
        return [Route(self.job, watch)]

    @property
    def deadline(self) -> int:
        """0: at once."""
        return 0 if self._due is None else self._due

    def _wanted(self) -> tuple[Micros, int]:
        """The start from which final windows are wanted, and how many earlier ones.

        The start is that of the oldest window that is not final here, else past all known ones. All windows are wanted if the
        first master had none to send.
        """
        if self.ballot == NO_BALLOT:
            return NEVER, BACK
        unfinal = [start for (_, start), known in self._known.items() if known.status == "open"]
        since = min(unfinal) if unfinal else max((start + 1 for _, start in self._known), default=ALWAYS)
        return since, min(AGAIN, sum(start < since for _, start in self._known))

    def _is_outdated(self, ballot: Ballot) -> bool:
        """Whether a message of that ballot is dropped, since a higher ballot is known (rule 7*)."""
        return ballot < self.ballot

    def _begin(self, ballot: Ballot) -> None:
        if ballot > self.ballot:
            self.ballot = ballot
            self._highest = self._seen = self._reported_seen = 0
            self._missing.clear()
            self._waiting = deque((0, put, parts) for _, put, parts in self._waiting)
            self._parts = None

    def _on_shown(self, shown: Shown) -> None:
        put = shown.put
        assert isinstance(put, Put)
        if self._is_outdated(put.ballot):
            return
        self._begin(put.ballot)
        self._arrived(shown.place)
        self._take(shown.place, put)

    def _arrived(self, place: int) -> None:
        if place in self._missing:
            self._missing.remove(place)
        self._note_missing(place - 1)
        self._highest = max(self._highest, place)

    def _on_part(self, part: ShownPart) -> None:
        """Parts arrive for one window at a time; places of the next window's parts are higher, so stragglers are recognised."""
        if self._is_outdated(part.ballot):
            return
        self._begin(part.ballot)
        self._arrived(part.place)
        about = (part.version, part.start), part.revision
        parts = self._parts
        if parts is None or (parts.key, parts.revision) != about:
            if parts is not None and part.place < parts.place:
                return
            parts = self._parts = Parts(*about, part.of, part.place, self._new_store())
        parts.place = max(parts.place, part.place)
        if part.at not in parts.came and part.at < parts.of == part.of:
            parts.came[part.at] = parts.store.put(part.payload)
            parts.nbytes += len(part.payload)
        if parts.nbytes > PARTS_BYTES_MAX:
            parts.came.clear()
        if len(parts.came) == parts.of:
            self._join(part.place, parts)
            parts.came, parts.store = {}, self._new_store()

    def _join(self, place: int, parts: Parts) -> None:
        """Join a window whose parts have all arrived. Drop it if its parts contradict one another: no master sends that."""
        try:
            first = fragment_of(parts.store.get(parts.came[0]))
        except PeerError:
            return
        if (first.version, first.start) == parts.key and first.revision == parts.revision:
            self._take(place, first, Payloads(parts.store, [parts.came[at] for at in range(parts.of)]))

    def _take(self, place: int, put: Put, parts: Payloads = WHOLE) -> None:
        key = (put.version, put.start)
        known, shown = self._known.get(key), put
        if put.status == WITHDRAWN if known is None else not follows(put, known):
            return
        was_final = known is not None and known.was_final
        if was_final and put.status == "final":  # its master does not know that the window was final before
            shown = replace(put, status="revised")
            parts = parts.headed(compress(encode(shown))) if parts else parts
        content = content_of(put)
        is_new = (
            known is None or known.status not in FINAL or put.status not in FINAL or known.content != content
        )
        self._known[key] = Known(shown.revision, shown.status, was_final or shown.status in FINAL, content)
        if is_new:
            self._waiting.append((place, replace(shown, rows=()) if parts else shown, parts))
        self._forget()

    def _note_missing(self, until: int) -> None:
        """Note the places after the highest that arrived, up to this one, as missing; only the last `MISSING_MAX` are kept."""
        self._missing += range(max(self._highest + 1, until + 1 - MISSING_MAX), until + 1)
        self._missing = self._missing[-MISSING_MAX:]

    def _forget(self) -> None:
        if len(self._known) > KNOWN_MAX:
            for key in sorted(self._known, key=lambda key: key[1])[: KNOWN_MAX // 4]:
                del self._known[key]

    def _on_reply(self, reply: WatchReply) -> None:
        if self._is_outdated(reply.ballot):
            return
        self.is_refused = reply.refused
        self._begin(reply.ballot)
        self._missing = [place for place in self._missing if place > reply.seen]
        if reply.last > self._highest:
            self._note_missing(reply.last)
            self._highest = reply.last

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self._reported_seen <= self._seen <= self._highest
        assert len(self._missing) <= MISSING_MAX
        assert all(0 < place <= self._highest for place in self._missing)
        assert len(self._known) <= KNOWN_MAX


def joined(put: Put, parts: Payloads) -> Put:
    """A window with the rows of all its parts. Raises PeerError. O(rows)."""
    if not parts:
        return put
    return replace(put, rows=tuple(row for part in parts for row in fragment_of(part).rows))
