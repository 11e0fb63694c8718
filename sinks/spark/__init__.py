"""The lake as a data source of Spark: `spark.read.format("elf")`, `spark.readStream.format("elf")`, and longer
windows of what these read.

Enters: a lake's folder. Leaves: data frames of its state, and of queries' results.
May import: sinks.lake, jobmaster.plan, jobmaster.values.
"""
