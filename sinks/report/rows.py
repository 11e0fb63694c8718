"""Rows from Spark: data frames as titled tables of plain values, fetched while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.layout import HOUR_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATOMS = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")


class Section(msgspec.Struct, frozen=True):
    """A titled table of a report: rows as in `Window`, to be read once. `chart`: "", "columns", "stacked", "lines", "quantiles"
    or "bars". partial: the times of steps of which there are lines of a part only. lacking: those in which windows lack an agent.
    adds_up: the values of longer steps are the sums of these, or the shares of such sums."""

    name: str
    title: str
    columns: tuple[ColumnInfo, ...]
    rows: Iterable[tuple[Any, ...]]
    chart: str = ""
    note: str = ""
    step_us: int = HOUR_US
    partial: tuple[int, ...] = ()
    lacking: tuple[int, ...] = ()
    adds_up: bool = False

    @property
    def incomplete(self) -> tuple[int, ...]:
        """The times of all steps that are not whole."""
        return tuple(sorted({*self.partial, *self.lacking}))


Rows = tuple[tuple[ColumnInfo, ...], Iterable[tuple[Any, ...]]]
"""Columns, and rows to be read once."""


def rows_of(frame: DataFrame) -> Rows:
    """A data frame's rows. Times come as microseconds, whatever the time zone of this machine is."""
    columns = [ColumnInfo(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    plain = frame.toDF(*(f"c{i}" for i in range(len(columns))))
    plain = plain.selectExpr(*(_portable(f"c{i}", column.type) for i, column in enumerate(columns)))
    shown = tuple(ColumnInfo(column.name, _shown_type(column.type)) for column in columns)
    return shown, _rows(plain, shown)


def _rows(frame: DataFrame, columns: Sequence[ColumnInfo]) -> Iterator[tuple[Any, ...]]:
    windows = [i for i, column in enumerate(columns) if column.type == WINDOW_TYPE]
    for row in frame.toLocalIterator(prefetchPartitions=True):
        cells = list(row)
        for at in windows:
            cells[at] = None if cells[at] is None else tuple(cells[at])
        yield tuple(cells)


def _is_plain(kind: str) -> bool:
    """Whether Spark gives Python the same value of this type on every machine."""
    inner = kind[6:-1] if kind.startswith("array<") else kind
    return inner in _ATOMS or inner.startswith("decimal(")


def _shown_type(kind: str) -> str:
    return kind if _is_plain(kind) or kind in ("timestamp", WINDOW_TYPE) else "string"


def _portable(name: str, kind: str) -> str:
    """SQL that converts a column to such a value, or to text if the sinks cannot print its type."""
    if kind == "timestamp":
        return f"unix_micros({name}) AS {name}"
    if kind == WINDOW_TYPE:
        both = f"array(unix_micros({name}.start), unix_micros({name}.end))"
        return f"CASE WHEN {name} IS NOT NULL THEN {both} END AS {name}"
    if _is_plain(kind):
        return name
    if kind.startswith(("map<", "struct<", "array<")):
        return f"to_json({name}) AS {name}"
    return f"CAST({name} AS string) AS {name}"
