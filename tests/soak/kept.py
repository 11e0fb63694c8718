"""Scenarios that failed once, whatever the seeds mean today: whole in the soak; in the tests, large ones with one job."""

from __future__ import annotations

from pathlib import Path

from elf.agent.simulator.scenario import scenario as s
from tests.rigs import paths
from tests.soak.shrink import without_job

KEPT = sorted((paths.GOLDEN / "simulator").glob("*.json"))
LARGE = 200 * s.SECOND
"""Virtual time of all jobs at all hosts. Beyond it a scenario takes more than a second or two of a processor."""


def whole(path: Path) -> s.Scenario:
    return s.decode(path.read_bytes())


def with_one_job(scenario: s.Scenario) -> s.Scenario:
    """The scenario with that job alone which most faults name, if it is large; all hosts and their faults stay."""
    jobs = range(len(scenario.jobs))
    if len(jobs) * scenario.hosts * scenario.trouble_us <= LARGE:
        return scenario
    named = [getattr(fault, "job", 0) for fault in scenario.faults]
    most = max(jobs, key=named.count)
    for job in reversed(jobs):
        if job != most:
            scenario = without_job(scenario, job)
    return scenario
