"""Whose leaf sets a node requests, and when."""

from __future__ import annotations

from random import Random

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact, LeavesReport, LeavesRequest
from elf.srt.messages.parameters import SECOND, Parameters
from elf.srt.overlay.leafset import leaves_digest
from elf.srt.overlay.membership import Membership
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.repair import Repair

TIMES = Parameters(leaves=4)


def name(number: int) -> NodeId:
    return bytes([number]) + bytes(15)


ME = Contact(name(100), 1, "here")
OTHERS = [Contact(name(number), 1, f"there-{number}") for number in (80, 90, 110, 120)]
LEFT, RIGHT = OTHERS[1], OTHERS[2]
NODES = [other.id for other in OTHERS]


class Node:
    """The repair of a node that knows `OTHERS`."""

    def __init__(self) -> None:
        self.members = Membership(ME, TIMES, Random(1))
        self.near = Neighbours(self.members, TIMES.leaves)
        self.near.warm(OTHERS)
        self.repair = Repair(self.members, self.near, TIMES.repair_us)

    def compare(self, neighbour: Contact, digest: int) -> list[NodeId]:
        """The nodes whose leaf sets are requested."""
        out: list[Effect] = []
        self.repair.compare(neighbour.id, digest, out)
        self.repair.check()
        return requested(out)

    def live(self, span_us: int) -> None:
        self.members.lived += span_us


def requested(effects: list[Effect]) -> list[NodeId]:
    assert all(isinstance(each, Send) and each.message == LeavesRequest(ME) for each in effects)
    return [each.to for each in effects if isinstance(each, Send)]


def test_only_the_nearest_on_each_side_are_compared() -> None:
    for other in OTHERS:
        assert Node().compare(other, 1) == ([other.id] if other in (LEFT, RIGHT) else [])


def test_at_most_four_requests_are_sent_in_a_repair_period() -> None:
    node, found = Node(), 0
    for step in range(40):
        found += len(node.compare(LEFT, step + 1))
        node.live(TIMES.repair_us // 40)
    assert found == 4


def test_a_leaf_set_that_was_reported_is_not_requested_again_until_it_changes() -> None:
    node = Node()
    node.repair.reported(LeavesReport(LEFT, tuple(OTHERS)))
    assert node.compare(LEFT, leaves_digest(NODES)) == []
    assert node.compare(LEFT, leaves_digest(NODES[1:])) == [LEFT.id]
    node.live(SECOND)
    assert node.compare(RIGHT, leaves_digest(NODES)) == [RIGHT.id], "that report was another node's"
    node.live(SECOND)
    node.repair.forget(LEFT.id)
    assert node.compare(LEFT, leaves_digest(NODES)) == [LEFT.id]


def test_reports_of_nodes_that_are_not_nearest_are_not_kept() -> None:
    node = Node()
    for contact in OTHERS:
        node.repair.reported(LeavesReport(contact, tuple(OTHERS)))
    node.repair.check()
    assert [node.compare(contact, leaves_digest(NODES)) for contact in OTHERS] == [[], [], [], []]
    node.members.forget(RIGHT.id)
    node.near.drop(RIGHT.id)
    assert node.compare(OTHERS[3], leaves_digest(NODES)) == [OTHERS[3].id]


def test_a_lost_leaf_leaves_a_hole_until_a_report_comes() -> None:
    node = Node()
    node.repair.reported(LeavesReport(LEFT, tuple(OTHERS)))
    assert requested(node.repair.lost_leaf()) == node.near.leaves.edges()
    assert node.repair.holes
    assert node.compare(LEFT, leaves_digest(NODES)) == [LEFT.id], "its report is forgotten"
    node.repair.reported(LeavesReport(OTHERS[0], tuple(OTHERS)))
    assert not node.repair.holes


def test_a_report_has_the_leaf_set_and_the_row_that_was_requested() -> None:
    node = Node()
    report = node.repair.report(LeavesRequest(LEFT)).message
    assert isinstance(report, LeavesReport)
    assert {contact.id for contact in report.leaves} == set(NODES)
    assert report.row == ()
    with_row = node.repair.report(LeavesRequest(LEFT, 0)).message
    assert isinstance(with_row, LeavesReport)
    assert [contact.id for contact in with_row.row] == node.near.table.row(0) != []
