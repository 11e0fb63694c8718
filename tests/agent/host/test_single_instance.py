"""Which of two processes with one key gives way, by what each of them knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.host.single_instance import Restart, SingleInstance
from elf.agent.node.rivals import Rival
from elf.srt.messages.messages import Contact

ME, OTHER = b"\1" * 16, "127.0.0.1:7401"


class Process:
    """A host's part in it. rival: the instance that answers at the other address; 0: none."""

    def __init__(self, instance: int, *, connections: int, rival: int, is_started: bool = True) -> None:
        async def instance_at(address: str) -> int:
            assert address == OTHER
            return rival

        counters = SimpleNamespace(connections_out=connections)
        self.transport: Any = SimpleNamespace(
            id=ME, address="127.0.0.1:7400", counters=counters, instance_at=instance_at
        )
        self.node: Any = SimpleNamespace(life=100)
        self.instance, self.is_started, self.last_life = instance, is_started, 90
        self.memory: Any = None
        self.notices: Any = lambda text: None
        self.restarts: list[Restart] = []

    def restart(self, how: Restart) -> None:
        self.restarts.append(how)


@pytest.mark.parametrize(
    ("instance", "connections", "is_itself", "gives_way"),
    [
        (5, 0, False, True),
        (9, 0, False, True),
        (5, 2, False, True),
        (9, 2, False, False),
        (5, 0, True, True),
        (9, 0, True, False),
        (5, 2, True, False),
        (9, 2, True, False),
    ],
)
def test_a_refusal_is_followed_unless_this_process_is_the_one_that_stays(
    instance: int, connections: int, is_itself: bool, gives_way: bool
) -> None:
    process = Process(instance, connections=connections, rival=7)

    async def refused() -> None:
        single = SingleInstance(process, None)
        single.refused_for(OTHER, 7, is_itself)
        if single._task is not None:
            await single._task

    asyncio.run(refused())
    assert [how.rival for how in process.restarts] == [Contact(ME, 0, OTHER, 0, 7)] * gives_way


@pytest.mark.parametrize("is_itself", [False, True])
def test_at_the_start_any_refusal_makes_it_wait(is_itself: bool) -> None:
    process = Process(9, connections=0, rival=7, is_started=False)
    single = SingleInstance(process, None)
    single.refused_for(OTHER, 7, is_itself)
    assert single.rival == Contact(ME, 0, OTHER, 0, 7)


@pytest.mark.parametrize(("claimed", "is_above"), [(100, True), (99, False)])
def test_a_process_that_is_gone_is_outlived_where_its_life_is_later(claimed: int, is_above: bool) -> None:
    process = Process(5, connections=2, rival=0)

    async def hear() -> None:
        single = SingleInstance(process, None)
        single.check_rival(Rival(Contact(ME, claimed, OTHER, 0, 7), is_lost=False))
        assert single._task is not None
        await single._task

    asyncio.run(hear())
    assert [(how.above, how.rival) for how in process.restarts] == [(100, None)] * is_above
