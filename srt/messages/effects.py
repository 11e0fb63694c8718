"""Effects: actions that a core requests from its host. A core's `step` and `tick` return a list of them, in order.

A core does no IO. Its host (a real or a simulated node) performs the list from first to last, and delays the effects after a
`Write` until that write is durable. Later lists of the same core wait for its earlier writes too; lists of other cores do not.
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
    """A message on the link to `to`: reliable and in order while neither side restarts."""

    to: NodeId
    message: Message


class Route(msgspec.Struct, frozen=True, gc=False):
    """A datagram to the live node whose id is closest to `key`; every hop sees it."""

    key: bytes
    message: Message


class Write(msgspec.Struct, frozen=True, gc=False):
    """A record for the node's disk. `key`: (kind, job or b""); records of one key are read back in order. `replace`: earlier
    records of the key are no longer needed."""

    key: tuple[str, bytes]
    record: Any
    replace: bool = False
    encoded: bytes = b""
    """The record as bytes, if the core's caller has encoded it; an error in encoding is then the fault of that job alone."""


class Recall(msgspec.Struct, frozen=True, gc=False):
    """Read all records of that job from the disk. All its earlier writes are durable. Answered by `MeshNode.recalled`."""

    job: JobId


class Read(msgspec.Struct, frozen=True, gc=False):
    """Continue to read the job's source at `positions`; answered by a `Cut` event.

    positions: the offset at which reading of each file starts or continues. Files of the source without a position begin where
    event time first reached `since_us`. Rows before `since_us` are left out.

    lane: 0 is the live one. Any other lane is a stretch to be read again: only the files in `ends`, each up to its end there and
    never past it (a position past the end counts as the end). Its spans carry the lane's number, and CLOSED at the end.

    due_us: answer at the first beat at which the watermark has reached this, or sooner if rows take much memory; until then, or
    until another Read of the job comes, gather rows. 0: answer at once. at_line: answer as soon as there is a line, too.
    """

    job: JobId
    request: int
    schedule: int
    positions: dict[Slot, Position]
    since_us: int
    lane: int = 0
    ends: dict[Slot, int] = msgspec.field(default_factory=dict)
    due_us: int = 0
    at_line: bool = False


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something that an operator may want to know: `kind` is counted; `text` is logged once per kind, peer and interval."""

    kind: str
    text: str
    peer: NodeId = b""


Effect = Send | Post | Route | Write | Read | Notice
