"""Other processes that ran, or run, with this node's key: the evidence for them, and the consequences.

    evidence                                                 consequence
    -------------------------------------------------------  -------------------------------------------------------------------
    an advert with this node's id and signature, of another  that process ran later than the last life in this state folder. Its
    process, in a life above the folder's last one           promises are not recorded here, so the records here are obsolete
    an advert of an earlier life, where the folder has none  the disk was lost: the files that this start skips
                                                             (`elf.agent.files.first_seen`) may hold lines that count in the
                                                             mesh, so windows may lack lines
    a claim about this node's id, of a later life            other nodes prefer it to this life: restart in a life above it

The host takes the process `found` and checks whether it lives. If not, the host restarts the node: in a life above that of the
other process, and without its records if these are obsolete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from elf.errors import PeerError
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import AgentAdvert, decode_agent
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact, Item
from elf.srt.overlay.overlay import Overlay

HEARSAY_S = 60.0
"""An unsigned claim of a neighbour makes a process restart once in this time at most; an advert is proof, since only the key's
holder can sign it."""
AHEAD_MAX = 86_400
"""Seconds by which a claimed life may be above this host's clock: a clock may have been a day ahead."""


def contact_of(node: NodeId, overlay: Overlay, directory: Directory) -> Contact | None:
    """The process of a node that the overlay knows, or else the one in its advert."""
    contact = overlay.member(node)
    item = directory.get("agent", node)
    if item is None or (contact is not None and contact.instance):
        return contact
    return _advertised(node, decode_agent(item))


def _advertised(node: NodeId, advert: AgentAdvert) -> Contact:
    return Contact(node, advert.incarnation, advert.address, 0, advert.instance)


class Rival(msgspec.Struct, frozen=True):
    """contact: the other process, in its latest known life. is_lost: this node's records are older than that life."""

    contact: Contact
    is_lost: bool


def is_above(rival: Rival, life: int, clock_s: float) -> bool:
    """Whether a process in that `life` must restart in a life above that of a rival that is gone. A life is the clock's seconds
    at the start, or a little more after several restarts within a second. So a claim far above the clock is ignored; otherwise a
    neighbour's false claims could use up the numbers."""
    claimed = rival.contact.incarnation
    return rival.is_lost or life <= claimed < max(life, clock_s) + AHEAD_MAX


class Rivals:
    """`last`: the latest life recorded on the node's disk when it started; 0 for none."""

    def __init__(self, me: Contact, verify: Callable[[Item], bool]) -> None:
        self._me, self._verify = me, verify
        self.last = 0
        self.found: Rival | None = None
        self.was_here = False
        """The disk has no record of a life, but others know an earlier one: the disk was lost."""

    def read(self, items: Iterable[Item]) -> None:
        """Check items of a directory message, whether newer than the directory's own or not. O(items)."""
        for item in items:
            if item.kind == "agent" and item.name == self._me.id and item.stamp[:1] > (self.last,):
                self._look_at(item)

    def _look_at(self, item: Item) -> None:
        try:
            advert = decode_agent(item)
        except PeerError:
            return
        if advert.instance in (0, self._me.instance) or not self._verify(item):
            return
        if self.last or advert.incarnation >= self._me.incarnation:
            self._note(Rival(_advertised(item.name, advert), is_lost=True))
        elif not advert.until_us:
            self.was_here = True

    def hear(self, claim: Contact) -> None:
        """A claim of a neighbour about this node, in a later life than this one or as another process."""
        self._note(Rival(claim, is_lost=False))

    def _note(self, rival: Rival) -> None:
        """Keep the strongest evidence: signed before unsigned, and later lives before earlier ones."""
        found = self.found
        if found is None or _rank(rival) > _rank(found):
            self.found = rival

    def take(self) -> Rival | None:
        found, self.found = self.found, None
        return found


def _rank(rival: Rival) -> tuple[bool, int]:
    return rival.is_lost, rival.contact.incarnation
