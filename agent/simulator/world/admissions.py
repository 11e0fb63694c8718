"""Admission at simulated processes and sinks: which of two processes with one key is admitted (`elf.srt.transport.admission`
decides).

Only keys that two processes have used are checked. A letter is a message in transit with its sender, and is checked as a
connection is in a real mesh: the receiver has to admit the sender, and the sender the receiver. While a process waits to be
admitted, its letters wait too. The letters of a refused process are lost, and the process is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from elf.agent.node.rivals import contact_of
from elf.agent.simulator.world.places import Actor, Places
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact
from elf.srt.transport.admission import CHALLENGE_S, Admission
from elf.srt.transport.handshake import Proof, TwinError

Then = Callable[[], None]


class Admissions:
    """admitted: called with each twin that is admitted. take: receives the letters that pass. refused: called with a process that
    is refused, its instance, and the process that is admitted instead."""

    def __init__(
        self,
        places: Places,
        take: Callable[[bytes, Any], None],
        refused: Callable[[Actor, int, Contact], None],
    ) -> None:
        self._places, self._take, self._refused = places, take, refused
        self._admissions: dict[tuple[bytes, int], Admission] = {}  # by place and instance
        self._waiting: dict[tuple[bytes, NodeId], list[Then]] = {}
        self.admitted: list[Callable[[Actor], None]] = []

    def admission(self, place: bytes) -> Admission:
        """The admission of a sink, or of the process that runs at a place; a new process starts with an empty one."""
        actor = self._places.process_at(place)
        instance = 0 if actor is None or actor.node is None else actor.node.instance
        admission = self._admissions.get((place, instance))
        if admission is None:
            admission = self._admissions[place, instance] = Admission(partial(self._known, actor))
        return admission

    def _known(self, actor: Actor | None, node: NodeId) -> Contact | None:
        """The contact of a node as its host knows it: from the overlay, or else from the node's advert."""
        if actor is None or actor.node is None:
            return None
        contact = contact_of(node, actor.node.overlay, actor.node.directory)
        if contact is None or not contact.instance:
            return None
        address = contact.address or self._places.actors[node].name
        return Contact(node, contact.incarnation, address, 0, contact.instance)

    def introduce(self, actor: Actor) -> None:
        """Make the process that runs now known to all sinks."""
        if actor.node is not None:
            for sink in self._places.sinks:
                self.admission(sink).ask(actor.id, proof_of(actor), "", self._now_s)

    @property
    def _now_s(self) -> float:
        return self._places.now_us / 1e6

    def arrive(self, to: bytes, sent: tuple[Actor | None, Proof | None, Any]) -> None:
        """Deliver a letter. sent: (sending process, its proof when it sent, letter); the process is None for a sink, which only
        answers processes that it knows."""
        places, (sender, proof, letter) = self._places, sent
        receiver = places.process_at(to)
        take = partial(self._take, to, letter)
        if receiver is not None and receiver.node is None:
            return
        if sender is not None and receiver is not None and receiver.id in places.twinned:
            take = partial(self._pass, sender.place, receiver, proof_of(receiver), address_of(receiver), take)
        if sender is not None and proof is not None and sender.id in places.twinned:
            self._pass(to, sender, proof, "", take)
        else:
            take()

    def _pass(self, place: bytes, who: Actor, proof: Proof, dialed: str, then: Then) -> None:
        """Call `then` once that process is admitted."""
        waiting = self._waiting.get((place, who.id))
        if waiting is not None:
            waiting.append(partial(self._pass, place, who, proof, dialed, then))
            return
        admission = self.admission(place)
        try:
            addresses = admission.ask(who.id, proof, dialed, self._now_s)
        except TwinError as error:
            self._refuse(who, proof, error)
            return
        if addresses:
            self._challenge(place, who, proof, addresses, then)
            return
        self._admitted(who)
        then()

    def _challenge(self, place: bytes, who: Actor, proof: Proof, addresses: list[str], then: Then) -> None:
        self._waiting[place, who.id] = []
        seen = [self._reached(place, who.id, address) for address in addresses]
        taken = [self._places.network.end_is_seen(who.id, place) if each else None for each in seen]
        delay = max(round(CHALLENGE_S * 1e6) if each is None else each for each in taken)
        asked = [address for address, each in zip(addresses, seen, strict=True) if each]
        self._places.after(delay, partial(self._decide, place, who, proof, asked, then))

    def _decide(self, place: bytes, who: Actor, proof: Proof, asked: list[str], then: Then) -> None:
        waiting = self._waiting.pop((place, who.id))
        found = [(address, self._reached(place, who.id, address)) for address in asked]
        answers = [(address, proof_of(actor)) for address, actor in found if actor is not None]
        try:
            self.admission(place).decide(who.id, proof, answers, self._now_s)
        except TwinError as error:
            self._refuse(who, proof, error)
        else:
            self._admitted(who)
            then()
        for each in waiting:
            each()

    def _admitted(self, who: Actor) -> None:
        if who is self._places.twins.get(who.id):
            for observer in self.admitted:
                observer(who)

    def _refuse(self, who: Actor, proof: Proof, error: TwinError) -> None:
        """Notify the refused process, if it still runs."""
        if who.node is not None and who.node.instance == proof.instance:
            rival = Contact(who.id, 0, error.at, 0, error.instance)
            delay = self._places.network.end_is_seen(who.id, who.place)
            self._places.after(delay or 0, partial(self._refused, who, proof.instance, rival))

    # Which processes live, and which are admitted.

    def _reached(self, place: bytes, node: NodeId, address: str) -> Actor | None:
        """The process that answers `place` from that address; None if none does."""
        for actor in (self._places.actors[node], self._places.twins.get(node)):
            if actor is not None and address_of(actor) == address and actor.node is not None:
                network = self._places.network
                is_apart = network.separates(place, actor.place) or network.separates(actor.place, place)
                return None if actor.is_paused or is_apart else actor
        return None

    def lives(self, rival: Contact, asker: Actor) -> bool:
        found = self._reached(asker.place, asker.id, rival.address or self._places.actors[asker.id].name)
        return found is not None and found.node is not None and found.node.instance == rival.instance

    def is_in(self, actor: Actor) -> bool:
        """Whether any process that `actor` reaches has admitted it."""
        proof, network = proof_of(actor), self._places.network
        for other in self._places.actors.values():
            if other.node is None or other.id == actor.id or network.separates(actor.place, other.place):
                continue
            admission, known = self.admission(other.place), self._known(other, actor.id)
            if admission.other_process(actor.id, NO_PROOF) is None:
                if known is not None and known.instance == proof.instance:
                    return True
            elif admission.other_process(actor.id, proof) is None:
                return True
        return False

    def where(self, sink: NodeId, to: NodeId) -> bytes:
        """The place of the process with that key to which a sink answers."""
        known = self.admission(sink).other_process(to, NO_PROOF)
        twin = self._places.twins.get(to)
        return twin.place if known is not None and twin is not None and known.address == twin.address else to


NO_PROOF = Proof(0, 0, "", b"")


def address_of(actor: Actor) -> str:
    return actor.address or actor.name


def proof_of(actor: Actor) -> Proof:
    """The proof of the actor's process, which runs."""
    assert actor.node is not None
    return Proof(actor.node.life, actor.node.instance, address_of(actor), actor.id)
