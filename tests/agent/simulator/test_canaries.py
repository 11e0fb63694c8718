"""The simulator detects broken rules: without any one of them it fails within the stated seeds."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.jobmaster.master.parking import Parking
from elf.srt.messages.bundles import Feeder
from elf.srt.messages.messages import Bundle
from elf.srt.messages.parameters import SECOND
from elf.srt.tree.reduce import Reducer
from tests.rigs.canaries import meshes
from tests.rigs.canaries.breaks import wait_on
from tests.rigs.canaries.check import check
from tests.rigs.canaries.fleets import FLEET_CANARIES
from tests.rigs.canaries.rules import CANARIES, Canary

pytestmark = pytest.mark.slow


ALL = (*CANARIES, *FLEET_CANARIES)


@pytest.mark.long
@pytest.mark.parametrize("canary", ALL, ids=[f"{each.rule} | {each.broken}" for each in ALL])
def test_without_a_rule_the_simulator_fails(canary: Canary) -> None:
    check(canary)


@pytest.mark.parametrize("is_broken", [False, True])
def test_rule_4_without_its_bound_in_time_parking_keeps_what_a_lost_bundle_holds_up(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """A reducer loses a bundle, as none should; the worker's own patience is longer."""
    left, keep = [0], Reducer._keep

    def lose(self: Reducer, bundle: Bundle, feeders: tuple[Feeder, ...]) -> None:
        keep(self, bundle, feeders)
        if left[0] and any(end > start for start, end, _ in bundle.contributions.values()):
            left[0] -= 1
            self._outbox.remove(bundle.id)
            self._drop(self._kept.pop(bundle.id))

    def prepare(run: Run) -> None:
        run.world.at(meshes.TROUBLE_US, partial(left.__setitem__, 0, 1))

    monkeypatch.setattr(Reducer, "_keep", lose)
    if is_broken:
        monkeypatch.setattr(Parking, "expired", wait_on)
    scenario = replace(meshes.mesh(1, []), rest_us=6 * SECOND)
    assert bool(simulate(scenario, prepare=prepare).violation) == is_broken
    assert left == [0]
