"""Messages between an operator's agent and a job's master about a change of the job."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Count, Item, Message, ShortText

MISSING_MAX = 16
"""Agents that a report names."""


class ChangeRequest(Message, frozen=True, array_like=True, gc=False):
    """An operator's change of a job: the job's next item, signed. Routed to the job's id, whose master judges it."""

    job: JobId
    number: Count
    item: Item


class ChangeReport(Message, frozen=True, array_like=True, gc=False):
    """The master's verdict: whether the change is taken. next, version: the number that the next change must have, and the
    version that it must name as the one that it changes. items: the job's present item, if the change is refused. agents,
    confirmed: once the change is in force, how many agents the job expects, and how many of them have reported under it; 0, 0
    before. missing: some of those that have not. unread_us: if it is refused because windows that are not final would need lines
    that cannot be read again everywhere: the start of the oldest; else 0. waits: it is taken, and waits until agents have read
    lines again for the change before."""

    job: JobId
    number: Count
    taken: bool
    next: Count
    version: ShortText
    items: tuple[Item, ...] = ()
    agents: Count = 0
    confirmed: Count = 0
    missing: Annotated[tuple[NodeId, ...], Meta(max_length=MISSING_MAX)] = ()
    unread_us: Count = 0
    waits: bool = False
