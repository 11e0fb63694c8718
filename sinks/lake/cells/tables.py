"""Panes as Arrow tables: columns that are the pane's own, then `_empty`, then the state of its groups.

    frames -> MessagePack of each column -> buffers (`_cells`), or values where a column is no number and no text -> tables

Texts that a pane repeats in its rows are codes of a dictionary, and the writer of Parquet takes them as they are. pyarrow's
`compute` is not needed: a writer's process lives for a tenth of a second. Imports pyarrow.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from elf.jobmaster.windows.result import StateColumn, whole_parts
from elf.sinks.lake.cells import _cells
from elf.sinks.lake.frames import PaneFrame, PartFrame, Schema
from elf.sinks.lake.types import arrow_array, arrow_type

ROWS_PER_GROUP = 1 << 16
SKETCHES_PER_GROUP = 1 << 12
"""Rows of a table whose rows have sketches: 16 MiB of them for each such column."""
SHORT_BYTES = 1 << 12
PARTITIONS = ("version", "date")
CODED = pa.dictionary(pa.int32(), pa.string())

_TIMESTAMP = "timestamp"
PANE_COLUMNS: tuple[tuple[str, str, Callable[[PaneFrame], Any]], ...] = (
    ("_pane_start", _TIMESTAMP, lambda p: p.start if p.end > p.start else None),
    ("_pane_end", _TIMESTAMP, lambda p: p.end if p.end > p.start else None),
    ("_status", "string", lambda p: p.status),
    ("_revision_epoch", "bigint", lambda p: p.epoch),
    ("_revision_node", "string", lambda p: p.node),
    ("_revision_n", "bigint", lambda p: p.n),
    ("_digest", "string", lambda p: p.digest),
    ("_agents_reporting", "int", lambda p: p.agents_reporting),
    ("_agents_expected", "int", lambda p: p.agents_expected),
    ("_lines_read", "bigint", lambda p: p.lines.read),
    ("_lines_parsed", "bigint", lambda p: p.lines.parsed),
    ("_lines_rejected", "bigint", lambda p: p.lines.rejected),
    ("_lines_late", "bigint", lambda p: p.lines.late),
    ("_not_converted", "map<string,bigint>", lambda p: p.lines.not_converted or None),
)


Panes = Mapping[PaneFrame, Iterable[PartFrame]]


def stored_names(columns: Iterable[StateColumn]) -> list[str]:
    """The columns' names within a file: their own names, unless a pane column, a folder or another column has that name.

    Names are compared without case, as Spark does: a key `date` is stored as `date_1`, because `date=` is a folder.
    """
    taken = {name.lower() for name, _, _ in PANE_COLUMNS} | set(PARTITIONS) | {"_empty"}
    names = []
    for column in columns:
        name, n = column.name, 0
        while name.lower() in taken:
            n += 1
            name = f"{column.name}_{n}"
        taken.add(name.lower())
        names.append(name)
    return names


def file_schema(columns: Iterable[StateColumn]) -> Any:
    """The Arrow schema of tables to write: pane columns, whose texts are coded, `_empty`, state columns."""
    columns = tuple(columns)
    fields = [(name, CODED if kind == "string" else arrow_type(kind)) for name, kind, _ in PANE_COLUMNS]
    fields.append(("_empty", pa.bool_()))
    named = zip(stored_names(columns), columns, strict=True)
    return pa.schema(fields + [(name, arrow_type(column.type)) for name, column in named])


def has_no_groups(parts: Iterable[PartFrame]) -> bool:
    """Whether a pane has no groups. Only short parts are decoded: an empty column has at most 5 bytes."""
    return not any(
        len(part.values) > SHORT_BYTES or any(msgspec.msgpack.decode(part.values)) for part in parts
    )


Cells = msgspec.Raw | list[Any]
"""The values of a column in some rows: encoded, or decoded."""
_COLUMNS = msgspec.msgpack.Decoder(list[msgspec.Raw])


def pane_tables(schema: Schema, panes: Panes) -> Iterator[Any]:
    """The panes' rows, in tables of about `ROWS_PER_GROUP`: one row per group, or one marked `_empty`."""
    arrow = file_schema(schema.columns)
    most = ROWS_PER_GROUP if pa.binary() not in arrow.types else SKETCHES_PER_GROUP
    heads: list[tuple[PaneFrame, int]] = []
    columns: list[list[Cells]] = [[] for _ in schema.columns]
    rows = 0
    for pane, groups, values in _decoded(panes, len(columns), most):
        heads.append((pane, groups))
        for column, added in zip(columns, values, strict=True):
            column.append(added if groups else [None])
        rows += max(groups, 1)
        if rows >= most:
            yield _table(heads, columns, arrow)
            heads, columns, rows = [], [[] for _ in schema.columns], 0
    if heads:
        yield _table(heads, columns, arrow)


def _decoded(panes: Panes, width: int, most: int) -> Iterator[tuple[PaneFrame, int, list[Cells]]]:
    """Each part of each pane, of `most` groups at most: the pane, the number of groups, and their values, encoded as they came if
    the part is whole and not too large. A pane without groups has one empty part."""
    for pane, parts in panes.items():
        none = True
        for groups, columns in _whole(parts, most):
            none = False
            yield pane, groups, columns
        if none:
            yield pane, 0, [[] for _ in range(width)]


def _whole(parts: Iterable[PartFrame], most: int) -> Iterator[tuple[int, list[Cells]]]:
    held: list[PartFrame] = []
    for part in parts:
        held.append(part)
        if part.more:
            continue
        columns = _COLUMNS.decode(part.values) if len(held) == 1 else []
        groups = _cells.count(columns[0]) if columns else 0
        if 0 < groups <= most:
            yield groups, [*columns]
        elif groups or len(held) > 1:
            for values in whole_parts((each.values, each.more) for each in held):
                for at in range(0, len(values[0]) if values else 0, most):
                    some = [column[at : at + most] for column in values]
                    yield len(some[0]), [*some]
        held = []


def _table(heads: list[tuple[PaneFrame, int]], columns: list[list[Cells]], arrow: Any) -> Any:
    counts = [max(groups, 1) for _, groups in heads]
    arrays = [
        _repeated([read(pane) for pane, _ in heads], counts, arrow_type(kind))
        for _, kind, read in PANE_COLUMNS
    ]
    arrays.append(_repeated([not groups for _, groups in heads], counts, pa.bool_()))
    types = arrow.types[len(arrays) :]
    arrays += [column_of(cells, kind) for cells, kind in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow)


def _repeated(values: Sequence[Any], counts: Sequence[int], kind: Any) -> Any:
    """Each value so often, as an array."""
    rows = sum(counts)
    if kind == pa.string():
        return _coded(values, counts, rows)
    if pa.types.is_map(kind):
        if not any(values):
            return pa.nulls(rows, kind)
    elif len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], kind), rows)
    elif kind != pa.bool_() and None not in values:
        form = struct.Struct("<i" if kind == pa.int32() else "<q").pack
        data = b"".join(form(value) * count for value, count in zip(values, counts, strict=True))
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])
    places = array("i", [at for at, count in enumerate(counts) for _ in range(count)])
    return pa.array(values, kind).take(_ints(places, rows))


def _coded(values: Sequence[str], counts: Sequence[int], rows: int) -> Any:
    known: dict[str, int] = {}
    codes = array("i")
    for value, count in zip(values, counts, strict=True):
        codes += array("i", (known.setdefault(value, len(known)),)) * count
    return pa.DictionaryArray.from_arrays(_ints(codes, rows), pa.array(list(known), pa.string()))


def _ints(values: Any, rows: int) -> Any:
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(values)])


def column_of(cells: Sequence[Cells], kind: Any) -> Any:
    """The values of one column. Raises pyarrow's ArrowInvalid if a value does not fit."""
    if all(type(each) is not list for each in cells):
        try:
            found = _of_buffers(list(cells), kind)
        except ValueError:  # the values themselves say what does not fit
            found = None
        if found is not None:
            return found
    values: list[Any] = []
    for each in cells:
        values += each if isinstance(each, list) else msgspec.msgpack.decode(each, strict=False)
    return arrow_array(values, kind)


def _of_buffers(cells: list[Any], kind: Any) -> Any:
    """None for a type that has no such buffers."""
    if pa.types.is_int64(kind) or pa.types.is_int32(kind) or pa.types.is_timestamp(kind):
        rows, nulls, *buffers = _cells.integers(cells, 4 if pa.types.is_int32(kind) else 8)
    elif pa.types.is_string(kind):
        rows, nulls, *buffers = _cells.texts(cells)
    elif pa.types.is_decimal(kind):
        rows, nulls, *buffers = _cells.decimals(cells, kind.scale)
    else:
        return None
    made = [pa.py_buffer(each) for each in buffers]
    found = pa.Array.from_buffers(kind, rows, [made[0] if nulls else None, *made[1:]], nulls)
    if pa.types.is_string(kind):
        found.validate(full=True)
    return found
