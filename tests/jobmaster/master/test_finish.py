"""When a master ends a job that was asked to finish (rule Stop*)."""

from __future__ import annotations

from elf.jobmaster.directory.ending import finishing
from elf.jobmaster.directory.job_spec import END, JobSpec
from elf.srt.messages.messages import FIRST
from tests.rigs.master_rig import T0, A, B, Rig, file
from tests.rigs.mesh_lines import SECOND

LINE = T0 + 30 * SECOND
FAR = LINE + 1_000 * SECOND


def finish(rig: Rig) -> JobSpec:
    """An operator stops the job at `LINE`, and the directory brings it."""
    spec = finishing(rig.master.spec, LINE, None, rig.master.amendments.next_number)
    assert rig.master.amendments.judge(spec) is True
    rig.do(rig.master.spec_changed(spec, rig.now))
    assert (rig.state.schedule[-1].version, rig.state.schedule[-1].from_us) == (END, LINE)
    return spec


def has_ended(rig: Rig, later_us: int = 3 * SECOND) -> bool:
    """Whether the master finds the end within that time."""
    until = rig.now + later_us
    while rig.now < until:
        rig.run(SECOND // 4)
        if rig.master.take_end():
            return True
    return False


def test_a_job_without_agents_ends_at_once() -> None:
    rig = Rig()
    assert not has_ended(rig)
    finish(rig)
    assert has_ended(rig)


def test_it_ends_when_all_agents_have_passed_the_line_and_its_lateness() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=T0 + SECOND)
    rig.bundle({file(B): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=T0 + SECOND)
    spec = finish(rig)
    rig.bundle({file(B): (100, 100, 0)}, watermark=FAR)
    assert not has_ended(rig)
    rig.bundle({file(A): (100, 100, 0)}, watermark=LINE + spec.lateness_us - 1)
    assert not has_ended(rig)
    rig.bundle({file(A): (100, 100, 0)}, watermark=LINE + spec.lateness_us)
    assert has_ended(rig)
    assert rig.windows()[-1].status == "final"
    assert END not in {window.version for window in rig.windows()}


def test_it_does_not_wait_for_a_silent_agent_longer_than_windows_are_kept() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=T0 + SECOND)
    spec = finish(rig)
    rig.run(LINE - rig.now)
    assert not has_ended(rig)
    rig.run(max(0, LINE + spec.lateness_us + spec.keep_us - rig.now))
    assert has_ended(rig)


def test_a_master_whose_log_is_ahead_of_its_directory_takes_the_spec_later() -> None:
    rig = Rig()
    former = rig.master.spec
    spec = finish(rig)
    rig.master.spec = rig.master.amendments.spec = (
        former  # a master that has the log, and not yet the directory's news
    )
    assert not has_ended(rig)
    rig.do(rig.master.spec_changed(spec, rig.now))
    assert rig.master.spec == spec
    assert has_ended(rig)
    assert not rig.master.amendments.spec_changed(spec)
