"""The master's rules, one by one: what is accepted, dropped, parked, split; when anything is told; when a window is final."""

from __future__ import annotations

from tests.master_rig import FIRST, SINK, T0, Rig, file
from tests.mesh_lines import SECOND, told, window_of

A, B = b"A" * 16, b"B" * 16


def test_rule_4_a_bundle_at_its_place_is_accepted() -> None:
    rig = Rig()
    one = rig.bundle({file(A): (0, 100, FIRST)}, [(T0, 1, 5)])
    two = rig.bundle({file(A): (100, 200, 0), file(B): (7, 9, FIRST)}, [(T0 + 1, 1, 7), (T0 + 2, 2, 1)])
    assert rig.committed() == [one.id, two.id]
    assert rig.state.positions.at == {file(A): 200, file(B): 9}
    rig.master.check()


def test_a_window_is_final_when_everyone_expected_passed_its_end_and_lateness() -> None:
    rig = Rig(sinks=[SINK])
    lines = [(T0 + 1, 1, 5), (T0 + 9 * SECOND, 2, 6), (T0 + 11 * SECOND, 1, 1)]
    rig.bundle({file(A): (0, 100, FIRST)}, lines[:2], watermark=T0 + 5 * SECOND)
    rig.bundle({file(B): (0, 100, FIRST)}, lines[2:], watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    found = rig.windows()
    assert {window.status for window in found} == {"open"}
    assert told(found[0].rows) == window_of(lines, T0, T0 + 10 * SECOND)
    rig.bundle({file(A): (100, 100, 0)}, watermark=T0 + 12 * SECOND)
    rig.run(SECOND)
    finals = [window for window in rig.windows() if window.status == "final"]
    assert [(window.start, window.agents_reporting, window.agents_expected) for window in finals] == [
        (T0, 2, 2)
    ]
    assert told(finals[0].rows) == window_of(lines, T0, T0 + 10 * SECOND)
    assert rig.ledgers[SINK].entries[finals[0].version, T0][0] == (1, b"M" * 16, finals[0].revision[2])
    assert rig.master.outbox.waiting == 0
    rig.master.check()
