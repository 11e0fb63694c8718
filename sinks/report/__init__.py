"""`elf report`: queries over all that a lake stores, in Spark or without it.

Enters: lakes. Leaves: tables, JSON lines, CSV, Parquet files, a page.
May import: lake, results, console, jobmaster.
"""
