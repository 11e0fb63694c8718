SELECT window, lower(path) AS p, count(*) AS hits, avg(request_time) FILTER (WHERE status NOT IN (301, 302)),
       sum(bytes) * 8 / 60 AS bits, approx_percentile(request_time, array(0.5, 0.99)) AS q, count(DISTINCT client_ip) AS visitors
FROM access
WHERE time >= '2024-01-01' AND path LIKE '/api/%' AND request_time > 0.5
GROUP BY window(time, '1 minute', '10 seconds'), lower(path)
HAVING hits > 10
ORDER BY hits DESC, p NULLS LAST
LIMIT 5
