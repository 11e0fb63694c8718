"""Shrinks a failing scenario: fewer faults, jobs and hosts, shorter and calmer, as long as it still fails.

Greedy delta debugging (Zeller and Hildebrandt, 2002) over a value: every candidate is a whole scenario, and is accepted if it
fails too. By default any violation counts; `shrink_alike` accepts only one of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from time import monotonic

import msgspec

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.network import Weather
from tests.rigs.quick import QUICK

RUNS_MAX = 120
"""A run takes about a second."""
HOSTS_MIN = 3
_PARTICULARS = re.compile(r"\b[0-9a-f]{6}\b|(?<!\.py:)(?<!\d)\d+")
"""Short ids and numbers, except for the line of a file where a core failed."""


def kind_of(violation: str) -> str:
    """A violation without numbers and ids, which differ from run to run."""
    return _PARTICULARS.sub("0", violation)


def shrink_alike(scenario: s.Scenario, violation: str, seconds_max: float) -> s.Scenario:
    """The shortest scenario found that fails in the same way; if no shorter one does, one that fails in any way. `scenario` must
    fail with `violation`. Each of the two searches ends after `RUNS_MAX` runs, and both when the time is up."""
    kind, end = kind_of(violation), monotonic() + seconds_max

    def fails(candidate: s.Scenario, is_kind: Callable[[str], bool]) -> bool:
        return monotonic() < end and is_kind(simulate(candidate).violation)

    short = shrink(scenario, lambda each: fails(each, lambda found: kind_of(found) == kind), RUNS_MAX)
    return short if short != scenario else shrink(scenario, lambda each: fails(each, bool), RUNS_MAX)


def shrink(
    scenario: s.Scenario,
    fails: Callable[[s.Scenario], bool] = lambda each: not simulate(each).is_exact,
    runs_max: int = RUNS_MAX,
) -> s.Scenario:
    """The shortest failing scenario found within `runs_max` runs; `scenario` itself must fail."""
    left = runs_max
    found = True
    while found:
        found = False
        for candidate in _simpler(scenario):
            if left <= 0:
                return scenario
            left -= 1
            if fails(candidate):
                scenario, found = candidate, True
                break
    return scenario


def _simpler(scenario: s.Scenario) -> Iterator[s.Scenario]:
    """Simpler scenarios, the most reduced first."""
    yield from _fewer_faults(scenario)
    for job in reversed(range(len(scenario.jobs))):
        if len(scenario.jobs) > 1:
            yield without_job(scenario, job)
    for host in reversed(range(scenario.hosts)):
        if scenario.hosts > HOSTS_MIN:
            yield without_host(scenario, host)
    yield from _shorter_faults(scenario)
    yield from _plainer(scenario)


def _fewer_faults(scenario: s.Scenario) -> Iterator[s.Scenario]:
    """Without a half, a quarter, … of the faults, down to without each single one."""
    faults = scenario.faults
    size = len(faults) // 2
    while size:
        for start in range(0, len(faults), size):
            yield _with_faults(scenario, (*faults[:start], *faults[start + size :]))
        size //= 2
    if len(faults) == 1:
        yield _with_faults(scenario, ())


def _with_faults(scenario: s.Scenario, faults: tuple[s.AnyFault, ...]) -> s.Scenario:
    return msgspec.structs.replace(scenario, faults=faults)


def _shorter_faults(scenario: s.Scenario) -> Iterator[s.Scenario]:
    faults = scenario.faults
    for at, fault in enumerate(faults):
        if fault.until_us - fault.at_us > 200 * s.MS:
            half = msgspec.structs.replace(fault, until_us=(fault.at_us + fault.until_us) // 2)
            yield _with_faults(scenario, (*faults[:at], half, *faults[at + 1 :]))
    last = max((max(fault.at_us, fault.until_us) for fault in faults), default=s.CALM_US)
    if last + s.SECOND < scenario.trouble_us:
        yield msgspec.structs.replace(scenario, trouble_us=last + s.SECOND // 2)


def _plainer(scenario: s.Scenario) -> Iterator[s.Scenario]:
    plain: tuple[tuple[str, object], ...] = (
        ("weather", Weather()),
        ("skews", (0,)),
        ("traffic", msgspec.structs.replace(scenario.traffic, rotate_us=0)),
        ("traffic", msgspec.structs.replace(scenario.traffic, late_share=0.0)),
        ("traffic", msgspec.structs.replace(scenario.traffic, lines_per_s=2.0)),
        ("parameters", QUICK),
        ("sinks", 1),
        ("jobs", tuple(msgspec.structs.replace(job, keep_us=s.KEEP_US) for job in scenario.jobs)),
    )
    for name, value in plain:
        if getattr(scenario, name) != value:
            yield msgspec.structs.replace(scenario, **{name: value})


def without_job(scenario: s.Scenario, job: int) -> s.Scenario:
    """Without that job; the jobs after it move up."""
    faults: list[s.AnyFault] = []
    for fault in scenario.faults:
        if isinstance(fault, s.Change | s.Tune | s.Stop | s.Start | s.Crash | s.Bug):
            if fault.job == job and (not isinstance(fault, s.Crash) or fault.target in ("master", "circle")):
                continue
            fault = msgspec.structs.replace(fault, job=max(0, fault.job - (fault.job >= job)))
        faults.append(fault)
    jobs = (*scenario.jobs[:job], *scenario.jobs[job + 1 :])
    readers = tuple(
        msgspec.structs.replace(each, job=each.job - (each.job > job))
        for each in scenario.readers
        if each.job != job
    )
    return msgspec.structs.replace(scenario, jobs=jobs, faults=tuple(faults), readers=readers)


def without_host(scenario: s.Scenario, host: int) -> s.Scenario:
    """Without that host and its faults; the hosts after it move up."""
    faults: list[s.AnyFault] = []
    for fault in scenario.faults:
        if isinstance(fault, s.Cut):
            hosts = tuple(each - (each > host) for each in fault.hosts if each != host)
            if hosts:
                faults.append(msgspec.structs.replace(fault, hosts=hosts))
        elif isinstance(fault, s.Change | s.Tune):
            faults.append(msgspec.structs.replace(fault, host=max(0, fault.host - (fault.host >= host))))
        elif isinstance(fault, s.Crash) and fault.target != "host":
            faults.append(msgspec.structs.replace(fault, host=0))
        elif isinstance(fault, s.Storm | s.SinkCrash) or (isinstance(fault, s.Bug) and fault.host < 0):
            faults.append(fault)
        elif isinstance(fault, s.Share) and fault.other == host:
            pass
        elif isinstance(fault, s.Share) and fault.host != host:
            moved = fault.host - (fault.host > host), fault.other - (fault.other > host)
            faults.append(msgspec.structs.replace(fault, host=moved[0], other=moved[1]))
        elif fault.host != host:
            faults.append(msgspec.structs.replace(fault, host=fault.host - (fault.host > host)))
    skews = scenario.skews
    if len(skews) > host:
        skews = (*skews[:host], *skews[host + 1 :]) or (0,)
    readers = tuple(
        msgspec.structs.replace(each, host=each.host - (each.host > host))
        for each in scenario.readers
        if each.host != host
    )
    older = tuple(each - (each > host) for each in scenario.older if each != host)
    return msgspec.structs.replace(
        scenario, hosts=scenario.hosts - 1, faults=tuple(faults), skews=skews, readers=readers, older=older
    )
