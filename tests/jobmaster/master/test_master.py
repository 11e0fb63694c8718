"""The master's rules, one by one: which bundles are accepted, dropped, parked, split; when it answers; when a window is final."""

from __future__ import annotations

import msgspec
import pytest

from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import Accept, Add, Final
from elf.srt.messages.effects import Send
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Commit, Goodbye, Hello, Position, Welcome
from elf.srt.messages.partial import Part
from elf.srt.messages.results import Put, PutReply
from tests.rigs.master_rig import BALLOT, CHILD, LATE, PARAMETERS, SINK, T0, A, B, Rig, file, opened, spec_of
from tests.rigs.mesh_lines import SECOND, part_of, plan_of

C = b"\x03" * 16
SIZE = 10 * SECOND


# Rule 4.


def test_rule_4_a_bundle_at_its_place_is_accepted() -> None:
    rig = Rig()
    one = rig.bundle({file(A): (0, 100, FIRST)}, [(T0, 1, 5)])
    two = rig.bundle({file(A): (100, 200, 0), file(B): (7, 9, FIRST)}, [(T0 + 1, 1, 7), (T0 + 2, 2, 1)])
    assert rig.committed() == [one.id, two.id]
    assert rig.state.positions.at == {file(A): 200, file(B): 9}
    rig.master.check()


def test_rule_4_a_bundle_behind_is_dropped_and_committed_again() -> None:
    rig = opened()
    again = rig.bundle({file(A): (0, 100, FIRST), file(B): (40, 90, 0)}, [(T0, 1, 5)])
    assert rig.committed() == [again.id]
    assert not rig.state.panes[again_version(rig)].lines().pane.tolist()


def again_version(rig: Rig) -> str:
    return rig.state.schedule[-1].version


@pytest.mark.parametrize("end", [0, 50])
def test_rule_4_a_file_that_is_closed_before_its_position_is_no_repetition(end: int) -> None:
    rig = opened()
    early = rig.bundle({file(A): (0, end, FIRST | CLOSED | GAP)})
    (split,) = rig.splits()
    assert (split.id, split.positions) == (early.id, ((file(A), Position(100)),))
    assert rig.committed() == []
    last = rig.bundle({file(A): (100, 100, CLOSED | GAP)})
    assert rig.committed() == [last.id]
    again = rig.bundle({file(A): (0, end, FIRST | CLOSED | GAP)})
    assert rig.committed() == [again.id], "it is closed by now"


def test_rule_4_an_idle_file_does_not_hold_a_repeated_bundle() -> None:
    rig = opened()
    idle = {file(B): (100, 100, 0)}
    rig.bundle({file(A): (100, 150, 0), **idle}, [(T0, 1, 5)])
    repeated = rig.bundle({file(A): (100, 150, 0), **idle}, [(T0, 1, 5)])
    assert repeated.id in rig.committed()
    assert told_total(rig) == 1


def told_total(rig: Rig) -> int:
    """Lines read in all panes."""
    return int(sum(panes.lines().lanes[0].sum() for panes in rig.state.panes.values()))


def test_rule_4_a_bundle_ahead_waits_for_the_missing_one() -> None:
    rig = opened()
    third = rig.bundle({file(A): (300, 400, 0)}, [(T0, 1, 3)])
    second = rig.bundle({file(A): (200, 300, 0)}, [(T0, 1, 2)])
    assert rig.committed() == []
    first = rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 1)])
    assert rig.committed() == [first.id, second.id, third.id]
    assert told_total(rig) == 3
    assert not len(rig.master.intake.parking)


def test_rule_4_a_bundle_parked_for_too_long_is_split() -> None:
    rig = opened()
    ahead = rig.bundle({file(A): (300, 400, 0), file(B): (100, 110, 0)})
    rig.tick(PARAMETERS.park_us - 1)
    assert not rig.splits()
    rig.tick(1)
    (split,) = rig.splits()
    assert (split.id, split.positions) == (ahead.id, ((file(A), Position(100)),))


def test_rule_4_parked_bundles_wait_anew_when_the_clock_goes_back() -> None:
    rig = opened()
    rig.bundle({file(A): (300, 400, 0)})
    rig.tick(-3600 * SECOND)
    rig.tick(PARAMETERS.park_us - 1)
    assert not rig.splits()
    rig.tick(1)
    assert rig.splits()


def test_rule_4_a_bundle_without_room_in_the_parking_is_split() -> None:
    rig = Rig(parameters=msgspec.structs.replace(PARAMETERS, park_bytes_max=1_000))
    rig.bundle({file(A): (0, 100, FIRST)})
    rig.bundle({file(A): (300, 400, 0)}, [(T0, 1, 1)])
    rig.bundle({file(A): (400, 500, 0)}, [(T0 + i * SECOND, i % 12, 1) for i in range(100)])
    assert len(rig.splits()) == 1
    rig.master.check()


@pytest.mark.parametrize(
    "spans",
    [
        {file(A): (50, 150, 0)},
        {file(A): (100, 150, 0), file(B): (0, 50, 0)},
        {file(A): (150, 140, 0)},
        {file(A): (100, 110, 0), (B, 0, 0): (0, 5, FIRST)},
        {file(A, 2): (0, 10, 0), file(B): (90, 110, CLOSED)},
    ],
    ids=[
        "straddles",
        "fits and behind",
        "backwards",
        "no file has bytes",
        "closes across",
    ],
)
def test_rule_4_a_mixed_bundle_is_split_with_the_positions_that_do_not_fit(
    spans: dict[tuple[bytes, int, int], tuple[int, int, int]],
) -> None:
    rig = opened()
    bundle = rig.bundle(spans, [(T0, 1, 5)])
    (split,) = rig.splits()
    assert split.id == bundle.id
    fits = rig.master.ahead.misfits(spans)
    assert [slot for slot, _ in split.positions] == [slot for slot in fits if slot[1]]
    assert told_total(rig) == 0


def test_rule_4_a_worker_only_ahead_in_a_mixed_bundle_does_not_read_again() -> None:
    rig = opened()
    mixed = rig.bundle({file(A): (200, 250, 0), file(B): (0, 50, 0)}, [(T0, 1, 5)])
    (split,) = rig.splits()
    assert (split.id, split.positions) == (mixed.id, ((file(B), Position(100)),))
    apart = rig.bundle({file(A): (200, 250, 0)}, [(T0, 1, 2)])
    missing = rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 1)])
    assert rig.committed() == [missing.id, apart.id]
    assert not rig.splits()
    assert told_total(rig) == 2


def test_rule_4_a_worker_with_one_file_behind_gets_all_its_positions() -> None:
    rig = opened()
    rig.bundle({file(A, 2): (0, 100, FIRST)})
    rig.bundle({file(A): (150, 160, 0), file(A, 2): (50, 60, 0), file(B): (120, 130, 0)}, [(T0, 1, 5)])
    (split,) = rig.splits()
    assert split.positions == ((file(A), Position(100)), (file(A, 2), Position(100)))


def test_unknown_files_open_only_with_first_or_from_zero() -> None:
    rig = opened()
    ahead = rig.bundle({file(A, 9): (50, 60, 0)})
    rig.tick(PARAMETERS.park_us)
    (split,) = rig.splits()
    assert (split.id, split.positions) == (ahead.id, ())
    rig.bundle({file(A, 9): (50, 60, FIRST), file(B, 9): (0, 5, 0)})
    assert len(rig.committed()) == 1


def test_a_worker_that_continues_an_unknown_file_gets_no_positions_so_that_it_asks() -> None:
    rig = opened()
    rig.bundle({file(A): (150, 160, 0), file(A, 9): (50, 50, 0), file(B): (120, 130, 0)})
    rig.tick(PARAMETERS.park_us)
    (split,) = rig.splits()
    assert split.positions == ((file(B), Position(100)),)


def test_file_0_is_always_at_position_0() -> None:
    rig = Rig()
    for _ in range(3):
        rig.bundle({file(A, 0): (0, 0, FIRST)}, watermark=rig.now)
    assert len(rig.committed()) == 3
    assert rig.state.watermarks == {A: T0}


def test_a_watermark_that_was_cut_under_another_master_promises_nothing() -> None:
    """It omits files that the other master has committed to their ends, which this one may lack."""
    rig = Rig()
    rig.bundle({file(A): (0, 100, FIRST)}, watermark=T0 + 5, ballot=(1, b"L" * 16))
    rig.bundle({file(A): (100, 110, 0)}, watermark=T0 + 3)
    assert len(rig.committed()) == 2
    assert rig.state.positions.position(file(A)) == Position(110)
    assert rig.state.watermarks == {A: T0 + 3}


def test_a_worker_that_left_under_another_log_is_missing_until_then() -> None:
    rig = Rig()
    rig.do(rig.master.adverts([(B, AgentAdvert("b", ("access",), 1, T0 + 9, T0 + 9))], rig.now))
    member = rig.state.positions.roster[B]
    assert (member.until_us, member.has_left) == (T0 + 9, False)


def test_a_worker_that_left_another_master_reads_to_the_end_again() -> None:
    """Its lines may be in a log that is lost."""
    rig = opened()
    rig.take(Welcome)
    rig.do(rig.master.goodbye(Goodbye(rig.spec.id, A, T0 + 9, 4, (1, b"L" * 16)), rig.now))
    assert [message.incarnation for message in rig.take(Welcome)] == [4]
    assert rig.state.positions.roster[A].until_us > T0 + 9


def test_rule_10_closed_files_continue_at_their_end() -> None:
    rig = opened()
    rig.bundle({file(A): (100, 150, CLOSED)})
    rig.bundle({file(A): (150, 150, CLOSED), file(B): (100, 120, 0)})
    rig.bundle({file(A): (0, 150, FIRST)})
    assert len(rig.committed()) == 3
    assert rig.state.positions.position(file(A)) == Position(150, closed=True)
    rig.bundle({file(A): (140, 160, 0)})
    assert len(rig.splits()) == 1
    rig.bundle({file(A): (150, 160, 0)})
    assert rig.state.positions.position(file(A)) == Position(160)


def test_rows_of_another_shape_are_split() -> None:
    rig = opened()
    version = again_version(rig)
    good = part_of(plan_of(), [(T0, 1, 5)])
    bad = Part((good.ops[1], good.ops[0]), good.rows)
    made = rig.bundle({file(A): (100, 110, 0)}, watermark=T0)
    for parts in ({version: bad}, {"another": good}):
        rig.take(Commit)
        rig.give(msgspec.structs.replace(made, parts=parts, contributions={file(A): (110, 120, 0)}))
        assert len(rig.splits()) == 1


# Rule 6.


def test_rule_6_nothing_is_acknowledged_before_it_is_in_the_log() -> None:
    rig = opened(delayed=True)
    one = rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 5)])
    again = rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 5)])
    two = rig.bundle({file(A): (200, 300, 0)}, [(T0, 1, 5)])
    mixed = rig.bundle({file(A): (150, 350, 0)})
    rig.do(rig.master.hello(Hello(rig.spec.id, A, 1), rig.now))
    assert rig.effects == []
    rig.master.check()
    rig.commit(1)
    assert rig.committed() == [one.id, again.id]
    rig.commit()
    (welcome,), (split,), committed = rig.welcomes_splits_commits()
    assert committed == [two.id]
    assert welcome.positions == ((file(A), Position(300)),)
    assert (split.id, split.positions) == (mixed.id, ((file(A), Position(300)),))


def test_rule_6_a_final_window_is_published_only_when_it_is_in_the_log() -> None:
    rig = opened(delayed=True)
    rig.bundle({file(A): (100, 200, 0), file(B): (100, 100, 0)}, [(T0, 1, 5)], watermark=T0 + 60 * SECOND)
    rig.commit()
    rig.run(SECOND)
    assert [entry for _, entry in rig.waiting if isinstance(entry, Final)]
    assert not rig.windows()
    rig.commit()
    assert [window.status for window in rig.windows()] == ["final"]


def test_without_room_in_the_log_bundles_wait() -> None:
    rig = opened(delayed=True)
    rig.room = 0
    rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 5)], watermark=T0 + 60 * SECOND)
    rig.do(rig.master.hello(Hello(rig.spec.id, C, 1), rig.now))
    rig.run(SECOND)
    assert not rig.waiting
    rig.room = 1 << 20
    rig.do(rig.master.committed([], rig.now))
    assert [type(entry) for _, entry in rig.waiting] == [Add, Accept]


# Sinks.


def test_a_put_is_repeated_until_the_sink_holds_it() -> None:
    rig = Rig(sinks=[SINK], deaf=True)
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(3 * SECOND)
    assert len(rig.take(Put)) == 0, "nothing before the ledger is reported"
    rig.deaf = False
    rig.run(SECOND)
    rig.deaf = True
    rig.bundle({file(A): (10, 20, 0)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.take(Put)
    rig.run(5 * SECOND)
    puts = rig.take(Put)
    assert len(puts) > 3
    assert {(put.status, put.revision) for put in puts} == {("revised", (*BALLOT, 2))}
    rig.deaf = False
    rig.run(2 * SECOND)
    assert rig.master.outbox.waiting == 0


def test_a_sink_that_serves_a_higher_ballot_makes_the_master_step_down() -> None:
    rig = Rig(sinks=[SINK])
    assert rig.master.fence is None
    rig.do(rig.master.step(SINK, PutReply(rig.spec.id, (2, A), "v", 0, (0, b"", 0)), rig.now))
    assert rig.master.fence == (2, A)


def test_a_new_master_sends_what_its_sinks_do_not_hold_under_the_revision_of_the_log() -> None:
    """So a receiver that has it, though its sink lost the ledger, knows it again."""
    rig = Rig(sinks=[SINK])
    rig.run(SECOND)
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1), (T0 + SIZE, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    held = rig.ledgers[SINK].entries.pop((again_version(rig), T0))
    new = Rig(state=rig.state, ballot=(2, b"N" * 16), sinks=[SINK], now=rig.now, ledgers=rig.ledgers)
    new.run(3 * SECOND)
    assert not new.windows()
    assert not [entry for _, entry in new.log if isinstance(entry, Final)]
    assert new.ledgers[SINK].entries[again_version(rig), T0] == held
    assert [put.status for put in new.ledgers[SINK].take_accepted()][2:] == ["final"]


def test_a_new_master_logs_again_what_its_sinks_hold_otherwise() -> None:
    rig = Rig(sinks=[SINK])
    rig.run(SECOND)
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1), (T0 + SIZE, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    entries, key = rig.ledgers[SINK].entries, (again_version(rig), T0)
    entries[key] = (entries[key][0], entries[key][1] ^ 1)  # of other rows
    new = Rig(state=rig.state, ballot=(2, b"N" * 16), sinks=[SINK], now=rig.now, ledgers=rig.ledgers)
    new.run(3 * SECOND)
    assert [(w.start, w.status, w.revision[::2]) for w in new.windows()] == [(T0, "revised", (2, 1))]


def test_rule_8_what_was_published_before_a_rebuild_is_published_again_only_when_it_is_whole() -> None:
    rig = Rig(sinks=[SINK])
    rig.run(SECOND)
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 9, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    new = Rig(ballot=(2, b"N" * 16), sinks=[SINK], now=rig.now + SECOND, ledgers=rig.ledgers)
    adverts = [(worker, AgentAdvert(worker.hex(), ("access",), 1, new.now)) for worker in (A, B, C)]
    new.do(new.master.adverts(adverts, new.now))
    new.run(SECOND)
    new.bundle({file(A): (0, 5, FIRST), file(C): (0, 1, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    new.run(2 * PARAMETERS.hold_us_max)
    assert not new.windows()
    new.bundle({file(B): (0, 5, FIRST)}, watermark=T0 + 60 * SECOND)
    new.run(SECOND)
    assert [(w.status, w.agents_reporting, w.revision[0]) for w in new.windows()] == [("revised", 3, 2)]


def test_rule_8_a_sink_that_lacks_a_window_from_before_a_rebuild_gets_the_remaining_lines() -> None:
    """Seed 9000352: A has lost lines, so the window is never whole again. It waited forever, and so did retention."""
    spec, other = spec_of(plan_of(), sinks=("first", "second")), LATE
    rig = Rig(spec, sinks=[SINK])
    rig.bundle({file(A): (0, 9, FIRST), file(B): (0, 9, FIRST)}, [(T0, 1, 1)] * 2, watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    held = rig.ledgers[SINK].entries[again_version(rig), T0]
    ledgers = {**rig.ledgers, other: Ledger(rig.spec.id)}
    new = Rig(spec, ballot=(2, b"N" * 16), sinks=[SINK, other], now=rig.now + SECOND, ledgers=ledgers)
    adverts = [(worker, AgentAdvert(worker.hex(), ("access",), 1, new.now)) for worker in (A, B, C)]
    new.do(new.master.adverts(adverts, new.now))
    spans = {file(A): (0, 0, FIRST | CLOSED | GAP), file(B): (0, 9, FIRST)}
    new.bundle(spans, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    new.run(2 * PARAMETERS.hold_us_max)
    assert not new.take(Put)  # C may come
    new.bundle({file(C): (0, 5, FIRST)}, watermark=T0 + 60 * SECOND)
    new.run(2 * PARAMETERS.hold_us_max)
    (final,) = (entry for _, entry in new.log if isinstance(entry, Final))
    assert (final.passed, final.expected) == (2, 3)
    assert ledgers[SINK].entries[again_version(rig), T0] == held
    assert ledgers[other].entries[again_version(rig), T0] == (final.revision, final.digest)
    told_to = {each.to for each in new.effects if isinstance(each, Send) and isinstance(each.message, Put)}
    assert told_to == {other}
    assert not new.windows()
    assert not new.master.publication.newest_finals(0, 1)
    # the next master does not publish it again, and retires it
    after = Rig(
        spec, state=new.state, ballot=(3, b"N" * 16), sinks=[SINK, other], now=new.now, ledgers=ledgers
    )
    after.run(2 * SECOND)
    assert not [entry for _, entry in after.log if isinstance(entry, Final)]
    later = T0 + 3000 * SECOND
    spans = {file(B): (9, 10, 0), file(C): (5, 6, 0), file(A, 2): (0, 1, FIRST)}
    after.bundle(spans, [(later, 1, 1)], watermark=later + 60 * SECOND)
    after.run(2 * SECOND)
    assert after.state.positions.retained_us > T0 + SIZE
    assert ledgers[SINK].entries[again_version(rig), T0] == held
    after.master.check()


def test_rule_7_an_empty_log_begins_with_the_oldest_retained_pane() -> None:
    spec = spec_of(plan_of(), line_us=T0 - 5000 * SECOND)
    rig = Rig(spec)
    assert rig.state.positions.since_us == T0 - (600 + 20) * SECOND
    rig.do(rig.master.hello(Hello(spec.id, A, 3), rig.now))
    (welcome,) = rig.welcomes()
    assert (welcome.since_us, welcome.positions, welcome.incarnation) == (T0 - 620 * SECOND, (), 3)
    assert CHILD not in rig.state.positions.roster
    assert A in rig.state.positions.roster
