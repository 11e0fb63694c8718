"""Settings of a job that change while it runs: from which window on they hold, whichever master publishes it (rule Settings*)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from elf.jobmaster.directory.changes import first_entry, rank_of
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.known_schedule import decode_schedule, schedule_item
from elf.jobmaster.directory.limits import Limits
from elf.jobmaster.directory.settings import Settings, every, retained_from, settings_at
from elf.jobmaster.directory.versions import changed, history
from elf.jobmaster.log.entries import Final
from elf.jobmaster.log.schedule import AFTER_ALL, without_past
from elf.srt.messages.messages import FIRST, Line, Micros
from elf.srt.messages.results import Put
from tests.rigs.master_rig import BALLOT, LATE, SINK, T0, A, Rig, file, spec_of, targets
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

QUERY, OTHER = plan_of("10 seconds"), plan_of("10 seconds", "WHERE status > 1")
OLD = Settings(2 * SECOND, 600 * SECOND, sinks=("first",))
NEXT = (2, b"N" * 16)


def job(**fields: Any) -> JobSpec:
    return spec_of(QUERY, since_us=T0, **fields)


def change(rig: Rig, *, plan: Any = QUERY, at: Micros = T0 + 25 * SECOND, **fields: Any) -> JobSpec:
    spec, number = rig.master.spec, rig.master.amendments.next_number
    settings = replace(spec.settings, **fields)
    return changed(spec, version_of(plan), "split", at, None, number, "", settings)


def take(rig: Rig, spec: JobSpec) -> None:
    assert rig.master.amendments.judge(spec)
    rig.do(rig.master.spec_changed(spec, rig.now))


def read(rig: Rig, at: int, watermark_s: float, *second: float) -> None:
    """The worker has read up to a time; lines at those seconds. at: how often it did before."""
    lines = [(T0 + int(each * SECOND), 1, 5) for each in second]
    span = (100 * at, 100 * (at + 1), 0 if at else FIRST)
    rig.bundle({file(A): span}, lines, watermark=T0 + int(watermark_s * SECOND))
    rig.run(SECOND)


def finals(rig: Rig) -> list[int]:
    """The starts of the windows that are final, in seconds."""
    return sorted((start - T0) // SECOND for _, start in rig.state.finals)


def test_a_window_waits_as_long_as_its_own_settings_say() -> None:
    rig = Rig(job())
    read(rig, 0, 24, 5, 15, 24)
    assert finals(rig) == [0, 10]
    take(rig, change(rig, lateness_us=8 * SECOND))
    assert [line.from_us for line in rig.state.schedule] == [0, T0 + 25 * SECOND]
    read(rig, 1, 33, 26, 32)
    assert finals(rig) == [0, 10, 20], "it began before the line, and so waits for two seconds"
    read(rig, 2, 47.9, 41)
    assert finals(rig) == [0, 10, 20], "this one began after it"
    read(rig, 3, 48)
    assert finals(rig) == [0, 10, 20, 30]


def test_nothing_is_read_again_and_no_window_is_cut() -> None:
    rig = Rig(job())
    read(rig, 0, 24, 5, 15, 24)
    take(rig, change(rig, keep_us=60 * SECOND))
    assert rig.state.positions.lane is None
    read(rig, 1, 60, 26, 35)
    covers = {(key[1] - T0) // SECOND: final.covers for key, final in rig.state.finals.items()}
    assert covers[20] == (T0 + 20 * SECOND, T0 + 30 * SECOND)


def test_the_line_is_past_all_windows_that_are_final_or_about_to_be() -> None:
    rig = Rig(job())
    rig.delayed = True
    rig.bundle({file(A): (0, 100, FIRST)}, [(T0 + 35 * SECOND, 1, 5)], watermark=T0 + 45 * SECOND)
    rig.commit()
    rig.run(SECOND)
    assert any(isinstance(entry, Final) for _, entry in rig.waiting)
    take(rig, change(rig, at=T0 + 5 * SECOND, lateness_us=60 * SECOND))
    while rig.waiting:
        rig.commit()
    assert rig.state.schedule[-1].from_us > T0 + 30 * SECOND
    assert rig.master.publication.settings.of((version_of(QUERY).digest, T0 + 30 * SECOND)) == OLD


def test_a_new_master_has_the_settings_of_each_window() -> None:
    rig = Rig(job())
    read(rig, 0, 24, 5, 15, 24)
    spec = change(rig, lateness_us=8 * SECOND, limits=Limits(3))
    take(rig, spec)
    other = Rig(spec, state=rig.state, ballot=NEXT, now=rig.now)
    about = version_of(QUERY).digest
    assert other.master.publication.settings.of((about, T0 + 20 * SECOND)) == OLD
    assert other.master.publication.settings.of((about, T0 + 30 * SECOND)) == spec.settings
    assert other.master.amendments.judge(replace(spec, number=9)) is True, "it is in force already"
    other.master.amendments.propose_due(other.now)
    assert not other.master.amendments.is_under_way


def test_each_sink_gets_the_windows_of_its_own_settings_once() -> None:
    rig = Rig(job(sinks=("first",)), sinks=[SINK])
    read(rig, 0, 24, 5, 15, 24)
    take(rig, change(rig, sinks=("second",)))
    rig.ledgers[LATE] = type(rig.ledgers[SINK])(rig.spec.id)
    assert rig.master.publication.settings.sinks == ["first", "second"]
    rig.do(rig.master.serve_sinks(targets([SINK, LATE]), rig.now))
    rig.effects.clear()
    read(rig, 1, 60, 26, 35, 45)
    assert _starts(rig, SINK) == [0, 10, 20]
    assert _starts(rig, LATE) == [30, 40]
    read(rig, 2, 60, 16)
    puts: list[Any] = [each for each in rig.effects if isinstance(getattr(each, "message", None), Put)]
    again = [(put.to, put.message.sinks) for put in puts if put.message.start == T0 + 10 * SECOND]
    assert again == [(SINK, ("first",))], "a correction goes where the window went"
    assert _starts(rig, LATE) == [30, 40]


def _starts(rig: Rig, sink: bytes) -> list[int]:
    return sorted((key[1] - T0) // SECOND for key in rig.ledgers[sink].entries)


def test_a_change_that_was_made_before_another_one_of_settings_is_refused() -> None:
    rig = Rig(job())
    stale = rig.master.spec
    take(rig, change(rig, lateness_us=8 * SECOND))
    late = changed(
        stale, version_of(OTHER), "split", T0 + 30 * SECOND, None, rig.master.amendments.next_number
    )
    take(rig, change(rig, keep_us=60 * SECOND))
    late = replace(late, number=rig.master.amendments.next_number)
    late = replace(late, changes=(*late.changes[:-1], replace(late.changes[-1], number=late.number)))
    assert rig.master.amendments.judge(late) is False, "it would bring the former lateness back"
    assert rig.master.spec.lateness_us == 8 * SECOND


def test_a_query_and_settings_change_at_one_line() -> None:
    rig = Rig(job())
    read(rig, 0, 24, 5, 15, 24)
    take(rig, change(rig, plan=OTHER, lateness_us=8 * SECOND))
    old, new = (version_of(plan).digest for plan in (QUERY, OTHER))
    settings_of = rig.master.publication.settings.of
    assert settings_of((old, T0 + 20 * SECOND)).lateness_us == 2 * SECOND
    assert settings_of((new, T0 + 20 * SECOND)).lateness_us == 8 * SECOND, "the part past the line"


def test_retention_is_that_of_the_oldest_windows() -> None:
    short, long = replace(OLD, keep_us=10), replace(OLD, keep_us=100)
    for first, second, found in ((long, short, [0, 50, 900, 990]), (short, long, [90, 140, 900, 900])):
        schedule = (Line(1, "v", 0, b"", first.encode()), Line(2, "v", 900, b"", second.encode()))
        assert [retained_from(schedule, OLD, done) for done in (100, 150, 1000, 1000 - 0)][:2] == found[:2]
    schedule = (Line(1, "v", 0, b"", long.encode()), Line(2, "v", 900, b"", short.encode()))
    assert [retained_from(schedule, OLD, done) for done in (910, 999, 1000)] == [810, 899, 990]
    schedule = (Line(1, "v", 0, b"", short.encode()), Line(2, "v", 900, b"", long.encode()))
    assert [retained_from(schedule, OLD, done) for done in (905, 910, 1000, 1001)] == [895, 900, 900, 901]


def test_settings_go_on_when_their_line_is_forgotten() -> None:
    new = replace(OLD, lateness_us=7)
    lines = (Line(1, "v", 0, b""), Line(2, "v", 10, b"", new.encode()), Line(3, "w", 20, b""))
    for before in (0, 10, 20, 99):
        assert settings_at(without_past(lines, before), 30, OLD) == new
    assert settings_at(lines, 5, OLD) == OLD


def test_lines_of_one_version_become_one_when_no_window_reaches_over_the_later_one() -> None:
    new = replace(OLD, lateness_us=7).encode()
    lines = (Line(1, "v", 0, b""), Line(2, "v", 10, b"", new), Line(3, "w", 30, b""))
    assert without_past(lines, 14, longest_us=5) == lines, "a window from 8 to 13 is retained"
    assert without_past(lines, 15, longest_us=5) == (Line(2, "v", 0, b"", new), lines[2])
    assert without_past(lines, 34, longest_us=5) == (Line(2, "v", 0, b"", new), lines[2])
    assert without_past(lines, 35, longest_us=5) == (Line(3, "w", 30, b"", new),)
    assert without_past(lines, 30) == (Line(3, "w", 30, b"", new),)


def test_a_log_that_is_begun_anew_continues_with_the_settings_of_each_line() -> None:
    rig = Rig(job())
    read(rig, 0, 24, 5, 15, 24)
    take(rig, change(rig, lateness_us=8 * SECOND))
    take(rig, change(rig, at=T0 + 40 * SECOND, keep_us=900 * SECOND))
    spec = rig.master.spec
    item = schedule_item(spec.id, BALLOT, rank_of(spec), rig.state.schedule)
    begin = first_entry(spec, NEXT, rig.now, decode_schedule(item))
    at = [T0 + second * SECOND for second in (20, 30, 50)]
    assert [settings_at(begin.schedule, each, spec.base) for each in at] == [
        OLD,
        replace(OLD, lateness_us=8 * SECOND),
        spec.settings,
    ]
    lost = first_entry(spec, NEXT, rig.now)
    assert settings_at(lost.schedule, AFTER_ALL, spec.base) == spec.settings


def test_history_names_the_settings_that_a_change_brought() -> None:
    rig = Rig(job())
    take(rig, change(rig, lateness_us=8 * SECOND))
    spec = rig.master.spec
    known = decode_schedule(schedule_item(spec.id, BALLOT, rank_of(spec), rig.state.schedule))
    steps = history(spec, known)
    assert [(step.version, step.state, step.from_us) for step in steps][-1] == (
        version_of(QUERY).digest,
        "in force",
        T0 + 25 * SECOND,
    )
    assert steps[-1].settings == (OLD, spec.settings)


def test_bytes_that_are_no_settings_change_nothing() -> None:
    new = replace(OLD, lateness_us=7)
    lines = (
        Line(1, "v", 0, b"", b"\xc1"),
        Line(2, "v", 10, b"", new.encode()),
        Line(3, "v", 20, b"", b"x" * 99),
    )
    assert [settings_at(lines, at, OLD) for at in (5, 15, 25)] == [OLD, new, new]
    assert every(lines, OLD) == [OLD, new]
    assert retained_from(lines, OLD, 10**9) < 10**9
