"""Other processes that ran, or run, with this node's key: what the node has heard of them, and what follows.

    heard                                                    follows
    -------------------------------------------------------  -------------------------------------------------------------------
    an advert under the own id, signed with the own key, of  that process had the node's name later than this folder knows:
    another process, in a life above the folder's last one   what it promised is not here, so what is here is lost
    an advert of an earlier life, where the folder has none  the disk was lost: what is in the logs now was not there before
                                                             the beginning (`elf.agent.files.first_seen`),
                                                             so windows may lack lines
    a claim about the own id, of a later life                its word is above this one's everywhere: begin anew above it

The surroundings take what is `found` and look whether that process lives; if it does not, they begin the node anew, as a
restart: in a life above, everywhere, and without its records where these are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from elf.errors import PeerError
from elf.jobmaster.directory.job_spec import decode_agent
from elf.srt.messages.messages import Contact, Item

HEARSAY_S = 60.0
"""A neighbour's word alone makes a process begin anew at most so often; only the key's holder can sign an advert."""
AHEAD_MAX = 86_400
"""Clocks that were a day ahead."""


class Rival(msgspec.Struct, frozen=True):
    """contact: the other process, in the latest life heard of. is_lost: the own records are older than that life."""

    contact: Contact
    is_lost: bool


def is_above(rival: Rival, life: int, clock_s: float) -> bool:
    """Whether a process in that `life` has to go above a rival that is gone. Lives are the clock's seconds or, after restarts in
    one second, a little more: nobody is pushed to where numbers end by a neighbour's mere word."""
    claimed = rival.contact.incarnation
    return rival.is_lost or life <= claimed < max(life, clock_s) + AHEAD_MAX


class Rivals:
    """`last`: the latest life that the node's disk knew when it started; 0 where it knew none."""

    def __init__(self, me: Contact, verify: Callable[[Item], bool]) -> None:
        self._me, self._verify = me, verify
        self.last = 0
        self.found: Rival | None = None
        self.was_here = False
        """The disk knew no life, and others know an earlier one: it was lost."""

    def read(self, items: Iterable[Item]) -> None:
        """Of a message of the directory, newer than what is held or not. O(items)."""
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
            rival = Contact(item.name, advert.incarnation, advert.address, 0, advert.instance)
            self._note(Rival(rival, is_lost=True))
        elif not advert.until_us:
            self.was_here = True

    def hear(self, claim: Contact) -> None:
        """A claim of a neighbour about this node, of a later life than this one or of another process."""
        self._note(Rival(claim, is_lost=False))

    def _note(self, rival: Rival) -> None:
        """What is signed counts before what is only said, and later lives before earlier ones."""
        found = self.found
        if found is None or _rank(rival) > _rank(found):
            self.found = rival

    def take(self) -> Rival | None:
        found, self.found = self.found, None
        return found


def _rank(rival: Rival) -> tuple[bool, int]:
    return rival.is_lost, rival.contact.incarnation
