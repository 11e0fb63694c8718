"""Following a job's windows from any agent: each that its master publishes comes once, whole, in the order of its revisions.

The machine in one sentence: a Watch goes to the job's master, by the overlay's routes, again each `period_us`; what comes back
is taken if its revision is higher than what was taken of that window, and handed on when somebody asks.

    event                                | then
    -------------------------------------+-------------------------------------------------------------------------
    time, or another master serves       | Watch: up to which place all was handed on, and which places never came
    Shown of a higher ballot             | another master serves: places begin anew
    Shown, WatchReply of a lower one      | dropped: that master serves no more
    ShownPart                            | its place as of a Shown; when all parts are there, the window has come
    Shown, a place left out              | the places between are missing; the next Watch says so
    WatchReply: told more than came       | the same
    WatchReply that knows what is missing | they are not said again
    WatchReply: refused                   | `is_refused`

What is handed on of one window, in order:

    open, each of a higher revision     until it is final here
    final or revised, once              of a higher revision; or told by a later master than what was open. On the smaller side
                                        of a partition a master begins with an empty log, and finds as open what was final,
                                        under revisions above those of the log that it gives way to
    revised, each of a higher revision  and other than the word before; nothing that is open, and final never again
    withdrawn                           then it may begin anew; final once more only if it never was

A master that takes over does not know who watches: the next Watch, which goes out when this node hears of it, names the oldest
window that is not final here and asks for some before, so that nothing final is left out. `seen` counts what was handed on, not
what came: whoever does not read stops the flow at its master, which then tells final windows only, and later.

Invariants (`check`): what waits is in order of places, none of them handed on.
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
"""Final windows told at the beginning: what `tail` does with lines."""
AGAIN = 16
"""Final windows that a master which takes over is asked for besides: of those before, some may have been on their way."""
KNOWN_MAX = 4_000
"""Windows whose revision is remembered: ten hours of ten seconds. Older ones are forgotten, and could come twice."""
MISSING_MAX = 64
SLACK = 4
"""So many windows handed on, or their bytes, are told at once instead of with the next period."""
FINAL = ("final", "revised")
Content = tuple[int, tuple[Micros, Micros], int, int]
PARTS_BYTES_MAX = 64 << 20
"""Of a window in parts, as they travel and lie on the store: what its master tells at most, were it not compressed."""

WindowKey = tuple[str, Micros]


class Payloads:
    """Parts as they travel, read when they are asked for."""

    def __init__(self, store: PartStore, places: Sequence[Any]) -> None:
        self._store, self._places = store, places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        return map(self._store.get, self._places)

    def headed(self, first: bytes) -> Payloads:
        """The same behind another first one."""
        return Payloads(self._store, (self._store.put(first), *self._places[1:]))


WHOLE = Payloads(InMemory(), ())
"""Of a window that came as one."""


class Parts(msgspec.Struct):
    """A window that comes in parts. place: the highest of them. came: where they lie on the store."""

    key: WindowKey
    revision: Revision
    of: int
    place: int
    store: Any
    came: dict[int, Any] = {}
    nbytes: int = 0


class Known(msgspec.Struct, frozen=True, gc=False):
    """The last word on a window. was_final: it, or one before."""

    revision: Revision
    status: str
    was_final: bool
    content: Content


def content_of(put: Put) -> Content:
    """What a revision may change."""
    return put.digest, put.covers, put.agents_reporting, put.agents_expected


def follows(put: Put, known: Known) -> bool:
    """Rule Final*: whether a word on a window counts for somebody who knows that one."""
    if put.status == "open":
        return known.status not in FINAL and put.revision > known.revision
    is_later_masters = known.status == "open" and put.ballot > known.revision[:2]
    return put.revision > known.revision or is_later_masters


class Watcher:
    """One watch of a job. `number` tells those of one node apart. store: makes one for the parts of a window."""

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
        """The master has too many watchers."""
        self._me, self.period_us = me, parameters.emit_us
        self._due: int | None = None  # None: at once
        self._known: dict[WindowKey, Known] = {}
        self._waiting: deque[tuple[int, Put, Payloads]] = deque()
        self._parts: Parts | None = None
        self._highest = 0  # place that came
        self._seen = 0  # place up to which all is handed on
        self._reported_seen = 0  # what the last Watch said of that
        self._missing: list[int] = []

    @property
    def held_bytes(self) -> int:
        """Of windows that wait, without what lies on shelves. O(windows that wait)."""
        return sum(put_bytes(put) for _, put, _ in self._waiting)

    def step(self, source: NodeId, message: Message, now: int) -> None:
        """A message to this node; those of other watches are left alone. Raises OSError: the store takes no more."""
        if isinstance(message, Shown) and message.number == self.number and message.job == self.job:
            self._on_shown(message)
        elif isinstance(message, ShownPart) and message.number == self.number and message.job == self.job:
            self._on_part(message)
        elif isinstance(message, WatchReply) and message.number == self.number and message.job == self.job:
            self._on_reply(message)

    def take(self) -> list[Put]:
        """As `take_parts`, with all their rows in memory."""
        return [joined(put, parts) for put, parts in self.take_parts()]

    def take_parts(self) -> list[tuple[Put, Payloads]]:
        """Windows that came, once each; one that came in parts without rows, and all of them as they travel. Who takes them is
        ready for more."""
        taken = [(put, parts) for _, put, parts in self._waiting]
        self._waiting.clear()
        self._seen = self._highest
        if self._seen - self._reported_seen >= SLACK:
            self._due = None
        return taken

    def renew(self) -> None:
        """Another master serves, and does not know that this is watched: it is told at once."""
        self._due = None

    @property
    def has_news(self) -> bool:
        return bool(self._waiting)

    def tick(self, now: int) -> list[Effect]:
        """Say that somebody watches."""
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
        """From which start on final windows are wanted: that of the oldest that is not final here, else past all that is known;
        and how many before that. Where nothing was there to be told at first, all."""
        if self.ballot == NO_BALLOT:
            return NEVER, BACK
        unfinal = [start for (_, start), known in self._known.items() if known.status == "open"]
        since = min(unfinal) if unfinal else max((start + 1 for _, start in self._known), default=ALWAYS)
        return since, min(AGAIN, sum(start < since for _, start in self._known))

    def _is_others(self, ballot: Ballot) -> bool:
        """Rule 7*: ballots are compared in order, and what a lower one says does not count."""
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
        if self._is_others(put.ballot):
            return
        self._begin(put.ballot)
        self._came(shown.place)
        self._take(shown.place, put)

    def _came(self, place: int) -> None:
        if place in self._missing:
            self._missing.remove(place)
        self._miss(place - 1)
        self._highest = max(self._highest, place)

    def _on_part(self, part: ShownPart) -> None:
        """Of one window at a time; the places of the next one's parts are all higher, so that a straggler is known as such."""
        if self._is_others(part.ballot):
            return
        self._begin(part.ballot)
        self._came(part.place)
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
        """All are there. What its master cannot have said is dropped."""
        try:
            first = fragment_of(parts.store.get(parts.came[0]))
        except PeerError:
            return
        if (first.version, first.start) == parts.key and first.revision == parts.revision:
            self._take(place, first, Payloads(parts.store, [parts.came[at] for at in range(parts.of)]))

    def _take(self, place: int, put: Put, parts: Payloads = WHOLE) -> None:
        key = (put.version, put.start)
        known, told = self._known.get(key), put
        if put.status == WITHDRAWN if known is None else not follows(put, known):
            return
        was_final = known is not None and known.was_final
        if was_final and put.status == "final":  # by a master that does not know it
            told = replace(put, status="revised")
            parts = parts.headed(compress(encode(told))) if parts else parts
        content = content_of(put)
        is_new = (
            known is None or known.status not in FINAL or put.status not in FINAL or known.content != content
        )
        self._known[key] = Known(told.revision, told.status, was_final or told.status in FINAL, content)
        if is_new:
            self._waiting.append((place, replace(told, rows=()) if parts else told, parts))
        self._forget()

    def _miss(self, until: int) -> None:
        """Places after the highest that came, up to this one, never did; of very many only the last are asked for."""
        self._missing += range(max(self._highest + 1, until + 1 - MISSING_MAX), until + 1)
        self._missing = self._missing[-MISSING_MAX:]

    def _forget(self) -> None:
        if len(self._known) > KNOWN_MAX:
            for key in sorted(self._known, key=lambda key: key[1])[: KNOWN_MAX // 4]:
                del self._known[key]

    def _on_reply(self, reply: WatchReply) -> None:
        if self._is_others(reply.ballot):
            return
        self.is_refused = reply.refused
        self._begin(reply.ballot)
        self._missing = [place for place in self._missing if place > reply.seen]
        if reply.last > self._highest:
            self._miss(reply.last)
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
