"""Sorts a window's rows that come in several pieces, in bounded memory: an external merge of columns.

Each piece is an ordered run. A run is divided into blocks, whose columns are packed and kept under the memory budget, which moves
the oldest to its spill file. When they are read back, the first keys of all blocks divide the whole order into ranges of a few
blocks; the rows of a range are found in every run by bisection, concatenated and sorted. No Python object is made for a row until
a reader iterates over tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from elf.cbt import aggregates
from elf.cbt.budget import Budget, Fragment
from elf.jobmaster.plan.plan import Order
from elf.jobmaster.values.columns import CHUNK_ROWS, CellColumn, ColumnRows, Row, Texts
from elf.jobmaster.values.sql_types import Kind
from elf.jobmaster.windows._order import join_texts, lower_bound, order_keys, sorted_index

RUNS_MAX = 128
"""Runs that are merged at once: a block of each is in memory, unpacked. As soon as there are this many, they are merged into
one."""
RANGE_BLOCKS = 64
"""Blocks that begin within a range of the merge."""
BUDGET_FRACTION = 8
"""A merge takes about 1/8 of the budget: `RUNS_MAX` + `RANGE_BLOCKS` blocks, their keys, and a range's rows."""
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 4 << 10, 128 << 10
FIRST_BYTES_MAX = 256
"""Length of the kept prefix of a block's first key: enough to separate ranges. Rows with a common prefix of that length are in
one range, however many there are: only such rows can make a merge take more than its fraction."""
BLOCK_OVERHEAD_BYTES = 120
"""Memory of a block's objects, without its key and its fragment."""

if TYPE_CHECKING:
    from elf.jobmaster.windows._order import KeyPart

Keys = tuple[NDArray[np.uint8], NDArray[np.uint64]]
_LEVEL = 1


def key_part(order: Order, column: CellColumn) -> KeyPart:
    """One item of the order, as input of `order_keys`."""
    values, how = column.values, (order.descending, order.nulls_first)
    if column.texts is not None:
        return values.astype(np.int32, copy=False), column.texts.text, column.texts.ends, None, *how
    kind = order.expression.type.kind
    if kind is Kind.DECIMAL and order.expression.type.precision > 18:
        wide = b"".join([(value + (1 << 159)).to_bytes(20, "big") for value in values.tolist()])
        return np.frombuffer(wide, dtype=np.uint8).reshape(-1, 20), None, None, column.valid, *how
    if values.dtype == np.float64:
        values = aggregates.order_double(values)
    return values.astype(np.int64, copy=False), None, None, column.valid, *how


class Layout(msgspec.Struct, frozen=True):
    """Which of a run's columns its rows are ordered by: `places[i]` is the column of `order[i]`.

    The first `width` columns are the result; those after them only order it.
    """

    order: tuple[Order, ...]
    places: tuple[int, ...]
    width: int

    def keys(self, columns: Sequence[CellColumn]) -> Keys:
        """The rows' keys: bytes that compare as the order does."""
        parts = [key_part(item, columns[at]) for item, at in zip(self.order, self.places, strict=True)]
        return order_keys(parts, len(columns[0]))


class Block(msgspec.Struct, frozen=True):
    """Ordered rows, packed. `first`: a prefix of the first row's key."""

    first: bytes
    fragment: Fragment


Run = list[Block]


class Spool(ColumnRows):
    """Ordered runs of rows, merged each time they are read. `limit` truncates each run and the merged rows.

    Memory is charged to `budget`, and released when this object is deleted, or by `close`.
    """

    def __init__(self, layout: Layout, budget: Budget, limit: int | None = None) -> None:
        super().__init__((), 0, 0)
        self._layout, self._budget, self._limit = layout, budget, limit
        self._block_bytes = budget.cap_bytes // (BUDGET_FRACTION * 3 * (RUNS_MAX + RANGE_BLOCKS))
        self._block_bytes = min(max(self._block_bytes, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX)
        self._levels: list[list[Run]] = []
        self._blank: list[CellColumn] = []  # the columns, without a row
        self._rows = 0
        self._bytes_max = 0  # of a block, unpacked
        self._packer = _Packer()

    def add(self, columns: Sequence[CellColumn]) -> None:
        """Add an ordered run, with columns in the order of the layout. O(bytes). Raises OSError when the disk is full."""
        if not self._blank:
            self._blank = [compact(column.slice(0, 0)) for column in columns[: self._layout.width]]
        if not len(columns[0]):
            return
        self._rows += len(columns[0])
        self._put(0, self._run([columns]))

    def _put(self, level: int, run: Run) -> None:
        """Add a run to a level. Its runs have about the same size; `RUNS_MAX` of them are merged into one of the next level."""
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == RUNS_MAX:
            merged = self._run(self._merged(runs))
            for each in runs:
                self._free(each)
            self._levels[level] = []
            self._put(level + 1, merged)

    def _run(self, parts: Iterator[list[CellColumn]] | Sequence[Sequence[CellColumn]]) -> Run:
        """Ordered rows in blocks, of about `_block_bytes` unless a single row is longer; no more than `limit`."""
        run: Run = []
        left = self._limit
        for columns in parts:
            rows = len(columns[0]) if left is None else min(left, len(columns[0]))
            run += self._blocks([compact(column.slice(0, rows)) for column in columns])
            if left is not None:
                left -= rows
                if not left:
                    break
        return run

    def _blocks(self, columns: Sequence[CellColumn]) -> Iterator[Block]:
        rows = len(columns[0])
        each = max(1, rows * self._block_bytes // (sum(map(_nbytes, columns)) or 1))
        starts = np.arange(0, rows, each)
        keys, ends = self._layout.keys([take(column, starts) for column in columns])
        begin = 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            block = [compact(column.slice(start, start + each)) for column in columns]
            self._bytes_max = max(self._bytes_max, sum(map(_nbytes, block)))
            fragment = self._budget.keep_packed(self._packer.pack(block))
            first = keys[begin : min(end, begin + FIRST_BYTES_MAX)].tobytes()
            self._budget.charge(BLOCK_OVERHEAD_BYTES + len(first))
            yield Block(first, fragment)
            begin = end

    def _free(self, run: Run) -> None:
        for block in run:
            self._budget.release(BLOCK_OVERHEAD_BYTES + len(block.first))
            self._budget.free(block.fragment)

    def close(self) -> None:
        """Release all rows."""
        for level in self._levels:
            for run in level:
                self._free(run)
        self._levels, self._rows = [], 0

    def __del__(self) -> None:
        self.close()  # readers of a window hold its rows, and do not close them

    # ---- reading ----

    def _merged(self, runs: Sequence[Run]) -> Iterator[list[CellColumn]]:
        """All rows of the runs in order, a range at a time."""
        firsts = sorted(block.first for run in runs for block in run)
        pivots: list[bytes | None] = [*dict.fromkeys(firsts[RANGE_BLOCKS::RANGE_BLOCKS])]
        readers = [_Reader(run, self._load) for run in runs]
        with self._budget.scratch(3 * self._bytes_max * min(len(firsts), len(runs) + RANGE_BLOCKS)):
            for pivot in (*pivots, None):
                parts = [part for reader in readers for part in reader.until(pivot)]
                if parts:
                    yield _sorted(parts)

    def _load(self, block: Block) -> _Slab:
        columns = self._packer.unpack(self._budget.read_packed(block.fragment))
        return _Slab(columns, *self._layout.keys(columns))

    def _pieces(self) -> Iterator[list[CellColumn]]:
        left = len(self)
        for columns in self._merged([run for level in self._levels for run in level]):
            yield [column.slice(0, min(left, len(column))) for column in columns[: self._layout.width]]
            left -= len(columns[0])
            if left <= 0:
                return

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[ColumnRows]:
        """The rows in order, at most `rows` at a time."""
        for columns in self._pieces():
            yield from ColumnRows(columns, 0, len(columns[0])).chunks(rows)

    @property
    def cells(self) -> list[CellColumn]:
        """The columns of all rows, in memory."""
        parts = [self._blank, *([compact(column) for column in columns] for columns in self._pieces())]
        return [join(columns) for columns in zip(*parts, strict=True)]

    def __len__(self) -> int:
        return self._rows if self._limit is None else min(self._rows, self._limit)

    def __iter__(self) -> Iterator[Row]:
        for part in self.chunks():
            yield from part

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        """A row or rows, in memory. O(all rows up to them); to read all of them, iterate."""
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            ascending = range(start, stop, step)[:: 1 if step > 0 else -1]
            found = [row for i, row in enumerate(self._up_to(ascending.stop)) if i in ascending]
            return found if step > 0 else found[::-1]
        index = range(len(self))[at]
        return next(row for i, row in enumerate(self) if i == index)

    def _up_to(self, stop: int) -> Iterator[Row]:
        for _, row in zip(range(stop), self, strict=False):
            yield row

    def __repr__(self) -> str:
        return f"Spool({len(self)} rows)"


class _Slab(msgspec.Struct):
    """An unpacked block."""

    columns: list[CellColumn]
    keys: NDArray[np.uint8]
    ends: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.ends)


Part = tuple[_Slab, int, int]
"""Rows [start, stop) of a slab."""


class _Reader:
    """Reads a run from front to back."""

    def __init__(self, run: Run, load: Any) -> None:
        self._blocks, self._load, self._next = run, load, 0
        self._slab: _Slab | None = None
        self._at = 0

    def until(self, pivot: bytes | None) -> Iterator[Part]:
        """The rows before `pivot` that were not read yet."""
        while self._slab is not None or self._advance(pivot):
            slab = self._slab
            assert slab is not None
            end = len(slab) if pivot is None else lower_bound(slab.keys, slab.ends, pivot)
            if end > self._at:
                yield slab, self._at, end
            if end < len(slab):
                self._at = max(end, self._at)
                return
            self._slab, self._at = None, 0

    def _advance(self, pivot: bytes | None) -> bool:
        if self._next == len(self._blocks) or (pivot is not None and self._blocks[self._next].first >= pivot):
            return False
        self._slab = self._load(self._blocks[self._next])
        self._next += 1
        return True


def _sorted(parts: Sequence[Part]) -> list[CellColumn]:
    """The rows of ordered parts in one order."""
    columns = [
        join([slab.columns[i].slice(start, stop) for slab, start, stop in parts])
        for i in range(len(parts[0][0].columns))
    ]
    if len(parts) == 1:
        return columns
    index = sorted_index(*_keys_of(parts))
    return [take(column, index) for column in columns]


def _keys_of(parts: Sequence[Part]) -> Keys:
    """The keys of the parts, concatenated."""
    begins = [int(slab.ends[start - 1]) if start else 0 for slab, start, _ in parts]
    stops = [int(slab.ends[stop - 1]) for slab, _, stop in parts]
    keys = [slab.keys[begin:stop] for (slab, _, _), begin, stop in zip(parts, begins, stops, strict=True)]
    ends = np.concatenate([slab.ends[start:stop] for slab, start, stop in parts])
    shifts = np.cumsum([0, *map(len, keys[:-1])]) - begins
    # Unsigned numbers wrap around, so a negative shift is added like a positive one.
    ends += np.repeat(shifts.astype(np.int64).view(np.uint64), [stop - start for _, start, stop in parts])
    return np.concatenate(keys), ends


# Columns: every text column here has a value of its own for each row, so that no dictionary is needed.


def compact(column: CellColumn) -> CellColumn:
    """A text column with only the texts of its rows, concatenated; any other column as it is."""
    if column.texts is None:
        return column
    return join([column])


def _texts_of(
    type: str, text: NDArray[np.uint8], ends: NDArray[np.uint32], null: NDArray[np.bool_]
) -> CellColumn:
    codes = np.arange(len(ends), dtype=np.int32)
    codes[null] = -1
    return CellColumn(type, codes, None, Texts(text, ends))


def take(column: CellColumn, index: NDArray[np.int64]) -> CellColumn:
    """The rows at `index`, with the same texts."""
    valid = None if column.valid is None else column.valid[index]
    return CellColumn(column.type, column.values[index], valid, column.texts)


def join(columns: Sequence[CellColumn]) -> CellColumn:
    """Columns concatenated, compact."""
    first = columns[0]
    if first.texts is not None:
        text, ends = join_texts([(c.values, c.texts.text, c.texts.ends) for c in columns if c.texts])
        return _texts_of(first.type, text, ends, np.concatenate([c.values for c in columns]) < 0)
    valid = None
    if any(column.valid is not None for column in columns):
        valid = np.concatenate(
            [np.ones(len(c), dtype=np.bool_) if c.valid is None else c.valid for c in columns]
        )
    return CellColumn(first.type, np.concatenate([column.values for column in columns]), valid)


def _nbytes(column: CellColumn) -> int:
    held = int(column.values.nbytes)
    if column.texts is not None:
        held += len(column.texts.text) + column.texts.ends.nbytes
    return held * (8 if column.values.dtype == object else 1)


class _Part(msgspec.Struct, array_like=True):
    """A column as bytes. kind: the dtype of its values, "O" for pickled ones, or "text". planes: byte planes of the values or
    of the text lengths, or the pickled values. rest: the text. valid: a bit for each row; None if no value is NULL."""

    type: str
    kind: str
    planes: memoryview
    rest: memoryview = memoryview(b"")
    valid: memoryview | None = None


class _Packed(msgspec.Struct, array_like=True):
    rows: int
    parts: list[_Part]


class _Packer:
    """Blocks to bytes and back."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._decompressor = zstandard.ZstdDecompressor()
        self._decoder = msgspec.msgpack.Decoder(_Packed)

    def pack(self, columns: Sequence[CellColumn]) -> bytes:
        """Compact columns as bytes. O(bytes)."""
        packed = _Packed(len(columns[0]), [_part(column) for column in columns])
        # A copy: the compressor's result keeps the memory that it allocated for the worst case.
        return bytes(memoryview(self._compressor.compress(msgspec.msgpack.encode(packed))))

    def unpack(self, data: bytes) -> list[CellColumn]:
        packed = self._decoder.decode(self._decompressor.decompress(data))
        return [_column(part, packed.rows) for part in packed.parts]


def _part(column: CellColumn) -> _Part:
    if column.texts is not None:
        lengths = np.diff(column.texts.ends, prepend=np.uint32(0)).astype(np.uint32)
        some = column.values >= 0
        return _Part(column.type, "text", _planes(lengths), column.texts.text.data, _bits(some))
    valid = None if column.valid is None else _bits(column.valid)
    if column.values.dtype == object:
        pickled = memoryview(pickle.dumps(column.values.tolist(), protocol=5))
        return _Part(column.type, "O", pickled, valid=valid)
    return _Part(column.type, column.values.dtype.str, _planes(column.values), valid=valid)


def _bits(valid: NDArray[np.bool_]) -> memoryview | None:
    return None if valid.all() else np.packbits(valid).data


def _planes(values: NDArray[Any]) -> memoryview:
    """The lowest byte of all values, then the next, …: planes that are mostly zero compress to almost nothing."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return memoryview(flat.view(np.uint8).reshape(len(flat), -1).T.tobytes())


def _column(part: _Part, rows: int) -> CellColumn:
    valid = None
    if part.valid is not None:
        valid = np.unpackbits(np.frombuffer(part.valid, dtype=np.uint8), count=rows).view(np.bool_)
    if part.kind == "text":
        ends = np.cumsum(_values(part.planes, "<u4"), dtype=np.uint32)
        null = np.zeros(rows, dtype=np.bool_) if valid is None else ~valid
        return _texts_of(part.type, np.frombuffer(part.rest, dtype=np.uint8), ends, null)
    if part.kind == "O":
        return CellColumn(part.type, _unpickled(part.planes, rows), valid)
    values = _values(part.planes, part.kind)
    return CellColumn(part.type, values if len(values) == rows else values.reshape(rows, -1), valid)


def _unpickled(data: memoryview, rows: int) -> NDArray[Any]:
    """Unpickling is safe here: this process wrote the data, to memory or to a file that no other process can open."""
    values = np.empty(rows, dtype=object)
    for i, value in enumerate(pickle.loads(data)):
        values[i] = value
    return values


def _values(planes: memoryview, dtype: str) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    return (
        np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(size, -1).T)
        .view(dtype)
        .reshape(-1)
    )


def layout_of(order: Sequence[Order], select: Mapping[Any, int], width: int) -> Layout:
    """The layout for results of `width` columns: `select` maps an expression to its column; other expressions follow."""
    extra = width
    places = []
    for item in order:
        at = select.get(item.expression)
        if at is None:
            at, extra = extra, extra + 1
        places.append(at)
    return Layout(tuple(order), tuple(places), width)
