from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.cbt._strings import Strings
from elf.cbt.rows import KeyColumn

Bools = NDArray[np.bool_]
Field = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32], Strings]

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
