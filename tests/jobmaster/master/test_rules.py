"""Rules of windows and changes that a master once broke."""

from __future__ import annotations

from typing import Any

import msgspec

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.srt.messages.messages import CLOSED, FIRST, Control
from elf.srt.messages.results import Put
from tests.rigs.master_rig import PARAMETERS, SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

A, B, C, D = b"A" * 16, b"B" * 16, b"C" * 16, b"D" * 16
SIZE = 10 * SECOND
WHERE = "WHERE status >= 0"


def change(rig: Rig, plan: Any, line_us: int, mode: Any = "split") -> None:
    spec = rig.master.spec
    known = tuple(version for version in spec.versions if version.digest != version_of(plan).digest)
    spec = msgspec.structs.replace(
        spec, number=spec.number + 1, versions=(*known, version_of(plan)), mode=mode, line_us=line_us
    )
    rig.do(rig.master.spec_changed(spec, rig.now))


# Jobs without windows.


def test_a_change_of_a_job_without_windows_reads_closed_files_again_too() -> None:
    """Its rows are all in one pane, which is dropped; panes do not show the times of lines."""
    rig = Rig(spec_of(plan_of("")))
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=T0 + 2 * SECOND)
    change(rig, plan_of("", WHERE), T0 + 5 * SECOND)
    lane = rig.state.positions.lane
    assert lane is not None
    rig.bundle({file(A, lane=lane.number): (0, 100, FIRST)}, [(T0 + SECOND, 1, 5)], watermark=T0 + 2 * SECOND)
    closed = {file(A): (100, 300, CLOSED), file(A, 2): (0, 50, FIRST)}
    rig.bundle(closed, [(T0 + 7 * SECOND, 1, 5)], watermark=T0 + 8 * SECOND)
    rig.run(SECOND)
    change(rig, plan_of(""), T0 + 9 * SECOND)
    lane = rig.state.positions.lane
    assert lane is not None
    assert lane.from_us == T0 + 5 * SECOND
    assert lane.ends == {file(A, 1, lane.number): 300, file(A, 2, lane.number): 50}


def test_a_job_without_windows_reports_since_when_it_counts_after_a_change() -> None:
    """Lines of a closed file count until retention has passed it; a change reads the remaining lines again, and reports that."""
    rig = Rig(spec_of(plan_of(""), keep_us=60 * SECOND), sinks=(SINK,))
    first = rig.state.schedule[0].version
    rig.bundle({file(A): (0, 100, FIRST | CLOSED)}, [(T0 + SECOND, 1, 5)], watermark=T0 + 2 * SECOND)
    rig.run(SECOND)
    days = 2 * 24 * 3600 * SECOND
    rig.bundle({file(A, 2): (0, 100, FIRST)}, [(T0 + days, 1, 5)], watermark=T0 + days)
    rig.run(SECOND)
    retained = rig.state.positions.retained_us
    assert retained >= T0 + days - 70 * SECOND
    assert not rig.state.positions.closed
    assert rig.state.panes[first].lines().lanes[1].sum() == 2  # no counted line was dropped
    (put, *_) = [put for put in reversed(rig.take(Put)) if put.version == first]
    assert put.covers[0] == T0
    change(rig, plan_of("", WHERE), T0 + days + SECOND)
    lane = rig.state.positions.lane
    assert lane is not None
    assert lane.from_us == retained
    assert rig.state.covers(first, 0) == (retained, T0 + days + SECOND)
    rig.master.check()


# Partial windows.


def test_revoked_workers_do_not_count_for_the_majority() -> None:
    """Lines of a worker whose certificate was revoked are still accepted; once they completed a majority without other
    workers."""
    rig = Rig(sinks=(SINK,))
    rig.do(rig.master.forget([C, D], rig.now))
    rig.do(rig.master.adverts([(worker, AgentAdvert("w", ("access",), 1, T0)) for worker in (A, B)], rig.now))
    rig.bundle({file(C): (0, 10, FIRST), file(D): (0, 10, FIRST)}, watermark=T0)
    assert not rig.master.roster.has_majority()
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}, watermark=T0)
    assert rig.master.roster.has_majority()


def test_a_worker_that_left_long_ago_is_forgotten() -> None:
    rig = Rig(spec_of(plan_of(), keep_us=60 * SECOND))
    roster: Any = rig.master.roster
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 20 * SECOND)
    from elf.srt.messages.messages import Goodbye

    rig.do(rig.master.goodbye(Goodbye(rig.spec.id, A, T0 + 20 * SECOND, 1, rig.master.ballot), rig.now))
    assert roster._known == {A, B}
    rig.bundle({file(B): (10, 20, 0)}, [(T0 + 500 * SECOND, 1, 1)], watermark=T0 + 900 * SECOND)
    rig.run(SECOND)
    rig.tick(PARAMETERS.forget_us // 16)
    assert roster._known == {B} == set(rig.state.positions.roster)
    # its advert, which says that it has left, is not new
    rig.do(rig.master.adverts([(A, AgentAdvert("a", ("access",), 1, T0, T0 + 20 * SECOND))], rig.now))
    assert set(rig.state.positions.roster) == {B}


# Changes.


def test_a_restatement_after_a_rebuild_does_not_change_earlier_finals() -> None:
    """It began with the oldest window that was not final in the new log, which meant all retained windows."""
    rig = Rig(sinks=(SINK,))
    lines = [(T0 + at * SIZE + SECOND, at % 3, 5) for at in range(4)]
    rig.bundle({file(A): (0, 100, FIRST)}, lines[:3], watermark=T0 + 3 * SIZE + 3 * SECOND)
    rig.run(SECOND)
    assert len(rig.state.finals) == 3
    after = Rig(rig.spec, ballot=(2, b"N" * 16), ledgers=rig.ledgers, sinks=(SINK,), now=rig.now)
    after.run(SECOND)
    after.bundle({file(A): (0, 100, FIRST), file(B): (0, 10, FIRST)}, lines, watermark=T0)
    change(after, plan_of("10 seconds", WHERE), after.now, "restate")
    assert [line.from_us for line in after.state.schedule[1:]] == [T0 + 3 * SIZE]
    assert len(after.take(Control)) == 1
