"""ELF in Spark: raw logs, and a lake in longer windows, as DataFrames, with the columns of `elf run`. Needs the extra `spark`; imports pyspark late."""

from elf.agent.spark.logs import count_lines, read_logs
from elf.sinks.report.spark import session
from elf.sinks.spark.rollup import merge_sql_of as merge_sql
from elf.sinks.spark.rollup import outputs_sql_of as outputs_sql
from elf.sinks.spark.rollup import rollup

__all__ = ["count_lines", "merge_sql", "outputs_sql", "read_logs", "rollup", "session"]
