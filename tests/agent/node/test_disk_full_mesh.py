"""Disks that stay full, in simulated meshes: a node that cannot write steps aside in bounded time and memory, and returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from elf.agent.node.linked_node import Standing
from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.write_barrier import HELD_MAX, WriteBarrier
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.log.job_log import Promise
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Frame, Held, Message, StateReport
from elf.srt.messages.results import Put
from tests.rigs.quick import QUICK

pytestmark = pytest.mark.slow

SECOND = 1_000_000
SPAN_US = QUICK.disk_us_max


class Story:
    """A mesh in which the disks of the master and of `victims` - 1 others are full for a while, and what is observed."""

    def __init__(
        self, seed: int, *, hosts: int = 8, victims: int = 1, full_s: float = 20, then_s: float = 10
    ) -> None:
        self.full_us, self.victims = 8 * SECOND, victims
        self.free_us = self.full_us + int(full_s * SECOND)
        job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND)
        self.scenario = s.Scenario(
            seed=seed,
            hosts=hosts,
            jobs=(job,),
            parameters=QUICK,
            trouble_us=self.free_us + int(then_s * SECOND),
        )
        self.full: list[Actor] = []
        self.notices: list[tuple[int, str, str]] = []
        self.finals: list[tuple[int, Put]] = []
        self.promised: list[tuple[str, Message]] = []
        """A message of a node that cannot write."""
        self.run: Run

    def play(self, *looks: tuple[float, Callable[[], object]]) -> str:
        """Run the mesh; the oracle's verdict. looks: (seconds after the disks became full, what to do then)."""

        def prepare(run: Run) -> None:
            self.run = run
            run.world.observers.append(self._observe)
            run.world.at(self.full_us, self._fill)
            run.world.at(self.free_us, self._free)
            for seconds, look in looks:
                run.world.at(self.full_us + int(seconds * SECOND), partial(_do, look))

        return simulate(self.scenario, prepare=prepare).violation

    def _fill(self) -> None:
        self.full = self.run.invariants.masters(self.job)[:1]
        self.full += [actor for actor in self.run.hosts if actor not in self.full][: self.victims - 1]
        self._fill_again()

    def _fill_again(self) -> None:
        for actor in self.full:
            self.run.world.fill_disk(actor, True)

    def _free(self) -> None:
        for actor in self.full:
            self.run.world.fill_disk(actor, False)

    def _observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        if what == "notice" and isinstance(about, Notice) and about.kind == "disk":
            assert who is not None
            self.notices.append((now_us, who.name, about.text))
        elif what == "put" and about.status == "final":
            self.finals.append((now_us, about))
        elif what == "deliver":
            source, message = about
            message = message.message if isinstance(message, Frame) else message
            sender = self.run.world.actors.get(source)
            node = sender.node if sender is not None else None
            if isinstance(message, Held | StateReport) and node is not None and node.standing is Standing.OUT:
                self.promised.append((node.name, message))

    @property
    def job(self) -> JobId:
        return self.run.specs[0].id

    @property
    def node(self) -> MeshNode:
        """Of the first victim."""
        node = self.full[0].node
        assert node is not None
        return node

    @property
    def masters(self) -> int:
        return len(self.run.invariants.masters(self.job))


def _do(look: Callable[[], object]) -> None:
    look()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_master_whose_disk_stays_full_steps_aside_and_windows_go_on(seed: int) -> None:
    story = Story(seed)
    seen: list[tuple[Standing, int]] = []

    def look() -> None:
        seen.append((story.node.standing, story.masters))

    assert story.play((7, look), (19.9, look), (23, look)) == ""
    assert seen == [(Standing.OUT, 1), (Standing.OUT, 1), (Standing.IN, 1)]
    (aside, name, text), (back, also, _) = story.notices
    assert name == also == story.full[0].name
    assert "state_dir" in text
    assert story.full_us + SPAN_US <= aside < story.full_us + SPAN_US + SECOND
    assert story.free_us < back < story.free_us + SECOND
    others = [(at, put) for at, put in story.finals if aside < at < story.free_us]
    assert others[0][0] < aside + 2 * SECOND
    assert all(put.agents_reporting == put.agents_expected == 8 for _, put in others), "its own lines too"
    assert len(others) > 8


@pytest.mark.parametrize(("hosts", "victims"), [(1, 1), (2, 1), (5, 5), (8, 3)])
def test_many_disks_are_full_at_once(hosts: int, victims: int) -> None:
    """Up to all of them: then no node serves, and all return when there is room. A node with nothing to write detects the full
    disk only when it is to serve, so each costs the job as long as the first."""
    story = Story(1, hosts=hosts, victims=victims, full_s=30)
    seen: list[int] = []
    assert story.play((min(6.5 * victims + 2, 29), lambda: seen.append(story.masters))) == ""
    assert seen == [0 if victims == hosts else 1]
    names = [name for _, name, _ in story.notices]
    assert story.full[0].name in names
    assert all(names.count(name) == 2 for name in names), "everybody is back"
    assert (
        ("other agents serve jobs" in story.notices[0][2])
        == ("jobs wait" not in story.notices[0][2])
        == (hosts > 1)
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_cannot_write_promises_nothing(seed: int) -> None:
    """The disks of a replica and of its master are full: it gets state requests and the log, on links and as datagrams."""
    story = Story(seed, hosts=5, victims=3, full_s=30)
    assert story.play() == ""
    assert len(story.notices) == 6
    assert story.promised == []


def test_room_for_a_moment_and_a_disk_that_is_full_again() -> None:
    story = Story(3, hosts=5, full_s=30)

    def breathe() -> None:
        story._free()
        story.run.world.at(story.run.world.now_us + 400, story._fill_again)

    assert story.play((10, breathe), (22, breathe)) == ""
    assert story.node.standing is Standing.IN


def test_the_worker_of_a_node_that_is_aside_leaves_for_good() -> None:
    """Another master commits its last lines; only then it is gone."""
    story = Story(2)
    part = s.Part(at_us=story.full_us + 8 * SECOND, host=6)
    story.scenario = replace(story.scenario, faults=(part,))
    left: list[bool] = []
    assert (
        story.play(
            (7, lambda: left.append(story.node.is_aside)), (16, lambda: left.append(not story.full[0].node))
        )
        == ""
    )
    assert story.full[0].name == "web6"
    assert left == [True, True]


def test_a_job_that_ends_and_begins_again_while_its_master_is_aside() -> None:
    """Records that were left out meanwhile are written before the node returns."""
    story = Story(4)

    def change(stopped: bool) -> None:
        spec = story.run.specs[0]
        story.run.specs[0] = replace(spec, number=spec.number + 1, stopped=stopped)
        story.run._submit(1, story.run.specs[0])

    def stop() -> None:
        change(True)

    ballots: list[bool] = []

    def look() -> None:
        seat = story.node.seats[story.job]
        disk = story.full[0].disk.records
        ballots.append(seat.is_stopped)
        assert disk["ballot", story.job] == [Promise(seat.succession.highest)]
        assert disk["log", story.job] == [Promise(seat.succession.highest)]
        held = {item for kind in ("agent", "ballot", "job") for item in story.node.directory.items(kind)}
        assert {item for record in disk["directory", b""] for item in record} == held

    story.scenario = replace(story.scenario, rest_us=0)
    story.play((8, stop), (22, look))
    assert ballots == [True]


@pytest.mark.parametrize("full_s", [40, 120])
def test_what_waits_for_a_disk_that_never_answers_stays_bounded(full_s: int) -> None:
    """For up to two minutes, twenty times as long as it takes to detect it: soon after the disk became full the node holds as
    much as at their end."""
    story = Story(5, hosts=3, full_s=full_s, then_s=2)
    sizes: list[tuple[int, int, int, int, int]] = []

    def look() -> None:
        node, disk = story.node, story.full[0].disk
        links = sum(link.queued_bytes for link in node.links.values())
        kept = sum(seat.reducer.kept_bytes for seat in node.seats.values())
        sizes.append((len(node._barrier), node._barrier.count, disk.pending, links, kept))

    assert story.play(*((at, look) for at in (5.9, 12, full_s / 2, full_s - 1))) == ""
    before, *after = sizes
    assert before[1] > 0, "something waits until the node steps aside"
    assert {size[:4] for size in after} == {(before[0], 0, before[2], 0)}
    assert max(size[4] for size in after) < 100_000


class TestWriteBarrier:
    def test_more_than_it_may_hold_is_over_at_once(self) -> None:
        barrier = WriteBarrier(SPAN_US)
        for _ in range(HELD_MAX):
            barrier.begin("seat", 0)
        over = [barrier.is_over]
        barrier.begin("seat", 0).append(Notice("x", "y"))
        barrier.count += 1
        barrier.check()
        over.append(barrier.is_over)
        assert barrier.let_go() == [Notice("x", "y")]
        barrier.check()
        assert [*over, barrier.is_over] == [False, True, True], "the writes themselves are too many"

    def test_what_waits_comes_in_order_and_behind_its_own_write_only(self) -> None:
        barrier = WriteBarrier(SPAN_US)
        first, second = barrier.begin("a", 0), barrier.begin("b", 0)
        first.append(Notice("1", ""))
        second.append(Notice("2", ""))
        barrier.count = 2
        assert barrier.last == {"a": first, "b": second}
        assert barrier.durable() == [Notice("1", "")]
        assert barrier.last == {"b": second}
        assert barrier.durable() == [Notice("2", "")]
        assert (barrier.last, barrier.count, len(barrier)) == ({}, 0, 0)

    def test_the_oldest_write_counts(self) -> None:
        barrier = WriteBarrier(SPAN_US)
        for now in range(0, 3 * SPAN_US, SECOND):
            barrier.begin("a", now)
            if (barrier.deadline or 0) <= now:
                barrier.tick(now)
            assert (barrier.is_over, len(barrier)) == (False, 1)
            barrier.check()
            barrier.durable()

    def test_a_late_check_is_repeated_once(self) -> None:
        barrier = WriteBarrier(SPAN_US)
        barrier.begin("a", 0)
        barrier.tick(3 * SPAN_US)
        over = [barrier.is_over]
        assert barrier.deadline == 4 * SPAN_US
        barrier.tick(4 * SPAN_US)
        assert [*over, barrier.is_over] == [False, True]

    def test_a_clock_that_steps_back_makes_it_wait_no_longer_than_its_span(self) -> None:
        barrier = WriteBarrier(SPAN_US)
        barrier.begin("a", 100 * SPAN_US)
        barrier.clock_stepped(0)
        assert barrier.deadline == SPAN_US
        barrier.tick(SPAN_US)
        barrier.tick(barrier.deadline or 0)
        assert barrier.is_over


def test_timings_that_leave_no_time_to_replace_a_replica_are_refused() -> None:
    with pytest.raises(ValueError, match="disk_us_max must outlast two transfer_us_max"):
        replace(QUICK, disk_us_max=2 * QUICK.transfer_us_max - 1).check()
    QUICK.check()
