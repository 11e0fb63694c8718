"""Sends one request to many agents: a few at a time, repeated until each answers or is given up.

The machine in one sentence: nodes wait in a queue, at most `AT_ONCE_MAX` have an open request, and an answer may add nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Message

AT_ONCE_MAX = 16
ASKS_MAX = 4
"""Requests to one node; then it counts as silent."""
WAIT_US = 400_000
"""Time until a request is repeated: a round trip anywhere, and time to spare for a busy process. 1.6 s in all."""

Answer = TypeVar("Answer", bound=Message)


class _Asked(msgspec.Struct, gc=False):
    at_us: int
    asks: int


class Survey(Generic[Answer]):
    """ask: the request. more: further nodes that an answer names. count_max: how many nodes are asked at most.

    answers: node -> (its answer, when it was asked last, when the answer came). silent: nodes that did not answer. left_out: how
    many were not asked.
    """

    def __init__(
        self,
        ask: Message,
        first: Iterable[NodeId],
        count_max: int,
        more: Callable[[Answer], Iterable[NodeId]] = lambda answer: (),
    ) -> None:
        self.answers: dict[NodeId, tuple[Answer, int, int]] = {}
        self.silent: set[NodeId] = set()
        self.left_out = 0
        self._ask, self._more, self._count_max = ask, more, count_max
        self._known: set[NodeId] = set()
        self._queue: deque[NodeId] = deque()
        self._asked: dict[NodeId, _Asked] = {}
        self._add(first)

    def _add(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            if node not in self._known:
                if len(self._known) >= self._count_max:
                    self.left_out += 1
                    continue
                self._known.add(node)
                self._queue.append(node)

    def step(self, source: NodeId, answer: Answer, now: int) -> None:
        """Take an answer. One without a request, or a second one, is dropped."""
        asked = self._asked.pop(source, None)
        if asked is None:
            return
        self.answers[source] = (answer, asked.at_us, now)
        self._add(self._more(answer))

    def tick(self, now: int) -> list[Effect]:
        """Send the requests that are due."""
        out: list[Effect] = []
        for node, asked in list(self._asked.items()):
            asked.at_us = min(asked.at_us, now)  # the clock went back
            if now - asked.at_us < WAIT_US:
                continue
            if asked.asks >= ASKS_MAX:
                del self._asked[node]
                self.silent.add(node)
                continue
            asked.at_us, asked.asks = now, asked.asks + 1
            out.append(Send(node, self._ask))
        while self._queue and len(self._asked) < AT_ONCE_MAX:
            node = self._queue.popleft()
            self._asked[node] = _Asked(now, 1)
            out.append(Send(node, self._ask))
        return out

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next: 0 at once, None when all is done."""
        if self._queue and len(self._asked) < AT_ONCE_MAX:
            return 0
        return min((asked.at_us + WAIT_US for asked in self._asked.values()), default=None)

    @property
    def is_done(self) -> bool:
        return not self._queue and not self._asked

    def check(self) -> None:
        """Raise AssertionError unless each node is in exactly one state."""
        places = [set(self._queue), set(self._asked), set(self.answers), self.silent]
        assert sum(map(len, places)) == len(self._known) <= self._count_max
        assert set().union(*places) == self._known
        assert len(self._asked) <= AT_ONCE_MAX
