"""The compiler: whole plans, sharing of accumulators, conversions, names, windows, the child process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import QueryError
from elf.jobmaster.compile import query
from elf.jobmaster.compile.explain import explain, text, to_json
from elf.jobmaster.compile.interval import parse_interval
from elf.jobmaster.compile.reports import REPORTS
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
    STRING,
    TIMESTAMP,
    WINDOW,
    array,
    decimal,
)
from tests.jobmaster.compile.query_cases import AGGREGATES, COLUMNS, COMBINED, SCALARS, SOURCES, compiled
from tests.rigs import paths

GOLDEN = paths.GOLDEN / "queries"
PATH, STATUS, BYTES = Column("path", STRING), Column("status", BIGINT), Column("bytes", BIGINT)
REQUEST_TIME = Column("request_time", MICROS)


def condition(sql: str) -> Expression:
    where = compiled(f"SELECT count(*) FROM access WHERE {sql}").where
    assert where is not None
    return where


def key(sql: str) -> Expression:
    return compiled(f"SELECT {sql}, count(*) FROM access GROUP BY {sql}").keys[0].expression


def test_the_query_of_the_design() -> None:
    sql = """
        SELECT window, path, count(*) AS hits, sum(bytes) AS bytes,
               approx_percentile(request_time, 0.99) AS p99, approx_count_distinct(client_ip) AS visitors
        FROM access
        WHERE status >= 500 AND path LIKE '/api/%'
        GROUP BY window(time, '10 seconds'), path
        HAVING hits > 100
        ORDER BY hits DESC LIMIT 20"""
    client_ip = Column("client_ip", STRING)
    hits, total = Column("#a0", BIGINT), Column("#a1", BIGINT)
    assert compiled(sql) == Plan(
        sql=sql,
        source="access",
        columns=(BYTES, client_ip, PATH, REQUEST_TIME, STATUS, Column("time", TIMESTAMP)),
        where=Call(
            "and",
            (
                Call(">=", (STATUS, Literal(500, BIGINT)), BOOLEAN),
                Call("like", (PATH, Literal("/api/%", STRING), Literal("\\", STRING)), BOOLEAN),
            ),
            BOOLEAN,
        ),
        window=WindowSpec(10_000_000, 10_000_000),
        keys=(Key("path", PATH),),
        accumulators=(
            Accumulator(Reduce.COUNT),
            Accumulator(Reduce.COUNT, BYTES),
            Accumulator(Reduce.SUM, BYTES),
            Accumulator(Reduce.COUNT, REQUEST_TIME),
            Accumulator(Reduce.MIN, REQUEST_TIME),
            Accumulator(Reduce.MAX, REQUEST_TIME),
        ),
        families=(Family(FamilyKind.BUCKETS, (REQUEST_TIME,)), Family(FamilyKind.REGISTERS, (client_ip,))),
        aggregates=(
            Aggregate("count", BIGINT, BIGINT, (0,)),
            Aggregate("sum", BIGINT, BIGINT, (1, 2)),
            Aggregate("approx_percentile", MICROS, MICROS, (3, 4, 5), (0,), ("0.99",)),
            Aggregate("approx_count_distinct", BIGINT, STRING, (), (1,)),
        ),
        having=Call(">", (hits, Literal(100, BIGINT)), BOOLEAN),
        select=(
            Output("window", Column("#window", WINDOW), WINDOW),
            Output("path", Column("#k0", STRING), STRING),
            Output("hits", hits, BIGINT),
            Output("bytes", total, BIGINT),
            Output("p99", Column("#a2", MICROS), MICROS),
            Output("visitors", Column("#a3", BIGINT), BIGINT),
        ),
        order=(Order(hits, descending=True, nulls_first=False), Order(Column("#k0", STRING))),
        limit=20,
    )


def test_accumulators_families_and_aggregates_are_shared() -> None:
    plan = compiled(
        "SELECT sum(bytes), avg(bytes), stddev(bytes), count(bytes), count(*), count(1) AS lines, sum(bytes) / count(1),"
        " approx_percentile(bytes, 0.5), approx_percentile(bytes, 0.90), approx_percentile(bytes, .9) + 0,"
        " min(bytes) FROM access HAVING sum(bytes) > 0 ORDER BY avg(BYTES)"
    )
    assert [(part.reduce, part.input) for part in plan.accumulators] == [
        (Reduce.COUNT, BYTES),
        (Reduce.SUM, BYTES),
        (Reduce.SUM_SQUARES, BYTES),
        (Reduce.COUNT, None),
        (Reduce.MIN, BYTES),
        (Reduce.MAX, BYTES),
    ]
    assert plan.families == (Family(FamilyKind.BUCKETS, (BYTES,)),)
    assert [(a.function, a.accumulators, a.families, a.fractions) for a in plan.aggregates] == [
        ("sum", (0, 1), (), ()),
        ("avg", (0, 1), (), ()),
        ("stddev_samp", (0, 1, 2), (), ()),
        ("count", (0,), (), ()),
        ("count", (3,), (), ()),
        ("approx_percentile", (0, 4, 5), (0,), ("0.5",)),
        ("approx_percentile", (0, 4, 5), (0,), ("0.9",)),
        ("min", (0, 4), (), ()),
    ]


def test_sums_over_double_are_families() -> None:
    plan = compiled("SELECT avg(ratio), var_pop(ratio), count(DISTINCT ratio, path) FROM access")
    ratio = Column("ratio", DOUBLE)
    assert plan.families == (
        Family(FamilyKind.EXACT_SUM, (ratio,)),
        Family(FamilyKind.EXACT_SUM_SQUARES, (ratio,)),
        Family(FamilyKind.DISTINCT, (ratio, PATH)),
    )
    assert [(a.accumulators, a.families) for a in plan.aggregates] == [
        ((0,), (0,)),
        ((0,), (0, 1)),
        ((), (2,)),
    ]


def test_filters_are_part_of_an_accumulator() -> None:
    plan = compiled(
        "SELECT count(*) FILTER (WHERE status >= 500), count_if(status >= 500), sum(bytes) FILTER (WHERE flag),"
        " count_if(status = 1) FILTER (WHERE flag) FROM access"
    )
    bad, flag = Call(">=", (STATUS, Literal(500, BIGINT)), BOOLEAN), Column("flag", BOOLEAN)
    one = Call("=", (STATUS, Literal(1, BIGINT)), BOOLEAN)
    assert plan.accumulators == (
        Accumulator(Reduce.COUNT, None, bad),
        Accumulator(Reduce.COUNT, BYTES, flag),
        Accumulator(Reduce.SUM, BYTES, flag),
        Accumulator(Reduce.COUNT, None, Call("and", (flag, one), BOOLEAN)),
    )
    assert len(plan.aggregates) == 3


def test_a_group_always_has_a_row_of_its_own() -> None:
    for sql in ("SELECT path FROM access GROUP BY path", "SELECT count(DISTINCT path) FROM access"):
        assert compiled(sql).accumulators == (Accumulator(Reduce.COUNT),)


def test_order_is_total() -> None:
    plan = compiled("SELECT count(*) FROM access GROUP BY path, status, user ORDER BY status DESC")
    path, status, user = Column("#k0", STRING), Column("#k1", BIGINT), Column("#k2", STRING)
    assert plan.order == (Order(status, True, False), Order(path), Order(user))
    plain = compiled("SELECT count(*) FROM access GROUP BY path, status")
    assert plain.order == (Order(path), Order(status))
    explicit = compiled(
        "SELECT count(*) FROM access GROUP BY path, window(time, '1 hour') ORDER BY window, path NULLS LAST"
    )
    assert explicit.order == (Order(path, False, False),)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("status = '200'", Call("=", (STATUS, Literal(200, BIGINT)), BOOLEAN)),
        ("request_time > 1", Call(">", (REQUEST_TIME, Literal(1_000_000, MICROS)), BOOLEAN)),
        ("request_time > 0.25", Call(">", (REQUEST_TIME, Literal(250_000, MICROS)), BOOLEAN)),
        (
            "request_time = '1.5'",
            Call("=", (Call("cast", (REQUEST_TIME,), DOUBLE), Literal(1.5, DOUBLE)), BOOLEAN),
        ),
        ("path = 5", Call("=", (Call("cast", (PATH,), INT), Literal(5, INT)), BOOLEAN)),
        (
            "time >= '2024-01-02'",
            Call(">=", (Column("time", TIMESTAMP), Literal(1_704_153_600_000_000, TIMESTAMP)), BOOLEAN),
        ),
        ("status IN (200, 404)", Call("in", (STATUS, Literal(200, BIGINT), Literal(404, BIGINT)), BOOLEAN)),
        (
            "status IN ('200', 1)",
            Call("in", (Call("cast", (STATUS,), STRING), Literal("200", STRING),
                        Call("cast", (Literal(1, INT),), STRING)), BOOLEAN),
        ),
        ("path NOT LIKE 'a%'", Call("not", (Call(
            "like", (PATH, Literal("a%", STRING), Literal("\\", STRING)), BOOLEAN),), BOOLEAN)),
        ("flag = NULL", Call("=", (Column("flag", BOOLEAN), Literal(None, BOOLEAN)), BOOLEAN)),
        (
            "flag AND (flag AND status IS NULL)",
            Call("and", (Column("flag", BOOLEAN), Column("flag", BOOLEAN),
                         Call("is_null", (STATUS,), BOOLEAN)), BOOLEAN),
        ),
    ],
)  # fmt: skip
def test_conditions_get_their_casts(sql: str, expected: Expression) -> None:
    assert condition(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("bytes / 2", Call("/", (Call("cast", (BYTES,), DOUBLE), Literal(2.0, DOUBLE)), DOUBLE)),
        ("d5 * 10", Call("*", (Column("d5", decimal(5, 2)), Literal(10, decimal(2, 0))), decimal(8, 2))),
        (
            "d5 % small",
            Call("cast", (Call("%", (Call("cast", (Column("d5", decimal(5, 2)),), decimal(12, 2)), Call(
                "cast", (Column("small", INT),), decimal(12, 2))), decimal(12, 2)),), decimal(5, 2)),
        ),
        ("floor(bytes)", BYTES),
        ("nullif(path, '-')", Call("case", (Call("=", (PATH, Literal("-", STRING)), BOOLEAN),
                                            Literal(None, STRING), PATH), STRING)),
        ("path || '?' || status", Call("concat", (PATH, Literal("?", STRING),
                                                  Call("cast", (STATUS,), STRING)), STRING)),
        ("date_trunc('hour', time)", Call("date_trunc", (Literal("HOUR", STRING),
                                                         Column("time", TIMESTAMP)), TIMESTAMP)),
        ("CASE status WHEN 200 THEN 'ok' END", Call("case", (
            Call("=", (STATUS, Literal(200, BIGINT)), BOOLEAN), Literal("ok", STRING), Literal(None, STRING)), STRING)),
        ("TRY_CAST(path AS INT)", Call("try_cast", (PATH,), INT)),
        ("trim('/', path)", Call("trim", (PATH, Literal("/", STRING)), STRING)),
        ("TRIM(LEADING '/' FROM path)", Call("ltrim", (PATH, Literal("/", STRING)), STRING)),
    ],
)  # fmt: skip
def test_expressions_get_their_casts(sql: str, expected: Expression) -> None:
    assert key(sql) == expected


def test_select_expressions_find_their_keys() -> None:
    plan = compiled(
        "SELECT lower(path) || '!' AS k, if(status < 400, 'ok', 'bad') AS class, count(*) + length(lower(path)) AS n"
        " FROM access GROUP BY lower(path), if(status < 400, 'ok', 'bad')"
    )
    k0, k1 = Column("#k0", STRING), Column("#k1", STRING)
    length = Call("cast", (Call("length", (k0,), INT),), BIGINT)
    assert [output.expression for output in plan.select] == [
        Call("concat", (k0, Literal("!", STRING)), STRING),
        k1,
        Call("+", (Column("#a0", BIGINT), length), BIGINT),
    ]
    assert [key.name for key in plan.keys] == ["lower(path)", "class"]


def test_names_of_the_log_that_are_words_of_sql() -> None:
    plan = compiled(
        "SELECT user, time, method, query, agent, count(*) FROM access GROUP BY ALL ORDER BY time, user"
    )
    assert [key.name for key in plan.keys] == ["user", "time", "method", "query", "agent"]
    quoted = compiled(
        "SELECT `User`, access.`TIME`, count(*) AS `the hits` FROM `access` GROUP BY USER, Time"
    )
    assert [output.name for output in quoted.select] == ["User", "TIME", "the hits"]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (r"'it''s'", "it's"),
        ("'a' \"b\"", "ab"),
        (r"'a\tb\\c\'d\.e'", "a\tb\\c'd.e"),
        (r"'100\%\_'", r"100\%\_"),
        (r"r'\d+\.'", r"\d+\."),
        (r"'\u00e9\101\0'", "éA\0"),
        ("'…'", "…"),
    ],
)
def test_string_literals_are_those_of_spark(source: str, value: str) -> None:
    assert condition(f"path = {source}") == Call("=", (PATH, Literal(value, STRING)), BOOLEAN)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("10 seconds", 10_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("interval 2 hours", 7_200_000_000),
        ("1.5 seconds", 1_500_000),
        ("250 Milliseconds", 250_000),
        ("1 week -1 day", 6 * 86_400_000_000),
    ],
)
def test_intervals(text: str, micros: int) -> None:
    assert parse_interval(text) == micros


def test_windows_slide_by_any_length_up_to_their_size() -> None:
    plan = compiled(
        "SELECT window.end AS e, count(*) FROM access GROUP BY window(time, '1 minute', '25 seconds')"
    )
    assert plan.window == WindowSpec(60_000_000, 25_000_000)
    assert plan.window.pane_us == 5_000_000
    assert plan.select[0] == Output("e", Column("#window_end", TIMESTAMP), TIMESTAMP)


def test_percentiles_with_several_fractions_are_an_array() -> None:
    plan = compiled("SELECT percentile_approx(request_time, array(0.5, 1, 0.999), 100) FROM access")
    assert plan.aggregates[0].fractions == ("0.5", "1", "0.999")
    assert plan.select[0].type == array(MICROS)


def test_a_large_decimal_is_a_cast_of_its_text() -> None:
    number = "12345678901234567890123.5"
    wide = decimal(24, 1)
    expected = Call("cast", (Literal(number, STRING),), wide)
    assert compiled(f"SELECT {number} AS n, count(*) FROM access").select[0].expression == expected


def test_a_chain_of_conditions_is_one_call() -> None:
    many = condition(" OR ".join(f"status = {code}" for code in range(1_000)))
    assert isinstance(many, Call)
    assert (many.function, len(many.arguments)) == ("or", 1_000)


def test_every_case_compiles_and_survives_the_wire() -> None:
    for expressions in AGGREGATES.values():
        for expression in expressions:
            compiled(f"SELECT {expression} FROM access")
    grouped = ", ".join(COLUMNS)
    for expressions in SCALARS.values():
        for expression in expressions:
            compiled(f"SELECT {expression}, count(*) FROM access GROUP BY {grouped}")


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_reports_compile(name: str) -> None:
    compiled(REPORTS[name])
    if name != "latency":
        query.compile(REPORTS[name], {"access": COMBINED})


def test_the_latency_report_says_what_the_format_lacks() -> None:
    with pytest.raises(
        QueryError, match="the log's format has no request_time; it has client_ip, ident, user"
    ):
        query.compile(REPORTS["latency"], {"access": COMBINED})


@pytest.mark.process
def test_the_child_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = REPORTS["latency"]
    assert query.compile_in_child(sql, SOURCES) == compiled(sql)
    with pytest.raises(QueryError) as caught:
        query.compile_in_child("SELECT count(*)\nFROM access WHERE stats = 1", SOURCES)
    assert (caught.value.line, caught.value.column) == (2, 19)
    assert "did you mean status?" in caught.value.hint
    assert "sqlglot" in sys.modules  # here, from the other tests; the child keeps it out of an agent


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sql")), ids=lambda path: path.stem)
def test_explain(path: Path) -> None:
    """Golden: rewrite the .txt beside a query by hand when the text is meant to change."""
    plan = compiled(path.read_text())
    assert explain(plan) + "\n" == path.with_suffix(".txt").read_text()
    assert to_json(plan).startswith('{\n  "version": "' + plans.digest(plan))


def test_explain_prints_every_function() -> None:
    assert text(key("CASE WHEN path RLIKE 'x' THEN -bytes ELSE CAST(d5 AS BIGINT) END")) == (
        "CASE WHEN (path RLIKE 'x') THEN (-bytes) ELSE CAST(d5 AS BIGINT) END"
    )
    assert text(
        condition("path ILIKE 'a/%' ESCAPE '/' OR NOT status IN (1, NULL) OR time <=> '2024-01-01'")
    ) == (
        "((path ILIKE 'a/%' ESCAPE '/') OR (NOT (status IN (1, NULL)))"
        " OR (time <=> TIMESTAMP '2024-01-01 00:00:00'))"
    )


VOCABULARY = """
SELECT FROM access WHERE GROUP BY HAVING ORDER LIMIT ( ) , * path bytes status time window 1 1.5 1e3 'x' + - /
% div = <> < >= <=> AND OR NOT IN LIKE RLIKE BETWEEN IS NULL CASE WHEN THEN ELSE END CAST AS INT DECIMAL(10,2)
sum( avg( min( approx_percentile( lower( if( coalesce( 0.5 array( DISTINCT FILTER OVER || :: . `a` ALL ; -- /*
*/ [ ] { } @ $ ? ! ~ & | \\ trim( BOTH extract( interval exists( union with t window( 10L 2.5BD r'' " true
date_trunc( 'hour' round( WINDOW lateral explode pivot join on using
"""
BASES = [
    "SELECT window , path , count( * ) AS hits FROM access WHERE status >= 500 AND path LIKE '/api/%' "
    "GROUP BY window( time , '10 seconds' ) , path HAVING hits > 100 ORDER BY hits DESC LIMIT 20",
    "SELECT CASE WHEN status > 1 THEN lower( path ) ELSE 'x' END AS k , approx_percentile( request_time , "
    "array( 0.5 , 0.9 ) ) FILTER ( WHERE bytes > 1.5 ) FROM access GROUP BY ALL ORDER BY ALL",
    "SELECT count( DISTINCT path , user ) + 1 , avg( CAST( bytes AS DECIMAL( 10 , 2 ) ) ) FROM access a "
    "WHERE a.status IN ( 1 , 2.5 ) OR time BETWEEN '2024-01-01' AND '2025-01-01'",
]


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    st.sampled_from(BASES),
    st.lists(
        st.tuples(st.integers(0, 60), st.booleans(), st.sampled_from(VOCABULARY.split())),
        min_size=1,
        max_size=5,
    ),
)
def test_a_text_is_a_plan_or_a_query_error(base: str, edits: list[tuple[int, bool, str]]) -> None:
    words = base.split(" ")
    for at, insert, word in edits:
        words[at % len(words) : at % len(words) + (not insert)] = [word]
    refused: QueryError | None = None
    try:
        compiled(" ".join(words))
    except QueryError as error:
        refused = error
    assert refused is None or refused.line >= 1 or "empty" in refused.reason
    assert "\n" not in str(refused)


class TestOpenSources:
    """A source with `*` in its schema takes any name as a column: the keys of lines that name their values."""

    SCHEMA: ClassVar = {
        "access": {
            "time": TIMESTAMP,
            "path": STRING,
            "a.b": BIGINT,
            "a.b.c.d.e": BIGINT,
            "x-y.0": STRING,
            "*": STRING,
        }
    }

    @pytest.mark.parametrize(
        ("sql", "columns", "outputs"),
        [
            ("SELECT a.b, count(*) AS n FROM access GROUP BY 1", ["a.b bigint"], ["a.b", "n"]),
            ("SELECT access.a.b, count(*) AS n FROM access GROUP BY a.b", ["a.b bigint"], ["a.b", "n"]),
            (
                "SELECT sum(A.B.C.D.E) AS s FROM access t WHERE t.a.b > 1",
                ["a.b bigint", "a.b.c.d.e bigint"],
                ["s"],
            ),
            ("SELECT `x-y.0` AS x FROM access GROUP BY x", ["x-y.0 string"], ["x"]),
            ("SELECT `x-y`.`0` AS x FROM access GROUP BY ALL", ["x-y.0 string"], ["x"]),
            (
                "SELECT New.Key AS k, max(length(new.key)) AS l FROM access GROUP BY 1",
                ["New.Key string"],
                ["k", "l"],
            ),
            (
                "SELECT one.two.three.four.five.six FROM access GROUP BY 1",
                ["one.two.three.four.five.six string"],
                None,
            ),
            (
                "SELECT window.start, count(*) AS n FROM access GROUP BY window(time, '1 day')",
                ["time timestamp"],
                None,
            ),
        ],
    )
    def test_names(self, sql: str, columns: list[str], outputs: list[str] | None) -> None:
        plan = query.compile(sql, self.SCHEMA)
        assert [f"{column.name} {column.type}" for column in plan.columns] == columns
        assert outputs is None or [output.name for output in plan.select] == outputs

    def test_canonical_names_and_aliases_are_no_keys(self) -> None:
        with pytest.raises(QueryError, match="there is no column scheme"):
            query.compile("SELECT scheme FROM access GROUP BY 1", self.SCHEMA)
        with pytest.raises(QueryError, match="alias of SELECT"):
            query.compile("SELECT path AS p FROM access WHERE p = '/' GROUP BY 1", self.SCHEMA)
        with pytest.raises(QueryError, match=r"other\.path is not known"):
            query.compile(
                "SELECT other.path FROM access GROUP BY 1", {"access": {"time": TIMESTAMP, "path": STRING}}
            )
