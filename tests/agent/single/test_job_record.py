"""A job's records in the journal: changes give the same state as whole records, however the journal ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.disk.journal import Journal
from elf.agent.formats.formats import column_types, resolve
from elf.agent.single import live
from elf.agent.single.job_record import Changes, JobRecord, whole
from elf.agent.single.live import Record
from elf.agent.single.live_job import JobOptions, LiveJob
from elf.agent.single.node import History
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.windows.windows import WindowsState
from tests.agent.single.test_live_spared import Keep, Rig, line
from tests.rigs.journal_disk import whole_frames

SECONDS = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 second')"
TOTAL = "SELECT status, count(*) AS n FROM access GROUP BY status"

SMALL = st.integers(0, 6)
STATES = st.builds(
    lambda watermark, published, final, changed, acked, gaps: JobRecord(
        "v",
        [],
        WindowsState(
            watermark,
            watermark,
            [(start, n, bool(n % 2)) for start, n in published.items()],
            sorted(final),
            sorted(changed),
            sorted(changed & final),
        ),
        sorted(acked),
        ["lake"],
        gaps=[(None, gap) for gap in gaps],
    ),
    st.none() | SMALL,
    st.dictionaries(SMALL, SMALL),
    st.frozensets(SMALL),
    st.frozensets(SMALL),
    st.frozensets(SMALL),
    st.lists(SMALL, max_size=2),
)


def in_order(record: JobRecord) -> JobRecord:
    windows = msgspec.structs.replace(record.windows, published=sorted(record.windows.published))
    return msgspec.structs.replace(record, windows=windows)


@pytest.mark.slow
@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(STATES, st.sampled_from(["since", "since", "since", "whole", "refused", "restart"])))
)
def test_changes_come_to_the_whole(states: list[tuple[JobRecord, str]]) -> None:
    """refused: made, but a full disk did not take it. whole: the journal is rewritten. restart: another start resumes."""
    changes, journal, last = Changes(), list[JobRecord](), None
    for state, how in states:
        if how == "restart":
            changes = Changes()
        record = changes.whole(state) if how == "whole" else changes.since(state)
        if how == "refused":
            continue
        if how == "whole":
            journal = [JobRecord("v", [[b""]], WindowsState(None, None, [], []), [], is_delta=True)]
        journal.append(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=JobRecord))
        changes.recorded()
        last = state
    found = whole(journal)
    assert (found and in_order(found)) == (last and in_order(last))


class Second:
    """A job of one-second windows that keeps them for an hour, and records of it."""

    def __init__(self, folder: Path) -> None:
        plan = compile_query(SECONDS, {"access": column_types(resolve("combined"))})
        self.job = LiveJob("job", plan, JobOptions(lateness_us=0), [Keep()], Budget(64 << 20, folder), 0)

    def pass_second(self, number: int) -> None:
        self.job.windows.touch([number * 1_000_000])
        self.job.publish(number * 1_000_000)
        self.job.retire()

    def record(self) -> bytes:
        encoded = msgspec.msgpack.encode(Record(0, {}, {"job": self.job.record()}))
        self.job.recorded()
        return encoded


def test_a_record_of_a_second_is_small(tmp_path: Path) -> None:
    seconds = Second(tmp_path)
    for number in range(1, 3_601):
        seconds.pass_second(number)
    first = seconds.record()
    assert len(first) > 3_599 * 7  # a start and a revision each, at least
    sizes = []
    for number in range(3_601, 3_700):
        seconds.pass_second(number)
        sizes.append(len(seconds.record()))
    assert max(sizes) < 200
    assert len(seconds.record()) < 100


def test_a_journal_that_ends_at_any_byte_gives_the_state_of_its_last_record(tmp_path: Path) -> None:
    """Through a job that publishes, revises and retires, with a rewrite in the middle."""
    seconds, journal = Second(tmp_path), Journal.open(tmp_path / "journal")[0]
    known: list[tuple[int, Any]] = []
    for number in range(30):
        if number == 10:
            states = [*seconds.job.snapshot(), seconds.job.record_of_nothing()]
            journal.rewrite(msgspec.msgpack.encode(Record(0, {}, {"job": state})) for state in states)
            seconds.job.recorded()
            known = []
        else:
            seconds.pass_second(number * 300)  # an hour is over after twelve of them
            if number % 4 == 0:
                seconds.job.windows.touch([(number - 2) * 300_000_000])
            journal.append(seconds.record())
            journal.sync()
        known.append((journal.size, seconds.job.windows.snapshot()))
    journal.close()
    content = (tmp_path / "journal").read_bytes()
    assert len(known) == 20
    assert any(state.dropped_until for _, state in known)
    for cut in [*(size for size, _ in known), *range(known[-8][0], len(content) + 1)]:
        records, _ = whole_frames(memoryview(content[:cut]), "journal")
        found = whole(History(records).jobs["job"])
        assert found is not None
        expected = [state for size, state in known if size <= cut][-1]
        assert sorted(found.windows.published) == sorted(expected.published), cut
        assert msgspec.structs.replace(found.windows, published=[]) == msgspec.structs.replace(
            expected, published=[]
        )


@pytest.mark.parametrize("growth", [0, 8 << 20])
def test_kills_between_any_two_steps_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, growth: int
) -> None:
    monkeypatch.setattr(live, "JOURNAL_GROWTH", growth)
    rig = Rig(tmp_path, monkeypatch)
    for number in range(12):
        with rig.start(seconds=SECONDS, total=TOTAL) as agent:
            rig.write(37)
            rig.settle(agent)
            rig.write(11)
            if number % 2:
                agent.round()  # read, perhaps published, and recorded or not
    with rig.start(seconds=SECONDS, total=TOTAL) as agent:
        rig.settle(agent)
    assert rig.console.total("total") == rig.expected()
    counts = [sum(row[1] for row in window.rows) for window in rig.console.last("seconds").values()]
    assert (sum(counts), max(counts)) == (rig.written, 10)
    assert line(0) in rig.log.read_text()
