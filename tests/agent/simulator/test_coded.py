"""Meshes over bytes: the same seeds as those over objects, each message encoded, links carrying pieces."""

from __future__ import annotations

from random import Random

import pytest

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.world.places import Actor
from elf.srt.messages.effects import Notice
from elf.srt.messages.messages import Frame, Piece
from tests.rigs.journal_disk import JournalDisk
from tests.soak.drawn import random_scenario

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_mixed_faults_over_bytes(seed: int) -> None:
    outcome = simulate(random_scenario(seed), coded=JournalDisk)
    assert outcome.is_exact, f"seed {seed}: {outcome.violation}"
    assert outcome.finals


@pytest.mark.parametrize("seed", [21])
def test_a_piece_that_cannot_be_decoded_ends_the_link_and_the_mesh_continues(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece in two hundred is garbage, in the first half of the run."""
    rng = Random(seed)
    notices: list[Notice] = []

    def prepare(run: Run) -> None:
        world = run.world
        read = world._read

        def spoiled(letter: object) -> object:
            source, message = read(letter)  # type: ignore[arg-type]
            is_early = world.now_us < run.scenario.trouble_us
            if is_early and type(message) is Frame and message.message is not None and rng.random() < 0.005:
                message = Frame(
                    message.session,
                    message.sequence,
                    message.acknowledged,
                    message.credit,
                    Piece(rng.randbytes(40)),
                )
            return source, message

        def observe(now: int, what: str, who: Actor | None, about: object) -> None:
            if what == "notice" and isinstance(about, Notice) and about.kind == "undecodable":
                notices.append(about)

        monkeypatch.setattr(world, "_read", spoiled)
        world.observers.append(observe)

    outcome = simulate(random_scenario(seed), coded=JournalDisk, prepare=prepare)
    assert notices
    assert all("the link begins anew" in notice.text for notice in notices)
    assert outcome.is_exact, f"seed {seed}: {outcome.violation}"
    assert outcome.finals
