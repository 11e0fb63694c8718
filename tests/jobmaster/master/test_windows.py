"""The master's windows: when one is final, what revises it, which workers it waits for, and when it is published again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import Retire
from elf.jobmaster.master.publication import Publication
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Control, Farewell, Goodbye, Hello
from elf.srt.messages.results import Shown, Watch
from tests.rigs.master_rig import PARAMETERS, SINK, T0, A, B, Rig, file, opened, spec_of
from tests.rigs.mesh_lines import SECOND, counts_of, plan_of, version_of, window_of

C = b"\x03" * 16
SIZE = 10 * SECOND


def test_a_window_is_final_when_everyone_expected_passed_its_end_and_lateness() -> None:
    rig = Rig(sinks=[SINK])
    lines = [(T0 + 1, 1, 5), (T0 + 9 * SECOND, 2, 6), (T0 + 11 * SECOND, 1, 1)]
    rig.bundle({file(A): (0, 100, FIRST)}, lines[:2], watermark=T0 + 5 * SECOND)
    rig.bundle({file(B): (0, 100, FIRST)}, lines[2:], watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    found = rig.windows()
    assert {window.status for window in found} == {"open"}
    assert counts_of(found[0].rows) == window_of(lines, T0, T0 + SIZE)
    rig.bundle({file(A): (100, 100, 0)}, watermark=T0 + 12 * SECOND - 1)
    rig.run(SECOND)
    assert not [window for window in rig.windows() if window.status == "final"]
    rig.bundle({file(A): (100, 100, 0)}, watermark=T0 + 12 * SECOND)
    rig.run(SECOND)
    finals = [window for window in rig.windows() if window.status == "final"]
    assert [(window.start, window.agents_reporting, window.agents_expected) for window in finals] == [
        (T0, 2, 2)
    ]
    assert counts_of(finals[0].rows) == window_of(lines, T0, T0 + SIZE)
    assert rig.ledgers[SINK].entries[finals[0].version, T0][0] == (1, b"M" * 16, finals[0].revision[2])
    assert rig.master.outbox.waiting == 0
    rig.master.check()


def test_expected_workers_come_from_the_directory_not_from_reports() -> None:
    rig = Rig()
    adverts = [(worker, AgentAdvert(worker.hex(), ("access",), 1, T0)) for worker in (A, B, C)]
    other = (b"D" * 16, AgentAdvert("d", ("errors",), 1, T0))
    rig.do(rig.master.adverts([*adverts, other], rig.now))
    rig.bundle({file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 20 * SECOND)
    rig.run(5 * SECOND)
    windows = rig.windows()
    assert [(window.status, window.agents_reporting, window.agents_expected) for window in windows] == [
        ("open", 2, 3)
    ]
    rig.bundle({file(C): (0, 10, FIRST)}, [(T0 + 2, 1, 1)], watermark=T0 + 20 * SECOND)
    rig.run(SECOND)
    assert [(w.status, w.agents_reporting, w.lines.read) for w in rig.windows()] == [("final", 3, 2)]


def test_a_window_that_waits_too_long_is_final_with_less_and_revised_later() -> None:
    rig = Rig(sinks=[SINK])
    three = {file(A): (0, 10, FIRST), file(B): (0, 10, FIRST), file(C): (0, 10, FIRST)}
    rig.bundle(three, [(T0, 1, 1)], watermark=T0 + SECOND)
    rig.bundle({file(A): (10, 10, 0), file(B): (10, 10, 0)}, watermark=T0 + 60 * SECOND)
    rig.run(PARAMETERS.hold_us_max - SECOND)
    assert {window.status for window in rig.windows()} == {"open"}
    rig.run(2 * SECOND)
    assert [(w.status, w.agents_reporting, w.agents_expected) for w in rig.windows()] == [("final", 2, 3)]
    rig.bundle({file(C): (10, 20, 0)}, [(T0 + 1, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    (revised,) = rig.windows()
    assert (revised.status, revised.agents_reporting, revised.lines.read) == ("revised", 3, 2)


def test_without_a_majority_nothing_is_final_with_less() -> None:
    rig = Rig()
    adverts = [(worker, AgentAdvert(worker.hex(), ("access",), 1, T0)) for worker in (A, B)]
    rig.do(rig.master.adverts(adverts, rig.now))
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(2 * PARAMETERS.hold_us_max)
    assert {window.status for window in rig.windows()} == {"open"}


@pytest.mark.parametrize("watches_first", [True, False])
def test_a_new_masters_first_bundles_are_published_without_waiting_for_an_emit_interval(
    watches_first: bool,
) -> None:
    rig = Rig()
    rig.shown.is_watched = False
    watch = Watch(rig.spec.id, B, 1, T0, 0, (0, b""), 0, ())
    rig.tick(SECOND)
    if watches_first:
        rig.do(rig.master.watch(watch, rig.now))
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0, 1, 5)])
    if not watches_first:
        rig.tick(PARAMETERS.append_us)
        rig.do(rig.master.watch(watch, rig.now))
    assert rig.take(Shown) == []
    rig.tick(PARAMETERS.append_us)
    (shown,) = rig.take(Shown)
    assert (shown.put.status, shown.put.lines[0]) == ("open", 1)
    # From then on it publishes in emit intervals.
    rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 6)])
    rig.tick(PARAMETERS.append_us)
    assert rig.take(Shown) == []
    rig.tick(PARAMETERS.emit_us)
    assert [each.put.lines[0] for each in rig.take(Shown)] == [2]


def test_a_bundle_that_is_a_little_late_is_published_at_once_and_not_at_the_next_emit_interval() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0, 1, 5)])
    rig.tick(PARAMETERS.append_us)
    rig.tick(PARAMETERS.emit_us)
    assert [window.lines.read for window in rig.windows()] == [1]
    rig.tick(60_000)
    rig.bundle({file(A): (100, 200, 0)}, [(T0, 1, 6)])
    rig.tick(PARAMETERS.append_us)
    assert [window.lines.read for window in rig.windows()] == [2]
    # Later bundles wait for an interval after it, however often they come.
    for number in range(2, 6):
        rig.bundle({file(A): (number * 100, number * 100 + 100, 0)}, [(T0, 1, 6)])
        rig.tick(PARAMETERS.append_us)
    assert rig.windows() == []
    rig.tick(PARAMETERS.emit_us - 4 * PARAMETERS.append_us)
    assert [window.lines.read for window in rig.windows()] == [6]


def test_nothing_is_final_before_the_log_says_that_its_master_serves() -> None:
    """That entry states up to when another master may have published windows as final."""
    rig = Rig(delayed=True)
    rig.commit()
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0, 1, 5)], watermark=T0 + 60 * SECOND)
    rig.commit()
    after = Rig(rig.spec, state=rig.state, ballot=(2, b"N" * 16), delayed=True, now=T0 + 60 * SECOND)
    after.run(SECOND)
    assert [type(entry).__name__ for _, entry in after.waiting] == ["Serve"]
    after.commit()
    after.run(SECOND)
    after.commit()
    assert [window.status for window in after.windows()] == ["revised"]


def test_late_lines_revise_a_final_window_while_it_is_retained() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    rig.bundle({file(A): (10, 20, 0)}, [(T0 + 1, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    windows = rig.windows()
    assert [(window.status, window.revision[2]) for window in windows] == [("final", 1), ("revised", 2)]
    assert counts_of(windows[-1].rows) == {"/page/1": (2, 2)}


def test_lines_past_retention_are_counted_as_late() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    later = T0 + 3000 * SECOND
    rig.bundle({file(A): (10, 20, 0)}, [(later, 1, 1)], watermark=later + 60 * SECOND)
    rig.run(2 * SECOND)
    assert [entry for _, entry in rig.log if isinstance(entry, Retire)]
    assert (
        rig.state.positions.retained_us == later + 58 * SECOND - rig.spec.keep_us
    )  # all workers are past it
    assert T0 not in rig.state.touched[rig.state.schedule[-1].version]
    rig.windows()
    rig.bundle({file(A): (20, 30, 0)}, [(T0, 1, 1), (later, 2, 2)], watermark=later + 61 * SECOND)
    rig.run(SECOND)
    opened_now, revised = rig.windows()
    assert counts_of(revised.rows) == {"/page/1": (1, 1), "/page/2": (1, 2)}
    assert (opened_now.lines.read, opened_now.lines.late, len(opened_now.rows)) == (1, 1, 0)
    rig.master.check()


def test_a_gap_makes_the_windows_it_touches_incomplete() -> None:
    """Lost lines never arrive, so a worker that is past them is not waited for."""
    rig = opened()
    rig.bundle({file(A): (100, 110, GAP), file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    rig.bundle(
        {file(A): (110, 120, 0), file(B): (110, 120, 0)},
        [(T0 + 30 * SECOND, 1, 1)],
        watermark=T0 + 60 * SECOND,
    )
    rig.run(SECOND)
    assert [
        (w.start, w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"
    ] == [
        (T0, 1, 2),
        (T0 + 30 * SECOND, 2, 2),
    ]


def test_a_window_that_lost_lines_is_not_judged_again_and_again_but_grows_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[tuple[str, int]] = []
    judge = Publication._final

    def note(publication: Publication, key: tuple[str, int], *more: Any) -> Any:
        judged.append(key)
        return judge(publication, key, *more)

    monkeypatch.setattr(Publication, "_final", note)
    rig = opened()
    rig.bundle({file(A): (100, 110, GAP), file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    assert [(w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"] == [(1, 2)]
    judged.clear()
    for second in range(10):
        at = 110 + second
        rig.bundle({file(B): (at, at + 1, 0)}, [(T0 + 30 * SECOND, 1, 1)], watermark=T0 + 31 * SECOND)
        rig.run(SECOND)
    assert sum(start == T0 for _, start in judged) == 0
    # An agent that is expected in it after all, and reports its lines, makes it grow.
    rig.do(rig.master.adverts([(C, AgentAdvert("c", ("access",), 1, T0))], rig.now))
    rig.run(SECOND)
    rig.bundle({file(C): (0, 10, FIRST)}, [(T0 + 2, 1, 1)], watermark=T0 + 31 * SECOND)
    rig.run(SECOND)
    assert [(w.status, w.agents_reporting, w.agents_expected) for w in rig.windows() if w.start == T0] == [
        ("revised", 2, 3)
    ]


def test_a_worker_with_a_gap_that_is_not_past_the_window_is_waited_for() -> None:
    rig = opened()
    rig.bundle({file(A): (100, 110, GAP)}, [(T0, 1, 1)], watermark=T0 + SECOND)
    rig.bundle({file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + 30 * SECOND)
    rig.run(2 * PARAMETERS.hold_us_max)
    assert not [window for window in rig.windows() if window.status == "final"]
    rig.bundle({file(A): (110, 120, 0)}, [(T0, 1, 1)], watermark=T0 + 30 * SECOND)
    rig.run(SECOND)
    found = [(w.start, w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"]
    assert found == [(T0, 1, 2)]


def test_a_worker_that_left_is_not_waited_for_and_its_lines_count() -> None:
    rig = opened()
    rig.bundle({file(A): (100, 110, 0), file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + SECOND)
    rig.do(rig.master.goodbye(Goodbye(rig.spec.id, B, T0 + 2 * SECOND, 1, rig.master.ballot), rig.now))
    assert rig.take(Farewell) == [Farewell(rig.spec.id, B)]
    rig.bundle({file(A): (110, 120, 0)}, [(T0 + SIZE, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    found = [(w.start, w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"]
    assert found == [(T0, 2, 2), (T0 + SIZE, 1, 1)]


def test_a_forgotten_worker_is_expected_again_when_it_reports() -> None:
    rig = opened(spec=spec_of(plan_of(), keep_us=48 * 3600 * SECOND))  # type: ignore[arg-type]
    rig.bundle({file(A): (100, 110, 0), file(B): (100, 110, 0)}, watermark=T0 + SECOND)
    for _ in range(18):
        rig.tick(PARAMETERS.forget_us // 16 + 1)
        at = rig.state.positions.at[file(A)]
        rig.bundle({file(A): (at, at + 1, 0)}, watermark=rig.now)
    assert T0 + SECOND < rig.state.positions.roster[B].until_us < rig.now
    rig.bundle({file(B): (110, 120, 0)}, watermark=rig.now)
    assert rig.state.positions.roster[B].until_us > rig.now
    rig.master.check()


def test_a_revoked_worker_is_not_expected_even_if_lines_of_it_still_arrive() -> None:
    rig = opened()
    rig.bundle({file(A): (100, 110, 0), file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + SECOND)
    rig.do(rig.master.forget({B}, rig.now))
    assert rig.state.positions.roster[B].until_us == T0 + SECOND
    rig.bundle({file(B): (110, 120, 0)}, watermark=T0 + 2 * SECOND)
    rig.do(rig.master.hello(Hello(rig.spec.id, B, 1), rig.now))
    rig.do(rig.master.forget({B}, rig.now))
    assert rig.state.positions.roster[B].until_us == T0 + SECOND
    rig.bundle({file(A): (110, 120, 0)}, [(T0 + SIZE, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    found = [(w.start, w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"]
    assert (T0 + SIZE, 1, 1) in found
    rig.master.check()


def test_windows_before_a_revocation_count_the_revoked_worker_as_missing() -> None:
    """It logged lines after its last watermark that no master has."""
    rig = opened()
    rig.bundle({file(A): (100, 110, 0), file(B): (100, 110, 0)}, [(T0, 1, 1)], watermark=T0 + SECOND)
    front_us = T0 + 2 * SIZE + SECOND
    rig.bundle({file(A): (110, 120, 0)}, [(T0 + SIZE, 1, 1)], watermark=front_us)
    rig.do(rig.master.forget({B}, rig.now))
    assert rig.state.positions.roster[B].until_us == front_us
    rig.bundle({file(A): (120, 130, 0)}, [(T0 + 3 * SIZE, 1, 1)], watermark=T0 + 60 * SECOND)
    rig.run(PARAMETERS.hold_us_max + SECOND)
    final = {w.start: (w.agents_reporting, w.agents_expected) for w in rig.windows() if w.status == "final"}
    assert (final[T0 + SIZE], final[T0 + 3 * SIZE]) == ((1, 2), (1, 1))
    rig.master.check()


def test_a_query_without_windows_has_one_that_stays_open() -> None:
    rig = Rig(spec_of(plan_of("")))
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1), (T0 + 90 * SECOND, 1, 4)], watermark=T0 + 900 * SECOND)
    rig.run(SECOND)
    rig.bundle({file(A): (10, 20, 0)}, [(T0 + 1, 2, 1)], watermark=T0 + 901 * SECOND)
    rig.run(SECOND)
    windows = rig.windows()
    assert [(window.start, window.status) for window in windows] == [(None, "open")] * 2
    assert counts_of(windows[-1].rows) == {"/page/1": (2, 5), "/page/2": (1, 1)}
    rig.master.check()


def test_a_final_window_that_a_change_divides_is_revised_only_when_its_lines_are_back() -> None:
    rig = Rig()
    lines = [(T0 + 1, 1, 1), (T0 + 8 * SECOND, 2, 2)]
    rig.bundle({file(A): (0, 20, FIRST)}, lines, watermark=T0 + 60 * SECOND)
    rig.run(SECOND)
    assert [window.status for window in rig.windows()] == ["final"]
    changed = msgspec.structs.replace(
        rig.spec,
        number=2,
        versions=(*rig.spec.versions, version_of(plan_of("7 seconds"))),
        line_us=T0 + 5 * SECOND,
    )
    rig.do(rig.master.spec_changed(changed, rig.now))
    (control, *_) = rig.take(Control)
    assert (control.lane_us, [line.from_us for line in control.schedule]) == (T0, [0, T0 + 5 * SECOND])
    rig.run(5 * SECOND)
    assert not [window for window in rig.windows() if window.status != "open"]
    assert len(rig.take(Control)) >= 3, "it is repeated while a worker may have missed it"
    rig.do(rig.master.hello(Hello(rig.spec.id, A, 1), rig.now))
    (welcome,) = rig.welcomes()
    number = control.schedule[-1].number
    assert (welcome.lanes, welcome.ends) == (((number, T0),), ((file(A, 1, number), 20),))
    rig.bundle(
        {file(A, 1, number): (0, 20, FIRST | CLOSED), file(A): (20, 20, 0)}, lines, watermark=T0 + 60 * SECOND
    )
    rig.run(SECOND)
    found = {
        (window.version, window.start - T0, window.status): counts_of(window.rows) for window in rig.windows()
    }
    old, new = (line.version for line in control.schedule)
    start = T0 + 5 * SECOND - (T0 + 5 * SECOND) % (7 * SECOND) - T0
    assert found[old, 0, "revised"] == {"/page/1": (1, 1)}
    assert {"/page/2": (1, 2)} in [rows for (version, _, _), rows in found.items() if version == new]
    assert min(at for version, at, _ in found if version == new) >= start
    rig.master.check()


def test_an_older_or_equal_spec_changes_nothing() -> None:
    rig = Rig()
    assert not rig.master.spec_changed(rig.spec, rig.now)
    other = spec_of(plan_of("7 seconds"), 0)
    assert not rig.master.spec_changed(other, rig.now)
    rig.do(rig.master.spec_changed(msgspec.structs.replace(rig.spec, number=2, lateness_us=0), rig.now))
    assert not rig.master.take_multicast()


def test_control_is_multicast_only_when_it_is_in_the_log() -> None:
    rig = opened(delayed=True)
    changed = spec_of(plan_of("7 seconds"), 2, line_us=T0 + 15 * SECOND)
    rig.do(rig.master.spec_changed(changed, rig.now))
    assert not rig.master.take_multicast()
    rig.commit()
    assert [type(message) for message in rig.master.take_multicast()] == [Control]
