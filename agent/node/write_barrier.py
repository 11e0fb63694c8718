"""What stands behind writes that are not durable yet, and how long the oldest of them has waited.

In one sentence: a write begins, with what waits behind it, and a report that the oldest write is durable gives back what waited.

What waits is bounded in time and in number: where the oldest write is not durable after `span_us`, or more than `HELD_MAX` wait,
`is_over` says so, and the node steps aside (`elf.agent.node.mesh_node`): all of it is let go, since everything here comes again
or is made again.

    what waits                              | if it never leaves
    ----------------------------------------+----------------------------------------------------------------------------------
    StateRequest, StateReport, Fetch, Handover    | who asks repeats it each ask_us, and does not wait for the silent for ever
    Append, Install, Held                   | the next master sends its own; a replica that says nothing is left out
    Commit, Split, Resend, Bundle, Control  | links begin anew, and whoever keeps a bundle sends it again to the next parent
    Hello, TreeJoin, Put, LedgerRequest, gossip | datagrams, repeated until they are answered
    PutReply, LedgerReport                     | the master repeats its Put or its question
    Read, Notice                            | depend on no disk, and are let through

A process that slept, or a clock that jumped, is no reason: who looks late looks once more.
"""

from __future__ import annotations

from collections import deque

from elf.srt.messages.effects import Effect

HELD_MAX = 10_000
"""Writes and what waits behind them: seconds of a busy master's, 10 MB beside rows, entries and states that are kept anyway."""
LATE_SHARE = 8
"""Who looks later than this part of the span has slept."""


class WriteBarrier:
    """Of one node. `last`: owner -> what waits behind its last write; whatever the owner asks for next is added there, and to
    `count`. A core like others: it has a deadline."""

    __slots__ = ("_late", "_span_us", "_writes", "begun", "count", "deadline", "done", "last")

    def __init__(self, span_us: int) -> None:
        self._span_us = span_us
        self._writes: deque[tuple[object, list[Effect], int]] = deque()  # the oldest first; when each began
        self.last: dict[object, list[Effect]] = {}
        self.count = 0
        """Of effects that wait."""
        self.begun = self.done = 0
        """How many writes ever."""
        self.deadline: int | None = None
        self._late = False

    def __len__(self) -> int:
        """Writes that are not durable."""
        return len(self._writes)

    def begin(self, owner: object, now: int) -> list[Effect]:
        """A write goes to the disk: what waits behind it."""
        waiting: list[Effect] = []
        self._writes.append((owner, waiting, now))
        self.begun += 1
        if owner is not None:
            self.last[owner] = waiting
        if self.deadline is None:
            self.deadline = now + self._span_us
        return waiting

    def durable(self) -> list[Effect]:
        """The oldest write is: what may happen now."""
        owner, waiting, _ = self._writes.popleft()
        self.done += 1
        self.count -= len(waiting)
        self._late = False
        if owner is not None and self.last.get(owner) is waiting:
            del self.last[owner]
        return waiting

    def let_go(self) -> list[Effect]:
        """Nothing waits any more; what did, in order. The writes go on."""
        freed = [effect for _, waiting, _ in self._writes for effect in waiting]
        self._writes = deque((None, [], since) for _, _, since in self._writes)
        self.last.clear()
        self.count, self._late = 0, False
        return freed

    @property
    def is_over(self) -> bool:
        """Whether it has lasted too long, or has become too much."""
        return self._late or self.count + len(self._writes) > HELD_MAX

    def tick(self, now: int) -> list[Effect]:
        """Look how long the oldest has waited."""
        due, self.deadline = self.deadline, None
        if not self._writes or due is None:
            return []
        owner, waiting, since = self._writes[0]
        if since > now or now - due > self._span_us // LATE_SHARE:  # the clock stepped back, or nobody looked
            since = now
            self._writes[0] = (owner, waiting, since)
        self.deadline = since + self._span_us
        if now >= self.deadline:
            self._late, self.deadline = True, now + self._span_us
        return []

    def clock_stepped(self, now: int) -> None:
        """The clock was set back."""
        if self.deadline is not None:
            self.deadline = min(self.deadline, now + self._span_us)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(writes)."""
        assert self.count == sum(len(waiting) for _, waiting, _ in self._writes)
        assert self.begun - self.done == len(self._writes)
        assert not self._writes or self.deadline is not None
        waiting = [id(each) for _, each, _ in self._writes]
        assert all(id(each) in waiting for each in self.last.values())
