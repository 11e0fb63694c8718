"""`elf job try`, `promote` and `abort`. In: a query and a running job. Out: the job's windows beside those of the query.

May import what other commands import.
"""
