"""Which bundles a master takes together."""

from __future__ import annotations

from elf.jobmaster.master.round import Round
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Bundle
from elf.srt.messages.parameters import MS
from elf.srt.messages.sizes import bundle_bytes

A, B, C = (node_id(name) for name in (b"a", b"b", b"c"))
BEAT = 200 * MS
T = 1_000_000_000


def bundle_of(worker: bytes, number: int) -> Bundle:
    return Bundle(b"j" * 16, (worker, 1, number), 1, {(worker, 1, 0): (number, number + 1, 0)}, T, {}, {})


class Clocked:
    """A round, and who was taken when."""

    def __init__(self) -> None:
        self.round, self.count = Round(BEAT, 1 << 20), 0
        self.taken: list[tuple[int, str]] = []

    def add(self, who: str, at: int) -> None:
        self.tick(at)
        self.count += 1
        self.round.add({"a": A, "b": B, "c": C}[who], bundle_of(A, self.count), at)
        self.tick(at)

    def tick(self, at: int) -> None:
        deadline = self.round.deadline
        now = at if deadline is None or deadline > at else deadline
        if self.round.is_over(now):
            names = {A: "a", B: "b", C: "c"}
            self.taken.append((now, "".join(names[child] for child, _ in self.round.take())))


def steady(clocked: Clocked, beats: range, who: str = "abc") -> None:
    for beat in beats:
        for number, each in enumerate(who):
            clocked.add(each, T + beat * BEAT + number * 10 * MS)


def test_those_of_a_beat_are_taken_when_the_last_one_has_come() -> None:
    clocked = Clocked()
    steady(clocked, range(4))
    assert [names for _, names in clocked.taken] == ["a", "b", "c", "a", "b", "c", "abc", "abc"]
    assert clocked.taken[-1][0] == T + 3 * BEAT + 20 * MS


def test_after_a_pause_a_line_does_not_wait() -> None:
    clocked = Clocked()
    steady(clocked, range(4))
    clocked.add("b", T + 10 * BEAT)
    clocked.add("a", T + 11 * BEAT)
    assert clocked.taken[-2:] == [(T + 10 * BEAT, "b"), (T + 11 * BEAT, "a")]


def test_one_that_does_not_come_delays_the_others_by_half_a_beat_and_only_once() -> None:
    clocked = Clocked()
    steady(clocked, range(4))
    steady(clocked, range(4, 7), "ab")
    clocked.tick(T + 8 * BEAT)
    assert clocked.taken[-3:] == [
        (T + 4 * BEAT + BEAT // 2, "ab"),
        (T + 5 * BEAT + 10 * MS, "ab"),
        (T + 6 * BEAT + 10 * MS, "ab"),
    ]


def test_one_that_comes_late_is_taken_at_once() -> None:
    clocked = Clocked()
    steady(clocked, range(4))
    clocked.add("a", T + 4 * BEAT)
    clocked.add("b", T + 4 * BEAT + 1)
    clocked.add("c", T + 4 * BEAT + 130 * MS)
    assert clocked.taken[-2:] == [(T + 4 * BEAT + BEAT // 2, "ab"), (T + 4 * BEAT + 130 * MS, "c")]


def test_many_bytes_do_not_wait() -> None:
    round = Round(BEAT, bundle_bytes(bundle_of(A, 0)) * 2)
    for beat in range(3):
        for number, child in enumerate((A, B)):
            round.add(child, bundle_of(child, beat), T + beat * BEAT + number)
            if beat < 2:
                round.take()
    assert round.take()
    now = T + 3 * BEAT
    round.add(A, bundle_of(A, 3), now)
    assert not round.is_over(now)
    for number in (4, 5):
        round.add(A, bundle_of(A, number), now)
    assert round.is_over(now)


def test_a_clock_that_is_set_back_ends_the_round() -> None:
    clocked = Clocked()
    steady(clocked, range(4))
    clocked.add("a", T + 4 * BEAT)
    assert not clocked.round.is_over(T + 4 * BEAT)
    assert clocked.round.is_over(T)
