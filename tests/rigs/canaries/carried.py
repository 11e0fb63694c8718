"""How the rule Moving is broken."""

from __future__ import annotations

from typing import Any

from elf.agent.simulator.scenario.scenario import Scenario
from elf.jobmaster.delivery import alert_outbox
from elf.jobmaster.delivery.sink_queue import SinkQueue, Target
from tests.rigs.canaries import meshes
from tests.soak.alerted import with_alert

_Alerts = alert_outbox._Sink


def alerted(seed: int) -> Scenario:
    return with_alert(meshes.carried(seed))


def unrecorded(*_: object) -> list[Any]:
    """The agent that takes over records nothing of what the one before has delivered."""
    return []


def forgotten(former: SinkQueue | None, target: Target) -> SinkQueue:
    """A sink that moves takes nothing along."""
    return former if former is not None and former.target == target else SinkQueue(target, is_late=True)


def from_its_own_cursor(node: bytes, taken: int = 0) -> Any:
    """The agent that takes over hears nothing of the one before."""
    return _Alerts(node)
