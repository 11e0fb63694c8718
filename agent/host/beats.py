"""The beats of a source: at each, new lines are read for all jobs, and those whose `Read` is due are answered.

They are kept in the source's thread, without a wake of the loop, which takes longer than to read a few lines. The thread returns
to the loop

    a `Read` is due, or fails       with its answer
    no log had anything new         so that beats may be left out
    the source has grown much       so that memory is looked at
    the loop wants the thread       for something else, or with another `Read`
    else after `KEPT_S`             so that work is accounted for
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from elf.agent.work.mesh_source import ABSENT_S, MeshSource
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Micros, Schedule

KEPT_S = 1.0
"""So long the thread keeps beats before the loop hears of them."""
TURN_S = ABSENT_S / 2
"""Within this time each waiting `Read` has its turn, or its reading would expire. In between, its job gets lines through the
others of its source."""

Answer = tuple[Read, Cut | BaseException]
Asked = tuple[Read, Schedule]


class Kept(msgspec.Struct, frozen=True):
    """turned: the place, among those that were asked, whose turn is next. last_us: the time of the last beat. is_still: no log
    had anything new then."""

    answers: Sequence[Answer]
    turned: int
    last_us: Micros
    is_still: bool


class Beats:
    """The beats of one source. `keep` and `read_on` are called in its thread, the others on the loop. grown_max: bytes by which
    the source may grow before the loop hears of it."""

    def __init__(self, source: MeshSource, clock_us: Callable[[], Micros], grown_max: int) -> None:
        self._source, self._clock_us, self._grown_max = source, clock_us, grown_max
        self._is_wanted = threading.Event()

    def interrupt(self) -> None:
        """Have `keep` return before its next beat."""
        self._is_wanted.set()

    def resume(self) -> None:
        """The next `keep` is not interrupted by what was before."""
        self._is_wanted.clear()

    def keep(
        self, asked: Sequence[Asked], waiting: Mapping[JobId, Read], since_us: Micros, beat_us: Micros
    ) -> Kept:
        """Keep the present beat and the next ones. since_us: the last one was then. beat_us: between two of them; 0: keep one."""
        turned, end_s = 0, time.monotonic() + KEPT_S
        nbytes_max = self._source.nbytes + self._grown_max
        while True:
            clock_us = self._clock_us()
            share = (clock_us - since_us) / (TURN_S * 1e6)
            last, since_us = min(turned + 1 + max(0, int(len(asked) * share)), len(asked)), clock_us
            turn = asked[turned:last]
            due = [each for each in (*asked[:turned], *asked[last:]) if each[0].due_us <= clock_us]
            turned, known = last % len(asked), self._source.counters.read_bytes
            answers = self.read_on((*turn, *due), waiting, clock_us)
            is_still = self._source.counters.read_bytes == known
            wait_s = (beat_us - clock_us % beat_us) / 1e6 if beat_us else KEPT_S
            is_much = self._source.nbytes > nbytes_max
            is_over = is_still or is_much or bool(answers) or time.monotonic() + wait_s > end_s
            if is_over or self._is_wanted.wait(wait_s):
                return Kept(answers, turned, clock_us, is_still)

    def read_on(
        self, asked: Sequence[Asked], waiting: Mapping[JobId, Read], clock_us: Micros
    ) -> list[Answer]:
        """Read on for each of these. Returns the answers to those that are due; an error is that job's. waiting: a `Read` that
        another has replaced there meanwhile must not be cut, or the other would begin a new reading."""
        answers: list[Answer] = []
        now_s = time.monotonic()
        for read, schedule in asked:
            if waiting.get(read.job) is not read:
                continue
            try:
                cut = self._source.read_if_due(read, schedule, clock_us, now_s)
            except Exception as error:
                answers.append((read, error))
            else:
                answers += [(read, cut)] if cut is not None else []
        return answers
