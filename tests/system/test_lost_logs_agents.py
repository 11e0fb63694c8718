"""Real agents that are killed and lose their state folder while their log is rotated: totals are equal, or the loss is told."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elf.agent.control import protocol as w
from elf.srt.transport.admission import TWO_AGENTS
from tests.rigs.agents.mesh_rig import SQL, Agent, Fleet, line, wait_until
from tests.rigs.agents.seen import totals_of

WINDOW_S = 5


class Plain(Fleet):
    """Agents that follow only the plain name, from the end, as configured by default."""

    def _config(self, number: int, name: str, port: int) -> str:
        text = super()._config(number, name, port).replace('path = "access.log*"', 'path = "access.log"')
        return text.replace('start = "beginning"\n', "")


def rotate_away(agent: Agent) -> Path:
    """As logrotate without delaycompress does. The archive."""
    rotated = agent.folder / "access.log.1"
    agent.log.rename(rotated)
    agent.log.touch()
    packed = agent.folder / "access.log.1.gz"
    packed.write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    return packed


def delete(agent: Agent) -> None:
    rotate_away(agent).unlink()


def damage(agent: Agent) -> None:
    packed = rotate_away(agent)
    packed.write_bytes(packed.read_bytes()[:-40])


def rotate(agent: Agent) -> None:
    rotate_away(agent)


def problems(fleet: Fleet) -> tuple[str, ...]:
    status = fleet.agents[0].ask(w.MeshStatus())
    assert isinstance(status, w.Status)
    return status.problems


def write(fleet: Fleet, start_s: float, count: int) -> None:
    for agent in fleet.agents:
        agent.write([line(start_s + i / 1000, 200, 1) for i in range(count)])


@pytest.mark.parametrize(
    ("happens", "is_after", "lost"),
    [
        (rotate, False, ""),
        (rotate, True, ""),
        (delete, False, "is missing from its folders: it was deleted, emptied or moved away"),
        (damage, False, "damaged after byte"),
    ],
)
def test_a_log_that_was_rotated_while_its_agent_lost_all(
    tmp_path: Path, happens: Callable[[Agent], None], is_after: bool, lost: str
) -> None:
    with Plain(tmp_path, 3, security="curve") as fleet:
        fleet.start_job("hits", SQL.replace("'1 second'", f"'{WINDOW_S} seconds'"))
        start_s = time.time() // WINDOW_S * WINDOW_S + WINDOW_S
        start = int(start_s * 1e6)
        with fleet.watch("hits") as seen:

            def hits() -> int:
                return totals_of(seen.latest[start])[200][0] if start in seen.latest else 0

            write(fleet, start_s, 100)
            seen.wait(lambda: hits() == 300)
            victim = fleet.agents[1]
            victim.kill()
            write(fleet, start_s + 1, 100)
            if not is_after:
                happens(victim)
            shutil.rmtree(victim.folder / "state")
            victim.start()
            if is_after:
                victim.wait_ready()
                happens(victim)
            write(fleet, start_s + 2, 20)
            if not lost:
                seen.wait(lambda: hits() == 660, lambda: f"{hits()} of 660 lines")
                assert not [each for each in problems(fleet) if ": access: " in each]
                return
            wait_until(
                lambda: any(each.startswith("a1: access: ") and lost in each for each in problems(fleet)),
                "no problem is told",
            )
            write(fleet, start_s + WINDOW_S + 5, 1)
            seen.wait(lambda: start in seen.final_starts, lambda: "it does not become final")
            put = seen.latest[start]
            assert (put.agents_reporting, put.agents_expected) == (2, 3)
            assert 560 <= hits() < 660
        assert TWO_AGENTS not in victim.said()
        assert "counted further than this run" not in victim.said()
