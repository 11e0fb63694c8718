"""The audit list: who asked for which change of a job, at which agent, and what became of it. Pure.

Each agent lists the requests that it took, as items of the directory: so all agents hold all lists, on their disks too, and merge
them as all items. An item's name is the agent's id and a slot, its stamp the time of the request. Agents refuse an item that
another agent signed, or with a higher slot: no agent can list more than `SLOTS` requests of at most `BYTES_MAX`, nor in another
agent's name.

An agent whose slots are full overwrites the oldest request of the operator who has the most there, so that one operator cannot
push out what others did. A request that is refused again is listed once, with a count (`times`). Of requests without a valid
signature, whose signer is unknown, only the count for each reason is listed.

What a job's item and its history have (values, control lines, which changes were lost) is not listed again. number and version
name the change there; the version is listed too since a job's history ends when the job is started again.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.known_schedule import body_of
from elf.srt.messages.ids import ID_BYTES, NodeId
from elf.srt.messages.messages import Item, Micros, ShortText

SLOTS = 64
"""Requests that one agent lists: 10 KiB, 30 KiB with signatures; 280 KiB if all texts are as long as they may be."""
BYTES_MAX = 3 << 10
REASON_MAX = 200
TIME_US_MAX = 253_402_300_800_000_000
"""The year 9999, the last that can be printed."""
SERIAL_BYTES = 16

What = Literal["start", "update", "set", "rollback", "stop", "try", "promote", "abort", "unsigned"]
Outcome = Literal["taken", "refused", "unknown"]


class Audited(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request at an agent to change a job.

    what: "unsigned" for a count of requests without a valid signature, with the reason of `elf.srt.security.certificates.Reason`.
    job: for a trial, the job whose change it tries. number, version: of the spec that was asked for. outcome: "unknown" if the
    agent does not know whether a master took it. operator, serial: of the certificate that signed it; empty in a mesh without
    keys."""

    what: What
    job: Annotated[str, Meta(max_length=200)]
    number: Annotated[int, Meta(ge=0, lt=1 << 62)]
    version: ShortText
    outcome: Outcome
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""
    operator: ShortText = ""
    serial: Annotated[bytes, Meta(max_length=SERIAL_BYTES)] = b""
    times: Annotated[int, Meta(ge=1, lt=1 << 62)] = 1


def decode_audited(item: Item) -> Audited:
    """The request of an "audit" item. Raises PeerError, also for a slot or a time that there is not."""
    if len(item.name) != ID_BYTES + 1 or item.name[-1] >= SLOTS:
        raise PeerError("directory: an audit item of no agent or slot; it is ignored")
    if len(item.stamp) != 1 or item.stamp[0] >= TIME_US_MAX:
        raise PeerError("directory: an audit item without a time; it is ignored")
    return body_of(item, Audited, BYTES_MAX)


def agent_of(item: Item) -> NodeId:
    """The agent that lists it."""
    return item.name[:ID_BYTES]


def audit_item(directory: Directory, me: NodeId, audited: Audited, now: Micros) -> Item:
    """The unsigned item with which this agent lists a request. O(SLOTS)."""
    mine = _mine(directory, me)
    same = [slot for slot, (_, each) in mine.items() if _is_again(each, audited)]
    slot, at_us = (same or [_free_slot(mine, audited.operator)])[0], max(0, now)
    if same:
        audited = replace(audited, times=mine[slot][1].times + 1)
    if slot in mine:
        at_us = max(at_us, mine[slot][0] + 1)
    name = me + bytes((slot,))
    return Item("audit", name, (min(at_us, TIME_US_MAX - 1),), _encoder.encode(audited))


def _mine(directory: Directory, me: NodeId) -> dict[int, tuple[Micros, Audited]]:
    """Slot -> what it has, and since when."""
    held = ((slot, directory.get("audit", me + bytes((slot,)))) for slot in range(SLOTS))
    return {slot: (item.stamp[0], decode_audited(item)) for slot, item in held if item is not None}


def _is_again(held: Audited, new: Audited) -> bool:
    return new.outcome == "refused" and replace(held, times=1, number=0) == replace(new, times=1, number=0)


def _free_slot(mine: dict[int, tuple[Micros, Audited]], operator: str) -> int:
    free = [slot for slot in range(SLOTS) if slot not in mine]
    if free:
        return free[0]
    counts = Counter([operator, *(each.operator for _, each in mine.values())])
    most = max(counts[each.operator] for _, each in mine.values())
    return min((at_us, slot) for slot, (at_us, each) in mine.items() if counts[each.operator] == most)[1]


_encoder = msgspec.msgpack.Encoder()
