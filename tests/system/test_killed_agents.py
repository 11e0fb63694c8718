"""Real agents that are killed: their neighbours know it from closed sockets alone, since here nobody is suspected in time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.rigs.agents.mesh_rig import FAST, Agent, Fleet, wait_until

SLOW = {**FAST, "suspect": "60s", "dead": "10m", "parent_timeout": "60s"}
"""A suspicion outlasts every test, so what goes on does so because connections were reset and refused."""


def sees_alive(fleet: Fleet, agent: Agent, count: int) -> bool:
    return fleet.alive(agent) == count


@pytest.mark.parametrize("security", ["none", "curve"])
def test_the_job_of_a_killed_master_goes_on(tmp_path: Path, security: str) -> None:
    with Fleet(tmp_path / "mesh", 3, timings=SLOW, security=security) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        at = next(n for n, agent in enumerate(fleet.agents) if agent is not master)
        with fleet.watch("hits", at) as seen:
            with fleet.traffic():
                seen.wait_finals(1)
                ballot = seen.puts[-1][1].ballot
                master.kill()
                seen.wait(lambda: seen.puts[-1][1].ballot > ballot)
                for agent in fleet.agents:
                    if agent is not master:
                        wait_until(partial(sees_alive, fleet, agent, 2), f"{agent.name} sees the dead")
                master.start()
                master.wait_ready()
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()


def test_a_rolling_kill_and_restart_of_all_is_exact(tmp_path: Path) -> None:
    with Fleet(tmp_path / "mesh", 3, timings=SLOW) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits", 0, 1, 2) as seen:
            with fleet.traffic():
                seen.wait_finals(1)
                for agent in fleet.agents:
                    agent.kill()
                    agent.start()
                    fleet.wait_joined()
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()
