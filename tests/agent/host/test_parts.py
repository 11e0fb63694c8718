"""The small parts of a mesh agent's process: its clock, its share of the processor, its notices, its seeds."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.host import seeds as seeds_module
from elf.agent.host.clock import SLEEP_S_MAX, STEP_US, Clock, Timer
from elf.agent.host.cpu_share import BURST_S, CpuShare
from elf.agent.host.identity import claim, own_key
from elf.agent.host.notices import INTERVAL_S, REMEMBERED_MAX, Milestones, NoticeLog
from elf.agent.host.seeds import Seeds
from elf.agent.host.sinks import surroundings
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import Traffic, VirtualSource
from elf.agent.simulator.world.world import World
from elf.errors import PeerError, StateError
from elf.srt.messages.addresses import Address
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Contact
from elf.srt.messages.parameters import MS, SECOND, Parameters
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of

ME = node_id(b"me")
KEY = bytes(range(32))


def test_a_clock_that_was_set_back_is_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000)
    clock = Clock()
    assert clock.now_us() == now
    assert not clock.stepped_back()
    now -= STEP_US // 2
    assert not clock.stepped_back()
    now -= 3_600_000_000
    assert clock.now_us() == now, "it is the wall's all the same"
    assert clock.stepped_back()
    assert not clock.stepped_back()
    now += 7_200_000_000
    assert not clock.stepped_back()


def test_a_timer_wakes_once_for_the_last_deadline_and_sleeps_no_longer_than_its_bound() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        woken: list[float] = []
        rings = asyncio.Event()

        def wake() -> None:
            woken.append(loop.time())
            rings.set()

        timer = Timer(lambda: EPOCH_US, wake)
        before = loop.time()
        timer.set(EPOCH_US + 3600 * SECOND)
        assert timer._call is not None
        late = timer._call
        assert before + SLEEP_S_MAX <= late.when() <= loop.time() + SLEEP_S_MAX
        timer.set(EPOCH_US + 7200 * SECOND)
        assert timer._call is late
        timer.set(EPOCH_US - SECOND)
        assert late.cancelled()
        soon = timer._call
        timer.set(EPOCH_US + 10 * MS)
        assert timer._call is soon, "moved for a few milliseconds"
        timer.set(EPOCH_US + 40 * MS)
        assert soon is not None
        assert soon.cancelled()
        assert before + 0.041 <= timer._call.when() <= loop.time() + 0.042, "the clock stands still"
        await rings.wait()
        assert len(woken) == 1
        assert woken[0] >= before + 0.04, "before its deadline"
        timer.set(EPOCH_US + 3600 * SECOND)
        assert timer._call is not None
        timer.cancel()
        assert timer._call.cancelled()

    asyncio.run(test())


@settings(derandomize=True, deadline=None)
@given(
    st.floats(0.05, 4),
    st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0, 1)), min_size=20, max_size=60),
)
def test_reading_keeps_to_its_share(cores: float, turns: list[tuple[float, float]]) -> None:
    """A reader that waits as required, and then works for a while, uses no more than its limit and one burst."""
    now = used = 0.0
    share = CpuShare(cores, used, now)
    for work_s, pause_s in turns:
        wait = share.wait_s(used, now)
        now += wait
        assert used <= cores * (now + BURST_S) + 1e-6
        now += work_s + pause_s
        used += work_s
    assert share.wait_s(used, now + 1e6) == 0


def test_a_notice_is_logged_once_per_kind_peer_and_interval_and_counted_always() -> None:
    said: list[str] = []
    told = NoticeLog(said.append, lambda node: node.decode())
    for second in range(int(INTERVAL_S) + 2):
        told.take(Notice("late", "it is late", b"web1"), float(second))
        told.take(Notice("late", "it is late", b"web2"), float(second))
    told.take(Notice("full", "no room"), 0.0)
    again = f"it is late ({int(INTERVAL_S) - 1} more like this since)"
    assert said == ["web1: it is late", "web2: it is late", f"web1: {again}", f"web2: {again}", "no room"]
    assert told.counts == {"late": 2 * (int(INTERVAL_S) + 2), "full": 1}


def test_many_peers_do_not_fill_the_memory() -> None:
    told = NoticeLog(lambda text: None)
    for number in range(3 * REMEMBERED_MAX):
        told.take(Notice("odd", "odd", number.to_bytes(16)), 0.0)
    assert len(told._last) == REMEMBERED_MAX


def test_an_agent_logs_that_it_joined_and_of_which_jobs_it_is_master() -> None:
    said: list[str] = []
    milestones = Milestones(said.append, lambda node: node.decode())
    known: list[bytes] = []
    overlay = SimpleNamespace(acquaintances=lambda: known)
    errors, traffic = (
        SimpleNamespace(job=name.encode(), spec=SimpleNamespace(name=name), master=None)
        for name in ("errors", "traffic")
    )
    node: Any = SimpleNamespace(overlay=overlay, seats={b"1": errors, b"2": traffic})
    milestones.look(node)
    assert said == []
    known += [b"web2", b"web3", b"web4"]
    errors.master = object()
    milestones.look(node)
    known.clear()
    milestones.look(node)
    assert said == ["joined the mesh of web2 and 2 more", "master of job errors"]
    errors.master, traffic.master, known[:] = None, object(), [b"web2"]
    milestones.look(node)
    assert said[2:] == ["master of job traffic", "no longer master of job errors"]


def contact(address: Address, node: bytes) -> Contact:
    return Contact(node, 5, str(address))


def test_seeds_are_asked_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module, "PAUSE_S_MIN", 0.001)
    own, late, known = Address("127.0.0.1:1"), Address("127.0.0.1:2"), Address("127.0.0.1:3", KEY)
    tries: list[str] = []
    found = asyncio.Event()

    async def ask(text: str) -> Contact:
        tries.append(text)
        if text == str(own):
            return contact(own, ME)
        if text == str(late) and tries.count(text) > 3:
            return contact(late, node_id(b"late"))
        raise PeerError(f"{text}: nobody listens there")

    async def main() -> None:
        seeds = Seeds((own, late, known), ME, ask, found.set)
        await seeds.first()
        assert not found.is_set()
        ids = [each.id for each in seeds.contacts()]
        assert ME not in ids
        assert len(ids) == 2, "who is not known yet is stood for"
        assert node_id(KEY) in ids
        both = [f"seed {late}: nobody listens there", f"seed {known}: nobody listens there"]
        assert seeds.problems(lambda _: False) == both
        assert seeds.problems(node_id(KEY).__eq__) == both[:1], "it is a member, however it became one"
        await asyncio.wait_for(found.wait(), 5)
        assert {each.id for each in seeds.contacts()} == {node_id(b"late"), node_id(KEY)}
        assert seeds.problems(lambda _: False) == [f"seed {known}: nobody listens there"]
        seeds.close()

    asyncio.run(main())


def test_a_start_does_not_wait_for_seeds_that_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module, "FIRST_S", 0.02)

    async def ask(text: str) -> Contact:
        await asyncio.sleep(1_000)
        raise AssertionError

    async def main() -> None:
        seeds = Seeds((Address("10.0.0.1:7070"),), ME, ask, lambda: None)
        await seeds.first()
        assert len(seeds.contacts()) == 1
        assert seeds.problems(lambda _: False) == ["seed 10.0.0.1:7070: no answer yet"]
        seeds.close()

    asyncio.run(main())


def test_without_seeds_there_is_no_wait() -> None:
    async def main() -> None:
        seeds = Seeds((), ME, lambda text: asyncio.sleep(0), lambda: None)  # type: ignore[arg-type, return-value]
        await seeds.first()
        assert seeds.contacts() == []
        seeds.close()

    asyncio.run(main())


def alone_with_a_job() -> tuple[World, Actor]:
    """A simulated host that serves a job of its own log."""
    world = World(1, Parameters())
    traffic = VirtualSource(node_id(b"web0"), 1, Traffic(lines_per_s=20.0), 0, 60 * SECOND, EPOCH_US)
    actor = world.add_host("web0", traffic)
    world.start(actor)
    world.run_until(2 * SECOND)
    world.start_job(actor, spec_of(plan_of("1 second"), since_us=0))
    world.run_until(6 * SECOND)
    return world, actor


def test_a_clock_that_was_set_back_an_hour_stops_nothing() -> None:
    world, actor = alone_with_a_job()
    node = actor.node
    assert node is not None
    seat = next(iter(node.seats.values()))
    assert seat.worker is not None
    cuts = seat.worker._count
    actor.clock_us -= 3_600 * SECOND
    world._perform(actor, node.clock_stepped(world.clock(actor)))
    node.check()
    assert node.deadline is not None
    assert node.deadline < world.clock(actor) + SECOND
    world.run_until(30 * SECOND)
    assert seat.worker._count >= cuts + 2, "nobody watches: a cut at once, of odd numbers"
    look_us = seat.master.roster.eviction.look_us if seat.master is not None else 0
    for core in (node.overlay, node.directory, *node.links.values(), *seat.cores):
        # Nobody watches: a master looks for silent workers only.
        span_us = look_us if core is seat.master else 61 * SECOND
        assert core.deadline is None or core.deadline < world.clock(actor) + span_us


def test_a_state_dir_belongs_to_one_agent(tmp_path: Path) -> None:
    claim(tmp_path, ME)
    claim(tmp_path, ME)
    with pytest.raises(StateError, match="counted again; start the agent with its own keys"):
        claim(tmp_path, node_id(b"another"))


def test_an_agent_without_keys_keeps_its_id(tmp_path: Path) -> None:
    key = own_key(tmp_path)
    assert len(key) == 32
    assert own_key(tmp_path) == key
    (tmp_path / "id").write_bytes(b"short")
    with pytest.raises(StateError, match="5 bytes instead of 32; delete it"):
        own_key(tmp_path)


def test_a_task_whose_cancellation_is_lost_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "LOST_S", 0.001)
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    async def main() -> bool:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await surroundings.ended(task)
        return task.cancelled()

    assert (asyncio.run(main()), lost) == (True, 2)
