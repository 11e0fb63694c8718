"""Addresses learned from messages, so that a node can be answered before the overlay or the directory knows it.

An address contains its node's key, so a false address cannot lead to another node; it costs one attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elf.errors import PeerError
from elf.srt.messages import messages as m
from elf.srt.messages.addresses import Address, parse_address
from elf.srt.messages.bounded import put_last
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact

KNOWN_MAX = 8_192
"""200 bytes each."""
_SENDERS = (m.Ping, m.Pong, m.ProbeFor, m.LeavesRequest, m.LeavesReport, m.JoinReply)


class AddressBook:
    """The address of the latest known life of each node."""

    def __init__(self) -> None:
        self._known: dict[NodeId, tuple[int, str]] = {}  # life, address; oldest first

    def hear(self, message: Any) -> None:
        """Learn the contacts in a message. O(contacts)."""
        kind = type(message)
        if kind in _SENDERS:
            self.learn(message.sender.id, message.sender.incarnation, message.sender.address)
        if kind is m.JoinMesh:
            self._learn((message.joiner, *message.known))
        elif kind is m.JoinReply:
            self._learn(message.known)
        elif kind is m.LeavesReport:
            self._learn((*message.leaves, *message.row))
        elif kind is m.ProbeFor:
            self._learn((message.target,))
        elif kind in (m.Ping, m.Pong):
            self._learn(news.contact for news in message.news)

    def _learn(self, contacts: Iterable[Contact]) -> None:
        for contact in contacts:
            self.learn(contact.id, contact.incarnation, contact.address)

    def learn(self, node: NodeId, life: int, address: str) -> None:
        """Keep the address, unless one of this life or of a later one is known. O(1)."""
        known = self._known.get(node)
        if not address or (known is not None and (life <= known[0])):
            return
        put_last(self._known, node, (life, address), KNOWN_MAX)

    def of(self, node: NodeId) -> str | None:
        known = self._known.get(node)
        return None if known is None else known[1]


def address_for(node: NodeId, text: str | None, *, needs_key: bool) -> Address | None:
    """The parsed address, if it can be that node's. O(1)."""
    if not text:
        return None
    try:
        address = parse_address(text)
    except PeerError:
        return None
    if address.key is None:
        return None if needs_key else address
    return address if address.id == node else None
