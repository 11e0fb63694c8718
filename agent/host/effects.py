"""The effects of a node, performed by its process: messages are sent, records written, logs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from elf.agent.node.mesh_node import Outer
from elf.srt.messages.effects import Notice, Read, Recall, Send, Write


class Host(Protocol):
    """What performs them."""

    transport: Any
    store: Any
    reading: Any
    recalls: Any

    def durable(self) -> None: ...

    def notice(self, notice: Notice) -> None: ...


def perform(host: Host, effects: Sequence[Outer]) -> None:
    """Perform them in order."""
    for effect in effects:
        kind = type(effect)
        if kind is Send:
            host.transport.send(effect.to, effect.message)  # type: ignore[union-attr]
        elif kind is Write:
            host.store.write(effect, host.durable)
        elif kind is Read:
            host.reading.read(effect)
        elif kind is Recall:
            host.recalls.begin(effect.job)  # type: ignore[union-attr]
        else:
            assert isinstance(effect, Notice)
            host.notice(effect)
