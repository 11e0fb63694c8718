"""`elf mesh leave`: an agent goes for good, and takes no line with it."""

from __future__ import annotations

from pathlib import Path

from tests.rigs.agents.mesh_rig import Fleet
from tests.rigs.agents.seen import WAIT_S


def test_windows_do_not_wait_for_who_has_left_and_hold_all_its_lines(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3) as fleet:
        fleet.start_job("hits")
        leaver = next(agent for agent in fleet.agents if agent is not fleet.master("hits"))
        watcher = next(number for number, agent in enumerate(fleet.agents) if agent is not leaver)
        with fleet.watch("hits", at=watcher) as seen:
            with fleet.traffic():
                seen.wait_finals(2)
            said = fleet.elf("mesh", "leave", at=fleet.agents.index(leaver))
            assert said == "this agent has left: the mesh has all its lines, and waits for no more of them\n"
            assert leaver.process is not None
            assert leaver.process.wait(WAIT_S) == 0
            assert fleet.settled(seen) == fleet.counted()
            last = seen.latest[max(fleet.counted())]
            assert last.status != "open"
