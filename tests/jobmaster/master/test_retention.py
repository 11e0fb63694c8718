"""Retention at a master with a slow log: lines are published before they are dropped, and not read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from elf.jobmaster.delivery import sink_queue
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.directory.job_spec import ALL_TIME, JobSpec, Version
from elf.jobmaster.log.entries import Final, Retire
from elf.jobmaster.master.intake import Intake
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, Hello, Message
from elf.srt.messages.results import Put
from tests.rigs.master_rig import BALLOT, PARAMETERS, SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, LogLine, counts_of, plan_of, version_of

A, B, C = b"A" * 16, b"B" * 16, b"\x03" * 16
SIZE = 10 * SECOND
LATER = T0 + 3000 * SECOND
"""Far longer than retention."""
SOON = T0 + 1000 * SECOND
"""A little more."""


def retirements(rig: Rig) -> list[Retire]:
    return [entry for _, entry in [*rig.log, *rig.waiting] if isinstance(entry, Retire)]


def finals_waiting(rig: Rig) -> list[Final]:
    return [entry for _, entry in rig.waiting if isinstance(entry, Final)]


def until_final(rig: Rig, start: int) -> None:
    """Run just long enough that nothing is retired yet."""
    while not any(key[1] == start for key in rig.state.finals):
        rig.tick(PARAMETERS.emit_us)


def test_proposed_lines_are_published_before_their_pane_is_dropped() -> None:
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
    assert counts_of(revised.rows) == {"/page/1": (2, 2)}
    rig.bundle({file(A): (30, 40, 0)}, [(LATER + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(2 * SECOND)
    assert rig.state.positions.retained_us > T0 + SIZE
    assert rig.state.late == 0


def test_a_changed_window_is_published_again_before_its_panes_are_dropped() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    rig.bundle({file(A): (10, 20, 0)}, [(SOON, 1, 1)], watermark=SOON + 60 * SECOND)
    rig.bundle({file(A): (20, 30, 0)}, [(T0 + 1, 1, 1)], watermark=SOON + 60 * SECOND)
    rig.master.publication.settle()
    assert rig.master.publication.retire_at() == T0
    rig.run(2 * SECOND)
    assert counts_of(next(w.rows for w in rig.windows() if w.status == "revised")) == {"/page/1": (2, 2)}
    rig.bundle({file(A): (30, 40, 0)}, [(SOON + 1, 1, 1)], watermark=SOON + 60 * SECOND)
    rig.run(2 * SECOND)
    assert rig.state.positions.retained_us > T0 + SIZE
    assert rig.state.late == 0


def test_a_window_that_a_sink_lacks_is_retained_twice_as_long() -> None:
    rig = Rig()
    rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    publication = rig.master.publication
    for passed_us, retained_us in (
        (SOON - T0, T0),
        (2 * (SOON - T0), T0 + 2 * (SOON - T0) - 2 * rig.spec.keep_us),
    ):
        publication._settled_us = T0 + passed_us
        assert publication.retire_at(unsent_us=T0) == max(T0, retained_us)
        assert publication.retire_at() == T0 + passed_us - rig.spec.keep_us


def test_a_window_read_before_its_panes_were_dropped_is_published_and_forgotten() -> None:
    """One of three reports only now. Its bundle, Retire, and the window with all three come into the log in this order."""
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
    windows = rig.windows()
    assert [(window.start, window.agents_reporting) for window in windows] == [(T0, 3), (LATER, 3)]
    assert counts_of(windows[0].rows) == {"/page/1": (1, 1)}
    assert {start for _, start in rig.state.finals} == {LATER}
    # the next master finds the same, and retention continues
    successor = Rig(spec=rig.spec, state=rig.state, ballot=(2, b"N" * 16))
    successor.run(SECOND)
    assert not successor.windows()
    for each in (rig, successor):
        each.master.check()
        assert (each.master.publication.retire_at() or 0) >= LATER + SIZE - each.spec.keep_us


class Silent(Ledger):
    """A sink that reports its ledger, and takes windows once it `wakes`."""

    wakes = False

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        return super().step(source, message, now) if self.wakes or not isinstance(message, Put) else []


def test_a_backlog_becomes_final_as_fast_as_its_sink_takes_it_whatever_is_retained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule Backlog*, with a master that begins again before the sink has taken anything."""
    most, count = 20, 100
    monkeypatch.setattr(sink_queue, "BACKLOG_MAX", most)
    spec = spec_of(plan_of(), keep_us=2 * SIZE, since_us=ALL_TIME, line_us=0)
    parameters = replace(PARAMETERS, outbox_bytes_max=4_000)  # rows of few windows: the others are read again
    sink = Silent(spec.id)
    about: dict[str, Any] = {"sinks": [SINK], "ledgers": {SINK: sink}, "parameters": parameters, "now": LATER}
    rig = Rig(spec, deaf=True, **about)
    lines = [(T0 + number * SIZE, 1, 1) for number in range(count)]
    rig.bundle({file(A): (0, 10, FIRST)}, lines, watermark=T0 + (count + 5) * SIZE)
    rig.run(5 * SECOND)
    assert not rig.state.finals, "the sink may lack what was published before this log"
    rig.deaf = False
    rig.run(5 * SECOND)
    assert len(rig.state.finals) == most
    for number in (2, 3):
        rig = Rig(spec, state=rig.state, ballot=(number, BALLOT[1]), **about)
        rig.run(5 * SECOND)
        assert len(rig.state.finals) == most
    assert rig.state.positions.retained_us <= T0
    sink.wakes = True
    rig.run(20 * SECOND)
    assert [start for _, start in sink.entries] == [T0 + number * SIZE for number in range(count)]
    assert (rig.master.outbox.lost, rig.state.late) == (0, 0)
    assert rig.state.positions.retained_us >= T0 + (count - most) * SIZE


def versions(spec: JobSpec, number: int, added: Version, line_us: int) -> JobSpec:
    return replace(spec, number=number, versions=(*spec.versions, added), mode="split", line_us=line_us)


class Story:
    """A job whose only agent writes a line every other second, and that is changed meanwhile."""

    def __init__(self, window: str = "10 seconds", keep_s: int = 160) -> None:
        self.spec = spec_of(plan_of(window), keep_us=keep_s * SECOND)
        self.rig = Rig(self.spec, sinks=[SINK])
        self.at = 0

    def lines(self, lines: Sequence[LogLine], mark: int) -> None:
        flags = 0 if self.at else FIRST
        self.rig.bundle({file(A): (self.at, self.at + 10, flags)}, lines, watermark=mark)
        self.at += 10
        self.rig.now = max(self.rig.now, mark)
        self.rig.run(SECOND)

    def live(self, second: int) -> None:
        self.lines([(T0 + second * SECOND, 1, 1)], T0 + (second + 1) * SECOND)

    def change(self, number: int, version: Version, second: int) -> None:
        self.spec = versions(self.spec, number, version, T0 + second * SECOND)
        self.rig.do(self.rig.master.spec_changed(self.spec, self.rig.now))
        self.rig.run(SECOND)
        lane = self.rig.state.positions.lane
        if lane is not None:
            self.rig.bundle({file(A, lane=lane.number): (0, self.at, FIRST)}, watermark=0)


def test_a_window_of_a_version_that_came_back_is_not_read_if_its_panes_were_dropped() -> None:
    """Retention drops its line of the schedule, so it covers nothing; its published result stays."""
    first, second = version_of(plan_of()), version_of(plan_of(where="WHERE status >= 0"))
    story = Story()
    for at in range(0, 100, 2):
        story.live(at)
    story.change(2, second, 100)
    for at in range(100, 150, 2):
        story.live(at)
    story.change(3, first, 150)
    at, state = 150, story.rig.state
    while len(state.schedule) == 3:
        story.live(at)
        at += 2
    assert [line.version for line in state.schedule] == [second.digest, first.digest]
    assert min(start for version, start in state.finals if version == first.digest) == T0 + 150 * SECOND
    held = dict(story.rig.ledgers[SINK].entries)
    assert (first.digest, T0 + 90 * SECOND) in held
    successor = Rig(story.spec, state=state, ballot=(2, b"N" * 16), sinks=[SINK], ledgers=story.rig.ledgers)
    successor.run(2 * SECOND)
    kept = [key for key in held if key[1] < T0 + 100 * SECOND]
    assert [story.rig.ledgers[SINK].entries[key] for key in kept] == [held[key] for key in kept]


def test_a_line_with_only_past_windows_is_late_if_sizes_are_no_multiples_of_slides() -> None:
    story = Story("25 seconds/10 seconds", keep_s=20)
    second, positions = 0, story.rig.state.positions
    while second < 40 or (positions.retained_us - T0) // SECOND % 10 < 5:
        story.live(second)
        second += 2
    pane = positions.retained_us - positions.retained_us % (5 * SECOND)
    late = story.rig.state.late
    story.lines([(pane + 1, 7, 1)], story.rig.now + SECOND)
    assert story.rig.state.late == late + 1


def test_lines_before_the_log_began_are_left_out_and_not_counted_as_late() -> None:
    """A worker that read for an earlier log, which began with older lines, sends lines that sinks may have from there."""
    rig = Rig()
    assert rig.state.positions.since_us == T0
    before, first = (T0 - 2 * SIZE, 9, 1), (T0 + 1, 1, 1)
    rig.bundle({file(A): (0, 20, FIRST)}, [before, first], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    (window,) = [each for each in rig.windows() if each.status == "final"]
    assert (window.start, window.lines.read, window.lines.late) == (T0, 1, 0)
    assert counts_of(window.rows) == {"/page/1": (1, 1)}
    assert rig.state.late == 0
    assert rig.state.positions.at[file(A)] == 20


@pytest.mark.parametrize("comes", ["again", "from under another master", "as new"])
def test_lines_of_a_file_that_the_log_has_forgotten_are_late_only_if_they_come_as_new(comes: str) -> None:
    rig = Rig()
    lines = [(T0, 1, 1), (T0 + 1, 2, 1)]
    rig.bundle({file(A): (0, 20, FIRST | CLOSED)}, lines, watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    rig.bundle({file(A, 2): (0, 10, FIRST)}, [(LATER, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(2 * SECOND)
    rig.bundle({file(A, 2): (10, 20, 0)}, [(LATER + 1, 1, 1)], watermark=LATER + 60 * SECOND)
    rig.run(2 * SECOND)
    assert not rig.state.positions.closed
    ballot = (0, b"F" * 16) if comes == "from under another master" else None
    rig.bundle(
        {file(A): (0, 20, FIRST | CLOSED)}, lines, watermark=LATER, ballot=ballot, again=comes == "again"
    )
    assert rig.state.positions.closed
    assert rig.state.late == (2 if comes == "as new" else 0)


def test_a_changed_window_that_may_not_be_published_delays_retention_by_keep_us_at_most() -> None:
    """A log was begun anew, so a window that a sink holds is published only with all workers; and a new agent reports nothing."""
    spec = spec_of(plan_of(), keep_us=100 * SECOND)
    first = Rig(spec, sinks=[SINK])
    spans = {file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}
    first.bundle(spans, [(T0, 1, 1)], watermark=T0 + 13 * SECOND)
    first.run(2 * SECOND)
    rig = Rig(spec, ballot=(2, b"N" * 16), sinks=[SINK], ledgers=first.ledgers, now=first.now)
    rig.run(SECOND)
    rig.bundle(spans, [(T0, 1, 1)], watermark=T0 + 13 * SECOND)
    rig.run(2 * SECOND)
    rig.do(rig.master.hello(Hello(spec.id, C, 3), rig.now))
    lines = [(T0 + 1, 1, 1)]
    for number in range(40):
        at, mark = 10 * (number + 1), T0 + (20 * number + 14) * SECOND
        rig.bundle({file(A): (at, at + 10, 0), file(B): (at, at + 10, 0)}, lines, watermark=mark)
        rig.now = mark
        rig.run(2 * SECOND)
        newest = T0 + 20 * number * SECOND
        assert rig.state.positions.retained_us <= max(T0, newest - 150 * SECOND)
        lines = [(T0 + 20 * (number + 1) * SECOND, 1, 1)]
    assert rig.state.positions.retained_us > T0 + 400 * SECOND


def test_nothing_is_retired_while_a_change_is_proposed() -> None:
    """Otherwise the lines that its lane reads again would be late. The look at silent workers may come in between."""
    rig = Rig()
    rig.do(rig.master.hello(Hello(rig.spec.id, C, 3), rig.now))
    spans = {file(A): (0, 10, FIRST), file(B): (0, 10, FIRST)}
    rig.bundle(spans, [(T0, 1, 1)], watermark=T0 + 60 * SECOND)
    until_final(rig, T0)
    spans = {file(A): (10, 20, 0), file(B): (10, 20, 0)}
    rig.bundle(spans, [(LATER, 1, 1)], watermark=LATER + 60 * SECOND)
    until_final(rig, LATER)
    rig.delayed = True
    version = version_of(plan_of(where="WHERE status >= 0"))
    rig.do(rig.master.spec_changed(versions(rig.spec, 2, version, T0 + 400 * SECOND), rig.now))
    rig.master._forget_at = rig.now
    rig.tick(1_000)
    assert [type(entry).__name__ for _, entry in rig.waiting] == ["ControlEntry"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_rule_8_no_bundle_counts_that_leaves_out_lines_which_the_log_retains(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker leaves out what its log does not retain; then another log goes on, which retains more. Without the rule the bundle
    is accepted, and the window lacks these lines for good."""
    if is_broken:
        monkeypatch.setattr(Intake, "has_all_rows", lambda intake, bundle: True)
    rig = Rig()
    made = rig.bundle({file(A): (0, 10, FIRST)}, [(T0, 1, 1)], watermark=T0)
    since = rig.master.ahead.reread_us
    lacking = replace(made, id=(C, 1, 1), contributions={file(B): (0, 10, FIRST)}, since_us=since + 1)
    rig.give(lacking)
    assert (file(B) in rig.state.positions.at) == is_broken
    rig.give(replace(lacking, id=(C, 1, 2), since_us=since))
    assert rig.state.positions.at[file(B)] == 10
