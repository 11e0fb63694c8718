"""Values that did not convert, counted by column and pane with a job's lines: over any cuts, merges and orders as in one pass."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.files.blocks import Block, FileKey
from elf.agent.formats.formats import resolve
from elf.agent.work.job_rows import Before, JobRows
from elf.agent.work.line_parsing import Parsing
from elf.agent.work.parsers import ParseState, advance
from elf.cbt.budget import Budget
from elf.cbt.rows import Rows
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.features import LOST, needed
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, STRING, TIMESTAMP
from elf.jobmaster.windows.counters import lines_of, lines_within, lost_rows
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import Lines
from elf.srt.messages.messages import Line

SECOND = 1_000_000
COLUMNS = {"time": TIMESTAMP, "ms": BIGINT, "ok": BOOLEAN, "name": STRING}
RECORDS = st.tuples(st.integers(0, 4), st.sampled_from([5, "slow", None]), st.sampled_from([True, 7, None]))


def plan_of(*columns: str) -> Plan:
    counts = ", ".join(f"count({column})" for column in columns)
    query = f"SELECT window, {counts} FROM access GROUP BY window(time, '2 seconds')"
    return compile_query(query, {"access": COLUMNS})


def text_of(record: tuple[int, object, object]) -> bytes:
    second, ms, ok = record
    return json.dumps({"ts": 1_431_857_104 + second, "ms": ms, "ok": ok}).encode() + b"\n"


def rows_of(
    blocks: list[list[tuple[int, object, object]]], plan: Plan, cuts: random.Random
) -> list[tuple[Rows, ...]]:
    """The deltas of one worker that reads these blocks."""
    format, state, at = resolve("json"), ParseState(), 0
    parsing = Parsing("UTC", "a", 1 << 20, 1 << 20)
    parsing.ask(frozenset({"time", "ms", "ok"}), {"ms": BIGINT, "ok": BOOLEAN})
    rows, deltas = JobRows((Line(1, "v", 0, encode(plan)),), 0), list[tuple[Rows, ...]]()
    for block in blocks:
        data = b"".join(map(text_of, block))
        made = Block(FileKey(1, 1), "a.json", at, at + len(data), data, 0, at == 0, False)
        at += len(data)
        before = Before(state.last_time)
        batch = parsing.parse(made.lines, format, state, 1 << 60, lambda: None)
        rows.add(batch, before, 0)
        advance(state, batch)
        if cuts.random() < 0.5:
            deltas += [part.rows for part in rows.cut().values()]
    return [*deltas, *(part.rows for part in rows.cut().values())]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(RECORDS, min_size=1, max_size=6), min_size=1, max_size=6), st.integers(0, 9))
def test_windows_have_the_counts_of_one_pass(
    blocks: list[list[tuple[int, object, object]]], seed: int
) -> None:
    order, plan = random.Random(seed), plan_of("ms", "ok")
    panes = Panes(plan, Budget(8 << 20, None))
    deltas = [delta for part in (blocks[::2], blocks[1::2]) if part for delta in rows_of(part, plan, order)]
    order.shuffle(deltas)
    for delta in deltas:
        panes.merge(delta)
    read: Counter[int] = Counter()
    lost: dict[int, Counter[str]] = {}
    for second, ms, ok in (record for block in blocks for record in block):
        pane = (1_431_857_104 + second) // 2 * 2 * SECOND
        read[pane] += 1
        mine = lost.setdefault(pane, Counter())
        mine.update({column: 1 for column, is_lost in (("ms", ms == "slow"), ("ok", ok == 7)) if is_lost})
    counters = panes.lines()
    assert set(counters.pane.tolist()) == set(read)
    for pane, n in read.items():
        expected = Lines(n, n, 0, 0, tuple(sorted(lost[pane].items())))
        assert lines_within(counters, pane, pane + 1) == lines_of(panes.lines(pane, pane + 1)) == expected
    total = sum(lost.values(), Counter())
    assert lines_of(counters).not_converted == tuple(sorted(total.items()))
    panes.close()


def test_a_reader_that_knows_no_columns_gets_the_same_lines(tmp_path: Path) -> None:
    rows = lost_rows({("ms", 0): 3, ("größe", 0): 2, ("ms", 10): 1})
    assert rows.lanes.sum(axis=1).tolist() == [0, 0, 0, 0]
    assert lines_of(rows).not_converted == (("größe", 2), ("ms", 4))
    assert lines_within(rows, 0, 10).not_converted == (("größe", 2), ("ms", 3))


def test_only_plans_with_values_that_may_not_convert_need_the_feature() -> None:
    assert LOST in needed(encode(plan_of("ms")))
    assert LOST in needed(encode(plan_of("ok")))
    assert LOST not in needed(encode(plan_of("name", "1")))
    plan = compile_query("SELECT sum(bytes) AS s, count(*) FROM access", {"access": {"bytes": BIGINT}})
    assert LOST not in needed(encode(plan))
