"""`spark.read.format("elf").load(LAKE)`: the newest revision of each pane, its keys and its mergeable state.

Spark makes these objects in Python processes of its own: `schema` in one, `partitions` in another, `read` on the executors. So
they hold no more than options, and look at the lake again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from elf.sinks.spark.partitions import grouped, read
from elf.sinks.spark.rollup import ABOUT
from elf.sinks.spark.tables import Options, Part, Snapshot, day_of, micros, options, table_of


class LakeSource(DataSource):
    """The format `elf`. Options: see `elf.sinks.spark.tables.OPTIONS`."""

    @classmethod
    def name(cls) -> str:
        return "elf"

    def schema(self) -> StructType:
        asked = options(self.options)
        snapshot = Snapshot(table_of(asked), asked.as_of)
        fields = [dict(field) for field in snapshot.fields(asked.columns)]
        versions = [
            {
                "job": v.job,
                "version": v.version,
                "columns": v.columns,
                "recipe": v.recipe,
                "span": v.span,
                "longer": v.longer,
            }
            for v in snapshot.versions_of(asked)
        ]
        fields[0]["metadata"] = {ABOUT: json.dumps(versions, separators=(",", ":"))}
        return StructType.fromJson({"type": "struct", "fields": fields})

    def reader(self, schema: StructType) -> DataSourceReader:
        return (PushedReader if _asks_for_filters() else LakeReader)(options(self.options), schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        from elf.sinks.spark.stream import LakeStream

        return LakeStream(options(self.options), schema)


def _asks_for_filters() -> bool:
    """Whether Spark's process that pushes filters calls. A reader that takes filters is refused by the others, with an error that
    asks the user for `spark.sql.python.filterPushdown.enabled`, and nothing else shows whether that is set."""
    return Path(sys._getframe(2).f_code.co_filename).name == "data_source_pushdown_filters.py"


class LakeReader(DataSourceReader):
    """Reads the files of the snapshot, several small ones by one task."""

    def __init__(self, asked: Options, schema: StructType) -> None:
        self.asked, self.schema = asked, schema

    def partitions(self) -> list[InputPartition]:
        return grouped(self._parts())

    def _parts(self) -> list[Part]:
        snapshot = Snapshot(table_of(self.asked), self.asked.as_of)
        parts = snapshot.parts(self.asked.since, self.asked.until)
        every_us = self.asked.every_us
        return parts if every_us is None else [replace(part, every_us=every_us) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition, self.schema)


class PushedReader(LakeReader):
    """Leaves out files by filters on `version`, `date` and `_pane_start`. Spark filters the rows again."""

    def __init__(self, asked: Options, schema: StructType) -> None:
        super().__init__(asked, schema)
        self.filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.filters = list(filters)
        return filters

    def _parts(self) -> list[Part]:
        return [part for part in super()._parts() if all(may_match(part, each) for each in self.filters)]


def may_match(part: Part, condition: Filter) -> bool:
    """Whether rows of the part may fulfil the filter, by its folders and the times of its panes."""
    name = ".".join(getattr(condition, "attribute", ()))
    if name == "version":
        low: Any = part.version
        high: Any = part.version
    elif name == "date":
        low = high = day_of(part)
    elif name == "_pane_start" and part.pane_us and part.every_us is None:
        from elf.sinks.lake import layout

        file = layout.parse(Path(part.path))
        starts = part.starts or (tuple(file.panes) if file else ())
        low, high = min(starts), max(starts)
    else:
        return True
    if isinstance(condition, In):
        return any(_within(low, high, EqualTo, value) for value in condition.value)
    return _within(low, high, type(condition), getattr(condition, "value", None))


def _within(low: Any, high: Any, kind: type[Filter], value: Any) -> bool:
    """Whether a value in [low, high] may compare so; true for what is not known."""
    if isinstance(value, datetime):
        value = micros(value)
    if low is None or type(value) is not type(low) or not isinstance(value, str | int | date):
        return True
    value = cast(Any, value)
    if kind is EqualTo:
        return bool(low <= value <= high)
    if kind in (GreaterThan, GreaterThanOrEqual):
        return bool(high >= value)
    if kind in (LessThan, LessThanOrEqual):
        return bool(low <= value)
    return True
