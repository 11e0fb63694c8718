"""How Spark finds the format `elf`: it imports the packages whose names begin with `pyspark_`, and takes their `DefaultSource`."""

from elf.sinks.spark.source import LakeSource as DefaultSource

__all__ = ["DefaultSource"]
