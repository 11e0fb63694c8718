"""The directory: a versioned map of jobs, agents, ballots and revocations that every node holds whole, spread by gossip.

Rumors spread a change fast, and anti-entropy makes sure that it reaches every node (Demers et al., 1987). A node sends new items
to a few random neighbours at once, which forward them once. Each period it compares its digest with that of one random
neighbour, and their buckets if the digests differ.

    message                         | answer
    --------------------------------+----------------------------------------------------------------------
    GossipDigest(root)              | if the own root differs: the own digests of all buckets
    GossipDigest(root, buckets)     | own items of the buckets that differ, with `reply`; a request for those that are empty here
    GossipDigest(root, want)        | the items of the wanted buckets
    GossipItems(bucket, items)      | none: newer items are verified and kept, and forwarded as a rumor; a new job only if both
                                    | nodes hold adverts of the same agents
    GossipItems with `reply`        | items of that bucket that are newer here, or missing there

A bucket is an immutable sorted tuple of items with its digest, the exclusive or of its items' digests. Nodes of one process that
hold the same items, with the same signatures, share the same `Bucket` objects (`_pool`): ten thousand simulated nodes with ten
thousand adverts cost as much as one.

Invariants (`check`): each key is held once, in its bucket, in order; the digests of buckets, and of all, match the items; every
change, rumor and unwritten item is also in its bucket.

The item of an ended job, or of an agent that has left, stays and says so. Nodes remove (`drop`), and refuse from any source, only
items that were signed under a certificate that is revoked now: so all nodes converge, in whatever order items arrive.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary
from zlib import crc32

from elf.srt.messages.effects import Effect, Notice, Send, Write
from elf.srt.messages.messages import GossipDigest, GossipItems, Item, Message
from elf.srt.messages.signers import Signers, former_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from elf.srt.messages.ids import NodeId
    from elf.srt.messages.parameters import Parameters

Key = tuple[str, bytes]
KINDS = ("agent", "audit", "ballot", "former", "job", "lost", "over", "revoked", "schedule")
NAME_BYTES_MAX = 64  # ids have 16 or 32 bytes
STAMP_MAX = 5  # a ballot, its node as two halves and its instance, and a number
BODY_BYTES_MAX = 1 << 20  # a job's spec: `job_spec.BODY_BYTES_MAX`
ITEMS_MAX = 300_000  # 100,000 agents, their predecessors, and jobs: 60 MB, 150 MB signed
MESSAGE_BYTES_MAX = 64 << 10  # items of one message: a datagram's worth that a slow link takes in 10 ms
RUMORS_MAX = 32  # comparing digests is cheaper than sending more new items
REFUSED_MAX = 64
"""After so many items with wrong signatures, 10 ms of checking, the rest of a message is skipped."""
ASKS_MAX = 3
"""After so many comparisons with one neighbour whose jobs are not accepted, the rest of a period passes without another."""
UNBELIEVED = "unbelieved items"
"""Kind of the notice about such a message."""
ANSWER_BYTES_MAX = 512 << 10  # items of one answer: all of 3,000 agents; more take several periods


def item_digest(item: Item) -> int:
    """A digest of 64 bits of everything that decides which of two items is kept. It excludes the signature: items that differ
    only in that are equal."""
    stamp = ",".join(map(str, item.stamp))
    head = f"{item.kind} {item.name.hex()} {stamp} ".encode()
    return int.from_bytes(blake2b(head + body_digest(item), digest_size=8).digest())


def agent_digest(item: Item) -> int:
    """64 bits of the name of an agent's advert; 0 for other items."""
    return int.from_bytes(item.name[-8:]) if item.kind == "agent" else 0


def body_digest(item: Item) -> bytes:
    return blake2b(item.body, digest_size=16).digest()


class Bucket:
    """Items in order of (kind, name), their digest, and each item's index. Immutable, shared."""

    __slots__ = ("__weakref__", "_agents", "digest", "items", "places")

    def __init__(self, items: tuple[Item, ...], digest: int) -> None:
        self.items, self.digest = items, digest
        self._agents: int | None = None
        self.places = {(item.kind, item.name): place for place, item in enumerate(items)}

    def get(self, key: Key) -> Item | None:
        place = self.places.get(key)
        return None if place is None else self.items[place]

    def with_items(self, news: dict[Key, Item], digest: int) -> Bucket:
        """A bucket with `news` in place of the items with the same keys. O(n log n); fast, as the items are mostly sorted."""
        merged = dict(zip(self.places, self.items, strict=True)) | news
        items = tuple(merged[key] for key in sorted(merged))
        held = _pool.get(digest)
        # The digest excludes signatures, but an item's signer decides who can revoke it: compare the whole items.
        if held is not None and held.items == items:
            return held
        made = _pool[digest] = Bucket(items, digest)
        return made

    def check(self) -> int:
        """Raise AssertionError unless all invariants hold. Returns the digest of the names of agents. O(items) the first time;
        then O(1), since a bucket never changes: simulations check the same ones again and again."""
        if self._agents is None:
            digest = agents = 0
            keys = [(item.kind, item.name) for item in self.items]
            assert keys == sorted(set(keys)), "a bucket's keys are not in order, or repeat"
            assert list(self.places) == keys
            for item in self.items:
                digest ^= item_digest(item)
                agents ^= agent_digest(item)
            assert digest == self.digest
            self._agents = agents
        return self._agents


_pool: WeakValueDictionary[int, Bucket] = WeakValueDictionary()
"""Digest -> the bucket that some directory in this process holds."""
EMPTY = Bucket((), 0)


class Directory:
    """One node's copy. `verify(item)`, whether the signer may make that item, is called before any item is kept."""

    def __init__(
        self,
        parameters: Parameters,
        verify: Callable[[Item], bool],
        rng: Random,
        signers: Signers = Signers(),  # noqa: B008
    ) -> None:
        self._parameters, self._verify, self._rng = parameters, verify, rng
        self.signers = signers
        self._buckets: list[Bucket] = [EMPTY] * parameters.buckets
        self._root = self._agents = 0  # digests of all items, and of the names of agents
        self._count = 0
        self._changed: dict[Key, Item] = {}
        self._rumors: dict[Key, Item] = {}
        self._unwritten: dict[Key, Item] = {}
        self._written = 0
        self._has_dropped = False  # the disk has items that were dropped, or may lack some: write all
        self._refused = 0
        self._asked = Counter[bytes]()  # comparisons since the last period, because jobs were not accepted
        self._gossip_due: int | None = None
        self._rumor_due: int | None = None
        self._now = 0

    # The map.

    def get(self, kind: str, name: bytes) -> Item | None:
        """O(1)."""
        return self._buckets[self._place(kind, name)].get((kind, name))

    def items(self, kind: str) -> Iterator[Item]:
        """All of one kind, in no particular order. O(items held)."""
        for bucket in self._buckets:
            for item in bucket.items:
                if item.kind == kind:
                    yield item

    def __len__(self) -> int:
        return self._count

    @property
    def digest(self) -> int:
        """Equal on two nodes exactly when they hold the same items."""
        return self._root

    def put(self, item: Item, now: int) -> bool:
        """Add an item made here. Returns whether it is newer than the one held; then `tick` has work at once. O(bucket)."""
        self._shift_timers(now)
        return bool(self._merge(self._place(item.kind, item.name), (item,)))

    def accepts(self, item: Item) -> bool:
        """Whether this node would keep the item if no newer one were there, and its signer's certificate holds."""
        place = self._place(item.kind, item.name)
        return self._is_wellformed(place, item) and self._verify(item) and self.signers.void_us(item) is None

    def take_changes(self) -> tuple[Item, ...]:
        """Items that were added or replaced since the last call."""
        if not self._changed:
            return ()
        changes = tuple(self._changed.values())
        self._changed.clear()
        return changes

    def share(self, other: Directory) -> None:
        """Hold exactly the items of `other`, without changes, rumors or records: a simulated mesh starts with one directory."""
        self._buckets, self._root, self._count = list(other._buckets), other._root, other._count
        self._agents = other._agents

    def restore(self, records: Iterable[tuple[Item, ...]]) -> None:
        """Apply the records written under ("directory", b""), in order. Their items are changes, but not rumors."""
        for record in records:
            self._written += len(record)
            for place, items in self._by_bucket(record).items():
                self._merge(place, tuple(items), len(items))
        self._rumors.clear()
        self._unwritten.clear()

    def drop(self, is_out: Callable[[Item], bool]) -> list[Item]:
        """Remove items, and return them. They are not among the changes. O(items held)."""
        dropped: list[Item] = []
        for place, bucket in enumerate(self._buckets):
            out = [item for item in bucket.items if is_out(item)]
            if out:
                self._buckets[place] = self._without(bucket, out)
                dropped += out
        self._count -= len(dropped)
        self._has_dropped |= bool(dropped)
        for item in dropped:
            for news in (self._changed, self._rumors, self._unwritten):
                news.pop((item.kind, item.name), None)
        return dropped

    def write_anew(self) -> None:
        """Write all items at the next tick, because a write may have failed."""
        self._has_dropped = True

    def _without(self, bucket: Bucket, out: list[Item]) -> Bucket:
        digest = bucket.digest
        for item in out:
            digest ^= item_digest(item)
            self._agents ^= agent_digest(item)
        self._root ^= bucket.digest ^ digest
        gone = {(item.kind, item.name) for item in out}
        return Bucket(tuple(item for item in bucket.items if (item.kind, item.name) not in gone), digest)

    def _place(self, kind: str, name: bytes) -> int:
        return crc32(name, crc32(kind.encode())) % len(self._buckets)

    def _by_bucket(self, items: Iterable[Item]) -> dict[int, list[Item]]:
        found: dict[int, list[Item]] = {}
        for item in items:
            found.setdefault(self._place(item.kind, item.name), []).append(item)
        return found

    def _is_newer(self, item: Item, held: Item) -> bool:
        """Rule Changing a job: of two items with one key every node keeps the one with the higher (stamp, digest of body)."""
        if item.stamp != held.stamp:
            return item.stamp > held.stamp
        return item.body != held.body and body_digest(item) > body_digest(held)

    def _merge(self, place: int, items: tuple[Item, ...], refused_max: int = REFUSED_MAX) -> list[Item]:
        """Keep the newer items, and return them. O(bucket + items)."""
        bucket = self._buckets[place]
        if items is bucket.items:
            return []
        fresh = [item for item in items if self._is_fresh(bucket, item) and self._is_wellformed(place, item)]
        accepted: dict[Key, Item] = {}
        self._refused = 0
        for item in fresh:
            held = accepted.get((item.kind, item.name))
            if held is not None and not self._is_newer(item, held):
                continue
            if self._verify(item):
                accepted[item.kind, item.name] = item
                continue
            self._refused += 1
            if self._refused > refused_max:
                break
        if accepted:
            formers = [
                former for item in accepted.values() if (former := self._former(bucket, item)) is not None
            ]
            self._replace(place, bucket, accepted)
            for former in formers:
                self._merge(self._place(former.kind, former.name), (former,))
        return list(accepted.values())

    def _former(self, bucket: Bucket, item: Item) -> Item | None:
        """The job's item that this one replaces, if another operator signed it."""
        held = bucket.get(("job", item.name)) if item.kind == "job" else None
        serial = self.signers.serial(held) if held is not None else b""
        return former_of(held, serial) if held and serial and serial != self.signers.serial(item) else None

    def _is_fresh(self, bucket: Bucket, item: Item) -> bool:
        held = bucket.get((item.kind, item.name))
        return held is None or (item is not held and self._is_newer(item, held))

    def _is_wellformed(self, place: int, item: Item) -> bool:
        return (
            item.kind in KINDS
            and 0 < len(item.name) <= NAME_BYTES_MAX
            and 0 < len(item.stamp) <= STAMP_MAX
            and all(0 <= part < 1 << 64 for part in item.stamp)
            and len(item.body) <= BODY_BYTES_MAX
            and self._place(item.kind, item.name) == place
            and (self._count < ITEMS_MAX or self.get(item.kind, item.name) is not None)
        )

    def _replace(self, place: int, bucket: Bucket, accepted: dict[Key, Item]) -> None:
        digest, count = bucket.digest, len(bucket.items)
        for key, item in accepted.items():
            held = bucket.get(key)
            digest ^= item_digest(item)
            if held is None:
                count += 1
                self._agents ^= agent_digest(item)
            else:
                digest ^= item_digest(held)
        self._root ^= bucket.digest ^ digest
        self._count += count - len(bucket.items)
        self._buckets[place] = bucket.with_items(accepted, digest)
        for news in (self._changed, self._rumors, self._unwritten):
            news.update(accepted)

    # Gossip.

    @property
    def deadline(self) -> int | None:
        """When `tick` has work; 0: at once."""
        if self._gossip_due is None or self._unwritten or self._has_dropped:
            return 0
        if self._rumors and self._rumor_due is None:
            return 0
        return self._gossip_due if self._rumor_due is None else min(self._gossip_due, self._rumor_due)

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """A `GossipDigest` or `GossipItems`. O(bucket) for each that differs."""
        if isinstance(message, GossipItems):
            return self._on_items(source, message)
        if not isinstance(message, GossipDigest):
            return []
        if message.want:
            want = [place for place in set(message.want) if 0 <= place < len(self._buckets)]
            return self._answer(source, want, reply=False)
        if message.root == self._root:
            return []
        if not message.buckets:
            return [Send(source, self._digest(whole=True))]
        return self._compare(source, message.buckets)

    def ask(self, kind: str, name: bytes) -> GossipDigest:
        """A request for another node's bucket of that item, even if the digests are equal."""
        return GossipDigest(self._root, (), (self._place(kind, name),))

    def _compare(self, source: NodeId, theirs: tuple[int, ...]) -> list[Effect]:
        if len(theirs) != len(self._buckets):
            text = f"a neighbour has {len(theirs)} buckets, this node {len(self._buckets)}: configure the same number on both"
            return [Notice("directory", text, source)]
        differ = [place for place, bucket in enumerate(self._buckets) if bucket.digest != theirs[place]]
        effects: list[Effect] = []
        want = tuple(place for place in differ if not self._buckets[place].items)
        if want:
            effects.append(Send(source, GossipDigest(self._root, (), want)))
        return effects + self._answer(source, differ, reply=True)

    def _answer(self, to: NodeId, places: list[int], reply: bool) -> list[Effect]:
        """Send as many of those buckets as one answer may hold, in random order: later periods send the others."""
        self._rng.shuffle(places)
        effects: list[Effect] = []
        room = ANSWER_BYTES_MAX
        for place in places:
            if room <= 0:
                break
            effects += self._items_of_bucket(to, place, reply)
            room -= sum(map(_size, self._buckets[place].items))
        return effects

    def _items_of_bucket(self, to: NodeId, place: int, reply: bool) -> list[Effect]:
        """Send a bucket's items. A bucket that is too large for one message is sent in pieces, and then, instead of a reply, the
        other side's bucket is requested."""
        items = self._buckets[place].items
        pieces = _pieces(items)
        if len(pieces) == 1:
            return [Send(to, GossipItems(place, items, reply, self._agents))]
        effects: list[Effect] = [Send(to, self._items_message(place, piece)) for piece in pieces]
        if reply and pieces:
            effects.append(Send(to, GossipDigest(self._root, (), (place,))))
        return effects

    def _items_message(self, place: int, items: tuple[Item, ...]) -> GossipItems:
        return GossipItems(place, items, agents=self._agents)

    def _on_items(self, source: NodeId, message: GossipItems) -> list[Effect]:
        if not 0 <= message.bucket < len(self._buckets):
            return []
        items = self._acceptable(message)
        self._merge(message.bucket, items)
        effects: list[Effect] = []
        if len(items) < len(message.items) and self._asked[source] < ASKS_MAX:
            self._asked[source] += 1
            effects.append(Send(source, self._digest(whole=True)))
        if self._refused:
            text = f"{self._refused} directory items that this agent sent are ignored: their signatures are not valid"
            effects.append(Notice(UNBELIEVED, text, source))
        if not message.reply:
            return effects
        newer = self._unknown_to(message.bucket, message.items)
        return effects + [
            Send(source, self._items_message(message.bucket, piece)) for piece in _pieces(newer)
        ]

    def _acceptable(self, message: GossipItems) -> tuple[Item, ...]:
        """Rule Roster*: a job that is new here is accepted only if the sender holds adverts of the same agents. So every node
        that holds a job knows all agents that the job's earlier holders knew. A comparison brings the missing adverts, and the
        next one the job."""
        if message.agents == self._agents:
            return message.items
        return tuple(
            item for item in message.items if item.kind != "job" or self.get("job", item.name) is not None
        )

    def _unknown_to(self, place: int, theirs: tuple[Item, ...]) -> tuple[Item, ...]:
        """The items of the own bucket that a node with `theirs` lacks."""
        mine = self._buckets[place].items
        if mine is theirs:
            return ()
        known = {(item.kind, item.name): item for item in theirs}
        return tuple(
            item
            for item in mine
            if (held := known.get((item.kind, item.name))) is None or self._is_newer(item, held)
        )

    def _digest(self, whole: bool = False) -> GossipDigest:
        return GossipDigest(self._root, tuple(bucket.digest for bucket in self._buckets) if whole else ())

    def tick(self, now: int, neighbours: Sequence[NodeId]) -> list[Effect]:
        """Write new items, forward them, and compare with one random neighbour. `neighbours`: the nodes that may be chosen."""
        self._shift_timers(now)
        effects = self._write()
        if self._rumors and self._rumor_due is None:
            self._rumor_due = now + self._rng.randrange(1, self._parameters.rumor_us + 1)
        elif self._rumor_due is not None and now >= self._rumor_due:
            if neighbours:
                effects += self._send_rumors(neighbours)
            else:
                self._rumor_due = now + self._parameters.gossip_us
        if self._gossip_due is None:
            self._gossip_due = now + self._rng.randrange(1, self._parameters.gossip_us + 1)
        elif now >= self._gossip_due:
            self._gossip_due = now + self._parameters.gossip_us
            self._asked.clear()
            if neighbours:
                effects.append(Send(self._rng.choice(neighbours), self._digest()))
        return effects

    def _send_rumors(self, neighbours: Sequence[NodeId]) -> list[Effect]:
        self._rumor_due = None
        chosen = self._rng.sample(neighbours, min(len(neighbours), self._parameters.rumor_fanout))
        messages: list[Message]
        if len(self._rumors) > RUMORS_MAX:
            messages = [self._digest(whole=True)]
        else:
            messages = [
                self._items_message(place, piece)
                for place, items in self._by_bucket(self._rumors.values()).items()
                for piece in _pieces(tuple(items))
            ]
        self._rumors.clear()
        return [Send(node, message) for node in chosen for message in messages]

    def _write(self) -> list[Effect]:
        """Append the new items to the disk; when it has three times as many items as this node holds, write all anew."""
        if not self._unwritten and not self._has_dropped:
            return []
        record, replace = tuple(self._unwritten.values()), False
        self._unwritten.clear()
        self._written += len(record)
        if self._has_dropped or self._written > 3 * self._count + 64:
            self._has_dropped = False
            record, replace = tuple(item for bucket in self._buckets for item in bucket.items), True
            self._written = len(record)
        return [Write(("directory", b""), record, replace)]

    def _shift_timers(self, now: int) -> None:
        """Shift the timers when the clock steps back."""
        back = self._now - now
        self._now = now
        if back > 0:
            self._gossip_due = None if self._gossip_due is None else self._gossip_due - back
            self._rumor_due = None if self._rumor_due is None else self._rumor_due - back

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold. O(items), mostly of buckets that were not checked before."""
        root = count = agents = 0
        for place, bucket in enumerate(self._buckets):
            if bucket is EMPTY:
                continue
            agents ^= bucket.check()
            assert all(self._place(*key) == place for key in bucket.places)
            root, count = root ^ bucket.digest, count + len(bucket.items)
        assert (root, count, agents) == (self._root, self._count, self._agents)
        for news in (self._changed, self._rumors, self._unwritten):
            assert all(self.get(*key) == item for key, item in news.items())


def _size(item: Item) -> int:
    return len(item.body) + len(item.signature) + NAME_BYTES_MAX


def _pieces(items: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    """The items in pieces that each fit into a message; the same tuple if all fit."""
    sizes = list(map(_size, items))
    if sum(sizes) <= MESSAGE_BYTES_MAX:
        return [items] if items else []
    pieces: list[tuple[Item, ...]] = []
    start = room = 0
    for at, size in enumerate(sizes):
        if room + size > MESSAGE_BYTES_MAX and at > start:
            pieces.append(items[start:at])
            start, room = at, 0
        room += size
    return [*pieces, items[start:]]
