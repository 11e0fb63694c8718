"""Raw logs as Spark's DataFrames, parsed by the project's tokenizer on Spark's executors.

Enters: names of log files. Leaves: rows, with the columns that `elf run` gives a query.
May import: formats, files, work, run, sinks.report, jobmaster.
"""
