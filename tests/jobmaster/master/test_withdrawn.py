"""Exactly one version per result: windows that a change of the schedule removes are withdrawn at every sink."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elf.agent.control.follow import Watcher
from elf.agent.host.cell_types import check_pane
from elf.agent.host.sinks.lake_ledgers import adopt
from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import EPOCH_US
from elf.agent.simulator.world.sources import Traffic
from elf.cbt.budget import Budget
from elf.jobmaster.delivery.ledger import ENTRIES_MIN, UNKNOWN_ROWS, Ledger
from elf.jobmaster.delivery.states import PaneReader, as_parts
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import speaks_for
from elf.jobmaster.master.master import Master
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.jobmaster.windows.state import StateMaker
from elf.sinks.console.console import Table
from elf.sinks.console.csv import Csv
from elf.sinks.console.jsonlines import JsonLines
from elf.sinks.lake import layout, parquet
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.report.report import report
from elf.srt.messages.ids import MAKER_BYTES
from elf.srt.messages.messages import FIRST, Line
from elf.srt.messages.results import NO_ROWS, WITHDRAWN, LedgerRequest, PaneParts, Put, Shown
from tests.rigs.master_rig import PARAMETERS, SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, LogLine, part_of, plan_of, version_of
from tests.rigs.quick import QUICK
from tests.sinks.lake import lake_states

A, B = b"A" * 16, b"B" * 16
MAKER = b"M" * MAKER_BYTES
SIZE = 10 * SECOND
SECOND_PLAN = plan_of("10 seconds", "WHERE status >= 0")


def changed(rig: Rig, line_us: int, mode: Any = "split", plan: Any = SECOND_PLAN, back: bool = False) -> None:
    """A change of the rig's job."""
    spec = rig.master.spec
    known = [version for version in spec.versions if version.digest != version_of(plan).digest]
    spec = msgspec.structs.replace(
        spec, number=spec.number + 1, versions=(*known, version_of(plan)), mode=mode, line_us=line_us
    )
    rig.do(rig.master.spec_changed(spec, rig.now))


def rig_with_finals(windows: int = 4, **fields: Any) -> Rig:
    """Files of A and B, read up to the end of that many windows, which are final."""
    rig = Rig(sinks=(SINK,), **fields)
    lines = [(T0 + at * SIZE + SECOND, at % 3, 5) for at in range(windows)]
    end = T0 + windows * SIZE + 5 * SECOND
    rig.bundle({file(A): (0, 100, FIRST), file(B): (0, 100, FIRST)}, lines, watermark=end)
    rig.run(SECOND)
    assert [put.status for put in finals(rig)] == ["final"] * windows
    return rig


def finals(rig: Rig) -> list[Put]:
    return [put for put in rig.take(Put) if put.status != "open"]


def statuses(puts: Sequence[Put]) -> list[tuple[str, int]]:
    return sorted((put.status, (put.start - T0) // SIZE) for put in puts)


# At a master.


def test_windows_past_the_control_line_are_withdrawn_and_the_divided_one_is_revised() -> None:
    rig = rig_with_finals()
    first = rig.state.schedule[0].version
    changed(rig, T0 + 2 * SIZE + 3 * SECOND)
    rig.run(SECOND)
    puts = [put for put in finals(rig) if put.version == first]
    assert statuses([put for put in puts if put.status == WITHDRAWN]) == [(WITHDRAWN, 3)]
    (gone,) = [put for put in puts if put.status == WITHDRAWN]
    assert (gone.rows, gone.digest, gone.covers, gone.end) == (
        (),
        NO_ROWS,
        (gone.start, gone.start),
        gone.start + SIZE,
    )
    assert gone.revision > (*rig.master.ballot, 1)
    assert rig.ledgers[SINK].entries[first, gone.start] == (gone.revision, NO_ROWS)
    assert (first, T0 + 3 * SIZE) not in rig.state.finals
    rig.master.check()


def test_final_windows_of_a_master_whose_log_was_not_taken_over_are_withdrawn() -> None:
    """After a partition the log of the other side goes on, which lacks them; only the sink has them."""
    apart = Rig(sinks=(SINK,))
    lines = [(T0 + at * SIZE + SECOND, at % 3, 5) for at in range(4)]
    both = {file(A): (0, 100, FIRST), file(B): (0, 100, FIRST)}
    apart.bundle(both, lines[:2], watermark=T0 + SIZE + 5 * SECOND)
    state = JobState(apart.spec.id, apart.spec.name, apart.budget)
    state.restore(apart.state.snapshot())
    more = {file(A): (100, 110, 0), file(B): (100, 110, 0)}
    apart.bundle(more, lines[2:], watermark=T0 + 4 * SIZE + 5 * SECOND)
    apart.run(SECOND)
    version = apart.state.schedule[0].version
    held = apart.ledgers[SINK].entries
    assert {start for of, start in held if of == version} == {T0 + at * SIZE for at in range(4)}
    rig = Rig(state=state, ballot=(2, b"N" * 16), sinks=(SINK,), ledgers=apart.ledgers, now=T0 + 5 * SIZE)
    rig.run(SECOND)
    before = {start: revision for (_, start), (revision, _) in held.items()}
    changed(rig, T0 + 2 * SIZE)
    rig.run(SECOND)
    for at in (2, 3):
        start = T0 + at * SIZE
        assert held[version, start][1] == NO_ROWS
        assert held[version, start][0] > before[start]
    assert all(held[version, T0 + at * SIZE][1] != NO_ROWS for at in (0, 1))
    rig.master.check()


def test_a_window_that_was_only_open_is_never_final_past_the_line() -> None:
    """It would have been published as final, without any row."""
    rig = rig_with_finals()
    rig.bundle({file(A): (100, 200, 0)}, [(T0 + 5 * SIZE, 1, 1)], watermark=T0 + 4 * SIZE)
    rig.run(SECOND)
    rig.take(Put)
    first = rig.state.schedule[0].version
    changed(rig, T0 + 4 * SIZE)
    rig.bundle({file(A): (200, 210, 0), file(B): (100, 110, 0)}, watermark=T0 + 9 * SIZE)
    rig.run(SECOND)
    assert statuses([put for put in rig.take(Put) if put.version == first]) == [(WITHDRAWN, 5)]
    rig.master.check()


def test_a_version_that_comes_back_publishes_its_windows_above_their_withdrawal() -> None:
    rig = rig_with_finals()
    plan, first = plan_of(), rig.state.schedule[0].version
    changed(rig, T0 + 2 * SIZE)
    lane = rig.state.positions.lane
    assert lane is not None
    spans = {file(A, lane=lane.number): (0, 100, FIRST), file(B, lane=lane.number): (0, 100, FIRST)}
    rig.bundle(spans, watermark=T0)
    rig.run(SECOND)
    changed(rig, T0 + 2 * SIZE, plan=plan)
    lane = rig.state.positions.lane
    assert lane is not None
    again = [(T0 + at * SIZE + SECOND, at % 3, 5) for at in range(2, 4)]
    spans = {file(A, lane=lane.number): (0, 100, FIRST), file(B, lane=lane.number): (0, 100, FIRST)}
    rig.bundle(spans, again, watermark=T0)
    rig.bundle({file(A): (100, 110, 0), file(B): (100, 110, 0)}, watermark=T0 + 5 * SIZE)
    rig.run(SECOND)
    held = {
        start: digest
        for (version, start), (_, digest) in rig.ledgers[SINK].entries.items()
        if version == first
    }
    assert set(held) == {T0 + at * SIZE for at in range(4)}
    assert NO_ROWS not in held.values()
    rig.master.check()


def test_revisions_continue_after_a_version_was_away_while_panes_were_retired() -> None:
    """The count was forgotten with the version, and the sink refused later revisions as older."""
    rig = rig_with_finals()
    first = rig.state.schedule[0].version
    changed(rig, T0 + 2 * SIZE)
    key = (first, T0 + 3 * SIZE)
    before = rig.master.publication.next_revision(key)
    rig.master.publication.retired()
    assert rig.master.publication.next_revision(key) > before


def test_a_window_that_only_a_ledger_knows_is_withdrawn_by_the_next_master() -> None:
    """The log is lost, and begins anew with another schedule than that of the published windows."""
    rig = rig_with_finals()
    first, ledgers = rig.state.schedule[0].version, rig.ledgers
    spec = msgspec.structs.replace(spec_of(SECOND_PLAN), number=2)
    after = Rig(spec, ballot=(2, b"N" * 16), ledgers=ledgers, sinks=(SINK,), now=rig.now)
    after.run(SECOND)
    assert statuses(finals(after)) == [(WITHDRAWN, at) for at in range(4)]
    assert {digest for (version, _), (_, digest) in ledgers[SINK].entries.items() if version == first} == {
        NO_ROWS
    }
    third = Rig(spec, ballot=(3, b"O" * 16), ledgers=ledgers, sinks=(SINK,), now=rig.now)
    third.run(SECOND)
    assert not finals(third)  # published once is enough


def test_windows_before_the_schedules_first_line_stay() -> None:
    """A version that retention has passed: its windows are not withdrawn."""
    rig = rig_with_finals()
    first = rig.state.schedule[0].version
    ledgers = rig.ledgers
    spec = spec_of(SECOND_PLAN, number=2, line_us=T0 + 2 * SIZE, since_us=T0 + 2 * SIZE)
    after = Rig(spec, ballot=(2, b"N" * 16), ledgers=ledgers, sinks=(SINK,), now=rig.now)
    after.run(SECOND)
    assert statuses(finals(after)) == [(WITHDRAWN, 2), (WITHDRAWN, 3)]
    assert ledgers[SINK].entries[first, T0][1] != NO_ROWS


def test_a_ledger_keeps_a_withdrawal_above_earlier_revisions() -> None:
    ledger = Ledger(b"J" * 16)
    published = Put(
        b"J" * 16, (1, b"M" * 16), "v", 0, 10, (0, 10), "final", (1, b"M" * 16, 1), 7, 1, 1, (1, 1, 0, 0)
    )
    gone = msgspec.structs.replace(published, status=WITHDRAWN, revision=(1, b"M" * 16, 2), digest=NO_ROWS)
    for put in (published, gone, published):
        ledger.step(b"M" * 16, put, 0)
    assert ledger.entries == {("v", 0): ((1, b"M" * 16, 2), NO_ROWS)}
    (effect,) = [
        each
        for each in ledger.step(b"N" * 16, LedgerRequest(b"J" * 16, (1, b"M" * 16)), 0)
        if hasattr(each, "to")
    ]
    assert effect.message.entries == ((("v", 0), (1, b"M" * 16, 2), NO_ROWS),)  # type: ignore[union-attr]


# For people.


def test_a_watcher_gets_the_withdrawal_of_a_window_that_it_saw() -> None:
    watcher = Watcher(b"J" * 16, b"W" * 16, 1, PARAMETERS)
    published = Put(
        b"J" * 16, (1, b"M" * 16), "v", 0, 10, (0, 10), "final", (1, b"M" * 16, 1), 7, 1, 1, (1, 1, 0, 0)
    )
    gone = msgspec.structs.replace(published, status=WITHDRAWN, revision=(1, b"M" * 16, 2), digest=NO_ROWS)
    other = msgspec.structs.replace(gone, start=10)
    for place, put in enumerate((published, gone, other), 1):
        watcher.step(b"M" * 16, Shown(b"J" * 16, 1, place, put), 0)
    assert len(watcher.take()) == 2  # no withdrawal of the window that it never saw
    watcher.check()


# In a mesh.


def shown(run: Run, last: dict[Any, Put]) -> list[str]:
    """Results in sinks that the schedule does not have."""
    schedule = [Line(0, each.version, each.from_us, b"") for each in run.schedule(run.specs[0])]
    return [
        f"{put.version[:6]} {put.status} [{put.start - EPOCH_US}, {put.end - EPOCH_US})"
        for put in last.values()
        if put.status in ("final", "revised")
        and not speaks_for(tuple(schedule), put.version, put.start, put.end)
    ]


def run_of(
    faults: Sequence[s.AnyFault], change: Callable[[Run], None], at_us: int, seed: int
) -> tuple[Outcome, Run, Any]:
    scenario = s.Scenario(
        seed=seed,
        hosts=6,
        jobs=(s.Job(start_us=2 * SECOND, windows=("1 second", "2 seconds/1 second"), lateness_us=SECOND),),
        faults=tuple(faults),
        traffic=Traffic(lines_per_s=10.0, rotate_us=3 * SECOND),
        parameters=QUICK,
        trouble_us=20 * SECOND,
        rest_us=20 * SECOND,
    )
    seen: dict[str, Any] = {"last": {}, "gone": 0}

    def put(now_us: int, what: str, who: Any, about: Any) -> None:
        if what == "put":
            seen["last"][about.version, about.start] = about
            seen["gone"] += about.status == WITHDRAWN

    def prepare(run: Run) -> None:
        seen["run"] = run
        run.world.observers.append(put)
        run.world.at(at_us, lambda: change(run))

    outcome = simulate(scenario, prepare=prepare)
    return outcome, seen["run"], seen


def split_in_the_past(run: Run) -> None:
    """The operator lets the next version begin five seconds ago, in the middle of a window."""
    spec = run._next_spec(s.Change(at_us=0, host=0, job=0, mode="split"), 0)
    run.specs[0] = msgspec.structs.replace(spec, line_us=EPOCH_US + run.world.now_us - 5 * SECOND - 400_000)
    run._submit(0, run.specs[0])


LAKE_ALONE = "the sink comes back with its lake alone, and the master dies"
FAULTS: dict[str, tuple[s.AnyFault, ...]] = {
    "in peace": (),
    "the sink is away": (s.Cut(at_us=11 * SECOND, until_us=16 * SECOND, hosts=(s.SINK,)),),
    "the sink is away and the master dies": (
        s.Cut(at_us=11 * SECOND, until_us=18 * SECOND, hosts=(s.SINK,)),
        s.Crash(at_us=13 * SECOND + 500_000, target="master", job=0),
    ),
    "the sink is away and the log is lost": (
        s.Cut(at_us=11 * SECOND, until_us=18 * SECOND, hosts=(s.SINK,)),
        s.Crash(at_us=14 * SECOND, target="circle", job=0, wipe=True),
    ),
    LAKE_ALONE: (
        s.SinkCrash(at_us=11 * SECOND, until_us=18 * SECOND, sink=0, keeps="lake"),
        s.Crash(at_us=13 * SECOND + 500_000, target="master", job=0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FAULTS)
def test_after_a_change_no_sink_shows_a_window_of_another_version(what: str) -> None:
    outcome, run, seen = run_of(FAULTS[what], split_in_the_past, 12 * SECOND, seed=4)
    assert outcome.is_exact, outcome.violation
    assert seen["gone"] >= 2
    assert not shown(run, seen["last"])


def test_a_master_that_withdraws_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Master, "withdraw", lambda self, put: None)
    outcome, _, _ = run_of((), split_in_the_past, 12 * SECOND, seed=4)
    assert "none of the schedule's, and was not withdrawn" in outcome.violation


def test_a_sink_that_forgets_what_its_lake_holds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule Sinks*: without its ledger it stores what it has again, and nobody withdraws what a change removed."""
    monkeypatch.setattr(Ledger, "adopt", lambda self, held: None)
    outcome, _, _ = run_of(FAULTS[LAKE_ALONE], split_in_the_past, 12 * SECOND, seed=4)
    assert (
        "accepted after revision 1." in outcome.violation
    )  # of the first ballot; how many came before is of no matter


# In a lake, and in rows for people.


def put_of(status: str, n: int, plan: Plan, rows: Sequence[LogLine] = ()) -> Put:
    """As published by a master, with the state of one pane."""
    panes: tuple[PaneParts, ...] = ()
    if rows:
        part = Panes(plan, Budget(1 << 24))
        part.merge(part_of(plan, rows).rows)
        made = StateMaker("hits", version_of(plan).digest, plan, Budget(1 << 24))
        pieces = part.pieces(T0, T0 + SIZE, split=True)
        panes = tuple(
            as_parts(state) for state in made.states(pieces, part.lines(T0, T0 + SIZE), "final", (0, 0, 0))
        )
        assert len(panes) == 1
    about = (status, (1, MAKER, n), NO_ROWS, 0, 0, (0, 0, 0, 0), (), panes)
    return Put(b"J" * 16, (1, MAKER), version_of(plan).digest, T0, T0 + SIZE, (T0, T0), *about)


def lake_with_both(folder: Path) -> None:
    """A window of the first version, withdrawn in favour of the second."""
    sink = ParquetSink(folder)
    for plan, puts in (
        (
            plan_of(),
            (
                put_of("final", 1, plan_of(), [(T0 + 1, 1, 5), (T0 + 2, 2, 5)]),
                put_of(WITHDRAWN, 2, plan_of()),
            ),
        ),
        (SECOND_PLAN, (put_of("final", 1, SECOND_PLAN, [(T0 + 1, 1, 5), (T0 + 2, 2, 5)]),)),
    ):
        reader = PaneReader("hits", version_of(plan).digest, version_of(plan).plan)
        for put in puts:
            for state in reader.states(put):
                check_pane(state)
                sink.put_state(state)
            sink.flush()


@pytest.mark.process
def test_the_lake_keeps_a_withdrawal_through_compaction(tmp_path: Path) -> None:
    lake_with_both(tmp_path)
    hour = T0 + 2 * 3600 * SECOND
    assert parquet.compact(tmp_path, hour) >= 1
    assert {revision[2] for revision in layout.ledger(tmp_path, "hits").values()} == {1, 2}
    rows = lake_states.rows(tmp_path)
    kept = {(row["_status"], row["_empty"]) for row in rows}
    assert kept == {("withdrawn", True), ("final", False)}
    assert sum(row["_acc0"] for row in rows if not row["_empty"]) == 2


@pytest.mark.process
@pytest.mark.parametrize("compacted", [False, True])
def test_a_lost_ledger_comes_back_from_the_lake(tmp_path: Path, compacted: bool) -> None:
    """Revisions from names, withdrawals from the files; the highest counts if the ledger has an entry. Files that are no Parquet
    are results."""
    lake_with_both(tmp_path)
    if compacted:
        parquet.compact(tmp_path, T0 + 2 * 3600 * SECOND)
    first, second = (version_of(plan).digest for plan in (plan_of(), SECOND_PLAN))
    (good,) = tmp_path.glob(f"hits/*/version=v{second}/*/*.parquet")
    good.write_text("no Parquet")
    lake, spec = ParquetSink(tmp_path), spec_of(SECOND_PLAN)
    spec = msgspec.structs.replace(spec, name="hits", versions=(version_of(plan_of()), *spec.versions))
    ledger = Ledger(b"J" * 16)
    adopt(ledger, lake, spec, lake.revisions("hits"))
    assert ledger.entries == {
        (first, T0): ((1, MAKER, 2), NO_ROWS),
        (second, T0): ((1, MAKER, 1), UNKNOWN_ROWS),
    }
    assert ledger.fence == (1, MAKER)
    ahead = Ledger(b"J" * 16)
    ahead.step(SINK, put_of("final", 3, plan_of()), 0)
    adopt(ahead, lake, spec, lake.revisions("hits"))
    assert ahead.entries == {
        (first, T0): ((1, MAKER, 3), NO_ROWS),
        **{(second, T0): ledger.entries[second, T0]},
    }
    full = Ledger(b"J" * 16)  # what it has forgotten does not come back
    for n in range(ENTRIES_MIN):
        full.step(SINK, msgspec.structs.replace(put_of("final", 3, plan_of()), start=T0 + 1 + n), 0)
    adopt(full, lake, spec, lake.revisions("hits"))
    assert len(full.entries) == ENTRIES_MIN


@pytest.mark.spark
def test_the_report_counts_no_window_twice(spark: Any, tmp_path: Path) -> None:
    lake_with_both(tmp_path)
    for compacted in (False, True):
        if compacted:
            parquet.compact(tmp_path, T0 + 2 * 3600 * SECOND)
        by_hour, all_rows = (
            asked(tmp_path, **how) for how in ({"every": "1m"}, {"sql": "SELECT sum(hits) AS n FROM hits"})
        )
        assert sorted((row["path"], row["hits"]) for row in by_hour) == [("/page/1", 1), ("/page/2", 1)]
        assert all_rows == [{"n": 2}]
        held = [row for row in asked(tmp_path) if row["report"] == "lake"]
        assert [(row["version"], row["panes"]) for row in held] == [(version_of(SECOND_PLAN).digest, 1)]


def asked(folder: Path, **how: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    report(str(folder), stdout=out, notices=io.StringIO(), output="json", **how)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def window_of(status: str, n: int, rows: Sequence[tuple[Any, ...]]) -> Window:
    columns = (ColumnInfo("window", WINDOW_TYPE), ColumnInfo("hits", "bigint"))
    return Window("hits", "v", T0, T0 + SIZE, status, (1, 0, n), Lines(), columns, rows)


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_rows_for_programs_show_a_withdrawn_window(kind: Any) -> None:
    out = io.BytesIO()
    sink = kind(out, meta=True)
    sink.put(window_of("final", 1, [((T0, T0 + SIZE), 7)]))
    sink.put(window_of(WITHDRAWN, 2, ()))
    last = out.getvalue().decode().splitlines()[-1]
    if kind is JsonLines:
        row = json.loads(last)
        assert (row["hits"], row["_elf"]["status"], row["_elf"]["revision"]) == (None, WITHDRAWN, [1, 0, 2])
        assert row["window"] is not None
    else:
        assert last.startswith("2023-11-14T22:13:20Z,2023-11-14T22:13:30Z,,withdrawn,1.0.2,")


def test_the_console_shows_it_too() -> None:
    out = io.BytesIO()
    sink = Table(out, terminal=False)
    sink.put(window_of(WITHDRAWN, 2, ()))
    sink.close()
    assert "2023-11-14 22:13:20 – 22:13:30 · withdrawn · 0 lines" in out.getvalue().decode()
