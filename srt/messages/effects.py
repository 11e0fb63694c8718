"""What a core asks its surroundings to do. A core's `step` and `tick` return a list of these, in order.

A core never does IO. Its surroundings (a simulated or a real node) perform the list from first to last, and what stands
behind a `Write` leaves only when that write is durable. What one core asks for later waits
behind its own earlier writes too; other cores' lists do not wait.
"""

from __future__ import annotations

from typing import Any

import msgspec

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Message, Position, Slot


class Send(msgspec.Struct, frozen=True, gc=False):
    """A datagram: it may be lost, repeated, delayed or overtaken."""

    to: NodeId
    message: Message


class Post(msgspec.Struct, frozen=True, gc=False):
    """A message for the link to `to`: reliable and in order, as long as neither side restarts."""

    to: NodeId
    message: Message


class Route(msgspec.Struct, frozen=True, gc=False):
    """A datagram to the live node whose id is closest to `key`; every hop sees it."""

    key: bytes
    message: Message


class Write(msgspec.Struct, frozen=True, gc=False):
    """A record for the node's disk. `key` names what it belongs to, (kind, job or b""); records of a key are read back in
    order. `replace`: what was written under the key before is no longer needed."""

    key: tuple[str, bytes]
    record: Any
    replace: bool = False
    encoded: bytes = b""
    """As bytes, where whoever asked for it is answerable for their making."""


class Recall(msgspec.Struct, frozen=True, gc=False):
    """What the disk holds of that job, please; all that was written of it is durable. Answered by `MeshNode.recalled`."""

    job: JobId


class Read(msgspec.Struct, frozen=True, gc=False):
    """Read the job's source on from `positions`; answered by a `Cut` event.

    positions: the offset of each file whose reading starts or continues there; files the source has and this does not name
    begin at the place where event time first reached `since_us`. Rows before `since_us` are left out.

    lane: 0 is the live one. Another is a stretch to be read again: of the files in `ends` only, each up to its end there and
    never past it (a place already past the end is the end); its spans carry the lane's number, and CLOSED at the end.
    """

    job: JobId
    request: int
    schedule: int
    positions: dict[Slot, Position]
    since_us: int
    lane: int = 0
    ends: dict[Slot, int] = msgspec.field(default_factory=dict)


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something an operator may want to know: `kind` is counted, `text` is told once per kind, peer and interval."""

    kind: str
    text: str
    peer: NodeId = b""


Effect = Send | Post | Route | Write | Read | Notice
