"""Tells sinks of alerts: every transition that fires or resolves, in order, until the sink's node has acknowledged it.

The book of alerts numbers these transitions, and keeps the last of them in the job's log. A sink's cursor is the last number
that it has delivered, beside its ledger on its node's disk. So a new master first asks for the cursor (a message without
transitions), and a node that lost it gets all that the book still has, with the same ids. A sink that moves to another node
continues after the cursor of the node before (rule Moving): the question names it. The node that would take over is asked the
same when the cursor has moved, so that it knows it also if that node and the master die together.

    a sink | what happens                       | next
    -------+------------------------------------+-----------------------------------------------------------
    new    | an alert goes to it                | asked for its cursor
    asked  | AlertReply                         | known
           | no answer in time                  | asked again
    known  | transitions after its cursor       | sent, `CHUNK_BYTES` at a time; again if there is no answer in time
           | it repeats, and something fires    | all that fire, every `REPEAT_US`; nobody acknowledges that

Invariants (`check`): a cursor never falls; at most one message with transitions is under way to a sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from elf.jobmaster.alerts.book import Book, Notification, Transition
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot
from elf.srt.messages.results import AlertPut, AlertReply

ASK_US, ASK_US_MAX = 2_000_000, 60_000_000
"""Before an unanswered message is sent again: doubled each time. A sink that is down acknowledges late, and drops repetitions."""
SHARE_US = 1_000_000
"""After which the node that would take a sink over hears of its cursor."""
REPEAT_US = 60_000_000
"""Alertmanager expects to hear again of what fires every 30 s to 3 min."""
CHUNK_BYTES = 48 << 10
"""Transitions of one message: one has at most some 6 KiB."""

NodesOf = Callable[[str], Sequence[NodeId]]
"""Name of a sink -> the node that serves it, and the one that would take it over (rule Moving), if there are any."""

_encoder = msgspec.msgpack.Encoder()


class _Sink(msgspec.Struct):
    node: NodeId
    taken: int = 0  # the cursor of the node before, which this one takes over
    cursor: int | None = None
    sent: int = 0  # the last transition of the message that is under way
    due: int = 0
    wait_us: int = ASK_US
    standby: NodeId | None = None
    shared: int = 0  # the cursor that the standby has recorded
    share_due: int = 0
    share_wait_us: int = SHARE_US
    repeats: bool = False
    repeat_at: int = 0
    has_lost: bool = False


class AlertOutbox:
    """A master's alerts for sinks. log: the ballot under which the job's log began: numbers count within it."""

    def __init__(self, job: JobId, name: str, ballot: Ballot, nodes_of: NodesOf = lambda name: ()) -> None:
        self._job, self._name, self._ballot, self._nodes_of = job, name, ballot, nodes_of
        self._sinks: dict[str, _Sink] = {}
        self._names: list[str] = []
        self._due: int | None = None

    @property
    def deadline(self) -> int | None:
        """When `tick` has work."""
        return self._due

    def cursor(self, name: str) -> int:
        """The last change that this sink has delivered, as far as is known."""
        sink = self._sinks.get(name)
        return sink.cursor or 0 if sink is not None else 0

    def node_of(self, name: str) -> NodeId | None:
        """The node whose answers count for that sink."""
        sink = self._sinks.get(name)
        return sink.node if sink is not None else None

    def changed(self, book: Book) -> None:
        """A judgement is in the log, or this master has begun. O(history)."""
        notifications = [each.change for each in book.history]
        self._names = list(
            dict.fromkeys(name for each in (*notifications, *book.firing()) for name in each.sinks)
        )
        if self._names:
            self._due = 0

    def moved(self) -> None:
        """Other nodes may serve the sinks now: look at once, and not when the next answer is due."""
        if self._names:
            self._due = 0

    def acknowledged(self, source: NodeId, reply: AlertReply, log: Ballot) -> None:
        """A sink's node says how far it has delivered."""
        sink = self._sinks.get(reply.sink)
        if sink is not None and sink.standby == source and reply.log == log:
            sink.shared = max(sink.shared, reply.number)
            sink.share_due, sink.share_wait_us = 0, SHARE_US
            self._due = 0
        if sink is None or sink.node != source or reply.log != log:
            return
        sink.repeats = reply.repeats
        if sink.cursor is None or reply.number > sink.cursor:
            sink.cursor = reply.number
            if reply.number >= sink.sent:  # and not one of several that it has got
                sink.due, sink.wait_us = 0, ASK_US
                self._due = 0

    def tick(self, book: Book, log: Ballot, now: int) -> list[Effect]:
        """Send what is due. O(1) while nothing is."""
        if self._due is None or now < self._due <= now + ASK_US_MAX:  # later: the clock stepped back
            return []
        out: list[Effect] = []
        dues = [due for name in self._names for due in self._serve(name, book, log, now, out)]
        self._due = min(dues, default=None)
        return out

    def _serve(self, name: str, book: Book, log: Ballot, now: int, out: list[Effect]) -> Iterator[int]:
        """Send to one sink; yields when it is due next."""
        nodes = self._nodes_of(name)
        if not nodes:
            yield now + ASK_US  # a node may come that serves it
            return
        node = nodes[0]
        known = self._sinks.get(name)
        former = 0 if known is None else known.taken if known.cursor is None else known.cursor
        sink = known if known is not None and known.node == node else _Sink(node, former)
        self._sinks[name] = sink
        waits = self._chunk(name, sink, book)
        if sink.cursor is None or waits:
            if now >= sink.due or sink.due > now + ASK_US_MAX:
                out += self._lost(name, sink, book)
                number = waits[-1].number if waits else sink.taken
                out.append(Send(node, self._put(name, log, number, waits)))
                sink.sent = number if waits else 0
                sink.due, sink.wait_us = now + sink.wait_us, min(2 * sink.wait_us, ASK_US_MAX)
            yield sink.due
        yield from self._share(name, sink, nodes[1:], log, now, out)
        if sink.repeats:
            firing = [each for each in book.firing() if name in each.sinks]
            if firing and (now >= sink.repeat_at or sink.repeat_at > now + REPEAT_US):
                out += [Send(node, self._firing(name, log, part)) for part in _parts(firing)]
                sink.repeat_at = now + REPEAT_US
            if firing:
                yield sink.repeat_at

    def _share(
        self, name: str, sink: _Sink, standby: Sequence[NodeId], log: Ballot, now: int, out: list[Effect]
    ) -> Iterator[int]:
        """Rule Moving: the node that would take over hears of the cursor, as it would then."""
        node = standby[0] if standby else None
        if sink.standby != node:
            sink.standby, sink.shared, sink.share_due, sink.share_wait_us = node, 0, 0, SHARE_US
        if node is None or not sink.cursor or sink.shared >= sink.cursor:
            return
        if not sink.share_due or sink.share_due > now + ASK_US_MAX:
            sink.share_due = now + SHARE_US
        elif now >= sink.share_due:
            out.append(Send(node, self._put(name, log, sink.cursor, ())))
            sink.share_wait_us = min(2 * sink.share_wait_us, ASK_US_MAX)
            sink.share_due = now + sink.share_wait_us
        yield sink.share_due

    def _chunk(self, name: str, sink: _Sink, book: Book) -> list[Notification]:
        """The next transitions for a sink whose cursor is known."""
        found: list[Notification] = []
        size = 0
        for each in book.history if sink.cursor is not None else ():
            if each.number > (sink.cursor or 0) and name in each.change.sinks:
                size += each.change.nbytes
                if found and size > CHUNK_BYTES:
                    break
                found.append(each)
        return found

    def _put(self, name: str, log: Ballot, number: int, notifications: Sequence[Notification]) -> AlertPut:
        return AlertPut(self._job, self._ballot, name, log, number, _encoder.encode(tuple(notifications)))

    def _firing(self, name: str, log: Ballot, firing: Sequence[Transition]) -> AlertPut:
        notifications = tuple(Notification(0, each) for each in firing)
        return AlertPut(self._job, self._ballot, name, log, 0, _encoder.encode(notifications), True)

    def _lost(self, name: str, sink: _Sink, book: Book) -> Iterator[Effect]:
        """A notice, once, if a sink was away for so long that the book has dropped transitions that it lacks."""
        first = book.history[0].number if book.history else 1
        if sink.cursor is not None and sink.cursor + 1 < first and not sink.has_lost:
            sink.has_lost = True
            count = first - sink.cursor - 1
            text = f"job {self._name}: the sink {name} was away for too long: up to {count} changes of alerts are not sent to it"
            yield Notice("alerts lost", text, sink.node)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert all(sink.cursor is None or sink.cursor >= 0 for sink in self._sinks.values())


def _parts(firing: Iterable[Transition]) -> Iterator[list[Transition]]:
    part: list[Transition] = []
    size = 0
    for each in firing:
        if part and size + each.nbytes > CHUNK_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += each.nbytes
    if part:
        yield part
