SELECT count(*), stddev(ratio), max(time) FROM access
