"""The directory: any order of gossip ends in the same content, a change is everywhere in seconds, and nodes share buckets."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import PeerError
from elf.jobmaster.directory.directory import MESSAGE_BYTES_MAX, Directory, body_digest
from elf.jobmaster.directory.job_spec import (
    BODY_BYTES_MAX,
    AgentAdvert,
    JobSpec,
    Version,
    ballot_item,
    ballot_of,
    decode_agent,
    decode_job,
)
from elf.srt.messages.effects import Effect, Notice, Send, Write
from elf.srt.messages.messages import GossipDigest, GossipItems, Item, Message
from elf.srt.messages.parameters import Parameters

P = Parameters()
SECOND = 1_000_000


def directory(parameters: Parameters = P, seed: int = 0) -> Directory:
    return Directory(parameters, lambda item: item.signature != b"forged", Random(seed))


def name(number: int) -> bytes:
    return number.to_bytes(16)


def advert(number: int, life: int = 1) -> Item:
    return AgentAdvert(f"web{number}", ("access",), life).item(name(number))


def spec(number: int = 1, text: str = "SELECT 1", job: str = "visits") -> JobSpec:
    return JobSpec(job, number, "access", (Version("d1", b"plan", text),))


def sends(effects: Sequence[Effect]) -> list[tuple[bytes, Message]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


class Mesh:
    """Directories that gossip over a network with delays, and optionally losses."""

    def __init__(self, count: int, seed: int, loss: float = 0.0, known: int = 20) -> None:
        self.rng, self.loss, self.now, self.serial, self.messages = Random(seed), loss, 0, 0, 0
        self.nodes = {name(number): directory(seed=number) for number in range(count)}
        ids = list(self.nodes)
        self.neighbours = {node: self.rng.sample(ids, min(known, count)) for node in ids}
        self.learnt: dict[tuple[bytes, bytes], int] = {}
        self._events: list[tuple[int, int, bytes, tuple[bytes, Message] | None]] = []
        for node in ids:
            self.wake(node, self.rng.randrange(SECOND))

    def wake(self, node: bytes, at: int) -> None:
        self._push(max(at, self.now), node, None)

    def _push(self, at: int, node: bytes, body: tuple[bytes, Message] | None) -> None:
        self.serial += 1
        heapq.heappush(self._events, (at, self.serial, node, body))

    def run(self, for_us: int) -> None:
        until = self.now + for_us
        while self._events[0][0] <= until:
            self.now, _, node, body = heapq.heappop(self._events)
            held = self.nodes[node]
            before = held.deadline
            assert before is not None
            if body is not None:
                effects = held.step(*body, self.now)
            elif before <= self.now:
                effects = held.tick(self.now, self.neighbours[node])
            else:
                continue
            self._perform(node, effects)
            after = held.deadline
            assert after is not None
            if body is None or after < before:
                self.wake(node, after)
        self.now = until

    def _perform(self, node: bytes, effects: list[Effect]) -> None:
        for item in self.nodes[node].take_changes():
            self.learnt.setdefault((node, item.name), self.now)
        for to, message in sends(effects):
            self.messages += 1
            if self.rng.random() >= self.loss:
                self._push(self.now + self.rng.randrange(200, 2_000), to, (node, message))


@st.composite
def any_items(draw: st.DrawFn) -> list[Item]:
    entry = st.builds(
        Item,
        st.sampled_from(["agent", "job", "ballot", "revoked"]),
        st.sampled_from([name(number) for number in range(6)]),
        st.tuples(st.integers(0, 3)),
        st.sampled_from([b"", b"a", b"b", b"c" * 40]),
    )
    return draw(st.lists(entry, max_size=25))


def model(items: Sequence[Item]) -> dict[tuple[str, bytes], Item]:
    """The highest (stamp, digest of body) of each key."""
    best: dict[tuple[str, bytes], Item] = {}
    for item in items:
        held = best.get((item.kind, item.name))
        if held is None or (item.stamp, body_digest(item)) > (held.stamp, body_digest(held)):
            best[item.kind, item.name] = item
    return best


def content(held: Directory) -> dict[tuple[str, bytes], Item]:
    kinds = ("agent", "ballot", "job", "revoked")
    return {(item.kind, item.name): item for kind in kinds for item in held.items(kind)}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(any_items(), st.integers(0, 1 << 30))
def test_any_order_and_any_exchange_ends_in_the_same_content(items: list[Item], seed: int) -> None:
    rng = Random(seed)
    nodes = [directory(msgspec.structs.replace(P, buckets=4), number) for number in range(3)]
    for item in items:
        nodes[rng.randrange(3)].put(item, 0)
    waiting: list[tuple[int, int, Message]] = []
    for _ in range(12):
        for source, held in enumerate(nodes):
            waiting += [(source, (source + 1 + rng.randrange(2)) % 3, GossipDigest(held.digest))]
        while waiting:
            source, to, message = waiting.pop(rng.randrange(len(waiting)))
            answers = nodes[to].step(bytes([source]), message, 0)
            waiting += [(to, node[0], answer) for node, answer in sends(answers)]
            if rng.random() < 0.1:
                waiting.append((source, to, message))
    best = model(items)
    for held in nodes:
        held.check()
        assert content(held) == best
        assert all(held.get(*key) == item for key, item in best.items())
    assert len({held.digest for held in nodes}) == 1


def test_a_new_job_is_accepted_only_from_a_node_with_the_same_agents() -> None:
    """The comparison that is requested at once brings the missing advert; the next one brings the job."""
    one, other = directory(), directory(seed=1)
    for number in (1, 2):
        other.put(advert(number), 0)
    one.put(advert(1), 0)
    other.put(spec().item(), 0)
    place = other._place("job", spec().id)
    (first,) = sends(other.step(name(1), GossipDigest(0, (), (place,)), 0))
    requests = sends(one.step(name(2), first[1], 0))
    assert one.get("job", spec().id) is None
    assert requests == [(name(2), GossipDigest(one.digest, tuple(each.digest for each in one._buckets)))]
    nodes = {name(1): one, name(2): other}
    waiting = [(name(1), to, message) for to, message in requests]
    while waiting:
        source, to, message = waiting.pop()
        waiting += [(to, *answer) for answer in sends(nodes[to].step(source, message, 0))]
    assert one.get("job", spec().id) == spec().item()
    assert one.digest == other.digest


def test_a_change_of_a_known_job_is_accepted_from_any_node() -> None:
    one, other = directory(), directory(seed=1)
    one.put(spec().item(), 0)
    other.put(advert(2), 0)
    other.put(spec(2).item(), 0)
    (answer,) = sends(other.step(name(1), GossipDigest(0, (), (other._place("job", spec().id),)), 0))
    assert one.step(name(2), answer[1], 0) == []
    assert one.get("job", spec().id) == spec(2).item()


def test_a_neighbour_that_never_agrees_is_asked_a_few_times_in_a_period() -> None:
    one, other = directory(), directory(seed=1)
    other.put(advert(2), 0)
    other.put(spec().item(), 0)
    (answer,) = sends(other.step(name(1), GossipDigest(0, (), (other._place("job", spec().id),)), 0))
    assert [len(one.step(name(2), answer[1], 0)) for _ in range(5)] == [1, 1, 1, 0, 0]


def test_of_two_with_one_number_the_digest_decides_in_any_order() -> None:
    one, two = spec(text="SELECT 1").item(), spec(text="SELECT 2").item()
    winner = max(one, two, key=body_digest)
    for order in ([one, two], [two, one]):
        held = directory()
        for item in order:
            held.put(item, 0)
        assert held.get("job", one.name) == winner


def test_put_returns_whether_the_item_was_new() -> None:
    held = directory()
    assert held.put(spec(2).item(), 0)
    assert not held.put(spec(2).item(), 0)
    assert not held.put(spec(1).item(), 0)
    assert held.put(spec(3).item(), 0)
    assert held.take_changes() == (spec(3).item(),)
    assert held.take_changes() == ()
    assert len(held) == 1


def test_a_new_job_reaches_a_thousand_nodes_within_two_seconds() -> None:
    mesh = Mesh(1_000, 1, loss=0.01)
    mesh.run(2 * SECOND)
    origin, start = name(0), mesh.now
    before = mesh.messages
    mesh.nodes[origin].put(spec().item(), start)
    mesh.wake(origin, 0)
    mesh.run(2 * SECOND)
    times = sorted(mesh.learnt[node, spec().id] - start for node in mesh.nodes)
    assert len(times) == 1_000
    assert times[900] < SECOND // 4
    assert mesh.messages - before < 1_000 * (P.rumor_fanout + 4)


def test_a_hundred_nodes_that_start_together_come_to_know_each_other() -> None:
    mesh = Mesh(100, 2, loss=0.05)
    for number, (node, held) in enumerate(mesh.nodes.items()):
        held.put(advert(number), 0)
        mesh.wake(node, 0)
    mesh.run(8 * SECOND)
    assert {len(held) for held in mesh.nodes.values()} == {100}
    assert len({held.digest for held in mesh.nodes.values()}) == 1
    for held in mesh.nodes.values():
        held.check()


def test_converged_nodes_share_their_buckets() -> None:
    mesh = Mesh(30, 3)
    for number, (node, held) in enumerate(mesh.nodes.items()):
        held.put(advert(number), 0)
        mesh.wake(node, 0)
    mesh.run(10 * SECOND)
    first, *others = mesh.nodes.values()
    assert all(a is b for held in others for a, b in zip(held._buckets, first._buckets, strict=True))


def test_a_bucket_with_other_signatures_is_another_one() -> None:
    """Of two nodes of one process, one has a job's item from Ann, the other from Bob; then both get another item of that
    bucket."""
    few = msgspec.structs.replace(P, buckets=1)
    by_ann, by_bob = (msgspec.structs.replace(spec().item(), signature=name) for name in (b"ann", b"bob"))
    other = msgspec.structs.replace(spec(job="errors").item(), signature=b"bob")
    one, two = directory(few, 1), directory(few, 2)
    for held, first in ((one, by_bob), (two, by_ann)):
        held.put(first, 0)
        held.put(other, 0)
        held.check()
    assert one.digest == two.digest
    assert [held.get("job", by_ann.name) for held in (one, two)] == [by_bob, by_ann]


def test_a_warm_start_shares_another_nodes_content() -> None:
    held, other = directory(), directory()
    held.put(advert(1), 0)
    other.share(held)
    other.check()
    assert content(other) == content(held)
    other.put(advert(2), 0)
    assert len(held) == 1


def test_forged_misplaced_and_oversized_items_are_not_kept() -> None:
    held = directory()
    good = spec().item()
    forged = msgspec.structs.replace(good, stamp=(9,), signature=b"forged")
    place = next(place for place in range(P.buckets) if directory()._merge(place, (good,)))
    bad = [
        forged,
        msgspec.structs.replace(good, kind="other"),
        msgspec.structs.replace(good, name=b""),
        msgspec.structs.replace(good, stamp=()),
        msgspec.structs.replace(good, stamp=(1 << 64,)),
        msgspec.structs.replace(good, body=bytes(BODY_BYTES_MAX + 1)),
    ]
    for item in bad:
        held.step(name(1), GossipItems(place, (item,)), 0)
    held.step(name(1), GossipItems((place + 1) % P.buckets, (good,)), 0)
    held.step(name(1), GossipItems(P.buckets, (good,)), 0)
    held.step(name(1), GossipDigest(1, (), (-1, P.buckets)), 0)
    assert len(held) == 0
    held.step(name(1), GossipItems(place, (*bad, good)), 0)
    assert content(held) == {("job", good.name): good}
    held.check()


def test_a_forged_successor_does_not_hide_a_true_one_in_the_same_message() -> None:
    held = directory()
    true = spec(2).item()
    forged = msgspec.structs.replace(spec(3).item(), signature=b"forged")
    place = next(place for place in range(P.buckets) if directory()._merge(place, (true,)))
    held.step(name(1), GossipItems(place, (true, forged)), 0)
    assert held.get("job", true.name) == true


def test_another_number_of_buckets_is_reported() -> None:
    held = directory()
    held.put(advert(1), 0)
    (notice,) = held.step(name(1), GossipDigest(5, (1, 2)), 0)
    assert isinstance(notice, Notice)


def test_a_large_bucket_travels_in_pieces_and_still_converges() -> None:
    few = msgspec.structs.replace(P, buckets=1)
    one, two = directory(few), directory(few)
    for number in range(20):
        body = bytes([number]) * 20_000
        (one if number % 2 else two).put(Item("agent", name(number), (1,), body), 0)
    waiting = [(1, two.step(b"0", GossipDigest(one.digest), 0))]
    largest = 0
    for _ in range(20):
        if not waiting:
            break
        who, effects = waiting.pop()
        for _, message in sends(effects):
            if isinstance(message, GossipItems):
                largest = max(largest, sum(len(item.body) for item in message.items))
            held = one if who == 1 else two
            waiting.append((1 - who, held.step(bytes([who]), message, 0)))
    assert one.digest == two.digest
    assert len(one) == 20
    assert 0 < largest <= MESSAGE_BYTES_MAX


def test_a_restart_reads_what_was_written() -> None:
    held = directory()
    records: list[tuple[Item, ...]] = []
    rng = Random(4)
    for step in range(400):
        held.put(advert(rng.randrange(20), rng.randrange(1, 50)), step)
        for effect in held.tick(step, []):
            assert isinstance(effect, Write)
            assert effect.key == ("directory", b"")
            records = [effect.record] if effect.replace else [*records, effect.record]
    assert sum(map(len, records)) <= 3 * 20 + 64
    back = directory()
    back.restore(records)
    back.check()
    assert content(back) == content(held)
    assert len(back.take_changes()) == 20
    assert not any(isinstance(effect, Write) for effect in back.tick(1_000, [name(1)]))


def test_new_items_wait_for_the_first_neighbour() -> None:
    held = directory()
    held.put(advert(1), 0)
    for now in (0, P.rumor_us, 2 * P.gossip_us):
        assert not sends(held.tick(now, []))
    sent = sends(held.tick(4 * P.gossip_us, [name(7)]))
    items = GossipItems(held._place("agent", name(1)), (advert(1),), agents=1)
    assert (name(7), items) in sent


def test_a_clock_that_steps_back_does_not_silence_the_gossip() -> None:
    held = directory()
    held.tick(3_600 * SECOND, [name(1)])
    held.tick(0, [name(1)])
    assert held.deadline is not None
    assert held.deadline <= P.gossip_us


def test_specs_adverts_and_ballots_come_back_as_they_were() -> None:
    job = JobSpec(
        "a", 3, "access", (Version("x", b"1", "q"), Version("y", b"2", "r")), "next", 5, sinks=("lake",)
    )
    assert decode_job(job.item()) == job
    agent = AgentAdvert("web1", ("access", "errors"), 4, 77)
    assert decode_agent(agent.item(name(9))) == agent
    writes = msgspec.structs.replace(agent, sinks=("lake", "out"), streams=("out",))
    assert decode_agent(writes.item(name(9))) == writes
    assert len(msgspec.msgpack.decode(agent.encode())) == len(msgspec.msgpack.decode(writes.encode())) - 1
    ballot = (12, name(1 << 100))
    assert ballot_of(ballot_item(job.id, ballot)) == ballot


@pytest.mark.parametrize(
    "item",
    [
        msgspec.structs.replace(spec().item(), body=b""),
        msgspec.structs.replace(spec().item(), body=b"\xc1"),
        msgspec.structs.replace(spec().item(), body=bytes(BODY_BYTES_MAX + 1)),
        msgspec.structs.replace(spec().item(), body=spec().item().body[:-1]),
        msgspec.structs.replace(spec().item(), name=name(1)),
        msgspec.structs.replace(spec().item(), stamp=(2,)),
        spec(job="x" * 300).item(),
        JobSpec("a", 1, "access", ()).item(),
        JobSpec("a", 1, "access", (Version("d", b"", ""), Version("d", b"", ""))).item(),
        JobSpec("a", 1, "access", (Version("d", b"", ""),), lateness_us=-1).item(),
    ],
)
def test_invalid_job_bytes_are_a_peer_error(item: Item) -> None:
    with pytest.raises(PeerError, match="directory: "):
        decode_job(item)


@pytest.mark.parametrize("stamp", [(), (1, 2), (1, 2, 1 << 64), (1, -1, 2)])
def test_invalid_ballot_stamps_are_a_peer_error(stamp: tuple[int, ...]) -> None:
    with pytest.raises(PeerError, match="ballot"):
        ballot_of(Item("ballot", name(1), stamp, b""))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_peer_error(body: bytes) -> None:
    for decode in (decode_job, decode_agent):
        with pytest.raises(PeerError):
            decode(Item("job", name(1), (1,), body))
