"""Which changes of operators a master takes (rule Order*)."""

from __future__ import annotations

from msgspec.structs import replace

from elf.jobmaster.directory.changes import next_spec_number
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.versions import changed
from elf.jobmaster.master.amendments import SHIFT_US_MAX
from elf.srt.messages.messages import FIRST, NO_WATERMARK, Control
from tests.rigs.master_rig import BALLOT, T0, A, B, Rig, file
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

PLANS = [plan_of("10 seconds", f"WHERE status > {least}") for least in range(4)]


def change(rig: Rig, at: int, number: int = 0, former: str = "") -> JobSpec:
    """A change to `PLANS[at]`, signed for the place that the master would give it now."""
    number = number or rig.master.amendments.next_number
    version = version_of(PLANS[at])
    return changed(rig.master.spec, version, "split", T0 + 30 * SECOND, None, number, former)


def taken(rig: Rig, spec: JobSpec) -> bool | None:
    """The verdict; the directory brings a change that is taken."""
    verdict = rig.master.amendments.judge(spec)
    if verdict:
        rig.do(rig.master.spec_changed(spec, rig.now))
    return verdict


def test_of_two_changes_that_name_one_version_the_first_is_taken() -> None:
    rig = Rig()
    one, other = change(rig, 1), change(rig, 2)
    assert one.number == other.number == next_spec_number(BALLOT, 1)
    assert taken(rig, one) is True
    assert taken(rig, other) is False
    assert rig.state.schedule[-1].version == version_of(PLANS[1]).digest
    assert taken(rig, replace(other, number=rig.master.amendments.next_number)) is False
    assert taken(rig, change(rig, 2)) is True
    assert rig.state.schedule[-1].version == version_of(PLANS[2]).digest


def test_a_master_that_knows_a_change_of_a_later_term_takes_none() -> None:
    """It is cut off from that one, and hears of its changes: two changes of other meaning would have one number."""
    rig = Rig()
    assert taken(rig, change(rig, 1)) is True
    later = (BALLOT[0] + 1, BALLOT[1])
    theirs = change(rig, 2, number=next_spec_number(later, rig.master.spec.number))
    rig.do(rig.master.spec_changed(theirs, rig.now))
    assert taken(rig, change(rig, 3)) is None
    assert taken(rig, theirs) is True, "that one was taken"


def test_a_lost_verdict_is_given_again() -> None:
    rig = Rig()
    one = change(rig, 1)
    assert taken(rig, one) is True
    assert rig.master.amendments.judge(one) is True
    assert taken(rig, change(rig, 2)) is True
    assert rig.master.amendments.judge(one) is True
    assert rig.state.schedule[-1].version == version_of(PLANS[2]).digest


def test_of_two_changes_to_one_version_the_first_is_taken() -> None:
    rig = Rig()
    one, other = change(rig, 1), change(rig, 1)
    other = replace(other, changes=(*other.changes[:-1], replace(other.changes[-1], asked_us=T0)))
    assert taken(rig, one) is True
    assert taken(rig, other) is False


def test_a_refused_change_stays_refused_when_its_version_is_back() -> None:
    rig = Rig()
    first = rig.master.spec.versions[-1]
    late = change(rig, 2)
    assert taken(rig, change(rig, 1)) is True
    assert taken(rig, late) is False
    amendments = rig.master.amendments
    back = changed(rig.master.spec, first, "split", T0 + 40 * SECOND, None, amendments.next_number)
    assert taken(rig, back) is True
    assert amendments.version == first.digest == late.changes[-1].former
    assert taken(rig, late) is False


def test_a_change_with_the_next_number_that_names_another_version_uses_the_number_up() -> None:
    rig = Rig()
    wrong = change(rig, 1, former="another")
    assert taken(rig, wrong) is False
    amendments = rig.master.amendments
    assert amendments.next_number == wrong.number + 1
    assert taken(rig, change(rig, 1, number=wrong.number)) is False
    assert taken(rig, change(rig, 1)) is True


def test_a_change_that_was_signed_for_an_earlier_master_is_refused() -> None:
    rig = Rig()
    former = next_spec_number((BALLOT[0] - 1, BALLOT[1]), 1)
    assert taken(rig, change(rig, 1, number=former)) is False
    assert taken(rig, change(rig, 1, number=former + (1 << 40))) is False


def test_a_change_is_judged_when_all_changes_before_it_are_in_the_log() -> None:
    rig = Rig(delayed=True)
    assert taken(rig, change(rig, 1)) is None  # the master does not serve yet
    rig.commit()
    assert taken(rig, change(rig, 1)) is True
    assert taken(rig, change(rig, 2)) is None
    rig.commit()
    assert taken(rig, change(rig, 2)) is True


def test_a_change_without_a_history_is_refused() -> None:
    rig = Rig()
    assert taken(rig, replace(change(rig, 1), changes=())) is False


def test_a_restate_is_refused_if_a_window_that_is_not_final_begins_before_all_lines_can_be_read_again() -> (
    None
):
    rig = Rig()
    times = [(T0 + second * SECOND, 1, 5) for second in (5, 15, 24)]
    rig.bundle({file(A): (0, 100, FIRST)}, times, watermark=T0 + 25 * SECOND, newest=T0 + 25 * SECOND)
    rig.run(SECOND)
    amendments = rig.master.amendments
    assert len(rig.state.finals) == 2
    assert amendments.unread_us(change(rig, 1)) == 0

    def restate(unread_us: int) -> JobSpec:
        spec = changed(
            rig.master.spec, version_of(PLANS[1]), "restate", rig.now, None, amendments.next_number
        )
        return replace(spec, unread_us=unread_us)

    late = restate(T0 + 20 * SECOND + 1)
    assert taken(rig, late) is False
    assert amendments.unread_us(late) == T0 + 20 * SECOND
    assert taken(rig, restate(T0 + 20 * SECOND)) is True
    assert rig.state.schedule[-1].from_us == T0 + 20 * SECOND


def test_a_restate_that_needs_no_lines_is_taken_whoever_has_left() -> None:
    rig = Rig()
    spec = changed(
        rig.master.spec, version_of(PLANS[1]), "restate", T0, None, rig.master.amendments.next_number
    )
    assert taken(rig, replace(spec, unread_us=T0 + SECOND)) is True


# The control line and the lines that were reported.


def reported(newest: int, watermark: int = T0 + SECOND) -> Rig:
    """A master to which A has reported lines up to `newest`, and B none."""
    rig = Rig()
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=watermark, newest=newest)
    rig.bundle({file(B): (0, 0, FIRST)}, watermark=watermark, newest=0)
    return rig


def line_and_lane(rig: Rig) -> tuple[int, bool]:
    """Where the line of a change at T0 + 30 s is, and whether it has a lane."""
    assert taken(rig, change(rig, 1)) is True
    (control,) = rig.take(Control)
    return control.schedule[-1].from_us, control.lane_us > 0


def test_a_control_line_is_past_all_lines_and_watermarks_that_were_reported() -> None:
    at = T0 + 30 * SECOND
    assert line_and_lane(reported(T0 + 2 * SECOND)) == (at, False)
    assert line_and_lane(reported(at - 1)) == (at, False)
    assert line_and_lane(reported(at)) == (at + 1, False)
    assert line_and_lane(reported(at + SHIFT_US_MAX - 1)) == (at + SHIFT_US_MAX, False)
    assert line_and_lane(reported(T0 + SECOND, watermark=at + SECOND)) == (at + SECOND + 1, False)


def test_lines_with_wrong_or_unknown_times_are_read_again() -> None:
    at = T0 + 30 * SECOND
    assert line_and_lane(reported(at + SHIFT_US_MAX)) == (at, True)
    assert line_and_lane(reported(NO_WATERMARK)) == (at, True)


def test_rows_before_a_line_without_a_lane_stay_and_older_bundles_are_judged_by_their_latest_line() -> None:
    rig = reported(T0 + 29 * SECOND)
    former = rig.state.schedule
    assert line_and_lane(rig)[1] is False
    rig.bundle({file(A): (100, 200, 0)}, [(T0 + 29 * SECOND, 1, 5)], schedule=former, newest=T0 + 29 * SECOND)
    assert rig.state.positions.position(file(A)).offset == 200  # type: ignore[union-attr]
    late = T0 + 30 * SECOND
    rig.bundle({file(A): (200, 300, 0)}, [(late, 1, 5)], schedule=former, newest=late)
    assert rig.state.positions.position(file(A)).offset == 200  # type: ignore[union-attr]
    assert len(rig.splits()) == 1
    assert sum(rig.state.touched[former[0].version]) > 0


# Who has confirmed a change.


def test_agents_confirm_a_change_by_the_first_delta_that_they_cut_under_it() -> None:
    rig = reported(T0 + 2 * SECOND)
    amendments, former = rig.master.amendments, rig.state.schedule
    one = change(rig, 1)
    assert amendments.confirmations(one) == (0, 0, ())  # not in force
    assert taken(rig, one) is True
    both = tuple(sorted((A, B)))
    assert amendments.confirmations(one) == (2, 0, both)
    rig.bundle({file(A): (100, 100, 0)}, schedule=former, newest=T0)
    assert amendments.confirmations(one) == (2, 0, both)
    rig.bundle({file(A): (100, 100, 0)}, newest=T0)
    assert amendments.confirmations(one) == (2, 1, (B,))
    rig.bundle({file(B): (0, 0, 0)}, newest=T0)
    assert amendments.confirmations(one) == (2, 2, ())
    other = change(rig, 2)
    assert taken(rig, other) is True
    assert amendments.confirmations(one) == (0, 0, ())  # no longer in force
    assert amendments.confirmations(other) == (2, 0, both)


MINUTES = 180 * SECOND


def asked(rig: Rig, off_us: int) -> None:
    """A change by an agent whose clock is off, when all have read up to T0 + 25 s, and windows are final up to T0 + 20 s."""
    lines = [(T0 + second * SECOND, 1, 5) for second in (5, 15, 24)]
    rig.bundle({file(A): (0, 100, FIRST)}, lines, watermark=T0 + 25 * SECOND, newest=T0 + 25 * SECOND)
    rig.run(SECOND)
    assert len(rig.state.finals) == 2
    now_us = T0 + 25 * SECOND + off_us
    number = rig.master.amendments.next_number
    assert taken(rig, changed(rig.master.spec, version_of(PLANS[1]), "split", now_us, None, number))


def test_where_the_asked_agents_clock_is_minutes_ahead_the_line_is_as_far_ahead() -> None:
    rig = Rig()
    asked(rig, MINUTES)
    assert [line.from_us for line in rig.state.schedule] == [0, T0 + 25 * SECOND + MINUTES]
    assert (rig.state.positions.lane, len(rig.state.finals)) == (None, 2)


def test_where_the_asked_agents_clock_is_minutes_behind_windows_are_read_again_under_the_new_version() -> (
    None
):
    rig = Rig()
    asked(rig, -20 * SECOND)
    assert [line.from_us for line in rig.state.schedule] == [0, T0 + 5 * SECOND]
    assert rig.state.positions.lane is not None
    assert {key[1] for key in rig.state.withdrawn} == {T0 + 10 * SECOND}
