"""Replicas that write nothing and replicas that are missing, as the serving node sees them."""

from __future__ import annotations

from elf.jobmaster.log.replica_failures import STUCK_LOOKS, ReplicaFailures

ME, A, B, C = (bytes(15) + bytes([number]) for number in range(1, 5))
LOOK_US = 6_000_000


def looks_until_able(failures: ReplicaFailures) -> int:
    """A lacks entry 1 at two looks; returns for how many more it is left out then."""
    failures.neighbours([A, B])
    failures.look({A: 0, B: 1}, 1)
    assert failures.usable([A, B]) == [A, B]
    failures.look({A: 0, B: 1}, 1)
    looks = 0
    while failures.usable([A, B]) == [B]:
        failures.check()
        failures.look({B: 1}, 1)
        looks += 1
    return looks


def test_a_replica_that_writes_nothing_is_left_out_twice_as_long_each_time() -> None:
    failures = ReplicaFailures(ME, LOOK_US)
    assert [looks_until_able(failures) for _ in range(3)] == [STUCK_LOOKS, 2 * STUCK_LOOKS, 4 * STUCK_LOOKS]


def test_a_slow_replica_that_writes_stays() -> None:
    failures = ReplicaFailures(ME, LOOK_US)
    for index in range(1, 20):
        failures.look({A: index - 1}, index)
        assert failures.usable([A]) == [A]


def test_a_replica_that_left_and_returned_is_not_stuck() -> None:
    failures = ReplicaFailures(ME, LOOK_US)
    for _ in range(2):
        failures.look({A: 0}, 1)
    assert failures.usable([A]) == []
    failures.neighbours([B])
    failures.neighbours([A, B])
    assert failures.usable([A]) == [A]


def test_it_looks_while_replicas_are_behind_or_stuck() -> None:
    failures = ReplicaFailures(ME, LOOK_US)
    failures.watch([], 0)
    assert not failures.alarm.rings(LOOK_US)
    failures.watch([A], 0)
    failures.watch([A], 1)
    assert failures.alarm.at == LOOK_US
    assert failures.alarm.rings(LOOK_US)
    for _ in range(2):
        failures.look({A: 0}, 1)
    failures.watch([], LOOK_US)
    assert failures.alarm.at == 2 * LOOK_US


def test_losses_count_missing_nodes_until_none_is_missing() -> None:
    failures = ReplicaFailures(ME, LOOK_US)

    def lose(nodes: list[bytes], neighbours: list[bytes]) -> int:
        failures.neighbours(neighbours)
        failures.note_lost(nodes)
        failures.check()
        return failures.losses

    assert lose([ME, b"", A], [A, B]) == 0, "it only made room"
    assert [lose([A], [B]), lose([A], [B])] == [1, 1]
    assert lose([B, C], [A]) == 3
    assert lose([], [A, B, C]) == 0
    assert lose([C], [A, B]) == 4
    for _ in range(2):
        failures.look({A: 0}, 1)
    failures.note_lost([A])
    assert failures.losses == 5, "stuck is not here"
