"""A join, message by message."""

from __future__ import annotations

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    JoinMesh,
    JoinReply,
    LeavesReport,
    LeavesRequest,
    Message,
    Ping,
    Pong,
    ProbeFor,
)
from elf.srt.messages.parameters import MS
from tests.rigs.overlay_rig import Mesh


class Recording(Mesh):
    """Writes down what is sent, but not the pings in turn that carry no news, nor their answers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.names: dict[NodeId, str] = {}
        self.lines: list[str] = []

    def perform(self, node: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and (words := self._words(effect.message)):
                names = f"{self.names[node]} -> {self.names[effect.to]}"
                self.lines.append(f"{self.now / MS:7.1f} ms  {names}  {words}")
        super().perform(node, effects)

    def _words(self, message: Message) -> str:
        kind = type(message).__name__
        if isinstance(message, Ping | Pong):
            sender = f"{kind} as {message.sender.incarnation}.{message.sender.refuted}"
            news = [
                f"{self.names[each.contact.id]} {each.contact.incarnation}.{each.contact.refuted} {each.status}"
                for each in message.news
            ]
            return f"{sender}: {', '.join(news)}" if news else ""
        if isinstance(message, JoinMesh | JoinReply):
            return f"{kind} {' '.join(self.names[each.id] for each in message.known)}".rstrip()
        if isinstance(message, ProbeFor):
            return f"{kind} {self.names[message.target.id]}"
        assert isinstance(message, LeavesRequest | LeavesReport)
        return ""


JOIN = """
  100.0 ms  c -> a  JoinMesh
  100.6 ms  a -> b  JoinMesh a b
  100.9 ms  b -> c  JoinReply a b
  101.9 ms  c -> a  Ping as 1.0: b 1.0 alive
  102.1 ms  a -> c  Pong as 1.0: b 1.0 alive
"""


def test_a_third_node_joins_through_the_first() -> None:
    """a forwards c's join to b, the closest to c; b takes c in and names a; a takes c in once it hears from c itself."""
    mesh = Recording(1)
    a, b, c = (bytes([first]) + bytes(15) for first in (0x10, 0x50, 0x60))
    mesh.names = {a: "a", b: "b", c: "c"}
    mesh.start(a)
    mesh.start(b, [a])
    mesh.run(100 * MS)
    mesh.lines.clear()
    mesh.start(c, [a])
    mesh.run(5 * MS)
    assert mesh.lines == JOIN.strip("\n").split("\n")
    assert mesh.wrong_leaf_sets() == []
