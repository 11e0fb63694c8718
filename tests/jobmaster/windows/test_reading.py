"""Large windows are read step by step: their contents are the same as if read at once, and other work continues meanwhile."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pytest

from elf.jobmaster.master import contents
from elf.jobmaster.master.contents import Contents
from elf.jobmaster.windows import reading
from elf.jobmaster.windows.result import Lines
from elf.srt.messages.results import Put, Watch
from tests.rigs.master_rig import SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, LogLine, counts_of, plan_of, window_of

A, B, ME = b"A" * 16, b"B" * 16, b"W" * 16
WINDOW = 10 * SECOND


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are large."""
    monkeypatch.setattr(contents, "STEP_BYTES", 1)
    monkeypatch.setattr(reading, "DIGEST_ROWS", 2)


def lines(start: int, count: int) -> list[LogLine]:
    return [(start + n * 1_000, n % 12, n) for n in range(count)]


def rig_with(at: int = 0, count: int = 40, windows: int = 1) -> Rig:
    rig = Rig(spec_of(plan_of()), sinks=[SINK])
    for n in range(windows):
        start = T0 + at + n * WINDOW
        rig.bundle({file(A): (100 * n, 100 * n + 100, 0)}, lines(start, count), watermark=start)
    return rig


def reads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    step = Contents.read_on

    def count(self: Contents) -> None:
        steps.append(rig.now)
        step(self)

    monkeypatch.setattr(Contents, "read_on", count)
    return steps


def pace(rig: Rig, span_us: int) -> None:
    """Like a node: tick at the master's deadlines."""
    until = rig.now + span_us
    while rig.now < until:
        deadline = rig.master.deadline
        rig.tick(max(0, min(until, deadline if deadline is not None else until) - rig.now) or 1)


@pytest.mark.usefixtures("small_steps")
def test_a_large_window_is_the_same_as_one_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with()
    steps = reads(rig, monkeypatch)
    rig.bundle({file(A): (100, 110, 0)}, watermark=T0 + 20 * SECOND)
    pace(rig, 3 * SECOND)
    (final,) = rig.state.finals.values()
    windows = [window for window in rig.windows() if window.status == "final"]
    assert counts_of(windows[-1].rows) == window_of(lines(T0, 40), T0, T0 + WINDOW)
    assert len(steps) > 5
    assert rig.ledgers[SINK].entries[next(iter(rig.state.finals))] == (final.revision, final.digest)
    rig.master.check()


@pytest.mark.usefixtures("small_steps")
def test_lines_that_arrive_during_a_read_are_included_or_the_window_is_read_anew() -> None:
    rig = rig_with()
    rig.bundle({file(A): (100, 110, 0)}, watermark=T0 + 20 * SECOND)
    seen = list(lines(T0, 40))
    offset = 110
    for n in range(12):
        pace(rig, 30_000)
        more = [(T0 + SECOND, n % 12, 1_000 + n)]
        rig.bundle({file(A): (offset, offset + 10, 0)}, more, watermark=T0 + 20 * SECOND)
        seen += more
        offset += 10
    pace(rig, 4 * SECOND)
    windows = [window for window in rig.windows() if window.status != "open"]
    assert counts_of(windows[-1].rows) == window_of(seen, T0, T0 + WINDOW)
    for window in windows:
        rows = counts_of(window.rows)
        assert sum(hits for hits, _ in rows.values()) == window.lines.parsed, "never half of a bundle"


@pytest.mark.usefixtures("small_steps")
def test_several_large_windows_are_read_one_after_the_other() -> None:
    rig = rig_with(windows=4)
    rig.bundle({file(A): (400, 410, 0)}, watermark=T0 + 100 * SECOND)
    pace(rig, 8 * SECOND)
    assert len(rig.state.finals) == 4
    assert rig.ledgers[SINK].entries.keys() == rig.state.finals.keys()
    assert not rig.master.publication.contents.is_reading


@pytest.mark.usefixtures("small_steps")
def test_a_new_watcher_gets_large_finals_that_are_read_again() -> None:
    rig = rig_with(windows=3)
    rig.bundle({file(A): (300, 310, 0)}, watermark=T0 + 100 * SECOND)
    pace(rig, 6 * SECOND)
    rig.effects.clear()
    for n in range(40):
        rig.do(rig.master.watch(Watch(rig.spec.id, ME, 1, 1 << 62, 5, rig.master.ballot, seen=n), rig.now))
        pace(rig, 100_000)
    shown = [each.put for each in rig.take(type(_shown()))]
    assert [put.start for put in shown if isinstance(put, Put) and put.status == "final"] == [
        T0 + n * WINDOW for n in range(3)
    ]


def _shown() -> object:
    from elf.srt.messages.results import Shown

    return Shown(ME, 1, 1, Watch(ME, ME, 1, 0))


@pytest.mark.usefixtures("small_steps")
def test_small_windows_of_the_job_are_published_while_a_large_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_with()
    rig.bundle({file(A): (100, 110, 0)}, [(T0 + WINDOW, 1, 1)], watermark=T0 + 100 * SECOND)
    held: list[bool] = []
    monkeypatch.setattr(Contents, "read_on", lambda self: held.append(True))
    pace(rig, SECOND)
    assert held
    assert [start for _, start in rig.state.finals] == [T0 + WINDOW]
    monkeypatch.undo()
    pace(rig, 3 * SECOND)
    assert len(rig.state.finals) == 2


@pytest.mark.usefixtures("small_steps")
def test_contents_that_are_never_fetched_are_dropped() -> None:
    rig = rig_with()
    rig.shown.is_watched = True
    contents = rig.master.publication.contents
    for _ in range(100):
        pace(rig, 5_000)
        if contents.reading is not None:
            break
    assert contents.reading is not None
    rig.shown.is_watched = False
    rig.master.outbox.with_open = False
    pace(rig, 5 * SECOND)
    assert rig.master.publication.contents.reading is None


@pytest.mark.usefixtures("small_steps")
def test_a_large_open_window_is_read_for_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with()
    steps = reads(rig, monkeypatch)
    offset = 100
    for n in range(100):
        rig.bundle({file(A): (offset, offset + 1, 0)}, [(T0 + SECOND, n % 12, n)], watermark=T0)
        offset += 1
        pace(rig, 200_000)
    opened = [window for window in rig.windows() if window.status == "open"]
    assert len(opened) > 3
    assert len(steps) < 20 * 4 + 20, "a step for each emit interval of the twenty seconds"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40, 41])
def test_a_digest_does_not_depend_on_how_many_rows_are_encoded_at_a_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "DIGEST_ROWS", 17)
    encode = msgspec.msgpack.encode
    rows, counters = [(n, f"row {n}") for n in range(count)], Lines(1, 2, 3, 4)
    whole = blake2b(encode(counters.named), digest_size=8)
    for start in range(0, count, 17):
        whole.update(encode(rows[start : start + 17]))
    for chunk in (1, 5, 17, 100):
        monkeypatch.setattr(reading, "CHUNK_ROWS", chunk)
        found = [step for step in reading.digest_steps(rows, counters) if step is not None]
        assert found == [int.from_bytes(whole.digest())]
