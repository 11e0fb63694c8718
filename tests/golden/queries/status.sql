SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY status
