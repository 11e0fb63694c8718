SELECT window, path, status, count(*) AS hits
FROM access
WHERE status >= 500
GROUP BY window(time, '10 seconds'), path, status
ORDER BY hits DESC
LIMIT 20
