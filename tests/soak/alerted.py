"""Meshes whose job has an alert, beside faults that its check understands; drawn from a generator of their own."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from elf.agent.simulator.scenario.scenario import SECOND, Scenario
from tests.rigs.canaries import meshes


def with_alert(scenario: Scenario, for_s: int = 0) -> Scenario:
    """Its job has an alert that often changes its state; no window is final without an agent."""
    job = replace(scenario.jobs[0], alert=22, alert_for_us=for_s * SECOND)
    parameters = replace(scenario.parameters, hold_us_max=60 * SECOND)
    return replace(scenario, jobs=(job,), parameters=parameters, sinks=2)


def alerted(plain: Scenario, share: float = 1 / 20) -> Scenario:
    """For that share of seeds: takeovers, lost disks, partitions, sinks that are away, or a rough network, instead of the plain
    scenario."""
    rng = Random(plain.seed ^ 0x5EED_0127)
    if rng.random() >= share:
        return plain
    mesh = rng.choice((meshes.takeovers, meshes.sinks, meshes.rough, meshes.in_pieces))
    return with_alert(mesh(plain.seed), for_s=rng.choice((0, 0, 2, 4)))
