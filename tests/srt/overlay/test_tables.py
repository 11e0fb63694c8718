"""Leaf set and routing table alone, against a sorted list of all nodes."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elf.srt.messages.ids import NodeId, closeness, digit, node_id, shared_digits
from elf.srt.messages.messages import Contact
from elf.srt.overlay.leafset import LeafSet, leaves_digest
from elf.srt.overlay.routing import RoutingTable, warm_tables

CASES = settings(derandomize=True, max_examples=150, deadline=None)
narrow = st.integers(0, 25).map(lambda number: (number * 10).to_bytes(16))
"""Few places, so that ties, neighbours and repetitions are common."""
wrapped = narrow.map(lambda node: bytes(255 - byte for byte in node))
anywhere = st.binary(min_size=16, max_size=16)
node_ids = narrow | wrapped | anywhere
keys = node_ids | st.integers(0, 260).map(lambda number: number.to_bytes(16))
ME = (100).to_bytes(16)


def halves(nodes: set[NodeId], me: NodeId, size: int) -> set[NodeId]:
    """The leaf set by definition: walk `size` / 2 steps both ways round the sorted ring."""
    ring = sorted(nodes | {me})
    at = bisect_left(ring, me)
    return {ring[(at + step) % len(ring)] for step in range(-(size // 2), size // 2 + 1)} - {me}


class LeafSetAgainstTheRing(RuleBasedStateMachine):
    """While no node leaves, the leaf set is the ring's; a node that leaves makes room for those that a repair reports again."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = LeafSet(ME, 6)
        self.nodes: set[NodeId] = set()

    @rule(node=node_ids)
    def add(self, node: NodeId) -> None:
        before = set(self.leaves.clockwise())
        fits = self.leaves.fits(node)
        assert self.leaves.lacks([node, ME]) == ([node] if fits and node not in before else [])
        out = self.leaves.add(node)
        self.nodes |= {node} - {ME}
        after = set(self.leaves.clockwise())
        assert fits == (node in after)
        assert (before | {node}) - after - {ME} == ({out} if out else set())

    @rule(index=st.integers(0, 30))
    def leave(self, index: int) -> None:
        if self.nodes:
            node = sorted(self.nodes)[index % len(self.nodes)]
            self.nodes.discard(node)
            was_in = node in self.leaves
            assert self.leaves.discard(node) == was_in
            self.leaves.fill(self.nodes)

    @invariant()
    def equals_the_ring(self) -> None:
        self.leaves.check()
        assert set(self.leaves.clockwise()) == halves(self.nodes, ME, 6)
        assert self.leaves.by_id() == sorted(halves(self.nodes, ME, 6))
        assert self.leaves.full == (len(self.nodes) >= 6)

    @rule(key=keys, count=st.integers(0, 9))
    def nearest(self, key: bytes, count: int) -> None:
        ordered = sorted({*self.leaves.clockwise(), ME}, key=lambda node: closeness(key, node))
        assert self.leaves.closest(key) == ordered[0]
        assert self.leaves.nearest(key, count) == ordered[:count]

    @rule(key=keys)
    def who_covers_a_key_knows_its_closest_node(self, key: bytes) -> None:
        if self.leaves.covers(key):
            best = min(self.nodes | {ME}, key=lambda node: closeness(key, node))
            assert self.leaves.closest(key) == best


LeafSetAgainstTheRing.TestCase.settings = settings(CASES, max_examples=60, stateful_step_count=30)
test_leaf_set = LeafSetAgainstTheRing.TestCase


def test_edges_are_the_farthest_on_each_side() -> None:
    leaves = LeafSet(ME, 4)
    assert leaves.edges() == []
    leaves.fill([(100 + step).to_bytes(16) for step in (-3, -2, -1, 1, 2, 3)])
    assert leaves.edges() == [(102).to_bytes(16), (98).to_bytes(16)]
    assert (leaves.left, leaves.right) == ((99).to_bytes(16), (101).to_bytes(16))
    leaves.discard((102).to_bytes(16))
    assert {(101).to_bytes(16), (98).to_bytes(16)} <= set(leaves.edges())


@CASES
@given(st.sets(anywhere.map(node_id), min_size=1, max_size=20))
def test_digest_depends_on_the_set_alone(nodes: set[NodeId]) -> None:
    assert leaves_digest(sorted(nodes)) == leaves_digest(sorted(nodes, reverse=True))
    assert leaves_digest(sorted(nodes)[1:]) != leaves_digest(nodes)


@CASES
@given(st.sets(node_ids, max_size=60), keys)
def test_routing_table_gives_one_digit_more(nodes: set[NodeId], key: bytes) -> None:
    table = RoutingTable(ME)
    for node in nodes - {ME}:
        table.put(node)
    table.check()
    assert set(table) <= nodes
    for row in range(32):
        alike = {digit(node, row) for node in nodes - {ME} if shared_digits(node, ME) == row}
        assert [digit(node, row) for node in table.row(row)] == sorted(alike)
    if key != ME:
        found = table.get(key)
        further = [node for node in nodes - {ME} if shared_digits(node, key) > shared_digits(ME, key)]
        assert (found in further) if further else found is None


def test_routing_table_returns_the_former_node_of_a_cell() -> None:
    table = RoutingTable(bytes(16))
    first, second = bytes([0x51]) + bytes(15), bytes([0x52]) + bytes(15)
    assert table.put(first) is None
    assert table.put(first) is None
    assert table.put(second) == first
    assert not table.discard(first)
    assert table.discard(second)
    assert len(table) == 0
    assert table.row(-1) == table.row(32) == []


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 18, 300])
def test_warm_tables_equal_the_ring_and_leave_no_cell_empty(size: int) -> None:
    nodes = sorted(
        bytes([number * 37 % 256, number * 91 % 256, number // 256]) + bytes(13) for number in range(size)
    )
    contacts = [Contact(node, 1) for node in nodes]
    for index in range(0, size, max(size // 20, 1)):
        me = nodes[index]
        leaves, table = warm_tables(contacts, index, 16)
        assert {contact.id for contact in leaves} == halves(set(nodes), me, 16)
        cells = [
            (shared_digits(me, contact.id), digit(contact.id, shared_digits(me, contact.id)))
            for contact in table
        ]
        wanted = {(row := shared_digits(me, node), digit(node, row)) for node in nodes if node != me}
        assert len(cells) == len(set(cells))
        assert set(cells) == wanted
