"""The beats of a source, kept in its thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.host.beats import KEPT_S, Beats, Kept
from elf.srt.messages.effects import Read

BEAT_US = 1_000
"""So that a test takes milliseconds."""


class Source:
    """Notes which `Read` is asked at which beat. `still`: these beats find nothing new. `answers`: what the reads return."""

    def __init__(self, *, still: Sequence[int] = (), answers: dict[bytes, object] | None = None) -> None:
        self.beats: list[list[bytes]] = []
        self.counters = SimpleNamespace(read_bytes=0)
        self.nbytes, self.beats_max = 0, 1_000
        self._still, self._answers, self._now_us = still, answers or {}, 0

    def read_if_due(self, read: Read, schedule: object, clock_us: int, now_s: float) -> object:
        if clock_us != self._now_us:
            self._now_us = clock_us
            self.beats.append([])
            self.counters.read_bytes += len(self.beats) not in self._still
        self.beats[-1].append(read.job)
        answer = self._answers.get(read.job)
        if isinstance(answer, Exception):
            raise answer
        return answer


def jobs(count: int) -> list[Read]:
    return [Read(b"%d" % number, 1, 0, {}, 0, due_us=1 << 62) for number in range(count)]


def keep(
    source: Source, reads: Sequence[Read], *, since_us: int = 0, grown_max: int = 100, beats: int = 50
) -> Kept:
    """On a clock that goes a beat ahead at each look; and the loop wants the thread after so many beats."""
    now_us = since_us

    def clock_us() -> int:
        nonlocal now_us
        now_us += BEAT_US
        if len(source.beats) == beats - 1:
            kept.interrupt()
        return now_us

    kept = Beats(source, clock_us, grown_max)  # type: ignore[arg-type]
    return kept.keep([(read, ()) for read in reads], {read.job: read for read in reads}, since_us, BEAT_US)


def test_beats_are_kept_until_one_is_due_and_an_error_is_an_answer() -> None:
    """What is due is asked at each beat, besides what has its turn."""
    first, second, late = jobs(3)
    due = Read(b"due", 1, 0, {}, 0, due_us=1)
    for answer in ("a cut", ValueError("no")):
        source = Source(answers={b"due": answer})
        kept = keep(source, [first, second, late, due])
        assert kept.answers == [(due, answer)]
        assert source.beats == [[b"0", b"due"]]
        assert kept.turned == 1


def test_each_read_has_its_turn() -> None:
    source = Source()
    kept = keep(source, jobs(3), beats=4)
    assert source.beats == [[b"0"], [b"1"], [b"2"], [b"0"]]
    assert kept == Kept([], 1, kept.last_us, is_still=False)


def test_after_a_long_pause_many_have_their_turn_at_once() -> None:
    """All within half of the time after which a reading expires."""
    source, reads = Source(), jobs(10)
    waiting, clock = {read.job: read for read in reads}, iter((2_500_000,))
    kept = Beats(source, lambda: next(clock), 100).keep([(read, ()) for read in reads], waiting, 0, 0)  # type: ignore[arg-type]
    assert source.beats == [[b"%d" % number for number in range(6)]]
    assert kept.turned == 6


@pytest.mark.parametrize(
    ("source", "grown_max", "beats", "is_still"),
    [(Source(still=[3]), 100, 3, True), (Source(), -1, 1, False)],
    ids=["nothing new", "much more is held"],
)
def test_the_loop_is_told(source: Source, grown_max: int, beats: int, is_still: bool) -> None:
    kept = keep(source, jobs(1), grown_max=grown_max)
    assert (len(source.beats), kept.is_still) == (beats, is_still)


def test_a_read_that_was_replaced_is_left_alone() -> None:
    read, other = Read(b"job", 1, 0, {}, 0), Read(b"job", 2, 0, {}, 0)
    source: Any = Source(answers={b"job": "a cut"})
    assert Beats(source, lambda: 1, 100).read_on([(read, ())], {b"job": other}, 1) == []
    assert source.beats == []


def test_a_wait_for_the_next_beat_ends_when_the_thread_is_wanted() -> None:
    """A beat of a day, in which nothing would happen."""
    source: Any = Source()
    (read,) = jobs(1)
    beats, found = Beats(source, lambda: len(source.beats) + 1, 100), list[Kept]()
    thread = threading.Thread(
        target=lambda: found.append(beats.keep([(read, ())], {read.job: read}, 0, int(KEPT_S * 9e5)))
    )
    thread.start()
    beats.interrupt()
    thread.join()
    assert len(source.beats) == 1
    assert [kept.answers for kept in found] == [[]]
