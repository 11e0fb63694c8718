"""A result as an Arrow table: columns that are held as arrays become Arrow's without a Python object for each value.

Imports pyarrow, so it is imported only when Arrow is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from elf.jobmaster.values.columns import CellColumn, ColumnRows, Texts
from elf.jobmaster.values.sql_types import WINDOW_TYPE
from elf.jobmaster.windows.result import ColumnInfo

TIME = pa.timestamp("us", tz="UTC")
_TYPES = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": TIME,
    WINDOW_TYPE: pa.struct([("start", TIME), ("end", TIME)]),
}


def table(columns: Sequence[ColumnInfo], windows: Iterable[Sequence[tuple[Any, ...]]]) -> Any:
    """A `pyarrow.Table` of the rows of all windows. O(cells), and O(distinct texts) for strings."""
    types = [arrow_type(column.type) for column in columns]
    parts: list[list[Any]] = [[] for _ in columns]
    texts: dict[int, Any] = {}
    for rows in windows:
        cells = rows.cells if isinstance(rows, ColumnRows) else None
        for i, type in enumerate(types):
            if cells is not None:
                parts[i].append(_array(cells[i], type, texts))
            else:
                parts[i].append(_from_values([row[i] for row in rows], type))
    schema = pa.schema([pa.field(c.name, type) for c, type in zip(columns, types, strict=True)])
    arrays = [pa.chunked_array(part, type) for part, type in zip(parts, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema).combine_chunks()


def arrow_type(name: str) -> Any:
    """The Arrow type of a result's column type."""
    if name.startswith("decimal("):
        precision, scale = name[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    if name.startswith("array<"):
        return pa.list_(arrow_type(name[6:-1]))
    return _TYPES[name]


def _from_values(values: list[Any], type: Any) -> Any:
    if pa.types.is_struct(type):
        values = [None if value is None else {"start": value[0], "end": value[1]} for value in values]
    return pa.array(values, type=type)


def _array(column: CellColumn, type: Any, texts: dict[int, Any]) -> Any:
    values = column.values
    if column.texts is not None:
        return _texts(column.texts, texts).take(pa.array(values, mask=values < 0))
    if values.ndim == 2:
        bounds = [pa.array(np.ascontiguousarray(values[:, i])).cast(TIME) for i in (0, 1)]
        return pa.StructArray.from_arrays(bounds, fields=list(type))
    if values.dtype == object or pa.types.is_null(type):
        return _from_values(column.to_python(), type)
    invalid = None if column.valid is None else ~column.valid
    if pa.types.is_decimal(type):
        return _decimals(values, invalid, type)
    return pa.array(values, mask=invalid, from_pandas=False).cast(type)


def _texts(texts: Texts, known: dict[int, Any]) -> Any:
    """A dictionary's values, made once for all columns and windows with codes of it."""
    if id(texts) not in known:
        known[id(texts)] = pa.array(texts.take(np.arange(len(texts.ends), dtype=np.int32)), type=pa.string())
    return known[id(texts)]


def _decimals(unscaled: Any, invalid: Any, type: Any) -> Any:
    """Unscaled int64 values as Arrow's 128 bits, low half first."""
    wide = np.stack([unscaled, unscaled >> 63], axis=1)
    validity = None if invalid is None else pa.array(~invalid).buffers()[1]
    return pa.Array.from_buffers(type, len(unscaled), [validity, pa.py_buffer(wide)])
