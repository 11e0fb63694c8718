"""A link against a perfect queue, over a channel that loses, repeats and reorders."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elf.srt.link.link import Link
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.messages import Frame, Message, Size
from elf.srt.messages.parameters import Parameters

A, B = b"a" * 16, b"b" * 16
SMALL = Parameters(link_bytes_max=1000, acknowledge_us=20_000, retransmit_us_min=50_000)


def word(number: int) -> Message:
    return Size(b"j" * 16, number, 0)


def frames(effects: list[Effect]) -> list[Frame]:
    out = []
    for effect in effects:
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Frame)
        out.append(effect.message)
    return out


class Side:
    """One node's link, what it posted since its link last began anew, and what was delivered to this life of it."""

    def __init__(self, name: bytes, peer: bytes, life: int, kind: type[Link]) -> None:
        self.life = life
        self.peer = peer
        self.link = kind(peer, life, 0, SMALL)
        self.streams: list[list[int]] = [[]]  # one per session, the last is the present one
        self.delivered: list[int] = []


class Channel:
    """Two sides, frames in transit, and one clock."""

    def __init__(self, kind: type[Link] = Link) -> None:
        self.kind = kind
        self.now = 1_000_000
        self.sides = {A: Side(A, B, 1, kind), B: Side(B, A, 1, kind)}
        self.air: list[tuple[bytes, Frame]] = []
        self.posted = 0
        self.ever: dict[bytes, list[list[int]]] = {A: [], B: []}

    def put(self, sender: bytes, effects: list[Effect]) -> None:
        self.air += [(self.sides[sender].peer, frame) for frame in frames(effects)]

    def post(self, name: bytes, nbytes: int) -> None:
        side = self.sides[name]
        self.posted += 1
        side.streams[-1].append(self.posted)
        self.put(name, side.link.post(word(self.posted), self.now, nbytes))

    def arrive(self, at: int, keep: bool = False) -> None:
        to, frame = self.air[at] if keep else self.air.pop(at)
        side = self.sides[to]
        restarts = side.link.restarts
        messages, effects = side.link.step(frame, self.now)
        if side.link.restarts != restarts:
            side.streams.append([])
            side.delivered = []
        for message in messages:
            assert isinstance(message, Size)
            side.delivered.append(message.size)
        self.verify(to)
        self.put(to, effects)

    def verify(self, to: bytes) -> None:
        """The delivered messages are a prefix of those posted in one session: none missing, repeated or out of order."""
        side = self.sides[to]
        streams = self.ever[side.peer] + self.sides[side.peer].streams
        assert not side.delivered or any(
            stream[: len(side.delivered)] == side.delivered for stream in streams
        ), f"{side.delivered} of {streams}"

    def tick(self, us: int) -> None:
        self.now += us
        for name, side in self.sides.items():
            deadline = side.link.deadline
            if deadline is not None and deadline <= self.now:
                self.put(name, side.link.tick(self.now))

    def restart(self, name: bytes) -> None:
        old = self.sides[name]
        self.ever[name] += old.streams
        self.sides[name] = Side(name, old.peer, old.life + 1, self.kind)

    def hang_up(self, name: bytes) -> None:
        side = self.sides[name]
        side.link.hang_up()
        side.streams.append([])
        side.delivered = []

    def settle(self, rng: Random, loss: float) -> None:
        """Until both are idle and nothing is under way."""
        for _ in range(20_000):
            if self.air:
                at = rng.randrange(len(self.air))
                if rng.random() < loss:
                    self.air.pop(at)
                else:
                    self.arrive(at, keep=rng.random() < loss / 4)
                continue
            deadlines = [side.link.deadline for side in self.sides.values() if side.link.deadline is not None]
            if not deadlines:
                return
            self.tick(max(1, min(deadlines) - self.now))
        raise AssertionError("the link does not come to rest")

    def all_delivered(self) -> None:
        for side in self.sides.values():
            assert side.delivered == self.sides[side.peer].streams[-1]
            assert side.link.idle
            assert side.link.queued_bytes == 0
            assert side.link.silent_since is None
            side.link.check()


class LinkAgainstQueue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.channel = Channel()

    @rule(name=st.sampled_from([A, B]), nbytes=st.sampled_from([100, 300, 2000]))
    def post(self, name: bytes, nbytes: int) -> None:
        self.channel.post(name, nbytes)

    @precondition(lambda self: self.channel.air)
    @rule(data=st.data(), keep=st.booleans())
    def arrive(self, data: st.DataObject, keep: bool) -> None:
        self.channel.arrive(data.draw(st.integers(0, len(self.channel.air) - 1)), keep)

    @precondition(lambda self: self.channel.air)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.channel.air.pop(data.draw(st.integers(0, len(self.channel.air) - 1)))

    @rule(us=st.sampled_from([1_000, 30_000, 60_000, 2_000_000, -5_000_000]))
    def time(self, us: int) -> None:
        self.channel.tick(us)

    @rule(name=st.sampled_from([A, B]))
    def restart(self, name: bytes) -> None:
        self.channel.restart(name)

    @rule(name=st.sampled_from([A, B]))
    def hang_up(self, name: bytes) -> None:
        self.channel.hang_up(name)

    @invariant()
    def sound(self) -> None:
        for side in self.channel.sides.values():
            side.link.check()

    def teardown(self) -> None:
        """A word from each side lets both know each other; from there on nothing is lost any more."""
        rng = Random(1)
        for name in (A, B):
            self.channel.post(name, 100)
        self.channel.settle(rng, 0.2)
        for name in (A, B):
            for _ in range(5):
                self.channel.post(name, 100)
        self.channel.settle(rng, 0.2)
        for side in self.channel.sides.values():
            posted = self.channel.sides[side.peer].streams[-1]
            assert side.delivered == posted


TestLinkAgainstQueue = pytest.mark.slow(LinkAgainstQueue.TestCase)
TestLinkAgainstQueue.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None
)


def run(kind: type[Link], seed: int, loss: float, count: int = 200) -> Channel:
    rng = Random(seed)
    channel = Channel(kind)
    for _ in range(count):
        channel.post(rng.choice([A, B]), rng.choice([50, 100, 400]))
        while channel.air and rng.random() < 0.6:
            at = rng.randrange(len(channel.air))
            if rng.random() < loss:
                channel.air.pop(at)
            else:
                channel.arrive(at, keep=rng.random() < 0.05)
        channel.tick(rng.choice([0, 1_000, 20_000, 100_000]))
    channel.settle(rng, loss)
    return channel


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1, 0.5])
def test_rule_3_exactly_once_and_in_order(loss: float) -> None:
    for seed in range(8):
        run(Link, seed, loss).all_delivered()


class OutOfOrder(Link):
    """Rule 3*, broken: what is ahead is not waited for."""

    __slots__ = ()

    def _deliverable(self, sequence: int, message: Message, size: int) -> list[Message]:
        if sequence <= self._acknowledged:
            return []
        self._acknowledged = sequence
        return [message]


class Again(Link):
    """Rule 3*, broken: repetitions are delivered."""

    __slots__ = ()

    def _deliverable(self, sequence: int, message: Message, size: int) -> list[Message]:
        return super()._deliverable(sequence, message, size) or [message]


@pytest.mark.parametrize("broken", [OutOfOrder, Again])
def test_canary_rule_3(broken: type[Link]) -> None:
    with pytest.raises(AssertionError):
        run(broken, 1, 0.2).all_delivered()


def begin_anew(kind: type[Link]) -> None:
    """Both sides hang up and restart again and again, while frames of earlier sessions are in transit."""
    for seed in range(60):
        _begin_anew(kind, Random(seed))


def _begin_anew(kind: type[Link], rng: Random) -> None:
    channel = Channel(kind)
    for _ in range(300):
        name = rng.choice([A, B])
        act = rng.random()
        if act < 0.03:
            channel.hang_up(name)
        elif act < 0.05:
            channel.restart(name)
        elif act < 0.6:
            channel.post(name, 100)
        if channel.air:  # mostly the newest: others come late
            at = len(channel.air) - 1 if rng.random() < 0.7 else rng.randrange(len(channel.air))
            channel.arrive(at, keep=rng.random() < 0.3)
        if rng.random() < 0.05:
            channel.tick(60_000)


def test_rule_3_no_session_comes_twice() -> None:
    begin_anew(Link)


class Lowered(Link):
    """Rule 3*, broken: after a restart, a frame of an earlier session may lower the neighbour's number again."""

    __slots__ = ()

    def _other_session(self, frame: Frame, now: int) -> bool:
        restarts = self.restarts
        if not self._heard and frame.session[0] < self._theirs:
            self._theirs = frame.session[0]
            self._session = (self._mine, self._theirs)
            return True
        is_present = super()._other_session(frame, now)
        self._heard &= self.restarts == restarts
        return is_present


def test_canary_rule_3_no_session_comes_twice() -> None:
    with pytest.raises(AssertionError):
        begin_anew(Lowered)


def test_a_late_frame_of_an_earlier_session_numbers_nothing_anew() -> None:
    link = Link(B, 1, 0, SMALL)
    mine, early, present = 1 << 16, 7 << 16, (7 << 16) + 1
    link.step(Frame((early, mine), 0, 0, 1000, None), 0)
    link.step(Frame((present, 1), 0, 0, 1000, None), 0)
    posted = frames(link.post(word(1), 0, 10) + link.post(word(2), 0, 10))
    link.step(Frame((early, mine), 0, 0, 1000, None), 0)
    link.step(Frame((present, mine), 0, 0, 1000, None), 0)
    posted += frames(link.post(word(3), 0, 10))
    assert [(each.session, each.sequence) for each in posted] == [((mine, present), at) for at in (1, 2, 3)]
    assert (link.restarts, link.stale) == (1, 1)


def pair() -> tuple[Link, Link]:
    """Two links that know each other."""
    a, b = Link(B, 1, 0, SMALL), Link(A, 7, 0, SMALL)
    (first,) = frames(a.post(word(0), 0, 100))
    messages, effects = b.step(first, 1)
    assert messages == []  # a does not know which life of b it speaks to
    assert a.step(frames(effects)[0], 2) == ([], [])
    (again,) = frames(a.tick(2))
    assert b.step(again, 3)[0] == [word(0)]
    (acknowledged,) = frames(b.tick(3 + SMALL.acknowledge_us))
    a.step(acknowledged, 4)
    assert a.idle
    return a, b


def test_an_acknowledgement_rides_on_what_is_posted() -> None:
    a, b = pair()
    (frame,) = frames(a.post(word(1), 10_000, 100))
    assert b.step(frame, 10_100) == ([word(1)], [])
    (back,) = frames(b.post(word(2), 10_200, 100))
    assert back.acknowledged == 2
    assert a.step(back, 10_300)[0] == [word(2)]
    assert a.idle
    assert b.tick(60_200) == [Send(A, Frame(back.session, 1, 2, 1000, word(2)))]  # only its own is repeated


def test_a_duplicate_is_acknowledged_at_once() -> None:
    a, b = pair()
    (frame,) = frames(a.post(word(1), 10_000, 100))
    b.step(frame, 10_100)
    messages, effects = b.step(frame, 10_200)
    assert messages == []
    assert frames(effects)[0].acknowledged == 2


def test_the_window_holds_back_and_opens() -> None:
    a, b = pair()
    assert a.has_credit
    sent = frames(a.post(word(1), 0, 600)) + frames(a.post(word(2), 0, 400))
    assert a.post(word(3), 0, 400) == []
    assert a.post(word(4), 0, 1) == []  # does not overtake
    assert (a.queued_bytes, a.has_credit, a.idle) == (401, False, False)
    b.step(sent[0], 10)
    (acknowledgement,) = frames(b.tick(10 + SMALL.acknowledge_us))
    _, effects = a.step(acknowledgement, 20)
    assert [frame.message for frame in frames(effects)] == [word(3), word(4)]
    assert a.queued_bytes == 0


def test_a_message_larger_than_the_window_passes_alone() -> None:
    a, _ = pair()
    assert len(a.post(word(1), 0, 5_000)) == 1
    assert a.post(word(2), 0, 10) == []


def test_a_timeout_doubles_and_progress_resets_it() -> None:
    a, b = pair()
    a.post(word(1), 0, 100)
    a.post(word(2), 0, 100)
    waits, now = [], 0
    for _ in range(8):
        deadline = a.deadline
        assert deadline is not None
        waits.append(deadline - now)
        now = deadline
        repeated = frames(a.tick(now))
        assert [frame.sequence for frame in repeated] == [2, 3]
    assert waits == [50_000, 100_000, 200_000, 400_000, 800_000, 1_600_000, 1_600_000, 1_600_000]
    assert a.silent_since == 0
    b.step(repeated[0], now)
    (acknowledgement,) = frames(b.tick(now + SMALL.acknowledge_us))
    a.step(acknowledgement, now)
    assert a.deadline == now + SMALL.retransmit_us_min
    assert a.silent_since == now


def test_a_restart_is_reported_and_drops_queued_messages() -> None:
    a, b = pair()
    stale = frames(b.post(word(5), 0, 100))
    a.post(word(1), 0, 100)
    again = Link(A, 8, 0, SMALL)
    (frame,) = frames(a.tick(50_000))
    assert again.step(frame, 0)[0] == []
    (answer,) = frames(again.step(frame, 0)[1])
    a.step(answer, 60_000)
    assert (a.restarts, a.idle) == (1, True)
    assert a.step(stale[0], 70_000) == ([], [])  # a straggler of the life before


def test_a_clock_that_steps_back_takes_timers_along() -> None:
    a, _ = pair()
    a.post(word(1), 10_000_000, 100)
    a.post(word(2), 5_000_000, 100)
    assert a.deadline == 5_050_000
    assert a.silent_since == 5_000_000
