"""The virtual disk of a mesh over bytes: torn records are dropped as by the journal, and no others."""

from __future__ import annotations

import struct
from random import Random

import pytest

from elf.agent.disk import journal
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.world.disk import Disk
from elf.errors import StateError
from tests.rigs import wire_values
from tests.rigs.journal_disk import JournalDisk, torn
from tests.rigs.wire_values import same
from tests.soak.drawn import random_scenario


def lives(seed: int) -> int:
    """The same writes, syncs and crashes on both disks; how many frames were torn."""
    rng, plain, coded = Random(seed), Disk(), JournalDisk()
    for life in range(6):
        for _ in range(rng.randrange(8)):
            number = rng.choice([1, 2, 3, 4, 5, 7])
            write = wire_values.write(number, rng)
            for disk in (plain, coded):
                disk.write(write.key, write.record, write.replace)
            if rng.random() < 0.5:
                assert plain.sync(2) == coded.sync(2)
        chance = rng.random()
        for disk in (plain, coded):
            disk.crash(Random(chance))
            if life == 3:
                disk.wipe()
        assert same(coded.records, plain.records)
        assert coded.pending == 0
    return coded.torn


def many_lives() -> int:
    return sum(lives(seed) for seed in range(60))


def test_what_is_read_back_is_what_a_disk_of_whole_records_holds() -> None:
    assert many_lives() > 100


def test_canary_a_torn_frame_that_is_believed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length is whole, its payload is not, and no check says so."""
    monkeypatch.setattr(journal, "_check", lambda payload, offset, size: bytes(size))
    with pytest.raises((AssertionError, StateError, struct.error)):
        many_lives()


def test_a_torn_frame_is_a_piece_of_it_or_as_long() -> None:
    rng, frame = Random(1), bytes(range(1, 100))
    pieces = [torn(frame, rng) for _ in range(300)]
    assert all(piece != frame for piece in pieces)
    assert {len(piece) == len(frame) for piece in pieces} == {True, False}
    assert any(piece[-1:] == b"\0" for piece in pieces)
    assert any(
        sum(a != b for a, b in zip(piece, frame, strict=True)) == 1 for piece in pieces if len(piece) == 99
    )


@pytest.mark.slow
def test_agents_whose_last_write_was_torn_start_again_and_results_are_exact() -> None:
    """Disks under load, of 50 ms for a write: crashes come within one, in each of these seeds, the cheapest of many."""
    runs: list[Run] = []

    def prepare(run: Run) -> None:
        run.world.disk_us = 50_000
        runs.append(run)

    for seed in (1, 4, 149, 304):
        outcome = simulate(random_scenario(seed), coded=JournalDisk, prepare=prepare)
        assert outcome.is_exact, f"seed {seed}: {outcome.violation}"
        assert outcome.finals
    disks = [host.disk for run in runs for host in run.hosts]
    assert sum(disk.torn for disk in disks if isinstance(disk, JournalDisk)) > 2
