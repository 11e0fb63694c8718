"""Each rule of the overlay switched off in turn: the mesh must visibly fail, which proves that the tests detect it."""

from __future__ import annotations

import pytest

from elf.srt.messages.ids import NodeId, closeness
from elf.srt.messages.messages import Contact
from elf.srt.messages.parameters import MS, SECOND
from elf.srt.overlay.membership import Membership
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.overlay import Overlay
from elf.srt.overlay.patience import Patience
from elf.srt.overlay.repair import Repair
from elf.srt.overlay.rounds import Rounds
from tests.rigs.overlay_rig import Mesh


def nothing(*_: object) -> None:
    """In place of a rule that acts."""


def deaths_over_a_slow_link() -> int:
    mesh = Mesh(30)
    ids = mesh.warm(20)
    mesh.slow = {(ids[3], ids[4]): 2 * SECOND, (ids[4], ids[3]): 2 * SECOND}
    mesh.run(60 * SECOND)
    return sum(what == "suspect" for overlay in mesh.nodes.values() for what, _ in overlay.take_changes())


def test_without_indirect_probes_one_slow_link_makes_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deaths_over_a_slow_link() == 0
    monkeypatch.setattr(Membership, "ask_others", _only_wait)
    assert deaths_over_a_slow_link() > 0


def _only_wait(members: Membership, number: int, *_: object) -> list[object]:
    members.probes[number].stage = 1
    members.probes[number].due = members.lived
    return []


def is_back_after_isolation() -> bool:
    mesh = Mesh(31)
    ids = mesh.warm(20)
    mesh.part([ids[3]], ids)
    mesh.run(8 * SECOND)
    mesh.cut.clear()
    mesh.run(10 * SECOND)
    return not mesh.wrong_leaf_sets()


def test_without_refutation_the_falsely_dead_stay_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_back_after_isolation()
    monkeypatch.setattr(Overlay, "_refute", nothing)
    assert not is_back_after_isolation()


def test_without_looking_for_the_dead_two_halves_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def together() -> bool:
        mesh = Mesh(32)
        ids = mesh.warm(24)
        mesh.part(ids[::2], ids[1::2])
        mesh.run(10 * SECOND)
        mesh.cut.clear()
        mesh.run(10 * SECOND)
        return not mesh.wrong_leaf_sets()

    assert together()
    monkeypatch.setattr(Rounds, "_look_for_dead", nothing)
    assert not together()


def test_without_the_rule_that_hops_come_closer_messages_run_in_circles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def circles() -> int:
        mesh = Mesh(33)
        ids = mesh.warm(300)
        found = 0
        for _ in range(1_500):
            key = mesh.rng.randbytes(16)
            at = mesh.rng.choice(ids)
            hop = mesh.nodes[at].next_hop(key)
            found += hop is not None and closeness(key, hop) >= closeness(key, at)
        return found

    assert circles() == 0
    monkeypatch.setattr(Neighbours, "is_closer", lambda *_: True)
    assert circles() > 0


def test_with_claims_of_others_in_the_leaf_set_the_dead_return(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead_after(seconds: int) -> int:
        mesh = Mesh(34)
        ids = mesh.warm(80)
        for node in [*ids[20:32], *ids[40:76:2]]:
            mesh.crash(node)
        mesh.run(seconds * SECOND)
        return sum(leaf.id not in mesh.nodes for each in mesh.nodes.values() for leaf in each.leaves())

    def believe(overlay: Overlay, contact: Contact, fits: bool, out: list[object]) -> None:
        if contact.id != overlay.me.id and overlay._members.hear(contact):
            overlay._near.take_in(contact, heard=True)

    honest = dead_after(6)
    monkeypatch.setattr(Overlay, "_heard_about", believe)
    assert dead_after(6) > honest + 5


def test_without_the_leaf_sets_of_neighbours_holes_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> list[NodeId]:
        mesh = Mesh(35)
        ids = mesh.warm(80)
        for node in [*ids[20:32], *ids[40:76:2]]:
            mesh.crash(node)
        mesh.run(15 * SECOND)
        return mesh.wrong_leaf_sets()

    assert wrong() == []
    monkeypatch.setattr(Repair, "compare", nothing)
    monkeypatch.setattr(Repair, "request_edges", lambda _: [])
    assert wrong() != []


def times_taken_for_dead(seconds: int) -> int:
    """A node of six answers after some seconds, as on an overloaded host: how often another one takes it for dead."""
    mesh = Mesh(35)
    ids = mesh.warm(6)
    for other in ids[1:]:
        mesh.slow |= {(ids[0], other): 1_200 * MS, (other, ids[0]): 1_200 * MS}
    mesh.run(seconds * SECOND)
    assert ids[0] in mesh.nodes
    return sum(what == "dead" for overlay in mesh.nodes.values() for what, _ in overlay.take_changes())


def test_without_patience_a_slow_node_is_taken_for_dead_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = times_taken_for_dead(60)
    assert times_taken_for_dead(600) == patient <= 2 * 5
    monkeypatch.setattr(Patience, "refuted", nothing)
    assert times_taken_for_dead(600) > 20 * patient
