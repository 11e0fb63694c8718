"""Finishing: families matched with their groups, members in order, rows in the plan's order, each compared with plain Python."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elf
from elf.agent.formats.formats import resolve
from elf.agent.formats.parser import Parser
from elf.agent.work.worker import Worker
from elf.cbt._strings import Strings
from elf.cbt.budget import Budget
from elf.cbt.rows import Rows
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.values.sql_types import BIGINT, DOUBLE, STRING, TIMESTAMP, SqlType
from elf.jobmaster.values.vector import Vector
from elf.jobmaster.windows._finish import group_index, sorted_members
from elf.jobmaster.windows.finish import Members, _order_of, _sort_keys
from elf.jobmaster.windows.panes import Panes, _counts

Key = tuple[int, int, bytes]  # pane, hash, group's key
bounded = settings(derandomize=True, max_examples=200, deadline=None)


def rows_of(keys: list[tuple[int, int, int, bytes, int]]) -> Rows:
    """Rows of (pane, hash, sub, key, split); the one lane counts from 0."""
    return Rows(
        np.array([key[0] for key in keys], dtype=np.int64),
        np.array([key[1] for key in keys], dtype=np.uint64),
        np.array([key[2] for key in keys], dtype=np.uint64),
        np.array([key[4] for key in keys], dtype=np.uint32),
        np.cumsum([len(key[3]) for key in keys], dtype=np.uint64),
        np.frombuffer(b"".join(key[3] for key in keys), dtype=np.uint8),
        np.arange(len(keys), dtype=np.int64).reshape(1, -1),
    )


@pytest.mark.slow
@bounded
@given(
    st.sets(
        st.tuples(
            st.integers(-1, 1), st.sampled_from([0, 1, 2**64 - 1]), st.sampled_from([b"", b"a", b"ab", b"b"])
        ),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_family_rows_find_their_groups_even_under_one_hash(keys: set[Key], rng: random.Random) -> None:
    groups = sorted(keys)
    members = sorted(
        (pane, hash, sub, key + b"m%d" % sub, len(key))
        for pane, hash, key in groups
        for sub in rng.sample(range(40), rng.randint(0, 30))
    )
    family = rows_of(members)
    expected = [groups.index((pane, hash, key[:split])) for pane, hash, _, key, split in members]
    beside = rows_of([(pane, hash, 0, key, len(key)) for pane, hash, key in groups])
    index, bounds, ascending = group_index(beside, family)
    assert index.tolist() == expected
    assert ascending == (expected == sorted(expected))
    assert np.diff(bounds).tolist() == [expected.count(group) for group in range(len(groups))]

    lined_up = Members(beside, family)
    of_rows = np.repeat(np.arange(len(groups)), lined_up.counts()).tolist()
    assert of_rows == sorted(expected)
    found = list(zip(of_rows, lined_up.rows.lanes[0], strict=True))
    assert found == sorted((at, number) for number, at in enumerate(expected))

    counted = _counts((family.slice(at, min(at + 3, len(family))) for at in range(0, len(family), 3)), beside)
    assert counted.tolist() == lined_up.counts().tolist()


def test_members_of_one_group_are_counted_without_being_held(tmp_path: Path) -> None:
    schema = {"path": STRING, "status": BIGINT, "time": TIMESTAMP}
    plan = compile_query(
        "SELECT status, count(DISTINCT path) AS n FROM access GROUP BY status", {"access": schema}
    )
    worker, panes = Worker(plan), Panes(plan, Budget(4 << 20, tmp_path))
    parser = Parser(resolve("combined"), schema)
    head, tail = b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /', b' HTTP/1.1" 200 5 "-" "-"'
    for first in range(0, 60_000, 10_000):
        lines = [b"%s%032d%s\n" % (head, n, tail) for n in range(first, first + 10_000)]
        worker.add(parser.parse(b"".join(lines)))
        for delta in worker.cut():
            panes.merge(delta.rows)
    tracemalloc.start()
    (piece,) = panes.pieces(members=False)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert piece.counts[0].tolist() == [60_000]
    assert held < 2 << 20  # the members' keys alone are more
    (whole,) = panes.pieces()
    assert len(whole.families[0]) == 60_000
    panes.close()


def test_a_piece_ends_where_its_families_are_large(tmp_path: Path) -> None:
    """The groups alone would be one piece, but each has about a thousand registers."""
    schema = {"path": STRING, "client_ip": STRING, "time": TIMESTAMP}
    plan = compile_query(
        "SELECT path, approx_count_distinct(client_ip) AS n FROM access GROUP BY path", {"access": schema}
    )
    worker, panes = Worker(plan), Panes(plan, Budget(8 << 20, tmp_path))
    parser = Parser(resolve("combined"), schema)
    for first in range(0, 60_000, 10_000):
        lines = [
            b'10.0.%d.%d - - [17/May/2015:10:05:03 +0000] "GET /%d HTTP/1.1" 200 5 "-" "-"\n'
            % (n >> 8, n & 255, n % 40)
            for n in range(first, first + 10_000)
        ]
        worker.add(parser.parse(b"".join(lines)))
        for delta in worker.cut():
            panes.merge(delta.rows)
    pieces = list(panes.pieces())
    assert [piece.whole for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert sum(len(piece.groups) for piece in pieces) == 40
    assert len(pieces) > 3
    for piece in pieces:
        group_index(piece.groups, piece.families[0])  # refuses rows of other groups
        assert piece.families[0].nbytes < 2 << 20
    assert sum(len(piece.families[0]) for piece in pieces) == sum(len(rows) for rows in panes.rows()[2])
    panes.close()


def test_a_family_row_without_a_group_is_refused() -> None:
    groups = rows_of([(0, 1, 0, b"a", 1), (0, 3, 0, b"b", 1)])
    for stray in ((0, 2, 0, b"a", 1), (1, 1, 0, b"a", 1), (0, 0, 0, b"a", 1)):
        with pytest.raises(ValueError, match="has no group"):
            group_index(groups, rows_of([stray]))


@pytest.mark.slow
@bounded
@given(
    st.lists(st.sets(st.integers(-(2**63), 2**63 - 1), max_size=60), max_size=5),
    st.randoms(use_true_random=False),
)
def test_members_are_sorted_within_their_group(groups: list[set[int]], rng: random.Random) -> None:
    mixed = [rng.sample(sorted(group), len(group)) for group in groups]
    numbers = np.array([number for group in mixed for number in group], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    counts = numbers ^ 5
    got, with_counts = sorted_members(bounds, numbers, counts)
    assert got.tolist() == [number for group in mixed for number in sorted(group)]
    assert (with_counts == got ^ 5).all()


COLUMNS = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"a", b"b", b"a\xff", "é".encode(), b"a\x00"]),
        st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1])),
        st.one_of(st.none(), st.floats(allow_nan=False)),
    ),
    min_size=1,
    max_size=12,
)


@bounded
@given(COLUMNS, st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3), st.integers(0, 40))
def test_rows_are_ordered_as_in_sql(
    rows: list[tuple[bytes | None, int | None, float | None]], hows: list[tuple[bool, bool]], unused: int
) -> None:
    strings = Strings()
    strings.intern_all(b"unused %d" % n for n in range(unused))
    vectors = [
        Vector(STRING, strings.intern_all(row[0] for row in rows), None, strings),
        vector(BIGINT, [row[1] for row in rows], np.int64),
        vector(DOUBLE, [row[2] for row in rows], np.float64),
    ]
    keys = [key for each, how in zip(vectors, hows, strict=True) for key in _sort_keys(each, *how)]
    order = list(range(len(rows)))
    for column in (2, 1, 0):  # stable, the least significant first
        descending, nulls_first = hows[column]
        held = [at for at in order if rows[at][column] is not None]
        held.sort(key=[row[column] for row in rows].__getitem__, reverse=descending)  # type: ignore[arg-type]
        nulls = [at for at in order if rows[at][column] is None]
        order = nulls + held if nulls_first else held + nulls
    assert [rows[at] for at in _order_of(keys)] == [rows[at] for at in order]


def vector(type: SqlType, values: list[int | None] | list[float | None], dtype: type[np.generic]) -> Vector:
    valid = np.array([value is not None for value in values])
    return Vector(type, np.array([value or 0 for value in values], dtype=dtype), valid)


@pytest.mark.parametrize("most", [1000, 2**45, 2**62])
def test_averages_round_once_whatever_their_size(tmp_path: Path, most: int) -> None:
    """Small totals are divided by numpy, large ones by Python; Spark's DECIMAL rounds halves away from zero."""
    rng = random.Random(most)
    path = tmp_path / "a.log"
    values: dict[str, list[int]] = {f"/{n}": [rng.randrange(most) for _ in range(n)] for n in range(1, 40)}
    path.write_text(
        "".join(
            f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET {name} HTTP/1.1" 200 {value} "-" "-"\n'
            for name, held in values.items()
            for value in held
        )
    )
    query = "SELECT path, avg(bytes) AS a, avg(-CAST(bytes % 1000000 AS DECIMAL(8,2))) AS d FROM access GROUP BY path"
    for name, double, decimal in elf.run(query, path, format="combined").windows[0].rows:
        held = values[name]
        assert double == float(Fraction(sum(held), len(held)))
        exact = Decimal(-sum(value % 10**6 for value in held)) / len(held)
        assert decimal == exact.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def test_a_derived_text_orders_a_window_of_many_pieces(tmp_path: Path) -> None:
    """The dictionary of lower(path) belongs to a piece; the keys that order pieces are made while it exists."""
    rng = random.Random(3)
    numbers = rng.sample(range(10**9), 30_000)
    path = tmp_path / "a.log"
    path.write_text(
        "".join(
            f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /{number:X} HTTP/1.1" 200 5 "-" "-"\n'
            for number in numbers
        )
    )
    query = "SELECT lower(path) AS low, count(*) AS n FROM access GROUP BY path ORDER BY lower(path) DESC"
    result = elf.run(query, path, format="combined", memory_max=2 << 20)
    assert list(result.windows[0].rows) == sorted(((f"/{n:x}", 1) for n in numbers), reverse=True)


@pytest.mark.parametrize("limit", [None, 7])
def test_windows_larger_and_smaller_than_a_piece_hold_the_same_rows(
    tmp_path: Path, limit: int | None
) -> None:
    """Pieces end between windows where possible; rows, order and LIMIT do not depend on it."""
    rng = random.Random(4)
    path = tmp_path / "a.log"
    expected: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    with path.open("w") as file:
        for second in range(60):
            for _ in range(3000 if second // 10 == 2 else 60):
                name = f"/{rng.randrange(10**5)}"
                expected[second // 10][name] += 1
                file.write(
                    f'10.0.0.1 - - [17/May/2015:10:05:{second:02} +0000] "GET {name} HTTP/1.1" 200 5 "-" "-"\n'
                )
    query = (
        "SELECT path, count(*) AS n, approx_count_distinct(client_ip) AS v FROM access "
        "GROUP BY window(time, '10 seconds'), path ORDER BY n DESC"
    )
    query += "" if limit is None else f" LIMIT {limit}"
    result = elf.run(query, path, format="combined", memory_max=2 << 20)
    for number, window in enumerate(result.windows):
        rows = sorted(
            ((name, n, 1) for name, n in expected[number].items()), key=lambda row: (-row[1], row[0])
        )
        assert list(window.rows) == rows[:limit]
    assert len(result.windows) == 6
