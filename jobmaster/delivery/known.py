"""What a sink that moves has delivered, as far as its master knows, and how the node that would take it over learns of it.

That node then knows it even if the one that delivers and the master die together (rule Moving).

    delivered -> after `SHARE_US`: LedgerRequest that names it, and asks for nothing -> recorded there -> LedgerReport

What was not confirmed is sent again, ever later.

Invariants (`check`): what is under way is not confirmed yet; nothing waits for a node where there is none.
"""

from __future__ import annotations

from itertools import islice

from elf.jobmaster.delivery.ledger import ENTRIES_REPORTED_MAX
from elf.srt.messages.effects import Send
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Digest, Micros, Revision
from elf.srt.messages.results import LedgerEntries, LedgerReport, LedgerRequest

SHARE_US, SHARE_US_MAX = 1_000_000, 60_000_000
"""After a delivery; twice as long after each message that was not confirmed."""
SHARED_MAX = 500
"""Entries of one message: 40 KiB."""
NOTHING_SINCE: Micros = 1 << 62
HELD_MIN = 1_000
"""From so many results on, those of windows that the master retains no more are forgotten."""

WindowKey = tuple[str, Micros]
Held = tuple[Revision, Digest]


class Known:
    """Of one sink of a job."""

    def __init__(self) -> None:
        self._held: dict[WindowKey, Held] = {}
        self._standby: NodeId | None = None
        self._about: tuple[JobId, Ballot, str] = b"", (0, b""), ""
        self._unshared: dict[WindowKey, Held] = {}
        self._sent: dict[WindowKey, Held] = {}
        self._number = 0
        self._due: int | None = None
        self._wait_us = SHARE_US
        self._since_us: Micros = 0
        self._look_at = HELD_MIN

    def note(self, key: WindowKey, revision: Revision, digest: Digest) -> None:
        """The sink holds this result."""
        held = self._held.get(key)
        if held is None or revision > held[0]:
            self._held[key] = (revision, digest)
            if self._standby is not None:
                self._unshared[key] = (revision, digest)
        if len(self._held) > self._look_at:
            self._held = {each: held for each, held in self._held.items() if each[1] >= self._since_us}
            for old in sorted(self._held, key=lambda each: each[1])[:-ENTRIES_REPORTED_MAX]:
                del self._held[old]
            self._look_at = max(HELD_MIN, 2 * len(self._held))

    def entries(self, since_us: Micros) -> LedgerEntries:
        """The newest results of windows that start at or after that time."""
        known = [(key, *held) for key, held in self._held.items() if key[1] >= since_us]
        return tuple(known[-ENTRIES_REPORTED_MAX:])

    def share_with(self, node: NodeId | None, about: tuple[JobId, Ballot, str]) -> None:
        """That node would take the sink over; None for none. about: job, ballot, name of the sink."""
        if node != self._standby:
            self._standby, self._about = node, about
            self._unshared = dict(self._held) if node is not None else {}
            self._sent, self._due, self._wait_us = {}, None, SHARE_US

    def confirmed(self, source: NodeId, message: LedgerReport) -> None:
        """A node has recorded a message."""
        job, ballot, sink = self._about
        expected = (self._standby, job, ballot, sink, self._number)
        if (source, message.job, message.fence, message.sink, message.number) != expected:
            return
        for key, held in self._sent.items():
            if self._unshared[key] == held:
                del self._unshared[key]
        self._sent, self._due, self._wait_us = {}, None, SHARE_US

    def tick(self, now: int, since_us: Micros) -> list[Send]:
        """Send what is due. since_us: of the oldest window that the master retains."""
        self._since_us = since_us
        if self._standby is None or not self._unshared:
            return []
        if self._due is None or self._due > now + SHARE_US_MAX:  # later: the clock stepped back
            self._due = now + SHARE_US
        if now < self._due:
            return []
        self._sent = dict(islice(self._unshared.items(), SHARED_MAX))
        self._number += 1
        self._wait_us = min(2 * self._wait_us, SHARE_US_MAX)
        self._due = now + self._wait_us
        job, ballot, sink = self._about
        known = tuple((key, *held) for key, held in self._sent.items())
        return [Send(self._standby, LedgerRequest(job, ballot, self._number, NOTHING_SINCE, sink, known))]

    @property
    def deadline(self) -> int | None:
        """When `tick` has work."""
        return (self._due or 0) if self._unshared else None

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self._sent.keys() <= self._unshared.keys()
        assert not self._unshared or self._standby is not None
