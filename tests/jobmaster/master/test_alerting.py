"""When a master judges the alerts of a job: entries of its log against one pass over the lines."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt.budget import Budget
from elf.jobmaster.alerts.alert import NO_DATA, Alert
from elf.jobmaster.compile.condition import compile_condition
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.versions import changed
from elf.jobmaster.log.entries import Final, Judged
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.log_codec import LogCodec
from elf.jobmaster.plan.codec import encode_any
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.messages import FIRST, Slot, Span
from tests.rigs.master_rig import T0, A, B, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

QUERY = plan_of("10 seconds")
NEXT = (2, b"N" * 16)
C = b"D" * 16


def alert(when: str = "hits >= 2", for_s: int = 0, name: str = "many", plan: Plan = QUERY) -> Alert:
    condition = b"" if when == NO_DATA else encode_any(compile_condition(when, plan))
    return Alert(name, when, condition, for_s * SECOND, text="{path}: {hits}" if condition else "")


def job(*alerts: Alert, plan: Plan = QUERY) -> JobSpec:
    return spec_of(plan, since_us=T0, alerts=alerts)


class Reader:
    """The worker A reads on: each call is the next stretch of its log."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self._at = rig, count()

    def read(self, watermark_s: float, *lines: tuple[float, int], worker: bytes = A, flags: int = 0) -> None:
        at = next(self._at)
        found = [(T0 + int(second * SECOND), path, 5) for second, path in lines]
        span = (100 * at, 100 * (at + 1), (0 if at else FIRST) | flags)
        self.rig.bundle({file(worker): span}, found, watermark=T0 + int(watermark_s * SECOND))
        self.rig.run(SECOND)


def told(rig: Rig) -> list[tuple[str, str, int]]:
    """(path, state, seconds) of every transition in the log."""
    return [
        (change.keys[0][1] if change.keys else "", change.state, (change.at_us - T0) // SECOND)
        for _, entry in rig.log
        if isinstance(entry, Judged)
        for change in entry.judgement.changes
    ]


def judged(rig: Rig) -> list[int]:
    ends = [entry.judgement.until_us for _, entry in rig.log if isinstance(entry, Judged)]
    return [(end - T0) // SECOND for end in ends if end]


def most_at(n: int) -> dict[Slot, Span]:
    """The next stretch of the logs of two of three workers."""
    return {file(each): (100 * n, 100 * n + 100, 0) for each in (A, C)}


def path(n: int) -> str:
    return f"/page/{n}"


def test_an_alert_fires_and_is_resolved_by_windows() -> None:
    rig = Rig(job(alert()))
    reader = Reader(rig)
    reader.read(13, (1, 1), (2, 1), (3, 2))
    assert told(rig) == [(path(1), "firing", 10)]
    assert rig.state.alerts.firing()[0].text == f"{path(1)}: 2"
    reader.read(23, (11, 1), (12, 1), (13, 2), (14, 2))
    reader.read(33, (21, 2), (22, 2))
    assert told(rig)[1:] == [(path(2), "firing", 20), (path(1), "resolved", 30)]
    assert judged(rig) == [10, 20, 30]


def test_time_without_lines_resolves_once_all_agents_have_passed_it() -> None:
    rig = Rig(job(alert()))
    reader = Reader(rig)
    reader.read(13, (1, 1), (2, 1))
    reader.read(21.9)
    assert told(rig) == [(path(1), "firing", 10)]
    reader.read(22)
    assert told(rig)[1:] == [(path(1), "resolved", 20)]
    reader.read(100)
    assert judged(rig) == [10, 20], "nothing is logged while nothing is pending or firing"


def test_a_gap_between_windows_ends_what_held_before_it() -> None:
    rig = Rig(job(alert(for_s=20)))
    reader = Reader(rig)
    reader.read(9, (1, 1), (2, 1))
    reader.read(53, (41, 1), (42, 1))
    reader.read(63, (51, 1), (52, 1))
    assert told(rig) == [
        (path(1), "pending", 10), (path(1), "inactive", 20), (path(1), "pending", 50), (path(1), "firing", 60),
    ]  # fmt: skip


def test_a_window_without_a_missing_agent_fires_and_does_not_resolve() -> None:
    rig = Rig(job(alert()))
    rig.bundle({file(each): (0, 100, FIRST) for each in (A, B, C)}, [], watermark=T0)
    rig.run(SECOND)
    rig.bundle(most_at(1), [(T0 + SECOND, 1, 5)] * 2, watermark=T0 + 13 * SECOND)
    rig.run(70 * SECOND)
    assert told(rig) == [(path(1), "firing", 10)], "it waited for B as long as a window does"
    rig.bundle(most_at(2), [(T0 + 11 * SECOND, 2, 5)], watermark=T0 + 23 * SECOND)
    rig.run(70 * SECOND)
    assert judged(rig) == [10, 20]
    assert len(told(rig)) == 1
    rig.bundle({file(B): (100, 200, 0)}, [], watermark=T0 + 23 * SECOND)
    rig.run(2 * SECOND)
    assert len(told(rig)) == 1, "the revision of a judged window changes nothing"
    rig.bundle({**most_at(3), file(B): (200, 300, 0)}, [], watermark=T0 + 33 * SECOND)
    rig.run(2 * SECOND)
    assert told(rig)[1:] == [(path(1), "resolved", 30)]


def test_a_revision_does_not_fire_again_what_was_resolved() -> None:
    rig = Rig(job(alert()))
    reader = Reader(rig)
    reader.read(13, (1, 1), (2, 1))
    reader.read(23, (11, 2))
    assert told(rig) == [(path(1), "firing", 10), (path(1), "resolved", 20)]
    reader.read(24, (12, 1), (13, 1), (3, 2), (4, 2))
    revised = [entry for _, entry in rig.log if isinstance(entry, Final) and entry.is_revised]
    assert {(entry.start - T0) // SECOND for entry in revised} == {0, 10}
    assert len(told(rig)) == 2


def test_a_takeover_neither_repeats_nor_forgets() -> None:
    rig = Rig(job(alert(for_s=20)))
    Reader(rig).read(9, (1, 1), (2, 1))
    rig.delayed = True
    rig.bundle({file(A): (100, 200, 0)}, [(T0 + 11 * SECOND, 1, 5)] * 2, watermark=T0 + 23 * SECOND)
    rig.commit()
    for _ in range(9):
        rig.tick(rig.master.parameters.emit_us)
        if any(isinstance(entry, Final) for _, entry in rig.waiting):
            break
    while any(isinstance(entry, Final) for _, entry in rig.waiting) and rig.waiting:
        rig.commit(1)  # both windows are final; the entries about alerts are lost with this master
    lost = [entry for _, entry in rig.waiting if isinstance(entry, Judged)]
    assert lost
    rig.tick(2 * SECOND)
    assert (rig.master.alerting.deadline or 0) > rig.now, (
        "it waits for the entry without asking for another call at once"
    )
    state = JobState(rig.spec.id, "hits", Budget(1 << 28))
    state.restore(LogCodec().unpack_state(LogCodec().pack_state(rig.state.snapshot())))
    after = Rig(rig.spec, state=state, ballot=NEXT, now=rig.now)
    after.run(SECOND)
    both = [*told(rig), *told(after)]
    assert both == [(path(1), "pending", 10), (path(1), "firing", 20)]
    assert after.state.alerts.number == 1


def test_an_alert_comes_and_goes_with_the_jobs_settings() -> None:
    rig = Rig(job())
    reader = Reader(rig)
    reader.read(13, (1, 1), (2, 1))
    assert not told(rig)
    assert not judged(rig)
    with_alert = rig.master.spec.settings.__class__(2 * SECOND, 600 * SECOND, alerts=(alert(),))
    number = rig.master.amendments.next_number
    spec = changed(
        rig.master.spec, version_of(QUERY), "split", T0 + 15 * SECOND, None, number, "", with_alert
    )
    assert rig.master.amendments.judge(spec)
    rig.do(rig.master.spec_changed(spec, rig.now))
    reader.read(33, (14, 1), (15, 1), (21, 1), (22, 1))
    assert told(rig) == [(path(1), "firing", 30)], "windows that begin at or past the line are judged"
    without = with_alert.__class__(2 * SECOND, 600 * SECOND)
    spec = changed(
        spec,
        version_of(QUERY),
        "split",
        T0 + 35 * SECOND,
        None,
        rig.master.amendments.next_number,
        "",
        without,
    )
    assert rig.master.amendments.judge(spec)
    rig.do(rig.master.spec_changed(spec, rig.now))
    reader.read(63, (33, 1), (34, 1), (41, 1), (42, 1), (51, 1), (52, 1))
    assert told(rig)[1:] == [(path(1), "resolved", 50)]
    assert rig.state.alerts.is_idle


def test_no_data_fires_while_agents_are_silent_and_ends_with_lines() -> None:
    rig = Rig(job(alert(NO_DATA, 30)))
    reader = Reader(rig)
    reader.read(13, (1, 1))
    base = rig.now
    rig.run(2 * SECOND)
    assert told(rig) == []
    rig.run(T0 + (10 + 30 + 2 + 10 + 5 + 1) * SECOND - base)
    assert told(rig) == [("", "firing", 40)]
    rig.run(60 * SECOND)
    assert len(told(rig)) == 1
    reader.read(103, (91, 1))
    assert told(rig)[1:] == [("", "resolved", 100)]


def test_a_path_without_rows_fires_while_others_have_some_and_a_takeover_remembers_it() -> None:
    silent = Alert("silent", "no data by path", b"", 20 * SECOND, text="{path} is silent")
    rig = Rig(job(silent))
    reader = Reader(rig)
    reader.read(13, (1, 1), (2, 2))
    reader.read(23, (11, 1))
    reader.read(33, (21, 1))
    expected = [(path(2), "pending", 20), (path(2), "firing", 30)]
    assert told(rig) == expected
    assert rig.state.alerts.firing()[0].text == f"{path(2)} is silent"
    again = JobState(rig.spec.id, "hits", Budget(1 << 28))
    again.restore(LogCodec().unpack_state(LogCodec().pack_state(rig.state.snapshot())))
    assert again.alerts.state() == rig.state.alerts.state()
    assert [dict(each.keys)["path"] for each in rig.state.alerts.state().members] == [path(1), path(2)]
    reader.read(73, (61, 1))  # nobody had lines in between
    assert told(rig) == expected
    reader.read(83, (71, 1), (72, 2))
    assert told(rig)[2:] == [(path(2), "resolved", 80)]


# ---- against one pass over the lines ----


def one_pass(lines: list[tuple[float, int]], until_s: int, for_s: int) -> list[tuple[str, str, int]]:
    """What fires and is resolved when every window up to that time is whole: seconds by seconds, each path for itself."""
    out: list[tuple[int, str, str]] = []
    for n in sorted({n for _, n in lines}):
        held, firing = 0, False
        for end in range(10, until_s + 1, 10):
            holds = sum(1 for second, each in lines if each == n and end - 10 <= second < end) >= 2
            held = held + 10 if holds else 0
            if holds and held >= for_s and not firing:
                out.append((end, "firing", path(n)))
                firing = True
            elif not holds and firing:
                out.append((end, "resolved", path(n)))
                firing = False
    return [(each, state, end) for end, state, each in sorted(out)]


log_lines = st.lists(st.tuples(st.integers(0, 79), st.integers(0, 2)), max_size=40)


@settings(max_examples=25, deadline=None)
@given(
    log_lines,
    st.sampled_from([0, 10, 20, 30]),
    st.lists(st.integers(1, 30), min_size=3, max_size=8),
    st.integers(0, 6),
)
def test_the_log_equals_one_pass_whatever_the_steps_and_takeovers(
    lines: list[tuple[float, int]], for_s: int, steps: list[int], takeover: int
) -> None:
    lines = sorted(lines)
    rig = Rig(job(alert(for_s=for_s)))
    found: list[tuple[str, str, int]] = []
    at, low = 0, 0
    for n, step in enumerate([*steps, 200]):
        high = min(low + step, 90)
        part = [(T0 + second * SECOND, each, 5) for second, each in lines if low <= second < high]
        rig.bundle({file(A): (at, at + 100, 0 if at else FIRST)}, part, watermark=T0 + high * SECOND)  # type: ignore[arg-type]
        at, low = at + 100, high
        rig.run(SECOND)
        if n == takeover:
            found += told(rig)
            rig = Rig(rig.spec, state=rig.state, ballot=NEXT, now=rig.now)
    rig.bundle({file(A): (at, at + 100, 0)}, [], watermark=T0 + 112 * SECOND)
    rig.run(3 * SECOND)
    found += told(rig)
    told_of = [each for each in found if each[1] in ("firing", "resolved")]
    assert sorted(told_of, key=lambda each: (each[2], each[1], each[0])) == sorted(
        one_pass(lines, 110, for_s), key=lambda each: (each[2], each[1], each[0])
    )
