"""An idle agent is woken for what is due, and for nothing else."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from elf.agent.node.mesh_node import MeshNode
from elf.agent.simulator.world.world import World
from elf.srt.messages.parameters import SECOND, Parameters


def test_an_answered_probe_wakes_nobody() -> None:
    world = World(1, Parameters())
    actors = [world.add_host(f"web{number}") for number in range(4)]
    world.start_warm(actors)
    stale = 0
    plain = MeshNode.receive

    def receive(node: MeshNode, *given: Any) -> Any:
        nonlocal stale
        out = plain(node, *given)
        deadlines = [core.deadline for core in node._unseated() if core.deadline is not None]
        assert node.deadline is not None
        stale += node.deadline < min(deadlines)
        return out

    with patch.object(MeshNode, "receive", receive):
        world.run_until(20 * SECOND)
    assert world.delivered > 100
    assert stale == 0
