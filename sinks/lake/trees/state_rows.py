"""A lake's state columns as rows of the engine: panes merge by the same trees that agents and masters merge by.

    a table of valid panes' rows -> `rows_of`: one `Rows` for the groups and one for each family, as `Panes.merge` takes them

Imports pyarrow and numpy: for reports, not for agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elf.cbt import aggregates
from elf.cbt._kernel import make_rows
from elf.cbt._keys import concat_keys, encode_keys
from elf.cbt._strings import Strings
from elf.cbt.rows import MAX_EMPTY, MIN_EMPTY, KeyColumn, Rows, concat
from elf.jobmaster.plan.plan import Accumulator, Family, FamilyKind, Plan, Reduce
from elf.jobmaster.windows.lanes import LINE_OPS, family_ops, group_ops, lane_count
from elf.sinks.lake.sketch import SKETCH_BYTES
from elf.sinks.lake.theta import hashes_of

Ints = NDArray[np.int64]
Keys = tuple[NDArray[np.uint8], NDArray[np.uint64]]
_WIDEST = (np.int64(-1), np.iinfo(np.int64).max)
"""The lanes of a sum that did not fit 38 digits: it does not fit any result either."""


def rows_of(table: Any, panes: Ints, plan: Plan, names: Mapping[str, str]) -> list[Rows]:
    """A delta for `Panes.merge`, without line counters. panes: of each row. names: the stored name of each state column, and of
    the key i as `#ki`."""
    keys = encode_keys([_key(table.column(names[f"#k{i}"])) for i in range(len(plan.keys))], len(table))
    lanes = [_lanes(each, table.column(names[f"_acc{i}"])) for i, each in enumerate(plan.accumulators)]
    ops = group_ops(plan)
    every = np.concatenate(lanes) if lanes else np.empty((0, len(table)), np.int64)
    groups = make_rows(panes, *keys, None, every, ops)
    families = [
        _members(family, table.column(names[f"_fam{i}"]), panes, keys)
        for i, family in enumerate(plan.families)
    ]
    return [groups, concat([], lane_count(LINE_OPS)), *families]


def _array(column: Any) -> Any:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
    return whole


def _valid(array: Any) -> NDArray[np.bool_] | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _wide(array: Any) -> tuple[Ints, Ints]:
    """Low and high halves of unscaled decimals; 0 for NULL."""
    whole = np.frombuffer(array.buffers()[1] or b"", dtype=np.int64).reshape(-1, 2)
    low, high = whole[array.offset : array.offset + len(array)].T.copy()
    if (valid := _valid(array)) is not None:
        low[~valid] = high[~valid] = 0
    return low, high


def _numbers(array: Any) -> NDArray[Any]:
    """Integers, microseconds, unscaled decimals of 64 bits, 0 and 1, or doubles; 0 for NULL."""
    if pa.types.is_decimal(array.type):
        return _wide(array)[0]
    if pa.types.is_floating(array.type):
        found: NDArray[Any] = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
        return found
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.int64)
    whole: NDArray[Any] = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return whole


def _key(column: Any) -> KeyColumn:
    array = _array(column)
    if pa.types.is_string(array.type):
        coded = array.dictionary_encode()
        strings = Strings()
        known = strings.intern_all(coded.dictionary.to_pylist())
        codes = pc.fill_null(coded.indices, len(known)).to_numpy(zero_copy_only=False)
        return KeyColumn("string", np.append(known, np.int32(-1)).astype(np.int32)[codes], None, strings)
    valid = np.zeros(len(array), np.bool_) if pa.types.is_null(array.type) else _valid(array)
    return KeyColumn("double" if pa.types.is_floating(array.type) else "int", _numbers(array), valid)


def _lanes(accumulator: Accumulator, column: Any) -> Ints:
    """(lanes, n)."""
    array = _array(column)
    if accumulator.reduce is Reduce.COUNT:
        return _numbers(array)[None, :]
    if accumulator.reduce in (Reduce.SUM, Reduce.SUM_SQUARES):
        return _sums(array)
    empty = MIN_EMPTY if accumulator.reduce is Reduce.MIN else MAX_EMPTY
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, _ordered(array), empty)[None, :]


def _sums(array: Any) -> Ints:
    low, high = _wide(array)
    if (valid := _valid(array)) is not None:
        low[~valid], high[~valid] = _WIDEST
    return np.stack([low, high])


def _ordered(array: Any) -> Ints:
    numbers = _numbers(array)
    return aggregates.order_double(numbers) if numbers.dtype == np.float64 else numbers


def _members(family: Family, column: Any, panes: Ints, groups: Keys) -> Rows:
    counts, keys, lanes = _of_family(family, _array(column))
    index = np.repeat(np.arange(len(panes), dtype=np.int32), counts)
    joined, ends, split = concat_keys(*groups, index, *encode_keys(keys, len(index)))
    return make_rows(panes[index], joined, ends, split, lanes, family_ops(family))


def _of_family(family: Family, array: Any) -> tuple[Ints, Sequence[KeyColumn], Ints]:
    """The number of members of each group, the members' keys, and their lanes (lanes, members)."""
    if family.kind is FamilyKind.REGISTERS:
        return _registers(array)
    if family.kind is FamilyKind.HASHES:
        sets = [hashes_of(sketch) for sketch in array.to_pylist() if sketch is not None]
        counts = np.zeros(len(array), dtype=np.int64)
        counts[array.is_valid().to_numpy(zero_copy_only=False)] = [len(each) for each in sets]
        hashes = np.concatenate(sets) if sets else np.empty(0, np.int64)
        return counts, [KeyColumn("int", hashes)], np.empty((0, len(hashes)), np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    counts, part = np.diff(offsets), slice(int(offsets[0]), int(offsets[-1]))
    if pa.types.is_map(array.type):
        items = _array(array.items[part])
        lanes = _sums(items) if pa.types.is_decimal(items.type) else _numbers(items)[None, :]
        return counts, [_key(array.keys[part])], lanes
    values = _array(array.values[part])
    fields = [values] if not pa.types.is_struct(values.type) else values.flatten()
    if family.kind in (FamilyKind.MIN_BY, FamilyKind.MAX_BY):
        return counts, [_key(fields[0])], _ordered(fields[1])[None, :]
    return counts, [_key(field) for field in fields], np.empty((0, len(values)), np.int64)


def _registers(array: Any) -> tuple[Ints, Sequence[KeyColumn], Ints]:
    sketches = array.to_pylist()
    dense = [sketch is not None and len(sketch) == SKETCH_BYTES for sketch in sketches]
    whole = b"".join(sketch[40:] for sketch, is_dense in zip(sketches, dense, strict=True) if is_dense)
    values = np.frombuffer(whole, np.uint8).reshape(-1, SKETCH_BYTES - 40)
    counts = np.zeros(len(sketches), dtype=np.int64)
    counts[np.array(dense, dtype=np.bool_)] = np.count_nonzero(values, axis=1)
    at = np.nonzero(values)
    return counts, [KeyColumn("int", at[1].astype(np.int64))], values[at].astype(np.int64)[None, :]
