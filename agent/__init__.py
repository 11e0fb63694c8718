"""The process beside one web server. Enters: log files. Leaves: columns, then rows of partial aggregates.

May import everything below it: jobmaster, srt, cbt.
"""
