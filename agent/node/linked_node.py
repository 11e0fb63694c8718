"""The lower layer of a node: its links, its timers, and its write barrier.

In one sentence: a core's effects become datagrams, frames of links, writes and reads to perform, in the core's order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import Enum

from elf.agent.node.timers import Timers
from elf.agent.node.write_barrier import WriteBarrier
from elf.errors import PeerError
from elf.jobmaster.directory.directory import Directory
from elf.srt.codec.wire import LogForm
from elf.srt.link.coded_links import CodedLinks
from elf.srt.link.link import Link
from elf.srt.messages.effects import Effect, Notice, Post, Read, Recall, Route, Send, Write
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import Bundle, Contact, Held, Message, StateReport
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.sizes import size_of

Outer = Send | Write | Read | Recall | Notice
"""Effects that the host performs."""


class Standing(Enum):
    """Whether the node is in the ring; see `elf.agent.node.mesh_node`."""

    IN = "in"
    OUT = "out"
    BACK = "back"


def is_for_disk(effect: Effect) -> bool:
    """Whether the effect is a Write, or a message that promises durability."""
    return type(effect) is Write or (
        isinstance(effect, Send | Post) and type(effect.message) in (Held, StateReport)
    )


class LinkedNode:
    """Base of `elf.agent.node.mesh_node.MeshNode`; see there for the arguments."""

    def __init__(
        self, me: Contact, parameters: Parameters, coded: LogForm | None, has_room: Callable[[NodeId], bool]
    ) -> None:
        self.id, self.life, self.instance = me.id, me.incarnation, me.instance
        self.parameters = parameters
        self.links: dict[NodeId, Link] = {}
        self._set_standing(Standing.IN)
        self._coded = None if coded is None else CodedLinks(parameters.frame_bytes_max, coded)
        self._has_room = has_room
        self._timers = Timers()
        self._barrier = WriteBarrier(parameters.disk_us_max)
        self.sent_bytes: Counter[JobId] = Counter()
        """Bytes of bundles that were sent up each job's tree, roughly."""
        self._to_self: deque[tuple[NodeId, Message]] = deque()  # messages to itself
        # While messages to itself are delivered: the effects of that.
        self._answers: list[Outer] | None = None
        # Jobs with a message whose encoding raised during this call.
        self._unsent: dict[JobId, Exception] = {}

    def _set_standing(self, standing: Standing) -> None:
        self.standing = standing
        self.is_aside = standing is not Standing.IN
        """Whether other nodes serve in this node's place, because its disk writes fail."""

    @abstractmethod
    def _take(self, source: NodeId, message: Message, now: int, out: list[Outer]) -> None:
        """Step the core that the message is for."""

    @abstractmethod
    def _route(
        self, key: bytes, origin: NodeId, message: Message, hops: int, now: int, out: list[Outer]
    ) -> None:
        """One hop towards the node closest to `key`."""

    # Links.

    def _link(self, peer: NodeId, now: int) -> Link:
        link = self.links.get(peer)
        if link is None:
            link = self.links[peer] = Link(peer, self.life, 0, self.parameters)
        return link

    def _hang_up(self, peer: NodeId, now: int, out: list[Outer]) -> None:
        """Reset the link to that neighbour, if there is one."""
        link = self.links.get(peer)
        if link is not None:
            link.hang_up()
        self._link_lost(peer, now, out)

    def _link_lost(self, peer: NodeId, now: int, out: list[Outer]) -> None:
        """Messages in transit to and from that neighbour are lost."""
        if self._coded is not None:
            self._coded.forget(peer)

    def _has_credit(self, peer: NodeId) -> bool:
        link = self.links.get(peer)
        return (link is None or link.has_credit) and self._has_room(peer)

    def _decoded(
        self, coded: CodedLinks, link: Link, pieces: Sequence[Message], now: int, out: list[Outer]
    ) -> list[Message]:
        """The messages in the pieces. If these cannot be decoded, the link begins anew, and the neighbour sends again what it
        keeps."""
        try:
            return [message for piece in pieces for message in coded.take(link.peer, piece)]
        except PeerError as error:
            text = f"{short(link.peer)}: {error}; the link begins anew"
            out.append(Notice("undecodable", text, link.peer))
            self._hang_up(link.peer, now, out)
            return []

    # Effects.

    def _deliver_own(self, now: int, out: list[Outer]) -> None:
        """Deliver this node's messages to itself until there are none. What other parts of this host answer meanwhile (`carry`)
        joins `out`: a master beside its sink may have any number of windows that the sink has already, each sent when the one
        before is refused, and no call must be within that of another."""
        former, self._answers = self._answers, out
        try:
            while self._to_self:
                source, message = self._to_self.popleft()
                self._take(source, message, now, out)
        finally:
            self._answers = former

    def _do(self, effects: Sequence[Effect], now: int, out: list[Outer], owner: object = None) -> None:
        """Turn a core's effects into those that the host performs.

        Writes keep their order. Effects after a write wait for it, and so do all later effects of the same `owner` (a job, by its
        id; the directory): so the effects of a core stay in order.
        """
        if not effects:
            return
        barrier = self._barrier
        waiting = barrier.last.get(owner) if barrier.last and owner is not None else None
        if self.standing is Standing.OUT and isinstance(owner, bytes | Directory):
            effects = [effect for effect in effects if not is_for_disk(effect)]
        for effect in effects:
            kind = type(effect)
            if kind is Write:
                out.append(effect)  # type: ignore[arg-type]
                waiting = barrier.begin(owner, now)
                if barrier.begun - barrier.done == 1:
                    self._timers.watch(barrier)
            elif waiting is not None:
                waiting.append(effect)
                barrier.count += 1
            elif kind is Send:
                self._send(effect, out)  # type: ignore[arg-type]
            elif kind is Post:
                self._post(effect, now, out)  # type: ignore[arg-type]
            elif kind is Route:
                self._route(effect.key, self.id, effect.message, 0, now, out)  # type: ignore[union-attr, arg-type]
            else:
                out.append(effect)  # type: ignore[arg-type]

    def _send(self, send: Send, out: list[Outer]) -> None:
        if send.to == self.id:
            self._to_self.append((self.id, send.message))
        else:
            out.append(send)

    def _post(self, post: Post, now: int, out: list[Outer]) -> None:
        if post.to == self.id:
            self._to_self.append((self.id, post.message))
            return
        link = self._link(post.to, now)
        is_up = type(post.message) is Bundle
        for message in (post.message,) if self._coded is None else self._pieces(self._coded, post):
            if is_up:
                self.sent_bytes[post.message.job] += size_of(message)  # type: ignore[attr-defined]
            self._do(link.post(message, now), now, out)
        self._timers.watch(link)

    def _pieces(self, coded: CodedLinks, post: Post) -> Sequence[Message]:
        """The pieces of a message; none if encoding raises. Then the job fails, after all its other effects are performed."""
        try:
            return coded.pieces(post.to, post.message)
        except Exception as error:
            self._unsent.setdefault(post.message.job, error)  # type: ignore[attr-defined]
            return ()
