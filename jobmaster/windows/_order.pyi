from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDE_BYTES: int

Bytes = NDArray[np.uint8]
KeyPart = tuple[
    NDArray[Any], Bytes | None, NDArray[np.unsignedinteger[Any]] | None, NDArray[np.bool_] | None, bool, bool
]

def order_keys(parts: Sequence[KeyPart], rows: int) -> tuple[Bytes, NDArray[np.uint64]]: ...
def sorted_index(keys: Bytes, ends: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]: ...
def lower_bound(keys: Bytes, ends: NDArray[np.uint64], key: bytes) -> int: ...
def join_texts(
    parts: Sequence[tuple[NDArray[np.int32], Bytes, NDArray[np.uint32]]],
) -> tuple[Bytes, NDArray[np.uint32]]: ...
