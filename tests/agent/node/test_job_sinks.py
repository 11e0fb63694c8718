"""Which of a job's sinks its master serves."""

from __future__ import annotations

from random import Random

from elf.agent.node.job_sinks import JobSinks
from elf.jobmaster.delivery.outbox import Takes
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.srt.messages.parameters import Parameters

A, B = (bytes(15) + bytes([number]) for number in (1, 2))


def directory() -> Directory:
    return Directory(Parameters(), lambda item: True, Random(1))


def test_only_nodes_with_a_new_sink_are_named_and_sinks_without_a_node_are_left_out() -> None:
    nodes = {"hits": A, "hours": A}
    sinks = JobSinks(nodes.get, directory())
    assert sinks.nodes == []
    assert sinks.look(["hits", "days"]) == {A}
    assert sinks.look(["hits", "days"]) is None
    nodes["days"] = B
    assert sinks.look(["hits", "days"]) == {B}
    assert sinks.look(["hits", "days", "hours"]) == {A}, "it has one sink more"
    assert sinks.nodes == [A, B, A]
    assert sinks.look(["days"]) == set()
    assert sinks.nodes == [B]
    nodes["days"] = A
    assert sinks.look(["days"]) == {A}, "another node serves it now"


def test_a_node_with_a_lake_and_a_stream_takes_states_and_rows() -> None:
    known = directory()
    advert = AgentAdvert("web1", ("access",), 1, 5, sinks=("lake", "screen"), streams=("screen",))
    known.put(advert.item(A), 0)
    sinks = JobSinks({"lake": A, "screen": A, "other": B}.get, known)
    sinks.look(["lake", "other"])
    assert sinks.takes == {A: Takes.STATES, B: Takes.STATES}
    sinks.look(["screen"])
    assert sinks.takes == {A: Takes.ROWS}
    sinks.look(["lake", "screen"])
    assert sinks.takes == {A: Takes.ROWS | Takes.STATES}
    now_a_lake = AgentAdvert("web1", ("access",), 2, 6, sinks=("lake", "screen"))
    known.put(now_a_lake.item(A), 0)
    assert sinks.look(["lake", "screen"]) == {A}, "the sink of that name takes something else"
    assert sinks.takes == {A: Takes.STATES}
