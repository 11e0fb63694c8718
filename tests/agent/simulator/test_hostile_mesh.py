"""Certified agents that lie, among honest ones: refusals, notices, and a mesh that keeps working."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.worker.delta_worker import State
from elf.agent.node.worker.kept_bundles import MOVED
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import Traffic, VirtualSource
from elf.agent.simulator.world.world import World
from elf.errors import PeerError
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.master.master import Master
from elf.srt.codec.wire import KINDS, decode, encode
from elf.srt.link.rights import check_datagram
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import NodeId, job_id, node_id
from elf.srt.messages.messages import CLOSED, COUNT_MAX, FIRST, LIFE_MAX, Bundle, Message, Slot, Span
from elf.srt.messages.parameters import SECOND, Parameters
from tests.rigs.journal_disk import JournalDisk
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import part_of, plan_of
from tests.rigs.wire_values import message

pytestmark = pytest.mark.slow

JOB = job_id("hits")
LINE_BYTES = 100  # of virtual logs


class Mesh:
    """Agents of a simulated mesh with one job, and their notices for operators."""

    def __init__(self, nodes: int = 3, *, seconds: int = 90) -> None:
        self.world = World(1, Parameters(), coded=JournalDisk)
        self.notices: list[tuple[str, Notice]] = []
        self.world.observers.append(self._observe)
        seeds: list[m.Contact] = []
        for number in range(nodes):
            name = f"web{number}"
            traffic = VirtualSource(
                node_id(name.encode()), 1, Traffic(lines_per_s=20.0), 0, seconds * SECOND, EPOCH_US
            )
            actor = self.world.add_host(name, traffic)
            self.world.start(actor, seeds)
            seeds = seeds or [self.node(actor).overlay.me]
        self.run(2)
        self.world.start_job(self.actors[0], spec_of(plan_of("1 second")))
        self.run(4)

    def _observe(self, at: int, what: str, who: Actor | None, about: Any) -> None:
        if what == "notice" and who is not None:
            self.notices.append((who.name, about))

    @property
    def actors(self) -> list[Actor]:
        return list(self.world.actors.values())

    @staticmethod
    def node(actor: Actor) -> MeshNode:
        assert actor.node is not None
        return actor.node

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_us + int(seconds * SECOND))

    @property
    def serving(self) -> tuple[Actor, Master]:
        ((actor, master),) = [
            (actor, seat.master)
            for actor in self.actors
            if (seat := self.node(actor).seats[JOB]).master is not None
        ]
        return actor, master

    def places(self) -> dict[Slot, int]:
        return dict(self.serving[1].state.positions.at)

    def lie(self, source: NodeId, contributions: dict[Slot, Span], **other: Any) -> None:
        """A child of the master posts a bundle of its own making."""
        actor, master = self.serving
        bundle = Bundle(
            JOB,
            (source, 1, 2 * self.world.now_us),
            m_number(master),
            contributions,
            0,
            {},
            {},
            ballot=master.ballot,
        )
        effects = master.bundle(source, replace(bundle, **other), self.world.clock(actor))
        node = self.node(actor)
        out: list[Any] = []
        node._do(effects, self.world.clock(actor), out, node.seats[JOB])
        node._seat_changed(node.seats[JOB], self.world.clock(actor), out)
        self.world._perform(actor, node._end(self.world.clock(actor), out))

    def told(self, kind: str) -> list[tuple[str, str]]:
        return [(name, notice.text) for name, notice in self.notices if notice.kind == kind]

    def goes_on(self, without: NodeId = b"") -> None:
        """Agents report: all but one whose virtual log is shorter than its place."""
        before = self.serving[1].state.watermarks.copy()
        self.run(3)
        after = self.serving[1].state.watermarks
        assert all(
            after[worker] > mark
            for worker, mark in before.items()
            if worker in self.world.actors and worker != without
        )


def m_number(master: Master) -> int:
    return master.state.positions.schedule[-1].number


def victim_of(mesh: Mesh) -> tuple[Actor, Slot]:
    """A worker, and its file."""
    master = mesh.serving[0]
    actor = next(each for each in mesh.actors if each is not master)
    slot = next(slot for slot in mesh.places() if slot[0] == actor.id and slot[1])
    return actor, slot


# A reducer that sends contributions it does not have.


def test_a_position_moved_by_another_agent_is_noticed_by_its_owner() -> None:
    mesh = Mesh()
    mesh.run(8)
    victim, slot = victim_of(mesh)
    liar = next(actor.id for actor in mesh.actors if actor is not victim and actor is not mesh.serving[0])
    at = mesh.places()[slot]
    mesh.lie(liar, {slot: (at, at + 500_000, 0)})
    mesh.run(2)
    assert [name for name, _ in mesh.told("place")] == [victim.name]
    assert mesh.told("place")[0][1] == MOVED.format(1)
    worker = mesh.node(victim).seats[JOB].worker
    assert worker is not None
    assert worker.state is State.FOLLOWING
    mesh.goes_on(without=victim.id)  # what becomes of its log: tests/test_hostile_source.py
    assert len(mesh.told("place")) == 1, "once"


def test_a_place_within_a_bundle_is_noticed() -> None:
    mesh = Mesh()
    mesh.run(8)
    victim, slot = victim_of(mesh)
    mesh.run(0.1)
    while not (worker := mesh.node(victim).seats[JOB].worker) or not worker._kept:
        mesh.run(0.005)
    (bundle,) = list(worker._kept.bundles.values())[:1]
    start, end, _ = bundle.contributions[slot]
    assert end > start + LINE_BYTES
    if mesh.places()[slot] == start:
        mesh.lie(mesh.serving[0].id, {slot: (start, start + LINE_BYTES, 0)})
    mesh.run(2)
    assert [name for name, _ in mesh.told("place")] == [victim.name]
    mesh.goes_on()


def test_a_file_closed_by_another_agent_at_its_position_continues_silently() -> None:
    """The agent that closed it may never have had it: no line is lost, and there is nothing to report."""
    mesh = Mesh()
    mesh.run(8.1)  # no bundle is under way now that would reopen it in the same entry
    _, slot = victim_of(mesh)
    at = mesh.places()[slot]
    mesh.lie(mesh.serving[0].id, {slot: (at, at, CLOSED)})
    while slot in mesh.places():
        assert mesh.places()[slot] == at
        mesh.run(0.001)
    assert slot in mesh.serving[1].state.positions.closed
    mesh.run(2)
    assert slot not in mesh.serving[1].state.positions.closed
    assert mesh.places()[slot] > at
    assert mesh.told("place") == []
    mesh.goes_on()


def test_a_file_closed_by_another_agent_behind_its_position_is_noticed() -> None:
    mesh = Mesh()
    mesh.run(8)
    victim, slot = victim_of(mesh)
    at = mesh.places()[slot]
    mesh.lie(mesh.serving[0].id, {slot: (at, at + 500_000, CLOSED)})
    mesh.run(2)
    assert [name for name, _ in mesh.told("place")] == [victim.name]
    mesh.goes_on(without=victim.id)


def test_rows_of_no_lines_and_promises_for_others_are_refused_and_reported() -> None:
    mesh = Mesh()
    actor, master = mesh.serving
    victim, slot = victim_of(mesh)
    at = mesh.places()[slot]
    version = master.state.positions.schedule[-1].version
    panes = master.state.panes[version]
    index, before = master.state.index, mesh.places()
    rows = part_of(plan_of("1 second"), [(EPOCH_US + 5 * SECOND, 1, 7)])
    assert rows.ops == tuple(panes.ops)
    mesh.lie(victim.id, {slot: (at, at, 0)}, parts={version: rows})
    assert [name for name, _ in mesh.told("unsound")] == [actor.name]
    assert "rows, but no lines" in mesh.told("unsound")[0][1]
    mesh.lie(victim.id, {slot: (at, at + 1, 0)}, lagging={b"x" * 16: 0})
    assert "of which it has no lines" in mesh.told("unsound")[1][1]
    mesh.lie(victim.id, {}, parts={version: rows})
    assert mesh.places()[slot] == before[slot]
    assert master.state.index >= index
    mesh.goes_on()


def test_spans_that_do_not_fit_change_nothing() -> None:
    mesh = Mesh()
    victim, slot = victim_of(mesh)
    at = mesh.places()[slot]
    for span in ((at + 5, at + 50, 0), (max(0, at - 5), at + 5, 0), (at, at - 1, 0), (0, 5, 0)):
        mesh.lie(victim.id, {slot: span})
        assert mesh.places()[slot] == at, span
    mesh.goes_on()


def test_a_replica_that_claims_more_than_there_is_is_not_believed() -> None:
    mesh = Mesh()
    actor, master = mesh.serving
    node = mesh.node(actor)
    replica = next(each for each in mesh.actors if each is not actor)
    held = m.Held(JOB, master.ballot, 1 << 40)
    mesh.world._perform(actor, node.receive(replica.id, held, mesh.world.clock(actor)))
    assert [name for name, _ in mesh.told("unsound")] == [actor.name]
    node.check()
    mesh.goes_on()


@pytest.mark.parametrize("kind", [m.Stop, m.Control])
def test_a_change_of_a_job_comes_from_the_parent_only(kind: type[m.Stop | m.Control]) -> None:
    mesh = Mesh()
    actor, master = mesh.serving
    victim, _ = victim_of(mesh)
    liar = next(each for each in mesh.actors if each is not actor and each is not victim)
    node, seat = mesh.node(victim), mesh.node(victim).seats[JOB]
    assert seat.tree.parent == actor.id
    assert seat.worker is not None
    before = seat.worker.schedule, seat.succession.highest
    ballot = (master.ballot[0] + 1, liar.id)
    word = m.Stop(JOB, ballot) if kind is m.Stop else m.Control(JOB, ballot, (m.Line(99, "v" * 16, 0, b""),))
    mesh.world._perform(victim, node.receive(liar.id, word, mesh.world.clock(victim)))
    assert seat.worker.state is State.FOLLOWING
    assert (seat.worker.schedule, seat.succession.highest) == before
    mesh.goes_on()


# Numbers that only grow.


def test_numbers_at_their_end_stay_what_others_can_read() -> None:
    mesh = Mesh()
    actor = mesh.actors[1]
    node, clock = mesh.node(actor), mesh.world.clock(actor)
    liar = node_id(b"liar")
    for claim in (m.Contact(actor.id, LIFE_MAX), m.Contact(actor.id, LIFE_MAX, "", COUNT_MAX)):
        news = (m.News(claim, "dead"),)
        mesh.world._perform(actor, node.receive(liar, m.Ping(m.Contact(liar, 1), 1, news), clock))
    mesh.world._perform(actor, node.receive(liar, m.StateRequest(JOB, (COUNT_MAX, liar)), clock))
    mesh.run(3)  # what each sends is decoded by the others, and would raise
    assert node.overlay.me.incarnation == node.life == 1  # nobody is pushed to where numbers end


# Whatever well-formed messages say.


def adapted(made: Message, mesh: Mesh, source: NodeId, rng: Random) -> Message:
    """About this mesh, as far as it may be: its job, its nodes, its ballot, its files."""
    fields: dict[str, Any] = {}
    names = made.__struct_fields__
    ids = [actor.id for actor in mesh.actors]
    if "job" in names:
        fields["job"] = JOB
    for name in ("worker", "child"):
        if name in names and rng.random() < 0.8:
            fields[name] = rng.choice(ids)
    if "sender" in names:
        fields["sender"] = replace(made.sender, id=source)  # type: ignore[attr-defined]
    seats = [mesh.node(actor).seats[JOB] for actor in mesh.actors]
    master = next((seat.master for seat in seats if seat.master is not None), None)
    if "ballot" in names and rng.random() < 0.6:
        fields["ballot"] = max(seat.succession.highest for seat in seats)
    if isinstance(made, Bundle) and master is not None:
        spans: dict[Slot, Span] = {}
        for slot, at in master.state.positions.at.items():
            if rng.random() < 0.6:
                start = max(0, at + rng.choice([0, 0, 0, -5, 7]))
                spans[slot] = start, start + rng.choice([0, 1, 100, 1 << 30]), rng.choice([0, 0, 1, 2, 4, 7])
        if rng.random() < 0.3:
            spans[rng.choice(ids), rng.getrandbits(60), 0] = 0, rng.choice([0, 5]), FIRST
        fields |= {"contributions": spans, "schedule": m_number(master)}
    return replace(made, **fields)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_no_message_of_a_certified_agent_ends_another(seed: int) -> None:
    """A core that raises would end its process. Links and what is routed bring the same messages to the same cores."""
    rng, mesh = Random(seed), Mesh()
    kinds = [kind.type for kind in KINDS if kind.type not in (m.Piece, m.Frame, m.Routed)]
    for _ in range(400):
        actor = rng.choice(mesh.actors)
        source = rng.choice([each.id for each in mesh.actors if each is not actor])
        made = adapted(message(rng.choice(kinds), rng), mesh, source, rng)
        if (
            isinstance(made, m.Hello | m.TreeJoin | m.Goodbye | r.Watch | m.TreeRequest)
            and rng.random() < 0.5
        ):
            made = m.Routed(JOB, source, made)
        try:
            came = decode(encode(made, LOG), LOG)
            check_datagram(came, source)
        except (PeerError, ValueError):
            continue
        mesh.world._perform(actor, mesh.node(actor).receive(source, came, mesh.world.clock(actor)))
        mesh.run(0.02)
