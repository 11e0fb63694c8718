"""Faults of a scenario, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.simulator.scenario.scenario import AnyFault, Scenario


def in_order(faults: Iterable[AnyFault]) -> tuple[AnyFault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_us))


def with_faults(plain: Scenario, *more: AnyFault) -> Scenario:
    """That scenario with more faults."""
    return msgspec.structs.replace(plain, faults=in_order((*plain.faults, *more)))
