"""Parameters of a query: their types, their values, and that a query with parameters is the query with the values written in."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elf
from elf.errors import PeerError, QueryError
from elf.jobmaster.compile import query
from elf.jobmaster.compile.explain import described, explain
from elf.jobmaster.plan import codec
from elf.jobmaster.plan.check import PARAMETERS_MAX, VALUE_CHARS_MAX
from elf.jobmaster.plan.parameters import literal, own_type, parameters, shown, with_values
from elf.jobmaster.plan.plan import Literal, Plan
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    MICROS,
    STRING,
    TIMESTAMP,
    SqlType,
    decimal,
)
from tests.jobmaster.compile.query_cases import SOURCES, compiled
from tests.rigs.lines import NGINX_FORMAT, START, lines

C = "SELECT count(*) AS n FROM access"
RICH = (
    "SELECT path, count(*) AS hits FROM access WHERE status >= :least AND path LIKE :like GROUP BY path "
    "HAVING hits > :many ORDER BY hits DESC LIMIT :rows"
)
RICH_VALUES = {"least": "500", "like": "/api/%", "many": "3", "rows": "10"}


def types(plan: Plan) -> dict[str, SqlType]:
    return {name: each.type for name, each in parameters(plan).items()}


# Types.


@pytest.mark.parametrize(
    ("condition", "value", "type"),
    [
        ("status >= :x", "500", BIGINT),
        (":x < small", "5", INT),
        ("request_time > :x", "0.5", MICROS),
        ("d5 = :x", "1.25", decimal(5, 2)),
        ("ratio < :x", "1e-3", DOUBLE),
        ("path = :x", "500", STRING),
        ("time >= :x", "2024-05-17 10:05:03", TIMESTAMP),
        ("flag = :x", "true", BOOLEAN),
        (":x", "false", BOOLEAN),
        ("status BETWEEN :x AND 599", "500", BIGINT),
        ("status IN (200, :x)", "404", BIGINT),
        ("path LIKE :x", "/api/%", STRING),
        ("path RLIKE :x", "^/[a-z]+", STRING),
        ("split_part(path, '/', :x) = 'api'", "2", INT),
        ("substring(path, 1, :x) = '/a'", "2", INT),
        ("length(path) > :x", "10", INT),
        ("coalesce(user, :x) = 'ann'", "5", STRING),
        ("CASE WHEN flag THEN bytes ELSE :x END > 5", "0", BIGINT),
        ("hour(:x) = hour(time)", "2024-05-17 10:05:03", TIMESTAMP),
        ("CAST(:x AS DECIMAL(10, 2)) < request_time", "0.25", decimal(10, 2)),
        ("trim(:x, path) = 'a'", "/", STRING),
        # arithmetic, and constants beside it, leave the type to the value
        ("bytes * :x > 100", "1.5", MICROS),
        ("bytes * :x > 100", "2", BIGINT),
        ("bytes + :x > 100", "1e2", DOUBLE),
        ("request_time > :x * 1.5", "0.5", MICROS),
        (":x = 5", "5", BIGINT),
        ("abs(:x) < bytes", "-5", BIGINT),
        # the first use decides
        ("status > :x AND length(path) > :x", "5", BIGINT),
        ("length(path) > :x AND status > :x AND request_time > :x", "5", INT),
        ("nullif(:x, status) = 5", "5", BIGINT),
    ],
)
def test_a_use_gives_the_type(condition: str, value: str, type: SqlType) -> None:
    assert types(compiled(f"{C} WHERE {condition}", x=value)) == {"x": type}


def test_clauses_over_groups_have_parameters_too() -> None:
    plan = compiled(RICH, **RICH_VALUES)
    assert types(plan) == {"least": BIGINT, "like": STRING, "many": BIGINT, "rows": INT}
    assert plan.limit == 10
    assert {name: shown(each) for name, each in parameters(plan).items()} == RICH_VALUES


def test_one_that_is_selected_alone_has_the_type_of_its_value_and_its_own_name() -> None:
    plan = compiled(
        "SELECT :label, status >= :least, count(*) FROM access GROUP BY status >= :least",
        label="x",
        least="5",
    )
    assert [(output.name, output.type) for output in plan.select] == [
        (":label", STRING),
        ("(status >= :least)", BOOLEAN),
        ("count(1)", BIGINT),
    ]


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("5", BIGINT),
        ("-0.5", MICROS),
        ("1e3", DOUBLE),
        ("0.0000001", DOUBLE),
        ("True", BOOLEAN),
        ("5 s", STRING),
        ("", STRING),
    ],
)
def test_a_value_alone_has_a_wide_type(text: str, type: SqlType) -> None:
    assert own_type(text) == type


VALUES: dict[str, tuple[SqlType, st.SearchStrategy[object]]] = {
    "int": (INT, st.integers(-(2**31), 2**31 - 1)),
    "bigint": (BIGINT, st.integers(-(2**63), 2**63 - 1)),
    "decimal": (MICROS, st.integers(-(10**18) + 1, 10**18 - 1)),
    "double": (DOUBLE, st.floats(allow_nan=False, allow_infinity=False)),
    "boolean": (BOOLEAN, st.booleans()),
    "string": (STRING, st.text(max_size=50)),
    "timestamp": (TIMESTAMP, st.integers(-(10**16), 10**17)),
}


@pytest.mark.parametrize("kind", VALUES)
@settings(deadline=None)
@given(data=st.data())
def test_a_shown_value_reads_back(kind: str, data: st.DataObject) -> None:
    type, values = VALUES[kind]
    held = Literal(data.draw(values), type, "x")  # type: ignore[arg-type]
    assert literal("x", shown(held), type) == held


# Refusals.


@pytest.mark.parametrize(
    ("sql", "values", "reason"),
    [
        (f"{C} WHERE status > :x", {}, "column 49: the parameter x has no value; give it one (--param x=VALUE)"),
        (f"{C} WHERE status > 5", {"x": "5"}, "the query has no parameter 'x'; it has none"),
        (f"{C} WHERE status > :least", {"least": "1", "lest": "2"}, "no parameter 'lest'; did you mean least?"),
        (f"{C} WHERE status > :x", {"x": "many"}, "the parameter x: expected a whole number (BIGINT), found 'many'; CAST(:x AS"),
        (f"{C} WHERE status > :x", {"x": "1.5"}, "expected a whole number (BIGINT), found '1.5'"),
        (f"{C} WHERE status > :x", {"x": str(2**63)}, "'9223372036854775808' is beyond the range of BIGINT"),
        (f"{C} WHERE small > :x", {"x": "3000000000"}, "'3000000000' is beyond the range of INT"),
        (f"{C} WHERE request_time > :x", {"x": "0.0000001"}, "expected at most 6 decimals (DECIMAL(18,6)), found '0.0000001'"),
        (f"{C} WHERE d5 > :x", {"x": "1000"}, "beyond the range of DECIMAL(5,2)"),
        (f"{C} WHERE ratio > :x", {"x": "1e999"}, "beyond the range of DOUBLE"),
        (f"{C} WHERE time > :x", {"x": "yesterday"}, "expected a time like 2024-05-17 10:05:03, found 'yesterday'"),
        (f"{C} WHERE flag = :x", {"x": "5"}, "expected true or false, found '5'"),
        (f"{C} WHERE path = :x", {"x": "\udc80"}, "expected a text in UTF-8"),
        (f"{C} WHERE path = :x", {"x": "a" * (VALUE_CHARS_MAX + 1)}, "at most 4,096 characters, not 4,097"),
        (f"{C} WHERE path RLIKE :x", {"x": "(a+)+"}, "the pattern '(a+)+' cannot be used: it has a repeat within a repeat"),
        (f"{C} WHERE path RLIKE :x", {"x": "("}, "the pattern '(' cannot be used"),
        (f"{C} WHERE path LIKE :x", {"x": "a\\"}, "the pattern ends with the escape character"),
        (f"{C} LIMIT :x", {"x": "-1"}, "LIMIT takes a whole constant"),
        (f"{C} LIMIT :x", {"x": "many"}, "expected a whole number (INT), found 'many'"),
        (f"{C} GROUP BY window(time, :x)", {"x": "5 s"}, "the length of a window must be a quoted interval"),
        ("SELECT approx_percentile(bytes, :x) FROM access", {"x": "0.5"}, "the fraction must be a constant"),
        ("SELECT round(sum(bytes), :x) FROM access", {"x": "2"}, "the number of digits cannot be a parameter"),
        ("SELECT count(:x) FROM access", {"x": "2"}, "the parameter x cannot be used here; write a constant"),
        (f"{C} WHERE date_trunc(:x, time) = time", {"x": "HOUR"}, "the parameter x cannot be used here"),
        ("SELECT path:x, count(*) FROM access GROUP BY path", {"x": "2"}, "syntax error"),
        (f"{C} WHERE status > : x", {"x": "2"}, "this is not a parameter; write :name"),
        (f"{C} WHERE ' :x' = path", {"x": "2"}, "no parameter 'x'"),
        (f"{C} WHERE `:x` = 5", {"x": "2"}, "there is no column :x"),
        (f"{C} WHERE status > :x FILTER (WHERE flag)", {"x": "2"}, "FILTER belongs to an aggregate"),
    ],
)  # fmt: skip
def test_a_query_refuses(sql: str, values: dict[str, str], reason: str) -> None:
    with pytest.raises(QueryError) as caught:
        compiled(sql, **values)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lest": "5"}, "the query has no parameter 'lest'; did you mean least?"),
        ({"x": "5"}, "the query has no parameter 'x'; it has least, like, many, rows"),
        ({"least": "x"}, "the parameter least: expected a whole number (BIGINT), found 'x'"),
        ({"many": str(2**63)}, "beyond the range of BIGINT"),
        ({"like": "a\\"}, "like does not take like = 'a\\\\': the pattern ends with the escape character"),
        ({"like": "a" * 1001}, "a pattern has at most 1,000 characters"),
        ({"rows": "-1"}, "LIMIT -1 is out of range"),
        ({"rows": "0.5"}, "expected a whole number (INT)"),
    ],
)
def test_a_plan_refuses(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        with_values(compiled(RICH, **RICH_VALUES), values)


@pytest.mark.parametrize(
    ("call", "good", "bad", "reason"),
    [
        ("path RLIKE :x", "a+", "(a+)+", "rlike does not take x = '(a+)+': it has a repeat within a repeat"),
        ("regexp_extract(path, :x, 2) = 'a'", "(a)(b)", "(a)", "regexp_extract does not take x = '(a)'"),
        ("regexp_replace(path, '(a)', :x) = 'a'", "$1", "$2", "regexp_replace does not take x = '$2'"),
        ("regexp_extract(path, '(a)', :x) = 'a'", "1", "2", "regexp_extract does not take x = '2'"),
        ("split_part(path, '/', :x) = 'a'", "1", "0", "split_part does not take x = '0'"),
        ("parse_url(referer, :x) = 'a'", "HOST", "PORT", "parse_url does not take x = 'PORT'"),
    ],
)
def test_a_value_is_checked_where_it_is_used(call: str, good: str, bad: str, reason: str) -> None:
    plan = compiled(f"{C} WHERE {call}", x=good)
    with pytest.raises(ValueError, match=re.escape(reason)):
        with_values(plan, {"x": bad})
    with pytest.raises(QueryError):
        compiled(f"{C} WHERE {call}", x=bad)
    hostile = codec.encode(plan).replace(_packed(good), _packed(bad))
    assert hostile != codec.encode(plan)
    with pytest.raises(PeerError, match="refused"):
        codec.decode(hostile)


def _packed(value: str) -> bytes:
    """A value in an encoded plan, with the key before it."""
    held = int(value) if value.isdigit() else value
    return b"\xa5value" + msgspec.msgpack.encode(held)


def test_an_agent_refuses_two_values_of_one_parameter() -> None:
    plan = compiled(f"{C} WHERE status > :x AND bytes > :x", x="5")
    data = codec.encode(plan)
    with pytest.raises(PeerError, match="the parameter x has two values"):
        codec.decode(data.replace(_packed("5"), _packed("6"), 1))


@pytest.mark.parametrize("name", ["", "1x", "a b", "x" * 65, "é"])
def test_an_agent_refuses_a_strange_name(name: str) -> None:
    data = codec.encode(compiled(f"{C} WHERE status > :x", x="5"))
    named = data.replace(b"\xa9parameter\xa1x", b"\xa9parameter" + msgspec.msgpack.encode(name))
    if not name:
        assert parameters(codec.decode(named)) == {}
        return
    with pytest.raises(PeerError, match="is no name of a parameter"):
        codec.decode(named)


def test_parameters_are_bounded() -> None:
    names = [f"p{at}" for at in range(PARAMETERS_MAX + 1)]
    condition = " OR ".join(f"status = :{name}" for name in names)
    with pytest.raises(QueryError, match=f"more than {PARAMETERS_MAX} parameters"):
        compiled(f"{C} WHERE {condition}", **dict.fromkeys(names, "1"))


# Versions.


def test_a_query_without_parameters_is_encoded_as_before() -> None:
    assert b"parameter" not in codec.encode(compiled(f"{C} WHERE status > 5 LIMIT 5"))


def test_other_values_are_another_version_of_the_same_plan() -> None:
    plan = compiled(RICH, **RICH_VALUES)
    other = with_values(plan, {"least": "400", "rows": "5"})
    assert other == compiled(RICH, **RICH_VALUES | {"least": "400", "rows": "5"})
    assert codec.digest(other) != codec.digest(plan)
    assert with_values(other, {"least": "+500", "rows": "10"}) == plan


def test_a_value_changes_nothing_else_of_a_plan() -> None:
    """Equal accumulators of two parameters stay two, whatever their values."""
    sql = "SELECT count_if(status >= :a) AS a, count_if(status >= :b) AS b FROM access"
    plan = compiled(sql, a="5", b="5")
    assert len(plan.accumulators) == 2
    assert with_values(plan, {"b": "6"}) == compiled(sql, a="5", b="6")


def test_explain_names_parameters_and_their_values() -> None:
    plan = compiled(RICH, **RICH_VALUES)
    text = explain(plan)
    assert "where     ((status >= :least) AND (path LIKE :like))" in text
    assert "limit     :rows in each window" in text
    assert text.endswith(
        "values    least bigint = 500\n          like string = /api/%\n          many bigint = 3\n          rows int = 10"
    )
    assert described(plan)["parameters"][0] == {"name": "least", "type": "bigint", "value": "500"}


def test_a_default_is_taken_where_no_value_is_given() -> None:
    plan = query.compile(
        f"{C} WHERE status > :x AND bytes > :y", SOURCES, {"x": "1"}, {"x": "2", "y": "3", "z": "4"}
    )
    assert {name: shown(each) for name, each in parameters(plan).items()} == {"x": "1", "y": "3"}


# Meaning: a query with parameters is the query with the values written in.

INTS = st.sampled_from(["0", "1", "3", "200", "404", "500", "-7"])
SMALL = st.sampled_from(["1", "2", "4"])
FRACTIONS = st.sampled_from(["0.5", "2", "0.125"])
TEXTS = st.sampled_from(["/", "/api", "/über", "it''s", "ann", "", 'a"b', "\\\\"])
LIKES = st.sampled_from(["/api/%", "%a%", "/_", "%"])
REGEXES = st.sampled_from(["^/api", "[0-9]+$", "."])
TIMES = st.integers(START, START + 120).map(
    lambda s: f"2015-05-17 10:{5 + (s - START) // 60:02d}:{(s - START) % 60:02d}"
)
KINDS = {"i": INTS, "s": SMALL, "f": FRACTIONS, "t": TEXTS, "l": LIKES, "r": REGEXES, "w": TIMES}
CONDITIONS = (
    "status >= {i}", "bytes < {i}", "{i} <= status", "status = {i}", "status IN ({i}, {i}, 304)", "status BETWEEN {i} AND {i}",
    "request_time > {f}", "request_time + bytes > {f}", "path LIKE {l}", "NOT path LIKE {l}", "path ILIKE {l}", "path RLIKE {r}",
    "path = {t}", "{t} = path", "coalesce(user, {t}) = {t}", "substring(path, 1, {s}) = {t}", "split_part(path, '/', {s}) = {t}",
    "time >= {w}", "length(path) > {i}", "bytes * {i} > 1000", "bytes / {s} > {i}", "bytes % {s} = 0",
    "CASE WHEN status = {i} THEN bytes ELSE {i} END > {i}", "nullif(status, {i}) > 5", "replace(path, {t}, {t}) = path",
    "concat(path, {t}) LIKE {l}", "CAST(status AS STRING) = {i}", "if(status > {i}, user, {t}) = 'ann'", "status <=> {i}",
)  # fmt: skip
AGGREGATES = (
    "count_if({c})", "sum(bytes + {i})", "sum(CASE WHEN {c} THEN 1 ELSE {s} END)", "max(bytes) FILTER (WHERE {c})",
    "avg(bytes) + {i}", "sum(request_time) > {f}", "count(DISTINCT path) FILTER (WHERE {c})", "count(*) div {s}",
)  # fmt: skip
KEYS = ("status >= {i}", "substring(path, 1, {s})", "regexp_extract(path, {r}, 0)", "bytes % {s}", "status")


def _written(kind: str, value: str) -> str:
    """The constant as the query's text has it."""
    if kind in "tlr":
        return f"'{value}'"
    return f"TIMESTAMP '{value}'" if kind == "w" else value


def _given(value: str) -> str:
    """The value of a text that stands so between quotes."""
    return value.replace("''", "'").replace("\\\\", "\\")


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, str, dict[str, str]]:
    """(query with parameters, the same with constants, values): a parameter may occur more than once."""
    condition = st.sampled_from(CONDITIONS)
    where = draw(st.lists(condition, min_size=1, max_size=3))
    aggregates = [
        text.replace("{c}", draw(condition))
        for text in draw(st.lists(st.sampled_from(AGGREGATES), max_size=2))
    ]
    key = draw(st.sampled_from(KEYS))
    selected = "".join(f", {text} AS a{at}" for at, text in enumerate(aggregates))
    template = (
        f"SELECT window, {{key}} AS k, count(*) AS hits{selected} FROM access WHERE {' OR '.join(where)} "
        f"GROUP BY window(time, '1 minute'), k HAVING hits > {{i}} ORDER BY hits % {{s}}, hits DESC LIMIT {{s}}"
    ).replace("{key}", key)
    values: dict[str, str] = {}
    asked = written = ""
    for part in template.split("{"):
        kind, close, rest = part.partition("}")
        if not close:
            asked, written = asked + part, written + part
            continue
        name = f"{kind}{draw(st.integers(0, 2))}"
        values.setdefault(name, draw(KINDS[kind]))
        asked += f":{name}{rest}"
        written += _written(kind, values[name]) + rest
    return asked, written, {name: _given(value) for name, value in values.items()}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "access.log"
    path.write_text("\n".join(lines(300, 5)) + "\n")
    return path


@settings(deadline=None, max_examples=60)
@given(question=questions())
def test_a_query_with_parameters_equals_the_query_with_constants(
    log: Path, question: tuple[str, str, dict[str, str]]
) -> None:
    asked, written, values = question
    rows = list(elf.run(written, log, format=NGINX_FORMAT).rows())
    assert list(elf.run(asked, log, format=NGINX_FORMAT, params=values).rows()) == rows


def test_one_parameter_may_be_a_number_and_an_argument_that_must_be_an_int(log: Path) -> None:
    asked = (
        "SELECT status, count(*) AS n, count_if(split_part(path, '/', :part) = '') AS a FROM access "
        "WHERE bytes / :part > 0 AND bytes >= :part GROUP BY status ORDER BY n % :part, status LIMIT :part"
    )
    for part in ("1", "2"):
        written = asked.replace(":part", part)
        rows = list(elf.run(written, log, format=NGINX_FORMAT).rows())
        assert list(elf.run(asked, log, format=NGINX_FORMAT, params={"part": part}).rows()) == rows


def test_values_of_python_are_values(log: Path) -> None:
    sql = "SELECT count(*) AS n FROM access WHERE status >= :least AND request_time > :slow AND :on AND path LIKE :like"
    got = elf.run(
        sql, log, format=NGINX_FORMAT, params={"least": 500, "slow": 0.5, "on": True, "like": "/a%"}
    )
    constants = (
        sql.replace(":least", "500").replace(":slow", "0.5").replace(":on", "true").replace(":like", "'/a%'")
    )
    assert list(got.rows()) == list(elf.run(constants, log, format=NGINX_FORMAT).rows())
    assert next(got.rows())["n"] > 0
