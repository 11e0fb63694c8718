"""`elf run` live: one query over files that grow, or over a pipe.

Enters: a query, files. Leaves: windows to sinks.
May import: run, work, formats, files, disk, jobmaster.
"""
