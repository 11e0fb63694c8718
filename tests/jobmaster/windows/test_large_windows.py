"""Windows larger than a frame are sent to a sink in parts, over a network that loses and repeats, and stored whole or not at
all."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from elf.agent.control.gathering import IDLE_US, Gathering, InMemory, OnDisk
from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import (
    ChunkedWindow,
    fragment_of,
    panes_bytes,
    put_bytes,
    rows_bytes,
    whole,
)
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import Target
from elf.srt.codec.wire import decode, encode
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.messages import Ballot, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import PaneParts, PartReply, Put, PutPart

JOB, SINK, A, B = b"J" * 16, b"S" * 16, b"A" * 16, b"B" * 16
FRAME = 4 << 10
PARAMETERS = Parameters(
    frame_bytes_max=FRAME, link_bytes_max=8 * FRAME, outbox_bytes_max=64 << 10, window_bytes_max=400 << 10
)
STEP_US = 10_000
SECOND = 1_000_000


def put(start: int, ballot: Ballot, n: int = 1, panes: int = 3, parts: int = 20, size: int = 1_500) -> Put:
    """States that show whose they are, of random lengths; one pane is empty."""
    rng = Random(f"{start} {ballot} {n}")
    made = [
        PaneParts(
            start + at,
            start + at + 1,
            (n, n, 0, 0),
            tuple((rng.randbytes(rng.randrange(size)), i % 3 == 0) for i in range(parts if at else 0)),
        )
        for at in range(panes)
    ]
    revision = (*ballot, n)
    return Put(
        JOB,
        ballot,
        "v1",
        start,
        start + panes,
        (start, start),
        "final",
        revision,
        n,
        1,
        1,
        (1, 1, 0, 0),
        (),
        tuple(made),
    )


class Sink:
    """A sink's process: its ledger is durable, the gathered parts are not."""

    def __init__(
        self, store: Any = InMemory, lakes: tuple[str, ...] = ("lake",), bytes_max: int = 400 << 10
    ) -> None:
        self.ledgers = {lake: Ledger(JOB, lake.encode() * 4) for lake in lakes}
        self.lakes: dict[str, dict[int, Put]] = {lake: {} for lake in lakes}
        self.store, self.bytes_max, self.life = store, bytes_max, 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.gathering = Gathering(self.bytes_max, self.life, self.store)

    def take(self, source: bytes, message: Any, now: int) -> list[Effect]:
        effects: list[Effect] = []
        ledger = self.ledgers[message.sink]
        if isinstance(message, PutPart) and ledger.wants(message):
            made, reply = self.gathering.step(message, now)
            self.gathering.check()
            effects += [Send(source, reply)] if reply is not None else []
            if made is None:
                return effects
            message = made
        answers = ledger.step(source, message, now)
        if isinstance(message, Put):
            self.gathering.forget(message)
        for taken in ledger.take_accepted():
            self.lakes[taken.sink][taken.start] = whole(taken)
        return effects + answers


class Scene:
    """A master, its sink, and the messages in flight. `kept`: the job's log, from which a new master publishes."""

    def __init__(
        self, seed: int, loss: float = 0.0, sink: Sink | None = None, parameters: Parameters = PARAMETERS
    ) -> None:
        self.rng, self.loss = Random(seed), loss
        self.sink, self.parameters = sink or Sink(), parameters
        self.now, self.ballot = 0, (1, A)
        self.kept: dict[int, Put] = {}
        self.letters: list[tuple[int, int, bytes, Message]] = []
        self.notices: list[Notice] = []
        self.bytes_up = self.sent = self.in_flight_max = 0
        self.serve()

    def serve(self) -> None:
        self.outbox = Outbox(
            JOB,
            self.ballot,
            [Target(lake, SINK) for lake in self.sink.lakes],
            self.parameters,
            self.again,
            with_open=False,
            name="hits",
        )

    def again(self, key: tuple[str, int], status: str) -> Put | None:
        return self.kept[key[1]]

    def publish(self, start: int, n: int = 1, **made: int) -> Put:
        self.kept[start] = put(start, self.ballot, n, **made)
        self.outbox.put(self.kept[start], self.outbox.names)
        return self.kept[start]

    def take_over(self) -> None:
        """The new master publishes the windows that the sink's ledger lacks, under its own revisions."""
        self.ballot = (self.ballot[0] + 1, B)
        self.serve()
        for start in self.kept:
            self.publish(start)

    def send(self, to: bytes, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Notice):
                self.notices.append(effect)
            elif isinstance(effect, Send):
                message = decode(encode(effect.message))
                for _ in range(2 if self.rng.random() < self.loss / 2 else 1):
                    if self.rng.random() >= self.loss:
                        self.letters.append(
                            (self.now + self.rng.randrange(30_000), len(self.letters), to, message)
                        )
                if isinstance(message, PutPart):
                    self.sent += 1
                    self.bytes_up += len(message.payload)

    def run(self, span_us: int) -> None:
        for _ in range(span_us // STEP_US):
            self.now += STEP_US
            due = sorted(letter for letter in self.letters if letter[0] <= self.now)
            self.letters = [letter for letter in self.letters if letter[0] > self.now]
            on_way = sum(isinstance(letter[3], PutPart) for letter in self.letters)
            self.in_flight_max = max(self.in_flight_max, on_way)
            for _, _, to, message in due:
                if to == SINK:
                    self.send(A, self.sink.take(self.ballot[1], message, self.now))
                else:
                    self.answer(message)
            self.outbox.check()
            deadline = self.outbox.deadline()
            if deadline is not None and deadline <= self.now:
                self.send(SINK, self.outbox.tick(self.now, 0))

    def answer(self, message: Any) -> None:
        kind = type(message).__name__
        if kind == "LedgerReport":
            self.outbox.ledger_reported(SINK, message)
        elif kind == "PartReply":
            self.send(SINK, self.outbox.part_acknowledged(SINK, message))
        else:
            self.outbox.acknowledged(SINK, message)

    def until_held(self, span_us: int = 60 * SECOND) -> None:
        until = self.now + span_us
        while self.outbox.waiting:
            assert self.now < until
            self.run(STEP_US * 10)


def same(stored: Put, made: Put) -> bool:
    """Whether two windows are equal except for rows, which no lake stores, and the sinks."""
    stored, made = (replace(each, rows=(), sinks=()) for each in (stored, made))
    return encode(whole(stored)) == encode(whole(made))


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_large_windows_are_stored_whole_each_once(seed: int, loss: float) -> None:
    scene = Scene(seed, loss)
    made = [scene.publish(10 * at, parts=size) for at, size in enumerate((40, 1, 60, 0, 25))]
    scene.until_held()
    assert {start: same(stored, made[start // 10]) for start, stored in scene.sink.lakes["lake"].items()} == {
        10 * at: True for at in range(5)
    }
    assert scene.sink.gathering.aside_bytes == 0
    assert not scene.notices


def test_a_few_parts_are_in_flight_at_a_time_and_none_twice_without_loss() -> None:
    scene = Scene(1)
    made = scene.publish(0, parts=120)
    chunks = ChunkedWindow(made, FRAME)
    scene.until_held()
    assert 1 < scene.in_flight_max <= 4, "half of a link's window"
    assert scene.sent == chunks.of > 20


def test_a_sink_that_dies_between_parts_gets_all_of_them_again() -> None:
    scene = Scene(2)
    made = scene.publish(0, parts=100)
    for _ in range(3):
        scene.run(300_000)
        assert scene.outbox.waiting
        scene.sink.start()
    scene.until_held()
    assert same(scene.sink.lakes["lake"][0], made)


def test_a_sink_that_dies_with_all_parts_and_no_answer_gets_them_again() -> None:
    scene = Scene(3)
    made = scene.publish(0)
    take = scene.sink.take

    def deaf(source: bytes, message: Any, now: int) -> list[Effect]:
        """The complete window is lost with the process before it is durable."""
        if not isinstance(message, PutPart):
            return take(source, message, now)
        reply = scene.sink.gathering.step(message, now)[1]
        assert reply is not None
        return [Send(source, reply)]

    scene.sink.take = deaf  # type: ignore[method-assign]
    scene.run(10 * SECOND)
    assert scene.outbox.waiting == 1
    scene.sink.start()
    scene.sink.take = take  # type: ignore[method-assign]
    scene.until_held()
    assert same(scene.sink.lakes["lake"][0], made)


@pytest.mark.parametrize("seed", range(4))
def test_a_master_that_changes_between_parts_begins_anew_under_its_revision(seed: int) -> None:
    scene = Scene(seed, 0.1)
    scene.publish(0, parts=100)
    scene.run(700_000)
    scene.take_over()
    scene.until_held()
    stored = scene.sink.lakes["lake"][0]
    assert stored.ballot == (2, B)
    assert same(stored, scene.kept[0])


@pytest.mark.parametrize("seed", range(6))
def test_a_new_revision_between_parts_replaces_the_one_in_flight(seed: int) -> None:
    scene = Scene(seed, 0.2)
    for n in range(1, 4):
        scene.publish(0, n, parts=60)
        scene.run(scene.rng.randrange(1_000_000))
    scene.until_held()
    assert same(scene.sink.lakes["lake"][0], scene.kept[0])


def test_small_windows_pass_a_large_one() -> None:
    scene = Scene(4, sink=Sink())
    scene.run(SECOND)
    scene.publish(0, parts=200)
    scene.run(50_000)
    scene.publish(10, parts=1, size=100)
    scene.run(500_000)
    assert list(scene.sink.lakes["lake"]) == [10]
    scene.until_held()


def test_a_window_past_the_bound_is_reported_to_the_operator_and_others_continue() -> None:
    scene = Scene(5)
    scene.publish(0, parts=400)
    made = scene.publish(10)
    scene.until_held()
    assert list(scene.sink.lakes["lake"]) == [10]
    assert same(scene.sink.lakes["lake"][10], made)
    (notice,) = scene.notices
    assert "job hits: the window of 1970-01-01 00:00:00" in notice.text
    assert "400 KiB" in notice.text
    assert "coarser keys" in notice.text
    assert scene.outbox.lost == 1


def test_a_window_too_large_for_the_sink_is_reported_too() -> None:
    scene = Scene(6, sink=Sink(bytes_max=20 << 10))
    scene.publish(0)
    scene.until_held()
    assert not scene.sink.lakes["lake"]
    assert "20 KiB" in scene.notices[0].text


def test_one_large_window_is_kept_and_others_are_read_again() -> None:
    scene = Scene(7)
    made = [scene.publish(10 * at, parts=80) for at in range(3)]
    (sink,) = scene.outbox._sinks.values()
    assert [waiting.put is not None for waiting in sink.waiting.values()] == [True, False, False]
    scene.until_held()
    assert all(same(scene.sink.lakes["lake"][10 * at], made[at]) for at in range(3))


def test_states_lie_on_disk_until_they_are_read(tmp_path: Any) -> None:
    scene = Scene(8, 0.1, Sink(lambda: OnDisk(tmp_path)))
    made = scene.publish(0, parts=70)
    scene.until_held()
    assert same(scene.sink.lakes["lake"][0], made)
    assert not list(tmp_path.iterdir())


def test_gathered_parts_are_bounded_and_idle_windows_are_dropped() -> None:
    """Two windows that do not fit together: the second waits until parts of the first stop arriving."""
    gathering = Gathering(100_000)
    made = [ChunkedWindow(put(10 * at, (1, A), parts=50), FRAME) for at in range(2)]
    parts = [[part_of(chunks, at) for at in range(chunks.of)] for chunks in made]
    assert gathering.step(parts[0][0], 0)[1] is not None
    assert gathering.step(parts[1][0], 1_000) == (None, None)
    assert gathering.step(parts[1][0], IDLE_US)[1] is not None
    assert gathering.step(parts[0][1], IDLE_US) == (None, None)
    gathering.check()


def part_of(chunks: ChunkedWindow, at: int, **changes: Any) -> PutPart:
    made = chunks.put
    about = (JOB, made.ballot, made.version, made.start, made.revision)
    return replace(PutPart(*about, at, chunks.of, chunks.nbytes, chunks.payload(at)), **changes)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    one, two = (ChunkedWindow(put(0, (1, A), n), FRAME) for n in (1, 2))
    first = part_of(one, 0)
    for wrong in (
        replace(first, of=one.of + 1),
        replace(first, nbytes=1),
        replace(first, at=one.of),
        replace(first, at=1, payload=two.payload(0)),
        replace(first, at=1, payload=b"\0garbage"),
        replace(first, at=1, payload=first.payload[:-1]),
    ):
        gathering = Gathering(1 << 20)
        gathering.step(first, 0)
        with pytest.raises(PeerError):
            gathering.step(wrong, 0)
        gathering.check()
        assert gathering.aside_bytes == 0


def test_rows_travel_in_parts_too() -> None:
    """To a sink that stores no states."""
    rows = tuple((f"/{n}", n, None, 0.5) for n in range(1_000))
    made = replace(put(0, (1, A), panes=0), rows=rows)
    chunks, gathering = ChunkedWindow(made, FRAME), Gathering(1 << 20)
    came = [gathering.step(part_of(chunks, at), 0)[0] for at in range(chunks.of)]
    assert came[:-1] == [None] * (chunks.of - 1)
    assert came[-1] == made


def test_cuts_are_about_as_large_as_asked_and_nothing_is_left_out() -> None:
    for seed in range(30):
        rng = Random(seed)
        made = put(
            seed, (1, A), panes=rng.randrange(5), parts=rng.randrange(60), size=rng.choice([10, 1_500, 9_000])
        )
        chunks = ChunkedWindow(made, FRAME)
        cuts = [fragment_of(chunks.payload(at)) for at in range(chunks.of)]
        assert all(put_bytes(cut) <= FRAME or sum(len(p.parts) for p in cut.panes) == 1 for cut in cuts)
        answers = [(pane.start, part) for cut in cuts for pane in cut.panes for part in pane.parts]
        assert answers == [(pane.start, part) for pane in made.panes for part in pane.parts]
        assert {pane.start for cut in cuts for pane in cut.panes} == {pane.start for pane in made.panes}
        assert rows_bytes(made) + panes_bytes(made) == chunks.nbytes
        for at in range(chunks.of):
            chunks.free(at)
        assert chunks.held_bytes == len(chunks.payload(chunks.of - 1))


def test_one_more_lake_at_a_sink_gets_the_windows_it_lacks() -> None:
    """Both lakes of a job at one agent hold each window once, though the second came later."""
    sink = Sink(lakes=("first",))
    scene = Scene(9, sink=sink)
    made = [scene.publish(10 * at, parts=30) for at in range(2)]
    scene.until_held()
    sink.ledgers["second"], sink.lakes["second"] = Ledger(JOB, b"second"), {}
    answers = list(sink.lakes["first"])
    scene.outbox.serve([Target("first", SINK), Target("second", SINK)])
    assert len(scene.outbox.ledgers()) == 1, "the first one's is known"
    scene.run(SECOND)
    assert scene.outbox.ledgers() == [{}, {}], "as they were at their first report"
    for each in made:
        scene.outbox.put(each, ["second"])
    scene.until_held()
    assert sorted(sink.lakes["second"]) == sorted(answers) == [0, 10]
    assert all(same(sink.lakes["second"][each.start], each) for each in made)


def test_an_old_part_reply_is_ignored() -> None:
    scene = Scene(10)
    made = scene.publish(0, parts=50)
    scene.run(300_000)
    before = scene.sent
    for begun in (0, 1):
        reply = PartReply(JOB, "v1", 0, made.revision, 0, begun)
        assert scene.outbox.part_acknowledged(SINK, reply) == []
    assert scene.outbox.part_acknowledged(B, PartReply(JOB, "v1", 0, made.revision, 0, 1 << 40)) == []
    assert scene.sent == before
    scene.until_held()
