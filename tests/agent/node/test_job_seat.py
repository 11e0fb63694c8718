"""A stop that comes down a tree ends workers at once; one that a later spec outranks ends none for good."""

from __future__ import annotations

from msgspec.structs import replace

from elf.agent.node.worker.delta_worker import State
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.directory.ending import STOP_AHEAD
from elf.srt.messages import messages as m
from tests.agent.simulator.test_hostile_mesh import JOB, Mesh


def stop(mesh: Mesh, child: Actor, number: int) -> None:
    """The parent of that agent in the job's tree sends it a stop."""
    actor, master = mesh.serving
    message = m.Stop(JOB, master.ballot, number)
    mesh.world._perform(child, mesh.node(child).receive(actor.id, message, mesh.world.clock(child)))


def child_of(mesh: Mesh) -> Actor:
    actor, _ = mesh.serving
    return next(each for each in mesh.actors if mesh.node(each).seats[JOB].tree.parent == actor.id)


def state_at(mesh: Mesh, actor: Actor) -> State:
    worker = mesh.node(actor).seats[JOB].worker
    assert worker is not None
    return worker.state


def test_a_stop_that_the_known_spec_outranks_is_ignored() -> None:
    mesh = Mesh()
    child = child_of(mesh)
    stop(mesh, child, mesh.node(child).seats[JOB].spec.number - 1)
    assert state_at(mesh, child) is State.FOLLOWING
    mesh.goes_on()


def test_a_worker_that_a_stop_has_ended_starts_again_under_a_later_spec() -> None:
    mesh = Mesh()
    child = child_of(mesh)
    spec = mesh.node(child).seats[JOB].spec
    stop(mesh, child, spec.number + STOP_AHEAD)
    assert state_at(mesh, child) is State.ENDED
    mesh.world.start_job(mesh.actors[0], replace(spec, number=spec.number + 2 * STOP_AHEAD))
    mesh.run(3)
    assert state_at(mesh, child) is State.FOLLOWING
    mesh.goes_on()
