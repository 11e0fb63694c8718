"""Plans on the wire: what is sent comes back, and a hostile one is refused, always with PeerError."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import PeerError
from elf.jobmaster.compile.reports import REPORTS
from elf.jobmaster.plan import check
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.plan import (
    Accumulator,
    Aggregate,
    Call,
    Column,
    Expression,
    Family,
    FamilyKind,
    Key,
    Literal,
    Order,
    Output,
    Plan,
    Reduce,
    WindowSpec,
)
from elf.jobmaster.values.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    MICROS,
    NULL,
    STRING,
    WINDOW,
    Kind,
    SqlType,
    decimal,
)
from tests.jobmaster.compile.query_cases import AGGREGATES, compiled

RICH = """
SELECT window, lower(path) AS p, CASE WHEN flag THEN 'x' ELSE substring(path, 2) END AS s, count(*) AS hits,
       avg(ratio) FILTER (WHERE status IN (200, 404)), approx_percentile(request_time, array(0.5, 0.99)) AS q,
       count(DISTINCT client_ip, user), round(sum(bytes) / 7, 2) AS r, stddev(small), approx_count_distinct(d5)
FROM access WHERE time >= '2024-01-01' AND path RLIKE '^/api' AND request_time % 2 > 0.5
GROUP BY window(time, '1 minute', '10 seconds'), 2, s HAVING hits > 10 ORDER BY q IS NULL, hits DESC LIMIT 5
""".replace("q IS NULL, ", "")
SMALL = "SELECT path, sum(bytes) AS b FROM access WHERE status >= 500 GROUP BY path"

PATH, STATUS, BYTES = Column("path", STRING), Column("status", BIGINT), Column("bytes", BIGINT)
TRUE = Literal(True, BOOLEAN)


def changed(**parts: Any) -> Plan:
    return msgspec.structs.replace(compiled(SMALL), **parts)


def nested(depth: int) -> Expression:
    node: Expression = TRUE
    for _ in range(depth - 1):
        node = Call("not", (node,), BOOLEAN)
    return node


def wide(nodes: int) -> Expression:
    return Call("or", (TRUE,) * (nodes - 1), BOOLEAN)


@pytest.mark.parametrize("sql", [RICH, SMALL, *REPORTS.values()])
def test_plans_survive_the_wire(sql: str) -> None:
    plan = compiled(sql)
    data = plans.encode(plan)
    assert plans.decode(data) == plan
    assert plans.encode(plans.decode(data)) == data
    assert plans.digest(plan) == plans.digest(plans.decode(data))


def test_the_digest_names_the_text_and_the_meaning() -> None:
    plan = compiled(SMALL)
    assert plans.digest(plan) == plans.digest(compiled(SMALL))
    assert len(plans.digest(plan)) == 12
    assert int(plans.digest(plan), 16) >= 0
    others = [compiled(SMALL.replace("500", "400")), compiled(SMALL + " "), compiled(RICH)]
    assert len({plans.digest(other) for other in [plan, *others]}) == 4


CALLS: list[Expression] = [
    Call("system", (PATH,), STRING),
    Call("lower", (PATH, PATH), STRING),
    Call("lower", (STATUS,), STRING),
    Call("lower", (PATH,), BIGINT),
    Call("+", (STATUS, Literal(1, INT)), BIGINT),
    Call("+", (STATUS,), BIGINT),
    Call("*", (Literal(1, MICROS), Literal(1, MICROS)), MICROS),
    Call("/", (STATUS, STATUS), BIGINT),
    Call("=", (STATUS, PATH), BOOLEAN),
    Call("and", (TRUE,), BOOLEAN),
    Call("and", (TRUE, STATUS), BOOLEAN),
    Call("case", (TRUE, PATH), STRING),
    Call("case", (TRUE, PATH, STATUS), STRING),
    Call("case", (PATH, PATH, PATH), STRING),
    Call("in", (STATUS, PATH), BOOLEAN),
    Call("coalesce", (), STRING),
    Call("cast", (STATUS,), SqlType(Kind.TIMESTAMP)),
    Call("cast", (STATUS,), decimal(39, 0)),
    Call("cast", (STATUS,), decimal(3, 5)),
    Call("cast", (STATUS,), SqlType(Kind.INT, precision=3)),
    Call("cast", (STATUS,), SqlType(Kind.ARRAY, element=INT)),
    Call("like", (PATH, PATH), BOOLEAN),
    Call("like", (PATH, Literal("%", STRING), Literal("ab", STRING)), BOOLEAN),
    Call("like", (PATH, Literal("%", STRING), Literal("", STRING)), BOOLEAN),
    Call("rlike", (PATH, Literal("a" * 1_001, STRING)), BOOLEAN),
    Call("rlike", (PATH, PATH), BOOLEAN),
    Call("rlike", (PATH, Literal("(", STRING)), BOOLEAN),
    Call("like", (PATH, Literal("a\\", STRING), Literal("\\", STRING)), BOOLEAN),
    Call("regexp_replace", (PATH, Literal("a", STRING), Literal("$1", STRING)), STRING),
    Call("regexp_extract", (PATH, Literal("(a)", STRING), Literal(2, INT)), STRING),
    Call("regexp_extract", (PATH, Literal("(a)", STRING), Literal(100, INT)), STRING),
    Call("split_part", (PATH, Literal("/", STRING), Literal(0, INT)), STRING),
    Call("round", (STATUS, Literal(99, INT)), BIGINT),
    Call("round", (STATUS, Column("small", INT)), BIGINT),
    Call("parse_url", (PATH, Literal("host", STRING)), STRING),
    Call(
        "date_trunc",
        (Literal("hour", STRING), Column("time", SqlType(Kind.TIMESTAMP))),
        SqlType(Kind.TIMESTAMP),
    ),
    Call("hour", (STATUS,), INT),
    Call("floor", (STATUS,), BIGINT),
    Literal(2**31, INT),
    Literal(-(2**63) - 0, INT),
    Literal("1", BIGINT),
    Literal(True, BIGINT),
    Literal(1, BOOLEAN),
    Literal(1.0, BIGINT),
    Literal(1, DOUBLE),
    Literal(1_000, decimal(3, 1)),
    Literal(None, NULL),
    Literal(None, WINDOW),
    Column("nothing", STRING),
    Column("status", STRING),
    Column("#a0", BIGINT),
]


@pytest.mark.parametrize("expression", CALLS, ids=str)
def test_wrong_expressions_are_refused(expression: Expression) -> None:
    columns = (*compiled(SMALL).columns, Column("small", INT), Column("time", SqlType(Kind.TIMESTAMP)))
    present = Call("is_null", (expression,), BOOLEAN)
    with pytest.raises(PeerError, match="a plan was refused"):
        plans.decode(plans.encode(changed(columns=columns, where=present)))


COUNT, SUM = Accumulator(Reduce.COUNT, BYTES), Accumulator(Reduce.SUM, BYTES)
TOTAL = Aggregate("sum", BIGINT, BIGINT, (0, 1))

PLANS: list[dict[str, Any]] = [
    {"where": nested(101)},
    {"where": wide(20_001)},
    {"where": PATH},
    {"having": Column("#a0", BIGINT)},
    {"having": Call("is_null", (PATH,), BOOLEAN)},
    {"limit": -1},
    {"limit": 2**31},
    {"window": WindowSpec(0, 0)},
    {"window": WindowSpec(10_000_000, 20_000_000)},
    {"window": WindowSpec(10_000_001, 10_000_001)},
    {"window": WindowSpec(2**62, 2**62)},
    {"window": WindowSpec(86_400_000_000, 1_000_000)},
    {"columns": ()},
    {"columns": (BYTES, PATH, STATUS, STATUS)},
    {"columns": (BYTES, PATH, STATUS, Column("#x", BIGINT))},
    {"columns": (BYTES, PATH, STATUS, Column("w", WINDOW))},
    {"columns": (BYTES, PATH, STATUS, Column("x" * 5_000, BIGINT))},
    {"keys": ()},
    {"keys": (Key("path", Call("cast", (STATUS,), decimal(20, 0))),)},
    {"keys": (Key("path", PATH), Key("PATH", STATUS))},
    {"keys": tuple(Key(f"k{at}", PATH) for at in range(513))},
    {"accumulators": ()},
    {"accumulators": (COUNT,)},
    {"accumulators": (SUM, COUNT)},
    {"accumulators": (COUNT, Accumulator(Reduce.SUM, STATUS))},
    {"accumulators": (COUNT, Accumulator(Reduce.SUM, BYTES, TRUE))},
    {"accumulators": (COUNT, SUM, Accumulator(Reduce.MIN, PATH))},
    {"accumulators": (COUNT, SUM, Accumulator(Reduce.SUM))},
    {"accumulators": (COUNT, SUM, Accumulator(Reduce.SUM, Literal(1.0, DOUBLE)))},
    {"accumulators": (COUNT, SUM, Accumulator(Reduce.SUM_SQUARES, Literal(1, decimal(20, 0))))},
    {"accumulators": (COUNT, SUM, Accumulator(Reduce.COUNT, BYTES, PATH))},
    {"families": (Family(FamilyKind.DISTINCT, ()),)},
    {"families": (Family(FamilyKind.LEAST, (BYTES,)),)},
    {"families": (Family(FamilyKind.MIN_BY, (PATH,)),)},
    {"families": (Family(FamilyKind.MAX_BY, (PATH, PATH)),)},
    {"families": (Family(FamilyKind.COUNTS, (PATH, PATH)),)},
    {"families": (Family(FamilyKind.BUCKETS, (PATH,)),)},
    {"families": (Family(FamilyKind.REGISTERS, (PATH, PATH)),)},
    {"families": (Family(FamilyKind.EXACT_SUM, (BYTES,)),)},
    {"aggregates": (Aggregate("evil", BIGINT, BIGINT, (0, 1)),)},
    {"aggregates": (Aggregate("sum", BIGINT, BIGINT, (0, 2)),)},
    {"aggregates": (Aggregate("sum", BIGINT, BIGINT, (0, -1)),)},
    {"aggregates": (Aggregate("sum", DOUBLE, BIGINT, (0, 1)),)},
    {"aggregates": (Aggregate("sum", BIGINT, INT, (0, 1)),)},
    {"aggregates": (Aggregate("sum", BIGINT, BIGINT, (0, 1), (0,)),)},
    {"aggregates": (Aggregate("sum", BIGINT, BIGINT, (0, 1), (), ("0.5",)),)},
    {"aggregates": ()},
    {"select": ()},
    {"select": (Output("b", Column("#a0", BIGINT), INT),)},
    {"select": (Output("b", Column("#a1", BIGINT), BIGINT),)},
    {"select": (Output("b", Column("#window", WINDOW), WINDOW),)},
    {"select": (Output("b", Column("#a0", BIGINT), BIGINT), Output("B", Column("#a0", BIGINT), BIGINT))},
    {"order": ()},
    {"order": (Order(Call("lower", (Column("#k0", STRING),), STRING)),)},
    {"sql": "x" * 70_000},
    {"source": "x" * 5_000},
]  # fmt: skip


@pytest.mark.parametrize("parts", PLANS, ids=range(len(PLANS)))
def test_wrong_plans_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="a plan was refused"):
        plans.decode(plans.encode(changed(**parts)))


def test_what_the_bounds_just_allow_is_taken() -> None:
    for parts in ({"where": nested(100)}, {"where": wide(10_001)}, {"limit": 0}, {"having": None}):
        plan = changed(**parts)
        assert plans.decode(plans.encode(plan)) == plan


@pytest.mark.parametrize(
    "fractions", [(), ("1.5",), ("-0",), ("0.50",), ("x",), ("1e-1",), ("0.5", "NaN"), ("9" * 90,)]
)
def test_wrong_fractions_are_refused(fractions: tuple[str, ...]) -> None:
    plan = compiled("SELECT approx_percentile(bytes, array(0.5, 1)) FROM access")
    aggregate = msgspec.structs.replace(plan.aggregates[0], fractions=fractions)
    assert check.problem(plan) == ""
    assert "does not fit" in check.problem(msgspec.structs.replace(plan, aggregates=(aggregate,)))


def test_foreign_bytes_are_refused() -> None:
    good = plans.encode(compiled(SMALL))
    deep = plans.MAGIC + b"\x91" * 100_000
    bomb = plans.MAGIC + b"\x00" * plans.PLAN_BYTES_MAX
    for data in (b"", b"ELFP", good[1:], good[:-1], good + b"\x00", deep, bomb, b"ELFP\x02" + good[5:]):
        with pytest.raises(PeerError):
            plans.decode(data)


def test_a_refusal_quotes_a_peer_on_one_short_line() -> None:
    good = plans.encode(compiled(SMALL))
    for text in (b"colu\nn", b"col\x1bmn", b"\nolumn"):
        broken = good.replace(b"column", text, 1)
        with pytest.raises(PeerError) as caught:
            plans.decode(broken)
        assert str(caught.value).isprintable()
    named = msgspec.structs.replace(compiled(SMALL), order=())
    keys = tuple(msgspec.structs.replace(key, name="\n" * 4_000) for key in named.keys)
    wrong = check.problem(msgspec.structs.replace(named, keys=keys))
    assert wrong.isprintable()
    assert len(wrong) < 200


def accepted(data: bytes) -> None:
    """Whatever decodes is fit to run."""
    try:
        plan = plans.decode(data)
    except PeerError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most of the time there is none
    else:
        assert check.problem(plan) == ""
        assert plans.decode(plans.encode(plan)) == plan


GOOD = [
    plans.encode(compiled(sql)) for sql in (RICH, SMALL, f"SELECT {AGGREGATES['expressions'][4]} FROM access")
]


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    st.sampled_from(GOOD),
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 2), st.binary(min_size=1, max_size=4)), max_size=6
    ),
)
def test_broken_bytes_are_refused_or_harmless(data: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    broken = bytearray(data)
    for at, cut, put in edits:
        at = 5 + at % (len(broken) - 5)
        broken[at : at + cut] = put
    accepted(bytes(broken))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from(
        ["", "int", "array", "decimal", "call", "column", "sum", "lower", "#a0", "#k0", "0.5", "min"]
    ),
    st.just([]),
    st.just({}),
    st.just({"node": "column", "name": "path", "type": {"kind": "string"}}),
    st.just({"node": "literal", "value": 1, "type": {"kind": "bigint"}}),
    st.just({"kind": "decimal", "precision": 18, "scale": 6}),
)


def spots(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, place) within plain values."""
    places = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    return [(node, key) for key, _ in places] + [spot for _, part in places for spot in spots(part)]


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0, 1 << 16), VALUES), min_size=1, max_size=3))
def test_changed_plans_are_refused_or_fit_to_run(data: bytes, edits: list[tuple[int, Any]]) -> None:
    plain = msgspec.msgpack.decode(data[len(plans.MAGIC) :])
    for at, value in edits:
        found = spots(plain)
        container, key = found[at % len(found)]
        container[key] = copy.deepcopy(value)
    accepted(plans.MAGIC + msgspec.msgpack.encode(plain))
