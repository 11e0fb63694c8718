"""The queries of `elf run --report NAME`. Each is a plain query over the source `access`."""

from __future__ import annotations

REPORTS: dict[str, str] = {
    "traffic": """\
SELECT window.start AS minute,
       count(*) AS hits,
       sum(bytes) AS bytes,
       approx_count_distinct(client_ip) AS visitors,
       round(100 * count_if(status >= 500) / count(*), 2) AS error_percent
FROM access
GROUP BY window(time, '1 minute')
""",
    "paths": """\
SELECT path,
       count(*) AS hits,
       sum(bytes) AS bytes,
       approx_count_distinct(client_ip) AS visitors,
       count_if(status >= 400) AS errors
FROM access
GROUP BY path
ORDER BY hits DESC
LIMIT 20
""",
    "errors": """\
SELECT status,
       path,
       count(*) AS hits,
       approx_count_distinct(client_ip) AS visitors,
       min(time) AS first_seen,
       max(time) AS last_seen
FROM access
WHERE status >= 400
GROUP BY status, path
ORDER BY hits DESC
LIMIT 20
""",
    "clients": """\
SELECT client_ip,
       count(*) AS hits,
       sum(bytes) AS bytes,
       approx_count_distinct(path) AS paths,
       count_if(status >= 400) AS errors
FROM access
GROUP BY client_ip
ORDER BY hits DESC
LIMIT 20
""",
    "latency": """\
SELECT path,
       count(request_time) AS hits,
       round(avg(request_time), 3) AS mean,
       approx_percentile(request_time, 0.5) AS p50,
       approx_percentile(request_time, 0.9) AS p90,
       approx_percentile(request_time, 0.99) AS p99,
       max(request_time) AS slowest
FROM access
GROUP BY path
HAVING hits > 0
ORDER BY p99 DESC
LIMIT 20
""",
}
"""Report name -> SQL, in the order in which to list them."""
