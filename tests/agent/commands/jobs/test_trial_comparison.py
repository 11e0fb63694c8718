"""The windows of a job beside those of its trial: what is joined, what differs, and how it is shown."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elf.agent.commands.jobs.trial.comparison import WAITING_MAX, Compared, Comparison
from elf.agent.commands.jobs.trial.text import ROWS_SHOWN, as_json, as_table
from elf.agent.control.protocol import Cost
from elf.agent.formats.presets import COLUMN_TYPES
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window

S = 1_000_000
MINUTE = 60 * S
AT = 1_700_000_000 * S - 1_700_000_000 * S % MINUTE


def plan(select: str, keys: str = "status", where: str = "") -> Plan:
    text = f"SELECT {select} FROM access {where} GROUP BY window(time, '1 minute'), {keys}"
    return compile_query(text, {"access": COLUMN_TYPES})


HITS = plan("window, status, count(*) AS hits, sum(request_time) AS spent")


def window(of: Plan, *rows: tuple[Any, ...], status: str = "final", n: int = 1, start: int = AT) -> Window:
    """A window of these rows, without the column of the window itself."""
    columns = tuple(ColumnInfo(output.name, str(output.type)) for output in of.select)
    whole = [((start, start + MINUTE), *row) for row in rows]
    lines = Lines(10 * n, 9 * n, n, 0)
    return Window("hits", "v1", start, start + MINUTE, status, (1, 2, n), lines, columns, whole, 2, 3)


def compared(one: Plan, other: Plan, now: Window, tried: Window) -> Compared:
    comparison = Comparison(one, other)
    assert comparison.take(0, now) is None
    found = comparison.take(1, tried)
    assert found is not None
    return found


def test_rows_of_one_group_are_joined_and_their_numbers_compared() -> None:
    now = window(HITS, (200, 5, Decimal("1.5")), (404, 2, None))
    tried = window(HITS, (500, 1, Decimal(1)), (200, 3, Decimal("1.75")))
    found = compared(HITS, HITS, now, tried)
    assert [(row.keys["status"], dict(row.difference)) for row in found.rows] == [
        (200, {"hits": -2, "spent": Decimal("0.25")}),
        (404, {}),
        (500, {}),
    ]
    assert [row.tried is None for row in found.rows] == [False, True, False]
    assert [row.now is None for row in found.rows] == [False, False, True]


def test_queries_with_other_keys_stand_one_after_the_other() -> None:
    other = plan("window, method, count(*) AS hits", "method")
    found = compared(HITS, other, window(HITS, (200, 5, None)), window(other, ("GET", 7)))
    assert [(dict(row.keys), row.now is None, row.tried is None) for row in found.rows] == [
        ({"status": 200}, False, True),
        ({"method": "GET"}, True, False),
    ]
    assert list(found.keys) == ["status", "method"]
    hidden = plan("window, count(*) AS hits")  # its groups cannot be told apart
    found = compared(hidden, hidden, window(hidden, (5,), (6,)), window(hidden, (7,)))
    assert len(found.rows) == 3


def test_only_windows_that_both_have_finally_are_compared() -> None:
    comparison = Comparison(HITS, HITS)
    row = (200, 5, None)
    assert comparison.take(0, window(HITS, row, status="open")) is None
    assert comparison.take(1, window(HITS, row)) is None
    assert comparison.take(0, window(HITS, row, start=AT + MINUTE)) is None
    assert comparison.take(0, window(HITS, row)) is not None
    revised = comparison.take(1, window(HITS, (200, 6, None), status="revised", n=2))
    assert revised is not None
    assert revised.rows[0].difference == {"hits": 1}
    assert comparison.take(1, window(HITS, status="withdrawn", n=3)) is None
    assert comparison.take(0, window(HITS, row, n=4)) is None


def test_windows_that_wait_are_bounded() -> None:
    comparison = Comparison(HITS, HITS)
    for number in range(WAITING_MAX + 1):
        comparison.take(0, window(HITS, start=AT + number * MINUTE))
    assert comparison.take(1, window(HITS)) is None
    assert comparison.take(1, window(HITS, start=AT + MINUTE)) is not None


Groups = st.dictionaries(st.integers(100, 110), st.integers(0, 9), max_size=8)


@given(Groups, Groups)
def test_a_join_has_every_group_once(now: dict[int, int], tried: dict[int, int]) -> None:
    counts = plan("window, status, count(*) AS hits")
    rows = compared(counts, counts, window(counts, *now.items()), window(counts, *tried.items())).rows
    assert sorted(row.keys["status"] for row in rows) == sorted(now.keys() | tried.keys())
    for row in rows:
        key = row.keys["status"]
        assert (row.now or {}).get("hits") == now.get(key)
        assert (row.tried or {}).get("hits") == tried.get(key)
        assert row.difference == ({"hits": tried[key] - now[key]} if key in now and key in tried else {})


def test_a_table_has_both_values_and_the_difference() -> None:
    found = compared(
        HITS,
        HITS,
        window(HITS, (200, 5, Decimal("1.5")), (404, 2, None)),
        window(HITS, (200, 3, Decimal(2)), n=2),
    )
    assert as_table("hits", found).splitlines() == [
        "── hits · 2023-11-14 22:13 – 22:14 ──",
        "now  version v1 · final · 10 lines, 1 rejected, 0 late · 2 of 3 agents",
        "try  version v1 · final · 20 lines, 2 rejected, 0 late · 2 of 3 agents",
        "status  hits now  hits try   ±  spent now  spent try     ±",
        "   200         5         3  -2        1.5          2  +0.5",
        "   404         2         -   -       NULL          -     -",
    ]


def test_costs_are_shown_below_the_figures() -> None:
    found = compared(HITS, HITS, window(HITS, (200, 5, Decimal("1.5"))), window(HITS, (200, 3, Decimal(2))))
    cost = Cost("hits", 1.25, 2048, 1200, 3 << 20, 2)
    assert as_table("hits", found, (cost, None)).splitlines()[3] == (
        "now  costs 1.2 core-ms/s · 2 KiB/s sent up · 1,200 groups · 3 MiB of memory"
    )
    value = json.loads(as_json("hits", found, (None, cost)))
    assert value["now"]["cost"] is None
    assert value["try"]["cost"] == {
        "job": "hits",
        "cpu_ms": 1.25,
        "sent_bytes": 2048,
        "groups": 1200,
        "held_bytes": 3 << 20,
        "agents": 2,
    }


def test_a_long_table_is_cut_and_json_is_whole() -> None:
    counts = plan("window, path, count(*) AS hits", "path")
    rows = [(f"/\x1b[31m{number}", number) for number in range(ROWS_SHOWN + 3)]
    found = compared(counts, counts, window(counts, *rows), window(counts, *rows))
    text = as_table("hits", found)
    assert "\x1b" not in text
    assert "… and 3 rows more; --output json has all" in text
    value = json.loads(as_json("hits", found))
    assert len(value["rows"]) == ROWS_SHOWN + 3
    assert value["rows"][2] == {
        "keys": {"path": "/\x1b[31m2"},
        "now": {"hits": 2},
        "try": {"hits": 2},
        "difference": {"hits": 0},
    }
    assert (value["start_us"], value["try"]["lines"]["rejected"]) == (AT, 1)
