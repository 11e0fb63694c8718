"""The protocol of a Parquet sink and its writer process: length-prefixed MessagePack frames over a pipe.

Request: `Schema` once per (job, version), then `PaneFrame`s, each with its `PartFrame`s; or one `CompactFrame`; or `ReadFrame`s.
The end of input starts the work.
Answer: a `Done` for each durable file (and for each pane that needs no write), a `Withdrawn` for each folder that is read, or a
`Failed`, which is the last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from elf.jobmaster.windows.result import Lines, Revision, StateColumn

_LENGTH = struct.Struct("<I")


MERGING = "--merging"
"""The argument of a writer process that also merges panes into longer ones."""


class Schema(msgspec.Struct, frozen=True, tag=True):
    """The common part of all panes of one version of a job. The panes that follow refer to it by `number`."""

    number: int
    directory: str
    job: str
    version: str
    columns: tuple[StateColumn, ...]
    plan: bytes
    recipe: bytes
    elf_version: str


class PaneFrame(msgspec.Struct, frozen=True, tag=True):
    """One pane; `PartFrame`s with its values follow. `node` is that of the revision, in hex."""

    number: int
    schema: int
    start: int
    end: int
    status: str
    epoch: int
    node: str
    n: int
    agents_reporting: int
    agents_expected: int
    lines: Lines
    digest: str

    @property
    def revision(self) -> Revision:
        return (self.epoch, int(self.node, 16), self.n)


class PartFrame(msgspec.Struct, frozen=True, tag=True):
    """Values of some groups of the last `PaneFrame`: one array for each state column. Decimals are text.

    more: the next part begins with the same groups, and has more of their members.
    """

    values: msgspec.Raw
    more: bool = False


class Level(msgspec.Struct, frozen=True):
    """The panes of days that ended before `before` (microseconds UTC) are merged into panes of `pane_us`: of all jobs but those
    that have levels of their own, or of `job`."""

    pane_us: int
    before: int
    job: str | None = None


class CompactFrame(msgspec.Struct, frozen=True, tag=True):
    """Compact a lake: the hours that ended before `older_than` (microseconds UTC), and the days that ended before `days_before`,
    a day earlier by default. First its days expire whose panes ended before `expire_before`, and old days get the longer panes of
    `levels`."""

    directory: str
    older_than: int
    days_before: int | None = None
    expire_before: int | None = None
    levels: tuple[Level, ...] = ()


class ReadFrame(msgspec.Struct, frozen=True, tag=True):
    """Answer which panes of a day folder were withdrawn."""

    folder: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """panes: these are durable. removed: the number of files that compaction has removed. left_out: the number of panes that are
    not stored, since the windows of their days are longer by now."""

    panes: tuple[int, ...] = ()
    removed: int = 0
    left_out: int = 0


class Withdrawn(msgspec.Struct, frozen=True, tag=True):
    """Starts of withdrawn panes, each with the revision of its withdrawal; the node in hex."""

    folder: str
    panes: tuple[tuple[int, int, str, int], ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed, and nothing after the last `Done` is durable. errno: that of the operating system."""

    errno: int
    message: str
    path: str | None = None


Request = Schema | PaneFrame | PartFrame | CompactFrame | ReadFrame
Answer = Done | Withdrawn | Failed


def write_frame(stream: IO[bytes], frame: Request | Answer | bytes) -> None:
    """Write a frame, which may be encoded already. Raises BrokenPipeError if the other process has ended."""
    body = frame if isinstance(frame, bytes) else msgspec.msgpack.encode(frame)
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)


def read_frames(stream: IO[bytes], kind: Any) -> Iterator[Any]:
    """The frames up to the end of the stream, decoded as `kind`. An incomplete last frame (its writer died) is left out."""
    decoder = msgspec.msgpack.Decoder(kind)
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        body = stream.read(length)
        if len(body) < length:
            return
        yield decoder.decode(body)
