"""Timers find every core when its deadline comes, and too early only where the deadline has moved unnoticed."""

from __future__ import annotations

import gc
import weakref
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.node.timers import Timers


class Core:
    def __init__(self) -> None:
        self.deadline: int | None = None


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=100, derandomize=True)
def test_due_cores_are_found_whatever_moved(seed: int) -> None:
    rng = Random(seed)
    timers, cores, now = Timers(), [Core() for _ in range(5)], 0
    for _ in range(120):
        core = rng.choice(cores)
        core.deadline = rng.choice((None, now + rng.randrange(50), now + rng.randrange(500)))
        timers.watch(core, "owner")
        if rng.random() < 0.3:
            timers.refresh()
        assert all(map(timers.is_watched, cores))
        known = [core.deadline for core in cores if core.deadline is not None]
        soonest = timers.next_us
        assert not known or (soonest is not None and soonest <= min(known))
        now += rng.randrange(30)
        due = timers.due(now)
        assert all(owner == "owner" for _, owner in due)
        assert {id(core) for core, _ in due} == {
            id(core) for core in cores if core.deadline is not None and core.deadline <= now
        }
        for core in cores:
            if any(each is core for each, _ in due):
                core.deadline = None


def test_a_deadline_that_moved_later_wakes_no_core_once_refreshed() -> None:
    timers, core = Timers(), Core()
    core.deadline = 100
    timers.watch(core)
    core.deadline = 300
    assert timers.next_us == 100
    timers.refresh()
    assert timers.next_us == 300
    core.deadline = None
    timers.refresh()
    assert timers.next_us is None


def test_one_that_came_closer_is_found_once() -> None:
    timers, core = Timers(), Core()
    for core.deadline in (300, 100):
        timers.watch(core)
    assert [found for found, _ in timers.due(400)] == [core]
    assert timers.due(400) == []
    assert timers.next_us is None


def test_a_core_that_is_over_is_let_go_also_where_it_knows_its_timers() -> None:
    timers, core = Timers(), Core()
    core.deadline = 100
    timers.watch(core, (core, timers))
    seen = weakref.ref(core)
    del timers, core
    gc.collect()
    assert seen() is None


def test_of_one_moment_they_come_in_the_order_in_which_they_were_watched() -> None:
    timers, cores = Timers(), [Core() for _ in range(30)]
    for core in cores:
        core.deadline = 100
        timers.watch(core)
    assert [found for found, _ in timers.due(100)] == cores
