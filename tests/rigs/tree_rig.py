"""A tree of real reducers and delta workers under a model of the master, on model sources: time, network and faults by a seed.

The model of the master keeps positions and sums and nothing else; whenever it accepts, it compares the rows of the bundle with
the bytes that its spans cover, and its watermarks with what had been logged by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from random import Random

import numpy as np

from elf.agent.node.worker.delta_worker import DeltaWorker, State
from elf.cbt._kernel import make_rows
from elf.cbt.rows import Op
from elf.srt.messages.effects import Effect, Notice, Post, Read, Route
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    CLOSED,
    FIRST,
    Bundle,
    BundleId,
    Commit,
    Farewell,
    Goodbye,
    Hello,
    Hold,
    Line,
    Message,
    Position,
    Resend,
    Schedule,
    Slot,
    Split,
    Welcome,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import Part
from elf.srt.tree.reduce import Reducer

JOB = b"j" * 16
OPS = (Op.SUM64,)
MOVES_MAX = 20_000
"""Messages in one moment without faults: a few thousand were under way when the faults ended."""
SCHEDULE: Schedule = (Line(1, "v1", 0, b""),)


def node_name(i: int) -> NodeId:
    return bytes([i]) * 16


def rows_of(worker: NodeId, nbytes: int) -> dict[str, Part]:
    """One row: so many bytes of that worker."""
    key = np.frombuffer(worker, np.uint8)
    lanes = np.array([[nbytes]], np.int64)
    return {"v1": Part((OPS,), (make_rows(0, key, np.array([16], np.uint64), None, lanes, OPS),))}


def sums(parts: dict[str, Part]) -> Counter[NodeId]:
    found: Counter[NodeId] = Counter()
    for part in parts.values():
        for i in range(len(part.rows[0])):
            found[part.rows[0].key(i)] += int(part.rows[0].lanes[0, i])
    return found


class ModelFile:
    """A log file: how long it was at which time."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.times: list[int] = []
        self.lengths: list[int] = []
        self.closed = False

    @property
    def length(self) -> int:
        return self.lengths[-1] if self.lengths else 0

    def grow(self, nbytes: int, now: int) -> None:
        self.times.append(now)
        self.lengths.append(self.length + nbytes)

    def length_before(self, us: int) -> int:
        at = bisect_left(self.times, us)
        return self.lengths[at - 1] if at else 0


class ModelSource:
    """The files of one worker; the last one is written to."""

    def __init__(self, worker: NodeId) -> None:
        self.worker = worker
        self.files = [ModelFile((worker, 1, 0))]

    def grow(self, nbytes: int, now: int) -> None:
        self.files[-1].grow(nbytes, now)

    def rotate(self, rng: Random, now: int) -> None:
        """Begin a new file, and later on close older ones; until then they may still grow."""
        lingering = [file for file in self.files[:-1] if not file.closed]
        if len(lingering) < 2 and rng.random() < 0.5:
            self.files.append(ModelFile((self.worker, len(self.files) + 1, 0)))
        elif lingering:
            file = rng.choice(lingering)
            file.grow(rng.randint(1, 50), now)
            file.closed = rng.random() < 0.7

    def read(self, read: Read, now: int, limit: int) -> Cut:
        """Up to `limit` bytes of each file, older files first."""
        spans, total, caught_up, watermark = {}, 0, True, now
        for file in self.files:
            at = read.positions.get(file.slot)
            if at is not None and at.closed:
                continue
            start = 0 if at is None else at.offset
            end = min(file.length, start + limit)
            flags = (FIRST if at is None else 0) | (CLOSED if file.closed and end == file.length else 0)
            spans[file.slot] = (start, end, flags)
            total += end - start
            if end < file.length:
                caught_up = False
                watermark = min(watermark, file.times[bisect_left(file.lengths, end + 1)])
        return Cut(JOB, read.request, read.schedule, spans, watermark, rows_of(self.worker, total), caught_up)


class ModelMaster:
    """Design, section 7, rule 4. Answers are (child, message)."""

    def __init__(self, parameters: Parameters, sources: dict[NodeId, ModelSource]) -> None:
        self.p = parameters
        self.sources = sources
        self.ballot = (1, b"")
        self.positions: dict[Slot, Position] = {}
        self.bytes: Counter[NodeId] = Counter()
        self.watermarks: dict[NodeId, int] = {}
        self.parked: list[tuple[NodeId, Bundle, int]] = []
        self.accepted = self.splits = 0

    def take_over(self, ballot: int, known: tuple[dict[Slot, Position], Counter[NodeId]]) -> None:
        """Another master, which may know less."""
        self.ballot = (ballot, b"")
        self.positions, self.bytes = dict(known[0]), Counter(known[1])
        self.parked.clear()

    def welcome(self, hello: Hello) -> Welcome:
        mine = tuple((slot, at) for slot, at in self.positions.items() if slot[0] == hello.worker)
        return Welcome(JOB, self.ballot, hello.incarnation, SCHEDULE, 0, mine)

    def take(self, child: NodeId, bundle: Bundle, now: int) -> list[tuple[NodeId, Message]]:
        answers = [self._judge(child, bundle, now, now)]
        return [answer for answer in answers + self._again(now) if answer]

    def _again(self, now: int) -> list[tuple[NodeId, Message] | None]:
        answers: list[tuple[NodeId, Message] | None] = []
        moved = True
        while moved:
            waiting, self.parked = self.parked, []
            found = [self._judge(child, bundle, since, now) for child, bundle, since in waiting]
            moved = any(found)
            answers += found
        return answers

    def _judge(self, child: NodeId, bundle: Bundle, since: int, now: int) -> tuple[NodeId, Message] | None:
        words = {slot: self._fit(slot, span) for slot, span in bundle.contributions.items()}
        kinds = set(words.values()) - {"nothing"}
        if kinds == {"fits"}:
            words |= dict.fromkeys(self._unnamed(bundle), "unnamed")
            kinds = set(words.values()) - {"nothing"}
        if kinds <= {"fits"}:
            self._accept(bundle)
        elif kinds != {"behind"}:
            if kinds <= {"fits", "ahead"} and now - since < self.p.park_us:
                self.parked.append((child, bundle, since))
                return None
            self.splits += 1
            unfit = [slot for slot, word in words.items() if word not in ("fits", "nothing")]
            known = tuple((slot, self.positions[slot]) for slot in unfit if slot in self.positions)
            self.parked = [(other, each, now) for other, each, _ in self.parked]
            return child, Split(JOB, self.ballot, bundle.id, SCHEDULE, known)
        return child, Commit(JOB, self.ballot, (bundle.id,))

    def _unnamed(self, bundle: Bundle) -> list[Slot]:
        """Files that are open here, and that their worker leaves out: a master that knew more has reported them as committed to
        the end."""
        slots = [
            file.slot
            for worker in {s[0] for s in bundle.contributions}
            for file in self.sources[worker].files
        ]
        known = [slot for slot in slots if slot in self.positions and not self.positions[slot].closed]
        return [slot for slot in known if slot not in bundle.contributions]

    def _fit(self, slot: Slot, span: tuple[int, int, int]) -> str:
        start, end, flags = span
        position = self.positions.get(slot)
        if slot[1] == 0:
            return "nothing"
        if position is None:
            return "fits" if flags & FIRST else "unknown"
        if start == position.offset and end == start:
            return "fits" if flags & CLOSED and not position.closed else "nothing"
        if start == position.offset and not position.closed:
            return "fits"
        if end <= position.offset:
            return "behind"
        return "ahead" if start > position.offset else "straddles"

    def _accept(self, bundle: Bundle) -> None:
        covered: Counter[NodeId] = Counter()
        for slot, (start, end, flags) in bundle.contributions.items():
            covered[slot[0]] += end - start
            if slot[1]:
                closed = bool(flags & CLOSED) or (slot in self.positions and self.positions[slot].closed)
                self.positions[slot] = Position(end, closed)
        assert +sums(bundle.parts) == +covered, "rows are not those of the spans"
        self.bytes += covered
        self.accepted += 1
        for worker in covered:
            promise = bundle.lagging.get(worker, bundle.watermark)
            for file in self.sources[worker].files:
                at = self.positions.get(file.slot, Position(0)).offset
                assert file.length_before(promise) <= at, "a watermark beyond what is committed"


class Node:
    """A reducer and a worker on one node, in one life of it."""

    def __init__(self, name: NodeId, life: int, parameters: Parameters) -> None:
        self.name, self.life = name, life
        self.reducer = Reducer(JOB, name, life, parameters)
        self.worker = DeltaWorker(JOB, name, life, parameters, lambda: self.reducer.has_room)


class Tree:
    """Everything at once. `step` does one random thing; `heal` ends the faults and waits until all is committed."""

    def __init__(
        self, seed: int, count: int = 9, parameters: Parameters | None = None, checks: bool = True
    ) -> None:
        self.checks = checks
        self.rng = Random(seed)
        self.p = parameters or Parameters()
        self.now = 10_000_000
        self.names = [node_name(i) for i in range(1, count + 1)]
        self.sources = {name: ModelSource(name) for name in self.names}
        self.master = ModelMaster(self.p, self.sources)
        self.ballots = 1
        self.history = [(dict[Slot, Position](), Counter[NodeId]())]
        self.nodes = {name: Node(name, 1, self.p) for name in self.names}
        self.channels: dict[tuple[NodeId, NodeId], deque[Message]] = {}
        self.reads: list[tuple[NodeId, int, Read]] = []
        self.words: list[tuple[NodeId, Message]] = []  # datagrams of the master to workers
        self.parents: dict[NodeId, NodeId | None] = {}
        self.limit = 1_000_000
        self.lossy = True
        self.bundles = 0  # that came to the root
        for node in self.nodes.values():
            self.do(node, node.worker.start(self.now))
        self.shape(self.names[0])

    # Shape.

    def shape(self, root: NodeId) -> None:
        """A random tree below this root."""
        others = [name for name in self.names if name != root]
        self.rng.shuffle(others)
        self.parents = {root: None}
        placed = [root]
        for name in others:
            self.parents[name] = self.rng.choice(placed)
            placed.append(name)
        self.tell_children()
        for name in self.names:
            self.tell_parent(name)

    @property
    def root(self) -> NodeId:
        return next(name for name, parent in self.parents.items() if parent is None)

    def tell_children(self) -> None:
        for name, node in self.nodes.items():
            node.reducer.children_changed(child for child, parent in self.parents.items() if parent == name)

    def tell_parent(self, name: NodeId) -> None:
        parent = self.parents[name]
        node = self.nodes[name]
        if parent and (parent, name) in self.channels:  # an Adopt comes behind what was sent before it
            before = self.channels[parent, name]
            self.channels[parent, name] = deque(m for m in before if not isinstance(m, Hold))
            if not self.channels[parent, name]:
                del self.channels[parent, name]
        self.do(node, node.reducer.parent_changed(parent, parent is None, self.now))
        self.settle(node)

    def below(self, name: NodeId, top: NodeId) -> bool:
        at: NodeId | None = name
        while at is not None:
            if at == top:
                return True
            at = self.parents[at]
        return False

    # Faults.

    def reparent(self) -> None:
        name = self.rng.choice(self.names)
        new = self.rng.choice(self.names)
        if self.parents[name] is None or self.below(new, name):
            return
        old = self.parents[name]
        assert old is not None
        if self.rng.random() < 0.5:
            self.channels.pop((name, old), None)
        self.parents[name] = new
        self.tell_children()
        self.tell_parent(name)

    def restart(self, name: NodeId) -> None:
        """A node loses all it had; if it was the root, the master moves, and may know less."""
        node = self.nodes[name] = Node(name, self.nodes[name].life + 1, self.p)
        self.do(node, node.worker.start(self.now))
        self.reads = [read for read in self.reads if read[0] != name]
        for ends in [ends for ends in self.channels if name in ends]:
            del self.channels[ends]
        if self.parents[name] is None:
            self.new_master()
        else:
            self.tell_children()
            for child in [child for child in self.names if self.parents[child] == name]:
                self.tell_parent(child)
            self.tell_parent(name)

    def new_master(self) -> None:
        self.ballots += 1
        self.history = self.history[: self.rng.randint(1, len(self.history))][-5:]
        self.master.take_over(self.ballots, self.history[-1])
        self.shape(self.rng.choice(self.names))

    # Events.

    def do(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Post(to, message):
                    self.channels.setdefault((node.name, to), deque()).append(message)
                case Read():
                    self.reads.append((node.name, node.life, effect))
                case Route(_, message):
                    self.to_master(message)
                case Notice():
                    pass
                case _:
                    raise AssertionError(effect)

    def to_master(self, message: Message) -> None:
        if self.lossy and self.rng.random() < 0.3:
            return
        if isinstance(message, Hello):
            self.words.append((message.worker, self.master.welcome(message)))
        elif isinstance(message, Goodbye):
            self.words.append((message.worker, Farewell(JOB, message.worker)))

    def settle(self, node: Node) -> None:
        """What reducer, worker and master of one node have for each other."""
        busy = True
        while busy:
            busy = False
            for bundle in node.worker.take_bundles():
                self.do(node, node.reducer.offer(node.name, bundle, self.now))
                busy = True
            for answer in node.reducer.take_for_worker():
                self.do(node, node.worker.step(answer, self.now))
                busy = True
            for child, bundle in node.reducer.take_for_master():
                self.bundles += 1
                self.answer(node, self.master.take(child, bundle, self.now))
                busy = True
        if self.checks:
            node.reducer.check()
            node.worker.check()

    def answer(self, node: Node, answers: list[tuple[NodeId, Message]]) -> None:
        for child, message in answers:
            if child == node.name:
                self.down(child, node, message)
            else:
                self.do(node, [Post(child, message)])
        self.history.append((dict(self.master.positions), Counter(self.master.bytes)))
        self.history = self.history[-5:]

    def down(self, sender: NodeId, node: Node, message: Message) -> None:
        match message:
            case Commit():
                self.do(node, node.reducer.committed(message.ids, message.ballot, self.now))
            case Split():
                self.do(node, node.reducer.split(message, self.now))
            case Resend():
                self.do(node, node.reducer.resend(message, self.now))
            case Hold() if sender == node.reducer.parent:
                self.do(node, node.reducer.hold(message, self.now))

    def deliver(self, ends: tuple[NodeId, NodeId]) -> None:
        message = self.channels[ends].popleft()
        if not self.channels[ends]:
            del self.channels[ends]
        node = self.nodes[ends[1]]
        if isinstance(message, Bundle):
            self.do(node, node.reducer.offer(ends[0], message, self.now))
        else:
            self.down(ends[0], node, message)
        self.settle(node)

    def answer_read(self, at: int) -> None:
        name, life, read = self.reads.pop(at)
        node = self.nodes[name]
        if node.life == life:
            self.do(node, node.worker.cut(self.sources[name].read(read, self.now, self.limit), self.now))
            self.settle(node)

    def say(self, at: int) -> None:
        name, message = self.words.pop(at)
        if isinstance(message, Welcome | Farewell):
            self.do(self.nodes[name], self.nodes[name].worker.step(message, self.now))
            self.settle(self.nodes[name])

    def time(self, us: int) -> None:
        self.now += us
        root = self.nodes[self.root]
        self.answer(root, [answer for answer in self.master._again(self.now) if answer])
        self.settle(root)
        for node in self.nodes.values():
            for core in (node.reducer, node.worker):
                if core.deadline is not None and core.deadline <= self.now:
                    self.do(node, core.tick(self.now))
            self.settle(node)

    def write(self) -> None:
        source = self.sources[self.rng.choice(self.names)]
        source.grow(self.rng.randint(1, 100), self.now)
        if self.rng.random() < 0.3:
            source.rotate(self.rng, self.now)

    def move(self) -> bool:
        """Deliver a message that is under way."""
        ways = list(self.channels)
        pick = self.rng.randrange(len(ways) + len(self.reads) + len(self.words) or 1)
        if pick < len(ways):
            self.deliver(ways[pick])
        elif pick < len(ways) + len(self.reads):
            self.answer_read(pick - len(ways))
        elif self.words:
            self.say(pick - len(ways) - len(self.reads))
        else:
            return False
        return True

    def step(self) -> None:
        dice = self.rng.random()
        if dice < 0.6:
            self.move()
        elif dice < 0.8:
            self.write()
        elif dice < 0.96:
            self.time(self.rng.choice([1_000, 10_000, 60_000, 200_000]))
        elif dice < 0.98:
            self.reparent()
        elif dice < 0.99:
            self.restart(self.rng.choice(self.names))
        else:
            self.new_master()

    def rest(self, seconds: float) -> None:
        """Run for so long without faults."""
        self.lossy = False
        end = self.now + int(seconds * 1e6)
        while self.now < end:
            moves = 0
            while self.move():
                moves += 1
                assert moves < MOVES_MAX, "messages without end"
            self.time(10_000)

    def committed(self) -> bool:
        """Every byte of every file is committed, and counted."""
        for name, source in self.sources.items():
            for file in source.files:
                if self.master.positions.get(file.slot, Position(0)).offset != file.length:
                    return False
            if self.master.bytes[name] != sum(file.length for file in source.files):
                return False
        return True

    def heal(self, seconds_max: int = 6) -> None:
        """Earlier than workers ask because a Commit is overdue."""
        for _ in range(seconds_max):
            if self.committed():
                return
            self.rest(1)
        missing = {
            file.slot: (file.length, self.master.positions.get(file.slot))
            for source in self.sources.values()
            for file in source.files
        }
        raise AssertionError(f"not everything was committed within {seconds_max} s: {missing}")


def run(
    seed: int, steps: int = 600, count: int = 9, parameters: Parameters | None = None, checks: bool = True
) -> Tree:
    """Faults for so many steps, then peace until all is committed. `checks`: of reducers and workers themselves."""
    tree = Tree(seed, count, parameters, checks)
    for _ in range(steps):
        tree.step()
    tree.heal()
    return tree


def bundle_of(
    worker: NodeId, count: int, spans: dict[Slot, tuple[int, int, int]], watermark: int = 0
) -> Bundle:
    """A worker's bundle whose rows are those of its spans."""
    id: BundleId = (worker, 1, count)
    nbytes = sum(end - start for start, end, _ in spans.values())
    return Bundle(JOB, id, 1, spans, watermark, {}, rows_of(worker, nbytes))


__all__ = ["JOB", "SCHEDULE", "State", "Tree", "bundle_of", "node_name", "rows_of", "run", "sums"]
