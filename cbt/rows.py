"""PAO rows: the columnar form in which partial aggregates are kept, merged, spilled and sent.

A row is (pane, hash, sub, key bytes, lanes). Order is (pane, hash, sub, key), unsigned for hash and sub, bytewise for keys:
draining in that order gives windows in time order, lets parents merge children by streaming, and puts the members of a
family right beside each other by group.

- `pane`: start of the pane in microseconds (0 for a query without windows). Rows of different versions never meet: each
  version of a job has its own trees.
- `key`: the group's key bytes, in a family followed by the member's. `split` is the length of the group's part, so
  hash = H(key[:split]), and sub = H(key[split:]) (0 when there is no member part), H = `hash64`, seed ORDER_SEED.
- `lanes`: int64; an accumulator takes one lane, or two for SUM128 (low 64 bits as unsigned, then high, two's complement).

Key bytes of one value: b"\\x00" NULL; b"\\x01" + zigzag varint for every integer-like type (BOOLEAN, INT, BIGINT, DECIMAL
unscaled, TIMESTAMP) of 64 bits; b"\\x02" + varint length + bytes for STRING; b"\\x03" + 8 bytes little-endian IEEE for DOUBLE
(-0.0 as 0.0, every NaN as one). Values follow one another; the encoding is prefix-free, so equal keys are equal bytes.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray


class Op(Enum):
    SUM64 = "sum64"  # counts: cannot overflow
    SUM128 = "sum128"  # two lanes
    MIN = "min"
    MAX = "max"

    @property
    def lanes(self) -> int:
        return 2 if self is Op.SUM128 else 1


MIN_EMPTY = np.iinfo(np.int64).max
"""What a MIN lane holds before any value."""
MAX_EMPTY = np.iinfo(np.int64).min


class Rows(msgspec.Struct):
    """n rows, columnar. Shapes: pane, hash, sub, split (n,); ends (n,); lanes (n_lanes, n); keys (ends[-1],).

    dtypes: pane int64, hash and sub uint64, split uint32, ends uint64 (end offset of each key in `keys`), keys uint8, lanes int64.
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
        return sum(
            part.nbytes
            for part in (self.pane, self.hash, self.sub, self.split, self.ends, self.keys, self.lanes)
        )
