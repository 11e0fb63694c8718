"""The entries that a master keeps while a node is missing, and how it offers them; compared with lines that are each one bit of a
sum."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.cbt.budget import Budget
from elf.jobmaster.log.entries import Accept
from elf.jobmaster.log.handover import FIRST_ID, Offering, Unshared
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.positions import Positions
from elf.srt.messages.effects import Notice, Post
from elf.srt.messages.messages import CLOSED, FIRST, GAP, NO_BALLOT, Bundle, Commit, Resend, Slot, Span, Split
from elf.srt.messages.parameters import Parameters
from tests.rigs.master_rig import T0, Rig, spec_of
from tests.rigs.mesh_lines import SECOND, LogLine, counts_of, plan_of

ME, JOB = b"L" * 16, b"J" * 16
A, B = b"a" * 16, b"b" * 16
LINE = 10


def entry(spans: dict[Slot, Span], watermark: int = T0, lagging: dict[bytes, int] | None = None) -> Accept:
    return Accept(1, spans, watermark, lagging or {}, {})


def span(worker: bytes, start: int, end: int, flags: int = 0) -> dict[Slot, Span]:
    return {(worker, 1, 0): (start, end, flags)}


def small(bytes_max: int) -> Unshared:
    return Unshared(bytes_max, run_bytes_max=1 << 20, unsure_us=10, settled_us=1_000)


def test_nothing_is_kept_while_no_node_is_missing() -> None:
    unshared = small(1 << 20)
    assert unshared.keep(entry(span(A, 0, 10)), 0, 5) == []
    assert unshared.entries == []


def test_entries_are_kept_from_a_loss_until_all_nodes_have_been_back_for_long() -> None:
    unshared = small(1 << 20)
    first, second, third = (entry(span(A, at, at + 10)) for at in (0, 10, 20))
    unshared.keep(first, 1, 100)
    unshared.keep(second, 0, 1_100)  # back, but only just
    assert unshared.entries == [first, second]
    unshared.keep(third, 0, 1_101)
    assert unshared.entries == []


def test_past_the_bound_deltas_of_the_same_workers_are_joined_except_those_in_flight_at_a_loss() -> None:
    unshared = small(480)
    for n in range(12):  # 40 bytes each
        unshared.keep(entry(span((A, B)[n % 2], n // 2 * 10, n // 2 * 10 + 10), n), 1, n * 5)
        unshared.check()
    assert len(unshared.entries) == 12
    last = entry(span(A, 60, 70, 2), 99, {A: 7})
    unshared.keep(replace(last, unparsed={A: (T0, T0 + SECOND)}), 1, 60)
    unshared.check()
    spans = [next(iter(each.contributions.items())) for each in unshared.entries]
    assert spans == [
        ((A, 1, 0), (0, 10, 0)),
        ((B, 1, 0), (0, 10, 0)),
        ((A, 1, 0), (10, 20, 0)),
        ((B, 1, 0), (10, 60, 0)),
        ((A, 1, 0), (20, 70, 2)),
    ]
    assert unshared.entries[-1].watermark == 99
    assert unshared.entries[-1].lagging == {A: 7}
    assert unshared.entries[-1].unparsed == {A: (T0, T0 + SECOND)}
    assert not unshared.entries[-1].promises


def test_workers_that_were_ever_in_one_bundle_are_joined() -> None:
    unshared = Unshared(300, 1 << 20, unsure_us=-1, settled_us=1_000)
    other = bytes(16)
    unshared.keep(entry(span(A, 0, 10)), 1, 0)
    unshared.keep(entry(span(other, 0, 10)), 1, 1)
    unshared.keep(entry({**span(A, 10, 20), **span(B, 0, 10)}), 1, 2)
    unshared.keep(entry(span(B, 10, 20)), 1, 3)
    unshared.keep(entry(span(B, 20, 30)), 1, 4)
    unshared.keep(entry(span(other, 10, 20)), 1, 5)
    unshared.keep(entry(span(A, 20, 30)), 1, 6)
    assert [each.contributions for each in unshared.entries] == [
        {**span(A, 0, 30), **span(B, 0, 30)},
        span(other, 0, 20),
    ]


def test_spans_that_do_not_meet_and_gaps_are_not_joined() -> None:
    unshared = Unshared(120, 1 << 20, unsure_us=-1, settled_us=1_000)
    unshared.keep(entry(span(A, 0, 10)), 1, 0)
    unshared.keep(entry(span(A, 10, 20)), 1, 1)
    unshared.keep(entry(span(A, 30, 40)), 1, 2)
    assert [next(iter(each.contributions.values()))[:2] for each in unshared.entries] == [
        (0, 10),
        (10, 20),
        (30, 40),
    ]
    unshared.keep(entry(span(A, 40, 50, GAP)), 1, 3)  # joined: three runs, too many for three quarters
    assert unshared.given_up
    assert unshared.entries == []


def test_too_much_is_dropped_and_reported_once_until_all_nodes_are_back() -> None:
    unshared = small(100)
    notices = [
        effect
        for at in range(6)
        for effect in unshared.keep(entry(span(bytes([at]) * 16, 0, 10)), 1, at)
        if isinstance(effect, Notice)
    ]
    assert [notice.kind for notice in notices] == ["handover"]
    unshared.keep(entry(span(A, 0, 10)), 0, 5_000)
    again = entry(span(A, 10, 20))
    unshared.keep(again, 1, 5_001)
    assert unshared.entries == [again]


def test_a_master_that_begins_with_anothers_log_keeps_nothing_of_its_own() -> None:
    unshared = small(1 << 20)
    kept = entry(span(A, 0, 10, FIRST))
    unshared.keep(kept, 1, 0)
    own, others = Positions(), Positions()
    own.apply(kept)
    unshared.begin(own)
    assert unshared.entries == [kept]
    unshared.begin(others)
    assert unshared.entries == []
    unshared.keep(kept, 0, 1)  # the offer of it was accepted
    assert unshared.entries == [kept]


def test_a_file_that_is_done_in_its_lane_does_not_make_the_own_log_anothers() -> None:
    unshared, own = small(1 << 20), Positions()
    first = entry({(A, 1, 0): (0, 50, FIRST), (A, 1, 7): (40, 40, CLOSED | GAP)})
    later = entry({(A, 1, 0): (50, 60, 0), (A, 1, 7): (30, 30, CLOSED)})  # read before the file was lost
    for each in (first, later):
        own.apply(each)
        unshared.keep(each, 1, 0)
        unshared.check()
    unshared.begin(own)
    assert unshared.entries == [first, later]


# Offering.


def offering(entries: list[Accept], sent_bytes_max: int = 100) -> Offering:
    made = Offering(JOB, ME, 3, sent_bytes_max, 1_000)
    made.offer(entries, 0)
    made.check()
    return made


def deltas(count: int) -> list[Accept]:
    return [entry(span(A, n * 10, n * 10 + 10)) for n in range(count)]


def test_entries_are_offered_in_order_some_at_a_time_as_bundles_that_come_again() -> None:
    made = offering(deltas(5))
    first = made.take_bundles()
    assert [next(iter(each.contributions.values()))[0] for each in first] == [0, 10, 20]
    assert [each.id for each in first] == [(ME, 3, FIRST_ID), (ME, 3, FIRST_ID + 2), (ME, 3, FIRST_ID + 4)]
    assert all(each.again and each.ballot == NO_BALLOT for each in first)
    assert made.take_bundles() == []
    assert made.step(Commit(JOB, (2, B), (first[0].id, (ME, 3, 1))), 1) == []
    assert len(made.take_bundles()) == 1
    made.check()


def test_every_answer_ends_one_and_the_last_reports_the_outcome() -> None:
    made = offering(deltas(2))
    one, two = made.take_bundles()
    made.step(Commit(JOB, (2, B), (one.id,)), 1)
    (notice,) = made.step(Split(JOB, (2, B), two.id, (), ()), 2)
    assert isinstance(notice, Notice)
    assert "the other side's master has 1 now; 1 did not fit" in notice.text
    assert made.is_empty
    made.check()


def test_a_bundle_that_no_node_holds_is_offered_again() -> None:
    made = offering(deltas(2))
    one, two = made.take_bundles()
    made.step(Resend(JOB, ()), 1)
    made.step(Resend(JOB, (two.id,)), 1)
    assert made.take_bundles() == [one, two]
    assert made.take_bundles() == []


@pytest.mark.parametrize("back_us", [0, 5_000])
def test_an_offering_ends_in_time_whatever_the_clock(back_us: int) -> None:
    made = offering(deltas(4))
    made.take_bundles()
    assert made.tick(999 - back_us) == []
    (notice,) = made.tick(1_000)
    assert isinstance(notice, Notice)
    assert made.is_empty
    assert made.deadline is None
    made.check()


def test_a_second_defeat_adds_what_is_new() -> None:
    some = deltas(4)
    made = offering(some[:3], sent_bytes_max=40)
    made.take_bundles()
    made.offer(some, 5)  # the first is in flight already, and is offered again
    found = []
    while not made.is_empty:
        for bundle in made.take_bundles():
            found.append(next(iter(bundle.contributions.values()))[0])
            made.step(Commit(JOB, (2, B), (bundle.id,)), 6)
        made.step(Commit(JOB, (2, B), tuple(made._sent)), 6)
    assert found == [0, 10, 20, 30]


# Two masters, from one log.


class Parted:
    """Four workers' logs of fourteen lines; line i of all has 2^i bytes, so a sum and its hits show which lines it includes, and
    that each is included once."""

    def __init__(self, rng: Random, bytes_max: int) -> None:
        self.rng = rng
        self.workers = [bytes([n + 1]) * 16 for n in range(4)]
        self.lines: dict[bytes, list[LogLine]] = {
            worker: [(T0 + SECOND, 0, 1 << (14 * n + i)) for i in range(14)]
            for n, worker in enumerate(self.workers)
        }
        spec = spec_of(plan_of("10 seconds"))
        self.loser = Rig(spec)
        for worker in self.workers:
            self.read(self.loser, [worker], rng.randrange(4), flags=FIRST)
        state = JobState(spec.id, spec.name, Budget(1 << 28))
        state.restore(self.loser.state.snapshot())
        self.winner = Rig(spec, state=state, ballot=(2, b"W" * 16))
        self.unshared = Unshared(bytes_max, 1 << 20, unsure_us=rng.choice((0, 3)), settled_us=1_000)

    def at(self, rig: Rig, worker: bytes) -> int:
        position = rig.state.positions.position((worker, 1, 0))
        return position.offset // LINE if position is not None else 0

    def read(self, rig: Rig, workers: list[bytes], most: int = 3, flags: int = 0) -> None:
        """A bundle of the next lines of these workers, from that master's committed positions."""
        spans: dict[Slot, Span] = {}
        lines: list[LogLine] = []
        for worker in workers:
            start = self.at(rig, worker)
            end = min(14, start + self.rng.randint(0, most))
            spans[worker, 1, 0] = (start * LINE, end * LINE, flags)
            lines += self.lines[worker][start:end]
        rig.bundle(spans, lines)

    def lose(self, workers: list[bytes], now: int) -> None:
        """The loser accepts and keeps the bundle."""
        known = len(self.loser.log)
        self.read(self.loser, workers)
        for _, each in self.loser.log[known:]:
            if isinstance(each, Accept):
                self.unshared.keep(each, 1, now)
        self.unshared.check()

    def check(self) -> None:
        """The winner has every line before its positions, once, and no other."""
        self.winner.run(SECOND)
        shown = [window for window in self.winner.windows() if window.rows]
        hits, total = 0, 0
        for path_hits, path_bytes in counts_of(shown[-1].rows).values() if shown else ():
            hits, total = hits + path_hits, total + path_bytes
        expected = [
            line for worker in self.workers for line in self.lines[worker][: self.at(self.winner, worker)]
        ]
        assert total == sum(line[2] for line in expected)
        assert hits == len(expected)


def deliver(parted: Parted, made: Offering, bundles: list[Bundle]) -> None:
    """Pass the bundles to the winner, and its answers back."""
    for bundle in bundles:
        parted.winner.give(bundle, ME)
    answer(parted, made)


def answer(parted: Parted, made: Offering) -> None:
    effects, parted.winner.effects = parted.winner.effects, []
    for effect in effects:
        if isinstance(effect, Post) and effect.to == ME and isinstance(effect.message, Commit | Split):
            made.step(effect.message, 0)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_in_order_all_entries_that_only_the_loser_had_are_taken_over(seed: int) -> None:
    rng = Random(seed)
    parted = Parted(rng, rng.choice((3_000, 20_000, 1 << 20)))
    mine, theirs = parted.workers[:2], parted.workers[2:]
    for now in range(12):
        parted.lose(rng.sample(mine, rng.randint(1, 2)), now)
        parted.read(parted.winner, theirs)
    made = Offering(parted.winner.spec.id, ME, 1, rng.choice((1, 1_000, 1 << 20)), 1_000)
    made.offer(parted.unshared.entries, 0)
    while not made.is_empty:
        deliver(parted, made, made.take_bundles())
        made.check()
    parted.check()
    if not parted.unshared.given_up:
        assert [parted.at(parted.winner, worker) for worker in mine] == [
            parted.at(parted.loser, w) for w in mine
        ]


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_no_line_counts_twice_whatever_comes_between(seed: int) -> None:
    """Entries of workers of both sides, workers that read again meanwhile, offers that come twice or out of order."""
    rng = Random(seed)
    parted = Parted(rng, rng.choice((2_000, 1 << 20)))
    for now in range(10):
        parted.lose(rng.sample(parted.workers, rng.randint(1, 3)), now)
        if rng.random() < 0.5:
            parted.read(parted.winner, rng.sample(parted.workers, rng.randint(1, 2)))
    made = Offering(parted.winner.spec.id, ME, 1, rng.choice((1, 1 << 20)), 1_000 * SECOND)
    made.offer(parted.unshared.entries, 0)
    for _ in range(40):
        bundles = made.take_bundles()
        if rng.random() < 0.3:
            rng.shuffle(bundles)
        deliver(parted, made, bundles + rng.sample(bundles, rng.randint(0, len(bundles))))
        if rng.random() < 0.3:
            parted.read(parted.winner, rng.sample(parted.workers, rng.randint(1, 2)))
        if rng.random() < 0.2:
            made.step(Resend(parted.winner.spec.id, ()), 0)
        parted.winner.tick(Parameters().park_us // 3)
        answer(parted, made)
        made.check()
    parted.check()
