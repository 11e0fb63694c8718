"""PAO rows: the columnar form in which partial aggregates are kept, merged, spilled and sent.

A row is (pane, hash, sub, key bytes, lanes). The order is (pane, hash, sub, key), unsigned for hash and sub, bytewise for keys.
Draining in that order yields windows in time order; parents can merge children by streaming; and the members of a family that
belong to one group are adjacent.

- `pane`: start of the pane in microseconds (0 for a query without windows). Rows of different versions are never mixed: each
  version of a job has its own trees.
- `key`: the group's key bytes, in a family followed by the member's. `split` is the length of the group's part, so
  hash = H(key[:split]), and sub = H(key[split:]) (0 when there is no member part), H = `hash64`, seed ORDER_SEED.
- `lanes`: int64; an accumulator takes one lane, or two for SUM128 (low 64 bits as unsigned, then high, two's complement).

Key bytes of one value: b"\\x00" NULL; b"\\x01" + zigzag varint for every integer-like type (BOOLEAN, INT, BIGINT, DECIMAL
unscaled, TIMESTAMP) of 64 bits; b"\\x02" + varint length + bytes for STRING; b"\\x03" + 8 bytes little-endian IEEE for DOUBLE
(-0.0 as 0.0, every NaN as one). Values follow one another; the encoding is prefix-free, so equal keys are equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from elf.cbt._strings import Strings


class Op(Enum):
    SUM64 = "sum64"  # counts: cannot overflow
    SUM128 = "sum128"  # two lanes
    MIN = "min"
    MAX = "max"

    __hash__ = object.__hash__  # each is one object; the enumeration's own hash is not of C

    @property
    def lanes(self) -> int:
        return 2 if self is Op.SUM128 else 1


NUMBERS_BYTES = 8 + 8 + 8 + 4 + 8
"""A row's pane, hash, sub, split and end."""
MIN_EMPTY = np.iinfo(np.int64).max
"""A MIN lane without any value."""
MAX_EMPTY = np.iinfo(np.int64).min
"""A MAX lane without any value."""


class KeyColumn(NamedTuple):
    """One column of a key, for `encode_keys`, which also accepts a plain tuple.

    `kind`: "int" (any integers or bools), "double" (float64, or its bits as int64), "string" (codes into `strings`, -1 is
    NULL). `values` (n,), or (1,) for a constant; `valid` is None if no value is NULL.
    """

    kind: str
    values: NDArray[Any]
    valid: NDArray[np.bool_] | None = None
    strings: Strings | None = None


class Rows(msgspec.Struct):
    """n rows, columnar. Shapes: pane, hash, sub, split (n,); ends (n,); lanes (n_lanes, n); keys (ends[-1],).

    dtypes: pane int64, hash and sub uint64, split uint32, ends uint64 (end offset of each key in `keys`), keys uint8,
    lanes int64.
    """

    pane: NDArray[np.int64]
    hash: NDArray[np.uint64]
    sub: NDArray[np.uint64]
    split: NDArray[np.uint32]
    ends: NDArray[np.uint64]
    keys: NDArray[np.uint8]
    lanes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pane)

    @property
    def nbytes(self) -> int:
        return len(self.pane) * NUMBERS_BYTES + self.keys.nbytes + self.lanes.nbytes

    def slice(self, start: int, stop: int) -> Rows:
        """Rows [start, stop) as views, except `ends`, which are relative to the first key. O(stop - start)."""
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop > start else first
        return Rows(
            self.pane[start:stop],
            self.hash[start:stop],
            self.sub[start:stop],
            self.split[start:stop],
            self.ends[start:stop] - np.uint64(first) if first else self.ends[start:stop],
            self.keys[first:last],
            self.lanes[:, start:stop],
        )

    def copy(self) -> Rows:
        """The same rows in arrays of their own, so that the arrays of which they are views can be freed."""
        return Rows(*(array.copy() for array in astuple(self)))

    def key(self, i: int) -> bytes:
        """The key bytes of row i."""
        return self.keys[int(self.ends[i - 1]) if i else 0 : int(self.ends[i])].tobytes()


def distinct(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The distinct integers, ascending. O(n) if there is only one, like the pane of a query without windows; else a sort.

    numpy.unique does the same, but its first call imports numpy's masked arrays: 10 ms of a short run.
    """
    if len(values) == 0 or values.min() == values.max():
        return values[:1].copy()
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def keyless(lanes: NDArray[np.int64]) -> Rows:
    """Rows of pane 0 with empty keys. O(lanes)."""
    dtypes: tuple[Any, ...] = (np.int64, np.uint64, np.uint64, np.uint32, np.uint64)
    pane, hash, sub, split, ends = (np.zeros(lanes.shape[1], dtype) for dtype in dtypes)
    return Rows(pane, hash, sub, split, ends, np.empty(0, np.uint8), lanes)


def concat(parts: Sequence[Rows], n_lanes: int) -> Rows:
    """All rows in sequence, neither ordered nor folded. O(bytes)."""
    if not parts:
        return keyless(np.empty((n_lanes, 0), np.int64))
    starts = np.cumsum([0] + [len(part.keys) for part in parts[:-1]], dtype=np.uint64)
    return Rows(
        np.concatenate([part.pane for part in parts]),
        np.concatenate([part.hash for part in parts]),
        np.concatenate([part.sub for part in parts]),
        np.concatenate([part.split for part in parts]),
        np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=True)]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.lanes for part in parts], axis=1),
    )
