"""Routing: no loops whatever the tables contain, and the closest node in few hops once they have settled."""

from __future__ import annotations

from math import ceil, log
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.srt.messages.ids import NodeId, closeness
from elf.srt.messages.messages import Contact, Ping
from elf.srt.messages.parameters import SECOND, Parameters
from elf.srt.overlay.overlay import Overlay
from tests.rigs.overlay_rig import Mesh

CASES = settings(derandomize=True, max_examples=100, deadline=None)
SMALL = Parameters(leaves=4)

few_digits = st.lists(
    st.sampled_from([0x00, 0x01, 0x0F, 0x10, 0x11, 0xF0, 0xFF]), min_size=3, max_size=3
).map(lambda head: bytes(head) + bytes(13))
"""Long common prefixes, and boundaries of digits where the nearer node shares the shorter prefix."""
meshes = st.lists(few_digits | st.binary(min_size=16, max_size=16), min_size=1, max_size=30, unique=True)


def knowing(me: NodeId, others: list[NodeId]) -> Overlay:
    overlay = Overlay(Contact(me, 1), SMALL, Random(1))
    overlay.warm([Contact(node, 1) for node in others], 0)
    overlay.check()
    return overlay


@CASES
@given(meshes, few_digits | st.binary(min_size=16, max_size=16), st.randoms(use_true_random=False))
def test_no_circle_whatever_each_node_knows(ids: list[NodeId], key: bytes, rng: Random) -> None:
    nodes = {node: knowing(node, rng.sample(ids, rng.randint(0, len(ids)))) for node in ids}
    for start in ids:
        at, seen = start, {start}
        while (hop := nodes[at].next_hop(key)) is not None:
            assert closeness(key, hop) < closeness(key, at)
            assert hop not in seen
            seen.add(hop)
            at = hop


@CASES
@given(meshes, few_digits | st.binary(min_size=16, max_size=16))
def test_where_leaf_sets_are_right_every_way_ends_at_the_closest_node(ids: list[NodeId], key: bytes) -> None:
    nodes = {node: knowing(node, ids) for node in ids}
    closest = min(ids, key=lambda node: closeness(key, node))
    for start in ids:
        at = start
        while (hop := nodes[at].next_hop(key)) is not None:
            at = hop
        assert at == closest
        assert (
            nodes[start].closest(start, 3)
            == sorted(
                [start, *(contact.id for contact in nodes[start].leaves())],
                key=lambda node: closeness(start, node),
            )[:3]
        )


def test_1_000_warm_nodes_equal_the_ring_and_route_within_four_hops() -> None:
    mesh = Mesh(11)
    ids = mesh.warm(1_000)
    assert not mesh.wrong_leaf_sets()
    hops = []
    for _ in range(1_000):
        key = mesh.rng.randbytes(16)
        way = mesh.route(mesh.rng.choice(ids), key)
        assert way[-1] == mesh.closest(key)
        hops.append(len(way) - 1)
    assert max(hops) <= ceil(log(1_000, 16)) + 1
    assert sum(hops) / len(hops) <= log(1_000, 16)


def test_a_warm_mesh_stays_as_it_is_and_keeps_quiet() -> None:
    mesh = Mesh(12)
    mesh.warm(300)
    mesh.run(10 * SECOND)
    assert not mesh.wrong_leaf_sets()
    changes = {what for overlay in mesh.nodes.values() for what, _ in overlay.take_changes()}
    assert changes <= {"joined"}, (
        "somebody nearer may take a cell of a routing table, but nobody is suspected"
    )
    assert 1.0 <= mesh.sent["Ping"] / 300 / 10 <= 1.5
    assert sum(mesh.sent.values()) / 300 / 10 <= 3.0


def test_of_two_nodes_for_one_cell_the_one_with_the_shorter_round_trip_is_taken() -> None:
    far, near = bytes([0x80]) + bytes(15), bytes([0x81]) + bytes(15)
    leaves = [bytes(15) + bytes([step]) for step in range(1, 9)] + [
        bytes([255] * 15 + [255 - step]) for step in range(8)
    ]
    trips = {far: 900, near: 300}
    overlay = Overlay(
        Contact(bytes(16), 1), Parameters(), Random(1), proximity=lambda node: trips.get(node, 500)
    )
    overlay.warm([Contact(node, 1) for node in (*leaves, far)], 0)
    key = bytes([0x82]) + bytes(15)
    assert overlay.next_hop(key) == far
    overlay.step(near, Ping(Contact(near, 1), 1), 0)
    assert overlay.next_hop(key) == near
    overlay.step(far, Ping(Contact(far, 1), 1), 0)
    assert overlay.next_hop(key) == near
    overlay.check()
