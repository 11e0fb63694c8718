"""The source of the compiler's tests, and tables of expressions that several of them use."""

from __future__ import annotations

from elf.jobmaster.compile import query
from elf.jobmaster.plan import codec
from elf.jobmaster.plan.plan import Plan
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

COMBINED: dict[str, SqlType] = {
    "client_ip": STRING,
    "ident": STRING,
    "user": STRING,
    "time": TIMESTAMP,
    "method": STRING,
    "path": STRING,
    "query": STRING,
    "protocol": STRING,
    "status": BIGINT,
    "bytes": BIGINT,
    "referer": STRING,
    "user_agent": STRING,
    "agent": STRING,
}
COLUMNS: dict[str, SqlType] = {
    **COMBINED,
    "request_time": MICROS,
    "small": INT,
    "ratio": DOUBLE,
    "flag": BOOLEAN,
    "d5": decimal(5, 2),
}
SOURCES = {"access": COLUMNS}


def compiled(sql: str, **values: str) -> Plan:
    """values: of its parameters. The plan comes back from the wire as it was."""
    plan = query.compile(sql, SOURCES, values)
    assert codec.decode(codec.encode(plan)) == plan
    return plan


W, W2 = "CAST(path AS DECIMAL(38, 10))", "CAST(path AS DECIMAL(38, 20))"

SCALARS: dict[str, list[str]] = {
    "literals": [
        *(
            "1",
            "-1",
            "3000000000",
            "-2147483648",
            "2147483648",
            "10L",
            "1.5",
            "0.5",
            ".5",
            "0.05",
            "1.50",
            "-1.5",
        ),
        *(
            "1e3",
            "1e10",
            "1.5e-7",
            "2.5BD",
            "3D",
            "12345678901234567890",
            "true",
            "r'\\d'",
            "'a\\tb'",
            "'\\.'",
        ),
        *(
            "'it''s'",
            "'a' 'b'",
            "'a\\\\b'",
            "'a\\%b'",
            '"q"',
            "'\\u0041'",
            "TIMESTAMP '2024-01-01 10:00:00.5'",
        ),
    ],
    "arithmetic": [
        *("bytes + 1", "small + 1", "small + bytes", "bytes * request_time", "request_time * 1000"),
        *(
            "request_time + 1",
            "request_time / 2",
            "bytes / 2",
            "small / 2",
            "request_time / bytes",
            "bytes % 7",
        ),
        *("small % 7", "request_time % 2", "request_time % 0.5", "bytes div 1000", "request_time div 2"),
        *("small div 2", "ratio + 1", "ratio * request_time", "d5 * d5", "d5 / d5", "'1' + 2", "path + 1"),
        *("path * 1.5", "- path", "-bytes", "-(1)", "abs(request_time)", "abs(small)", "abs(path)"),
        *("mod(bytes, 3)", f"{W} + {W2}", f"{W} * {W}", f"{W} / {W2}", f"{W} % {W2}", f"{W} - d5"),
    ],
    "comparison": [
        *("status = 200", "status = '200'", "request_time = '1.5'", "path = 5", "time >= '2024-01-01'"),
        *(
            "flag = 'true'",
            "status <=> NULL",
            "status != 200",
            "status <> 1",
            f"{W} = {W2}",
            "request_time > 1",
        ),
        *("status IN (200, 404)", "status NOT IN (1)", "status IN ('200', 404)", "path IN ('a', 1)"),
        *("request_time IN (1, 2.55)", "small IN (1, 3000000000)", "status BETWEEN 200 AND 299"),
        *("status NOT BETWEEN 200 AND 299", "path IS DISTINCT FROM 'a'"),
    ],
    "logic": [
        *("NOT flag", "flag AND status > 1", "flag OR flag AND flag", "status > 1 AND status < 3 AND flag"),
        *("path IS NULL", "path IS NOT NULL", "flag IS TRUE", "flag IS NOT FALSE", "NOT (path = 'a')"),
        *("path LIKE '/api/%'", "path NOT LIKE 'a'", "path ILIKE 'a%'", "path NOT ILIKE 'a'"),
        *("path LIKE 'a/%' ESCAPE '/'", "path RLIKE '^/api'", "path NOT RLIKE 'x'", "path REGEXP 'x'"),
        *("regexp_like(path, 'y')", "status LIKE '5%'"),
    ],
    "choices": [
        *("CASE WHEN status > 1 THEN 'a' ELSE 'b' END", "CASE WHEN flag THEN 1 END"),
        *("CASE status WHEN 200 THEN 1 ELSE 2.5 END", "CASE WHEN flag THEN 'x' ELSE 1 END"),
        *("CASE WHEN flag THEN 1 WHEN status > 1 THEN bytes ELSE NULL END", "if(flag, 1, 2.5)"),
        *(
            "CASE WHEN flag THEN request_time ELSE bytes END",
            "CASE WHEN flag THEN ratio ELSE request_time END",
        ),
        *(
            "if(status > 500, 'x', path)",
            "nullif(status, 200)",
            "nullif(path, '-')",
            "coalesce(request_time, 0)",
        ),
        *("coalesce(path, '-')", "coalesce(small, bytes, 1.5)", "coalesce(path, 1)", "nvl(path, 'x')"),
        *(
            "ifnull(path, 'x')",
            "isnull(path)",
            "isnotnull(path)",
            "coalesce(NULL, status)",
            "nullif(small, 1.5)",
        ),
        f"coalesce({W}, {W2})",
    ],
    "casts": [
        *("CAST(status AS STRING)", "CAST(path AS INT)", "CAST(query AS BIGINT)", "CAST(user AS DOUBLE)"),
        *("CAST(referer AS DECIMAL(10,2))", "CAST(time AS BIGINT)", "CAST(agent AS TIMESTAMP)"),
        *("CAST(small AS BOOLEAN)", "TRY_CAST(path AS INT)", "bytes::string", "CAST(1 AS BIGINT)"),
        *("CAST(1.5 AS DECIMAL(5,3))", "CAST(flag AS INT)", "CAST(lower(path) AS INTEGER)"),
        *("CAST(upper(path) AS LONG)", "CAST(lower(path) AS NUMERIC(5))", "CAST(lower(path) AS DEC(5,1))"),
        *("CAST(lower(path) AS DECIMAL)", "try_cast(lower(path) AS DOUBLE)"),
        *(
            "try_cast('x' AS TIMESTAMP)",
            "if(status = 404, CAST('NaN' AS DOUBLE), 1e0)",
            "TRIM(BOTH ')' FROM path)",
        ),
    ],
    "text": [
        *("lower(path)", "upper(path)", "lcase(path)", "ucase(path)", "trim(path)", "trim('x', path)"),
        *("TRIM(LEADING 'x' FROM path)", "TRIM(TRAILING FROM path)", "TRIM('y' FROM path)", "ltrim(path)"),
        *("rtrim('x', path)", "length(path)", "length(status)", "len(path)", "char_length(path)"),
        *("character_length(path)", "substring(path, 2)", "substring(path, 2, 3)", "substr(path, 2)"),
        *("split_part(path, '/', 2)", "split_part(path, '/', -1)", "concat(path, '?', query)"),
        *("concat(status, path)", "path || '?' || query", "path || status", "replace(path, 'a')"),
        *("replace(path, 'a', 'b')", "regexp_extract(path, '(a)')", "regexp_extract(path, '(a)', 0)"),
        *("regexp_replace(path, 'a', 'b')", "parse_url(referer, 'HOST')", "parse_url(referer, 'QUERY', 'q')"),
        "lower(status)",
    ],
    "parts": [
        *(
            "left(path, 2)",
            "left(path, 0)",
            "left(path, small)",
            "left(path, -1)",
            "right(path, 2)",
            "right(path, 0)",
        ),
        *(
            "right(path, 100)",
            "right(status, 1)",
            "contains(path, '/')",
            "contains(path, '%')",
            "startswith(path, '/a')",
        ),
        *("endswith(path, 'b')", "contains(path, '\\\\')", "endswith(status, '0')", "startswith(path, '_')"),
        "contains(path, '')",
    ],
    "pieces": [
        *("split(path, '/')[0]", "split(path, '/')[1]", "split(path, '/')[7]", "split(path, 'a|/', 2)[1]"),
        *("element_at(split(path, '/'), 1)", "element_at(split(path, '/'), -1)", "get(split(query, '='), 0)"),
        *("try_element_at(split(path, '/'), 3)", "split(status, '0')[0]", "split(path, '')[1]"),
        *(
            "substring_index(path, '/', 2)",
            "substring_index(path, '/', -1)",
            "substring_index(status, '0', 1)",
        ),
        *("concat_ws('-', path, status)", "concat_ws('-')", "concat_ws(path, 'a', NULL, query)"),
        *(
            "try_url_decode(path)",
            "md5(path)",
            "sha(path)",
            "sha1(path)",
            "sha2(path, 256)",
            "sha2(query, 0)",
        ),
        *(
            "crc32(path)",
            "crc32(path) % 8",
            "like(path, '/a%')",
            "like(path, 'a!%%', '!')",
            "ilike(path, 'A%')",
        ),
        *(
            "rlike(path, '^/api')",
            "regexp(path, 'x')",
            "NOT rlike(path, 'a')",
            "rlike(path, 'a') OR regexp(path, 'b')",
        ),
        *("path RLIKE ('^/')", "path NOT LIKE ('a')", "concat_ws('x', CAST(small AS STRING), 'y')"),
    ],
    "extremes": [
        *(
            "least(small, status)",
            "greatest(status, 300)",
            "least(request_time, 1)",
            "greatest(ratio, request_time)",
        ),
        *("least(path, query)", "greatest(path, 'b', query)", "greatest(flag, false)", "least(NULL, status)"),
        *("greatest(time, TIMESTAMP '2020-01-01')", "least(ratio, 1.5, bytes)", "greatest(d5, request_time)"),
        *(
            "width_bucket(ratio, 0, 10, 5)",
            "width_bucket(bytes, 0, 1000, 10)",
            "width_bucket(path, 0, 10, 5)",
        ),
        "width_bucket(request_time, 10, 0, status)",
    ],
    "numbers": [
        *("floor(request_time)", "ceil(request_time)", "ceiling(ratio)", "floor(ratio)", "floor(bytes)"),
        *("ceil(small)", "floor(path)", f"floor({W})", "round(request_time)", "round(request_time, 2)"),
        *("round(ratio, 2)", "round(bytes)", "round(small, -1)", f"round({W}, 5)", "round(d5, -1)"),
        *("round(d5, -5)", "round(path, 1)", "round(2.5)", "round(request_time, 9)"),
    ],
    "times": [
        *(
            "date_trunc('hour', time)",
            "date_trunc('DAY', time)",
            "date_trunc('day', '2024-01-01')",
            "hour(time)",
        ),
        *("minute(time)", "second(time)", "dayofweek(time)", "day(time)", "dayofmonth(time)", "month(time)"),
        *("year(time)", "unix_timestamp(time)", "hour(path)", "to_timestamp(path)", "to_timestamp(time)"),
        *("time + INTERVAL '5 minutes'", "time - INTERVAL '90 minutes'", "time + INTERVAL 5 MINUTES"),
        *("time + INTERVAL '1' MONTH", "INTERVAL '1 day 2 hours' + time", "time - INTERVAL '1.5 seconds'"),
        *("time + INTERVAL '-3 seconds'", "time + INTERVAL '2 years 3 months'", "time + INTERVAL '1 week'"),
        *(
            "time + INTERVAL '1 hour 30 seconds'",
            "time + INTERVAL -2 YEARS",
            "time + INTERVAL '20 milliseconds'",
        ),
        *("timestampadd(MINUTE, 5, time)", "timestampadd(month, small, time)", "dateadd(DAY, -1, time)"),
        *(
            "timestampdiff(MINUTE, TIMESTAMP '2024-01-01', time)",
            "datediff(hour, time, TIMESTAMP '2024-01-01')",
        ),
        *(
            "datediff(time, TIMESTAMP '2015-05-16 23:00:00')",
            "timestampdiff(YEAR, time, TIMESTAMP '2024-01-01')",
        ),
        *("date_format(time, 'yyyy-MM-dd HH:mm')", "date_format(path, 'EEE')", "from_unixtime(status)"),
        *("from_unixtime(bytes, 'yyyy/MM')", "from_utc_timestamp(time, 'Europe/Berlin')"),
        *("to_utc_timestamp(time, '+02:00')", "hour(from_utc_timestamp(time, 'America/New_York'))"),
        *("unix_timestamp(to_timestamp(path))", "date_trunc('DAY', time) - INTERVAL '1' HOUR"),
    ],
}
"""Scalar expressions over `COLUMNS`, by theme."""

AGGREGATES: dict[str, list[str]] = {
    "counts": [
        *(
            "count(*)",
            "count(path)",
            "count(path, user)",
            "count(DISTINCT path)",
            "count(DISTINCT path, user)",
        ),
        *("count_if(status >= 500)", "count(*) FILTER (WHERE status >= 500)", "approx_count_distinct(path)"),
    ],
    "sums": [
        *("sum(bytes)", "sum(small)", "sum(request_time)", "sum(ratio)", "sum(d5)", f"sum({W})", "sum(path)"),
        *("sum(bytes * request_time)", "sum(1)", "sum(1.5)", "avg(bytes)", "avg(small)", "avg(request_time)"),
        *("avg(ratio)", "avg(d5)", f"avg({W})", "mean(bytes)", "avg(path)", "sum(length(path))"),
        *("avg(request_time * 1000)", "sum(if(status >= 500, bytes, 0))"),
    ],
    "extremes": ["min(bytes)", "max(request_time)", "min(time)", "max(flag)", "min(ratio)", "MAX(BYTES)"],
    "values of lines": [
        *("min(path)", "max(path)", "min(lower(path))", "first(path)", "last(status)", "first(path, true)"),
        *(
            "first_value(path)",
            "last_value(request_time)",
            "any_value(flag)",
            "last(path) IGNORE NULLS",
            "mode(path)",
        ),
        *("mode(d5)", "max_by(path, status)", "min_by(ratio, time)", "max_by(status, path = 'a')"),
        *("max_by(path, request_time) FILTER (WHERE status = 200)", "first(path) FILTER (WHERE flag)"),
    ],
    "variances": [
        *("var_pop(bytes)", "var_samp(bytes)", "variance(bytes)", "stddev(bytes)", "stddev_samp(bytes)"),
        *("std(bytes)", "stddev_pop(request_time)", "stddev(path)", "stddev(request_time * 1000)"),
    ],
    "percentiles": [
        *("approx_percentile(bytes, 0.5)", "approx_percentile(request_time, 0.99)"),
        *("percentile_approx(request_time, 0.99)", "approx_percentile(request_time, array(0.5, 0.9))"),
        *("approx_percentile(ratio, 0.5, 100)", "approx_percentile(small, 1)", "approx_percentile(d5, 0.50)"),
    ],
    "expressions": [
        *("sum(bytes) / count(*)", "sum(bytes) * 8 / 60", "count(*) + 1", "round(avg(bytes), 2)"),
        *("round(100.0 * count_if(status >= 500) / count(*), 2)", "sum(bytes) / 1024 / 1024"),
        *("CAST(sum(bytes) AS DOUBLE) / 10", "sum(request_time) / count(*)", "avg(request_time) * 1000"),
        *("coalesce(sum(bytes), 0)", "if(count(*) > 1, 'a', 'b')", "sum(bytes) % 3", "- count(*)"),
        *("max(bytes) - min(bytes)", "sum(CASE WHEN status >= 500 THEN 1 ELSE 0 END)"),
    ],
}
"""Expressions over aggregates, by theme."""
