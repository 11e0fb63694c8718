"""Agents that deliver windows to receivers elsewhere (rule Moving): several have each of these sinks, and one that is alive
serves it.

    LedgerRequest, Put -> agent's ledger -> receiver, at once -> agent's disk -> reply

Each agent has a ledger on its own disk, so what the receiver has got and the disk has not is delivered again. A receiver drops
what it has got, as users do by the id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from elf.agent.simulator.world.places import Actor, Places
from elf.jobmaster.delivery.ledger import Ledger
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import JobId, NodeId, node_id
from elf.srt.messages.messages import Message, Micros
from elf.srt.messages.results import AlertPut, Put

if TYPE_CHECKING:
    from elf.agent.node.mesh_node import MeshNode

Carry = Callable[[Actor, Sequence[Effect], object], None]
RESUMED_US = 1_000


class Carriers:
    """receivers: the sinks by name, each with the id under which observers know it. hosts: the agents that have all of them.
    carry: performs effects of a sink at a host."""

    def __init__(self, places: Places, carry: Carry) -> None:
        self._places, self._carry = places, carry
        self.receivers: dict[str, NodeId] = {}
        self.hosts: set[NodeId] = set()
        self.repeats = 0
        """Deliveries of what a receiver had got; under another revision, if a later master knew nothing of them."""
        self._ledgers: dict[tuple[MeshNode, JobId, str], Ledger] = {}
        self._got: dict[tuple[NodeId, JobId, str, Micros], Put] = {}

    def add(self, name: str) -> NodeId:
        self.receivers[name] = node_id(b"receiver:" + name.encode())
        return self.receivers[name]

    def serve(self, actor: Actor, node: MeshNode) -> None:
        """A life of that agent begins; its node gets messages for the sinks."""
        if actor.id in self.hosts:
            node.sink = lambda source, message: self._places.after(
                0, partial(self._step, actor, node, source, message)
            )

    def _step(self, actor: Actor, node: MeshNode, source: NodeId, message: Message) -> None:
        places, name = self._places, message.sink  # type: ignore[attr-defined]
        if actor.node is not node or name not in self.receivers:
            return
        if actor.is_paused:
            places.after(RESUMED_US, partial(self._step, actor, node, source, message))
            return
        effects: list[Effect] = []
        if isinstance(message, AlertPut):
            reply = places.take_alert(self.receivers[name], message, actor)
            effects += [Send(source, reply)] if reply is not None else []
            self._carry(actor, effects, None)
            return
        ledger = self._ledger(actor, node, message.job, name)  # type: ignore[attr-defined]
        effects += ledger.step(source, message, places.now_us)
        for put in ledger.take_accepted():
            self._deliver(actor, self.receivers[name], put)
        self._carry(actor, effects, ledger)

    def _ledger(self, actor: Actor, node: MeshNode, job: JobId, name: str) -> Ledger:
        if (node, job, name) not in self._ledgers:
            key = node_id(job + name.encode())
            ledger = self._ledgers[node, job, name] = Ledger(job, key)
            ledger.restore(actor.disk.records.get(("ledger", key), ()))
        return self._ledgers[node, job, name]

    def _deliver(self, actor: Actor, receiver: NodeId, put: Put) -> None:
        key = (receiver, put.job, put.version, put.start)
        got = self._got.get(key)
        if got is not None and _content(got) == _content(put):
            self.repeats += 1
            self._places.notify("repeat", actor, (put, got.revision))
        if got is not None and put.revision <= got.revision:
            return
        self._got[key] = put
        self._places.put_to(receiver, put)


def _content(put: Put) -> tuple[object, ...]:
    return put.digest, put.covers, put.agents_reporting, put.agents_expected
