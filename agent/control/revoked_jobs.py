"""What becomes of a job whose operator's certificate was revoked, as text; and the agents that were revoked."""

from __future__ import annotations

from collections.abc import Mapping

from elf.agent.node.revoked import newest_former
from elf.errors import PeerError
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, decode_job
from elf.jobmaster.values.conversion import timestamp_text
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Item, Micros
from elf.srt.messages.parameters import SECOND
from elf.srt.messages.revocation import Revocation, revoked_agent
from elf.srt.messages.typed import parse


def revoked_text(directory: Directory, item: Item, now: Micros) -> str:
    """Until when the job goes on, what happens then, and what to do; "" if its signer's certificate holds. O(items) if not."""
    spec, until_us = decode_job(item), directory.signers.void_us(item)
    if until_us is None or spec.has_ended(now):
        return ""
    return (
        f"version {spec.versions[-1].digest} was signed by {_revoked_name(directory, item)}, whose keys were revoked; at "
        f"{timestamp_text(until_us)} UTC {_then(directory, item)}, unless another operator signs it: elf job show {spec.name} "
        f"--output file > FILE, elf job update {spec.name} -f FILE --keys BUNDLE"
    )


def _then(directory: Directory, item: Item) -> str:
    former = newest_former(directory, item)
    if former is None or directory.signers.void_us(former) is not None:
        return "the job ends"
    spec = decode_job(former)
    return f"it falls back to version {spec.versions[-1].digest}, signed by {signed_by(spec) or 'another operator'}"


def signed_by(spec: JobSpec) -> str:
    """The operator who signed the spec; "" if it does not say."""
    return spec.changes[-1].by if spec.changes else ""


def revoked_agents(directory: Directory) -> list[tuple[str, Micros]]:
    """The agents whose keys were revoked, and when. O(revocations)."""
    bodies = [parse(item.body, Revocation) for item in directory.items("revoked") if revoked_agent(item)]
    return [(each.name, each.revoked_s * SECOND) for each in bodies]


def _revoked_name(directory: Directory, item: Item) -> str:
    revocation = directory.get("revoked", directory.signers.serial(item))
    try:
        return parse(revocation.body, Revocation).name if revocation is not None else "an operator"
    except PeerError:
        return "an operator"


LEFT_MAX = 100
"""Agents that have left, in one answer: more than leave within a window of most jobs."""


def left_agents(
    adverts: Mapping[NodeId, AgentAdvert], directory: Directory, source: str
) -> tuple[tuple[str, int], ...]:
    """Agents of a source that have left for good, and those whose keys were revoked, of whatever source; and when. The last
    ones first. O(agents)."""
    left = [
        (each.name, each.until_us) for each in adverts.values() if each.until_us and source in each.sources
    ]
    left += revoked_agents(directory)
    return tuple(sorted(left, key=lambda each: each[1], reverse=True)[:LEFT_MAX])
