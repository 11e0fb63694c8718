"""A host of whose lines none can be read, in simulated meshes whose masters die: no window counts it, none waits for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.sources import IDLE_GRACE_US, VirtualSource
from elf.agent.simulator.world import EPOCH_US
from elf.srt.effects import Read
from elf.srt.events import Cut
from elf.srt.results import Put
from tests import canary_meshes as meshes

BROKEN = 3


class Blind(VirtualSource):
    """All that its server logs is rejected."""

    def read(self, read: Read, now_us: int, clock_us: int, schedule: Any, rows: Any) -> Cut:
        cut = super().read(read, now_us, clock_us, schedule, rows)
        untimed = sum(end - start for start, end, _ in cut.spans.values()) // 100
        return replace(cut, parts={}, watermark_us=clock_us - IDLE_GRACE_US, is_blind=True, untimed=untimed)


def break_one(run: Run, finals: list[tuple[int, Put]]) -> None:
    source = run.hosts[BROKEN].source
    assert source is not None
    source.__class__ = Blind
    run.oracle.gone.add(BROKEN)  # its lines are in no window

    def take(put: Put, now_us: int) -> None:
        if put.status != "open":
            finals.append((now_us, put))

    run.world.put_observers.append(take)


@pytest.mark.parametrize("seed", range(4))
def test_no_window_counts_it_whoever_serves(seed: int) -> None:
    finals: list[tuple[int, Put]] = []
    outcome = simulate(meshes.takeovers(seed), prepare=partial(break_one, finals=finals))
    assert outcome.violation == ""
    assert finals
    assert all(put.agents_reporting < put.agents_expected for _, put in finals)


def test_no_window_waits_for_it() -> None:
    plain, broken = list[tuple[int, Put]](), list[tuple[int, Put]]()

    def watch(run: Run) -> None:
        run.world.put_observers.append(
            lambda put, now_us: plain.append((now_us, put)) if put.status != "open" else None
        )

    scenario = meshes.mesh(1, [])
    assert simulate(scenario, prepare=watch).violation == ""
    assert simulate(scenario, prepare=partial(break_one, finals=broken)).violation == ""
    late = [max(now_us + EPOCH_US - put.end for now_us, put in each) for each in (plain, broken)]
    assert late[1] <= late[0] + IDLE_GRACE_US < late[0] + scenario.parameters.hold_us_max
    assert {(put.agents_reporting, put.agents_expected) for _, put in broken} == {(5, 6)}
