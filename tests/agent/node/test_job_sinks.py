"""Which of a job's sinks its master serves."""

from __future__ import annotations

from random import Random

import msgspec

from elf.agent.node.job_sinks import JobSinks, Taking
from elf.jobmaster.delivery.sink_queue import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, decode_agent
from elf.srt.messages.ids import NodeId
from elf.srt.messages.parameters import Parameters
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of

SPEC = spec_of(plan_of("10 seconds"))
A, B = (bytes(15) + bytes([number]) for number in (1, 2))


def directory() -> Directory:
    return Directory(Parameters(), lambda item: True, Random(1))


def test_sinks_without_a_node_are_left_out_and_a_change_is_seen() -> None:
    nodes = {"hits": A, "hours": A}
    sinks = JobSinks(SPEC.id, directory(), nodes.get)
    assert sinks.served == []
    assert sinks.look(["hits", "days"], SPEC)
    assert not sinks.look(["hits", "days"], SPEC)
    nodes["days"] = B
    assert sinks.look(["hits", "days"], SPEC)
    assert sinks.served == [Target("hits", A), Target("days", B)]
    assert sinks.look(["days"], SPEC)
    assert sinks.served == [Target("days", B)]
    nodes["days"] = A
    assert sinks.look(["days"], SPEC), "another node serves it now"


def test_a_lake_and_a_stream_of_one_node_take_states_and_rows() -> None:
    known = directory()
    advert = AgentAdvert("web1", ("access",), 1, 5, sinks=("lake", "screen"), streams=("screen",))
    known.put(advert.item(A), 0)
    sinks = JobSinks(SPEC.id, known, {"lake": A, "screen": A, "other": B}.get)
    sinks.look(["lake", "screen", "other"], SPEC)
    assert sinks.served == [Target("lake", A), Target("screen", A, takes_rows=True), Target("other", B)]
    now_a_lake = AgentAdvert("web1", ("access",), 2, 6, sinks=("lake", "screen"))
    known.put(now_a_lake.item(A), 0)
    assert sinks.look(["lake", "screen", "other"], SPEC), "the sink of that name takes something else"
    assert sinks.served[1] == Target("screen", A)


def test_a_sink_takes_the_jobs_whose_names_match() -> None:
    known = directory()

    def announce(node: NodeId, life: int, *takes: tuple[str, tuple[str, ...]]) -> None:
        names = tuple(name for name, _ in takes)
        known.put(
            AgentAdvert("web", ("access",), life, 5, sinks=names, streams=("hook",), takes=takes).item(node),
            0,
        )

    sinks = JobSinks(SPEC.id, known, {"lake": B}.get)
    assert not sinks.look([], SPEC)
    announce(B, 1, ("hook", ("errors", "h*")), ("days", ("other",)))
    announce(A, 1, ("hook", ("hits",)))
    assert sinks.look(["lake"], SPEC)
    assert sinks.served == [Target("lake", B), Target("hook", A, takes_rows=True, takes_all=True)]
    assert not sinks.look(["lake"], SPEC)
    announce(A, 2, ("hook", ("errors",)))
    assert sinks.look(["lake"], SPEC)
    assert sinks.served[1].node == B
    announce(B, 2)
    assert sinks.look(["lake"], SPEC)
    assert sinks.served == [Target("lake", B)]


def test_adverts_without_patterns_have_the_bytes_of_before() -> None:
    plain = AgentAdvert("web1", ("access",), 1, 5, sinks=("lake",))
    assert len(msgspec.msgpack.decode(plain.encode())) == 10
    stream = AgentAdvert("web1", ("access",), 1, 5, sinks=("screen",), streams=("screen",))
    assert len(msgspec.msgpack.decode(stream.encode())) == 11
    takes = AgentAdvert("web1", ("access",), 1, 5, sinks=("lake",), takes=(("lake", ("a*",)),))
    assert decode_agent(takes.item(A)) == takes


def test_a_sink_that_moves_is_served_by_a_node_that_is_alive() -> None:
    """Others stay at the node with the lowest id, where their folders are; and so does one that not all can move."""
    known, dead = directory(), set[NodeId]()
    taking = Taking(known, lambda node, advert: node in dead and advert.incarnation == 1)

    def server(name: str) -> NodeId | None:
        return next(iter(taking.servers(name, SPEC.id)), None)

    def announce(node: NodeId, life: int, moving: tuple[str, ...] = ("hook",)) -> None:
        advert = AgentAdvert("web", ("access",), life, 5, sinks=("hook", "lake"), moving=moving)
        known.put(advert.item(node), 0)

    announce(A, 1)
    announce(B, 1)
    sinks = JobSinks(SPEC.id, known, taking=taking)
    sinks.look(["hook", "lake"], SPEC)
    assert sinks.served == [Target("hook", A, moves=True, standby=B), Target("lake", A)]
    assert sinks.moving == (A,)
    dead.add(A)
    assert sinks.look(["hook", "lake"], SPEC)
    assert sinks.served == [Target("hook", B, moves=True), Target("lake", A)]
    dead.add(B)
    assert server("hook") == A, "nobody is known to be alive"
    announce(B, 2)
    assert server("hook") == B, "it runs again"
    announce(B, 3, moving=())
    assert server("hook") == A, "it is too old to say, or its receiver is its own"
    assert server("other") is None
    known.put(AgentAdvert("web", ("access",), 4, 5, 9, sinks=("hook",), moving=("hook",)).item(A), 0)
    assert server("hook") == B, "the other one has left"


def test_adverts_without_sinks_that_move_are_those_of_before() -> None:
    advert = AgentAdvert("web1", ("access",), 1, 5, sinks=("hook",))
    assert len(msgspec.msgpack.decode(advert.encode())) == 10
    moving = AgentAdvert("web1", ("access",), 1, 5, sinks=("hook",), moving=("hook",))
    assert decode_agent(moving.item(A)) == moving
