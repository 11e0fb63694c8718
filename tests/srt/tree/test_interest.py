"""Cost follows interest: what is sent and logged while nobody reads open windows, and how soon a watcher sees the present."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.control.follow import Watcher
from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario.scenario import Job, Reader, Scenario
from elf.agent.simulator.world.places import EPOCH_US
from elf.agent.simulator.world.sources import Traffic
from elf.srt.messages.parameters import MS, SECOND
from elf.srt.messages.results import Put
from tests.rigs.canaries import meshes

pytestmark = pytest.mark.slow

JOB = Job(start_us=SECOND, windows=("10 seconds",), lateness_us=2 * SECOND)
APPENDS = 1_572
"""Of a watched job in this scenario, as long as each bundle was an entry of its own (docs/mesh.md)."""
PLAIN = Scenario(seed=7, hosts=3, jobs=(JOB,), trouble_us=60 * SECOND)


def logged(outcome: Outcome) -> list[int]:
    assert outcome.violation == ""
    return [outcome.messages[kind] for kind in ("Bundle", "Commit", "Append")]


@pytest.mark.parametrize("lines_per_s", [20.0, 2.0, 0.05])
def test_a_job_that_nobody_watches_costs_a_tenth(lines_per_s: float) -> None:
    traffic = Traffic(lines_per_s=lines_per_s)
    watched = simulate(replace(PLAIN, traffic=traffic))
    alone = simulate(replace(PLAIN, traffic=traffic, finals_only=True))
    assert alone.finals == watched.finals == 7
    now, before = logged(alone), logged(watched)
    assert 8 * now[2] < before[2], "a beat of all workers is one entry, so a watched job has few Appends too"
    before[2] = APPENDS
    assert all(10 * each < then for each, then in zip(now, before, strict=True))


def test_who_comes_sees_the_present_window_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all lines up to when the watcher came, although none of them had left the agents."""
    came_us = 25 * SECOND + 130 * MS
    shown: list[tuple[int, int]] = []
    take, runs = Watcher.take, list[Run]()

    def taking(watcher: Watcher) -> list[Put]:
        puts = take(watcher)
        now = runs[0].world.now_us
        shown.extend((now - came_us, put.lines[0]) for put in puts if put.start == EPOCH_US + 20 * SECOND)
        return puts

    monkeypatch.setattr(Watcher, "take", taking)
    monkeypatch.setattr("elf.agent.simulator.checks.readers.LOOK_US", 5 * MS)
    reader = Reader(host=1, job=0, from_us=came_us, until_us=came_us + 2 * SECOND)
    outcome = simulate(replace(PLAIN, finals_only=True, readers=(reader,)), prepare=runs.append)
    assert outcome.violation == ""
    assert any(after_us <= 300 * MS and lines > 250 for after_us, lines in shown), shown


def test_a_first_line_after_a_pause_is_shown_before_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in 6 s at three agents: the log's two rounds and the way to the watcher, and no wait for a beat."""
    shown: dict[tuple[int, int], int] = {}
    take, runs = Watcher.take, list[Run]()

    def taking(watcher: Watcher) -> list[Put]:
        puts = take(watcher)
        for put in puts:
            shown.setdefault((put.start, put.lines[0]), runs[0].world.now_us)
        return puts

    monkeypatch.setattr(Watcher, "take", taking)
    monkeypatch.setattr("elf.agent.simulator.checks.readers.LOOK_US", 5 * MS)
    reader = Reader(host=1, job=0, from_us=4 * SECOND)
    traffic = Traffic(lines_per_s=1 / 18)
    outcome = simulate(
        replace(PLAIN, finals_only=True, readers=(reader,), traffic=traffic), prepare=runs.append
    )
    assert outcome.violation == ""
    sources = [actor.source for actor in runs[0].world.actors.values()]
    files = [file for source in sources if source is not None for file in source.files]
    written = sorted(at for file in files for at in file.written_us.tolist() if 6 * SECOND < at < 55 * SECOND)
    waits = [min(at - line for at in shown.values() if at >= line) for line in written]
    assert len(waits) > 5
    assert max(waits) < 100 * MS, waits


@pytest.mark.parametrize("seed", range(2))
def test_readers_that_come_and_go_change_no_final_window(seed: int) -> None:
    outcome = simulate(meshes.visited(seed))
    assert outcome.violation == ""
    assert outcome.finals >= 12
    assert outcome.messages["Shown"] > 10


def test_rule_interest_holds_at_rest() -> None:
    assert simulate(meshes.stayed(0)).violation == ""
