"""Which of a job's sinks its master serves."""

from __future__ import annotations

from random import Random

from elf.agent.node.job_sinks import JobSinks
from elf.jobmaster.delivery.outbox import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.srt.messages.parameters import Parameters

A, B = (bytes(15) + bytes([number]) for number in (1, 2))


def directory() -> Directory:
    return Directory(Parameters(), lambda item: True, Random(1))


def test_sinks_without_a_node_are_left_out_and_a_change_is_seen() -> None:
    nodes = {"hits": A, "hours": A}
    sinks = JobSinks(nodes.get, directory())
    assert sinks.served == []
    assert sinks.look(["hits", "days"])
    assert not sinks.look(["hits", "days"])
    nodes["days"] = B
    assert sinks.look(["hits", "days"])
    assert sinks.served == [Target("hits", A), Target("days", B)]
    assert sinks.look(["days"])
    assert sinks.served == [Target("days", B)]
    nodes["days"] = A
    assert sinks.look(["days"]), "another node serves it now"


def test_a_lake_and_a_stream_of_one_node_take_states_and_rows() -> None:
    known = directory()
    advert = AgentAdvert("web1", ("access",), 1, 5, sinks=("lake", "screen"), streams=("screen",))
    known.put(advert.item(A), 0)
    sinks = JobSinks({"lake": A, "screen": A, "other": B}.get, known)
    sinks.look(["lake", "screen", "other"])
    assert sinks.served == [Target("lake", A), Target("screen", A, takes_rows=True), Target("other", B)]
    now_a_lake = AgentAdvert("web1", ("access",), 2, 6, sinks=("lake", "screen"))
    known.put(now_a_lake.item(A), 0)
    assert sinks.look(["lake", "screen", "other"]), "the sink of that name takes something else"
    assert sinks.served[1] == Target("screen", A)
