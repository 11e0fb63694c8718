"""A job that is restated again and again has final windows nevertheless (rule Wait*)."""

from __future__ import annotations

import pytest

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import MS, SECOND, Change
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.places import EPOCH_US
from elf.jobmaster.master.lane_wait import LaneWait
from tests.rigs.canaries import meshes

FROM_US, UNTIL_US = 4 * SECOND, 11 * SECOND
LATENESS_US = 2 * SECOND
"""Of the jobs of `meshes`."""


def newest_final(seed: int) -> tuple[float, int]:
    """A job is restated more than three times a second, and each time reading again takes longer than that. Returns how many
    seconds its newest final window is behind at the end of these changes, and how many of them came into force until then."""
    every_us = 300 * MS
    changes = [Change(at_us=at, host=0, job=0, mode="restate") for at in range(FROM_US, UNTIL_US, every_us)]
    weather = Weather(delay_us=20 * MS)
    found: list[tuple[float, int]] = []

    def prepare(run: Run) -> None:
        def look() -> None:
            state = run._state(run.specs[0])
            start_us = max((start for _, start in state.finals), default=EPOCH_US)
            behind_us = EPOCH_US + run.world.now_us - (start_us + SECOND)
            found.append((behind_us / SECOND, len(state.schedule) - 1))

        run.world.at(UNTIL_US, look)

    outcome = simulate(meshes.mesh(seed, [*changes], weather=weather), prepare=prepare)
    assert outcome.violation == ""
    return found[0]


@pytest.mark.slow
def test_a_job_that_is_restated_again_and_again_has_final_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        behind_s, changes = newest_final(seed)
        assert behind_s <= LATENESS_US / SECOND + 3
        assert changes >= 3

    def never(self: LaneWait) -> None:
        self.is_on = False

    monkeypatch.setattr(LaneWait, "changed", never)
    assert max(newest_final(seed)[0] for seed in range(3)) > 6
