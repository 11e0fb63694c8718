"""Conditions of alerts: compiled against a query, and held against plain Python over its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import QueryError
from elf.jobmaster.alerts import template
from elf.jobmaster.alerts.alert import Alert, keys_of, needs_of, problem
from elf.jobmaster.alerts.book import INSTANCES_MAX, MEMBERS_MAX
from elf.jobmaster.alerts.rows import RowJudge
from elf.jobmaster.compile.condition import compile_condition
from elf.jobmaster.compile.query import compile
from elf.jobmaster.plan.codec import encode_any
from elf.jobmaster.plan.features import ALERTS, known
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.columns import ColumnRows, column_of
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP

COLUMNS = {"path": STRING, "status": BIGINT, "bytes": BIGINT, "time": TIMESTAMP}


def query(select: str, group: str = "path, status") -> Plan:
    return compile(
        f"SELECT {select} FROM access GROUP BY window(time, '10 seconds'), {group}", {"access": COLUMNS}
    )


PLAN = query("window, path, status, count(*) AS hits, avg(bytes) AS mean, max(time) AS last")


def made(when: str, plan: Plan = PLAN, text: str = "", name: str = "a") -> Alert:
    return Alert(name, when, encode_any(compile_condition(when, plan)), text=text)


def row(path: str | None, status: int | None, hits: int, mean: float | None = 1.5) -> tuple[Any, ...]:
    return ((0, 10_000_000), path, status, hits, mean, 1_763_000_000_000_000)


CASES: dict[str, Callable[..., bool]] = {
    "hits > 5": lambda p, s, h, m: h > 5,
    "hits > 5 AND status >= 500": lambda p, s, h, m: h > 5 and s is not None and s >= 500,
    "path LIKE '/a%' OR mean < 2": lambda p, s, h, m: (
        (p is not None and p.startswith("/a")) or (m is not None and m < 2)
    ),
    "path IS NULL": lambda p, s, h, m: p is None,
    "HITS * 2 BETWEEN 4 AND 8 -- twice": lambda p, s, h, m: 4 <= 2 * h <= 8,
}
rows_of = st.lists(
    st.builds(
        row,
        st.one_of(st.none(), st.sampled_from(["/a", "/ab", "/b", "/é\n"])),
        st.one_of(st.none(), st.sampled_from([200, 404, 500])),
        st.integers(0, 9),
        st.one_of(st.none(), st.floats(0, 4)),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(rows_of, st.sampled_from(sorted(CASES)), st.booleans())
def test_a_condition_holds_where_python_says_so(
    rows: list[tuple[Any, ...]], when: str, columnar: bool
) -> None:
    holds = CASES[when]
    wanted = dict.fromkeys(
        tuple((n, str(v)) for n, v in (("path", each[1]), ("status", each[2])) if v is not None)
        for each in rows
        if holds(*each[1:5])
    )
    given_rows: Any = rows
    if columnar and rows:
        types = [str(each.type) for each in PLAN.select]
        cells = [column_of(kind, values) for kind, values in zip(types, zip(*rows, strict=True), strict=True)]
        given_rows = ColumnRows(cells, 0, len(rows))
    found, left_out = RowJudge(PLAN).hits([made(when)], given_rows)
    shown = [tuple((n, template.shown(v, "string")) for n, v in keys) for keys in wanted]
    assert [hit.keys for hit in found["a"]] == shown
    assert not left_out


@pytest.mark.parametrize(
    ("when", "place", "reason"),
    [
        ("hitz > 1", (1, 1), "there is no column hitz"),
        ("hits > 1 AND\n  paht = 'x'", (2, 3), "there is no column paht"),
        ("hits", (1, 1), "a condition is expected here, not a bigint"),
        ("sum(hits) > 1", (1, 1), "an aggregate cannot be in a condition"),
        ("hits > 1)", (1, 10), "syntax error"),
        ("hits > 1 ORDER BY hits", (1, 10), "syntax error"),
        ("hits > 1) ORDER BY (hits", (1, 1), "a condition is one expression"),
        ("hits > 1) GROUP BY (hits", (1, 1), "a condition is one expression"),
        ("hits > :x", (1, 8), "the parameter x has no value"),
        ("(hits > 1", (1, 10), "syntax error"),
        ("hits > 'x'", (1, 1), "'x' is not a valid bigint"),
    ],
)
def test_an_error_of_a_condition_has_its_place(when: str, place: tuple[int, int], reason: str) -> None:
    with pytest.raises(QueryError) as caught:
        compile_condition(when, PLAN)
    assert caught.value.reason.startswith(reason)
    assert (caught.value.line, caught.value.column) == place


def test_an_alert_fits_a_query_that_has_its_columns_in_their_types() -> None:
    rule = made("hits > 5", text="{path}: {hits} at {window}")
    assert problem(rule, PLAN) == ""
    assert "which is no column" in problem(rule, query("path, status, sum(bytes) AS total"))
    assert "reads hits as bigint, which is double there" in problem(
        rule, query("path, status, avg(bytes) AS hits")
    )
    assert "{path}" in problem(rule, query("status, count(*) AS hits", "status"))
    assert "no window" in problem(rule, compile("SELECT count(*) AS hits FROM access", {"access": COLUMNS}))
    assert RowJudge(query("path, status, avg(bytes) AS hits")).hits([rule], [("/", 200, 9.0)]) == ({}, {})


def test_an_agent_must_know_alerts_and_the_functions_of_their_conditions() -> None:
    assert needs_of([]) == frozenset()
    needs = needs_of([made("upper(path) LIKE 'A%'")])
    assert {ALERTS, "function upper", "function like"} <= needs <= known()


def test_bytes_that_are_no_condition_never_hold() -> None:
    for wrong in (b"", b"ELFR\x01\xff", encode_any(PLAN), b"ELFR\x02" + made("hits > 1").condition[5:]):
        rule = Alert("a", "hits > 1", wrong)
        assert rule.plan is None
        assert RowJudge(PLAN).hits([rule], [row("/", 200, 9)]) == ({}, {})


def test_keys_are_the_columns_of_groups_and_long_ones_stay_apart() -> None:
    assert keys_of(PLAN) == [1, 2]
    long = "/" + "x" * 500
    found, _ = RowJudge(PLAN).hits([made("hits > 0")], [row(long + "1", None, 1), row(long + "2", None, 1)])
    keys = [dict(hit.keys)["path"] for hit in found["a"]]
    assert len(set(keys)) == 2
    assert max(map(len, keys)) < 210


def test_more_rows_than_instances_are_counted() -> None:
    rows = [row(f"/{n}", 200, 1) for n in range(INSTANCES_MAX + 7)]
    found, left_out = RowJudge(PLAN).hits([made("hits > 0")], rows)
    assert len(found["a"]) == INSTANCES_MAX
    assert left_out == {"a": 7}


# ---- the text ----


def test_a_text_is_filled_with_values_that_can_do_no_harm() -> None:
    text = "{{{path}}} had {HITS} of {mean} at {last} in {window}; {unknown} {path"
    types = [str(each.type) for each in PLAN.select]
    names = [each.name for each in PLAN.select]
    assert template.of_row(text, names, row("/a\n\x1b[31m{hits}", None, 7, None), types) == (
        "{/a\\u000a\\u001b[31m{hits}} had 7 of NULL at 2025-11-13T02:13:20Z in 1970-01-01T00:00:00Z – "
        "1970-01-01T00:00:10Z; {unknown} {path"
    )
    assert template.names_in(text) == ["path", "HITS", "mean", "last", "window", "unknown"]
    assert template.stray_brace("{a} {{b}} {") == 10
    assert template.stray_brace("{a} {{b}}") is None
    assert template.place_of("x\n {a} {b}", "b") == (2, 6)


@given(st.text(max_size=60), st.text(max_size=30))
def test_filling_never_raises_and_is_bounded(text: str, value: str) -> None:
    found = template.of_row(text, ["a", "b"], (value, np.float64(1)), ["string", "double"])
    assert len(found) <= template.FILLED_CHARS_MAX


def test_of_no_data_by_columns_the_values_that_have_rows_are_found() -> None:
    rows = [row("/a", 200, 1), row("/b", 500, 1), row("/a", 404, 1), row(None, 200, 1)]
    hits, left_out = RowJudge(PLAN).hits(
        [
            Alert("p", "no data by path", b"", 5, text="{path} is silent"),
            Alert("b", "no data by status, path", b"", 5),
        ],
        rows,
    )
    assert [(dict(hit.keys), hit.text) for hit in hits["p"]] == [
        ({"path": "/a"}, "/a is silent"),
        ({"path": "/b"}, "/b is silent"),
        ({}, "NULL is silent"),
    ]
    assert [dict(hit.keys) for hit in hits["b"]] == [
        {"path": "/a", "status": "200"},
        {"path": "/b", "status": "500"},
        {"path": "/a", "status": "404"},
        {"status": "200"},
    ]
    many = [row(f"/{at}", 200, 1) for at in range(MEMBERS_MAX + 3)] * 2
    hits, left_out = RowJudge(PLAN).hits([Alert("p", "no data by path", b"", 5)], many)
    assert (len(hits["p"]), left_out) == (MEMBERS_MAX, {"p": 3})
