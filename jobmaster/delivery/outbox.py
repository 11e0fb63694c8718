"""Sends windows to durable sinks: each is sent again until the sink acknowledges it, or a newer revision.

Each sink has an entry of its own, also among several at one node: its ledger, its windows that wait and those in flight. So a
sink that takes nothing delays no other (rule Alone*), and costs at most what the bounds below say.

The outbox first requests a sink's ledger (which raises the sink's fence), and sends windows only when the sink has reported it.
Of each window only the highest revision waits. The oldest are in flight: few of a sink that does not answer, so that one that
comes back after a long absence is not flooded, and many of one that does (`sink_queue`).

A window larger than a frame is sent in parts (`chunks`): one such window of a sink at a time, with a few parts in flight that the
sink has not acknowledged. A sink that has lost its parts answers with another `begun`, and receives all of them again. It
acknowledges the window, like any other, when all of it is durable. If a sink holds a window from before this log began, a result
with less than whole coverage is not sent there: it may lack lines that were lost with the earlier log.

A window larger than `window_bytes_max`, or than the sink accepts, is not sent, and a Notice reports it.

A sink that stores the states of panes gets no rows, and one that writes rows no states (`Target`).

Memory is bounded: past `outbox_bytes_max` only the key and the revision of a window wait, and its rows are read again from the
job's state when it is sent. One large window is kept in addition, whose states are under the budget, on disk if need be. A window
that is past retention when it is read is lost, and a Notice reports it.

    a sink      | what happens                         | next
    ------------+--------------------------------------+--------------------------------------------------
    new         | tick                                 | requested
    requested   | `ask_us` without an answer           | the ledger is requested again; put windows wait
                | LedgerReport under this ballot       | reported
                | any answer under a higher ballot     | `fence` is set: the master steps down
    reported    | a window waits, and is due           | sent, whole or in parts; again after `ask_us`, then `ask_us_max`
                | PutReply of it, or of a newer one    | it no longer waits
                | PartReply: received                  | the next part is sent
                | PartReply with another `begun`       | all parts are sent again
                | PartReply: too large for the sink    | dropped, with a Notice
                | put of a newer revision              | that waits in its place, and is sent from its beginning

Invariants (`check`): `nbytes` of each sink is the size of its waiting windows with rows, and at most `outbox_bytes_max`; only one
large window with rows waits in addition; a window that is being sent in parts also waits, in the same or a newer revision; parts
in flight were made, and are within the bound; nothing was sent to a sink before it reported its ledger; no rows wait for sinks
that take states only; a fence is above the own ballot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from elf.jobmaster.delivery.chunks import ChunkedWindow, put_bytes, whole
from elf.jobmaster.delivery.known import Held
from elf.jobmaster.delivery.ledger import UNKNOWN_ROWS
from elf.jobmaster.delivery.sink_queue import (
    Backlog,
    Revision,
    Sending,
    SinkQueue,
    Target,
    Waiting,
    WindowKey,
    backlog_of,
)
from elf.jobmaster.directory.settings import Settings
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import Ballot, Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import (
    NO_ROWS,
    WITHDRAWN,
    LedgerReport,
    LedgerRequest,
    PartReply,
    Put,
    PutPart,
    PutReply,
)

SLOW_TIMES = 2
"""A sink that has not answered a window sent so often gets fewer at a time: it was sent again after `ask_us` and `ask_us_max`."""
WINDOW_BYTES = 500
"""Memory of a window without rows."""
LATER: Final[Literal["later"]] = "later"
Reread = Callable[[WindowKey, str], Put | Literal["later"] | None]
"""Reads a final window again, to be sent with that status. Returns None if it cannot be read, or if its rows have changed, so
that a later put follows, and `LATER` while a large window is being read."""


class Lag(NamedTuple):
    """What waits for a sink. since: when the oldest of these came here. delivered, lost: windows since this master began."""

    target: Target
    waiting: int
    since: int | None
    delivered: int
    lost: int


class Outbox:
    """A master's windows for its sinks. fence: the highest ballot under which a sink refused this master, or None. with_open:
    whether sinks receive windows whole, and open ones too; without it, they receive final windows, and of these rows or states.
    is_before: whether a revision is from before the log began."""

    def __init__(
        self,
        job: JobId,
        ballot: Ballot,
        sinks: Iterable[Target],
        parameters: Parameters,
        reread: Reread = lambda key, status: None,
        with_open: bool = True,
        name: str = "",
        is_before: Callable[[Revision], bool] = lambda revision: False,
    ) -> None:
        self.job, self.ballot, self.with_open = job, ballot, with_open
        self.takes_open = with_open
        """Whether the sinks take open windows."""
        self._is_before = is_before
        self._parameters, self._name = parameters, name
        self._sinks = {target.name: SinkQueue(target) for target in sinks}
        self._stand_by()
        self._reread = reread
        self._new: list[Waiting] = []  # since the last tick
        self._now = self._since_us = 0
        self.fence: Ballot | None = None
        self.lost = 0
        """The number of windows that could not be sent while they were retained, or are too large."""

    def serve(self, sinks: Iterable[Target]) -> None:
        """Set the sinks. A sink that is new, or at another node now, is requested to report its ledger, and then receives the
        final windows that it lacks."""
        before = self._sinks
        self._sinks = {target.name: self._served(before.get(target.name), target) for target in sinks}
        self._stand_by()

    @staticmethod
    def _served(former: SinkQueue | None, target: Target) -> SinkQueue:
        """Rule Moving: a sink that moves to another node takes along what was delivered, and what waits."""
        if former is None:
            return SinkQueue(target, is_late=True)
        if former.target._replace(standby=target.standby) == target:
            former.target = target
            return former
        if not (former.target.moves and target.moves):
            return SinkQueue(target, is_late=True)
        former.forget_sent()
        is_late = former.is_late and former.ledger is None
        return replace(former, target=target, ledger=None, ask_at=None, sending=None, is_late=is_late)

    def _stand_by(self) -> None:
        for name, sink in self._sinks.items():
            sink.known.share_with(sink.target.standby, (self.job, self.ballot, name))

    @property
    def nbytes(self) -> int:
        """Memory of the windows that wait for sinks."""
        return sum(sink.held_bytes for sink in self._sinks.values())

    @property
    def wants_open(self) -> bool:
        """Whether some sink receives open windows."""
        return self.takes_open and bool(self._sinks)

    def route(self, settings: Settings) -> list[str]:
        """Rule Settings*: the sinks of a window with these settings: those that they name, and those that take all."""
        return [name for name, sink in self._sinks.items() if sink.target.takes_all or name in settings.sinks]

    def node_of(self, name: str) -> NodeId | None:
        """The node whose answers count for that sink."""
        return self._sinks[name].target.node if name in self._sinks else None

    @property
    def stores_states(self) -> bool:
        """Whether some sink stores the states of panes."""
        return any(not sink.target.takes_rows for sink in self._sinks.values())

    def is_late(self, name: str) -> bool:
        """Whether the sink was added after this master began to serve."""
        return name in self._sinks and self._sinks[name].is_late

    def put(self, put: Put, to: Collection[str]) -> None:
        """Send a final, revised or withdrawn window to the sinks of these names until it is acknowledged."""
        for sink in self._named(to):
            taken = self._taken(sink.target, put)
            nbytes = max(put_bytes(taken), WINDOW_BYTES)
            waiting = Waiting(put.revision, put.digest, put.status, taken, nbytes, nbytes)
            former = sink.waiting.get((put.version, put.start))
            waiting.since = former.since if former is not None else None
            self._new.append(waiting)
            sink.keep((put.version, put.start), waiting, self._parameters.outbox_bytes_max)

    def lacks(self, name: str, key: WindowKey, published: tuple[Revision, int, str]) -> None:
        """A sink lacks a window of the log; published: (revision, digest, status). It is read when it is sent, under that
        revision, so that a receiver which got it from another node knows it again."""
        sink = self._sinks.get(name)
        if sink is not None and key not in sink.waiting:
            waiting = Waiting(*published, put=None, nbytes=0)
            self._new.append(waiting)
            sink.keep(key, waiting, self._parameters.outbox_bytes_max)

    def _taken(self, target: Target, put: Put) -> Put:
        """What a sink takes of a window."""
        kept = put.rows if self.with_open or target.takes_rows else ()
        panes = put.panes if self.with_open or not target.takes_rows else ()
        return replace(put, rows=kept, panes=panes, sinks=(target.name,), since_us=self._since_us)

    def _named(self, names: Collection[str]) -> list[SinkQueue]:
        return [self._sinks[name] for name in self._sinks if name in names]

    @property
    def names(self) -> list[str]:
        """Of all sinks."""
        return list(self._sinks)

    def _by(self, source: NodeId, name: str) -> SinkQueue | None:
        """The sink of that name at that node; of a node of before, which names none, its only one."""
        if name:
            sink = self._sinks.get(name)
            return sink if sink is not None and sink.target.node == source else None
        here = [sink for sink in self._sinks.values() if sink.target.node == source]
        return here[0] if len(here) == 1 else None

    def named(self, source: NodeId, name: str) -> str:
        """The name of the sink of which a message of that node is, which may be one of before; "" if none."""
        sink = self._by(source, name)
        return sink.target.name if sink is not None else ""

    def retired(self, is_past: Callable[[str, Micros], bool]) -> list[Effect]:
        """Panes were dropped: windows that wait without rows, and would be read from them, are lost. O(waiting windows)."""
        lost: list[Effect] = []
        for sink in self._sinks.values():
            to = sink.target.node
            gone = [key for key, waiting in sink.waiting.items() if waiting.put is None and is_past(*key)]
            for key in gone:
                sink.drop(key)
            if gone:
                self.lost += len(gone)
                sink.lost += len(gone)
                text = (
                    f"{len(gone)} windows are lost for the sink {sink.target.name} at {short(to)}: it did not take them while "
                    "they were retained; check that sink, or retain windows longer"
                )
                lost.append(Notice("unsent", text, to))
        return lost

    def open(self, put: Put, to: Collection[str]) -> list[Effect]:
        """Send an open window once to the sinks of these names: if it is lost, the next one replaces it."""
        if not self.takes_open:
            return []
        if put_bytes(put) > self._parameters.frame_bytes_max:
            return []  # it is sent when it is final
        asked = [sink.target for sink in self._named(to) if sink.ledger is not None]
        return [Send(each.node, replace(put, sinks=(each.name,))) for each in asked]

    def ledger_reported(
        self, source: NodeId, message: LedgerReport
    ) -> Sequence[tuple[WindowKey, Revision, int]] | None:
        """A sink reported its ledger. Returns its entries, or None if it had reported it already. See `is_refused`.

        The request raised the sink's fence to this ballot, so a report under a lower fence answers an earlier master, maybe one
        on this node, and is ignored.
        """
        if message.sink in self._sinks:
            self._sinks[message.sink].known.confirmed(source, message)
        sink = self._by(source, message.sink)
        if sink is None or self.is_refused(message.fence) or sink.ledger is not None:
            return None
        if message.fence != self.ballot or message.number:  # numbered: what `Known` shares
            return None
        sink.ledger = {key: (revision, digest) for key, revision, digest in message.entries}
        if sink.target.moves:
            for entry in message.entries:
                sink.known.note(*entry)
        return message.entries

    def acknowledged(self, source: NodeId, message: PutReply) -> None:
        """A sink holds this revision."""
        sink = self._by(source, message.sink)
        if sink is None or self.is_refused(message.fence):
            return
        key = (message.version, message.start)
        waiting = sink.waiting.get(key)
        if waiting is not None and message.revision >= waiting.revision:
            if sink.target.moves:
                is_own = message.revision == waiting.revision
                sink.known.note(key, message.revision, waiting.digest if is_own else UNKNOWN_ROWS)
            sink.drop(key)
            sink.took()

    def part_acknowledged(self, source: NodeId, message: PartReply) -> list[Effect]:
        """A sink received a part, lost its parts, or refuses the window."""
        sink = self._by(source, message.sink)
        sending = sink.sending if sink is not None else None
        about = (message.version, message.start), message.revision
        if sink is None or sending is None or about != (sending.key, sending.revision):
            return []
        if message.room:
            return self._too_large(sink, sending.key, sending.chunks.nbytes, message.room)
        if sending.begun is not None and message.begun > sending.begun:
            sending.chunks.restart()
            sending.next, sending.flight, sending.ask_at = 0, {}, None
        elif sending.begun in (None, message.begun) and sending.flight.pop(message.at, None) is not None:
            sending.chunks.free(message.at)
        sending.begun = max(message.begun, sending.begun or 0)
        return []

    def _too_large(self, sink: SinkQueue, key: WindowKey, nbytes: int, bytes_max: int) -> list[Effect]:
        sink.drop(key)
        self.lost += 1
        sink.lost += 1
        name, most = sink.target.name, _size(bytes_max)
        text = (
            f"job {self._name or self.job.hex()}: the window of {_time(key[1])} has {_size(nbytes)}, but its sink "
            f"{name} takes at most {most}: it is not stored. Group by fewer or coarser keys, use shorter windows, or add a WHERE"
        )
        return [Notice("too large", text, sink.target.node)]

    def is_refused(self, fence: Ballot) -> bool:
        """Whether this fence of a sink is above the own ballot: the sink refuses this master, which must step down."""
        if fence > self.ballot:
            self.fence = fence if self.fence is None else max(fence, self.fence)
        return fence > self.ballot

    def ledgers(self) -> list[dict[WindowKey, Held]]:
        """The ledgers that sinks have reported, as they were then."""
        return [sink.ledger for sink in self._sinks.values() if sink.ledger is not None]

    @property
    def has_ledgers(self) -> bool:
        """Whether every sink has reported its ledger."""
        return all(sink.ledger is not None for sink in self._sinks.values())

    @property
    def waiting(self) -> int:
        """The number of windows that some sink has not acknowledged."""
        return sum(len(sink.waiting) for sink in self._sinks.values())

    @property
    def lags(self) -> list[Lag]:
        """What waits for each sink. O(windows that wait)."""
        return [
            Lag(
                sink.target,
                len(sink.waiting),
                min((each.since for each in sink.waiting.values() if each.since is not None), default=None),
                sink.delivered,
                sink.lost,
            )
            for sink in self._sinks.values()
        ]

    @property
    def oldest_us(self) -> Micros:
        """The start of the oldest window that a sink has not acknowledged; AFTER_ALL if there is none. O(windows that wait)."""
        return min((start for sink in self._sinks.values() for _, start in sink.waiting), default=AFTER_ALL)

    @property
    def backlog(self) -> Backlog:
        """Rule Backlog*: what the sinks that take windows allow. O(windows that wait)."""
        return backlog_of([sink for sink in self._sinks.values() if sink.takes(self._now)])

    def tick(self, now: int, since_us: Micros) -> list[Effect]:
        """Request ledgers and send windows; repeat what was not answered in time. since_us: see `Put`."""
        out: list[Effect] = []
        self._now, self._since_us = now, since_us
        for waiting in self._new:
            waiting.since = now if waiting.since is None else waiting.since
        self._new = []
        for sink in self._sinks.values():
            out += sink.known.tick(now, since_us)
            sink.look(now)
            if sink.ledger is None:
                sink.ask_at = _sooner(sink.ask_at, now, self._parameters.ask_us)
                if sink.ask_at is None or now >= sink.ask_at:
                    known, name = sink.known.entries(since_us), sink.target.name
                    about = LedgerRequest(self.job, self.ballot, since_us=since_us, sink=name, known=known)
                    out.append(Send(sink.target.node, about))
                    sink.ask_at = now + self._parameters.ask_us
                continue
            out += self._repeat(sink, now)
            for key, waiting in self._next(sink):
                out += self._send_due(sink, key, waiting, now)
            if sink.sending is not None:
                out += self._send_parts(sink.target, sink.sending, now)
        return out

    def _next(self, sink: SinkQueue) -> list[tuple[WindowKey, Waiting]]:
        """Rule Alone*: those of a sink's windows that may be sent now, whatever waits for others."""
        return sink.next()

    def _repeat(self, sink: SinkQueue, now: int) -> list[Effect]:
        """Send again what was not answered in time. O(1) before the first of these is due."""
        if sink.due_at is None or sink.due_at - self._parameters.ask_us_max <= now < sink.due_at:
            return []
        out: list[Effect] = []
        is_slow, parts = False, sink.sending.key if sink.sending is not None else None
        for key, waiting in sink.in_flight():
            if key != parts:
                sent = self._send_due(sink, key, waiting, now)
                is_slow |= bool(sent) and waiting.times > SLOW_TIMES
                out += sent
        if is_slow:
            sink.slow_down()
        parts = sink.sending.key if sink.sending is not None else None
        sink.due_at = min((each.due or 0 for key, each in sink.in_flight() if key != parts), default=None)
        return out

    def _send_due(self, sink: SinkQueue, key: WindowKey, waiting: Waiting, now: int) -> list[Effect]:
        """Send a waiting window if it is due."""
        waiting.due = _sooner(waiting.due, now, self._parameters.ask_us_max)
        if waiting.due is not None and now < waiting.due:
            return []
        put = waiting.put or self._reread(key, waiting.status)
        wait_us = self._parameters.ask_us if waiting.due is None else self._parameters.ask_us_max
        sink.sends(waiting, now + (self._parameters.read_us if put == LATER else wait_us))
        if put is None or put == LATER:
            return []
        if self.is_worse(put, sink.ledger.get(key) if sink.ledger is not None else None):
            sink.drop(key)
            return []
        put = self._taken(sink.target, put)
        nbytes = put_bytes(put)
        if nbytes > self._parameters.window_bytes_max:
            return self._too_large(sink, key, nbytes, self._parameters.window_bytes_max)
        if nbytes <= self._parameters.frame_bytes_max:
            return [Send(sink.target.node, whole(put))]
        if sink.sending is None:
            chunks = ChunkedWindow(put, self._parameters.frame_bytes_max)
            sink.sending = Sending(key, put.revision, chunks)
        return []

    def is_worse(self, put: Put, held: Held | None) -> bool:
        """Rule 8*: whether the sink holds a result from before this log began, and the new one has less than whole coverage."""
        is_result = held is not None and held[1] != NO_ROWS and self._is_before(held[0])
        return is_result and put.status != WITHDRAWN and put.agents_reporting < put.agents_expected

    def _send_parts(self, to: Target, sending: Sending, now: int) -> list[Effect]:
        """Send as many parts as may be in flight; send parts again that were not answered in time."""
        p, flight, out = self._parameters, sending.flight, list[Effect]()
        for at, (due, wait) in list(flight.items()):
            due = min(due, now + p.ask_us_max)
            flight[at] = due, wait
            if now >= due:
                flight[at] = now + wait, min(2 * wait, p.ask_us_max)
                out.append(self._part(to, sending, at))
        most = self._flight_max(sending)
        while sending.next < sending.chunks.of and len(flight) < most:
            flight[sending.next] = now + p.ask_us, 2 * p.ask_us
            out.append(self._part(to, sending, sending.next))
            sending.next += 1
        if not flight:
            sending.ask_at = _sooner(sending.ask_at, now, p.ask_us_max)
            if sending.ask_at is not None and now >= sending.ask_at:
                out.append(self._part(to, sending, sending.chunks.of - 1))
                sending.ask_at = None
            if sending.ask_at is None:
                sending.ask_at = now + p.ask_us_max
        return out

    def _flight_max(self, sending: Sending) -> int:
        """The bound of parts in flight: half of a link's window, but one part until the sink has accepted a part."""
        p = self._parameters
        return max(1, p.link_bytes_max // 2 // p.frame_bytes_max) if sending.begun is not None else 1

    def _part(self, to: Target, sending: Sending, at: int) -> Send:
        chunks = sending.chunks
        about = (self.job, self.ballot, *sending.key, sending.revision)
        part = PutPart(*about, at, chunks.of, chunks.nbytes, chunks.payload(at), to.name)
        return Send(to.node, part)

    def deadline(self) -> int | None:
        """When `tick` has work; 0 if something has not been sent yet."""
        found: list[int] = []
        for sink in self._sinks.values():
            if sink.known.deadline is not None:
                found.append(sink.known.deadline)
            if sink.ledger is None:
                found.append(0 if sink.ask_at is None else sink.ask_at)
            else:
                sending = sink.sending
                if sink.due_at is not None:
                    found.append(sink.due_at)
                if self._next(sink):
                    found.append(0)
                if sending is not None:
                    found += [due for due, _ in sending.flight.values()]
                    if not sending.flight:
                        found.append(sending.ask_at or 0)
        return min(found, default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(windows that wait)."""
        assert self.fence is None or self.fence > self.ballot
        for name, sink in self._sinks.items():
            assert name == sink.target.name
            sink.check(self._parameters.outbox_bytes_max)
            sink.known.check()
            takes_rows = self.with_open or sink.target.takes_rows
            for waiting in sink.waiting.values():
                assert takes_rows or waiting.put is None or not waiting.put.rows
            if sink.sending is not None:
                assert len(sink.sending.flight) <= self._flight_max(sink.sending)


def _sooner(due: int | None, now: int, span: int) -> int | None:
    """If the clock stepped back, wait no longer than `span`."""
    return None if due is None else min(due, now + span)


def _time(start: Micros) -> str:
    """UTC, to the second."""
    try:
        return str(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=start))[:19]
    except OverflowError:
        return str(start)


def _size(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB" if nbytes >= 10 << 20 else f"{nbytes / 1024:,.0f} KiB"
