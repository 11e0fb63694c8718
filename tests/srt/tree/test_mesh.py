"""Trees of many seats against a sorted ring: once settled, all have a path to the true root, caps hold, and there are no
loops."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from elf.srt.messages.parameters import Parameters
from tests.rigs.seat_rig import MS, SECOND, Ring


def depth_max(count: int) -> int:
    """ceil(log16 N) + 1, counted up."""
    depth, room = 1, 1
    while room < count:
        room, depth = room * 16, depth + 1
    return depth


def fullest(ring: Ring) -> int:
    return max(len(seat.children) for seat in ring.seats.values())


@pytest.mark.parametrize(
    ("count", "seed"), [(1, 1), (2, 1), (17, 1), (100, 1), (100, 2), (1_000, 1), (1_000, 2)]
)
@pytest.mark.parametrize("within_us", [MS, 2 * SECOND])
def test_all_nodes_joining_make_a_shallow_tree_under_the_closest_node(
    count: int, seed: int, within_us: int
) -> None:
    ring = Ring(count, seed)
    ring.start_all(within_us)
    ring.run(within_us + 8 * SECOND)
    depths = ring.check_settled()
    assert sum(depths.values()) == count
    assert max(depths) <= depth_max(count)
    assert fullest(ring) <= 16


@pytest.mark.slow
def test_ten_thousand_nodes_joining_at_once_do_not_meet_at_the_root() -> None:
    ring = Ring(10_000, 1)
    ring.start_all(10 * MS)
    ring.run(SECOND)
    assert ring.received[ring.live_root()] < 1_000
    ring.run(4 * SECOND)
    assert max(ring.depths()) <= depth_max(10_000)
    assert fullest(ring) <= 16


def test_only_the_dead_roots_children_ask_the_new_root() -> None:
    """Their subtrees stay whole: a few dozen messages at the new root, not a thousand."""
    ring = Ring(1_000, 1)
    ring.start_all()
    ring.run(8 * SECOND)
    before = {node: seat.parent for node, seat in ring.seats.items()}
    dead = ring.live_root()
    ring.crash(dead)
    ring.run(ring.detect_us)
    ring.received.clear()
    ring.run(SECOND)
    assert ring.received[ring.live_root()] < 100
    ring.run(8 * SECOND)
    assert max(ring.check_settled()) <= depth_max(1_000)
    moved = sum(before[node] != seat.parent for node, seat in ring.seats.items())
    assert moved < 100


def test_a_new_closest_node_takes_the_tree_over_with_a_few_moves() -> None:
    ring = Ring(1_000, 2)
    ring.start_all()
    ring.run(8 * SECOND)
    for step in (30, 20, 10):
        node = (int.from_bytes(ring.job) + step).to_bytes(16)
        ring.nodes.append(node)
        ring.side_of[node] = 0
        ring.start(node)
        ring.received.clear()
        ring.run(5 * SECOND)
        assert ring.live_root() == node
        assert ring.received[node] < 150
        assert max(ring.check_settled()) <= depth_max(1_000)


@pytest.mark.parametrize("seed", range(3))
def test_each_side_of_a_partition_has_its_root_and_healing_makes_one_tree(seed: int) -> None:
    ring = Ring(300, seed)
    ring.start_all()
    ring.run(6 * SECOND)
    apart = set(ring.rng.sample(ring.nodes, 100))
    ring.cut(apart)
    ring.run(10 * SECOND)
    ring.check_settled()
    whole = {node for node, seat in ring.seats.items() if seat.is_root}
    assert whole == {ring.live_root(0), ring.live_root(1)}
    ring.heal()
    ring.run(10 * SECOND)
    assert max(ring.check_settled()) <= depth_max(300)


@pytest.mark.parametrize("seed", range(4))
def test_loops_that_stray_routes_make_are_dissolved(seed: int) -> None:
    """Half of all hops lead to random nodes while roots die: nodes ask others that are below them, at the same time."""
    ring = Ring(60, seed)
    ring.astray = 0.5
    ring.start_all()
    for _ in range(4):
        ring.run(3 * SECOND, check=True)
        for node in sorted(ring.seats, key=lambda node: (len(ring.seats[node].children), node))[-4:]:
            ring.crash(node)
    ring.run(10 * SECOND, check=True)
    ring.astray = 0.0
    ring.run(8 * SECOND, check=True)
    ring.check_settled()


@pytest.mark.parametrize("children_max", [2, 4])
def test_narrow_trees_keep_their_bounds_too(children_max: int) -> None:
    ring = Ring(150, 7, Parameters(children_max=children_max), loss=0.02)
    ring.start_all()
    ring.run(20 * SECOND, check=True)
    for _ in range(3):
        ring.crash(ring.live_root())
        ring.run(12 * SECOND, check=True)
        ring.check_settled()
    assert fullest(ring) == children_max


@pytest.mark.parametrize("seed", range(4))
def test_after_any_pattern_of_crashes_and_restarts_all_are_in_one_tree_again(seed: int) -> None:
    """Every seat's invariants hold after each of its steps, with one datagram in fifty lost and one in fifty repeated late."""
    ring = Ring(120, seed, loss=0.02)
    ring.start_all()
    ring.run(5 * SECOND, check=True)
    rng = Random(seed)
    for _ in range(6):
        for _ in range(rng.randrange(1, 15)):
            living = sorted(ring.seats)
            gone = [node for node in ring.nodes if node not in ring.seats]
            choice = rng.choice(["crash", "restart", "root", "inner", "back"])
            if choice == "restart":
                ring.restart(rng.choice(living))
            elif choice == "back" and gone:
                ring.start(rng.choice(gone))
            elif choice == "root" and ring.live_root() in ring.seats:
                ring.crash(ring.live_root())
            elif choice == "inner":
                ring.crash(max(living, key=lambda node: (len(ring.seats[node].children), node)))
            else:
                ring.crash(rng.choice(living))
            ring.run(rng.choice([1, 10 * MS, 700 * MS]), check=True)
        # Without bundles, only a Path that does not come tells a node that its parent does not know it.
        ring.run(Parameters().parent_timeout_us + 5 * SECOND, check=True)
        ring.depths()
    ring.run(10 * SECOND)
    ring.check_settled()
    assert fullest(ring) <= 16


def change(ring: Ring, rng: Random) -> str:
    """One thing happens: a node dies or comes back at once, one that was dead or is new joins, or one leaves the tree."""
    living, placed = sorted(ring.seats), sorted(node for node, seat in ring.seats.items() if seat.present)
    what = rng.choice(["crash", "root", "inner", "restart", "join", "new", "leave", "enter"])
    match what:
        case "crash":
            ring.crash(rng.choice(living))
        case "root":
            ring.crash(ring.live_root())
        case "inner":
            ring.crash(max(living, key=lambda node: (len(ring.seats[node].children), node)))
        case "restart":
            ring.restart(rng.choice(living))
        case "join":
            ring.start(
                rng.choice([node for node in ring.nodes if node not in ring.seats] or [newcomer(ring)])
            )
        case "new":
            ring.start(newcomer(ring))
        case "leave":
            ring.leave(rng.choice(placed))
        case "enter":
            ring.enter(rng.choice([node for node in living if node not in placed] or living))
    return what


def newcomer(ring: Ring) -> bytes:
    """Every third is closer to the job than all others, and so the next root."""
    node = ring.rng.randbytes(16)
    if len(ring.nodes) % 3 == 0:
        gap = abs(int.from_bytes(ring.live_root()) - int.from_bytes(ring.job))
        node = (int.from_bytes(ring.job) + gap // 2).to_bytes(16)
    ring.nodes.append(node)
    ring.side_of[node] = 0
    return node


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_after_each_single_change_the_tree_is_that_of_the_sorted_ring(seed: int) -> None:
    """All nodes that want to be in it are, below the node that is closest on the ring, whatever the change was."""
    rng, ring = Random(seed), Ring(100, seed, Parameters(children_max=4), loss=0.02)
    ring.start_all()
    ring.run(8 * SECOND, check=True)
    ring.check_settled()
    seen: Counter[str] = Counter()
    for _ in range(60):
        seen[change(ring, rng)] += 1
        ring.run(12 * SECOND, check=True)
        depths = ring.check_settled()
        wanted = {node for node, seat in ring.seats.items() if seat.wanted}
        needed = {node for node, seat in ring.seats.items() if seat.children or seat.is_root}
        assert {node for node, seat in ring.seats.items() if seat.present} == wanted | needed
        assert [node for node, seat in ring.seats.items() if seat.is_root] == [ring.live_root()]
        assert sum(depths.values()) == len(wanted | needed)
        assert fullest(ring) <= 4
    assert len(seen) == 8


def test_nodes_between_combine_a_sparse_job_and_leave_when_no_node_needs_them() -> None:
    """Every fifth node has the source. The others join only where several joins pass."""
    ring = Ring(500, 3)
    wanted = ring.nodes[::5]
    for node in ring.nodes:
        ring.start(node, wanted=False)
    for node in wanted:
        ring.enter(node)
    ring.run(8 * SECOND)
    placed = {node for node, seat in ring.seats.items() if seat.present}
    assert set(wanted) <= placed
    assert all(seat.wanted or seat.children or seat.is_root for seat in ring.seats.values() if seat.present)
    for node in wanted:
        ring.leave(node)
    ring.run(8 * SECOND)
    left = [node for node, seat in ring.seats.items() if seat.present]
    assert left == [ring.live_root()]
    assert not ring.seats[left[0]].children


def test_a_clock_that_steps_back_an_hour_delays_nothing() -> None:
    """Each node has its own skew; half of them step back while their parents die."""
    ring = Ring(60, 5)
    ring.start_all()
    ring.run(5 * SECOND)
    skew = 3_600 * SECOND
    ring.skews = dict.fromkeys(ring.nodes[::2], -skew)
    ring.crash(ring.live_root())
    ring.run(6 * SECOND)
    ring.check_settled()
