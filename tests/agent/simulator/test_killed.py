"""A process that ends and a host that is gone are two deaths: the first is seen, the second is only silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.transcript import transcript
from elf.agent.simulator.world.places import Actor
from elf.agent.simulator.world.sources import Traffic
from elf.agent.simulator.world.world import World
from elf.srt.messages.parameters import Parameters
from tests.soak.census import counted

pytestmark = pytest.mark.slow

SECOND, MS = 1_000_000, 1_000
KILL_US, BACK_US = 6 * SECOND, 12 * SECOND
DETECTION_US = Parameters().probe_us + Parameters().suspect_us
"""The minimum time of a suspicion, with the default timings."""


def scenario(*faults: s.AnyFault, seed: int = 1, hosts: int = 5) -> s.Scenario:
    return s.Scenario(
        seed=seed,
        hosts=hosts,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=SECOND, line_us=2 * SECOND),),
        faults=faults,
        traffic=Traffic(lines_per_s=10.0, keys=3, late_share=0.0),
        trouble_us=14 * SECOND,
        after_us=SECOND,
    )


def crash(process: bool, until_us: int = BACK_US) -> s.Crash:
    return s.Crash(at_us=KILL_US, until_us=until_us, target="master", process=process)


def watched(
    world: Callable[[World], None] | None = None,
) -> tuple[list[tuple[int, Any]], Callable[[Run], None]]:
    """(windows that sinks take, and when; the observer that notes them)."""
    puts: list[tuple[int, Any]] = []

    def prepare(run: Run) -> None:
        run.world.put_observers.append(lambda put, now_us: puts.append((now_us, put)))
        if world is not None:
            world(run.world)

    return puts, prepare


def pause_us(puts: list[tuple[int, Any]]) -> int:
    """From the kill to the first window of the next master."""
    ballot = max(put.ballot for at, put in puts if at < KILL_US)
    return min(at for at, put in puts if put.ballot > ballot) - KILL_US


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_masters_job_resumes_within_half_a_second_and_a_dead_hosts_after_a_suspicion(
    seed: int,
) -> None:
    for process in (True, False):
        puts, prepare = watched()
        outcome, counts = counted(scenario(crash(process), seed=seed), prepare=prepare)
        assert outcome.violation == ""
        if process:
            assert pause_us(puts) < 500 * MS
            assert counts["process: its end is seen"] == 4
        else:
            assert pause_us(puts) > DETECTION_US
            assert counts.get("process: its end is seen", 0) == 0


def test_a_master_that_is_known_to_have_ended_left_no_window_in_doubt() -> None:
    """No master published windows that were due when it ended, so the next one publishes them as final."""
    puts, prepare = watched()
    assert simulate(scenario(crash(True, KILL_US + SECOND)), prepare=prepare).violation == ""
    finals = [(at, put) for at, put in puts if put.status != "open"]
    before = {put.start for at, put in finals if at < KILL_US}
    first = {put.start: put.status for at, put in reversed(finals) if put.start not in before}
    assert (
        len({put.ballot for at, put in puts}) == 3
    )  # it took over itself, and handed on when the killed one was back
    assert set(first.values()) == {"final"}


def test_who_is_separated_from_the_host_sees_nothing() -> None:
    cut = s.Cut(at_us=KILL_US - 100 * MS, until_us=BACK_US, hosts=(0, 1))
    outcome, counts = counted(
        scenario(cut, s.Crash(at_us=KILL_US, until_us=BACK_US, target="host", process=True))
    )
    assert outcome.violation == ""
    assert counts["process: its end is seen"] == 1


def test_a_process_that_is_back_at_once_is_a_restart_to_everybody() -> None:
    outcome, counts = counted(scenario(crash(True, KILL_US + 1)))
    assert outcome.violation == ""
    assert counts["process: a later life answers"] == 4
    assert counts.get("process: its end is seen", 0) == 0


def test_a_paused_agent_sees_it_when_it_resumes() -> None:
    seen: dict[str, int] = {}

    def note(world: World) -> None:
        def observe(now_us: int, what: str, who: Actor | None, about: Any) -> None:
            if what == "sees end" and who is not None:
                seen[who.name] = now_us

        world.observers.append(observe)

    _, prepare = watched(note)
    pause = s.Pause(at_us=KILL_US - MS, until_us=KILL_US + SECOND, host=1)
    crash = s.Crash(at_us=KILL_US, until_us=BACK_US, target="host", host=0, process=True)
    assert simulate(scenario(pause, crash), prepare=prepare).violation == ""
    assert seen.pop("web1") >= KILL_US + SECOND
    assert len(seen) == 3
    assert all(at < KILL_US + 10 * MS for at in seen.values())


def test_a_host_that_is_only_slow_loses_and_regains_its_job_a_few_times_and_not_for_ever() -> None:
    """Without `Patience` the job changes hands ten times in these 30 s."""
    slow = s.Slow(at_us=KILL_US, until_us=KILL_US + 30 * SECOND, host=3, extra_us=1_200 * MS)
    puts, prepare = watched()
    long = msgspec.structs.replace(scenario(slow), trouble_us=KILL_US + 31 * SECOND)
    assert simulate(long, prepare=prepare).violation == ""
    assert len({put.ballot for at, put in puts}) <= 3


def test_a_rolling_restart_of_all_processes_is_exact() -> None:
    moments = [(host, (5 + host) * SECOND) for host in range(5)]
    kills = [
        s.Crash(at_us=at, until_us=at + 300 * MS, target="host", host=host, process=True)
        for host, at in moments
    ]
    outcome, counts = counted(scenario(*kills))
    assert outcome.violation == ""
    assert counts["process: its end is seen"] == 20


def test_a_transcript_shows_it() -> None:
    _, text = transcript(scenario(crash(True)))
    assert "its host lives on, and closes its sockets" in text
    assert text.count("sees that the process of web") == 4
