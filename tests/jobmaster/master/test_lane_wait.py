"""While lines are read again, changes wait, and the newest supersedes those that wait (rule Wait*)."""

from __future__ import annotations

from elf.jobmaster.directory.ending import finishing
from elf.jobmaster.directory.job_spec import END, JobSpec
from elf.jobmaster.directory.known_schedule import KnownLine, KnownSchedule
from elf.jobmaster.directory.versions import changed, history
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.messages import CLOSED, FIRST, Control
from tests.jobmaster.master.test_order import PLANS, change, taken
from tests.rigs.master_rig import PARAMETERS, T0, A, B, Rig, file
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

C = b"\x03" * 16
LINES = [(T0 + second * SECOND, 1, 5) for second in (5, 15, 24)]
DIGESTS = [version_of(plan).digest for plan in PLANS]
FIRST_VERSION = version_of(plan_of()).digest


def restate(rig: Rig, at: int) -> JobSpec:
    number = rig.master.amendments.next_number
    return changed(rig.master.spec, version_of(PLANS[at]), "restate", rig.now, None, number)


def read(rig: Rig, *workers: bytes) -> None:
    """These agents report their lines."""
    at = T0 + 25 * SECOND
    rig.bundle({file(worker): (0, 100, FIRST) for worker in workers}, LINES, watermark=at, newest=at)


def read_again(rig: Rig, *workers: bytes, at: int = T0 + 60 * SECOND) -> None:
    """These agents report the lines of the lane, and that they have read up to that time."""
    lane = rig.state.positions.lane
    assert lane is not None
    slots = {file(worker): (100, 100, 0) for worker in workers}
    slots |= {file(worker, lane=lane.number): (0, 100, FIRST) for worker in workers}
    lines = [line for line in LINES if line[0] >= lane.from_us]
    rig.now = max(rig.now, at)
    rig.bundle(slots, lines, watermark=at, newest=at)


def restated(*workers: bytes) -> Rig:
    """A master with a lane: those agents, or A and B, are to read their lines again from T0 + 20 s on."""
    workers = workers or (A, B)
    rig = Rig()
    read(rig, *workers)
    rig.run(SECOND)
    assert len(rig.state.finals) == 2
    assert taken(rig, restate(rig, 1)) is True
    lane = rig.state.positions.lane
    assert lane is not None
    assert lane.from_us == T0 + 20 * SECOND
    return rig


def versions(rig: Rig) -> list[str]:
    return [line.version for line in rig.state.schedule]


def test_changes_wait_for_a_lane_and_the_newest_supersedes_those_that_wait() -> None:
    rig = restated()
    one, rig_line = change(rig, 2), rig.state.schedule[-1]
    assert taken(rig, one) is True
    amendments = rig.master.amendments
    assert (amendments.is_waiting(one), amendments.version) == (True, DIGESTS[2])
    assert amendments.confirmations(one) == (0, 0, ())
    other = change(rig, 3)
    assert taken(rig, other) is True
    assert (amendments.is_waiting(one), amendments.is_waiting(other)) == (False, True)
    rig.run(10 * SECOND)
    assert rig.state.schedule[-1] == rig_line
    read_again(rig, A, B)
    assert rig.state.positions.lane is None
    assert versions(rig) == [FIRST_VERSION, DIGESTS[1]]
    rig.run(SECOND)
    assert versions(rig) == [FIRST_VERSION, DIGESTS[1], DIGESTS[3]]
    states = {step.version: step.state for step in history(rig.master.spec, known(rig))}
    assert states[DIGESTS[2]] == "superseded"
    assert states[DIGESTS[3]] == "in force"


def known(rig: Rig) -> KnownSchedule:
    lines = tuple(KnownLine(line.version, line.from_us) for line in rig.state.schedule)
    return KnownSchedule(*rig.state.spec, lines)


def test_the_version_in_force_supersedes_one_that_waits_and_has_a_line_of_its_own() -> None:
    rig = restated()
    assert taken(rig, change(rig, 2)) is True
    back = change(rig, 1)
    assert taken(rig, back) is True
    assert rig.master.amendments.is_waiting(back)
    read_again(rig, A, B)
    rig.run(SECOND)
    assert versions(rig) == [FIRST_VERSION, DIGESTS[1], DIGESTS[1]]
    assert (rig.state.spec[0], rig.state.positions.lane) == (back.number, None)


def test_windows_that_the_lane_kept_open_are_final_before_the_next_change() -> None:
    rig = restated()
    assert taken(rig, restate(rig, 2)) is True
    rig.take(Control)
    read_again(rig, A, B)
    rig.run(SECOND)
    assert (DIGESTS[1], T0 + 20 * SECOND) in rig.state.finals
    (control,) = {message.schedule for message in rig.take(Control)}
    assert control[-1].version == DIGESTS[2]
    assert control[-1].from_us == T0 + 30 * SECOND


def test_a_change_that_waited_begins_past_what_was_reported_meanwhile() -> None:
    """Its operator asked for a line at the time of the command; a line there would have all since then read again."""
    rig = restated()
    rig.now = T0 + 26 * SECOND
    number = rig.master.amendments.next_number
    assert taken(rig, changed(rig.master.spec, version_of(PLANS[2]), "split", rig.now, None, number))
    read_again(rig, A, B)
    rig.run(SECOND)
    assert versions(rig)[-1] == DIGESTS[2]
    assert rig.state.schedule[-1].from_us > T0 + 60 * SECOND
    assert rig.state.positions.lane is None


def test_a_change_must_be_made_of_the_one_that_waits() -> None:
    rig = restated()
    late = change(rig, 3)
    assert taken(rig, change(rig, 2)) is True
    assert taken(rig, late) is False
    again = change(rig, 3, former=DIGESTS[1])
    assert taken(rig, again) is False
    assert taken(rig, change(rig, 3)) is True


def test_settings_and_the_end_wait_too() -> None:
    rig = restated()
    number = rig.master.amendments.next_number
    assert taken(rig, finishing(rig.master.spec, rig.now, None, number)) is True
    rig.run(SECOND)
    assert versions(rig)[-1] == DIGESTS[1]
    assert taken(rig, change(rig, 3)) is False  # nothing comes after the end
    read_again(rig, A, B)
    rig.run(SECOND)
    assert versions(rig)[-1] == END


def test_a_new_master_goes_on_waiting() -> None:
    rig = restated()
    one = change(rig, 2)
    assert taken(rig, one) is True
    state = JobState(one.id, one.name, rig.budget)
    state.restore(rig.state.snapshot())
    later = Rig(one, state=state, ballot=(2, b"N" * 16), now=rig.now)
    assert later.master.amendments.is_waiting(one)
    read_again(later, A, B)
    later.run(SECOND)
    assert versions(later)[-1] == DIGESTS[2]


def test_agents_that_do_not_read_again_are_waited_for_as_long_as_windows_wait_for_them() -> None:
    rig = restated(A, B, C)
    assert taken(rig, change(rig, 2)) is True
    read_again(rig, A)
    rig.run(PARAMETERS.hold_us_max + SECOND)
    assert versions(rig)[-1] == DIGESTS[1]  # most have yet to read theirs
    read_again(rig, B)
    rig.run(SECOND)
    assert versions(rig)[-1] == DIGESTS[2]


def test_a_lane_that_ends_because_its_files_are_lost_ends_the_wait() -> None:
    rig = restated()
    assert taken(rig, change(rig, 2)) is True
    lane = rig.state.positions.lane
    assert lane is not None
    slots = {file(worker, lane=lane.number): (0, 10, FIRST | CLOSED) for worker in (A, B)}
    rig.bundle(slots, watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    assert versions(rig)[-1] == DIGESTS[2]
