"""Rule 7: a new log of a minority, which could not reach the old one, gives way to the log that most have reported to."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from elf.agent.simulator.run import Run
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.log import job_log
from elf.jobmaster.log.entries import Begin, ControlEntry
from elf.jobmaster.log.job_log import NO_MAJORITY
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.succession import Succession
from elf.srt.messages.ids import closeness, job_id, node_id
from elf.srt.messages.messages import NO_BALLOT, Append, Ballot, Frame, Install
from elf.srt.messages.results import Put
from tests.rigs.canaries.meshes import MS, SECOND, mesh

pytestmark = pytest.mark.slow

HOSTS = 9


def trio(seed: int) -> s.Scenario:
    """Three of nine agents restart together, and see only each other for a while."""
    rng = Random(seed)
    hosts = tuple(rng.sample(range(HOSTS), 3))
    at, until = 7 * SECOND + rng.randrange(SECOND), 10 * SECOND + rng.randrange(SECOND)
    crashes = [s.Crash(at_us=at, until_us=at + 400 * MS, target="host", host=host) for host in hosts]
    cut = s.Cut(at_us=at, until_us=until, hosts=hosts)
    return mesh(seed, [*crashes, cut], hosts=HOSTS, trouble_us=until)


def one_way(seed: int) -> s.Scenario:
    """One agent receives from all others, and none from it; or it receives from none."""
    rng = Random(seed)
    is_mute = bool(seed % 2)
    at, until = 7 * SECOND + rng.randrange(SECOND), 13 * SECOND + rng.randrange(SECOND)
    cut = s.Cut(at_us=at, until_us=until, hosts=(rng.randrange(HOSTS),), outward=is_mute, inward=not is_mute)
    return mesh(seed, [cut], hosts=HOSTS, trouble_us=until)


def displaced(seed: int) -> s.Scenario:
    """A host is a replica until a closer one has restarted. Then the job changes twice, and the former replica is cut off."""
    rng = Random(seed)
    order = sorted(range(HOSTS), key=lambda host: closeness(job_id("job0"), node_id(f"web{host}".encode())))
    closer, former = order[rng.choice((1, 2))], order[3]
    back_us = 6 * SECOND + rng.randrange(SECOND)
    faults: list[s.AnyFault] = [s.Crash(at_us=4 * SECOND, until_us=back_us, target="host", host=closer)]
    for step in (1, 2):
        changer = order[rng.randrange(4, HOSTS)]
        at = back_us + step * SECOND
        faults.append(s.Change(at_us=at, host=changer, job=0, mode=rng.choice(("next", "split"))))
    at, until = back_us + 3 * SECOND + rng.randrange(SECOND), back_us + 6 * SECOND + rng.randrange(SECOND)
    faults.append(s.Cut(at_us=at, until_us=until, hosts=(former,)))
    return mesh(seed, faults, hosts=HOSTS, trouble_us=until)


class Watcher:
    """The ballots under which the job's log began, the control lines that reached replicas, and whether final windows stayed
    final."""

    def __init__(self) -> None:
        self.begun: set[Ballot] = set()
        self.lines: set[tuple[str, int]] = set()
        self.finals: dict[Any, int] = {}

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        if what == "put":
            self._put(about)
        elif what == "deliver":
            message = about[1].message if isinstance(about[1], Frame) else about[1]
            if isinstance(message, Append | Install):
                entries = message.entries if isinstance(message, Append) else message.tail
                self.begun |= {entry.ballot for entry in entries if isinstance(entry, Begin)}
                lines = [entry.line for entry in entries if isinstance(entry, ControlEntry)]
                self.lines |= {(line.version, line.from_us) for line in lines}
            if isinstance(message, Install) and message.state.ballot != NO_BALLOT:
                self.begun.add(message.state.ballot)

    def _put(self, put: Put) -> None:
        key = put.version, put.start
        if put.status == "final":
            assert put.agents_reporting >= self.finals.get(key, 0), "a final window was told with less"
            self.finals[key] = put.agents_reporting


def watch(scenario: s.Scenario) -> tuple[Watcher, JobState]:
    """Run it to the end, where all is exact. The log's state then."""
    run, watcher = Run(scenario), Watcher()
    run.world.observers.insert(0, watcher.observe)
    run.to_the_end()
    assert watcher.finals
    return watcher, run._state(run.specs[0])


def begins(scenario: s.Scenario) -> tuple[set[Ballot], Ballot]:
    """The ballots under which the log was begun, and that of the log which was served in the end."""
    watcher, state = watch(scenario)
    return watcher.begun, state.ballot


def lost_changes(scenario: s.Scenario) -> set[tuple[str, int]]:
    """The control lines (version, from when) that replicas had and the log has not in the end."""
    watcher, state = watch(scenario)
    assert watcher.lines
    return watcher.lines - {(line.version, line.from_us) for line in state.positions.schedule}


@pytest.mark.long
@pytest.mark.parametrize("kind", [trio, one_way])
def test_the_log_with_a_majority_of_reports_continues(kind: Any) -> None:
    begun_anew = 0
    for seed in range(8):
        begun, last = begins(kind(seed))
        assert last == min(begun), f"seed {seed}: the log was begun anew"
        begun_anew += len(begun) > 1
    assert begun_anew >= 2


def test_without_the_rule_the_new_log_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of that rule: all windows are exact without it too, but most agents read again what few could not find."""
    monkeypatch.setattr(job_log, "committed_proven", lambda majorities, last: NO_MAJORITY)
    assert any(last != min(begun) for begun, last in (begins(trio(seed)) for seed in range(3, 6)))


def test_changes_made_without_a_former_replica_stay_when_it_was_cut_off() -> None:
    assert [lost_changes(displaced(seed)) for seed in range(6)] == [set()] * 6


def test_without_the_rule_the_former_replicas_log_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of that rule: the majority is recorded once under each ballot."""
    monkeypatch.setattr(Succession, "left", 0)
    assert any(lost_changes(displaced(seed)) for seed in range(6))
