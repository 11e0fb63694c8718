"""ELF in Spark: raw logs as DataFrames, with the columns of `elf run`. Needs the extra `spark`; imports pyspark late."""

from elf.agent.spark.logs import count_lines, read_logs
from elf.sinks.report.spark import session

__all__ = ["count_lines", "read_logs", "session"]
