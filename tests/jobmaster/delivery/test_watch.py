"""Watching a job over a network that loses, repeats and delays: every final window arrives, none goes back, no watcher is
flooded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.agent.commands.jobs.watch import windows_of
from elf.agent.commands.process.signals import Stop
from elf.agent.control import protocol
from elf.agent.control.follow import BACK, NEVER, Payloads, Watcher, joined
from elf.agent.control.gathering import OnDisk
from elf.agent.simulator.checks.readers import check_next
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario.scenario import decode as decode_scenario
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.delivery import watchers as w
from elf.jobmaster.delivery.chunks import PAYLOAD_BYTES_MAX, ROW_BYTES
from elf.jobmaster.delivery.watchers import Watchers
from elf.jobmaster.plan.codec import encode as encode_plan
from elf.jobmaster.windows.result import Window
from elf.srt.codec.wire import encode
from elf.srt.messages.compression import decompress
from elf.srt.messages.effects import Effect, Route, Send
from elf.srt.messages.messages import Ballot, Message, Revision
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import WITHDRAWN, Put, Shown, Watch, WatchReply
from tests.rigs import paths
from tests.rigs.mesh_lines import plan_of

JOB, ME, MASTER, NEXT = b"J" * 16, b"W" * 16, b"M" * 16, b"N" * 16
PARAMETERS = Parameters()
TAKEOVER = paths.ROOT / "examples" / "takeover.json"
STEP_US = 10_000
SECOND = 1_000_000


def put(start: int, revision: Revision, status: str = "open", rows: int = 1) -> Put:
    ballot: Ballot = revision[:2]
    cells = tuple((f"/{n}", n) for n in range(rows))
    return Put(
        JOB,
        ballot,
        "v1",
        start,
        start + 1,
        (start, start + 1),
        status,
        revision,
        hash((revision[0], revision[2], rows)) & 0xFFFF,
        1,
        1,
        (1, 1, 0, 0),
        cells,
    )


class Job:
    """A job's windows as its log has them, whichever node serves."""

    def __init__(self) -> None:
        self.finals: dict[int, Put] = {}
        self.ballot: Ballot = (0, b"")

    def again(self, key: tuple[str, int], status: str) -> Put | None:
        found = self.finals.get(key[1])
        return replace(found, ballot=self.ballot) if found is not None else None

    def newest(self, since_us: int, back: int) -> Sequence[tuple[str, int]]:
        starts = sorted(self.finals)
        before = [start for start in starts if start < since_us]
        return [("v1", start) for start in before[len(before) - back :] + starts[len(before) :]]


class Scene:
    """One watcher, one master at a time, and the messages between them."""

    def __init__(self, seed: int, loss: float = 0.0, delay_us: int = 0) -> None:
        self.rng, self.loss, self.delay_us = Random(seed), loss, delay_us
        self.now = 0
        self.job = Job()
        self.watcher = Watcher(JOB, ME, 7, PARAMETERS)
        self.epoch, self.node = 1, MASTER
        self.serve()
        self.letters: list[tuple[int, int, object, Message]] = []
        self.came: list[Put] = []
        self.counts: dict[int, int] = {}
        self.reads = True

    def serve(self) -> None:
        ballot = self.job.ballot = (self.epoch, self.node)
        self.master = Watchers(JOB, ballot, PARAMETERS, self.job.again, self.job.newest)

    def take_over(self) -> None:
        self.epoch, self.node = self.epoch + 1, NEXT if self.node == MASTER else MASTER
        self.serve()

    def publish(self, start: int, status: str, rows: int = 1) -> Put:
        self.counts[start] = self.counts.get(start, 0) + 1
        made = put(start, (self.epoch, self.node, self.counts[start]), status, rows)
        if status != "open":
            self.job.finals[start] = made
        self.send(self.master.publish(made))
        return made

    def send(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send | Route)
            to = self.watcher if isinstance(effect, Send) else None
            for _ in range(2 if self.rng.random() < self.loss / 2 else 1):
                if self.rng.random() >= self.loss:
                    at = self.now + self.rng.randrange(self.delay_us + 1)
                    self.letters.append((at, len(self.letters), to, effect.message))

    def run(self, span_us: int) -> None:
        for _ in range(max(1, span_us // STEP_US)):
            self.now += STEP_US
            due = sorted(letter for letter in self.letters if letter[0] <= self.now)
            self.letters = [letter for letter in self.letters if letter[0] > self.now]
            for _, _, to, message in due:
                self.deliver(to, message)
            self.send(self.watcher.tick(self.now))
            self.send(self.master.tick(self.now))
            if self.reads:
                self.came += self.watcher.take()
            self.master.check()
            self.watcher.check()

    def deliver(self, to: object, message: Message) -> None:
        if to is None:
            assert isinstance(message, Watch)
            self.send(self.master.watch(message, self.now)[1])
        else:
            self.watcher.step(self.node, message, self.now)

    def check_order(self) -> None:
        """Each window's revisions only rise, and a final window never becomes open or final again."""
        last: dict[int, Put] = {}
        for each in self.came:
            before = last.get(each.start)
            if before is not None:
                check_next(before, each, "watcher")
            last[each.start] = each

    def finals(self) -> dict[int, Revision]:
        return {each.start: each.revision for each in self.came if each.status != "open"}


def test_windows_come_at_once_and_once() -> None:
    scene = Scene(1)
    scene.run(SECOND)
    made = [scene.publish(1, "open"), scene.publish(1, "open"), scene.publish(1, "final")]
    scene.run(STEP_US)
    assert scene.came == made
    scene.run(5 * SECOND)
    assert scene.came == made


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.1, 0.3]), st.booleans())
def test_every_final_window_arrives_whatever_is_lost(seed: int, loss: float, takes_over: bool) -> None:
    scene = Scene(seed, loss, delay_us=300_000)
    while not len(scene.master):  # it watches from now on
        scene.run(STEP_US)
    for start in range(1, 30):
        scene.publish(start, "open")
        scene.run(100_000)
        scene.publish(start, "open")
        if takes_over and scene.rng.random() < 0.1:
            scene.take_over()
        scene.publish(start, "final")
        if scene.rng.random() < 0.2:
            scene.publish(start, "revised")
        scene.run(50_000)
    scene.loss = 0.0
    scene.run(10 * SECOND)
    scene.check_order()
    if not takes_over:
        assert scene.finals() == {start: made.revision for start, made in scene.job.finals.items()}
    else:
        seen = scene.finals()
        lacking = [start for start in scene.job.finals if start not in seen]
        assert not lacking or max(lacking) < min(seen)


def test_a_new_watcher_gets_the_last_few_final_windows_and_all_later_ones() -> None:
    scene = Scene(2)
    for start in range(20):
        scene.publish(start, "final")
    scene.run(SECOND)
    assert [each.start for each in scene.came] == list(range(20 - BACK, 20))
    scene.publish(20, "final")
    scene.run(SECOND)
    assert [each.start for each in scene.came] == list(range(20 - BACK, 21))


def test_the_next_master_sends_the_windows_that_a_dead_one_did_not() -> None:
    scene = Scene(3)
    scene.run(SECOND)
    scene.publish(1, "open")
    scene.run(SECOND)
    scene.loss = 1.0
    scene.publish(1, "final")
    scene.publish(2, "final")
    scene.loss = 0.0
    scene.take_over()
    scene.run(2 * SECOND)
    assert [(each.start, each.status) for each in scene.came] == [(1, "open"), (1, "final"), (2, "final")]


def test_a_watcher_subscribes_at_once_at_a_master_that_takes_over() -> None:
    scene = Scene(3)
    scene.run(SECOND)
    assert scene.watcher.tick(scene.now) == []
    scene.watcher.renew()
    assert scene.watcher.deadline == 0
    (route,) = scene.watcher.tick(scene.now)
    assert isinstance(route, Route)
    assert isinstance(route.message, Watch)
    assert scene.watcher.tick(scene.now) == []
    assert scene.watcher.deadline == scene.now + PARAMETERS.emit_us


def test_a_node_knows_another_master_as_soon_as_its_tree_does() -> None:
    """So the new master knows the node's watchers before it has anything to publish."""
    served: list[tuple[int, str]] = []
    heard: dict[str, list[int]] = {}

    def prepare(run: Run) -> None:
        def observe(now_us: int, what: str, who: Actor | None, about: Any) -> None:
            if who is None or who.node is None:
                return
            if what == "start":
                who.node.served_anew = lambda job: heard.setdefault(who.name, []).append(run.world.now_us)
            serves = any(seat.master is not None for seat in who.node.seats.values())
            if serves and (not served or served[-1][1] != who.name):
                served.append((now_us, who.name))

        run.world.observers.append(observe)

    outcome = simulate(decode_scenario(TAKEOVER.read_bytes()), prepare=prepare)
    assert outcome.is_exact
    (_, first), (at, second) = served[:2]
    assert first != second
    for name in {f"web{host}" for host in range(4)} - {first}:
        assert any(abs(moment - at) < 100_000 for moment in heard[name]), (name, at, heard[name])


def test_the_first_windows_of_a_job_are_not_lost_with_its_first_master() -> None:
    scene = Scene(9)
    scene.run(SECOND)
    scene.take_over()
    scene.publish(1, "final")
    scene.run(SECOND)
    assert [each.start for each in scene.came] == [1]


def test_an_earlier_masters_messages_are_ignored() -> None:
    scene = Scene(4)
    scene.run(SECOND)
    scene.take_over()
    scene.run(SECOND)
    scene.watcher.step(MASTER, Shown(JOB, 7, 9, put(5, (1, MASTER, 1))), scene.now)
    scene.watcher.step(MASTER, WatchReply(JOB, 7, (1, MASTER), 99), scene.now)
    scene.run(SECOND)
    assert not scene.came
    assert scene.watcher.ballot == (2, NEXT)


def test_a_final_window_with_other_rows_is_shown_as_revised() -> None:
    scene = Scene(5)
    scene.run(SECOND)
    scene.publish(1, "final")
    scene.take_over()
    scene.publish(1, "final")
    scene.run(SECOND)
    assert [each.status for each in scene.came] == ["final", "revised"]


@pytest.mark.parametrize("was_told", [True, False])
def test_a_final_window_stays_final_after_following_a_log_without_it(was_told: bool) -> None:
    """A partition: on this side a master begins with an empty log, and then yields to the one whose log has the window."""
    scene = Scene(11)
    scene.run(SECOND)
    if was_told:
        scene.publish(1, "final")
        scene.run(SECOND)
    else:
        scene.job.finals[1] = put(1, (1, MASTER, 1), "final")
    others, scene.job.finals = scene.job.finals, {}
    scene.take_over()
    scene.run(SECOND)
    scene.publish(1, "open")
    scene.publish(2, "open")
    scene.run(SECOND)
    scene.job.finals = others
    scene.take_over()
    scene.run(2 * SECOND)
    scene.publish(2, "final")
    scene.publish(1, "final")
    scene.run(SECOND)
    scene.take_over()
    scene.run(2 * SECOND)
    scene.check_order()
    shown = [(each.start, each.status, each.revision[0]) for each in scene.came]
    of_1 = [("final", 1)] if was_told else [("open", 2), ("final", 1)]
    assert [each[1:] for each in shown if each[0] == 1] == [*of_1, ("revised", 3)]
    assert [each[1:] for each in shown if each[0] == 2] == [("open", 2), ("final", 3)]


def test_a_withdrawal_that_was_lost_does_not_take_the_place_of_the_window_that_came_back() -> None:
    scene = Scene(12)

    def again(key: tuple[str, int], status: str) -> Put | None:
        return None if status == WITHDRAWN else scene.job.again(key, status)

    scene.master._reread = again
    scene.run(SECOND)
    scene.publish(1, "final")
    scene.run(SECOND)
    scene.loss = 1.0
    scene.publish(1, WITHDRAWN, rows=0)
    scene.loss = 0.0
    scene.publish(2, "open", rows=PARAMETERS.frame_bytes_max // 40)  # in parts: the next window is owed
    scene.publish(1, "final")
    scene.run(10 * SECOND)
    assert scene.finals()[1][2] == 3


def test_a_large_window_is_shown_with_the_status_of_its_first_part() -> None:
    """By `elf job watch`: only the first part has the status and the revision that the watcher gave it."""
    scene = Scene(13)
    scene.reads = False
    scene.run(SECOND)
    scene.publish(1, "final")
    scene.run(SECOND)
    scene.take_over()
    scene.publish(1, "final", rows=PARAMETERS.frame_bytes_max // 40)
    taken: list[tuple[Put, Payloads]] = []
    for _ in range(500):
        scene.run(STEP_US)
        taken += scene.watcher.take_parts()
    assert [len(parts) > 2 for _, parts in taken] == [False, True]

    def answers() -> Iterator[protocol.Answer]:
        yield protocol.Versions({"v1": encode_plan(plan_of())})
        for put, parts in taken:
            shown = [decompress(part, PAYLOAD_BYTES_MAX) for part in parts] or [encode(put)]
            for number, each in enumerate(shown, 1):
                yield protocol.Published(each, more=number < len(shown))

    control: Any = SimpleNamespace(ask=lambda request: answers(), has_more=True)
    windows = [each for each in windows_of(control, "hits", Stop()) if isinstance(each, Window)]
    assert [(window.status, window.revision[0]) for window in windows] == [("final", 1), ("revised", 2)]


def test_parts_of_large_windows_wait_on_disk_for_the_last_one(tmp_path: Path) -> None:
    scene = Scene(14)
    scene.watcher = Watcher(JOB, ME, 7, PARAMETERS, lambda: OnDisk(tmp_path))
    scene.reads = False
    scene.run(SECOND)
    made = [scene.publish(at, "final", rows=PARAMETERS.frame_bytes_max // 40) for at in (1, 2)]
    taken: list[tuple[Put, Payloads]] = []
    for _ in range(1_000):
        scene.run(STEP_US)
        assert scene.watcher.held_bytes == 0
        taken += scene.watcher.take_parts()
    assert [joined(put, parts).rows for put, parts in taken] == [put.rows for put in made]
    assert all(not put.rows for put, _ in taken)
    assert not list(tmp_path.iterdir())


def test_windows_that_wait_for_their_reader_are_counted() -> None:
    scene = Scene(15)
    scene.reads = False
    scene.run(SECOND)
    for start in range(5):
        scene.publish(start, "final", rows=10)
    scene.run(SECOND)
    assert scene.watcher.held_bytes == 5 * 10 * ROW_BYTES
    scene.watcher.take()
    assert scene.watcher.held_bytes == 0


def test_a_watcher_that_does_not_read_costs_a_bounded_amount_and_misses_no_final_window() -> None:
    scene = Scene(6)
    scene.run(SECOND)
    scene.reads = False
    rows = w.FLIGHT_BYTES_MAX // 500 // 4
    for start in range(20):
        scene.publish(start, "open", rows)
        scene.run(100_000)
        scene.publish(start, "final", rows)
    scene.run(SECOND)
    assert len(scene.watcher.take()) <= 6
    scene.reads = True
    scene.run(5 * SECOND)
    assert set(scene.finals()) >= set(range(4, 20))


def test_a_silent_watcher_expires_even_if_the_clock_steps_back() -> None:
    scene = Scene(7)
    scene.run(SECOND)
    assert len(scene.master) == 1
    scene.master.tick(scene.now - 3600 * SECOND)
    assert len(scene.master) == 1
    assert scene.master.deadline is not None
    scene.master.tick(scene.now - 3600 * SECOND + scene.master.expiry_us)
    assert len(scene.master) == 0
    assert scene.master.deadline is None


def test_the_number_of_watchers_is_bounded() -> None:
    master = Watchers(JOB, (1, MASTER), PARAMETERS, lambda key, status: None, lambda since, back: [])
    for number in range(w.WATCHERS_MAX):
        assert master.watch(Watch(JOB, ME, number, NEVER), 0)[0]
    is_new, (answer,) = master.watch(Watch(JOB, ME, 99, NEVER), 0)
    assert not is_new
    assert isinstance(answer, Send)
    assert isinstance(answer.message, WatchReply)
    assert answer.message.refused
    watcher = Watcher(JOB, ME, 99, PARAMETERS)
    watcher.step(MASTER, answer.message, 0)
    assert watcher.is_refused
    assert not master.watch(Watch(JOB, ME, 5, NEVER), 0)[0]  # known watchers continue


def test_of_a_too_large_window_the_first_rows_are_sent_and_the_number_left_out() -> None:
    scene = Scene(8)
    scene.run(SECOND)
    rows = w.WINDOW_BYTES_MAX // 500 + 1
    scene.publish(1, "final", rows)
    scene.run(SECOND)
    (came,) = scene.came
    assert 1_000 <= len(came.rows) < rows
    assert list(came.rows) == [(f"/{n}", n) for n in range(len(came.rows))]
    assert came.left_out == rows - len(came.rows)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(6))
def test_a_large_window_arrives_whole_in_parts_and_no_revisions_are_mixed(seed: int, loss: float) -> None:
    scene = Scene(seed, loss, delay_us=50_000)
    scene.run(SECOND)
    each = PARAMETERS.frame_bytes_max // 500
    for start in range(3):
        scene.publish(start, "open", 5 * each)
        scene.run(100_000)
        made = scene.publish(start, "final", 6 * each + start)
        scene.run(100_000)
        scene.publish(100 + start, "open")
        if start == 1:
            scene.run(300_000)
            scene.take_over()
        assert made.rows
    scene.run(20 * SECOND)
    for start in range(3):
        shown = [each for each in scene.came if each.start == start]
        assert [put.status for put in shown[-1:]] == ["final"]
        for put in shown:
            assert list(put.rows) == [(f"/{n}", n) for n in range(len(put.rows))]
            assert len(put.rows) == (5 * each if put.status == "open" else 6 * each + start)
            assert not put.left_out


@pytest.mark.parametrize("number", [6, 8])
def test_other_watches_of_the_node_are_left_alone(number: int) -> None:
    watcher = Watcher(JOB, ME, 7, PARAMETERS)
    watcher.step(MASTER, Shown(JOB, number, 1, put(1, (1, MASTER, 1))), 0)
    watcher.step(MASTER, Shown(b"K" * 16, 7, 1, put(1, (1, MASTER, 1))), 0)
    assert not watcher.take()
