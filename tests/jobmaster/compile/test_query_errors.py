"""What is outside of the language: each refusal names the place, the reason and a way out."""

from __future__ import annotations

import pytest

from elf.errors import QueryError
from elf.jobmaster.compile import query
from tests.jobmaster.compile.query_cases import SOURCES

HERE = "▶"
"""Stands before the character that the error must point at."""

C = "SELECT count(*) FROM access"

REFUSED: list[tuple[str, str, str]] = [
    # statements and clauses
    (f"SELECT 1; {HERE}SELECT 2", "several statements", "send one SELECT"),
    (f"SELECT {HERE}path FROM access", "SELECT without an aggregate", "GROUP BY"),
    (f"SELECT {HERE}* FROM access", "SELECT without an aggregate", "count(*)"),
    (f"SELECT {HERE}*, count(*) FROM access", "* cannot be used here", "count(*)"),
    (f"SELECT DISTINCT {HERE}count(*) FROM access", "DISTINCT beside groups", "leave DISTINCT out"),
    ("SELECT DISTINCT path FROM access GROUP BY path", "DISTINCT beside groups", "leave DISTINCT out"),
    ("SELECT DISTINCT ON (path) path FROM access", "DISTINCT ON", "GROUP BY"),
    (f"SELECT DISTINCT path FROM access ORDER BY {HERE}status", "status is neither grouped", ""),
    (f"SELECT DISTINCT time, {HERE}* EXCEPT (time) FROM access", "* takes no EXCEPT", "name the columns"),
    (f"{C}, {HERE}other", "joins", "one source"),
    (f"{C} JOIN {HERE}b ON a = b", "joins", "one source"),
    (f"SELECT count(*) FROM (SELECT {HERE}1)", "subqueries", "access"),
    (f"{HERE}WITH t AS (SELECT 1) SELECT count(*) FROM t", "WITH", "SELECT"),
    (f"{C} UNION SELECT {HERE}1", "UNION", "one job"),
    (f"{HERE}INSERT INTO x SELECT 1", "INSERT is not a query", "SELECT"),
    (f"{HERE}DROP TABLE access", "DROP is not a query", "SELECT"),
    (f"\n {HERE}SELEC count(*) FROM access", "SELEC is not a query", "SELECT"),
    (f"{C}; {HERE}SHOW TABLES", "several statements", "send one SELECT"),
    ("SELECT (SELECT 1), count(*) FROM access", "subqueries", ""),
    ("(SELECT count(*) FROM access)", "SUBQUERY is not a query", "SELECT"),
    (f"{C} LIMIT 5 OFFSET {HERE}5", "OFFSET", "LIMIT"),
    (f"{C} LIMIT {HERE}status", "LIMIT takes a whole constant", "LIMIT 20"),
    (f"{C} LIMIT {HERE}1 + 1", "LIMIT takes a whole constant", "LIMIT 20"),
    (f"{C} SORT BY {HERE}1", "SORT BY", "ORDER BY"),
    (f"{C} QUALIFY {HERE}1", "QUALIFY", "LIMIT"),
    (f"SELECT count(*) FROM {HERE}access TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", ""),
    (f"{C} LATERAL VIEW {HERE}explode(x) t AS y", "LATERAL VIEW", "one source"),
    (f"SELECT {HERE}count(*)", "there is no FROM", "access"),
    (f"SELECT path, count(*) FROM access GROUP BY ROLLUP({HERE}path)", "ROLLUP", "each grouping"),
    # syntax
    (f"SELECT count(* {HERE}FROM access", "syntax error at 'FROM': a closing parenthesis is missing", ""),
    (f"SELECT count(*) FRM {HERE}access", "syntax error at 'access'", ""),
    (f"SELECT count(*) {HERE}FROM", "syntax error at 'FROM': the name of a source is missing", "one SELECT"),
    (f"SELECT count(*) FROM access {HERE}WHERE", "syntax error at 'WHERE': an expression is missing after it", ""),
    (f"SELECT count(*)\nFROM access\nWHERE status {HERE}>", "syntax error at '>'", ""),
    (f"SELECT count(*), {HERE}'abc FROM access", "has no end", "close it"),
    (f"{C} WHERE path = \n {HERE}/* all", "has no end", "close it"),
    (f"SELECT CAST(path {HERE}int), count(*) FROM access GROUP BY 1", "CAST takes a value and a type", ""),
    (f"SELECT CASE WHEN flag THEN {HERE}1, count(*) FROM access", "CASE has no END", ""),
    (f"{C} ORDER BY count(*) {HERE}descending", "at 'descending': this cannot stand here", ""),
    (f"SELECT FROM {HERE}access", "SELECT names nothing", "count(*)"),
    (f"{C} WHERE {HERE}status IN", "IN takes a list", "(200, 404)"),
    # names
    (f"SELECT count(*) FROM {HERE}acess", "no source acess", "did you mean access?"),
    (f"SELECT count(*) FROM {HERE}a.access", "name of a source", "access"),
    (f"SELECT count(*) FROM {HERE}range(5)", "FROM takes the name of a source, not range(5", "access"),
    ("SELECT @x, count(*) FROM access", "@ and $ stand for nothing", ":name"),
    (f"{C} WHERE {HERE}stats = 200", "no column stats in access", "did you mean status? the columns are client_ip"),
    (f"{C} WHERE {HERE}host = 'x'", "no column host", "the log's format has no host; it has client_ip"),
    (f"{C} WHERE {HERE}x.status = 200", "x.status is not known", "access.name"),
    (f"SELECT count(*) AS n FROM access WHERE {HERE}n > 1", "no column n", "alias of SELECT"),
    (f"SELECT path, count(*) FROM access GROUP BY path ORDER BY {HERE}status", "neither grouped", "GROUP BY it"),
    (f"SELECT path, count(*) FROM access GROUP BY path HAVING {HERE}status = 1", "neither grouped", ""),
    (f"SELECT {HERE}path, count(*) FROM access", "path is neither grouped nor aggregated", "GROUP BY it"),
    (f"SELECT sum(bytes) + {HERE}bytes FROM access", "bytes is neither grouped", ""),
    (f"SELECT path, {HERE}PATH, count(*) FROM access GROUP BY path", "two columns are named PATH", "AS"),
    (f"{C} GROUP BY {HERE}3", "SELECT has 1 items", "from 1"),
    (f"{C} GROUP BY path, {HERE}cast(NULL AS STRING), NULL".replace(HERE, ""), "NULL cannot be a key", ""),
    # windows
    (f"SELECT {HERE}window, count(*) FROM access", "there is no window", "GROUP BY window(time"),
    (f"{C} GROUP BY window(time, {HERE}'5 parsecs')", "not an interval", "'10 seconds'"),
    (f"{C} GROUP BY window(time, {HERE}'1 month')", "no fixed length", "days"),
    (f"{C} GROUP BY {HERE}window(time, '5 seconds', '10 seconds')", "slide is longer", ""),
    (f"{C} GROUP BY {HERE}window(time, '0 seconds')", "above zero", ""),
    (f"{C} GROUP BY {HERE}window(time, '400 days')", "366 days", ""),
    (f"{C} GROUP BY {HERE}window(time, '1 day', '1 second')", "86,400 panes", ""),
    (f"{C} GROUP BY {HERE}window(time, '10 microseconds')", "whole milliseconds", ""),
    (f"{C} GROUP BY window({HERE}path, '1 minute')", "event time", "window(time"),
    (f"{C} GROUP BY {HERE}window(time)", "2 or 3 arguments", "window(time, size[, slide])"),
    (f"{C} GROUP BY window(time, '10 seconds'), {HERE}window(time, '5 seconds')", "one window", "another job"),
    (f"{C} GROUP BY {HERE}session_window(time, '5 minutes')", "session_window", "window(time, '5 minutes')"),
    (f"SELECT {HERE}window.begin, count(*) FROM access GROUP BY window(time, '1 minute')", "no begin", "start"),
    (f"SELECT {HERE}window(time, '1 hour'), count(*) FROM access GROUP BY window(time, '1 minute')", "not the one", ""),
    (f"{C} GROUP BY window(time, '1 minute') ORDER BY {HERE}window DESC", "time order", ""),
    (f"{C} WHERE {HERE}window(time, '1 minute') IS NULL", "cannot be in WHERE", "GROUP BY"),
    # aggregates
    (f"SELECT {HERE}count(*) OVER (PARTITION BY path) FROM access", "OVER", "GROUP BY window"),
    (f"SELECT {HERE}max_by(status, path) FROM access", "no strings", "max(x)"),
    (f"SELECT {HERE}max_by(status) FROM access", "max_by takes 2 arguments", "max_by(path, request_time)"),
    (f"SELECT {HERE}first(path, 2) FROM access", "second argument is true or false", "first(x, true)"),
    (f"SELECT {HERE}mode(DISTINCT path) FROM access", "mode(DISTINCT …)", ""),
    (f"SELECT {HERE}sum(bytes) IGNORE NULLS FROM access", "IGNORE NULLS belongs to first and last", ""),
    (f"SELECT sum({HERE}count(*)) FROM access", "aggregate within an aggregate", ""),
    (f"{C} WHERE {HERE}count(*) > 1", "cannot be in WHERE", "HAVING"),
    (f"{C} GROUP BY {HERE}count(*)", "cannot be in GROUP BY", "SELECT"),
    (f"SELECT {HERE}sum(DISTINCT bytes) FROM access", "sum(DISTINCT", "count(DISTINCT x)"),
    (f"SELECT {HERE}count(DISTINCT *) FROM access", "count takes no *", "name the columns"),
    (f"SELECT {HERE}sum(*) FROM access", "sum takes no *", ""),
    (f"SELECT {HERE}count() FROM access", "count takes an argument", "count(*)"),
    (f"SELECT {HERE}sum(bytes, 1) FROM access", "sum takes 1 argument, not 2", ""),
    (f"SELECT {HERE}avg(time) FROM access", "number is expected", ""),
    (f"SELECT {HERE}count_if(status) FROM access", "condition is expected", ""),
    (f"SELECT {HERE}approx_percentile(bytes, 1.5) FROM access", "fraction 1.5 is outside 0..1", "0.99"),
    (f"SELECT {HERE}approx_percentile(bytes, status) FROM access", "must be a constant", "0.99"),
    (f"SELECT {HERE}approx_percentile(bytes) FROM access", "2 or 3 arguments, not 1", ""),
    (f"SELECT {HERE}approx_percentile(time, 0.5) FROM access", "of a timestamp", ""),
    (f"SELECT {HERE}approx_percentile(request_time * 1000, 0.5) FROM access", "at most 18 digits", "CAST(x AS DECIMAL(18"),
    (f"SELECT {HERE}approx_count_distinct(path, 0.01) FROM access", "1 argument", "1.6 %"),
    (f"SELECT {HERE}percentile(bytes, 0.5) FROM access", "percentile is not supported", "approx_percentile"),
    (f"SELECT {HERE}lower(path) FILTER (WHERE status = 1), count(*) FROM access", "FILTER belongs to an aggregate", ""),
    # scalar functions and operators
    (f"SELECT {HERE}lowr(path), count(*) FROM access GROUP BY 1", "lowr is not supported", "did you mean lower?"),
    (f"SELECT {HERE}locate('a', path), count(*) FROM access GROUP BY 1", "locate", "LIKE"),
    (f"SELECT {HERE}contains(path, query), count(*) FROM access GROUP BY 1", "quoted constant", ""),
    (f"SELECT {HERE}lower(path, 1), count(*) FROM access GROUP BY 1", "1 argument, not 2", ""),
    (f"SELECT {HERE}now(), count(*) FROM access", "now", "constant"),
    (f"{C} WHERE {HERE}path LIKE query", "quoted constant", ""),
    (f"{C} WHERE {HERE}path LIKE ANY ('a', 'b')", "LIKE ANY", "OR"),
    (f"{C} WHERE {HERE}path RLIKE '('", "pattern '(' cannot be used", ""),
    (f"{C} WHERE {HERE}path RLIKE '{'a' * 1001}'", "1,001 characters", ""),
    (f"SELECT {HERE}split_part(path, '/', 0), count(*) FROM access GROUP BY 1", "counted from 1", ""),
    (f"SELECT {HERE}round(bytes, status), count(*) FROM access GROUP BY 1", "whole constant", ""),
    (f"SELECT {HERE}parse_url(referer, 'host'), count(*) FROM access GROUP BY 1", "no part 'host'", "HOST"),
    (f"SELECT {HERE}date_trunc('fortnight', time), count(*) FROM access GROUP BY 1", "not a unit", "WEEK"),
    (f"SELECT {HERE}regexp_extract(path, 'a', 1), count(*) FROM access GROUP BY 1", "0 groups", "parentheses"),
    (f"SELECT {HERE}path[0], count(*) FROM access GROUP BY 1", "only the parts of split(…)", "split(path, '/')[1]"),
    (f"SELECT {HERE}split(path, '/'), count(*) FROM access GROUP BY 1", "split makes an array", "split(x, '/')[0]"),
    (f"SELECT {HERE}split(path, '/')[-1], count(*) FROM access GROUP BY 1", "counts from 0", "element_at"),
    (f"SELECT {HERE}element_at(split(path, '/'), 0), count(*) FROM access GROUP BY 1", "no part 0", ""),
    (f"SELECT {HERE}md4(path), count(*) FROM access GROUP BY 1", "md4 is not supported", ""),
    (f"SELECT {HERE}md5(status), count(*) FROM access GROUP BY 1", "md5: a text is expected", "STRING"),
    (f"SELECT {HERE}sha2(path, 100), count(*) FROM access GROUP BY 1", "no hash of 100 bits", "512"),
    (f"SELECT {HERE}least(path, 1), count(*) FROM access GROUP BY 1", "cannot be compared", "cast"),
    (f"SELECT {HERE}date_format(time, 'YYYY'), count(*) FROM access GROUP BY 1", "letter Y is not supported", "yyyy"),
    (f"SELECT {HERE}from_utc_timestamp(time, 'Mars'), count(*) FROM access GROUP BY 1", "no time zone", "Europe"),
    (f"SELECT {HERE}timestampadd(FORTNIGHT, 1, time), count(*) FROM access GROUP BY 1", "not a unit", "MINUTE"),
    (f"SELECT {HERE}path + INTERVAL '1 day', count(*) FROM access GROUP BY 1", "added to a string", "CAST"),
    (f"SELECT {HERE}time + INTERVAL '1 parsec', count(*) FROM access GROUP BY 1", "not an interval", "minutes"),
    (f"{C} WHERE {HERE}INTERVAL '1 day' > time", "only added to a timestamp", "time + INTERVAL"),
    (f"SELECT path || {HERE}status + 1, count(*) FROM access GROUP BY 1", "ambiguous", "parentheses"),
    (f"SELECT extract(hour FROM {HERE}time), count(*) FROM access GROUP BY 1", "EXTRACT", "hour(time)"),
    (f"{C} WHERE {HERE}status & 1 = 1", "not supported", ""),
    (f"{C} WHERE {HERE}status IN (SELECT 1)", "list of values", "subqueries"),
    (f"{C} WHERE EXISTS (SELECT {HERE}1)", "subqueries", ""),
    # types
    (f"{C} WHERE {HERE}5", "condition is expected here, not an int", "compare"),
    (f"{C} WHERE {HERE}ip = 'x'", "no column ip in access", "did you mean client_ip?"),
    (f"{C} WHERE {HERE}url = 'x'", "no column url in access", "did you mean path?"),
    (f"SELECT {HERE}p95(bytes) FROM access", "p95 is not supported", "use approx_percentile(x, 0.95)"),
    (f"{C} WHERE {HERE}status", "condition is expected here, not a bigint", "compare"),
    (f"{C} WHERE {HERE}path AND flag", "AND joins conditions", "compare"),
    (f"{C} WHERE flag AND {HERE}status", "this is a bigint", "compare"),
    (f"{C} WHERE {HERE}status = 'abc'", "'abc' is not a valid bigint", ""),
    (f"{C} WHERE {HERE}time > 'yesterday'", "'yesterday' is not a valid timestamp", "'2024-05-17 10:05:03'"),
    (f"{C} WHERE {HERE}time = 5", "cannot be compared", "cast"),
    (f"SELECT {HERE}time + 1, count(*) FROM access GROUP BY 1", "does not take a timestamp", "unix_timestamp"),
    (f"SELECT CAST({HERE}status AS DATE), count(*) FROM access GROUP BY 1", "type DATE", "date_trunc"),
    (f"SELECT CAST({HERE}time AS DOUBLE), count(*) FROM access GROUP BY 1", "timestamp cannot become double", "BIGINT"),
    (f"SELECT CAST({HERE}path AS DECIMAL(40, 2)), count(*) FROM access GROUP BY 1", "DECIMAL(40, 2)", "38"),
    (f"SELECT {HERE}ratio div 2, count(*) FROM access GROUP BY 1", "div", "floor"),
    (f"{C} WHERE status = {HERE}{'1' * 41}", "more than 38 digits", "exponent"),
    (f"SELECT 1, count(*) FROM access GROUP BY {HERE}request_time * 2", "18 digits", ""),
    # size
    (f"SELECT {'(' * 50}{HERE}(1{')' * 51}, count(*) FROM access", "50 levels deep", "split"),
    (f"SELECT {'NOT ' * 50}{HERE}NOT flag, count(*) FROM access", "50 levels deep", "split"),
]  # fmt: skip


def place(marked: str) -> tuple[str, int, int]:
    sql, at = marked.replace(HERE, ""), marked.find(HERE)
    if at < 0:
        return sql, 0, 0
    return sql, sql.count("\n", 0, at) + 1, at - sql.rfind("\n", 0, at)


@pytest.mark.parametrize(("marked", "reason", "hint"), REFUSED, ids=range(len(REFUSED)))
def test_refused(marked: str, reason: str, hint: str) -> None:
    sql, line, column = place(marked)
    with pytest.raises(QueryError) as caught:
        query.compile(sql, SOURCES)
    error = caught.value
    assert reason in error.reason
    assert hint in error.hint
    assert "\n" not in str(error)
    if line:
        assert (error.line, error.column) == (line, column)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "empty"),
        (" \n ; -- nothing\n", "empty"),
        ("SELECT count(*) FROM access WHERE path = '" + "x" * 65_536 + "'", "the limit is 65,536"),
        (
            f"SELECT {', '.join(f'sum(bytes + {n}) AS s{n}' for n in range(300))} FROM access",
            "the limit is 512",
        ),
        ("SELECT count(*) FROM access WHERE " + " + ".join(["status"] * 300) + " > 1", "levels deep"),
        ("SELECT count(*) FROM access WHERE " + " OR ".join(["1=1"] * 8_000), "more than 20,000 operations"),
        ("SELECT count(*) FROM access WHERE path = '\udc80'", "UTF-8"),
    ],
    ids=["empty", "blank", "long", "accumulators", "deep", "large", "not utf-8"],
)
def test_refused_as_a_whole(sql: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        query.compile(sql, SOURCES)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT if(status = 404, cast('NaN' as double), 1e0) AS x, count(*) FROM access "
        "GROUP BY if(status = 404, cast('NaN' as double), 1e0)",
        "SELECT trim(both ')' from path), trim(leading '(' from path), count(*) FROM access GROUP BY 1, 2",
        "SELECT try_cast('x' as timestamp), count(*) FROM access WHERE path = ';' OR path IN ('-', 'NOT')",
        "SELECT window(time, '1 minute').start, count(*) FROM access GROUP BY 1",
        "SELECT window.end AS e, count(*) FROM access GROUP BY window(time, '1 minute').start",
    ],
)
def test_not_refused(sql: str) -> None:
    """Texts with brackets, semicolons or signs in them, NaN as a key, and a window named by its beginning."""
    query.compile(sql, SOURCES)


def test_the_child_is_not_asked_about_text_that_is_none() -> None:
    with pytest.raises(QueryError, match="UTF-8"):
        query.compile_in_child("SELECT '\udc80'", SOURCES)
