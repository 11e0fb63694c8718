"""Which of a job's lakes its master serves."""

from __future__ import annotations

from elf.agent.node.lakes import Lakes

A, B = (bytes(15) + bytes([number]) for number in (1, 2))


def test_only_nodes_with_a_new_lake_are_named_and_lakes_without_a_node_are_left_out() -> None:
    nodes = {"hits": A, "hours": A}
    lakes = Lakes(nodes.get)
    assert lakes.sinks == []
    assert lakes.look(["hits", "days"]) == {A}
    assert lakes.look(["hits", "days"]) is None
    nodes["days"] = B
    assert lakes.look(["hits", "days"]) == {B}
    assert lakes.look(["hits", "days", "hours"]) == {A}, "it has one lake more"
    assert lakes.sinks == [A, B, A]
    assert lakes.look(["days"]) == set()
    assert lakes.sinks == [B]
    nodes["days"] = A
    assert lakes.look(["days"]) == {A}, "another node serves it now"
