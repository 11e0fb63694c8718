"""Applies revocations of certificates to a node's directory."""

from __future__ import annotations

from collections.abc import Callable

from elf.jobmaster.directory.directory import Directory
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item
from elf.srt.messages.revocation import revoked_agent

REVOKED = "revoked"
"""Kind of the notice that says `OWN`."""
OWN = (
    "the certificate of this agent was revoked: no agent of the mesh accepts its messages, and its lines are not counted; "
    "give it new keys (elf keys issue) and a new state_dir, or leave it stopped"
)


def apply_revocations(
    directory: Directory, is_revoked: Callable[[Item], bool], agents: set[NodeId]
) -> set[str]:
    """Drop the items that were signed under revoked certificates; return their kinds. Jobs among them end. O(items).

    Adds to `agents` the agents that will not come back: those whose adverts were dropped, and those that revocations name.
    Revocations stay in the directory and on its disk for good.
    """
    dropped = directory.drop(is_revoked)
    agents.update(item.name for item in dropped if item.kind == "agent")
    agents.update(agent for item in directory.items("revoked") if (agent := revoked_agent(item)))
    return {item.kind for item in dropped}
