"""Retention at a master whose log takes its time: lines are published before they are dropped, and never told behind that."""

from __future__ import annotations

from elf.jobmaster.entries import Final, Retire
from elf.srt.messages import FIRST, Hello
from tests.master_rig import PARAMETERS, T0, Rig, file
from tests.mesh_lines import SECOND, told

A, B, C = b"A" * 16, b"B" * 16, b"\x03" * 16
SIZE = 10 * SECOND
LATER = T0 + 3000 * SECOND
"""By far more than what is retained."""


def retirements(rig: Rig) -> list[Retire]:
    return [entry for _, entry in [*rig.log, *rig.waiting] if isinstance(entry, Retire)]


def finals_waiting(rig: Rig) -> list[Final]:
    return [entry for _, entry in rig.waiting if isinstance(entry, Final)]


def until_final(rig: Rig, start: int) -> None:
    """Just so long that nothing has been retired for it."""
    while not any(key[1] == start for key in rig.state.finals):
        rig.tick(PARAMETERS.emit_us)


def test_lines_on_their_way_into_the_log_are_published_before_their_pane_is_dropped() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    rig.bundle({file(A): (10, 20, 0)}, [(LATER, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.delayed = True
    rig.bundle({file(A): (20, 30, 0)}, [(T0 + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(SECOND)
    assert not retirements(rig)
    rig.commit()
    rig.delayed = False
    rig.windows()
    rig.run(2 * SECOND)
    revised = rig.windows()[0]
    assert (revised.start, revised.status, revised.lines.late) == (T0, "revised", 0)
    assert told(revised.rows) == {"/page/1": (2, 2)}
    rig.bundle({file(A): (30, 40, 0)}, [(LATER + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(2 * SECOND)
    assert rig.state.positions.retained_us > T0 + SIZE
    assert rig.state.late == 0


def test_a_changed_window_is_published_again_before_its_panes_are_dropped() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    rig.bundle({file(A): (10, 20, 0)}, [(LATER, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.bundle({file(A): (20, 30, 0)}, [(T0 + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.master.publication.settle()
    assert rig.master.publication.retire_at() == T0
    rig.run(2 * SECOND)
    assert told(next(w.rows for w in rig.windows() if w.status == "revised")) == {"/page/1": (2, 2)}
    rig.bundle({file(A): (30, 40, 0)}, [(LATER + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(2 * SECOND)
    assert rig.state.positions.retained_us > T0 + SIZE
    assert rig.state.late == 0


def test_a_window_read_before_its_panes_were_dropped_is_not_told_behind_that() -> None:
    """One of three is heard only now. Its bundle, Retire, and the window with all three come into the log in this order."""
    rig = Rig()
    rig.do(rig.master.hello(Hello(rig.spec.id, C, 3), rig.now))
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    rig.bundle({file(A): (10, 20, 0), file(B): (10, 20, 0)}, [(LATER, 1, 1)], watermark=LATER + 60 * SECOND)
    until_final(rig, LATER)
    assert {(known.passed, known.expected) for known in rig.state.finals.values()} == {(2, 3)}
    rig.windows()
    rig.delayed = True
    rig.bundle({file(C): (0, 5, FIRST)}, watermark=LATER + 60 * SECOND)
    rig.tick(PARAMETERS.emit_us)
    assert [type(entry).__name__ for _, entry in rig.waiting] == ["Accept", "Retire"]
    rig.commit(1)
    rig.tick(PARAMETERS.emit_us)
    assert [(final.start, final.passed) for final in finals_waiting(rig)] == [(T0, 3), (LATER, 3)]
    rig.commit()
    rig.delayed = False
    assert [(window.start, window.agents_reporting) for window in rig.windows()] == [(LATER, 3)]
    assert {start for _, start in rig.state.finals} == {LATER}
    # whoever serves next finds the same, and retention goes on
    successor = Rig(spec=rig.spec, state=rig.state, ballot=(2, b"N" * 16))
    successor.run(SECOND)
    assert not successor.windows()
    for each in (rig, successor):
        each.master.check()
        assert (each.master.publication.retire_at() or 0) >= LATER + SIZE - each.spec.keep_us
