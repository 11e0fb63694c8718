"""Small batches that are reduced as one give the rows of each reduced alone."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.formats import resolve
from elf.agent.work import gathered
from elf.agent.work.gathered import Gathered
from elf.agent.work.job_rows import Before, JobRows
from elf.agent.work.line_parsing import Parsing
from elf.agent.work.parsers import ParseState, advance
from elf.cbt.frame import pack
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import BIGINT, DOUBLE, STRING, TIMESTAMP
from elf.srt.messages.messages import Line
from elf.srt.messages.partial import merge_parts

COLUMNS = {"time": TIMESTAMP, "ms": BIGINT, "rate": DOUBLE, "name": STRING, "agent": STRING}
SQL = (
    "SELECT window, name, agent, count(*), count(ms), sum(rate), approx_count_distinct(name), max_by(name, time) FROM access "
    "WHERE ms IS NULL OR ms < 9 GROUP BY window(time, '2 seconds'), name, agent"
)
RECORDS = st.one_of(
    st.none(),
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([5, 12, "slow", None]),
        st.sampled_from([0.5, None]),
        st.sampled_from(["a", "b", "größe"]),
    ),
)


def plan() -> Plan:
    return compile_query(SQL, {"access": COLUMNS})


def text_of(record: tuple[int, object, object, str] | None) -> bytes:
    if record is None:
        return b"?\n"
    second, ms, rate, name = record
    fields = {"ts": 1_431_857_104 + second, "ms": ms, "rate": rate, "name": name}
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode() + b"\n"


class Reading:
    """Gathering rows, and rows without, of the same batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.both = [JobRows((Line(1, "v", 0, encode(plan())),), 0) for _ in range(2)]
        self.format, self.state, self.parsing = (
            resolve("json"),
            ParseState(),
            Parsing("UTC", "web", 1 << 20, 1 << 20),
        )
        types = {"ms": BIGINT, "rate": DOUBLE, "name": STRING}
        self.parsing.ask(frozenset({"time", "agent", *types}), types)
        self._monkeypatch = monkeypatch

    def read(self, data: bytes, too_long: int, is_known: bool) -> None:
        before = Before(self.state.last_time)
        batch = self.parsing.parse(data, self.format, self.state, 1 << 60, self.settle)
        for rows, few in zip(self.both, (256, 0), strict=True):
            self._monkeypatch.setattr(gathered, "FEW", few)
            rows.add(batch, before, too_long, is_known)
        advance(self.state, batch, too_long)

    def settle(self) -> None:
        for rows in self.both:
            rows.settle()

    def cuts(self) -> list[list[bytes]]:
        found = []
        for rows in self.both:
            part = merge_parts([rows.cut()]).get("v")
            found.append(
                [] if part is None else [pack(*each) for each in zip(part.rows, part.ops, strict=True)]
            )
            assert rows.uncut_bytes == 0
        return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.lists(RECORDS, max_size=5), max_size=12), st.integers(0, 99))
def test_the_rows_are_those_of_each_batch_alone(
    blocks: list[list[tuple[int, object, object, str] | None]], seed: int
) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        reading = Reading(monkeypatch)
        for block in blocks:
            data = b"".join(map(text_of, block))
            reading.read(data, int(rng.random() < 0.1), rng.random() < 0.9)
            if rng.random() < 0.1:  # another file's lines follow
                reading.state.last_time = 1_431_857_000_000_000
            if rng.random() < 0.1:
                reading.settle()
                reading.parsing.empty()
            if rng.random() < 0.2:
                gathering, alone = reading.cuts()
                assert gathering == alone
        gathering, alone = reading.cuts()
        assert gathering == alone
        assert reading.both[0].untimed == reading.both[1].untimed


def test_they_wait_until_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    reading.read(text_of((0, 5, None, "a")), 0, True)  # the first line of a file has none before it
    taken: list[int] = []
    take = Gathered.take

    def counted(self: Gathered) -> object:
        taken.append(self.rows)
        return take(self)

    monkeypatch.setattr(Gathered, "take", counted)
    for number in range(gathered.BATCHES_MAX + 6):
        reading.read(text_of((number % 9, 5, None, "a")), 0, True)
    assert taken == [gathered.BATCHES_MAX]
    assert reading.both[0].uncut_bytes > 0
    gathering, alone = reading.cuts()
    assert gathering == alone
    assert taken == [gathered.BATCHES_MAX, 6]
