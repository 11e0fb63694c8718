"""Windows of a complete input compared with one pass over the lines: any batches, any order, a memory cap."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elf
from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.parser import Parser
from elf.agent.work.worker import Worker
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import Window
from elf.jobmaster.windows.windows import Publisher, bounded, starts_of
from tests.rigs.lines import NGINX_FORMAT, lines, records

FORMAT = resolve(NGINX_FORMAT)
SECOND = 1_000_000
Answer = dict[int, set[tuple[Any, ...]]]


def plan_of(size_s: int, slide_s: int) -> Plan:
    return compile_query(
        f"SELECT path, status, count(*) AS n, sum(bytes) AS b, max(request_time) AS t, count(DISTINCT client_ip) AS v "
        f"FROM access GROUP BY window(time, '{size_s} seconds', '{slide_s} seconds'), path, status",
        {"access": column_types(FORMAT)},
    )


def one_pass(log: Sequence[str], size_s: int, slide_s: int) -> Answer:
    """The rows of every window, by dictionaries."""
    groups: dict[tuple[int, str | None, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records(list(log)):
        second = record["time"] // SECOND
        for start in range(second - second % slide_s, second - size_s, -slide_s):
            groups[start, record["path"], record["status"]].append(record)
    out: Answer = defaultdict(set)
    for (start, path, status), members in groups.items():
        sizes = [record["bytes"] for record in members if record["bytes"] is not None]
        times = [Decimal(record["request_time"]) for record in members if record["request_time"] is not None]
        visitors = {record["client_ip"] for record in members}
        row = (
            path,
            status,
            len(members),
            sum(sizes) if sizes else None,
            max(times, default=None),
            len(visitors),
        )
        out[start * SECOND].add(row)
    return dict(out)


class Bench:
    """A parser, a worker and panes: the engine without files."""

    def __init__(self, plan: Plan, cap: int = 64 << 20) -> None:
        budget = Budget(cap)
        self.worker, self.panes = Worker(plan), Panes(plan, budget)
        self.publisher = Publisher("test", plan, budget)
        columns = {column.name for column in plan.columns} | {"time"}
        self.parsers = [Parser(FORMAT, columns), Parser(FORMAT, columns)]

    def add(self, log: Sequence[str], parser: int = 0, **options: Any) -> None:
        if log:
            self.worker.add(
                self.parsers[parser].parse("".join(f"{line}\n" for line in log).encode()), **options
            )

    def cut(self) -> Iterator[list[Any]]:
        for delta in self.worker.cut():
            yield delta.rows

    def settle(self) -> None:
        for rows in self.cut():
            self.panes.merge(rows)


def answer(windows: Sequence[Window]) -> Answer:
    """The last revision of each window, windows without rows left out."""
    last: dict[int, Window] = {}
    for window in windows:
        assert window.start is not None
        assert window.start not in last or window.revision > last[window.start].revision
        last[window.start] = window
    return {start: set(window.rows) for start, window in last.items() if window.rows}


shapes = st.sampled_from([(10, 10), (30, 10), (25, 10), (60, 20), (7, 3)])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shape=shapes,
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    cap=st.sampled_from([1, 64]),
)
def test_bounded_is_one_pass(shape: tuple[int, int], seed: int, cuts: list[int], cap: int) -> None:
    log = lines(300, seed)
    bench = Bench(plan_of(*shape), cap << 20)
    bounds = [0, *sorted(cuts), len(log)]
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        bench.add(
            log[start:stop], parser=number // 3 % 2
        )  # a file of another format has dictionaries of its own
        if number % 2:
            bench.settle()
    bench.settle()
    bench.panes.check()
    windows = list(bounded(bench.publisher, bench.panes))
    assert answer(windows) == one_pass(log, *shape)
    starts = [window.start for window in windows]
    assert starts == sorted(starts)  # type: ignore[type-var]
    assert {window.status for window in windows} == {"final"}
    assert sum(window.lines.parsed for window in windows) * shape[1] >= len(log) * shape[1]


@pytest.mark.parametrize(
    ("pane", "size", "slide", "expected"),
    [
        (20, 10, 10, [20]),
        (25, 30, 10, [0, 10, 20]),
        (20, 30, 10, [0, 10, 20]),
        (25, 25, 10, [10, 20]),
        (20, 25, 10, [0, 10, 20]),
        (-5, 10, 10, [-10]),
    ],
)
def test_windows_of_a_pane(pane: int, size: int, slide: int, expected: list[int]) -> None:
    assert list(starts_of(pane, size, slide)) == expected


def test_each_line_is_in_its_windows_counters_and_rejects_follow_the_line_before(tmp_path: Path) -> None:
    log = lines(30, 7, seconds=60, disorder=0)
    broken = [*log[:10], "broken", *log[10:20], "more broken", "", *log[20:]]
    path = tmp_path / "a.log"
    path.write_text("first is broken\n" + "\n".join(broken) + "\n")
    result = elf.run(
        "SELECT window, count(*) AS n FROM access GROUP BY window(time, '10 seconds')",
        path,
        format=NGINX_FORMAT,
    )
    starts = [record["time"] // SECOND // 10 * 10 * SECOND for record in records(log)]
    expected: dict[int, list[int]] = {start: [0, 0] for start in starts}
    for start in starts:
        expected[start][0] += 1
    for start in (starts[9], starts[19], starts[19]):  # the first is in none: no line was read before it
        expected[start][1] += 1
    got = {window.start: [window.lines.parsed, window.lines.rejected] for window in result}
    assert got == expected
    assert all(window.lines.read == sum(expected[window.start or 0]) for window in result)


def test_a_window_without_groups_still_counts_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines(50, 3)) + "\n")
    result = elf.run(
        "SELECT window, count(*) AS n FROM access WHERE status = 999 GROUP BY window(time, '1 minute')",
        path,
        format=NGINX_FORMAT,
    )
    assert [list(window.rows) for window in result] == [[]] * len(result)
    assert sum(window.lines.parsed for window in result) == 50


def test_no_input_gives_one_row_of_a_global_aggregate_and_none_of_a_grouped_one(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    whole = elf.run("SELECT count(*) AS n, sum(bytes) AS b, min(bytes) AS m FROM access", path)
    assert [list(window.rows) for window in whole] == [[(0, None, None)]]
    grouped = elf.run("SELECT status, count(*) AS n FROM access GROUP BY status", path)
    assert [list(window.rows) for window in grouped] == [[]]


def test_many_groups_in_many_pieces_keep_their_order_under_a_cap(tmp_path: Path) -> None:
    """A window larger than the memory for it is ordered on disk, and still in order."""
    rng = random.Random(2)
    path = tmp_path / "a.log"
    numbers = rng.sample(range(10**9), 60_000)
    with path.open("w") as file:
        for number in numbers:
            file.write(
                f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /{number:x} HTTP/1.1" 200 {number % 50} "-" "-"\n'
            )
    query = "SELECT path, sum(bytes) AS b FROM access GROUP BY path ORDER BY b DESC, path"
    expected = sorted(
        ((f"/{number:x}", number % 50) for number in numbers), key=lambda row: (-row[1], row[0])
    )
    small = elf.run(query, path, format="combined", memory_max=2 << 20)
    assert list(small.windows[0].rows) == expected
    assert small.summary.spilled_bytes > 0
    large = elf.run(f"{query} LIMIT 100", path, format="combined", memory_max=2 << 20)
    assert list(large.windows[0].rows) == expected[:100]
