"""Meshes whose sinks have their receivers elsewhere, at two or three agents (rule Moving), from a generator of their own."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from elf.agent.simulator.scenario.scenario import Restore, Scenario, Share, SinkCrash, Twin
from tests.rigs.canaries import meshes
from tests.soak.alerted import with_alert

OTHERS = (SinkCrash, Twin, Restore, Share)
"""These sinks are never away; what two processes with one key deliver is no rule's business."""


def carried(plain: Scenario, share: float = 1 / 20) -> Scenario:
    """For that share of seeds: the plain scenario without faults of sinks and keys, or one in which agents with the sink die."""
    rng = Random(plain.seed ^ 0x5EED_0215)
    if rng.random() >= share:
        return plain
    if rng.random() < 0.5:
        scenario = meshes.carried(plain.seed)
        return with_alert(scenario, for_s=rng.choice((0, 2))) if rng.random() < 0.5 else scenario
    faults = tuple(fault for fault in plain.faults if not isinstance(fault, OTHERS))
    carriers = tuple(rng.sample(range(plain.hosts), min(plain.hosts, rng.choice((2, 3)))))
    return replace(plain, faults=faults, finals_only=True, beside=False, carriers=carriers)
