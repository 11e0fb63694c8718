"""The state of a log: the same on every node, from its beginning or from a snapshot; and the effect of each entry."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.agent.simulator.world.rows import SMALL, RowMaker
from elf.cbt import tree
from elf.cbt._kernel import first_disorder, make_rows
from elf.cbt._keys import encode_keys
from elf.cbt._strings import Strings
from elf.cbt.budget import Budget
from elf.cbt.rows import KeyColumn, Rows
from elf.errors import InternalError, PeerError
from elf.jobmaster.log.entries import (
    NO_LANE,
    Accept,
    Add,
    AnyEntry,
    Begin,
    ControlEntry,
    Final,
    Forget,
    Left,
    Retire,
    Serve,
)
from elf.jobmaster.log.job_state import JobState, StateSnapshot
from elf.jobmaster.log.positions import Place
from elf.jobmaster.log.schedule import (
    Shape,
    in_force,
    lane_from,
    next_number,
    times_within,
    with_line,
    without_past,
)
from elf.jobmaster.master.window_rule import Coverage, Progress
from elf.jobmaster.windows.lanes import LINE_OPS, group_ops
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import CLOSED, FIRST, GAP, NO_WATERMARK, Line, Position, Schedule
from tests.rigs.master_model import Mesh, some_workers
from tests.rigs.master_rig import BALLOT, T0, file, parts_of
from tests.rigs.mesh_lines import PATHS, SECOND, LogLine, maker_of, part_of, plan_of, version_of

A, B = b"A" * 16, b"B" * 16
JOB = job_id("hits")
SIZE = 10 * SECOND


def line(number: int, from_us: int, window: str = "10 seconds") -> Line:
    version = version_of(plan_of(window))
    return Line(number, version.digest, from_us, version.plan)


FIRST_LINE = line(1, 0)


def new_state(schedule: Schedule = (FIRST_LINE,), since_us: int = T0) -> JobState:
    state = JobState(JOB, "hits", Budget(1 << 26))
    state.apply(1, Begin(BALLOT, since_us, schedule, (1, b"")))
    return state


def add(state: JobState, *entries: AnyEntry) -> JobState:
    for entry in entries:
        state.apply(state.index + 1, entry)
    state.check()
    return state


def accept(
    state: JobState,
    spans: dict[tuple[bytes, int, int], tuple[int, int, int]],
    lines: list[LogLine],
    mark: int,
) -> Accept:
    parts = parts_of(state.schedule, lines) if lines else {}
    return Accept(1, spans, mark, {}, parts)


def lines_in(state: JobState, version: str) -> dict[int, int]:
    rows = state.panes[version].lines()
    return dict(zip(rows.pane.tolist(), rows.lanes[0].tolist(), strict=True))


# The log.


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=15, derandomize=True, deadline=None)
def test_the_same_log_is_the_same_state_and_a_snapshot_with_the_rest_too(seed: int) -> None:
    rng = Random(seed)
    mesh = Mesh(rng, some_workers(rng, 2), ["10 seconds", "4 seconds"])
    for _ in range(30):
        mesh.step()
    mesh.change(rng.choice(("split", "restate", "next")), T0 + rng.randrange(30 * SECOND))
    for _ in range(15):
        mesh.step()
    mesh.rig.commit()
    log = mesh.rig.log
    cut = rng.randrange(len(log) + 1)
    whole, rest = (JobState(mesh.spec.id, "hits", Budget(1 << 26)) for _ in range(2))
    for index, entry in log[:cut]:
        whole.apply(index, entry)
    middle = whole.snapshot()
    rest.restore(middle)
    for index, entry in log[cut:]:
        whole.apply(index, entry)
        rest.apply(index, entry)
    rest.check()
    assert whole.snapshot() == rest.snapshot() == mesh.rig.state.snapshot()
    assert middle.index == (log[cut - 1][0] if cut else 0)


def test_a_snapshot_does_not_change_and_survives_encoding() -> None:
    state = new_state()
    add(state, Add((A,), T0), accept(state, {file(A): (0, 10, FIRST)}, [(T0, 1, 5)], T0))
    snapshot = state.snapshot()
    add(state, accept(state, {file(A): (10, 20, 0)}, [(T0, 1, 5)], T0 + SECOND))
    other = JobState(JOB, "hits", Budget(1 << 26))
    other.restore(snapshot)
    assert other.positions.at == {file(A): 10}
    assert lines_in(other, FIRST_LINE.version) == {T0: 1}
    assert snapshot.nbytes > 100
    other.close()


def test_entries_know_their_size() -> None:
    state = new_state()
    entry = accept(state, {file(A): (0, 10, FIRST)}, [(T0, 1, 5)], T0)
    assert entry.nbytes > sum(part.nbytes for part in entry.parts.values())


# Accept.


def test_rule_2_a_watermark_counts_for_its_contributor_and_never_falls() -> None:
    state = new_state()
    both = {file(A): (0, 10, FIRST), file(B, 0): (0, 0, FIRST)}
    add(state, Accept(1, both, T0 + 5, {B: T0 + 2}, {}))
    assert state.watermarks == {A: T0 + 5, B: T0 + 2}
    add(state, Accept(1, {file(A): (10, 10, 0)}, T0 + 3, {}, {}))
    assert state.watermarks == {A: T0 + 5, B: T0 + 2}
    add(state, Accept(1, {file(B, 0): (0, 0, 0)}, NO_WATERMARK, {B: T0 + 4}, {}))
    assert state.watermarks == {A: T0 + 5, B: T0 + 4}
    assert state.front_us == T0 + 5


def test_a_lane_does_not_move_the_watermark() -> None:
    state = new_state()
    add(
        state,
        Accept(1, {file(A): (0, 10, FIRST)}, T0, {}, {}),
        ControlEntry(line(2, T0 + 5, "5 seconds"), T0, (2, b"")),
    )
    add(state, Accept(2, {file(A, 1, 2): (0, 10, FIRST)}, T0 + 60 * SECOND, {}, {}))
    assert state.watermarks == {A: T0}


def test_gaps_are_remembered_until_retention_passes_them() -> None:
    state = new_state()
    add(state, Add((A,), T0), Accept(1, {file(A): (0, 10, FIRST)}, T0 + SIZE, {}, {}))
    add(state, Accept(1, {file(A): (10, 20, GAP)}, T0 + 3 * SIZE, {}, {}))
    assert state.gaps == {A: (T0 + SIZE, T0 + 3 * SIZE)}
    assert Progress(state, 0).of_final(T0 + SIZE, T0 + 2 * SIZE) == (0, 1)
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == (1, 1)
    add(state, Retire(T0 + 3 * SIZE))
    assert not state.gaps


def test_times_of_which_no_line_could_be_parsed_are_gaps_whatever_was_promised_before() -> None:
    state = new_state()
    add(state, Add((A, B), T0), Accept(1, {file(A): (0, 10, FIRST)}, T0 + 9 * SIZE, {}, {}))
    unparsed = {A: (T0 + 2 * SIZE, T0 + 4 * SIZE)}
    add(state, Accept(1, {file(A): (10, 20, 0)}, T0 + 9 * SIZE, {}, {}, unparsed=unparsed))
    assert state.gaps == unparsed
    assert Progress(state, 0).of_final(T0 + 3 * SIZE, T0 + 4 * SIZE) == (0, 2)
    assert Progress(state, 0).of_final(T0 + 4 * SIZE, T0 + 5 * SIZE) == (1, 2)
    step = Accept(1, {file(A): (20, 20, GAP)}, NO_WATERMARK, {A: T0 + 4 * SIZE}, {}, unparsed=unparsed)
    add(state, step)  # the promise for that time, which the log has passed
    assert state.gaps == unparsed
    late = {B: (T0, T0 + 2 * SIZE)}  # past retention: no window can miss these lines any more
    add(state, Retire(T0 + 2 * SIZE), Accept(1, {file(B): (0, 9, FIRST)}, T0, {}, {}, unparsed=late))
    assert state.gaps == unparsed
    lane = {file(A, 1, 2): (0, 9, FIRST), file(B, 1, 2): (0, 9, FIRST)}
    again = {A: (T0 + 3 * SIZE, T0 + 6 * SIZE), B: (T0 + 3 * SIZE, T0 + 5 * SIZE)}
    add(state, ControlEntry(line(2, T0 + 2 * SIZE, "5 seconds"), T0 + 2 * SIZE, (2, b"")))
    add(state, Accept(2, lane, NO_WATERMARK, {}, {}, unparsed=again))
    assert state.gaps == {A: (T0 + 2 * SIZE, T0 + 6 * SIZE), B: again[B]}


def test_late_lines_are_counted_in_the_current_window_and_in_no_other() -> None:
    state = new_state()
    add(state, Accept(1, {file(A): (0, 10, FIRST)}, T0 + 5 * SIZE, {}, {}), Retire(T0 + 2 * SIZE))
    late = [(T0, 1, 5), (T0 + SIZE + 1, 2, 5), (T0 + 2 * SIZE, 3, 5)]
    add(state, accept(state, {file(A): (10, 20, 0)}, late, T0 + 5 * SIZE))
    rows = state.panes[FIRST_LINE.version].lines()
    assert rows.pane.tolist() == [T0 + 2 * SIZE, T0 + 5 * SIZE]
    assert rows.lanes.T.tolist() == [[1, 1, 0, 0], [2, 2, 0, 2]]


# Control, retention, roster.


def test_control_drops_the_divided_pane_and_opens_a_lane_for_each_file() -> None:
    state = new_state()
    spans = {file(A): (0, 30, FIRST), file(A, 2): (0, 10, FIRST | CLOSED), file(B, 0): (0, 0, FIRST)}
    add(state, accept(state, spans, [(T0, 1, 1), (T0 + SIZE, 1, 1), (T0 + SIZE + 7, 1, 1)], T0))
    new = line(7, T0 + SIZE + 5, "7 seconds")
    lane_us = lane_from(state.schedule, state.positions.shapes, new.from_us)
    assert lane_us == T0 + SIZE
    add(state, ControlEntry(new, lane_us, (2, b"")))
    assert lines_in(state, FIRST_LINE.version) == {T0: 1}
    lane = state.positions.lane
    assert lane is not None
    assert lane.ends == {file(A, 1, 7): 30, file(A, 2, 7): 10}
    assert Progress(state, 0).highest < T0
    add(state, Accept(7, {file(A, 1, 7): (20, 30, FIRST | CLOSED)}, NO_WATERMARK, {}, {}))
    assert state.positions.lane_ends_of(A) == ((file(A, 2, 7), 10),)
    add(state, Accept(7, {file(A, 2, 7): (10, 10, FIRST | CLOSED)}, NO_WATERMARK, {}, {}))
    assert state.positions.lane is None
    assert file(A, 1, 7) not in state.positions.at


def test_a_majority_is_more_than_half_of_the_workers_that_have_not_left() -> None:
    """A worker that has left is done with every window, at both of two masters at a time."""
    state, nodes = new_state(), [bytes([n]) * 16 for n in range(1, 6)]
    add(state, Add(tuple(nodes), T0), *(Left(node, T0 + SIZE) for node in nodes[3:]))
    add(state, accept(state, {file(nodes[0]): (0, 30, FIRST)}, [(T0, 1, 1)], T0 + SIZE))
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(3, 5)
    assert not Progress(state, 0).has_majority(T0, T0 + SIZE)
    add(state, accept(state, {file(nodes[1]): (0, 30, FIRST)}, [(T0, 1, 1)], T0 + SIZE))
    assert Progress(state, 0).has_majority(T0, T0 + SIZE)


def test_agents_that_lost_lines_count_for_the_majority_and_not_for_the_coverage() -> None:
    state, nodes = new_state(), [bytes([n]) * 16 for n in range(1, 4)]
    add(state, Add(tuple(nodes), T0))
    add(state, accept(state, {file(nodes[0]): (0, 30, FIRST)}, [(T0, 1, 1)], T0 + SIZE))
    assert not Progress(state, 0).has_majority(T0, T0 + SIZE)
    add(state, accept(state, {file(nodes[1]): (0, 30, FIRST | GAP)}, [(T0, 1, 1)], T0 + SIZE))
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(1, 3)
    assert Progress(state, 0).has_majority(T0, T0 + SIZE)


def test_the_state_records_masters_that_published_nothing_outside_the_log() -> None:
    one, two, three = (1, b"A" * 16), (2, b"B" * 16), (3, b"A" * 16)
    state = add(new_state(), Serve(one), Serve(two, unknown_us=T0), Serve(three))
    assert (state.served, state.whole, state.unknown_us) == (three, (two,), T0)
    again = new_state()
    again.restore(state.snapshot())
    assert (again.served, again.whole) == (three, (two,))


def test_a_worker_that_leaves_with_lines_to_read_again_leaves_a_gap() -> None:
    state = new_state()
    both = {file(A): (0, 30, FIRST), file(B): (0, 30, FIRST)}
    add(state, Add((A, B), T0), accept(state, both, [(T0, 1, 1), (T0 + SIZE, 1, 1)], T0 + 2 * SIZE))
    add(state, Left(A, T0 + 2 * SIZE))
    add(state, ControlEntry(line(7, T0 + SIZE, "7 seconds"), T0 + SIZE, (2, b"")))
    assert dict(state.positions.lane_ends_of(B)) == {file(B, 1, 7): 30}
    assert not state.positions.lane_ends_of(A)
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(2, 2)
    assert Progress(state, 0).of_final(T0 + SIZE, T0 + 2 * SIZE) == Coverage(0, 2)
    add(state, Left(B, T0 + 2 * SIZE))
    assert not state.positions.lane_ends_of(B)
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(2, 2)
    assert Progress(state, 0).of_final(T0 + SIZE, T0 + 2 * SIZE) == Coverage(0, 2)


@pytest.mark.parametrize(("unread", "whole"), [(True, 1), (False, 2)])
def test_an_agent_that_could_not_read_its_last_lines_is_missing_from_its_last_promise_on(
    unread: bool, whole: int
) -> None:
    state = new_state()
    both = {file(A): (0, 30, FIRST), file(B): (0, 30, FIRST)}
    add(state, Add((A, B), T0), accept(state, both, [(T0, 1, 1), (T0 + SIZE, 1, 1)], T0 + SIZE))
    add(state, Left(A, T0 + 3 * SIZE // 2, unread))
    add(state, accept(state, {file(B): (30, 40, 0)}, [(T0 + SIZE, 1, 1)], T0 + 2 * SIZE))
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(2, 2)
    assert Progress(state, 0).of_final(T0 + SIZE, T0 + 2 * SIZE) == Coverage(whole, 2)


def test_lost_lines_are_a_gap_from_the_last_watermark_and_once_for_each_closed_file() -> None:
    state = new_state()
    add(state, Add((A,), T0), accept(state, {file(A): (0, 10, FIRST)}, [(T0, 1, 1)], T0 + SECOND))
    spans = {file(A, 2): (0, 10, FIRST), file(A): (10, 10, CLOSED | GAP)}
    add(state, accept(state, spans, [(T0 + 1, 1, 1)], T0 + 3 * SECOND))
    assert state.gaps == {A: (T0 + SECOND, T0 + 3 * SECOND)}
    # reported again, as to every new master
    spans = {file(A, 2): (10, 20, 0), file(A): (10, 10, CLOSED | GAP)}
    add(state, accept(state, spans, [(T0 + 2, 1, 1)], T0 + 9 * SECOND))
    assert state.gaps == {A: (T0 + SECOND, T0 + 3 * SECOND)}
    add(state, accept(state, {file(A, 2): (20, 30, GAP)}, [(T0 + 3, 1, 1)], T0 + 12 * SECOND))
    assert state.gaps == {A: (T0 + SECOND, T0 + 12 * SECOND)}


def test_a_version_that_never_came_into_force_is_gone() -> None:
    state = new_state()
    second, third = line(2, T0 + 50 * SECOND, "7 seconds"), line(3, T0 + 20 * SECOND, "4 seconds")
    add(
        state,
        ControlEntry(second, T0 + 50 * SECOND, (2, b"")),
        ControlEntry(third, T0 + 20 * SECOND, (3, b"")),
    )
    assert [each.number for each in state.schedule] == [1, 3]
    assert state.panes.keys() == {FIRST_LINE.version, third.version}


def test_retire_drops_panes_tombstones_finals_versions_and_departed_workers() -> None:
    state = new_state()
    spans = {file(A): (0, 30, FIRST | CLOSED), file(B): (0, 10, FIRST)}
    add(state, Add((A, B), T0), accept(state, spans, [(T0, 1, 1)], T0 + SIZE))
    add(state, Final(FIRST_LINE.version, T0, (1, A, 1), 5, 2, 2, 3, (T0, T0 + SIZE)), Left(B, T0 + SIZE))
    add(state, ControlEntry(line(2, T0 + 2 * SIZE, "7 seconds"), T0 + 2 * SIZE, (2, b"")))
    add(state, Retire(T0 + SIZE))
    assert state.positions.position(file(A)) == Position(30, closed=True)
    assert not lines_in(state, FIRST_LINE.version)
    add(state, Retire(T0 + 3 * SIZE))
    assert not state.finals
    assert not state.positions.at
    assert not state.positions.closed
    assert list(state.positions.roster) == [A]
    assert [each.number for each in state.schedule] == [2]
    assert state.watermarks == {A: T0 + SIZE}


def test_rejected_lines_outside_windows_are_in_a_snapshot_and_go_with_their_forgotten_worker() -> None:
    state = new_state()
    spans = {file(A): (0, 30, FIRST), file(B): (0, 10, FIRST | CLOSED)}
    add(state, Add((A, B), T0), replace(accept(state, spans, [(T0, 1, 1)], T0 + SIZE), untimed={A: 2, B: 5}))
    add(state, replace(accept(state, {file(A): (30, 60, 0)}, [], T0 + SIZE), untimed={A: 1}))
    snapshot = msgspec.msgpack.decode(msgspec.msgpack.encode(state.snapshot()), type=StateSnapshot)
    other = JobState(JOB, "hits", Budget(1 << 26))
    other.restore(snapshot)
    assert other.untimed == state.untimed == {A: 3, B: 5}
    add(other, replace(accept(other, {file(A): (60, 70, 0)}, [], T0 + SIZE), untimed={A: 4}))
    assert (other.untimed, state.untimed, snapshot.untimed) == ({A: 7, B: 5}, {A: 3, B: 5}, {A: 3, B: 5})
    add(state, Left(B, T0 + SIZE), Retire(T0 + SIZE))
    assert state.untimed == {A: 3, B: 5}, "its file is known for as long as a pane may hold lines of it"
    add(state, Retire(T0 + 3 * SIZE))
    assert state.untimed == {A: 3}
    other.close()


def test_rule_10_a_closed_file_continues_at_its_end() -> None:
    state = add(new_state(), Add((A,), T0))
    add(state, accept(state, {file(A): (0, 30, FIRST | CLOSED)}, [], T0))
    places = state.positions.place
    assert places(file(A), (30, 40, 0)) is Place.FITS
    assert places(file(A), (30, 40, CLOSED)) is Place.FITS
    assert places(file(A), (30, 30, 0)) is Place.IDLE
    assert places(file(A), (30, 30, CLOSED)) is Place.IDLE
    assert places(file(A), (20, 30, CLOSED)) is Place.BEHIND
    assert places(file(A), (20, 40, 0)) is Place.BAD
    assert places(file(A), (31, 40, 0)) is Place.AHEAD
    add(state, accept(state, {file(A): (30, 30, 0)}, [], T0))
    assert state.positions.position(file(A)) == Position(30, closed=True)
    add(state, accept(state, {file(A): (30, 40, 0)}, [], T0))
    assert state.positions.position(file(A)) == Position(40)
    add(state, accept(state, {file(A): (40, 50, CLOSED)}, [], T0))
    add(state, accept(state, {file(A): (50, 60, CLOSED)}, [], T0))
    assert state.positions.position(file(A)) == Position(60, closed=True)
    assert state.positions.files_of(A) == ((file(A), Position(60, closed=True)),)


def test_lines_lost_after_a_known_end_are_a_gap_too() -> None:
    state = add(new_state(), Add((A,), T0))
    add(state, accept(state, {file(A): (0, 30, FIRST | CLOSED), file(A, 2): (0, 0, FIRST)}, [], T0 + SECOND))
    add(state, accept(state, {file(A): (30, 40, CLOSED | GAP), file(A, 2): (0, 0, 0)}, [], T0 + SIZE))
    assert state.gaps == {A: (T0 + SECOND, T0 + SIZE)}


def test_a_closed_file_is_known_while_a_pane_with_lines_of_it_is_retained() -> None:
    """Seed 18432448200965: a longer pane than those in which its lines were first counted."""
    state = new_state()
    spans = {file(A): (0, 30, FIRST | CLOSED)}
    add(state, Add((A,), T0), accept(state, spans, [(T0 + 1, 1, 1)], T0 + SIZE))
    add(state, ControlEntry(line(2, T0, "60 seconds"), T0, (2, b"")))
    shape = state.positions.shapes[state.schedule[-1].version]
    pane = shape.floor(T0)
    assert pane + shape.pane_us - 1 > T0 + SIZE + 2
    add(state, Retire(pane + shape.pane_us - 1))
    assert state.positions.position(file(A)) == Position(30, closed=True)
    add(state, Retire(pane + shape.pane_us))
    assert state.positions.position(file(A)) is None


def test_the_roster_expects_from_until() -> None:
    state = new_state()
    add(state, Add((A,), T0), Add((B,), T0 + SIZE), Accept(1, {file(A): (0, 1, FIRST)}, T0 + SIZE, {}, {}))
    assert Progress(state, 0).of_final(T0, T0 + SIZE) == Coverage(1, 1)
    assert Progress(state, 1).of_final(T0, T0 + SIZE) == Coverage(0, 1)
    assert Progress(state, 0).of_open(T0 + SIZE - 1, T0 + SIZE + 1) == Coverage(1, 2)
    add(state, Forget(A, T0 + SIZE), Serve(BALLOT))
    assert Progress(state, 0).of_final(T0 + SIZE, T0 + 2 * SIZE) == Coverage(0, 1)
    add(state, Add((A,), T0 + 9 * SIZE))
    assert state.positions.roster[A].from_us == T0


# The schedule.


def test_schedule_rule_an_older_schedule_counts_up_to_the_pane_of_the_first_line_it_does_not_know() -> None:
    state = new_state()
    old = state.schedule
    add(state, ControlEntry(line(2, T0 + 15 * SECOND, "7 seconds"), T0 + SIZE, (2, b"")))
    before, across = parts_of(old, [(T0 + 9 * SECOND, 1, 1)]), parts_of(old, [(T0 + 10 * SECOND, 1, 1)])
    belong = state.positions.rows_belong
    assert belong(1, before)
    assert belong(2, before)
    assert not belong(1, across)
    assert belong(2, across)
    assert not belong(2, parts_of(old, [(T0 + 20 * SECOND, 1, 1)])), "the old version past the line"
    assert belong(2, parts_of(state.schedule, [(T0 + 14 * SECOND, 1, 1), (T0 + 15 * SECOND, 1, 1)]))
    early = {state.schedule[1].version: part_of(plan_of("7 seconds"), [(T0 + SECOND, 1, 1)])}
    assert not belong(2, early), "the new version before its line"
    assert not belong(3, before), "a schedule that this log does not know"
    assert belong(1, {FIRST_LINE.version: maker_of(plan_of()).nothing})


def test_lanes_reach_back_to_the_start_of_divided_panes() -> None:
    shapes = {
        each.version: Shape.of(plan_of(window))
        for window, each in (
            ("10 seconds", line(1, 0)),
            ("7 seconds", line(2, 0, "7 seconds")),
            ("1 hour", line(3, 0, "1 hour")),
        )
    }
    one, two = line(1, 0), line(2, T0 + 33 * SECOND, "7 seconds")
    assert lane_from((one,), shapes, T0 + 25 * SECOND) == T0 + 20 * SECOND
    assert lane_from((one, two), shapes, T0 + 34 * SECOND) == T0 + 33 * SECOND, "not into an earlier version"
    assert lane_from((one, two), shapes, T0 + 32 * SECOND) == T0 + 30 * SECOND, (
        "the second gives way, the first is cut"
    )
    assert lane_from((one, line(2, T0 + 33 * SECOND, "1 hour")), shapes, T0 + 60 * SECOND) == T0 + 33 * SECOND
    again = (one, two, line(3, T0 + 36 * SECOND))
    assert lane_from(again, shapes, T0 + 38 * SECOND) == T0 + 30 * SECOND, (
        "a version that came back within its pane"
    )


def test_a_window_covers_the_times_of_its_version_within_it() -> None:
    one, other, again = line(1, 0), line(2, T0 + 5, "7 seconds"), line(3, T0 + 30)
    schedule = (one, other, again)
    assert again.version == one.version

    def of_first(start: int, end: int) -> tuple[int, int]:
        low, until = times_within(schedule, one.version, T0 + start, T0 + end)
        return low - T0, until - T0

    assert of_first(-10, 0) == (-10, 0)
    assert of_first(0, 10) == (0, 5), "it comes back only after this window"
    assert of_first(10, 20) == (10, 10), "at none of these times"
    assert of_first(20, 40) == (30, 40)
    assert of_first(0, 40) == (0, 40), "it comes back within: the outer bounds"
    assert times_within((other, again), one.version, T0, T0 + 10) == (T0 + 10, T0 + 10)
    assert times_within(schedule, other.version, T0, T0 + 40) == (T0 + 5, T0 + 30)
    with pytest.raises(KeyError):
        times_within((other,), one.version, T0, T0 + 10)


def test_a_result_does_not_change_where_its_version_comes_back_after_it() -> None:
    state = new_state()
    version = state.schedule[0].version
    add(state, ControlEntry(line(2, T0 + 5 * SECOND, "7 seconds"), T0 + 5 * SECOND, (2, b"")))
    cut = state.covers(version, T0)
    assert cut == (T0, T0 + 5 * SECOND)
    add(state, ControlEntry(line(3, T0 + 3 * SIZE), T0 + 3 * SIZE, (3, b"")))
    assert state.schedule[-1].version == version
    assert state.covers(version, T0) == cut
    assert state.covers(version, T0 + 3 * SIZE) == (T0 + 3 * SIZE, T0 + 4 * SIZE)


def test_a_window_covers_both_parts_of_a_version_that_came_back_until_it_is_past_retention() -> None:
    """The first part's line was dropped when retention had passed it, and the window's pane, with its rows, was not."""
    state = new_state()
    version = state.schedule[0].version
    for number, second, window in ((2, 3, "7 seconds"), (3, 6, "10 seconds"), (4, 9, "7 seconds")):
        at = T0 + second * SECOND
        add(state, ControlEntry(line(number, at, window), NO_LANE, (number, b"")))
    both = (T0, T0 + 9 * SECOND)
    assert state.covers(version, T0) == both
    for second in (5, 8, 9):
        add(state, Retire(T0 + second * SECOND))
        assert (state.covers(version, T0), state.is_past(version, T0)) == (both, False)
    add(state, Retire(T0 + 20 * SECOND))
    assert state.is_past(version, T0)
    assert [each.from_us for each in state.schedule] == [T0 + 9 * SECOND]


def test_numbers_of_two_masters_never_meet() -> None:
    mine = next_number((5, A), (FIRST_LINE,))
    assert mine != next_number((5, B), (FIRST_LINE,))
    assert next_number((5, A), (line(mine, 0),)) == mine + 1
    assert next_number((6, A), ()) > mine
    assert next_number((1, A), (line(mine, 0),)) == mine + 1


def test_the_schedule_is_ordered() -> None:
    one, two, three = line(1, 0), line(2, 20, "7 seconds"), line(3, 10, "4 seconds")
    assert with_line((one, two), three) == (one, three)
    assert in_force((one, three), 9) == one
    assert in_force((one, three), 10) == three
    assert without_past((one, three), 9) == (one, three)
    assert without_past((one, three), 10) == (three,)


# Rows of virtual lines.


@given(
    lines=st.lists(
        st.tuples(st.integers(T0, T0 + 40 * SECOND), st.integers(0, 11), st.integers(0, 1 << 40)),
        min_size=1,
        max_size=40,
    ),
    large=st.booleans(),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_virtual_rows_are_what_the_kernels_make(lines: list[LogLine], large: bool) -> None:
    if large:
        lines = lines * (SMALL // len(lines) + 1)
    plan = plan_of()
    part = part_of(plan, lines)
    panes = [at - at % SIZE for at, _, _ in lines]
    import numpy as np

    strings = Strings()
    codes = strings.intern_all([PATHS.paths[path] for _, path, _ in lines])
    keys, ends = encode_keys([KeyColumn("string", codes, None, strings)], len(lines))
    sizes = [size for _, _, size in lines]
    ones, zeros = [1] * len(lines), [0] * len(lines)
    lanes = np.array([ones, ones, sizes, zeros], dtype=np.int64)
    expected = make_rows(np.array(panes, dtype=np.int64), keys, ends, None, lanes, group_ops(plan))
    same(part.rows[0], expected)
    nothing = np.zeros(0, dtype=np.uint8)
    counts = np.array([ones, ones, zeros, zeros], dtype=np.int64)
    empty = np.zeros(len(lines), dtype=np.uint64)
    same(part.rows[1], make_rows(np.array(panes, dtype=np.int64), nothing, empty, None, counts, LINE_OPS))


def same(one: Rows, other: Rows) -> None:
    assert first_disorder(one) == len(one) == len(other)
    for field in ("pane", "hash", "sub", "split", "ends", "keys", "lanes"):
        assert getattr(one, field).tolist() == getattr(other, field).tolist(), field
        assert getattr(one, field).dtype == getattr(other, field).dtype, field


def test_virtual_rows_refuse_other_queries() -> None:
    from elf.jobmaster.compile.query import compile as compile_query
    from tests.rigs.mesh_lines import SOURCES

    plan = compile_query("SELECT path, max(bytes) AS m FROM access GROUP BY path", SOURCES)
    with pytest.raises(InternalError):
        RowMaker(plan, PATHS)


def test_an_invalid_plan_is_refused() -> None:
    with pytest.raises(PeerError):
        new_state((Line(1, "x", 0, b"nothing"),))


@pytest.mark.parametrize("window", ["10 seconds", ""])
def test_panes_behind_the_newest_windows_are_packed(monkeypatch: pytest.MonkeyPatch, window: str) -> None:
    """A query without a window has one pane, which always counts as new."""
    monkeypatch.setattr(tree, "COLD_BYTES", 1_000)
    first = line(1, 0, window)
    state = add(new_state((first,)), Add((A,), T0))
    held: list[int] = []
    for number in range(60):
        begin_us = T0 + number * SIZE
        lines = [(begin_us + i, i % 12, i) for i in range(40)]
        span = (40 * number, 40 * (number + 1), 0 if number else FIRST)
        add(state, accept(state, {file(A): span}, lines, begin_us))
        held.append(sum(each.buffer_bytes for each in state.panes[first.version]._trees))
    counts = lines_in(state, first.version)
    if window:
        assert counts == {T0 + number * SIZE: 40 for number in range(60)}
        assert max(held[20:]) < 2 * max(held[:10])
        assert state.panes[first.version].raw_bytes > 4 * held[-1]
    else:
        assert list(counts.values()) == [60 * 40]
        assert held[-1] == state.panes[first.version].raw_bytes
