"""Spark's type names as Arrow types, and result values as Arrow arrays. Imports pyarrow: only the lake's writer does that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from elf.sinks.lake.delta import split
from elf.sinks.lake.sketch import sketch, theta_sketch

_FLAT: dict[str, Callable[[], Any]] = {
    "void": pa.null,
    "boolean": pa.bool_,
    "int": pa.int32,
    "bigint": pa.int64,
    "double": pa.float64,
    "string": pa.string,
    "binary": pa.binary,
    "timestamp": lambda: pa.timestamp("us", tz="UTC"),
}


def arrow_type(text: str) -> Any:
    """The Arrow type of a Spark type, such as `decimal(38,6)`, `array<struct<a:string,b:bigint>>` or `map<int,bigint>`.

    Raises ValueError for a text that is no type. A struct's field names must not contain `,<>:`.
    """
    text = text.strip()
    if text in _FLAT:
        return _FLAT[text]()
    outer, bracket, rest = text.partition("<")
    if not bracket:
        outer, bracket, rest = text.partition("(")
        if outer == "decimal" and rest.endswith(")"):
            precision, scale = rest[:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
    elif rest.endswith(">"):
        parts = split(rest[:-1])
        if outer == "array" and len(parts) == 1:
            return pa.list_(arrow_type(parts[0]))
        if outer == "map" and len(parts) == 2:
            return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
        if outer == "struct":
            fields = [part.partition(":") for part in parts]
            return pa.struct([(name.strip(), arrow_type(kind)) for name, _, kind in fields])
    raise ValueError(f"not a Spark type: {text!r}")


def arrow_array(values: Sequence[Any], kind: Any) -> Any:
    """The values of one column as an Arrow array. Decimals are given as text, a map as a dict or pairs, a struct as a list, a
    sketch (binary) as its registers, a map, or as its hashes, a list.

    Raises pyarrow's ArrowInvalid if a value does not fit: a number never wraps around.
    """
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(
            kind
        )  # in C++, some 10 times faster than by Decimal objects
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else _sketch(value) for value in values], kind)
    if pa.types.is_nested(kind):
        return pa.array([_nested(value, kind) for value in values], kind)
    return pa.array(values, kind)


def _sketch(value: Any) -> bytes:
    return sketch(value) if isinstance(value, dict) else theta_sketch(value)


def _nested(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_nested(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return sorted((_nested(k, kind.key_type), _nested(v, kind.item_type)) for k, v in pairs)
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        items = [value[f.name] for f in fields] if isinstance(value, dict) else value
        return {f.name: _nested(item, f.type) for f, item in zip(fields, items, strict=True)}
    return Decimal(value) if pa.types.is_decimal(kind) else value
