"""A mesh of overlays on one seeded event queue: delay, loss, cut pairs; and the sorted ring they are compared with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId, closeness, node_id
from elf.srt.messages.messages import Contact, Message
from elf.srt.messages.parameters import MS, SECOND, Parameters
from elf.srt.overlay.overlay import Overlay
from elf.srt.overlay.routing import warm_tables

PARAMETERS = Parameters()


def is_alive(overlay: Overlay, node: NodeId) -> bool:
    """Whether it is a member and not suspect there."""
    return overlay.is_member(node) and node not in overlay._members.suspects


class Mesh:
    """`nodes` are those that run. Times in µs."""

    def __init__(self, seed: int, *, loss: float = 0.0, parameters: Parameters = PARAMETERS) -> None:
        self.rng = Random(seed)
        self.loss = loss
        self.parameters = parameters
        self.now = 0
        self.nodes: dict[NodeId, Overlay] = {}
        self.lives: dict[NodeId, int] = {}
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.slow: dict[tuple[NodeId, NodeId], int] = {}
        self.begun_anew: list[NodeId] = []
        self.sent: dict[str, int] = {}
        self.check = False
        self._queue: list[tuple[int, int, NodeId, NodeId, Message | None]] = []
        self._count = count()
        self._alarm: dict[NodeId, int] = {}
        self._named = count()

    # Lives of nodes.

    def new_id(self) -> NodeId:
        return node_id(next(self._named).to_bytes(8) + self.rng.randbytes(8))

    def start(self, node: NodeId, seeds: Iterable[NodeId] = ()) -> Overlay:
        contact = Contact(node, self.lives.get(node, 0) + 1, f"tcp://{node.hex()[:8]}")
        self.lives[node] = contact.incarnation
        overlay = self.nodes[node] = Overlay(contact, self.parameters, Random(self.rng.getrandbits(64)))
        known = [Contact(seed, 0, f"tcp://{seed.hex()[:8]}") for seed in seeds]
        self.perform(node, overlay.join(known, self.now))
        return overlay

    def grow(self, size: int) -> list[NodeId]:
        """So many nodes, each joining through one that runs, 20 ms apart."""
        ids = [self.new_id() for _ in range(size)]
        for node in ids:
            self.start(node, self.rng.sample(sorted(self.nodes), min(2, len(self.nodes))))
            self.run(20 * MS)
        return ids

    def warm(self, size: int) -> list[NodeId]:
        ids = sorted(self.new_id() for _ in range(size))
        contacts = [Contact(node, 1, f"tcp://{node.hex()[:8]}") for node in ids]
        for index, contact in enumerate(contacts):
            overlay = Overlay(contact, self.parameters, Random(self.rng.getrandbits(64)))
            leaves, table = warm_tables(contacts, index, self.parameters.leaves)
            overlay.warm([*leaves, *table], self.now)
            self.nodes[contact.id] = overlay
            self.lives[contact.id] = 1
            self.perform(contact.id, [])
        return ids

    def crash(self, node: NodeId) -> None:
        del self.nodes[node]
        self._alarm.pop(node, None)

    def leave(self, node: NodeId) -> None:
        self.perform(node, self.nodes[node].left(self.now))
        self.crash(node)

    def part(self, one: Iterable[NodeId], other: Iterable[NodeId]) -> None:
        other = list(other)
        for a in one:
            for b in other:
                self.cut |= {(a, b), (b, a)}

    # The network.

    def perform(self, node: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(node, effect)
        outlived = self.nodes[node].take_outlived()
        if outlived is not None:
            self.begun_anew.append(node)
            self.lives[node] = outlived.incarnation
            seeds = self.nodes[node].acquaintances()
            self.crash(node)
            self.start(node, seeds)
            return
        deadline = self.nodes[node].deadline
        if deadline is not None and deadline != self._alarm.get(node):
            self._alarm[node] = deadline
            heappush(self._queue, (max(deadline, self.now), next(self._count), node, b"", None))

    def _send(self, node: NodeId, send: Send) -> None:
        kind = type(send.message).__name__
        self.sent[kind] = self.sent.get(kind, 0) + 1
        if self.rng.random() < self.loss or (node, send.to) in self.cut:
            return
        delay = self.rng.randint(200, 1_500) + self.slow.get((node, send.to), 0)
        heappush(self._queue, (self.now + delay, next(self._count), send.to, node, send.message))

    def run(self, span: int) -> None:
        end = self.now + span
        while self._queue and self._queue[0][0] <= end:
            self.now, _, node, source, message = heappop(self._queue)
            overlay = self.nodes.get(node)
            if overlay is None:
                continue
            if message is not None:
                self.perform(node, overlay.step(source, message, self.now))
            elif self._alarm.get(node, self.now + 1) <= self.now:
                del self._alarm[node]
                self.perform(node, overlay.tick(self.now))
            if self.check:
                overlay.check()
        self.now = end

    # The oracle.

    def ring_leaves(self, node: NodeId) -> set[NodeId]:
        """The leaf set by brute force: L/2 steps to each side in the sorted list of those that run."""
        ring = sorted(self.nodes)
        at = ring.index(node)
        half = self.parameters.leaves // 2
        return {ring[(at + step) % len(ring)] for step in range(-half, half + 1)} - {node}

    def wrong_leaf_sets(self) -> list[NodeId]:
        wrong = []
        for node, overlay in self.nodes.items():
            leaves = [contact.id for contact in overlay.leaves()]
            assert leaves == sorted(leaves)
            if set(leaves) != self.ring_leaves(node):
                wrong.append(node)
        return wrong

    def closest(self, key: bytes) -> NodeId:
        ring = sorted(self.nodes)
        at = bisect_left(ring, key)
        around = (ring[at - 1], ring[at % len(ring)])
        return min(around, key=lambda node: closeness(key, node))

    def route(self, start: NodeId, key: bytes) -> list[NodeId]:
        """The way from `start`; it ends early where the next hop does not run."""
        way = [start]
        while (hop := self.nodes[way[-1]].next_hop(key)) is not None:
            assert hop not in way, "a circle"
            way.append(hop)
            if hop not in self.nodes:
                break
        return way

    def settle(self, limit: int = 60 * SECOND) -> int:
        """Run until every leaf set equals the ring's; how long that took (a quarter of a second exact)."""
        begin = self.now
        while wrong := self.wrong_leaf_sets():
            assert self.now - begin < limit, (
                f"{len(wrong)} of {len(self.nodes)} leaf sets differ from the ring"
            )
            self.run(250 * MS)
        return self.now - begin
