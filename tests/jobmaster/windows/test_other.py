"""The row `other` of a window: whatever workers, reducers and the master have folded on the way, a window shows the groups that
stay by their hashes, each exact, and the exact rest."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elf.cbt._keys import encode_keys, hash64
from elf.cbt._strings import Strings
from elf.cbt.budget import Budget
from elf.cbt.rows import KeyColumn
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.jobmaster.windows.panes import Panes, Piece, sampled
from elf.jobmaster.windows.windows import Publisher
from elf.srt.messages.partial import merge_parts
from tests.rigs.mesh_lines import PATHS, part_of

SECOND = 1_000_000
SQL = """SELECT window, upper(path) AS path, count(*) AS hits, sum(bytes) AS bytes FROM access
GROUP BY window(time, '4 seconds', '2 seconds'), path HAVING count(*) > 1 ORDER BY hits DESC, path LIMIT 3"""
PLAN = compile_query(SQL, {"access": {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT}})
Line = tuple[int, int, int]
"""Time, number of the path, bytes."""

some_lines = st.lists(
    st.tuples(st.integers(0, 4 * SECOND - 1), st.integers(0, len(PATHS.paths) - 1), st.integers(0, 9)),
    min_size=1,
    max_size=150,
)


def hash_of(path: str) -> int:
    strings = Strings()
    codes = strings.intern_all([path])
    return hash64(encode_keys([KeyColumn("string", codes, None, strings)], 1)[0].tobytes())


HASHES = [hash_of(path) for path in PATHS.paths]


def oracle(lines: list[Line], most: int) -> tuple[list[tuple[str, int, int]], tuple[int, int] | None]:
    """The rows of [0 s, 4 s), and the rest: HAVING, ORDER BY and LIMIT choose among the groups that stay."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for _, path, size in lines:
        sums[path][0] += 1
        sums[path][1] += size
    level = next(k for k in range(65) if sum(HASHES[path] < 2**64 >> k for path in sums) <= most)
    stay = {path for path in sums if HASHES[path] < 2**64 >> level}
    rest = [sums[path] for path in sums if path not in stay]
    rows = [
        (PATHS.paths[path].upper(), hits, size)
        for path, (hits, size) in sums.items()
        if path in stay and hits > 1
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    total = (sum(hits for hits, _ in rest), sum(size for _, size in rest)) if rest else None
    return rows[:3], total


@given(some_lines, st.integers(1, 10), st.randoms(use_true_random=False))
def test_a_window_is_what_one_pass_gives(lines: list[Line], most: int, rng: Random) -> None:
    cuts: list[list[Line]] = [[] for _ in range(5)]
    for line in lines:
        rng.choice(cuts).append(line)
    parts = [{"v": part_of(PLAN, cut)} for cut in cuts]
    budget = Budget(64 << 20)
    panes = Panes(PLAN, budget)
    while parts:
        some, parts = parts[:2], parts[2:]
        panes.merge(merge_parts(some, most if rng.randrange(2) else 0)["v"].rows)
    groups, rest = sampled(panes.window(0, 4 * SECOND), panes.ops[0], most)
    publisher = Publisher("job", PLAN, budget)
    rows = publisher.one_window(iter([Piece(groups, [])])) if len(groups) else []
    others = publisher.rows_of_other(rest)
    panes.close()
    budget.close()
    shown, total = oracle(lines, most)
    bounds = (0, 4 * SECOND)
    assert list(rows) == [(bounds, *row) for row in shown]
    assert list(others) == ([] if total is None else [(bounds, None, *total)])
    assert len(groups) <= most
    assert np.all(groups.pane == 0)
