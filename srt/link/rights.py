"""Which messages a peer may send, and on which channel: the last check of a message before a node sees it."""

from __future__ import annotations

from typing import Any

from elf.errors import PeerError
from elf.srt.codec.wire import KINDS
from elf.srt.messages import messages as m
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import Message

OF_JOBS = frozenset(kind.type for kind in KINDS if "job" in kind.type.__struct_fields__)
"""Messages for the seats of jobs; only these may be routed or sent over a link."""
_SIGNED = (m.Ping, m.Pong, m.ProbeFor, m.LeavesRequest, m.LeavesReport, m.JoinReply)
"""Sent by the node that they name as their sender, never forwarded."""
_FEW = frozenset((*_SIGNED, m.Frame, m.Routed, m.Piece))


def job_of(message: Any) -> JobId | None:
    """The job of a message, also of one that is routed; None for messages of the overlay or directory. O(1)."""
    inner: Any = message.message if type(message) is m.Routed else message
    return inner.job if type(inner) in OF_JOBS else None


def check_datagram(message: Any, source: NodeId) -> None:
    """Raises PeerError for a message that no correct node sends as a datagram. O(1)."""
    kind = type(message)
    if kind not in _FEW:
        return
    if kind is m.Frame:
        if message.message is not None and type(message.message) is not m.Piece:
            raise PeerError(f"Frame: a {type(message.message).__name__} in it, only pieces are allowed")
        if bool(message.sequence) != (message.message is not None):
            raise PeerError("Frame: a number without a message, or a message without a number")
    elif kind is m.Routed:
        if type(message.message) not in OF_JOBS:
            raise PeerError(f"Routed: a {type(message.message).__name__} in it, which is never routed")
    elif kind is m.Piece:
        raise PeerError("Piece: allowed only in a link's frame")
    elif message.sender.id != source:
        raise PeerError(
            f"{kind.__name__}: it comes from {short(source)} and names {short(message.sender.id)} as sender"
        )


def check_linked(message: Message) -> None:
    """Raises PeerError for a message that may not come over a link. O(1)."""
    if type(message) not in OF_JOBS:
        raise PeerError(f"{type(message).__name__}: not allowed on a link")
