from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.cbt.rows import KeyColumn, Op, Rows

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Field = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32], Strings]

OP_CODES: dict[str, int]

def hash64(data: bytes) -> int: ...
def hash_keys(
    keys: NDArray[np.uint8], ends: NDArray[np.uint64], split: NDArray[np.uint32] | None = None
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]: ...
def encode_keys(
    columns: Sequence[KeyColumn | tuple[str, NDArray[Any], Bools | None, Strings | None]],
    rows: int | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]: ...
def concat_keys(
    a_keys: NDArray[np.uint8],
    a_ends: NDArray[np.uint64],
    index: NDArray[np.int32],
    b_keys: NDArray[np.uint8],
    b_ends: NDArray[np.uint64],
) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint32]]: ...
def decode_keys(
    keys: NDArray[np.uint8],
    ends: NDArray[np.uint64],
    fields: int,
    start: NDArray[np.uint32] | None = None,
    into: Sequence[Strings] | None = None,
) -> list[Field]: ...
def make_rows(
    pane: int | NDArray[np.int64],
    keys: NDArray[np.uint8],
    ends: NDArray[np.uint64],
    split: NDArray[np.uint32] | None,
    lanes: NDArray[np.int64],
    ops: Sequence[Op],
) -> Rows: ...
def fold(rows: Rows, ops: Sequence[Op]) -> Rows: ...

class Merger:
    """Reads ordered runs as one, equal keys folded, from front to back and as far as is asked. O(n log k) over all."""

    def __init__(self, runs: Sequence[Rows], ops: Sequence[Op]) -> None: ...
    def read(self, until: tuple[int, int, int, bytes] | None = None) -> Rows: ...

def merge(runs: Sequence[Rows], ops: Sequence[Op]) -> Rows: ...
def take(rows: Rows, index: Ints) -> Rows: ...
def lower_bound(rows: Rows, pane: int, hash: int = 0, sub: int = 0, key: bytes = b"") -> int: ...
def first_disorder(rows: Rows) -> int: ...
def pack_columns(rows: Rows) -> NDArray[np.uint8]: ...
def unpack_column(planes: memoryview, out: NDArray[np.int64], base: int) -> None: ...

class Front:
    """The hash table in front of a tree: groups of (pane, atoms), lanes updated in place. Slots are dense from 0."""

    atoms: int
    def __init__(self, atoms: int, ops: Sequence[Op]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def slots(
        self,
        pane: int | NDArray[np.int64],
        columns: Sequence[tuple[NDArray[Any], Bools | None]],
        where: Bools | None = None,
        rows: int | None = None,
    ) -> NDArray[np.int32]: ...
    def count(self, k: int, slots: NDArray[np.int32], valid: Bools | None = None) -> None: ...
    def add(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def add_squares(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def add_wide(
        self,
        k: int,
        slots: NDArray[np.int32],
        low: NDArray[np.uint64],
        high: NDArray[np.int64],
        valid: Bools | None = None,
    ) -> None: ...
    def minimum(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def maximum(
        self, k: int, slots: NDArray[np.int32], values: NDArray[Any], valid: Bools | None = None
    ) -> None: ...
    def panes(self) -> NDArray[np.int64]: ...
    def column(self, i: int) -> tuple[NDArray[np.int64], Bools | None]: ...
    def lanes(self) -> NDArray[np.int64]: ...
    def clear(self) -> None: ...
    def check(self) -> None: ...
