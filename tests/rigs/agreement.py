"""Queries whose answers ELF and Spark must agree on, with the same query text."""

SCALARS = [
    "bytes + 1", "bytes - 100", "bytes * 3", "bytes / 7", "bytes % 7", "bytes div 7", "-bytes", "abs(100 - bytes)",
    "CAST(request_time * 1000 AS DECIMAL(18,6))", "CAST(request_time + bytes AS DECIMAL(18,3))",
    "CAST(request_time / 3 AS DECIMAL(18,9))", "request_time % 0.5", "round(request_time, 1)",
    "floor(request_time)", "round(bytes, -2)", "round(bytes / 7, 2)", "floor(bytes / 7)", "status = 200", "status <> 200",
    "status BETWEEN 300 AND 499", "status IN (200, 500)", "status NOT IN (200, 500)", "bytes IS NULL", "path IS NOT NULL",
    "path LIKE '/api/%'", "path LIKE '%s'", "path LIKE '/_'", "path NOT LIKE '%api%'", "path ILIKE '/API/%'",
    "path RLIKE '^/[a-z]+/[a-z]+$'", "status >= 400 AND bytes > 200", "status >= 400 OR bytes > 200", "NOT (status >= 400)",
    "CASE WHEN status < 400 THEN 'ok' WHEN status < 500 THEN 'client' ELSE 'server' END",
    "CASE status WHEN 200 THEN 1 WHEN 404 THEN 2 END", "if(bytes > 1000, 'big', 'small')", "coalesce(user, 'nobody')",
    "coalesce(bytes, 0)", "nullif(method, 'GET')", "CAST(status AS STRING)", "CAST(bytes AS DOUBLE)",
    "CAST(request_time AS BIGINT)", "CAST(request_time AS DECIMAL(10,1))", "CAST(split_part(path, '/', 3) AS INT)",
    "try_cast(split_part(path, '/', 4) AS BIGINT)", "CAST(status = 200 AS INT)", "lower(path)", "upper(user_agent)",
    "trim(concat(' ', path, ' '))", "length(path)", "length(user_agent)", "substring(path, 2, 3)", "substring(path, -3)",
    "substring(path, 0, 2)", "split_part(path, '/', 2)", "split_part(path, '/', -1)", "concat(method, ' ', path)",
    "method || ':' || status", "replace(path, '/', '.')", "regexp_extract(path, '^/([^/]+)', 1)",
    "regexp_replace(path, '[0-9]+', 'N')", "regexp_replace(path, '(a)(.)', '$2$1')", "parse_url(referer, 'HOST')",
    "parse_url(referer, 'PATH')", "parse_url(referer, 'QUERY')", "parse_url(referer, 'QUERY', 'a')",
    "parse_url(referer, 'PROTOCOL')", "parse_url(referer, 'REF')", "date_trunc('MINUTE', time)", "date_trunc('HOUR', time)",
    "date_trunc('DAY', time)", "hour(time)", "minute(time)", "dayofweek(time)", "unix_timestamp(time)",
    "least(bytes, 1000, status)", "greatest(request_time, 0.5)", "width_bucket(request_time, 0, 2, 8)",
    "split(path, '/')[1]", "element_at(split(path, '/'), -1)", "substring_index(client_ip, '.', 2)", "md5(path)",
    "concat_ws('-', user, method)", "sha2(user_agent, 256)", "crc32(path) % 7", "try_url_decode(query)",
    "date_format(time, 'EEE dd/MMM HH:mm')", "from_utc_timestamp(time, 'Europe/Berlin')", "time + INTERVAL '5 minutes'",
    "timestampdiff(SECOND, TIMESTAMP '2015-01-01', time)", "rlike(path, '^/a')",
    "bytes > '500'", "status = '200'", "request_time > 1.5", "request_time < bytes", "bytes / 0", "bytes % 0", "user = 'ann'",
]  # fmt: skip
"""Each is grouped by: so the values, their NULLs and their type are compared."""

AGGREGATES = [
    "count(*)", "count(bytes)", "count(user)", "sum(bytes)", "sum(request_time)", "min(bytes)", "max(bytes)",
    "min(request_time)", "max(request_time)", "min(time)", "max(time)", "avg(bytes)", "avg(request_time)", "sum(bytes / 7)",
    "avg(bytes / 7)", "min(bytes / 7)", "max(bytes / 7)", "count_if(status >= 400)", "count(*) FILTER (WHERE status >= 400)",
    "sum(bytes) FILTER (WHERE method = 'GET')", "count(DISTINCT client_ip)", "count(DISTINCT path, status)",
    "count(DISTINCT user) FILTER (WHERE status = 200)", "var_pop(bytes)", "var_samp(bytes)", "stddev(bytes)",
    "stddev_pop(request_time)", "variance(bytes / 7)", "sum(status + 1)", "sum(1)", "count(1)", "sum(request_time * 1000)",
    "100 * sum(bytes) / count(*)", "sum(bytes) / sum(request_time)", "max(bytes) - min(bytes)",
    "round(avg(request_time), 3)", "coalesce(sum(bytes), 0) + 1",
]  # fmt: skip

TIME, SLOW = "struct(time, path IS NULL, path)", "struct(-request_time, path IS NULL, path)"
EQUIVALENT = [
    ("min(path)", "min(path)"),
    ("max(user)", "max(user)"),
    ("first(path)", f"min_by(path, {TIME})"),
    ("last(path, true)", "min_by(path, struct(-unix_micros(time), path)) FILTER (WHERE path IS NOT NULL)"),
    ("max_by(path, request_time)", f"min_by(path, {SLOW}) FILTER (WHERE request_time IS NOT NULL)"),
    ("mode(path)", "mode(path, true)"),
    ("mode(status)", "mode(status, true)"),
]
"""Aggregates whose ties Spark breaks by the order of arrival, and how to ask Spark for the smallest value."""

WHOLE = [
    "SELECT count(*) AS n FROM access",
    "SELECT count(*) AS n, sum(bytes) AS b FROM access WHERE status = 999",
    "SELECT status, count(*) AS n FROM access GROUP BY status",
    "SELECT status AS s, method AS m, count(*) AS n FROM access GROUP BY s, m",
    "SELECT status, method, count(*) AS n FROM access GROUP BY 1, 2",
    "SELECT status, method, count(*) AS n FROM access GROUP BY ALL",
    "SELECT count(*) AS n FROM access GROUP BY status HAVING n > 50",
    "SELECT path, count(*) AS n FROM access GROUP BY path HAVING sum(bytes) > 10000 AND path LIKE '/a%'",
    "SELECT path, status div 100 AS class, count(*) AS n, sum(bytes) AS b FROM access WHERE path IS NOT NULL "
    "GROUP BY path, status div 100",
    "SELECT window, count(*) AS n FROM access GROUP BY window(time, '10 seconds')",
    "SELECT window.start AS s, window.end AS e, status, count(*) AS n FROM access GROUP BY window(time, '10 seconds'), status",
    "SELECT window, status, count(*) AS n, sum(bytes) AS b FROM access GROUP BY window(time, '30 seconds', '10 seconds'), status",
    "SELECT window, count(DISTINCT client_ip) AS v FROM access GROUP BY window(time, '25 seconds', '10 seconds')",
    "SELECT window, method, min(bytes) AS lo, max(bytes) AS hi FROM access GROUP BY window(time, '1 minute'), method",
    "SELECT window, path, count(*) AS n FROM access WHERE status >= 400 GROUP BY window(time, '1 minute', '20 seconds'), path "
    "HAVING n > 2",
    "SELECT hour(window.start) AS h, count(*) AS n FROM access GROUP BY window(time, '1 hour')",
    "SELECT upper(method) AS m, concat(path, '!') AS p, max(bytes) AS b FROM access GROUP BY upper(method), concat(path, '!')",
    "SELECT * FROM access",
    "SELECT time, path AS p, length(p) AS n, n + 1 AS m, bytes / 7 FROM access WHERE status >= 400 OR user IS NULL",
    "SELECT DISTINCT method, status div 100 AS class FROM access",
    "SELECT DISTINCT user FROM access WHERE bytes > 100",
    "SELECT DISTINCT date_trunc('MINUTE', time) AS minute, request_time > 0.5 AS slow FROM access",
]

ORDERED = [
    # (query without LIMIT per window, partition, order, limit)
    ("SELECT path, status, count(*) AS n FROM access GROUP BY path, status", "", "n DESC, path, status", 7),
    ("SELECT user, path, sum(bytes) AS b FROM access GROUP BY user, path", "", "user, b DESC, path", 9),
    ("SELECT user, path, sum(bytes) AS b FROM access GROUP BY user, path", "", "user DESC, path ASC, b", 9),
    (
        "SELECT window, path, count(*) AS n FROM access GROUP BY window(time, '20 seconds'), path",
        "window",
        "n DESC, path",
        3,
    ),
    (
        "SELECT window, path, avg(request_time) AS t FROM access GROUP BY window(time, '40 seconds', '20 seconds'), path",
        "window",
        "t DESC NULLS LAST, path",
        4,
    ),
    ("SELECT time, user, path, bytes FROM access", "", "user, bytes DESC, time, path", 40),
    (
        "SELECT time, user, path, bytes FROM access",
        "",
        "user DESC NULLS FIRST, path ASC NULLS LAST, bytes, time",
        40,
    ),
    (
        "SELECT request_time, time, path FROM access WHERE status >= 300",
        "",
        "request_time DESC, time, path",
        25,
    ),
    ("SELECT DISTINCT path, status FROM access", "", "status DESC, path", 5),
]
