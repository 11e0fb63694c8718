"""`elf report`: queries over all that a lake stores, in Spark.

Enters: lakes. Leaves: tables, JSON lines, CSV, a page.
May import: lake, console, jobmaster.compile.
"""
