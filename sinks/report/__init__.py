"""`elf report`: questions to a lake over the long horizon, in Spark.

Enters: lakes. Leaves: tables, JSON lines, CSV, a page.
May import: lake, console, jobmaster.compile.
"""
