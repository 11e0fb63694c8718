"""Parts of a table as Spark's partitions: what one task reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from elf.sinks.spark.rows import batches, day_of_version
from elf.sinks.spark.tables import Part

PARTITION_BYTES = 32 << 20
"""Compressed bytes of files that one task reads: some million rows."""


class Parts(InputPartition):
    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


def grouped(parts: list[Part]) -> list[InputPartition]:
    """Small parts together, and all of a day if its panes are to be merged."""
    found: list[list[Part]] = []
    room = 0
    for part in sorted(parts, key=day_of_version) if any(part.every_us for part in parts) else parts:
        is_same = bool(found and part.every_us and day_of_version(found[-1][-1]) == day_of_version(part))
        if (part.size > room and not is_same) or not found:
            found.append([])
            room = PARTITION_BYTES
        found[-1].append(part)
        room -= part.size
    return [Parts(each) for each in found]


def read(partition: InputPartition, schema: StructType) -> Iterator[Any]:
    """The rows of a partition; Spark asks for one without parts where there are none at all."""
    parts = partition.parts if isinstance(partition, Parts) else []
    return batches(parts, to_arrow_schema(schema, timezone="UTC"))
