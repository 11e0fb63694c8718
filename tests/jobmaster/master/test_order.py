"""Which changes of operators a master takes (rule Order*)."""

from __future__ import annotations

from msgspec.structs import replace

from elf.jobmaster.directory.changes import next_spec_number
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.versions import changed
from tests.rigs.master_rig import BALLOT, T0, Rig
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


def test_a_lost_verdict_is_given_again() -> None:
    rig = Rig()
    one = change(rig, 1)
    assert taken(rig, one) is True
    assert rig.master.amendments.judge(one) is True
    assert taken(rig, change(rig, 2)) is True
    assert rig.master.amendments.judge(one) is True
    assert rig.state.schedule[-1].version == version_of(PLANS[2]).digest


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
