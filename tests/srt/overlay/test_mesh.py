"""Whole meshes of overlays on a seeded network: after each change has settled, every leaf set is the sorted ring's."""

from __future__ import annotations

from math import ceil, log

import pytest

from elf.srt.messages.ids import NodeId
from elf.srt.messages.parameters import MS, SECOND
from elf.srt.overlay.membership import CALM_PERIODS
from tests.rigs.overlay_rig import PARAMETERS, Mesh, is_alive

DETECTION_US = 4 * SECOND + PARAMETERS.probe_us + PARAMETERS.suspect_us
"""The leaf set probes a node twice a second together, each member in random order: by 4 s nearly surely; and one round in which
survivors tell each other."""


def assert_routes(mesh: Mesh, ways: int = 60) -> None:
    """From random nodes to random keys: to the closest, within ceil(log16 N) hops and two. A message that met a dead node of a
    routing table is sent again, like everything that is routed."""
    for _ in range(ways):
        running = sorted(mesh.nodes)
        key, start = mesh.rng.randbytes(16), mesh.rng.choice(running)
        for _ in range(10):
            way = mesh.route(start, key)
            if way[-1] in mesh.nodes:
                break
            mesh.run(500 * MS)
        assert way[-1] == mesh.closest(key)
        assert len(way) - 1 <= ceil(log(len(running), 16)) + 2


def believed(mesh: Mesh) -> list[str]:
    """Changes that all nodes have made to the states of others since the last call, except joins."""
    return [what for overlay in mesh.nodes.values() for what, _ in overlay.take_changes() if what != "joined"]


def test_the_first_node_is_a_mesh_by_itself() -> None:
    mesh = Mesh(1)
    node = mesh.new_id()
    overlay = mesh.start(node, [node])
    mesh.run(3 * SECOND)
    assert overlay.joined
    assert overlay.leaves() == []
    assert overlay.next_hop(mesh.rng.randbytes(16)) is None
    assert overlay.closest(mesh.rng.randbytes(16), 3) == [node]
    assert mesh.sent == {}


def test_without_answers_it_is_the_first_node_and_retries_quietly() -> None:
    mesh = Mesh(2)
    first, second = mesh.new_id(), mesh.new_id()
    overlay = mesh.start(first, [second])
    joined = []
    for _ in range(30):
        mesh.run(1 * SECOND)
        joined.append(overlay.joined)
    assert joined == sorted(joined)
    assert (joined[0], joined[-1]) == (False, True)
    assert overlay.next_hop(second) is None
    assert mesh.sent["JoinMesh"] <= 8
    mesh.start(second, [first])
    mesh.run(1 * SECOND)
    assert mesh.wrong_leaf_sets() == []
    assert overlay.next_hop(second) == second


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nodes_join_leave_crash_and_restart_and_the_ring_is_found_again(seed: int) -> None:
    mesh = Mesh(seed, loss=0.02)
    mesh.check = True
    mesh.grow(24)
    mesh.settle()
    gone: list[NodeId] = []
    for _ in range(16):
        running = sorted(mesh.nodes)
        what = mesh.rng.choice(["join", "leave", "crash", "restart"])
        if what == "join":
            mesh.start(mesh.new_id(), mesh.rng.sample(running, 2))
        elif what == "restart":
            back = gone.pop() if gone else mesh.rng.choice(running)
            mesh.start(back, [mesh.rng.choice([node for node in running if node != back])])
        else:
            gone.append(mesh.rng.choice(running))
            mesh.leave(gone[-1]) if what == "leave" else mesh.crash(gone[-1])
        mesh.settle(2 * DETECTION_US)
        assert_routes(mesh, 20)
    assert mesh.begun_anew == []


def test_all_nodes_join_at_once_through_one_node() -> None:
    mesh = Mesh(5, loss=0.02)
    first = mesh.new_id()
    mesh.start(first)
    for _ in range(59):
        mesh.start(mesh.new_id(), [first])
    assert mesh.settle(10 * SECOND) > 0
    assert_routes(mesh)


def test_a_node_that_has_joined_knows_the_nodes_around_it() -> None:
    """Otherwise it would consider itself the closest to jobs that others serve."""
    mesh = Mesh(23, loss=0.02)
    ids = mesh.warm(60)
    for _ in range(20):
        node = mesh.new_id()
        overlay = mesh.start(node, [mesh.rng.choice(ids)])
        while not overlay.joined:
            assert mesh.now < 100 * SECOND
            mesh.run(MS // 10)
        known = {leaf.id for leaf in overlay.leaves()}
        ring = sorted(mesh.nodes)
        at = ring.index(node)
        assert {ring[at - 1], ring[(at + 1) % len(ring)]} <= known
        assert len(known & mesh.ring_leaves(node)) >= PARAMETERS.leaves - 2
        mesh.settle()


def test_a_crash_is_found_in_time_and_by_all() -> None:
    mesh = Mesh(6)
    ids = mesh.warm(100)
    mesh.run(2 * SECOND)
    for node in ids[10:90:20]:
        mesh.crash(node)
        mesh.settle(DETECTION_US)
    assert "dead" in believed(mesh)
    assert_routes(mesh)


def test_a_third_of_the_mesh_crashes_at_once() -> None:
    mesh = Mesh(7, loss=0.01)
    ids = mesh.warm(90)
    for node in [*ids[20:32], *ids[40:76:2]]:
        mesh.crash(node)
    mesh.settle(3 * DETECTION_US)
    assert_routes(mesh)


def test_a_leave_is_known_at_once() -> None:
    mesh = Mesh(8)
    ids = mesh.warm(60)
    mesh.leave(ids[30])
    assert mesh.settle() <= 250 * MS
    assert set(believed(mesh)) <= {"left", "alive"}


def test_a_restart_is_a_death_and_a_join_even_when_no_node_missed_it() -> None:
    mesh = Mesh(9)
    ids = mesh.warm(60)
    mesh.run(SECOND)
    believed(mesh)
    mesh.crash(ids[7])
    mesh.start(ids[7], [ids[40]])
    mesh.run(5 * SECOND)
    for neighbour in mesh.ring_leaves(ids[7]):
        reported = [
            (what, who.incarnation) for what, who in mesh.nodes[neighbour].take_changes() if who.id == ids[7]
        ]
        assert reported == [("dead", 1), ("joined", 2)]
        assert mesh.nodes[neighbour].member(ids[7]) == mesh.nodes[ids[7]].me
    assert mesh.wrong_leaf_sets() == []


def test_a_node_that_comes_back_without_its_disk_rises_above_its_former_lives() -> None:
    mesh = Mesh(10)
    ids = mesh.warm(40)
    for _ in range(3):
        mesh.crash(ids[5])
        mesh.start(ids[5], [ids[20]])
        mesh.run(2 * SECOND)
    mesh.crash(ids[5])
    mesh.run(10 * SECOND)
    mesh.lives[ids[5]] = 0
    mesh.start(ids[5], [ids[20]])
    mesh.settle(5 * SECOND)
    assert mesh.nodes[ids[5]].me.incarnation > 4
    assert mesh.begun_anew == [ids[5]]


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_alone_declares_no_node_dead(loss: float) -> None:
    mesh = Mesh(11, loss=loss)
    mesh.warm(40)
    mesh.run(40 * SECOND)
    assert "dead" not in believed(mesh)
    assert mesh.wrong_leaf_sets() == []


def test_one_slow_link_declares_no_node_dead() -> None:
    mesh = Mesh(12)
    ids = mesh.warm(30)
    mesh.slow = {(ids[3], ids[4]): 2 * SECOND, (ids[4], ids[3]): 2 * SECOND}
    mesh.run(60 * SECOND)
    assert believed(mesh) == []


def test_neither_a_broken_link_nor_a_one_way_link_declares_a_node_dead() -> None:
    mesh = Mesh(13)
    ids = mesh.warm(30)
    mesh.part([ids[3]], [ids[4]])
    mesh.cut.add((ids[10], ids[11]))
    mesh.run(60 * SECOND)
    assert believed(mesh) == []


def test_a_node_wrongly_declared_dead_refutes_and_is_back() -> None:
    mesh = Mesh(14)
    ids = mesh.warm(30)
    mesh.part([ids[3]], ids)
    mesh.run(8 * SECOND)
    assert all(not is_alive(mesh.nodes[node], ids[3]) for node in mesh.ring_leaves(ids[3]))
    mesh.cut.clear()
    mesh.settle(8 * SECOND)
    assert mesh.nodes[ids[3]].me.incarnation == 1
    assert mesh.nodes[ids[3]].me.refuted >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("size", "contiguous"), [(40, False), (40, True), (120, False)])
def test_two_halves_live_on_apart_and_find_each_other_again(size: int, contiguous: bool) -> None:
    mesh = Mesh(15, loss=0.01)
    ids = mesh.warm(size)
    one = ids[: size // 2] if contiguous else ids[::2]
    other = sorted(set(ids) - set(one))
    mesh.part(one, other)
    mesh.run(10 * SECOND)
    for half in (one, other):
        rest = set(mesh.nodes) - set(half)
        for node in half[:5]:
            known = {contact.id for contact in mesh.nodes[node].leaves()}
            assert contiguous or not known & rest
    mesh.cut.clear()
    mesh.settle(10 * SECOND)
    mesh.run(2 * SECOND)
    assert_routes(mesh)
    mesh.check = True
    mesh.run(SECOND)


def test_a_long_parting_is_healed_through_the_seeds() -> None:
    mesh = Mesh(16)
    ids = mesh.grow(12)
    mesh.settle()
    for node in ids:
        mesh.nodes[node].join([mesh.nodes[ids[0]].me, mesh.nodes[ids[1]].me], mesh.now)
    mesh.part(ids[::2], ids[1::2])
    mesh.run(PARAMETERS.dead_us + 20 * SECOND)
    assert all(not is_alive(mesh.nodes[node], ids[1]) for node in ids[::2])
    mesh.cut.clear()
    mesh.settle(70 * SECOND)


def test_a_paused_node_suspects_no_node_when_it_wakes() -> None:
    mesh = Mesh(17)
    ids = mesh.warm(40)
    sleeper = ids[9]
    mesh.run(2 * SECOND)
    overlay = mesh.nodes[sleeper]
    mesh.crash(sleeper)
    mesh.run(20 * SECOND)
    believed(mesh)
    mesh.nodes[sleeper] = overlay
    mesh.perform(sleeper, overlay.tick(mesh.now))
    mesh.settle(6 * SECOND)
    assert "dead" not in [what for what, _ in overlay.take_changes()]
    assert overlay.me.refuted >= 1


def test_doubt_finds_a_dead_neighbour_sooner_than_its_turn() -> None:
    mesh = Mesh(18)
    ids = mesh.warm(40)
    mesh.crash(ids[9])
    mesh.perform(ids[8], mesh.nodes[ids[8]].probe_now(ids[9], mesh.now))
    mesh.run(PARAMETERS.probe_us + PARAMETERS.suspect_us + 2 * MS)
    assert ("dead", ids[9]) in [(what, who.id) for what, who in mesh.nodes[ids[8]].take_changes()]


def test_a_route_over_a_dead_node_of_the_table_finds_that_out() -> None:
    mesh = Mesh(19)
    ids = mesh.warm(300)
    start = mesh.nodes[ids[0]]
    key = ids[170]
    hop = start.next_hop(key)
    assert hop is not None
    assert hop not in {contact.id for contact in start.leaves()}
    mesh.crash(hop)
    for _ in range(8):
        assert start.next_hop(key) is not None
        mesh.run(250 * MS)
    assert start.next_hop(key) not in (None, hop)


def test_the_same_seed_gives_the_same_run() -> None:
    def transcript(seed: int) -> tuple[dict[str, int], list[str], list[NodeId]]:
        mesh = Mesh(seed, loss=0.05)
        ids = mesh.grow(20)
        mesh.crash(ids[4])
        mesh.run(10 * SECOND)
        return mesh.sent, believed(mesh), [leaf.id for leaf in mesh.nodes[ids[0]].leaves()]

    assert transcript(20) == transcript(20)
    assert transcript(20) != transcript(21)


@pytest.mark.parametrize("is_alone", [False, True])
def test_halves_that_began_apart_find_each_other_through_their_seeds(is_alone: bool) -> None:
    """Neither half has known the other, in each all have joined, and most seeds are gone for good. A node that is alone asks
    sooner."""
    mesh = Mesh(2)
    one, other = [mesh.new_id() for _ in range(3)], [mesh.new_id() for _ in range(2)]
    mesh.cut = {pair for a in one for b in other for pair in ((a, b), (b, a))}
    gone = [mesh.new_id() for _ in range(3)]
    for half, far in ((one, other), (other, one)):
        for node in half:
            mesh.start(node, [half[node == half[0]], *gone, far[0]])
    mesh.run(20 * SECOND)
    if is_alone:
        mesh.crash(other[0])
        mesh.run(PARAMETERS.dead_us + 20 * SECOND)
    assert all(not is_alive(mesh.nodes[node], other[1]) for node in one)
    mesh.cut.clear()
    mesh.run((8 if is_alone else 32 * CALM_PERIODS) * SECOND + SECOND)
    assert mesh.wrong_leaf_sets() == []
