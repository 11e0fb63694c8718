"""Windows on their way to durable sinks: each is sent again until the sink's ledger holds it, or something newer.

A sink is asked for its ledger first (which raises its fence), and gets nothing before it has told. Of a window only the highest
revision waits. At most `IN_FLIGHT_MAX` windows of a sink are repeated at a time, oldest first, so that one that was away for long
is not flooded when it comes back.

The rows that wait for a sink are bounded: past `outbox_bytes_max` a window waits with its key and revision alone, and is
read again from the job's state each time that it is its turn. One that is past retention by then is lost, which a Notice tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from elf.sinks.columns import ColumnRows
from elf.srt.effects import Effect, Notice, Send
from elf.srt.ids import JobId, NodeId, short
from elf.srt.messages import Ballot, LedgerAsk, LedgerTell, Micros, Put, PutTell
from elf.srt.parameters import Parameters

IN_FLIGHT_MAX = 16
WINDOW_BYTES = 500
"""What a window takes that has no rows."""
ROW_BYTES = 500
"""A row whose columns do not tell what they take: eight cells as objects, and a tuple."""
Revision = tuple[int, NodeId, int]
WindowKey = tuple[str, Micros]
Again = Callable[[WindowKey, str], Put | None]
"""Reads a final window again, to be told with that status; None if its rows are about to be others, of a later put."""


class _Waiting(msgspec.Struct):
    revision: Revision
    status: str
    put: Put | None  # None: to be read again
    nbytes: int  # of the rows that are kept
    due: int | None = None  # None: not sent yet


class _Sink(msgspec.Struct):
    ledger: dict[WindowKey, tuple[Revision, int]] | None = None
    ask_at: int | None = None
    waiting: dict[WindowKey, _Waiting] = {}
    nbytes: int = 0
    is_late: bool = False

    def keep(self, key: WindowKey, waiting: _Waiting, most: int) -> None:
        """It takes the place of what waited of that window; rows that have no room are not kept."""
        self.drop(key)
        if self.nbytes + waiting.nbytes > most:
            waiting.put, waiting.nbytes = None, 0
        self.waiting[key] = waiting
        self.nbytes += waiting.nbytes

    def drop(self, key: WindowKey) -> None:
        found = self.waiting.pop(key, None)
        self.nbytes -= found.nbytes if found is not None else 0


def rows_bytes(put: Put) -> int:
    """What the rows of a window hold in memory, roughly. O(columns)."""
    return int(put.rows.nbytes) if isinstance(put.rows, ColumnRows) else len(put.rows) * ROW_BYTES


def put_bytes(put: Put) -> int:
    """With the states of panes. O(columns + parts)."""
    return rows_bytes(put) + sum(len(part) for pane in put.panes for part, _ in pane.parts)


class Outbox:
    """What a master has to tell its sinks. fence: the highest ballot that refused ours, or None. with_open: whether sinks are
    told open windows too; those that keep states are not."""

    def __init__(
        self,
        job: JobId,
        ballot: Ballot,
        sinks: Iterable[NodeId],
        parameters: Parameters,
        again: Again = lambda key, status: None,
        with_open: bool = True,
    ) -> None:
        self.job, self.ballot, self.with_open = job, ballot, with_open
        self._parameters = parameters
        self._sinks = {sink: _Sink() for sink in sinks}
        self._again = again
        self.fence: Ballot | None = None
        self.lost = 0
        """Windows that could not be sent while they were retained."""

    def serve(self, sinks: Iterable[NodeId]) -> None:
        """These are the sinks now: one that is new is asked like the others, and gets what it lacks of all that is final."""
        before = self._sinks
        self._sinks = {sink: before.get(sink) or _Sink(is_late=True) for sink in sinks}

    @property
    def wants_open(self) -> bool:
        """Whether some sink is told open windows."""
        return self.with_open and bool(self._sinks)

    def is_late(self, source: NodeId) -> bool:
        """Whether that sink came when this master served already."""
        return source in self._sinks and self._sinks[source].is_late

    def put(self, put: Put, to: NodeId | None = None) -> None:
        """A final, revised or withdrawn window, to all sinks or one: until it is acknowledged."""
        for sink in self._sinks.values() if to is None else filter(None, [self._sinks.get(to)]):
            nbytes = max(put_bytes(put), WINDOW_BYTES)
            waiting = _Waiting(put.revision, put.status, put, nbytes)
            sink.keep((put.version, put.start), waiting, self._parameters.outbox_bytes_max)

    def retired(self, is_past: Callable[[str, Micros], bool]) -> list[Effect]:
        """Panes are gone: what waits without rows and was read from these is lost. O(windows that wait)."""
        lost: list[Effect] = []
        for to, sink in self._sinks.items():
            gone = [key for key, waiting in sink.waiting.items() if waiting.put is None and is_past(*key)]
            for key in gone:
                sink.drop(key)
            if gone:
                self.lost += len(gone)
                text = f"{len(gone)} windows were not sent to the sink {short(to)} while they were retained"
                lost.append(Notice("unsent", text, to))
        return lost

    def open(self, put: Put) -> list[Effect]:
        """An open window: once, the next one mends what is lost."""
        if not self.with_open:
            return []
        return [Send(to, put) for to, sink in self._sinks.items() if sink.ledger is not None]

    def told(self, source: NodeId, message: LedgerTell) -> Sequence[tuple[WindowKey, Revision, int]] | None:
        """A sink's ledger; None if it tells nothing new. See `is_refused`.

        The ask has raised the fence to this ballot: what was told under a lower one answers an earlier master, maybe this node.
        """
        sink = self._sinks.get(source)
        if sink is None or self.is_refused(message.fence) or sink.ledger is not None:
            return None
        if message.fence != self.ballot:
            return None
        sink.ledger = {key: (revision, digest) for key, revision, digest in message.entries}
        return message.entries

    def acknowledged(self, source: NodeId, message: PutTell) -> None:
        """A sink holds that revision."""
        sink = self._sinks.get(source)
        if sink is None or self.is_refused(message.fence):
            return
        key = (message.version, message.start)
        waiting = sink.waiting.get(key)
        if waiting is not None and message.revision >= waiting.revision:
            sink.drop(key)

    def is_refused(self, fence: Ballot) -> bool:
        """A sink that serves a higher ballot refuses this master, which must step down."""
        if fence > self.ballot:
            self.fence = fence if self.fence is None else max(fence, self.fence)
        return fence > self.ballot

    def ledgers(self) -> list[dict[WindowKey, tuple[Revision, int]]]:
        """The ledgers that were told, as they were then."""
        return [sink.ledger for sink in self._sinks.values() if sink.ledger is not None]

    @property
    def is_told(self) -> bool:
        """Whether every sink has told its ledger."""
        return all(sink.ledger is not None for sink in self._sinks.values())

    @property
    def waiting(self) -> int:
        """Windows that some sink has not acknowledged."""
        return sum(len(sink.waiting) for sink in self._sinks.values())

    def tick(self, now: int, since_us: Micros) -> list[Effect]:
        """Ask, and send (again)."""
        out: list[Effect] = []
        for to, sink in self._sinks.items():
            if sink.ledger is None:
                sink.ask_at = self._sooner(sink.ask_at, now, self._parameters.ask_us)
                if sink.ask_at is None or now >= sink.ask_at:
                    out.append(Send(to, LedgerAsk(self.job, self.ballot, since_us=since_us)))
                    sink.ask_at = now + self._parameters.ask_us
                continue
            for key, waiting in islice(sink.waiting.items(), IN_FLIGHT_MAX):
                waiting.due = self._sooner(waiting.due, now, self._parameters.ask_us_max)
                if waiting.due is None or now >= waiting.due:
                    put = waiting.put or self._again(key, waiting.status)
                    if put is not None:
                        out.append(Send(to, put))
                    first = waiting.due is None
                    waiting.due = now + (self._parameters.ask_us if first else self._parameters.ask_us_max)
        return out

    def _sooner(self, due: int | None, now: int, span: int) -> int | None:
        """A clock that went back lets nobody wait longer than `span`."""
        return None if due is None else min(due, now + span)

    def deadline(self) -> int | None:
        """When `tick` has work; 0 where something was never sent."""
        found: list[int] = []
        for sink in self._sinks.values():
            if sink.ledger is None:
                found.append(0 if sink.ask_at is None else sink.ask_at)
            else:
                first = islice(sink.waiting.values(), IN_FLIGHT_MAX)
                found += [0 if waiting.due is None else waiting.due for waiting in first]
        return min(found, default=None)
