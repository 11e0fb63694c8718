"""A ring of tree seats under one seed: routes over warm tables, links that keep order, crashes, restarts, partitions.

The overlay is a sorted ring and nothing else: every node of a side of a partition believes in the same members, and learns of a
death `detect_us` after it. A route goes by prefix to a node that is picked at random but once and for all, as Pastry's tables
would, and by the leaf set at the end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from random import Random
from typing import Any
from zlib import crc32

from elf.srt.messages.effects import Effect, Post, Route, Send
from elf.srt.messages.ids import closeness, job_id, shared_digits
from elf.srt.messages.messages import Message, TreeJoin
from elf.srt.messages.parameters import Parameters
from elf.srt.tree.tree import TreeSeat

MS = 1_000
SECOND = 1_000_000
LEAVES = 8


class Side:
    """The members that nodes on one side of a partition know, and the resulting routes."""

    def __init__(self, key: bytes, members: list[bytes]) -> None:
        self.key, self.members = key, sorted(members)
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._groups: dict[int, list[bytes]] = {}
        self._root: bytes | None = None

    def add(self, node: bytes) -> None:
        place = bisect_left(self.members, node)
        if self.members[place : place + 1] == [node]:
            return
        self.members.insert(place, node)
        self._forget_routes()

    def remove(self, node: bytes) -> None:
        self.members.remove(node)
        self._forget_routes()

    @property
    def root(self) -> bytes:
        if self._root is None:
            self._root = min(self.members, key=lambda node: closeness(self.key, node))
        return self._root

    def next_hop(self, node: bytes) -> bytes | None:
        root = self.root
        if node == root:
            return None
        places = bisect_left(self.members, node), bisect_left(self.members, root)
        gap = abs(places[0] - places[1])
        if min(gap, len(self.members) - gap) <= LEAVES:
            return root
        digits = shared_digits(node, self.key) + 1
        if digits not in self._groups:
            self._groups[digits] = [each for each in self.members if shared_digits(each, self.key) >= digits]
        group = self._groups[digits]
        return group[crc32(node) % len(group)] if group else root


class Ring:
    def __init__(
        self, count: int, seed: int, parameters: Parameters | None = None, loss: float = 0.0
    ) -> None:
        self.rng, self.loss = Random(seed), loss
        self.parameters = parameters or Parameters()
        self.job = job_id(f"job {seed}")
        self.nodes = [self.rng.randbytes(16) for _ in range(count)]
        self.sides = [Side(self.job, self.nodes)]
        self.side_of = dict.fromkeys(self.nodes, 0)
        self.now = 0
        self.skews: dict[bytes, int] = {}
        self.astray = 0.0  # so many hops lead anywhere, as with stale routing tables
        self.detect_us = SECOND
        self.seats: dict[bytes, TreeSeat] = {}
        self.lives: Counter[bytes] = Counter()
        self.received: Counter[bytes] = Counter()
        self.kinds: Counter[str] = Counter()
        self._events: list[tuple[int, int, str, bytes, Any]] = []
        self._serial = 0
        self._in_order: dict[tuple[bytes, bytes], int] = {}
        self._links: Counter[frozenset[bytes]] = Counter()
        self._wakes: dict[bytes, int] = {}
        self._roots: dict[int, bytes] = {}

    # The world.

    def start(self, node: bytes, wanted: bool = True) -> None:
        self.lives[node] += 1
        seat = TreeSeat(self.job, node, self.lives[node], self.parameters, Random(self.rng.random()))
        self.seats[node] = seat
        self._wakes.pop(node, None)
        side = self.sides[self.side_of[node]]
        side.add(node)
        self._watch_roots()
        if wanted:
            self.enter(node)

    def clock(self, node: bytes) -> int:
        return self.now + self.skews.get(node, 0)

    def enter(self, node: bytes) -> None:
        self._perform(node, self.seats[node].enter(self.clock(node)))

    def leave(self, node: bytes) -> None:
        self._perform(node, self.seats[node].leave(self.clock(node)))

    def start_all(self, within_us: int = 10 * MS) -> None:
        for node in self.nodes:
            self._at(self.now + self.rng.randrange(within_us), "start", node, None)

    def crash(self, node: bytes) -> None:
        seat = self.seats.pop(node)
        self._at(self.now + self.detect_us, "dead", node, (self.lives[node], seat))

    def restart(self, node: bytes) -> None:
        """Crash and come back at once: neighbours only see that the link was reset."""
        self.seats.pop(node)
        self._reset_links(node)
        self.start(node)
        for other in self._neighbours(node):
            self._at(self.now + self._latency(), "lost", other, node)

    def cut(self, apart: set[bytes]) -> None:
        rest = [node for node in self.seats if node not in apart]
        self.side_of = {node: int(node in apart) for node in self.nodes}
        self._at(self.now + self.detect_us, "cut", b"", (rest, sorted(apart & set(self.seats))))

    def heal(self) -> None:
        self.side_of = dict.fromkeys(self.nodes, 0)
        self.sides = [Side(self.job, list(self.seats))]
        self._roots.pop(1, None)
        for node in list(self.seats):
            self._at(self.now + self.rng.randrange(self.detect_us), "root?", node, None)

    def run(self, for_us: int, check: bool = False) -> None:
        until = self.now + for_us
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, kind, node, body = heapq.heappop(events)
            self._happen(kind, node, body)
            if check and node in self.seats:
                self.seats[node].check()
        self.now = until

    # What holds once all is quiet.

    def live_root(self, side: int = 0) -> bytes:
        return min((n for n in self.seats if self.side_of[n] == side), key=lambda n: closeness(self.job, n))

    def depths(self) -> Counter[int]:
        """How many nodes are how deep, by following parents. Raises AssertionError on a loop or a tree that is not whole."""
        found: Counter[int] = Counter()
        roots = {side: self.live_root(side) for side in {self.side_of[node] for node in self.seats}}
        for node, seat in self.seats.items():
            if not seat.present:
                continue
            depth, at = 0, seat
            while at.parent is not None:
                assert at.parent in self.seats, "a dead parent"
                assert at.me in self.seats[at.parent].children, "the parent does not know"
                at = self.seats[at.parent]
                depth += 1
                assert depth <= len(self.seats), "a loop"
            assert at.me == roots[self.side_of[node]], "not under the true root"
            found[depth] += 1
        return found

    def check_settled(self) -> Counter[int]:
        depths = self.depths()
        for node, seat in self.seats.items():
            seat.check()
            assert seat.place.rooted or not seat.present
            assert len(seat.place.path) == len(set(seat.place.path))
            for child in seat.children:
                assert self.seats[child].parent == node, "a child that is not one"
        root = self.seats[self.live_root()]
        if max(self.side_of.values()) == 0:
            assert root.subtree.size == sum(depths.values()), "the sizes add up"
        return depths

    # The machinery.

    def _at(self, when: int, kind: str, node: bytes, body: Any) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, kind, node, body))

    def _latency(self) -> int:
        return self.rng.randrange(300, 1_500)

    def _happen(self, kind: str, node: bytes, body: Any) -> None:
        if kind == "tick":
            if self._wakes.get(node) == self.now and node in self.seats:
                del self._wakes[node]
                self._perform(node, self.seats[node].tick(self.clock(node)))
        elif kind == "start":
            self.start(node)
        elif kind == "post":
            source, life, message = body
            if node in self.seats and self._links[frozenset((source, node))] == life:
                self._arrive(node, message)
                self._perform(node, self.seats[node].step(source, message, self.clock(node)))
        elif kind == "send":
            source, hops, message = body
            if node in self.seats and self.side_of[source] == self.side_of[node]:
                self._arrive(node, message)
                self._pass(node, source, hops, message)
        elif kind == "lost":
            if node in self.seats:
                self._perform(node, self.seats[node].lost(body, self.clock(node)))
        elif kind == "root?":
            self._ask_root(node)
        elif kind == "dead":
            self._bury(node, *body)
        elif kind == "cut":
            self._cut(*body)

    def _arrive(self, node: bytes, message: Message) -> None:
        self.received[node] += 1
        self.kinds[type(message).__name__] += 1

    def _bury(self, node: bytes, life: int, seat: TreeSeat) -> None:
        if self.lives[node] != life or node in self.seats:
            return
        side = self.sides[self.side_of[node]]
        if node in side.members:
            side.remove(node)
        self._reset_links(node)
        for other in self._neighbours(node):
            self._at(self.now + self.rng.randrange(self.detect_us // 2), "lost", other, node)
        self._watch_roots()

    def _cut(self, rest: list[bytes], apart: list[bytes]) -> None:
        self.sides = [Side(self.job, rest), Side(self.job, apart)]
        for node, seat in self.seats.items():
            for other in [*seat.children, seat.parent]:
                if other is not None and self.side_of[other] != self.side_of[node]:
                    self._links[frozenset((node, other))] += 1
                    self._at(self.now + self.rng.randrange(self.detect_us), "lost", node, other)
        self._watch_roots()

    def _neighbours(self, node: bytes) -> list[bytes]:
        return [o for o, seat in self.seats.items() if node in seat.children or seat.parent == node]

    def _reset_links(self, node: bytes) -> None:
        for other in self._neighbours(node):
            self._links[frozenset((node, other))] += 1

    def _watch_roots(self) -> None:
        """The overlay tells the old and the new root soon after its own view has changed."""
        for number, side in enumerate(self.sides):
            if side.members and self._roots.get(number) != side.root:
                for node in {side.root, self._roots.get(number)} - {None}:
                    assert node is not None
                    self._at(self.now + self.rng.randrange(50 * MS), "root?", node, None)
                self._roots[number] = side.root

    def _ask_root(self, node: bytes) -> None:
        if node in self.seats:
            is_root = self.sides[self.side_of[node]].root == node
            self._perform(node, self.seats[node].root_changed(is_root, self.clock(node)))

    def _pass(self, node: bytes, origin: bytes, hops: int, message: Message) -> None:
        assert isinstance(message, TreeJoin)
        next_hop = self.sides[min(self.side_of[node], len(self.sides) - 1)].next_hop(node)
        if next_hop is not None and self.rng.random() < self.astray:
            next_hop = self.rng.choice(self.nodes)
        done, effects = self.seats[node].passing(message, origin, self.clock(node), next_hop is None)
        self._perform(node, effects)
        if not done and next_hop is not None and hops < self.parameters.hops_max:
            self._datagram(node, next_hop, origin, hops + 1, message)

    def _datagram(self, node: bytes, to: bytes, origin: bytes, hops: int, message: Message) -> None:
        """May be lost, and is as often delivered twice, once late."""
        chance = self.rng.random()
        if chance >= self.loss:
            self._at(self.now + self._latency(), "send", to, (origin, hops, message))
        if chance >= 1 - self.loss:
            self._at(self.now + self.rng.randrange(SECOND), "send", to, (origin, hops, message))

    def _post(self, node: bytes, to: bytes, message: Message) -> None:
        late = 50 * MS if self.rng.random() < self.loss else 0
        when = max(self._in_order.get((node, to), 0), self.now + self._latency() + late)
        self._in_order[node, to] = when
        self._at(when, "post", to, (node, self._links[frozenset((node, to))], message))

    def _perform(self, node: bytes, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Post):
                self._post(node, effect.to, effect.message)
            elif isinstance(effect, Send):
                self._datagram(node, effect.to, node, 0, effect.message)
            elif isinstance(effect, Route):
                self._pass(node, node, 0, effect.message)
        seat = self.seats.get(node)
        due = seat.deadline if seat is not None else None
        due = None if due is None else max(due - self.skews.get(node, 0), self.now)
        if due is not None and due < self._wakes.get(node, 1 << 62):
            self._wakes[node] = due
            self._at(due, "tick", node, None)
