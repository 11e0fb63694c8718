"""Applies revocations of certificates to a node's directory."""

from __future__ import annotations

from collections.abc import Iterable

from elf.jobmaster.directory.directory import Directory, body_digest
from elf.jobmaster.directory.job_spec import decode_job
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item, Micros
from elf.srt.messages.revocation import revoked_agent
from elf.srt.messages.signers import OF_JOBS, job_in, job_of

REVOKED = "revoked"
"""Kind of the notice that says `OWN`."""
OWN = (
    "the certificate of this agent was revoked: no agent of the mesh accepts its messages, and its lines are not counted; "
    "give it new keys (elf keys issue) and a new state_dir, or leave it stopped"
)


class Voids:
    """A timer: when the next of this node's items counts no more. `deadline` 0: at once."""

    def __init__(self) -> None:
        self.deadline: Micros | None = None

    def look(self, directory: Directory) -> None:
        """Look at all items of the directory. O(items)."""
        self.deadline = None
        for kind in OF_JOBS:
            self.heard(directory, directory.items(kind))

    def heard(self, directory: Directory, items: Iterable[Item]) -> None:
        """Look at items that have come."""
        found = [directory.signers.void_us(item) for item in items if item.kind in OF_JOBS]
        times = [at for at in (*found, self.deadline) if at is not None]
        self.deadline = min(times, default=None)

    def is_due(self, now: Micros) -> bool:
        return self.deadline is not None and now >= self.deadline


def apply_revocations(directory: Directory, agents: set[NodeId], now: Micros) -> set[str]:
    """Drop the items that were signed under revoked certificates; return their kinds. O(items).

    Rule Revoked*: in place of a job's spec that counts no more comes the newest of those in the same life of the job that other
    operators have signed, if there is one; otherwise the job ends. It ends too if the spec had stopped it.

    Adds to `agents` the agents that will not come back: those whose adverts were dropped, and those that revocations name.
    Revocations stay in the directory and on its disk for good.
    """
    dropped = directory.drop(lambda item: is_over(directory, item, now))
    for item in dropped:
        if item.kind == "job" and (earlier := newest_former(directory, item)) is not None:
            directory.put(earlier, now)
    agents.update(item.name for item in dropped if item.kind == "agent")
    agents.update(agent for item in directory.items("revoked") if (agent := revoked_agent(item)))
    return {item.kind for item in dropped}


def is_over(directory: Directory, item: Item, now: Micros) -> bool:
    """Whether an item that was accepted counts no more."""
    void_us = directory.signers.void_us(item)
    return void_us is not None and now >= void_us


def newest_former(directory: Directory, void: Item) -> Item | None:
    """What takes the place of a job's item that counts no more."""
    spec = decode_job(void)
    former = [job_in(item) for item in directory.items("former") if job_of(item) == void.name]
    same = [item for item in former if decode_job(item).since_us == spec.since_us]
    return None if spec.stopped else max(same, key=lambda item: (item.stamp, body_digest(item)), default=None)
