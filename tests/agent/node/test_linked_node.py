"""Messages of a node to itself, and what other parts of its host answer."""

from __future__ import annotations

from random import Random

from elf.agent.node.mesh_node import MeshNode
from elf.cbt.budget import Budget
from elf.srt.messages.effects import Send
from elf.srt.messages.ids import NodeId, job_id, node_id
from elf.srt.messages.messages import Contact, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import LedgerRequest

WINDOWS = 3_000
ELSEWHERE = node_id(b"elsewhere")


def test_any_number_of_answers_in_a_row_is_one_call() -> None:
    """A sink beside the master of a job, which has all windows already: each is sent when the one before is refused."""
    me = node_id(b"me")
    node = MeshNode(Contact(me, 1, "127.0.0.1:1"), "a", Parameters(), Random(1), (), budget=Budget(1 << 20))
    node.start(0, {}, [])
    heard: list[int] = []
    within: list[object] = []

    def sink(source: NodeId, message: Message) -> None:
        assert isinstance(message, LedgerRequest)
        heard.append(message.number)
        if message.number < WINDOWS:
            told = LedgerRequest(message.job, message.ballot, message.number + 1)
            within.extend(node.carry([Send(ELSEWHERE, told), Send(source, told)], 0, sink))

    node.sink = sink
    effects = node.carry([Send(me, LedgerRequest(job_id("hits"), (1, me)))], 0, sink)
    assert heard == list(range(WINDOWS + 1))
    assert within == [], "they leave with what the outer call returns"
    numbers = [
        effect.message.number
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, LedgerRequest)
    ]
    assert numbers == list(range(1, WINDOWS + 1))
