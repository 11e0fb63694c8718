"""The write barrier: effects that wait for writes that are not durable yet, and how long the oldest write has been pending.

In one sentence: a write begins, effects are added behind it, and when the oldest write is durable, its effects come out.

The barrier is bounded in time and in number: if the oldest write is not durable after `span_us`, or if more than `HELD_MAX`
effects and writes wait, `is_over` is True, and the node steps aside (`elf.agent.node.mesh_node`). Then all effects are dropped,
since each of them is repeated or made again:

    effects that wait                           | if they are dropped
    --------------------------------------------+------------------------------------------------------------------------------
    StateRequest, StateReport, Fetch, Handover  | the requesting node repeats its request each ask_us, and finally gives up
    Append, Install, Held                       | the next master sends its own; a silent replica is left out
    Commit, Split, Resend, Bundle, Control      | links begin anew, and a node that keeps a bundle sends it to its next parent
    Hello, TreeJoin, Put, LedgerRequest, gossip | datagrams, repeated until they are answered
    PutReply, LedgerReport                      | the master repeats its Put or its request
    Read, Notice                                | do not depend on the disk, and are performed

A paused process or a clock that jumps is no failure of the disk: after a late check the oldest write gets the whole span again.
"""

from __future__ import annotations

from collections import deque

from elf.srt.messages.effects import Effect

HELD_MAX = 10_000
"""Writes and waiting effects: seconds of a busy master; 10 MB, besides rows, entries and states that are kept anyway."""
LATE_PARTS = 8
"""A check is late if it comes an eighth of the span or more after it was due: the process was paused."""


class WriteBarrier:
    """One node's barrier. `last`: owner -> effects that wait for its last write; the caller appends the owner's next effects to
    that list, and adds their number to `count`. It has a deadline, as cores have."""

    __slots__ = ("_late", "_span_us", "_writes", "begun", "count", "deadline", "done", "last")

    def __init__(self, span_us: int) -> None:
        self._span_us = span_us
        # (owner, effects, when it began), oldest first.
        self._writes: deque[tuple[object, list[Effect], int]] = deque()
        self.last: dict[object, list[Effect]] = {}
        self.count = 0
        """Number of effects that wait."""
        self.begun = self.done = 0
        """Numbers of writes begun, and of those durable, since the start."""
        self.deadline: int | None = None
        self._late = False

    def __len__(self) -> int:
        """Number of writes that are not durable."""
        return len(self._writes)

    def begin(self, owner: object, now: int) -> list[Effect]:
        """A write begins. Returns the list for effects that wait for it, empty."""
        waiting: list[Effect] = []
        self._writes.append((owner, waiting, now))
        self.begun += 1
        if owner is not None:
            self.last[owner] = waiting
        if self.deadline is None:
            self.deadline = now + self._span_us
        return waiting

    def durable(self) -> list[Effect]:
        """The oldest write is durable. Returns the effects that waited for it."""
        owner, waiting, _ = self._writes.popleft()
        self.done += 1
        self.count -= len(waiting)
        self._late = False
        if owner is not None and self.last.get(owner) is waiting:
            del self.last[owner]
        return waiting

    def let_go(self) -> list[Effect]:
        """Release all effects, in order. The writes stay pending."""
        freed = [effect for _, waiting, _ in self._writes for effect in waiting]
        self._writes = deque((None, [], since) for _, _, since in self._writes)
        self.last.clear()
        self.count, self._late = 0, False
        return freed

    @property
    def is_over(self) -> bool:
        """Whether the oldest write is too old, or too much waits."""
        return self._late or self.count + len(self._writes) > HELD_MAX

    def tick(self, now: int) -> list[Effect]:
        """Check how long the oldest write has been pending."""
        due, self.deadline = self.deadline, None
        if not self._writes or due is None:
            return []
        owner, waiting, since = self._writes[0]
        # The clock stepped back, or this check is late.
        if since > now or now - due > self._span_us // LATE_PARTS:
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
