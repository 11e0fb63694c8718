"""Agents on hosts of their own, over a network that fails: what is lost, late or parted changes nothing of any total."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mesh_rig import FAST, Seen
from tests.netns_rig import NetFleet, Network, Wire, refusal

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal())

PARTED = FAST | {"hold_max": "500ms"}
"""A window waits only so long for agents that are out of reach."""
FAR = FAST | {"probe": "500ms", "probe_timeout": "150ms", "suspect": "1500ms", "link_dead": "3s"}
"""Deaths are found as by default, where a round trip takes as long as all of `FAST`'s probe."""


def names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def coverage(seen: Seen) -> dict[int, tuple[int, int]]:
    """Of each window: how many agents reported it, of how many."""
    return {start: (put.agents_reporting, put.agents_expected) for start, put in seen.latest.items()}


def wait_covered(seen: Seen, reporting: int, status: str) -> None:
    """Until there is a new window of that status by so many of five agents."""
    known = set(seen.latest)
    seen.wait(
        lambda: any(
            put.status == status and (put.agents_reporting, put.agents_expected) == (reporting, 5)
            for start, put in seen.latest.items()
            if start not in known
        ),
        lambda: f"no {status} window by {reporting} of 5 agents: {coverage(seen)}",
    )


def test_a_partition_shows_in_the_coverage_and_heals_to_exact_totals(tmp_path: Path) -> None:
    """Three against two. On the master's side windows become final without the other two, the others see theirs open; when
    it has healed, all are revised or final by all five."""
    with Network(names(5)) as network, NetFleet(tmp_path, network, timings=PARTED) as fleet:
        fleet.start_job("hits")
        near = network.names.index(fleet.master("hits").name)
        far = [number for number in range(5) if number != near][:2]
        with fleet.watch("hits", at=near) as seen, fleet.watch("hits", at=far[0]) as beyond:
            with fleet.traffic(20):
                seen.wait_finals(2)
                with network.parted([network.names[number] for number in far]):
                    wait_covered(seen, 3, "final")
                    wait_covered(beyond, 2, "open")
                wait_covered(seen, 5, "final")
            assert fleet.settled(seen) == fleet.counted()
            assert fleet.settled(beyond) == fleet.counted()
            assert {coverage(seen)[start] for start in fleet.counted()} == {(5, 5)}


@pytest.mark.parametrize("wire", [Wire(delay_ms=80), Wire(loss_percent=5)], ids=["slow", "lossy"])
def test_a_slow_or_a_lossy_wire_costs_time_only(tmp_path: Path, wire: Wire) -> None:
    with Network(names(3), {"a1": wire}) as network, NetFleet(tmp_path, network, timings=FAR) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(20):
                seen.wait_finals(4)
            assert fleet.settled(seen) == fleet.counted()
        for agent in fleet.agents:
            print(agent.said())
